# Copyright (c) mmib contributors. All rights reserved.
import os

import numpy as np
import pytest
import torch
from mmengine.logging import HistoryBuffer

from mmib.report.checkpoint import read_newest
from tests.helpers.work_dirs import write_checkpoint


def test_scores_and_counts(tmp_path):
    write_checkpoint(tmp_path)
    checkpoint, notes = read_newest(str(tmp_path))
    images = checkpoint.images
    assert notes == []
    scores = np.float32([*np.arange(11) / 10, np.nan])
    np.testing.assert_array_equal(images.last_score, scores)
    np.testing.assert_array_equal(images.score,
                                  scores[[10, *range(1, 10), 0, 11]])
    assert images.visits.tolist() == [5] * 12
    assert images.pruned.tolist() == list(range(12))
    assert images.last_visit.tolist() == list(range(11, -1, -1))


def test_none_and_without_mmib(tmp_path):
    checkpoint, notes = read_newest(str(tmp_path))
    assert checkpoint is None and 'no checkpoint yet' in notes[0]
    write_checkpoint(tmp_path, infobatch=None)
    assert read_newest(str(tmp_path))[0].images is None


class Attack:
    """Runs a command when it is unpickled."""

    def __init__(self, call, *args):
        self.reduced = call, args

    def __reduce__(self):
        return self.reduced


UNUSED = ("iter_40.pth is damaged, or holds more than data, so it isn't "
          'used.')


@pytest.mark.parametrize('call', [os.system, exec])
def test_runs_nothing_of_a_checkpoint(tmp_path, call):
    write_checkpoint(tmp_path, 20)
    mark = tmp_path / 'ran'
    code = f'touch {mark}' if call is os.system else f'open({str(mark)!r},"w")'
    path = write_checkpoint(tmp_path, 40, meta=Attack(call, code))
    checkpoint, notes = read_newest(str(tmp_path))
    assert checkpoint.name == 'iter_20.pth'
    assert notes == [UNUSED]
    assert not mark.exists()
    torch.load(path, weights_only=False)
    assert mark.exists()


def test_getattr_reaches_nothing(tmp_path):
    """The methods in MMEngine's checkpoints need it; with the real one a
    checkpoint could change what is in memory."""
    reached = Attack(getattr, HistoryBuffer, '__init__')
    write_checkpoint(
        tmp_path, state_dict=dict(a=Attack(getattr, reached, '__globals__')))
    assert read_newest(str(tmp_path))[0].weights == {}


@pytest.mark.parametrize('damage', [
    lambda data: data[:len(data) // 2], lambda data: b'', lambda data: b'text'
])
def test_a_damaged_one_is_passed_over(tmp_path, damage):
    earlier = write_checkpoint(tmp_path, 20)
    path = write_checkpoint(tmp_path, 40)
    path.write_bytes(damage(path.read_bytes()))
    checkpoint, notes = read_newest(str(tmp_path))
    assert checkpoint.name == 'iter_20.pth' and notes == [UNUSED]
    earlier.unlink()
    checkpoint, notes = read_newest(str(tmp_path))
    assert checkpoint is None and 'can be used' in notes[1]


@pytest.mark.parametrize('changes, said', [
    (dict(tables={}), 'that is damaged'),
    (dict(saved_iters=1.), 'that is damaged'),
    (dict(version=1), 'of another version'),
    (dict(version=None), 'of another version'),
    ([], 'that is damaged'),
])
def test_states_that_cannot_be_read(tmp_path, changes, said):
    path = write_checkpoint(tmp_path)
    state = torch.load(path, weights_only=False)['infobatch']
    state = changes and dict(state, **changes)
    write_checkpoint(tmp_path, infobatch=state)
    checkpoint, notes = read_newest(str(tmp_path))
    assert checkpoint is None
    assert notes[0] == f'iter_40.pth has a state of InfoBatch {said}.'


@pytest.mark.parametrize('content', [[1], torch.ones(3), dict(meta=3)])
def test_no_checkpoint_of_a_training(tmp_path, content):
    torch.save(content, tmp_path / 'iter_3.pth')
    checkpoint, notes = read_newest(str(tmp_path))
    assert checkpoint is None and 'is not a checkpoint of a run' in notes[0]


def test_the_last_one_saved_is_the_newest(tmp_path):
    """After a kill a training goes on from an earlier checkpoint."""
    write_checkpoint(tmp_path, 40)
    write_checkpoint(tmp_path, 30)
    assert read_newest(str(tmp_path))[0].name == 'iter_30.pth'
    (tmp_path / 'last_checkpoint').unlink()
    assert read_newest(str(tmp_path))[0].name == 'iter_40.pth'


def test_of_another_training(tmp_path):
    """One that doesn't tell is taken."""
    hub = dict(runtime_info={'infobatch/run': '20260101_000000', 'iter': 20})
    write_checkpoint(tmp_path, message_hub=hub)
    write_checkpoint(tmp_path, 20)
    for run in ('', '20260101_000000'):
        checkpoint, notes = read_newest(str(tmp_path), run)
        assert checkpoint.name == 'iter_20.pth' and not notes
    (tmp_path / 'last_checkpoint').unlink()
    checkpoint, notes = read_newest(str(tmp_path), '20260102_000000')
    assert checkpoint.name == 'iter_20.pth' and notes == [
        'iter_40.pth is of another run, begun at 20260101_000000, so it '
        'isn\'t used.'
    ]
