# Copyright (c) mmib contributors. All rights reserved.
"""Code of the docs, as a user runs it."""
import re
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

DOCS = Path(__file__).resolve().parents[2] / 'docs'


def code_of(page, heading):
    """The code of the blocks below a heading of a page, without workers. Of a
    change, what comes out of it."""
    text = '\n' + (DOCS / page).read_text('utf-8')
    text = text.split(f'\n{heading}\n')[1]
    blocks = re.findall(r'```(python|diff)\n(.*?)```',
                        text.split('\n## ')[0], re.S)
    return [(block if kind == 'python' else re.sub(
        r'^(-.*\n|[+ ])', '', block, flags=re.M)).replace(
            'num_workers=8', 'num_workers=0') for kind, block in blocks]


def names():
    """What the code of the docs takes as given: a dataset of images with
    labels, a model and an optimizer."""
    torch.manual_seed(0)
    images = torch.randn(96, 3)
    model = torch.nn.Linear(3, 2)
    return dict(
        torch=torch,
        F=F,
        DataLoader=DataLoader,
        dataset=TensorDataset(images, (images[:, 0] > 0).long()),
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), 0.1))
