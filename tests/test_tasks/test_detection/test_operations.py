# Copyright (c) mmib contributors. All rights reserved.
"""What a step of a detector dispatches more than the baseline's, as
tests/system/test_operations.py counts it."""
import pytest

pytest.importorskip('mmdet.models', exc_type=ImportError)

from mmengine.runner import Runner  # noqa: E402

from mmib import convert  # noqa: E402
from tests.system.operations import operations_per_step  # noqa: E402

from . import small_detector as small  # noqa: E402


def test_operations(tmp_path):
    """Two levels of two predictions each."""
    # Heads take image by image apart, and box by box.
    small.draw(tmp_path, size=128, num_boxes=(2, ))
    plain, pruned = (
        small.config(
            tmp_path / name, tmp_path, **{
                'train_cfg.max_epochs': 8,
                'train_dataloader.drop_last': True,
                'train_dataloader.batch_sampler': None
            }) for name in ('plain', 'pruned'))
    counts = [
        operations_per_step(Runner.from_cfg(cfg), 150, 214)
        for cfg in (plain, convert(pruned))
    ]
    assert counts[1] - counts[0] <= 30, counts
