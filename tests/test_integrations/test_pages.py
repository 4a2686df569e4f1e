# Copyright (c) mmib contributors. All rights reserved.
"""The code of docs/frameworks.md runs as it stands."""
import functools

import pytest
import torch
from torch.utils.data import Dataset

import mmib
from tests.helpers.pages import code_of, names

pytestmark = pytest.mark.filterwarnings('ignore')
code_in = functools.partial(code_of, 'frameworks.md')


def test_lightning():
    L = pytest.importorskip('lightning.pytorch')
    code, = code_in('## Lightning')

    class Base(L.LightningModule):

        def __init__(self):
            super().__init__()
            self.line = torch.nn.Linear(3, 2)

        def forward(self, images):
            return self.line(images)

        def validation_step(self, batch, batch_idx):
            pass

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    given = names()
    given.update(
        LightningModule=Base,
        Trainer=functools.partial(
            L.Trainer,
            accelerator='cpu',
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False),
        val_loader=given['DataLoader'](given['dataset'], 32))
    exec(code, given)
    assert given['session'].progress == 1


def test_accelerate():
    accelerate = pytest.importorskip('accelerate')
    code, = code_in('## accelerate')
    try:
        given = dict(
            names(), mmib=mmib, accelerator=accelerate.Accelerator(cpu=True))
        exec(code, given)
    finally:
        accelerate.state.AcceleratorState._reset_state(True)
    assert given['session'].progress == 1


class Rows(Dataset):

    def __len__(self):
        return 40

    def __getitem__(self, index):
        return dict(images=torch.rand(3), labels=index % 2)


class Net(torch.nn.Linear):

    def forward(self, images, labels):
        logits = super().forward(images)
        loss = torch.nn.functional.cross_entropy(logits, labels)
        return dict(loss=loss, logits=logits)


def test_the_trainer(tmp_path):
    transformers = pytest.importorskip('transformers')
    code, = code_in('## Hugging Face Trainer')
    given = dict(
        dataset=Rows(),
        rest=Rows(),
        model=Net(3, 2),
        Trainer=transformers.Trainer,
        args=transformers.TrainingArguments(
            str(tmp_path),
            use_cpu=True,
            report_to='none',
            disable_tqdm=True,
            save_strategy='no'))
    exec(code, given)
    assert given['session'].progress == 1
    # By the optimizer, AdamW.
    assert given['session']._run.normalize


def test_mixup():
    *_, code = code_in('## Other scripts, sharded models')
    given, session = names(), mmib.Session(names()['dataset'], epochs=4)
    for slots, (images, labels) in session.loader(32):
        order = torch.randperm(len(images))
        given.update(
            session=session, slots=slots, labels=labels, lam=0.3, order=order)
        given['logits'] = given['model'](0.3 * images + 0.7 * images[order])
        exec(code, given)
        given['loss'].backward()
    assert session.epoch == 1
