# Copyright (c) mmib contributors. All rights reserved.
"""Ways to spread a training over processes: strategies of FlexibleRunner,
wrappers of the model and of the optimizers. On two ranks over gloo they train
as DistributedDataParallel does, to the last bit, and go on so."""
import functools
import inspect
import os
import re
from contextlib import ExitStack
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from mmengine._strategy.deepspeed import DeepSpeedStrategy
from mmengine.model import MMSeparateDistributedDataParallel
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.registry import MODELS, OPTIM_WRAPPER_CONSTRUCTORS
from mmengine.runner import FlexibleRunner
from mmseg.models import EncoderDecoder
from torch.distributed.fsdp import FullyShardedDataParallel

from mmib.errors import Refusal
from tests.helpers.processes import run_ranks
from tests.helpers.segmentors import (SAVED, VALIDATION, assert_equal,
                                      assert_pruned, build, column, distribute,
                                      infobatch_hook, small_runner, state_of,
                                      train, train_and_note, weights_of)
from tests.test_tasks import test_per_sample as per_sample

# MMEngine writes no optimizer into `best_*`, so it must have no state.
STATELESS = {'optim_wrapper.optimizer.momentum': 0.}
VALIDATED = {
    **VALIDATION,
    **STATELESS,
    'default_hooks.checkpoint.save_best': 'mIoU',
    'default_hooks.checkpoint.interval': 1000,
    # So the best one is after the first plans.
    'train_cfg': dict(val_interval=7, val_begin=14),
}
SEEDED = {'model.type': 'SeededSegmentor'}
# Without a GPU, wrappers have to be told.
FSDP = dict(
    type='MMFullyShardedDataParallel', use_orig_params=True, device_id='cpu')
# The convolutions by themselves.
PARTS = dict(
    FSDP,
    auto_wrap_policy=dict(
        type='torch.distributed.fsdp.wrap.size_based_auto_wrap_policy',
        min_num_params=20))
WHOLE = dict(
    state_dict_type='FULL_STATE_DICT',
    state_dict_config=dict(type='FullStateDictConfig'),
    optim_state_dict_config=dict(type='FullOptimStateDictConfig'))
STRATEGIES = {
    'DDPStrategy': dict(
        type='DDPStrategy',
        model_wrapper=dict(
            type='MMDistributedDataParallel',
            device_ids=None,
            broadcast_buffers=False)),
    'FSDPStrategy, parts': dict(
        type='FSDPStrategy', model_wrapper=PARTS, state_dict_cfg='local'),
    'FSDPStrategy, whole': dict(
        type='FSDPStrategy', model_wrapper=FSDP, state_dict_cfg=WHOLE),
}


def best_of(work_dir):
    best, = work_dir.glob('best_*')
    return str(best)


@MODELS.register_module()
class SeededSegmentor(EncoderDecoder):
    """On OpenMMLab's stack runners draw other numbers before its weights."""

    def __init__(self, *args, **kwargs):
        torch.manual_seed(0)
        super().__init__(*args, **kwargs)

    def init_weights(self):
        torch.manual_seed(0)
        super().init_weights()


def mmengine_resumes_fsdp():
    """Give arguments in the order that torch has now, without which MMEngine
    raises a TypeError, with and without mmib."""
    load = FullyShardedDataParallel.optim_state_dict_to_load
    if next(iter(inspect.signature(load).parameters)) != 'model':
        return ExitStack()
    return mock.patch.object(
        FullyShardedDataParallel, 'optim_state_dict_to_load',
        lambda state, model, optim: load(model, optim, state))


MODES = {
    'Runner': SEEDED,
    **{
        name: dict(SEEDED, env_cfg={}, strategy=strategy)
        for name, strategy in STRATEGIES.items()
    },
    'diff_rank_seed': dict(randomness=dict(seed=0, diff_rank_seed=True)),
    'no seed': dict(randomness=dict(seed=None)),
    'validation': VALIDATED,
}


def train_per_sample(folder):
    """Of a model whose layers are called, so that they can be wrapped."""
    reference = per_sample.build(folder / 'ddp')
    distribute(reference)
    separate = per_sample.build(folder / 'separate')
    separate.model = MMSeparateDistributedDataParallel(separate.model)
    with mock.patch.object(per_sample, 'Runner', FlexibleRunner):
        sharded = per_sample.build(
            folder / 'sharded',
            env_cfg={},
            strategy=dict(type='FSDPStrategy', model_wrapper=FSDP))
    losses = [per_sample.train(r) for r in (reference, separate, sharded)]
    return losses, type(separate.model.module.layer).__name__


def train_mode(work_dir, **changes):
    runner = build(work_dir, **changes)
    if 'strategy' not in changes:
        distribute(runner)
    steps = train(runner)
    # Until the first rank has written the last checkpoint.
    dist.barrier()
    # A shard of the weights is no state that can be compared.
    weights = {} if 'FSDP' in str(changes) else weights_of(runner)
    return steps, (state_of(runner), weights)


def train_each(folder, rank, results):
    """Train in each mode, and resume from the middle or the best
    checkpoint."""
    # As torchrun sets them.
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE='2')
    results[rank] = {'per sample': train_per_sample(folder)}
    for name, changes in MODES.items():
        steps, end = train_mode(folder / name, **changes)
        path = (
            best_of(folder / name) if name == 'validation' else str(
                folder / name / f'iter_{SAVED}.pth'))
        with mmengine_resumes_fsdp():
            later, resumed_end = train_mode(
                folder / name / 'resumed',
                resume=True,
                load_from=path,
                **changes)
        results[rank][name] = steps, later, end, resumed_end, path


@pytest.fixture(scope='module')
def trainings(tmp_path_factory):
    """What two ranks did in each mode."""
    folder = tmp_path_factory.mktemp('ranks')
    return run_ranks(functools.partial(train_each, folder), 2)


@pytest.mark.parametrize('name', MODES)
def test_ranks(trainings, name):
    """They have the same plans, of which each has its slots, and go on
    exactly: a checkpoint has the scores of both."""
    ranks = [rank[name] for rank in trainings]
    for steps, later, end, resumed_end, path in ranks:
        assert_pruned(steps)
        start = int(re.search(r'iter_(\d+)\.pth', path)[1])
        assert later == steps[start:] != []
        assert_equal(resumed_end, end)
        # The same state on each rank.
        assert_equal(end, ranks[0][2])
    one, two = (column(rank[0], 'images') for rank in ranks)
    assert one != two
    if name in STRATEGIES:
        assert [rank[0] for rank in ranks
                ] == [rank['Runner'][0] for rank in trainings]


def test_models_with_losses_of_samples(trainings):
    for rank in trainings:
        (ddp, separate, sharded), layer = rank['per sample']
        assert layer == 'MMDistributedDataParallel'
        assert len(ddp) < 8 * 3 and ddp == separate == sharded


@MODELS.register_module()
class TwoNetworks(per_sample.TwoLosses):
    """Trains each of its layers with an optimizer of its own."""

    def __init__(self):
        super().__init__()
        self.other = torch.nn.Linear(3, 2)

    def train_step(self, data, optim_wrapper):
        rows, values = self.data_preprocessor(data, True)
        logs = {}
        for name in ('layer', 'other'):
            errors = F.mse_loss(
                getattr(self, name)(rows), values, reduction='none')
            loss, log = self.parse_losses({f'loss_{name}': errors.sum(1)})
            optim_wrapper[name].update_params(loss)
            logs.update(log)
        logs['loss'] = logs['loss_layer'] + logs['loss_other']
        return logs


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class OneForEach:

    def __init__(self, **kwargs):
        pass

    def __call__(self, model):
        sgd = torch.optim.SGD(model.layer.parameters(), 0.01)
        adam = torch.optim.Adam(model.other.parameters(), 0.01)
        return OptimWrapperDict(
            layer=OptimWrapper(sgd), other=OptimWrapper(adam))


def test_an_optimizer_for_each_network(tmp_path):
    """All losses of a sample have its weight, and are in its score."""

    def note(runner, data_batch, outputs):
        batch = infobatch_hook(runner).batch
        if batch.weights is None:
            return 1.
        mean = (batch.relative_weights * batch.scores).mean()
        assert outputs['loss'].item() == pytest.approx(mean.item(), 1e-5)
        return batch.weights.max().item()

    runner = per_sample.build(
        tmp_path,
        model=dict(type='TwoNetworks'),
        optim_wrapper=dict(_delete_=True, constructor='OneForEach'))
    largest = train_and_note(runner, note)
    assert len(largest) < 0.75 * 8 * 6 and max(largest) > 1


def test_strategies_without_hooks_at_checkpoints_are_refused(tmp_path):
    runner = small_runner(tmp_path)
    runner.strategy = DeepSpeedStrategy.__new__(DeepSpeedStrategy)
    with pytest.raises(
            Refusal,
            match='Checkpoints of DeepSpeedStrategy would lack the scores.*'
            "set `strategy = dict"):
        runner.train()
    assert runner.iter == 0
