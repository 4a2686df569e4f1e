# Copyright (c) mmib contributors. All rights reserved.
import os

import numpy as np
import pytest
import torch
from mmengine.logging import HistoryBuffer

from mmib.report.checkpoint import read_newest

from .work_dirs import write_checkpoint


def test_scores_and_counts(tmp_path):
    write_checkpoint(tmp_path)
    checkpoint, notes = read_newest(str(tmp_path))
    images = checkpoint.images
    assert notes == []
    assert np.isnan(images.score[11])
    scores = np.arange(11, dtype=np.float32) / 10
    assert images.score[:11].tolist() == scores.tolist()
    assert images.average[:11].tolist() == scores[[10, *range(1, 10),
                                                   0]].tolist()
    assert np.isnan(images.average[11])
    assert images.visits.tolist() == [5] * 12
    assert images.pruned.tolist() == list(range(12))
    assert images.last_visit.tolist() == list(range(11, -1, -1))


def test_without_mmib(tmp_path):
    path = write_checkpoint(tmp_path)
    checkpoint = torch.load(path, weights_only=False)
    del checkpoint['infobatch']
    torch.save(checkpoint, path)
    assert read_newest(str(tmp_path))[0].images is None


def test_none(tmp_path):
    checkpoint, notes = read_newest(str(tmp_path))
    assert checkpoint is None and 'no checkpoint yet' in notes[0]


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


@pytest.mark.parametrize('damage', ['truncated', 'empty', 'text'])
def test_damaged(tmp_path, damage):
    write_checkpoint(tmp_path, 20)
    path = write_checkpoint(tmp_path, 40)
    data = path.read_bytes()
    path.write_bytes({
        'truncated': data[:len(data) // 2],
        'empty': b'',
        'text': b'text'
    }[damage])
    checkpoint, notes = read_newest(str(tmp_path))
    assert checkpoint.name == 'iter_20.pth'
    assert notes == [UNUSED]
    (tmp_path / 'iter_20.pth').unlink()
    checkpoint, notes = read_newest(str(tmp_path))
    assert checkpoint is None and 'can be used' in notes[1]


@pytest.mark.parametrize('change, said', [
    (lambda state: state.pop('tables'), 'that is damaged'),
    (lambda state: state['tables']['visits'].add_(1), 'that is damaged'),
    (lambda state: state.update(version=1), 'of another version'),
    (lambda state: state.pop('version'), 'of another version'),
    (lambda state: [], 'that is damaged'),
])
def test_states_that_cannot_be_read(tmp_path, change, said):
    path = write_checkpoint(tmp_path)
    state = torch.load(path, weights_only=False)['infobatch']
    changed = change(state)
    if changed == []:
        state = changed
    write_checkpoint(tmp_path, infobatch=state)
    checkpoint, notes = read_newest(str(tmp_path))
    assert checkpoint is None
    assert notes[0] == f'iter_40.pth has a state of InfoBatch {said}.'


@pytest.mark.parametrize('content', [[1], torch.ones(3), dict(meta=3)])
def test_no_checkpoint_of_a_training(tmp_path, content):
    torch.save(content, tmp_path / 'iter_3.pth')
    checkpoint, notes = read_newest(str(tmp_path))
    assert checkpoint is None and 'is no checkpoint of a training' in notes[0]


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
        'iter_40.pth is of another training, begun at 20260101_000000, so it '
        'isn\'t used.'
    ]
