# Copyright (c) mmib contributors. All rights reserved.
"""Scalars of a training, as the libraries' tools and TensorBoard read them."""
from mmengine.registry import VISBACKENDS
from mmengine.visualization.vis_backend import BaseVisBackend

from tests.helpers.segmentors import VALIDATION, read_lines, small_runner


@VISBACKENDS.register_module()
class Remembers(BaseVisBackend):
    """A backend that isn't a file of MMEngine, such as TensorBoard."""

    def __init__(self, save_dir=None):
        self.lines = []

    def _init_env(self):
        pass

    experiment = None

    def add_scalars(self, scalar_dict, step=0, file_path=None, **kwargs):
        self.lines.append((step, {**scalar_dict}))


def test_lines_are_of_training_or_of_validation(tmp_path):
    """MMPretrain's analyze_logs takes a line without `lr` for one of a
    validation, and each of these must have the metric."""
    backends = [dict(type='LocalVisBackend'), dict(type='Remembers')]
    runner = small_runner(
        tmp_path, **{
            **VALIDATION,
            'train_cfg': dict(max_iters=30, val_interval=10),
            'default_hooks.logger.interval': 5,
            'visualizer.vis_backends': backends,
        })
    runner.train()
    lines = read_lines(next(tmp_path.glob('*/vis_data/scalars.json')))
    training = [line for line in lines if 'lr' in line]
    validation = [line for line in lines if 'lr' not in line]
    assert all('loss' in line for line in training)
    assert [('mIoU' in line) for line in validation] == 3 * [True]
    assert not any('infobatch' in name for line in lines for name in line)
    # All else has them.
    backend = runner.visualizer.get_backend('Remembers')
    steps = [
        step for step, line in backend.lines if 'infobatch/saved_iters' in line
    ]
    plans = [
        line for line in read_lines(next(tmp_path.glob('*/infobatch.*')))
        if 'kept' in line
    ]
    assert steps == [int(plan['iter']) for plan in plans] + [30]


def test_other_ranks_write_no_scalars(tmp_path, monkeypatch):
    """A backend of theirs would begin a run of its own."""
    monkeypatch.setattr('mmib.openmmlab.console.reporter.is_main_process',
                        lambda: False)
    backends = [dict(type='LocalVisBackend'), dict(type='Remembers')]
    runner = small_runner(tmp_path, **{'visualizer.vis_backends': backends})
    runner.train()
    lines = runner.visualizer.get_backend('Remembers').lines
    assert not any('infobatch' in name for _, line in lines for name in line)
    assert runner.message_hub.log_scalars['infobatch/kept_share']
