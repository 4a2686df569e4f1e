"""A regression on a table, pruned: python regression.py"""
import torch
import torch.nn.functional as F
from mmengine.model import BaseModel
from mmengine.runner import Runner
from torch.utils.data import TensorDataset

import mmib  # noqa: F401


class Regression(BaseModel):
    # Gradients are watched here, to estimate what pruning is worth.
    infobatch_predictions = 'layers'

    def __init__(self, num_columns):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(num_columns, 32), torch.nn.ReLU(),
            torch.nn.Linear(32, 1))

    def forward(self, table, values, mode='tensor'):
        predicted = self.layers(table).squeeze(1)
        if mode == 'loss':
            # One loss for each row: no mean.
            return dict(loss=F.mse_loss(predicted, values, reduction='none'))
        return predicted


def make_table(rows, seed=0):
    random = torch.Generator().manual_seed(seed)
    table = torch.randn(rows, 8, generator=random)
    noise = torch.randn(rows, generator=random)
    return TensorDataset(table, table[:, 0] * table[:, 1] + 0.1 * noise)


def main():
    runner = Runner(
        model=Regression(8),
        work_dir='work_dirs/regression',
        train_dataloader=dict(
            batch_size=32,
            dataset=make_table(2000),
            collate_fn=dict(type='default_collate'),
            sampler=dict(type='InfoBatchSampler')),
        optim_wrapper=dict(optimizer=dict(type='Adam', lr=0.01)),
        train_cfg=dict(by_epoch=True, max_epochs=20),
        custom_hooks=[
            dict(type='InfoBatchHook', policy=dict(type='Neyman', ratio=0.6))
        ])
    runner.train()


if __name__ == '__main__':
    main()
