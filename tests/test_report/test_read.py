# Copyright (c) mmib contributors. All rights reserved.
import os.path as osp
import re
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from mmengine.hooks import Hook

from mmib.errors import Refusal
from mmib.report.checkpoint import read_newest
from mmib.report.page import render
from mmib.report.read import read_run
from tests.helpers.epochs import PRUNES, by_epoch
from tests.helpers.segmentors import (BASELINE, VALIDATION, infobatch_hook,
                                      small_runner)
from tests.helpers.work_dirs import (BEGINS, CONFIG, ENDS, PLANS, SCALARS,
                                     StoppedAt, plan, train_line, val_line,
                                     write_finished, write_start)

PLAIN = 'train_cfg = dict(max_iters=40)'
VALIDATES = {**VALIDATION, 'default_hooks.logger.log_metric_by_epoch': False}


class EdgeOfValidations(Hook):

    def __init__(self):
        self.iters = []

    def before_val(self, runner):
        self.iters.append(runner.iter)


class AllOddAtFirst(Hook):

    def before_val(self, runner):
        bias = runner.model.decode_head.conv_seg.bias
        bias.data[1] = 99. if runner.iter < 40 else -99.


def of_another_second(folder):
    """Folders of starts are named by seconds."""
    newest = max((path.parent.name for path in folder.glob('*/vis_data')),
                 default='')
    while time.strftime('%Y%m%d_%H%M%S') <= newest:
        time.sleep(0.05)


def test_finished(tmp_path):
    run = read_run(str(write_finished(tmp_path / 'run')))
    assert run.name == 'run' and run.finished and run.has_infobatch
    assert not run.notes
    assert (run.last_iter, run.max_iters, run.annealing_iter) == (40, 40, 34)
    assert run.policy == 'MeanThreshold(ratio=0.5)'
    assert (run.saved_iters, run.visits, run.pruned) == (10, 150, 30)
    assert run.worth[:3] == (0.9, 0.85, 0.95)
    assert run.seconds == 135
    assert [run.kept_share(p) for p in run.plans] == [1, 0.75, 0.75, 0.75, 1]
    assert [tier[:2] for tier in run.plans[1].tiers] == [(6, 3), (6, 6)]
    assert run.plans[1].variance_ratio.limit == 0.7 and run.plans[
        0].variance_ratio is None
    assert list(run.metrics) == ['mIoU', 'aAcc']
    np.testing.assert_array_equal(run.metrics['mIoU'],
                                  [[20, 40], [30.0, 40.0]])
    np.testing.assert_array_equal(run.loss.values, [1.0, 0.9, 0.8, 0.7])
    # Between plans and at them.
    np.testing.assert_allclose(
        run.full_equivalent(np.array([0, 2, 5.5, 22, 34, 40])),
        [0, 2, 6, 28, 44, 50])


def test_annealing_of_epochs(tmp_path):
    """Plans tell where an epoch begins."""
    begins = dict(BEGINS, unit='epoch', annealing_at=11, max_iters=50)
    records = [{'begins': begins}, *PLANS]
    config = 'train_cfg = dict(max_epochs=13)'
    run = read_run(str(write_start(tmp_path, SCALARS, records, config)))
    assert run.annealing_iter == 34 and run.max_iters is None


def test_running(tmp_path):
    """The last line is not whole, and the open plan goes on."""
    records = [{'begins': BEGINS}, *PLANS[:2]]
    work_dir = write_start(tmp_path, SCALARS[:1], records)
    with open(tmp_path / '20260101_000000' / 'infobatch.jsonl', 'a') as file:
        file.write('{"iter": 7, "ep')
    run = read_run(str(work_dir))
    assert not run.finished and (run.last_iter, run.max_iters) == (10, 40)
    # 6 iterations at a kept share of 0.75.
    assert run.saved_iters == pytest.approx(2)
    assert run.full_equivalent(np.array([10]))[0] == pytest.approx(12)
    assert run.worth[:3] == (0.9, 0.85, 0.95)


def test_a_later_start_replaces_from_its_first_iteration_on(tmp_path):
    """The first start was killed at 36; the second goes on from 20."""
    before = [
        train_line(10, 1.0),
        train_line(20, 1.1),
        val_line(20, 10.0),
        train_line(30, 9.0),
        val_line(35, 99.0)
    ]
    plans = [plan(4, 4.0, 9), plan(20, 99.0, 9)]
    write_start(tmp_path, before, [{'begins': BEGINS}, *plans])
    after = [train_line(30, 1.2), train_line(40, 1.3), val_line(40, 20.0)]
    begins, ends = {'begins': dict(BEGINS, iter=20)}, {'ends': ENDS}
    write_start(
        tmp_path,
        after, [begins, plan(24, 30.0, 9), ends],
        config=CONFIG + 'resume = True',
        start='20260102_000000')
    run = read_run(str(tmp_path))
    assert run.num_starts == 2 and run.seconds == 270
    np.testing.assert_array_equal(run.loss,
                                  [[10, 20, 30, 40], [1.0, 1.1, 1.2, 1.3]])
    np.testing.assert_array_equal(run.metrics['mIoU'], [[20, 40], [10, 20]])
    assert [(p.iter, p.saved_iters) for p in run.plans] == [(4, 0.), (24, 6.)]


def test_a_test_of_the_checkpoint_is_no_start(tmp_path):
    write_finished(tmp_path)
    write_start(tmp_path, [], start='20260102_000000', config='')
    run = read_run(str(tmp_path))
    assert run.num_starts == 1 and run.finished and run.config


def test_baseline(tmp_path):
    run = read_run(str(write_start(tmp_path, config=PLAIN)))
    assert run.finished and not run.has_infobatch and run.saved_iters == 0
    assert run.seconds is None  # There is no log.
    np.testing.assert_array_equal(run.loss.values, [2.0, 1.8, 1.6, 0.7])
    np.testing.assert_array_equal(run.metrics['mIoU'], [[20, 40], [30., 40.]])
    np.testing.assert_array_equal(run.full_equivalent([3, 40]), [3, 40])


def test_nothing_to_report(tmp_path):
    with pytest.raises(Refusal, match='nothing of a run'):
        read_run(str(tmp_path))
    with pytest.raises(Refusal, match='is not a folder'):
        read_run(str(tmp_path / 'missing'))


def test_a_resumed_baseline(tmp_path):
    """Its second start goes on from 20, its third one is another training."""
    write_start(tmp_path, SCALARS[:4], config=PLAIN)
    later = [train_line(30, 1.5), train_line(40, 1.4)]
    write_start(tmp_path, later, config=PLAIN, start='20260102_000000')
    run = read_run(str(tmp_path))
    assert run.num_starts == 2 and run.start == '20260101_000000'
    np.testing.assert_array_equal(run.loss,
                                  [[10, 20, 30, 40], [2.0, 1.8, 1.5, 1.4]])
    write_start(tmp_path, SCALARS[:1], config=PLAIN, start='20260103_000000')
    run = read_run(str(tmp_path))
    assert run.num_starts == 1 and run.loss.iterations.tolist() == [10]
    assert 'begun at 20260101_000000:' in run.notes[0]


class SlowValidation(Hook):

    def before_val(self, runner):
        time.sleep(1.2)


def test_times_and_losses_of_a_resumed_baseline(tmp_path):
    """What the first start trained after its checkpoint isn't shown, and the
    time is that of the clock."""
    changes = {
        **BASELINE,
        **VALIDATES, 'train_cfg': dict(max_iters=40, val_interval=20),
        'default_hooks.checkpoint.interval': 20
    }
    elapsed = 0.
    for resume, interval, end in ((False, 1, 27), (True, 10, 0)):
        of_another_second(tmp_path)
        runner = small_runner(
            tmp_path,
            resume=resume,
            **changes,
            **{'default_hooks.logger.interval': interval})
        runner.register_hook(SlowValidation())
        runner.register_hook(StoppedAt(end))
        begin = time.time()
        with pytest.raises(KeyboardInterrupt) if end else nullcontext():
            runner.train()
        elapsed += time.time() - begin
    run = read_run(str(tmp_path))
    assert run.num_starts == 2 and run.finished
    assert run.loss.iterations.tolist() == [*range(1, 21), 30, 40]
    # The log has whole seconds.
    assert 2 <= run.seconds <= elapsed + 2
    # The name by which it was trained, and not one of a start.
    assert osp.dirname(run.config.filename) == str(tmp_path)
    # A test of a checkpoint writes to the same file.
    path = Path(run.config.filename)
    path.write_text(path.read_text() +
                    "\nload_from = 'iter_40.pth'\nlauncher = 'pytorch'\n"
                    'resume = False\n')
    again = read_run(str(tmp_path)).config
    assert again.filename == str(path)
    assert again.to_dict() == run.config.to_dict()
    # A script in the folder isn't run.
    (tmp_path / 'plot.py').write_text('import sys\nsys.exit(1)\n')
    assert read_run(str(tmp_path)).config.filename == str(path)
    # So may another run.
    path.write_text('test_cfg = dict()')
    again = read_run(str(tmp_path)).config
    assert again.filename.endswith('/vis_data/config.py')
    assert again.to_dict() == run.config.to_dict()


def test_the_time_of_a_resumed_baseline(tmp_path):
    """Each start counts from the line before its first step."""
    for start, lines, text in (('20260101_000000', SCALARS[:3], """
2026/01/01 00:00:01 - mmengine - INFO - Config:
2026/01/01 00:00:09 - mmengine - INFO - Checkpoints will be saved to a.
2026/01/01 00:01:09 - mmengine - INFO - Iter(train) [10/40]  lr: 1.0000e-02
  + 01/01 and more
2026/01/01 00:02:00 - mmengine - INFO - Iter(val) [2/2]    mIoU: 30.0000
"""), ('20260102_000000', SCALARS[4:5], """
2026/01/02 00:00:01 - mmengine - INFO - resumed epoch: 0, iter: 30
2026/01/02 00:00:02 - mmengine - WARNING - more
2026/01/02 00:00:12 - mmengine - INFO - Iter(train) [40/40]  lr: 1.0000e-02
""")):
        write_start(tmp_path, lines, config=PLAIN, start=start)
        (tmp_path / start / f'{start}.log').write_text(text)
    run = read_run(str(tmp_path))
    assert run.num_starts == 2 and run.seconds == 111 + 10


def test_damaged_lines(tmp_path):
    """Half of the last line is what a kill leaves; others are told."""
    write_finished(tmp_path)
    path = tmp_path / '20260101_000000' / 'infobatch.jsonl'
    whole = read_run(str(tmp_path))
    path.write_text(path.read_text() + '{"iter": 9, "lo')
    assert not read_run(str(tmp_path)).notes
    text = path.read_text().replace('"kept": 12', '"kept": 12,,', 1)
    path.write_text(text.replace('"loss"', '"los"', 1))
    run = read_run(str(tmp_path))
    assert run.notes == [
        "2 lines of the files can't be read, and are left out."
    ]
    assert len(run.plans) == len(whole.plans) - 1


def test_lines_of_a_later_training_of_the_process(tmp_path):
    """MMEngine's visualizer goes on with the folder of the first one."""
    write_start(tmp_path / 'alone', config=PLAIN)
    write_start(tmp_path / 'both', [*SCALARS, *SCALARS], config=PLAIN)
    alone, both = (read_run(str(tmp_path / n)) for n in ('alone', 'both'))
    np.testing.assert_array_equal(alone.loss, both.loss)
    np.testing.assert_array_equal(alone.metrics['mIoU'], both.metrics['mIoU'])


def test_resumed_after_its_end(tmp_path):
    """As a cluster does that queues a job again. Nothing is trained then."""
    changes = {
        **VALIDATES, 'train_cfg': dict(max_iters=30, val_interval=15),
        'default_hooks.logger.interval': 7,
        'default_hooks.checkpoint.interval': 10
    }
    small_runner(tmp_path, **changes).train()
    once = read_run(str(tmp_path))
    assert once.metrics['mIoU'].iterations.tolist() == [15, 30]
    of_another_second(tmp_path)
    small_runner(tmp_path, resume=True, **changes).train()
    assert len(list(tmp_path.glob('*/infobatch.jsonl'))) == 2
    twice = read_run(str(tmp_path))
    # That of the later start has another folder.
    once.config = twice.config
    assert repr(twice) == repr(once) and not once.notes


@pytest.mark.parametrize('policy, interval', [(None, 3), (None, 1000),
                                              (PRUNES, 1000)])
def test_validations_of_epochs(tmp_path, policy, interval):
    """They are where the epoch ends."""
    changes = by_epoch(policy, **VALIDATION)
    changes['train_cfg'].update(val_interval=1)
    changes['default_hooks.logger'] = dict(interval=interval)
    runner = small_runner(tmp_path, **changes)
    edges = EdgeOfValidations()
    runner.register_hook(edges)
    runner.train()
    run = read_run(str(tmp_path))
    found = run.metrics['mIoU'].iterations.tolist()
    assert len(found) == 8
    # Of a baseline, where a loss was logged last.
    assert all(0 <= edge - at < (1 if policy else interval)
               for edge, at in zip(edges.iters, found))


def test_iou_of_each_class(tmp_path):
    """At the last validation, of which only the log knows."""
    runner = small_runner(
        tmp_path / 'run',
        **VALIDATES,
        train_cfg=dict(max_iters=40, val_interval=20))
    runner.register_hook(AllOddAtFirst())
    runner.train()
    run = read_run(str(tmp_path / 'run'))
    values = run.metrics['mIoU'].values
    assert values[-1] != values[0]
    assert list(run.class_ious) == ['even', 'odd']
    ious = [float(iou) for iou in run.class_ious.values()]
    assert np.nanmean(ious) == pytest.approx(values[-1], abs=0.011)
    other = read_run(str(write_finished(tmp_path / 'other')))
    assert other.class_ious == {}
    page = render(run, [other], None, [])
    assert re.search(r'<tr><td>odd</td><td>%s</td><td>–</td></tr>' % ious[1],
                     page)
    # A kill may have left a part of the table.
    log, = (tmp_path / 'run').glob('*/*.log')
    text = log.read_text()
    begin = text.rindex('per class results:')
    for end, left in (('results:', []), ('|  even', []), ('|  odd  | 0',
                                                          ['even'])):
        log.write_text(text[:text.index(end, begin) + len(end)])
        assert list(read_run(str(tmp_path / 'run')).class_ious) == left


@pytest.mark.parametrize('resumed_at, left', [(40, True), (20, False)])
def test_a_table_is_that_of_the_last_metric(tmp_path, resumed_at, left):
    """And not of a validation that a later start replaces."""
    work_dir = write_start(
        tmp_path / 'run',
        records=[{
            'begins': dict(BEGINS, run='1')
        }],
        start='20260101_000000')
    (work_dir / '20260101_000000/20260101_000000.log').write_text(
        'per class results:\n\n+--+\n|  Class | IoU |\n+--+\n| sky | 8.5 |\n')
    write_start(
        work_dir, [train_line(resumed_at + 1, 1.)],
        records=[{
            'begins': dict(BEGINS, iter=resumed_at, run='1')
        }],
        start='20260101_000001')
    run = read_run(str(work_dir))
    assert run.num_starts == 2
    assert run.class_ious == ({'sky': '8.5'} if left else {})


def test_another_training_in_the_folder(tmp_path, caplog):
    """The first one was stopped at 30, after its checkpoint of 20, and what
    it left isn't used, until the second one is resumed."""
    changes = {
        **VALIDATES, 'train_cfg': dict(max_iters=40, val_interval=10),
        'default_hooks.logger.interval': 1,
        'default_hooks.checkpoint.interval': 20
    }
    first = small_runner(tmp_path, **changes)
    first.register_hook(StoppedAt(30))
    with pytest.raises(KeyboardInterrupt):
        first.train()
    assert 'has another run' not in caplog.text
    of_another_second(tmp_path)
    second = small_runner(tmp_path, **changes)
    second.register_hook(StoppedAt(15))
    with pytest.raises(KeyboardInterrupt):
        second.train()
    log, = (tmp_path / second.timestamp).glob('*.log')
    text = log.read_text()
    assert f'has another run too, in {first.timestamp}. ' in text
    run = read_run(str(tmp_path))
    assert run.start == second.timestamp and run.num_starts == 1
    assert f'1 other run too, begun at {first.timestamp}:' in run.notes[0]
    assert run.metrics['mIoU'].iterations.tolist() == [10]
    checkpoint, notes = read_newest(str(tmp_path), run.start)
    assert checkpoint is None
    assert f'iter_20.pth is of another run, begun at {first.timestamp}' \
        in notes[0]
    # What MMEngine resumes is the first one: the second one ends at 15.
    of_another_second(tmp_path)
    third = small_runner(tmp_path, resume=True, **changes)
    third.train()
    log, = (tmp_path / third.timestamp).glob('*.log')
    assert 'has another run' not in log.read_text()
    run = read_run(str(tmp_path))
    assert run.start == first.timestamp and run.num_starts == 2
    assert f'other run too, begun at {second.timestamp}' in run.notes[0]
    assert run.metrics['mIoU'].iterations.tolist() == [10, 20, 30, 40]
    assert run.finished and read_newest(str(tmp_path), run.start)[0]


def test_a_baseline_in_the_folder_of_a_pruned_training(tmp_path):
    """It has no `infobatch.jsonl`, so the config tells whether it goes on."""
    write_finished(tmp_path)
    lines = [train_line(20, 5.0)]
    write_start(tmp_path, lines, config=PLAIN, start='20260102_000000')
    run = read_run(str(tmp_path))
    assert not run.has_infobatch and run.loss.values.tolist() == [5.0]
    assert 'begun at 20260101_000000:' in run.notes[0]


def test_worth_of_a_training_that_is_running(tmp_path):
    """It is what the line at the end would say."""
    runner = small_runner(
        tmp_path, **{
            'train_cfg.max_iters': 60,
            'train_dataloader.dataset.size': 29
        })
    runner.register_hook(StoppedAt(50))
    with pytest.raises(KeyboardInterrupt):
        runner.train()
    run = read_run(str(tmp_path))
    mean = infobatch_hook(runner).run.worth
    assert not run.finished and run.worth[:3] == pytest.approx(mean[:3])
    shares = [run.kept_share(plan) for plan in run.plans]
    assert len(set(shares)) > 2
