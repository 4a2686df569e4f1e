# Copyright (c) mmib contributors. All rights reserved.
"""What whole trainings say that the choice of images is worth, on data of
which it is known."""
import numpy as np
import pytest
import torch
from mmengine.structures import PixelData
from mmseg.registry import DATASETS
from mmseg.structures import SegDataSample
from torch.utils.data import Dataset

from .small_training import infobatch_hook, small_runner

NUM_IMAGES = 200
MAX_ITERS = 500


@DATASETS.register_module()
class SkewedDataset(Dataset):
    """Bright images of one class and dark ones of the other, which are easy;
    but the labels of each tenth image are random, so its loss stays high."""

    METAINFO = dict(classes=('even', 'odd'), palette=[[0] * 3, [255] * 3])
    metainfo = METAINFO

    def __len__(self):
        return NUM_IMAGES

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


@DATASETS.register_module()
class RandomDataset(SkewedDataset):
    """Other images and labels at each visit, of any contrast: what one visit
    tells of the next is nothing."""

    def __getitem__(self, index):
        results = super().__getitem__(10 * torch.randint(2**40, ()).item())
        results['inputs'] *= 4 * torch.rand(())
        return results


def train(tmp_path, dataset, policy, **hook):
    """The hook of a training at 60 % of the iterations, and its plans."""
    plans = []
    runner = small_runner(
        tmp_path, **{
            'train_dataloader.batch_size': 8,
            'train_dataloader.dataset': dict(_delete_=True, type=dataset),
            'train_cfg.max_iters': MAX_ITERS,
            'optim_wrapper.optimizer.lr': 0.1,
            'custom_hooks.0.policy': policy,
            **{
                f'custom_hooks.0.{name}': value
                for name, value in hook.items()
            }
        })
    hook = infobatch_hook(runner)
    hook.plan_observers.append(lambda epoch, plan: plans.append((epoch, plan)))
    runner.train()
    return hook, [(epoch, plan) for epoch, plan in plans if plan is not None]


# As many passes as the tiers cover, at the same cost.
NEYMAN = dict(type='Neyman', full_iters=862)
TIERS = dict(type='QuantileTiers')


@pytest.mark.parametrize('policy', [NEYMAN, TIERS], ids=lambda p: p['type'])
def test_scores_that_tell_nothing(tmp_path, policy):
    hook, plans = train(tmp_path, 'RandomDataset', policy)
    worth = hook.planner.mean_ratio.mean()
    assert abs(plans[-1][0].reliability) < 0.3
    if policy is NEYMAN:
        assert worth.value == pytest.approx(1, abs=0.02)
        shares = [t.kept / t.size for t in plans[-1][0].tiers]
        assert np.std(shares) < 0.1 * np.mean(shares)
    else:  # Any other choice than a random one costs steps.
        assert worth.low > 1.05


def test_easy_images_are_worth_less(tmp_path):
    """V of what is learned from the run is no higher than that of the fixed
    tiers, at the same cost."""
    ratios, costs = [], []
    for policy in (TIERS, NEYMAN):
        _, plans = train(tmp_path, 'SkewedDataset', policy)
        late = [epoch for epoch, _ in plans[len(plans) // 2:]]
        ratios.append(np.mean([epoch.ratio.value for epoch in late]))
        costs.append(np.mean([epoch.size for epoch in late]))
        assert late[-1].reliability > 0.8
    assert costs[1] == pytest.approx(costs[0], rel=0.02)
    assert max(ratios) < 0.7
    assert ratios[1] < ratios[0] + 0.01
