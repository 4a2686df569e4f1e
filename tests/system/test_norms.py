# Copyright (c) mmib contributors. All rights reserved.
"""V and what policies learn, where the last batch of an epoch is short."""
import uuid

import numpy as np
import torch
from mmengine.config import Config
from mmengine.model import BaseModel
from mmengine.registry import DATASETS, MODELS
from mmengine.runner import Runner
from torch.utils.data import Dataset

from mmib.tasks import per_sample
from tests.system.small_training import infobatch_hook

SIZE, BATCH = 414, 64


@DATASETS.register_module()
class EquallyHard(Dataset):
    """Losses differ from visit to visit, and not from sample to sample."""

    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        return dict(rows=torch.rand(4), values=torch.rand(1))


@MODELS.register_module()
class LinearLoss(BaseModel):
    infobatch_predictions = 'layer'

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, rows, values, mode='tensor'):
        out = self.layer(rows)
        return dict(loss=(out - values).square().mean(1))


def config(work_dir, **changes):
    """Config of a training that learns nothing."""
    cfg = Config(
        dict(
            default_scope='mmengine',
            work_dir=str(work_dir),
            # Trainings of a name within a second share their log.
            experiment_name=f'test_{uuid.uuid4()}',
            randomness=dict(seed=0),
            model=dict(type='LinearLoss'),
            train_dataloader=dict(
                batch_size=BATCH,
                num_workers=0,
                sampler=dict(type='InfoBatchEpochSampler'),
                collate_fn=dict(type='default_collate'),
                dataset=dict(type='EquallyHard')),
            optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.)),
            train_cfg=dict(type='EpochBasedTrainLoop', max_epochs=60),
            custom_hooks=[
                dict(
                    type='InfoBatchHook',
                    policy=dict(type='Neyman', ratio=0.5556))
            ]),
        format_python_code=False)
    cfg.merge_from_dict(changes)
    return cfg


def train(work_dir, **changes):
    """Train, and return the hook and the plans that prune."""
    runner = Runner.from_cfg(config(work_dir, **changes))
    hook, epochs = infobatch_hook(runner), []
    hook.plan_observers.append(
        lambda epoch, plan: plan is None or epochs.append(epoch))
    runner.train()
    return hook, epochs


def test_a_short_last_batch_teaches_nothing(tmp_path):
    """414 samples in batches of 64: many plans end with few samples."""
    hook, epochs = train(tmp_path)
    sizes = [epoch.size for epoch in epochs]
    assert np.mean(np.isin(np.mod(sizes, BATCH), (1, 2))) > 0.8, sizes
    shares = np.mean([[kept / size for size, kept in epoch.tiers]
                      for epoch in epochs[10:]], 0)
    np.testing.assert_allclose(shares, shares.mean(), rtol=0.1)
    ratio = hook.planner.mean_ratio.mean()
    assert abs(ratio.value - 1) < 0.02


def test_scores_of_gradients_are_alike(tmp_path, monkeypatch):
    """That of a sample in a batch of few isn't larger."""
    monkeypatch.setattr(per_sample.TASK, 'score', 'gradient')
    hook, _ = train(tmp_path)
    scores = hook.scores.numpy()
    assert scores.max() < 6 * np.median(scores)
