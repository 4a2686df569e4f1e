# Copyright (c) mmib contributors. All rights reserved.
"""What whole trainings say that the choice of images is worth, on data of
which it is known."""
import numpy as np
import pytest
import torch
from mmengine.registry import DATASETS
from mmengine.structures import PixelData
from mmseg.structures import SegDataSample

from tests.helpers.segmentors import IndexDataset, infobatch_hook, small_runner
from tests.test_tasks import test_per_sample as per_sample


@DATASETS.register_module()
class SkewedDataset(IndexDataset):
    """Bright images of one class and dark ones of the other, which are easy;
    but the labels of each tenth image are random, so its loss stays high."""

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        image = 16 * (2. * (index % 2) - 1 +
                      0.5 * torch.randn(3, 8, 8, generator=generator))
        label = torch.full((1, 8, 8), index % 2)
        if index % 10 == 0:
            label = torch.randint(2, (1, 8, 8), generator=generator)
        return dict(
            inputs=image,
            data_samples=SegDataSample(gt_sem_seg=PixelData(data=label)))


def train(runner):
    """Train, and return the hook and the plans that prune."""
    hook, plans = infobatch_hook(runner), []
    hook.plan_observers.append(
        lambda epoch, plan: plan.is_full or plans.append((epoch, plan)))
    runner.train()
    return hook, plans


def test_easy_images_are_worth_less(tmp_path):
    """V of what is learned from the run is no higher than that of the fixed
    tiers, at the same cost: as many passes as the tiers cover."""
    ratios, costs = [], []
    for policy in (dict(type='QuantileTiers'), dict(type='Neyman',
                                                    ratio=0.59)):
        runner = small_runner(
            tmp_path, **{
                'model.auxiliary_head': None,
                'train_dataloader.batch_size': 8,
                'train_dataloader.dataset': dict(
                    type='SkewedDataset', size=200),
                'train_cfg.max_iters': 300,
                'optim_wrapper.optimizer.lr': 0.1,
                'custom_hooks.0.policy': policy
            })
        _, plans = train(runner)
        late = [epoch for epoch, _ in plans[len(plans) // 2:]]
        ratios.append(np.mean([epoch.variance_ratio.value for epoch in late]))
        costs.append(np.mean([epoch.kept for epoch in late]))
    assert costs[1] == pytest.approx(costs[0], rel=0.02)
    assert max(ratios) < 0.7
    assert ratios[1] < ratios[0] + 0.01


SIZE, BATCH = 385, 64


@DATASETS.register_module()
class EquallyHard(per_sample.Rows):
    """Losses differ from visit to visit, and not from sample to sample."""

    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        return torch.rand(3), torch.rand(2)


def test_a_short_last_batch_teaches_nothing(tmp_path):
    """By epochs: 385 samples in batches of 64. A full epoch ends with one
    sample, so that many plans may end with few. Nothing is learned."""
    runner = per_sample.build(
        tmp_path, dict(type='Neyman', ratio=0.585), **{
            'train_dataloader.batch_size': BATCH,
            'train_dataloader.dataset.type': 'EquallyHard',
            'optim_wrapper.optimizer.lr': 0.,
            'train_cfg.max_epochs': 60
        })
    runner.model.infobatch_predictions = 'layer'
    hook, plans = train(runner)
    plans = [plan for plan, _ in plans]
    sizes = [plan.kept for plan in plans]
    assert np.mean(np.isin(np.mod(sizes, BATCH), (1, 2))) > 0.8, sizes
    shares = np.mean([[tier.kept / tier.size for tier in plan.tiers]
                      for plan in plans[10:]], 0)
    np.testing.assert_allclose(shares, shares.mean(), rtol=0.1)
    assert abs(hook.run.worth.value - 1) < 0.02
