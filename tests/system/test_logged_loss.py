# Copyright (c) mmib contributors. All rights reserved.
"""`loss` in the log has the scale of the baseline's also where images are
pruned."""
import numpy as np
import pytest
from mmseg.registry import DATASETS

from tests.helpers.epochs import by_epoch
from tests.helpers.segmentors import (IndexDataset, infobatch_hook,
                                      small_runner, train)

SIZE, BATCH, EPOCHS = 120, 10, 20


@DATASETS.register_module()
class UnequalDataset(IndexDataset):
    """Seven of eight rows of most images are ignored, and count as a loss of
    0. Each fifth image has no ignored rows."""

    def __getitem__(self, index):
        results = super().__getitem__(index)
        label = results['data_samples'].gt_sem_seg.data
        label[:] = index % 2
        if index % 5:
            label[:, 1:] = 255
        return results


LOOPS = {
    'by iterations': {
        'train_cfg.max_iters': EPOCHS * SIZE // BATCH
    },
    'by epochs': by_epoch(
        **{
            'train_cfg': dict(
                _delete_=True, type='EpochBasedTrainLoop', max_epochs=EPOCHS)
        }),
}


@pytest.mark.parametrize('kind, normalize', [('MeanThreshold', False),
                                             ('QuantileTiers', True),
                                             ('Neyman', False),
                                             ('Neyman', True)])
@pytest.mark.parametrize('loop', LOOPS)
def test_no_jump_where_pruning_begins(tmp_path, loop, kind, normalize):
    """Nothing is learned, so that the mean loss of all images stays. It is the
    mean of what is logged in the first pass, and of what is logged in all
    plans that prune."""
    hook = dict(
        type='InfoBatchHook', policy=dict(type=kind), normalize=normalize)
    runner = small_runner(
        tmp_path, **{
            **LOOPS[loop], 'custom_hooks': [hook],
            'model.auxiliary_head': None,
            'train_dataloader.dataset': dict(type='UnequalDataset', size=SIZE),
            'train_dataloader.batch_size': BATCH,
            'optim_wrapper.optimizer.lr': 0.
        })
    plans = []
    infobatch_hook(runner).plan_observers.append(
        lambda record, plan: plans.append((record.first_slot, plan)))
    steps = train(runner)
    logged, _ = runner.message_hub.get_scalar('train/loss').data
    losses = np.repeat(logged, [len(step['images']) for step in steps])
    all_scores = infobatch_hook(runner).run.table.scores
    mean = all_scores.mean()
    assert losses[:SIZE].mean() == pytest.approx(mean, rel=1e-5)
    # Whole plans that prune.
    plans = [(losses[begin:begin + len(plan)], plan.indices)
             for begin, plan in plans
             if not plan.is_full and begin + len(plan) <= len(losses)]
    of_plans = [losses.mean() for losses, _ in plans]
    assert len(of_plans) > 10
    error = np.std(of_plans, ddof=1) / len(of_plans)**0.5
    assert error < 0.02 * mean
    assert abs(np.mean(of_plans) - mean) < max(0.01 * mean, 2 * error)
    # The mean loss of the images in the batches is another one.
    kept = np.mean([all_scores[indices].mean() for _, indices in plans])
    assert kept > 1.2 * mean
