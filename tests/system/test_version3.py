# Copyright (c) mmib contributors. All rights reserved.
"""States of version 3 go on as they did in the mmib that wrote them.

``tests/data/write_version3.py`` has written the states, and the steps that
followed each state. Losses follow from image and step, in arithmetic that is
exact or rounded alike on every machine. Therefore every number is compared
exactly.
"""
import functools
import json
import lzma
import uuid
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from mmengine.config import Config
from mmengine.dataset import BaseDataset
from mmengine.hooks import Hook
from mmengine.model import BaseModel, MMDistributedDataParallel
from mmengine.registry import DATASETS, HOOKS, MODELS
from mmengine.runner import EpochBasedTrainLoop, Runner
from mmengine.structures import BaseDataElement

import mmib
from mmib.pruning import EpsilonGreedy, Neyman
from tests.helpers.processes import run_ranks

STATES = Path(__file__).parents[1] / 'data/version3'
NEYMAN = dict(type='Neyman', num_tiers=3, min_keep=0.3)
RUNNERS = {
    'iterations': dict(),
    'iterations_lookahead': dict(
        size=9, times=2, num_workers=1, prefetch_factor=4, ema=0.8),
    'iterations_resumed': dict(batch_size=6, normalize=True),
    'iterations_afresh': dict(start=0.2),
    'epochs': dict(by_epoch=True, size=29),
    'epochs_resumed': dict(
        by_epoch=True, size=29, batch_size=3, drop_last=True),
    'epochs_afresh': dict(by_epoch=True, size=23),
}
"""dict: Arguments of :func:`build` for the Runner of each checkpoint."""
SESSIONS = {
    'session_epochs': dict(),
    'session_stream': dict(stream=True, has_predictions=False),
    'session_resized': dict(batch_size=3, ema=0.8),
    'session_ranks': dict(batch_size=2, policy=EpsilonGreedy(period=2)),
}
"""dict: Arguments of :class:`Loop` for the Session of each state."""
BATCH_SIZES = {
    'iterations': 3,
    'iterations_resumed': 4,
    'iterations_afresh': 5,
    'epochs': 5,
    'epochs_resumed': 5,
    'epochs_afresh': 2,
    'session_epochs': 3,
    'session_stream': 5,
    'session_resized': 5,
}
"""dict: Another batch size with which a run goes on as well."""
# Steps before plans differ, where an epoch doesn't divide between two ranks.
REPEATS = {'epochs': 7, 'session_resized': 3}
TWO_RANKS = ('iterations', 'epochs', 'epochs_afresh', 'session_epochs',
             'session_stream', 'session_resized', 'session_ranks')
"""tuple[str]: States from which two ranks go on as well."""


def ways(name):
    """Return the ways in which the run of a state goes on, each with the
    arguments that change."""
    found = {'same': {}}
    if name == 'iterations_lookahead':
        # Fewer batches are in flight than when the plans were drawn.
        found['no_workers'] = dict(num_workers=0, prefetch_factor=None)
    if name in BATCH_SIZES:
        found['batch_size'] = dict(batch_size=BATCH_SIZES[name])
    if name in TWO_RANKS:
        found['two_ranks'] = dict(batch_size=2)
    return found


ALL_WAYS = [(name, way) for name in (*RUNNERS, *SESSIONS)
            for way in ways(name)]


def losses_of(images, predictions, step):
    """Return the loss of each image in a step. Each loss has its root as the
    gradient at the prediction.

    Args:
        images (Tensor): Numbers of the images, int64 of shape (B,).
        predictions (Tensor): Finite predictions, of shape (B,).
        step (int): Steps of the training before this one.
    """
    losses = (7 * images % 11 + 1) / (20 + step)
    return losses + (predictions - predictions.detach()) * losses.sqrt()


def shortest(column):
    """Return the shortest decimal numbers that stand for the float32 numbers
    of a tensor or an array."""
    return [float(str(value)) for value in np.asarray(column, np.float32)]


def summary(worth, state):
    """Return what a run has made of all of its visits.

    Args:
        worth (VarianceRatio): V of the run.
        state (dict): State of the run at its end.
    """
    tables = state['tables']
    return dict(
        {name: shortest(tables[name])
         for name in ('scores', 'averages')},
        **{
            name: tables[name].tolist()
            for name in ('visits', 'pruned', 'last_visit')
        },
        worth=[None if x != x else x for x in worth],
        saved_iters=state.get('iterations', {}).get('saved'))


# Runners ---------------------------------------------------------------------


@DATASETS.register_module()
class NumberedImages(BaseDataset):
    """Images that consist of their numbers."""

    def __init__(self, size):
        self.size = size
        # To serialize so few paths would take half a second.
        super().__init__(serialize_data=False)

    def load_data_list(self):
        return [dict(img_path=f'{i}.png') for i in range(self.size)]

    def prepare_data(self, index):
        path = self.get_data_info(index)['img_path']
        return dict(
            inputs=torch.tensor([index]),
            data_samples=BaseDataElement(metainfo=dict(img_path=path)))


@MODELS.register_module()
class StepModel(BaseModel):
    """A model with the losses of :func:`losses_of`, which counts its steps."""

    infobatch_predictions = 'layer'

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.register_buffer('step', torch.tensor(0))

    def forward(self, inputs, data_samples=None, mode='tensor'):
        images = torch.stack(inputs)
        predictions = self.layer(images.float())
        losses = losses_of(images[:, 0], predictions[:, 0], int(self.step))
        self.step += 1
        return dict(loss=losses)


def infobatch_hook(runner):
    """Return the InfoBatchHook of a Runner."""
    hook, = (h for h in runner.hooks if isinstance(h, mmib.InfoBatchHook))
    return hook


@HOOKS.register_module()
class StepRecord(Hook):
    """Records what each step trains on."""

    # Before InfoBatchHook forgets the weights.
    priority = 'HIGH'

    def before_train(self, runner):
        self.columns = dict(
            images=[], weights=[], relative_weights=[], kept_share=[])
        if isinstance(runner.train_loop, EpochBasedTrainLoop):
            # An epoch has fewer iterations than steps of the schedule.
            self.columns['lr'] = []

    def after_train_iter(self, runner, batch_idx, data_batch, outputs):
        hook, images = infobatch_hook(runner), data_batch['inputs']
        batch = hook.batch
        # There are no weights in annealing.
        weights = relative_weights = torch.ones(len(images))
        if batch.weights is not None:
            weights, relative_weights = batch.weights, batch.relative_weights
        step = dict(
            images=torch.cat(images).tolist(),
            weights=shortest(weights),
            relative_weights=shortest(relative_weights),
            kept_share=round(hook.kept_share, 3),
            lr=runner.optim_wrapper.get_lr()['lr'][0])
        for name, column in self.columns.items():
            column.append(step[name])


def build(work_dir,
          by_epoch=False,
          size=17,
          times=1,
          batch_size=4,
          num_workers=0,
          prefetch_factor=None,
          drop_last=False,
          checkpoint=None,
          hooks=(),
          **infobatch):
    """Return a Runner.

    Args:
        work_dir (Path): Its work folder.
        by_epoch (bool): Whether the Runner counts epochs. Defaults to False.
        size (int): Number of images. Defaults to 17.
        times (int): How often the dataset repeats the images. Defaults to 1.
        batch_size (int): Images of a batch. Defaults to 4.
        num_workers (int): Workers of the data loader. Defaults to 0.
        prefetch_factor (int, optional): Batches in flight of each worker.
            Defaults to None.
        drop_last (bool): Whether images that fill no batch are left out.
            Defaults to False.
        checkpoint (Path, optional): The checkpoint to resume from. Defaults to
            None.
        hooks (Sequence[dict]): Configs of more hooks. Defaults to none.
        **infobatch: Arguments of InfoBatchHook.
    """
    dataset = dict(type='NumberedImages', size=size)
    if times > 1:
        dataset = dict(type='RepeatDataset', dataset=dataset, times=times)
    if by_epoch:
        train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=8)
        schedule = dict(
            type='LinearLR', by_epoch=True, convert_to_iter_based=True, end=8)
    else:
        train_cfg = dict(type='IterBasedTrainLoop', max_iters=44)
        schedule = None
    cfg = dict(
        default_scope='mmengine',
        work_dir=str(work_dir),
        experiment_name=f'version3_{uuid.uuid4()}',
        randomness=dict(seed=0),
        model=dict(type='StepModel'),
        train_dataloader=dict(
            batch_size=batch_size,
            num_workers=num_workers,
            prefetch_factor=prefetch_factor,
            drop_last=drop_last,
            sampler=dict(type='InfoBatchSampler'),
            dataset=dataset),
        optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.5)),
        param_scheduler=schedule,
        train_cfg=train_cfg,
        custom_hooks=[
            dict({
                'type': 'InfoBatchHook',
                'policy': NEYMAN
            }, **infobatch),
            dict(type='StepRecord'), *hooks
        ],
        # The default saves at the end as well.
        default_hooks=dict(
            checkpoint=dict(
                type='CheckpointHook', by_epoch=by_epoch, interval=1000)),
        log_processor=dict(by_epoch=by_epoch),
        resume=checkpoint is not None,
        load_from=checkpoint and str(checkpoint))
    # MMEngine would format the code five times.
    return Runner.from_cfg(Config(cfg, format_python_code=False))


def train(runner):
    """Train, and return the record of the steps and the summary. The summary
    is None on all ranks but the first, which don't save."""
    if dist.is_initialized():
        runner.model = MMDistributedDataParallel(runner.model)
    runner.train()
    hook = infobatch_hook(runner)
    record, = (h for h in runner.hooks if isinstance(h, StepRecord))
    if dist.is_initialized() and dist.get_rank() > 0:
        return record.columns, None
    path = Path(runner.work_dir, 'last_checkpoint').read_text()
    checkpoint = torch.load(path, weights_only=False)
    return record.columns, summary(hook.worth, checkpoint['infobatch'])


# Sessions --------------------------------------------------------------------


class Loop:
    """A training loop in plain PyTorch with a Session.

    Args:
        batch_size (int): Samples of a batch. Defaults to 4.
        has_predictions (bool): Whether the loop tells the Session the
            predictions of the losses. Defaults to True.
        policy (Policy, optional): The policy. Defaults to None, for
            :class:`Neyman` with three tiers.
        **arguments: Other arguments of the Session.
    """

    def __init__(self,
                 batch_size=4,
                 has_predictions=True,
                 policy=None,
                 **arguments):
        policy = policy or Neyman(num_tiers=3, min_keep=0.3)
        self.session = mmib.Session(
            range(29), policy, epochs=6, seed=3, **arguments)
        self.batch_size = batch_size
        self.has_predictions = has_predictions
        self.num_steps = 0
        """int: Steps of the training until now."""

    def state_dict(self):
        return dict(
            session=self.session.state_dict(), num_steps=self.num_steps)

    def load_state_dict(self, state):
        self.session.load_state_dict(state['session'])
        self.num_steps = state['num_steps']

    def train(self, stop=None, **loader):
        """Train until the end, or until a number of steps. Return the record
        of the steps.

        Args:
            stop (int, optional): Steps of the training to stop after. Defaults
                to None.
            **loader: Other arguments of the loader.
        """
        session = self.session
        columns = dict(
            images=[],
            weights=[],
            relative_weights=[],
            kept_share=[],
            progress=[])
        loader = session.loader(self.batch_size, **loader)
        while session.progress < 1:
            for slots, images in loader:
                predictions = torch.zeros(len(images), requires_grad=True)
                losses = losses_of(images, predictions, self.num_steps)
                session.weigh(losses, slots,
                              predictions if self.has_predictions else
                              None).mean().backward()
                self.num_steps += 1
                columns['images'].append(images.tolist())
                columns['weights'].append(shortest(slots.weights))
                columns['relative_weights'].append(
                    shortest(slots.relative_weights))
                columns['kept_share'].append(round(session.kept_share, 3))
                columns['progress'].append(session.progress)
                if self.num_steps == stop:
                    return columns
        return columns

    def summary(self):
        """Return what the Session has made of all visits."""
        # The state merges the visits that V is updated by.
        state = self.session.state_dict()
        return summary(self.session.worth, state)


# Both ------------------------------------------------------------------------


def unpack(folder):
    """Write all states into a folder as they were before compression."""
    for path in STATES.glob('*.xz'):
        (folder / path.stem).write_bytes(lzma.decompress(path.read_bytes()))
    return folder


def go_on(name, way, folder):
    """Go on from a state, and return everything that is compared.

    Args:
        name (str): Name of the state.
        way (str): The way to go on, one of :func:`ways`.
        folder (Path): A folder with all states, see :func:`unpack`. Runners
            write into folders below.
    """
    changes, path = ways(name)[way], folder / f'{name}.pth'
    if name in RUNNERS:
        arguments = dict(RUNNERS[name], **changes)
        columns, at_end = train(
            build(folder / name / way, checkpoint=path, **arguments))
        return dict(columns, at_end=at_end)
    loop = Loop(**dict(SESSIONS[name], **changes))
    loop.load_state_dict(torch.load(path, weights_only=True))
    is_kept = [loop.session.explain(index).kept for index in range(29)]
    columns = loop.train()
    return dict(columns, is_kept=is_kept, at_end=loop.summary())


def rank_goes_on(rank, results, folder):
    """Go on from the states of :data:`TWO_RANKS` as one of two ranks."""
    results[rank] = {
        name: go_on(name, 'two_ranks', folder)
        for name in TWO_RANKS
    }


def by_ranks(folder):
    """Return, for each of these states, what each of two ranks makes of the
    state."""
    ranks = run_ranks(functools.partial(rank_goes_on, folder=folder), 2)
    return {name: [rank[name] for rank in ranks] for name in TWO_RANKS}


def expected(name):
    """Return how the mmib that wrote a state went on, in each way."""
    return json.loads((STATES / f'{name}.json').read_text())


@pytest.fixture(scope='module')
def unpacked(tmp_path_factory):
    """Folder with all states."""
    return unpack(tmp_path_factory.mktemp('states'))


@pytest.fixture(scope='module')
def of_ranks(unpacked):
    """What two ranks make of the states, all in the same two processes, which
    take seconds to start."""
    return by_ranks(unpacked)


@pytest.mark.parametrize('name, way', ALL_WAYS)
def test_a_state_goes_on_exactly(name, way, unpacked, request):
    if way == 'two_ranks':
        found = request.getfixturevalue('of_ranks')[name]
    else:
        found = go_on(name, way, unpacked)
    if way == 'two_ranks' and name in REPEATS:
        check_first_steps(found, expected(name)[way], REPEATS[name])
    else:
        check(found, expected(name)[way])


def check_first_steps(found, wanted, count):
    """Compare the steps until a plan whose budget no longer counts the slots
    that are repeated for other ranks."""
    for each, its_wanted in zip(found, wanted, strict=True):
        assert count < len(each['images'])
        for column in ('images', 'weights', 'relative_weights'):
            assert each[column][:count] == its_wanted[column][:count]


def check(found, wanted):
    """Compare what was found with what was written down. Progress and saved
    iterations are sums in another order today. A Session has no iterations."""
    if isinstance(found, list):
        for each, its_wanted in zip(found, wanted, strict=True):
            check(each, its_wanted)
        return
    saved, expected_saved = ((each['at_end'] or {}).pop('saved_iters', None)
                             for each in (found, wanted))
    progress, expected_progress = (
        each.pop('progress', []) for each in (found, wanted))
    assert found == wanted
    assert progress == pytest.approx(expected_progress, rel=1e-12)
    assert saved is None or saved == pytest.approx(expected_saved, rel=1e-9)


@pytest.mark.parametrize('name', SESSIONS)
def test_a_session_is_saved_again(name, unpacked):
    """The state that a Session writes after it has gone on from a state of
    version 3 leads to the same end."""
    first, then = (Loop(**SESSIONS[name]) for _ in range(2))
    first.load_state_dict(
        torch.load(unpacked / f'{name}.pth', weights_only=True))
    columns = first.train(first.num_steps + 7)
    then.load_state_dict(first.state_dict())
    for column, values in then.train().items():
        columns[column] += values
    found = dict(columns, at_end=then.summary())
    wanted = expected(name)['same']
    check(found, {key: wanted[key] for key in found})
