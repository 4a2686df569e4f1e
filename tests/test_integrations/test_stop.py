# Copyright (c) mmib contributors. All rights reserved.
"""A run in a framework saves at a signal of the cluster, and goes on in new
processes as if nothing had happened, also with dropout."""
import functools
import os
import signal

import pytest
import torch
import torch.nn.functional as F

import mmib.stop
from mmib import Session
from tests.helpers.audit import Samples, assert_same, network
from tests.helpers.processes import (environment_of, free_port, log_of,
                                     start_ranks, wait_for_end,
                                     wait_for_thread_of_stop)

L = pytest.importorskip('lightning')
accelerate = pytest.importorskip('accelerate')
transformers = pytest.importorskip('transformers')

from mmib.integrations.lightning import InfoBatchCallback  # noqa: E402
from mmib.integrations.transformers import InfoBatchTrainerMixin  # noqa: E402
from tests.test_integrations.test_lightning import RandomStates  # noqa: E402

EPOCHS, STOP = 6, 8
with_dropout = functools.partial(network, torch.nn.Dropout())


class Steps:
    """The steps of a process, each with its images and losses in a line. The
    last rank gets a signal in one of them, unless the run goes on."""

    def __init__(self, rank, world_size, folder):
        self.path = f'{folder}/steps{rank}'
        self.stops = rank == world_size - 1 and not os.path.exists(self.path)
        self.number = 0

    def note(self, slots, losses):
        self.number += 1
        with open(self.path, 'a') as file:
            print(slots.indices.tolist(), losses.tolist(), file=file)
        if self.stops and os.environ['STOPS'] == '1':
            if self.number == STOP:
                os.kill(os.getpid(), signal.SIGTERM)
            elif self.number == STOP + 2:
                wait_for_thread_of_stop()


def losses_of(model, inputs, labels):
    logits = model(inputs)
    return F.cross_entropy(logits, labels, reduction='none'), logits


class Average(L.pytorch.Callback):
    """An average of the weights, which each step changes after all else."""

    value = 0.

    def on_train_batch_end(self, trainer, module, *args):
        self.value = 0.9 * self.value + float(next(module.parameters()).sum())

    def state_dict(self):
        return dict(value=self.value)

    def load_state_dict(self, state_dict):
        self.value = state_dict['value']


class Module(L.LightningModule):

    def __init__(self, session, steps):
        super().__init__()
        self.session, self.steps = session, steps
        self.network = with_dropout()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1, momentum=0.9)

    def training_step(self, batch, batch_idx):
        slots, (inputs, labels, _) = batch
        losses, logits = losses_of(self.network, inputs, labels)
        self.steps.note(slots, losses)
        return self.session.weigh(losses, slots, logits).mean()


def train_with_lightning(folder, world_size, steps):
    session = Session(Samples(), epochs=EPOCHS, seed=0)
    module, average = Module(session, steps), Average()
    path = f'{folder}/last.ckpt'
    L.Trainer(
        max_epochs=EPOCHS,
        accelerator='cpu',
        devices=world_size,
        strategy='ddp' if world_size > 1 else 'auto',
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        use_distributed_sampler=False,
        accumulate_grad_batches=2,
        default_root_dir=folder,
        callbacks=[InfoBatchCallback(session),
                   RandomStates(), average]).fit(
                       module,
                       session.loader(12),
                       ckpt_path=path if os.path.exists(path) else None)
    return module.network.state_dict(), session, average.value


class Dicts(Samples):

    def __getitem__(self, index):
        inputs, labels, _ = super().__getitem__(index)
        return dict(x=inputs, labels=labels)


class Net(torch.nn.Module):

    def __init__(self):
        super().__init__()
        self.network = with_dropout()

    def forward(self, x, labels=None):
        logits = self.network(x)
        return dict(loss=F.cross_entropy(logits, labels), logits=logits)


class SavesNoted(transformers.TrainerCallback):

    count = 0

    def on_save(self, *args, **kwargs):
        self.count += 1


class Trainer(InfoBatchTrainerMixin, transformers.Trainer):

    def compute_loss(self, model, inputs, **kwargs):
        self.steps.slots = inputs.get('slots', self._slots)
        return super().compute_loss(model, inputs, **kwargs)

    def losses(self, outputs, inputs):
        losses = super().losses(outputs, inputs)
        self.steps.note(self.steps.slots, losses)
        return losses


def train_with_transformers(folder, world_size, steps):
    session = Session(Dicts(), epochs=EPOCHS, seed=0, stream=True)
    trainer = Trainer(
        Net(),
        transformers.TrainingArguments(
            folder,
            per_device_train_batch_size=12,
            gradient_accumulation_steps=2,
            use_cpu=True,
            ddp_backend='gloo' if world_size > 1 else None,
            save_strategy='no',
            save_only_model=True,
            report_to='none',
            disable_tqdm=True,
            remove_unused_columns=False),
        session=session)
    # A model alone is not enough, and later callbacks see that it is saved.
    saved = SavesNoted()
    trainer.add_callback(saved)
    trainer.steps = steps
    last = transformers.trainer_utils.get_last_checkpoint(folder)
    try:
        trainer.train(resume_from_checkpoint=last)
    except SystemExit:
        assert saved.count == 1
        raise
    return trainer.model.state_dict(), session, trainer.state.global_step


def train_with_accelerate(folder, world_size, steps):
    accelerator = accelerate.Accelerator(cpu=True)
    session = Session(Samples(), epochs=EPOCHS, seed=0)
    model = with_dropout()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    model, optimizer = accelerator.prepare(model, optimizer)
    accelerator.register_for_checkpointing(session)
    if os.path.exists(f'{folder}/state'):
        accelerator.load_state(f'{folder}/state')
    assert not session.wants_to_stop
    loader = session.loader(12, device=accelerator.device)
    while session.epoch < EPOCHS:
        for slots, (inputs, labels, _) in loader:
            losses, logits = losses_of(model, inputs, labels)
            steps.note(slots, losses)
            optimizer.zero_grad()
            accelerator.backward(session.weigh(losses, slots, logits).mean())
            optimizer.step()
            if session.wants_to_stop:
                accelerator.save_state(f'{folder}/state')
                accelerator.wait_for_everyone()
                raise SystemExit(mmib.stop.EXIT_CODE)
    return accelerator.unwrap_model(model).state_dict(), session, None


def train_with_fabric(folder, world_size, steps):
    fabric = L.Fabric(
        accelerator='cpu',
        devices=world_size,
        strategy='ddp' if world_size > 1 else 'auto')
    fabric.launch()
    session = Session(Samples(), epochs=EPOCHS, seed=0)
    model = with_dropout()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    model, optimizer = fabric.setup(model, optimizer)
    state = dict(
        model=model, optimizer=optimizer, session=session, random=None)
    if os.path.exists(f'{folder}/state'):
        fabric.load(f'{folder}/state', state)
        # The same on all ranks.
        torch.set_rng_state(state['random'])
    assert not session.wants_to_stop
    loader = session.loader(12, device=fabric.device)
    while session.epoch < EPOCHS:
        for slots, (inputs, labels, _) in loader:
            losses, logits = losses_of(model, inputs, labels)
            steps.note(slots, losses)
            optimizer.zero_grad()
            fabric.backward(session.weigh(losses, slots, logits).mean())
            optimizer.step()
            if session.wants_to_stop:
                state['random'] = torch.get_rng_state()
                fabric.save(f'{folder}/state', state)
                raise SystemExit(mmib.stop.EXIT_CODE)
    return model.module.state_dict(), session, None


ENGINES = dict(
    lightning=train_with_lightning,
    transformers=train_with_transformers,
    accelerate=train_with_accelerate,
    fabric=train_with_fabric)


def train_rank(rank, folder, engine, world_size, stops, port):
    mmib.stop._INTERVAL = 0.01
    os.environ['STOPS'] = str(int(stops))
    torch.manual_seed(0)
    environment = environment_of(rank, world_size, port)
    with environment:
        if world_size == 1:
            for name in ('RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'MASTER_ADDR'):
                del os.environ[name]
        model, session, other = ENGINES[engine](folder, world_size,
                                                Steps(rank, world_size,
                                                      folder))
        state = session.state_dict()
    # What follows the run hears the signals again.
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if rank == 0:
        torch.save((model, state, other), f'{folder}/end.pth')


def train(folder, *args):
    """Train in real processes, and return their exit codes."""
    folder.mkdir(exist_ok=True)
    # Processes that go on meet at another file.
    prefix = str(folder / f'start{len([*folder.glob("*.log")])}')
    world_size = args[1]
    with start_ranks(train_rank, world_size, prefix, str(folder), *args,
                     free_port()) as processes:
        assert wait_for_end(processes), log_of(prefix, 0)[-3000:]
        codes = [each.exitcode for each in processes]
        assert 1 not in codes, log_of(prefix, codes.index(1))[-3000:]
        return codes


def lines_of(folder, rank):
    return (folder / f'steps{rank}').read_text().splitlines()


@pytest.mark.parametrize('world_size', [1, 2])
@pytest.mark.parametrize('engine', ENGINES)
def test_a_run_goes_on_after_a_signal(tmp_path, engine, world_size):
    whole, part = tmp_path / 'whole', tmp_path / 'part'
    assert train(whole, engine, world_size, False) == [0] * world_size
    code = mmib.stop.EXIT_CODE
    assert train(part, engine, world_size, True) == [code] * world_size
    made = {len(lines_of(part, rank)) for rank in range(world_size)}
    assert len(made) == 1 and STOP <= made.pop() < len(lines_of(whole, 0))
    assert train(part, engine, world_size, False) == [0] * world_size
    for rank in range(world_size):
        assert lines_of(part, rank) == lines_of(whole, rank)
    one, other = (
        torch.load(folder / 'end.pth', weights_only=False)
        for folder in (part, whole))
    assert_same(one, other)
