# Copyright (c) mmib contributors. All rights reserved.
"""Lightning, with every call of `weigh` compared with the truth."""
import functools
import os
import signal
import warnings
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

import mmib.stop
from mmib import Session
from mmib.pruning import MeanThreshold, RandomPruning
from tests.helpers.audit import (EPOCHS, SIZE, Audit, Samples, assert_same,
                                 check_facts, network, refused)
from tests.helpers.processes import environment_of, run_ranks
from tests.helpers.runs import state_of

L = pytest.importorskip('lightning.pytorch')

from lightning.pytorch.plugins.environments import \
    SLURMEnvironment  # noqa: E402

from mmib.integrations.lightning import InfoBatchCallback  # noqa: E402

pytestmark = pytest.mark.filterwarnings('ignore::UserWarning')
BATCH_SIZE = 20


class Module(L.LightningModule):
    """A network whose training step weighs."""

    lr = 0.1

    def __init__(self, audit, manual=False, layers=(), **loader):
        super().__init__()
        self.audit, self.loader = audit, loader
        self.network = network(*layers)
        self.automatic_optimization = not manual
        self.validations, self.rates, self.logged = [], [], []

    def train_dataloader(self):
        arguments = dict(batch_size=BATCH_SIZE, **self.loader)
        return self.audit.loader(**arguments)

    def val_dataloader(self):
        # With random states of its own, as it begins once more after a resume.
        return DataLoader(
            Samples(40, seed=1), BATCH_SIZE, generator=torch.Generator())

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), self.lr)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, .5)]

    def losses(self, batch):
        inputs, labels, images = batch
        logits = self.network(inputs)
        losses = F.cross_entropy(logits.float(), labels, reduction='none')
        return losses, images, logits

    def training_step(self, batch, batch_idx):
        slots, batch = batch
        losses, images, logits = self.losses(batch)
        loss = self.audit.weigh(losses, slots, images, logits).mean()
        if not self.automatic_optimization:
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        return loss

    def validation_step(self, batch, batch_idx):
        if batch_idx == 0 and not self.trainer.sanity_checking:
            self.validations.append(self.audit.session.progress)
        losses, _, _ = self.losses(batch)
        assert self.audit.session.weigh(losses, None) is losses

    def on_train_epoch_end(self):
        self.logged.append({**self.trainer.callback_metrics})

    def parameters_in_one(self):
        return torch.cat([p.detach().flatten() for p in self.parameters()])


def trainer_of(audit, folder, **kwargs):
    arguments = dict(
        max_epochs=EPOCHS,
        accelerator='cpu',
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        default_root_dir=str(folder))
    callbacks = [
        InfoBatchCallback(audit.session), *kwargs.pop('callbacks', [])
    ]
    return L.Trainer(**{**arguments, **kwargs}, callbacks=callbacks)


@pytest.mark.parametrize('policy', [None, MeanThreshold()])
@pytest.mark.parametrize('loader', [{}, dict(num_workers=2)], ids=str)
def test_fit(tmp_path, policy, loader):
    audit = Audit(policy=policy)
    module = Module(audit, **loader)
    trainer = trainer_of(audit, tmp_path)
    trainer.fit(module)
    audit.check(audit.planned)
    assert len(audit.plans) == audit.session.epoch == EPOCHS
    # At the end of each epoch.
    assert module.validations == pytest.approx([(i + 1) / EPOCHS
                                                for i in range(EPOCHS)],
                                               abs=0.01)
    assert trainer.optimizers[0].param_groups[0]['lr'] == pytest.approx(
        0.1 * 0.5**EPOCHS)
    metrics = trainer.callback_metrics
    assert metrics['infobatch/progress'] == 1
    assert metrics['infobatch/kept_share'] == 1
    assert 0.5 < metrics['infobatch/variance_ratio'] < 1.5


@pytest.mark.parametrize(
    'trainer, module', [
        (dict(accumulate_grad_batches=4), {}),
        (dict(precision='bf16-mixed'), {}),
        (dict(reload_dataloaders_every_n_epochs=1), {}),
        ({}, dict(manual=True)),
        ({}, dict(drop_last=True)),
        ({}, dict(num_workers=2, persistent_workers=True)),
    ],
    ids=str)
def test_other_loops(tmp_path, trainer, module):
    audit = Audit()
    trainer_of(audit, tmp_path, **trainer).fit(Module(audit, **module))
    audit.check(audit.planned - len(audit.given_up))
    assert audit.session.progress == 1


def test_a_stream(tmp_path):
    audit = Audit(stream=True)
    module = Module(audit)
    trainer_of(
        audit,
        tmp_path,
        max_epochs=1,
        val_check_interval=7,
        check_val_every_n_epoch=None).fit(module)
    audit.check(audit.planned)
    assert audit.session.progress == 1 and len(module.validations) == 3


class RandomStates(L.Callback):
    """Keep the random state of torch, which Lightning leaves out."""

    state = None

    def on_save_checkpoint(self, trainer, module, checkpoint):
        checkpoint['random_state'] = torch.get_rng_state()

    def on_load_checkpoint(self, trainer, module, checkpoint):
        self.state = checkpoint['random_state']

    def on_train_start(self, trainer, module):
        if self.state is None:
            torch.manual_seed(0)
        else:
            torch.set_rng_state(self.state)


@pytest.mark.parametrize('loader', [{}, dict(num_workers=2)], ids=str)
@pytest.mark.parametrize('stop', [9, 12, 19])
def test_resume(tmp_path, loader, stop):
    """Within an epoch and between two, to the last bit, with dropout."""
    loader = dict(loader, layers=[torch.nn.Dropout()])
    whole = Audit()
    module = Module(whole, **loader)
    trainer_of(whole, tmp_path, callbacks=[RandomStates()]).fit(module)

    part = Audit()
    trainer_of(
        part,
        tmp_path,
        max_steps=stop,
        enable_checkpointing=True,
        callbacks=[
            RandomStates(),
            L.callbacks.ModelCheckpoint(
                tmp_path, '{step}', every_n_train_steps=stop, save_top_k=-1)
        ]).fit(Module(part, **loader))
    path = str(tmp_path / f'step={stop}.ckpt')
    rest = Audit()
    rest.follow(part)
    resumed = Module(rest, **loader)
    trainer_of(
        rest, tmp_path, callbacks=[RandomStates()]).fit(
            resumed, ckpt_path=path)
    rest.check(whole.planned)
    assert rest.images == whole.images and rest.plans == whole.plans
    assert torch.equal(resumed.parameters_in_one(), module.parameters_in_one())
    assert_same(state_of(rest.session), state_of(whole.session))


class SignalsAt(L.Callback):
    """Sends a signal to its own process within a step."""

    def __init__(self, number, step):
        self.number, self.step = number, step

    def on_before_zero_grad(self, trainer, module, optimizer):
        if trainer.global_step == self.step:
            os.kill(os.getpid(), self.number)


@pytest.fixture
def requeued(tmp_path, monkeypatch):
    """A job of slurm, and the arguments with which it was requeued."""
    path = tmp_path / 'bin/scontrol'
    path.parent.mkdir()
    path.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/requeued\n')
    path.chmod(0o755)
    monkeypatch.setenv('PATH', f'{path.parent}:{os.environ["PATH"]}')
    for name, value in (('JOB_ID', 17), ('NTASKS', 1), ('PROCID', 0),
                        ('LOCALID', 0), ('NODEID', 0)):
        monkeypatch.setenv(f'SLURM_{name}', str(value))
    return tmp_path / 'requeued'


def test_a_job_of_slurm_is_requeued(tmp_path, requeued):
    """By Lightning, which saves after the step. The job goes on by itself."""
    module = Module(Audit(), layers=[torch.nn.Dropout()])
    trainer_of(module.audit, tmp_path, callbacks=[RandomStates()]).fit(module)
    arguments = dict(plugins=[SLURMEnvironment()])
    part = Audit()
    with pytest.raises(SystemExit) as ends:
        trainer_of(
            part,
            tmp_path,
            callbacks=[RandomStates(),
                       SignalsAt(signal.SIGUSR1, 9)],
            **arguments).fit(Module(part, layers=[torch.nn.Dropout()]))
    assert ends.value.code == mmib.stop.EXIT_CODE
    assert requeued.read_text().split() == ['requeue', '17']
    # Nothing is left behind in this process.
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
    rest = Audit()
    rest.follow(part)
    resumed = Module(rest, layers=[torch.nn.Dropout()])
    trainer_of(
        rest, tmp_path, callbacks=[RandomStates()], **arguments).fit(resumed)
    rest.check(module.audit.planned)
    assert torch.equal(resumed.parameters_in_one(), module.parameters_in_one())


def test_a_handler_of_the_user_stays(tmp_path):
    """Lightning calls it beside its own."""
    heard = []
    before = signal.signal(signal.SIGTERM, lambda *args: heard.append(args))
    try:
        audit = Audit()
        with pytest.raises(SystemExit):
            trainer_of(
                audit, tmp_path, callbacks=[SignalsAt(signal.SIGTERM,
                                                      9)]).fit(Module(audit))
        assert len(heard) == 1 and not list(tmp_path.glob('*.ckpt'))
    finally:
        signal.signal(signal.SIGTERM, before)


def test_the_learning_rate_finder(tmp_path):
    """The run begins anew afterwards."""
    from lightning.pytorch.tuner import Tuner
    audit = Audit()
    module = Module(audit)
    trainer = trainer_of(audit, tmp_path, enable_checkpointing=True)
    with mock.patch.object(audit, 'weigh', weigh_without_audit(audit)):
        Tuner(trainer).lr_find(module, num_training=10)
    assert audit.session.epoch == 0
    del audit.plans[1:]  # The first one was drawn before.
    trainer.fit(module)
    audit.check(audit.planned)
    assert audit.session.progress == 1


def test_without_a_number_of_epochs(tmp_path):
    """The run ends the training. A look at a checkpoint changes nothing."""
    audit = Audit()
    trainer = trainer_of(audit, tmp_path, max_epochs=-1)
    module = Module(audit)
    trainer.fit(module)
    assert audit.session.progress == 1
    audit.check(audit.planned)
    early = Audit()
    other = trainer_of(early, tmp_path, max_steps=6)
    other.fit(Module(early))
    other.save_checkpoint(tmp_path / 'early.ckpt')
    trainer.validate(module, ckpt_path=str(tmp_path / 'early.ckpt'))
    assert audit.session.progress == 1


def test_a_checkpoint_without_the_session(tmp_path):
    audit = Audit()
    plain = L.Trainer(
        max_steps=6,
        accelerator='cpu',
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False)
    plain.fit(Module(audit))
    plain.save_checkpoint(tmp_path / 'plain.ckpt')
    other = Audit()
    with refused('has no state of the Session: resume from'):
        trainer_of(other, tmp_path).fit(
            Module(other), ckpt_path=str(tmp_path / 'plain.ckpt'))


def weigh_without_audit(audit):
    return lambda losses, slots, images, logits: audit.session.weigh(
        losses, slots, logits)


def train_rank(rank, results, folder, session_first=True, **loader):
    with environment_of(rank, 2, port=0):
        warnings.simplefilter('ignore')
        audit = Audit()
        module = Module(audit, **loader)
        trainer = trainer_of(
            audit,
            folder,
            strategy='ddp',
            devices=2,
            callbacks=[
                L.callbacks.ModelCheckpoint(folder, every_n_train_steps=5)
            ],
            enable_checkpointing=True)
        trainer.fit(module)
        assert audit.session.progress == 1
        results[rank] = (audit.facts(), module.parameters_in_one(),
                         len(module.validations))


@pytest.mark.parametrize('loader', [{}, dict(drop_last=True)], ids=str)
def test_two_ranks(tmp_path, loader):
    """With the default `use_distributed_sampler`."""
    results = run_ranks(
        functools.partial(train_rank, folder=str(tmp_path), **loader), 2)
    facts = check_facts([facts for facts, *_ in results])
    planned = sum(len(plan.weights) for plan in facts.plans)
    assert len(facts.images) >= planned - 40 * bool(loader) * EPOCHS
    assert torch.equal(results[0][1], results[1][1])
    assert [count for *_, count in results] == [EPOCHS, EPOCHS]


def test_epochs_that_end_early(tmp_path):
    audit = Audit()
    with pytest.warns(UserWarning, match='1 epochs of the Trainer .* and 0 '):
        trainer_of(audit, tmp_path, limit_train_batches=2).fit(Module(audit))
    audit.check(EPOCHS * 2 * BATCH_SIZE)


def test_refusals(tmp_path):
    audit = Audit()
    for arguments, match in (
        (dict(overfit_batches=2), 'remove `overfit_batches`'),
        (dict(max_epochs=7), '`max_epochs` .* is 7, .* has 6 .*: give'),
    ):
        with refused(match):
            trainer_of(audit, tmp_path, **arguments).fit(Module(audit))
    stream = Audit(stream=True)
    with refused('is 6, and the Session has 1 .*: give both the same'):
        trainer_of(stream, tmp_path).fit(Module(stream))
    with pytest.warns(UserWarning, match='ends before the last epochs'):
        trainer_of(audit, tmp_path, max_epochs=2).fit(Module(audit))


def test_a_training_step_that_forgets_the_session(tmp_path):
    """It stops after the first batch."""
    session = Session(Samples(SIZE), epochs=EPOCHS)

    class Forgets(Module):

        def training_step(self, batch, batch_idx):
            losses, _, _ = self.losses(batch[1])
            return losses.mean()

    audit = Audit()
    with refused('nothing was weighed: give `fit` a loader of the Session'):
        trainer_of(audit, tmp_path).fit(Forgets(audit))
    plain = DataLoader(Samples(SIZE), BATCH_SIZE)
    module = Module(audit)
    module.train_dataloader = lambda: plain
    module.training_step = (
        lambda batch, batch_idx: module.losses(batch)[0].mean())
    with refused('nothing was weighed: give `fit` a loader of the Session'):
        trainer_of(audit, tmp_path).fit(module)
    audit.session = session
    with refused('`slots` are of type Tensor'):
        module = Module(audit)
        module.train_dataloader = lambda: plain
        module.training_step = lambda batch, batch_idx: session.weigh(
            module.losses(batch)[0], batch[0]).mean()
        trainer_of(audit, tmp_path).fit(module)


class Scheduled(Module):
    """A schedule of the learning rate by steps."""

    def __init__(self, audit, schedule):
        super().__init__(audit)
        self.schedule = schedule

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), self.lr)
        steps = self.trainer.estimated_stepping_batches
        return [optimizer], [
            dict(scheduler=self.schedule(optimizer, steps), interval='step')
        ]


cosine = torch.optim.lr_scheduler.CosineAnnealingLR


def linear(optimizer, steps):
    """As in transformers."""
    return torch.optim.lr_scheduler.LambdaLR(
        optimizer, functools.partial(falls, num_training_steps=steps))


def after_warmup(optimizer, steps):
    """A schedule that is made of others."""
    schedulers = torch.optim.lr_scheduler
    return schedulers.SequentialLR(
        optimizer, [
            schedulers.LinearLR(optimizer, total_iters=4),
            cosine(optimizer, steps - 4)
        ],
        milestones=[4])


def closure(optimizer, steps):
    return torch.optim.lr_scheduler.LambdaLR(optimizer,
                                             lambda step: falls(step, steps))


def falls(step, num_training_steps):
    return max(0., 1 - step / num_training_steps)


@pytest.mark.parametrize('schedule, stream, is_told', [
    (cosine, False, True),
    (cosine, True, True),
    (linear, True, True),
    (after_warmup, True, True),
    (closure, True, True),
    (lambda optimizer, _: cosine(optimizer, 22), True, False),
    (lambda optimizer, _: after_warmup(optimizer, 22), True, False),
])
def test_schedules_by_steps(tmp_path, schedule, stream, is_told):
    audit = Audit(stream=stream)
    trainer = trainer_of(audit, tmp_path, max_epochs=1 if stream else EPOCHS)
    with warnings.catch_warnings(record=True) as records:
        warnings.simplefilter('always')
        trainer.fit(Scheduled(audit, schedule))
    told = [x for x in records if 'counts steps, and' in str(x.message)]
    assert len(told) == is_told


@pytest.mark.parametrize('arguments, is_told', [
    (dict(max_steps=12), True),
    (dict(max_steps=12, max_epochs=-1), True),
    (dict(max_steps=4), False),
    ({}, False),
])
def test_a_run_that_ends_while_it_prunes(tmp_path, arguments, is_told):
    audit = Audit(policy=RandomPruning(0.5))
    with warnings.catch_warnings(record=True) as records:
        warnings.simplefilter('always')
        trainer_of(audit, tmp_path, **arguments).fit(Module(audit))
    told = [x for x in records if 'while it prunes' in str(x.message)]
    assert len(told) == is_told


@pytest.mark.parametrize('arguments, is_told', [
    (dict(val_check_interval=6), True),
    (dict(val_check_interval=2), False),
    ({}, False),
    (dict(val_check_interval=6, check_val_every_n_epoch=None), False),
])
def test_intervals_of_validation(tmp_path, arguments, is_told):
    """An epoch that is pruned may be shorter."""
    audit = Audit(policy=RandomPruning(0.5))
    with warnings.catch_warnings(record=True) as records:
        warnings.simplefilter('always')
        trainer_of(audit, tmp_path, **arguments).fit(Module(audit))
    told = [x for x in records if 'is 6: remove it' in str(x.message)]
    assert len(told) == 4 * is_told


@pytest.mark.parametrize('layers', [[], [torch.nn.BatchNorm1d(8)]], ids=len)
def test_averaged_weights(tmp_path, layers):
    """Statistics of BatchNorm are left to the user, who is told."""
    audit = Audit()
    with warnings.catch_warnings(record=True) as records:
        warnings.simplefilter('always')
        trainer_of(
            audit,
            tmp_path,
            callbacks=[L.callbacks.StochasticWeightAveraging(0.05, 3)
                       ]).fit(Module(audit, layers=layers))
    told = [x for x in records if 'swa_utils.update_bn' in str(x.message)]
    assert len(told) == len(layers) and audit.session.progress == 1


@pytest.mark.parametrize('optimizer, clip, normalize, expected', [
    ('SGD', None, None, False),
    ('SGD', 1., None, True),
    ('AdamW', None, None, True),
    ('AdamW', None, False, False),
])
def test_the_optimizer_decides(tmp_path, optimizer, clip, normalize, expected):

    class Optimized(Module):

        def configure_optimizers(self):
            return getattr(torch.optim, optimizer)(self.parameters(), 0.01)

    audit = Audit(policy=RandomPruning(0.5), normalize=normalize)
    trainer_of(audit, tmp_path, gradient_clip_val=clip).fit(Optimized(audit))
    audit.check(audit.planned)
    means = {round(plan.mean, 1) for plan in audit.plans}
    assert means == ({1.} if expected else {1., 2.})
