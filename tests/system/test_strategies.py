# Copyright (c) mmib contributors. All rights reserved.
"""Ways to spread a training over processes: strategies of FlexibleRunner,
wrappers of the model and of the optimizers. On two ranks over gloo they train
as DistributedDataParallel does, to the last bit."""
import inspect
import os
import tempfile
from contextlib import ExitStack
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from mmengine._strategy.deepspeed import DeepSpeedStrategy
from mmengine.hooks import Hook
from mmengine.model import MMSeparateDistributedDataParallel
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.registry import MODELS, OPTIM_WRAPPER_CONSTRUCTORS
from mmengine.runner import FlexibleRunner
from mmseg.models import EncoderDecoder
from torch.distributed.fsdp import FullyShardedDataParallel

from tests.system.processes import run_ranks
from tests.system.small_training import (SAVED, assert_pruned, build, column,
                                         distribute, infobatch_hook,
                                         small_runner, train)
from tests.test_tasks import test_per_sample as per_sample

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


def train_each(rank, results):
    os.environ['LOCAL_RANK'] = str(rank)
    # The same for all ranks.
    folder = [tempfile.mkdtemp()]
    dist.broadcast_object_list(folder)
    folder = Path(folder[0])
    runner = build(folder / 'runner', **SEEDED)
    distribute(runner)
    results[rank] = {'Runner': (train(runner), None)}
    results[rank]['per sample'] = train_per_sample(folder)
    for name, strategy in STRATEGIES.items():
        changes = dict(SEEDED, env_cfg={}, strategy=strategy)
        steps = train(build(folder / name, **changes))
        dist.barrier()
        with mmengine_resumes_fsdp():
            resumed = build(
                folder / name / 'resumed',
                resume=True,
                load_from=str(folder / name / f'iter_{SAVED}.pth'),
                **changes)
            results[rank][name] = steps, train(resumed)


@pytest.fixture(scope='module')
def trainings():
    return run_ranks(train_each, 2)


@pytest.mark.parametrize('name', STRATEGIES)
def test_strategies_train_and_resume_as_ddp(trainings, name):
    for rank in trainings:
        steps, resumed = rank[name]
        assert_pruned(steps)
        assert steps == rank['Runner'][0]
        assert resumed == steps[SAVED:]
    assert column(trainings[0][name][0],
                  'images') != column(trainings[1][name][0], 'images')


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

    def __init__(self, optim_wrapper_cfg, paramwise_cfg=None):
        pass

    def __call__(self, model):
        return OptimWrapperDict(
            layer=OptimWrapper(
                torch.optim.SGD(model.layer.parameters(), 0.01)),
            other=OptimWrapper(
                torch.optim.Adam(model.other.parameters(), 0.01)))


def test_an_optimizer_for_each_network(tmp_path):
    """All losses of a sample have its weight, and are in its score."""

    def losses(name, **changes):
        runner = per_sample.build(
            tmp_path / name,
            model=dict(type='TwoNetworks'),
            optim_wrapper=dict(_delete_=True, constructor='OneForEach'),
            **changes)
        log = WeightLog()
        runner.register_hook(log)
        return per_sample.train(runner), log.steps

    baseline, _ = losses('baseline', policy=None)
    ratio_0, _ = losses('ratio 0', policy=dict(type='RandomPruning', ratio=0.))
    np.testing.assert_allclose(ratio_0, baseline, rtol=1e-6)
    pruned, steps = losses('pruned')
    assert len(pruned) < 0.75 * len(baseline)
    assert max(max(weights) for weights, _ in steps) > 1
    for loss, (weights, scores) in zip(pruned, steps):
        assert loss == pytest.approx(np.multiply(weights, scores).mean(), 1e-5)
    again, _ = losses(
        'resumed',
        resume=True,
        load_from=str(tmp_path / 'pruned' / 'epoch_3.pth'))
    assert again == pruned[-len(again):]


class WeightLog(Hook):
    """Weights and scores of each step that has them."""

    priority = 'HIGH'

    def __init__(self):
        self.steps = []

    def after_train_iter(self, runner, *args, **kwargs):
        batch = infobatch_hook(runner) and infobatch_hook(runner).batch
        if batch and batch.weights is not None:
            self.steps.append((batch.weights.tolist(), batch.scores.tolist()))


def test_strategies_without_hooks_at_checkpoints_are_refused(tmp_path):
    runner = small_runner(tmp_path)
    runner.strategy = DeepSpeedStrategy.__new__(DeepSpeedStrategy)
    with pytest.raises(
            ValueError,
            match='checkpoints of DeepSpeedStrategy would lack the scores.*'
            "set `strategy = dict"):
        runner.train()
    assert runner.iter == 0
