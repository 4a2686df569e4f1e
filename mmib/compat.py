# Copyright (c) mmib contributors. All rights reserved.
"""Every place where mmib reaches into MMEngine or a library on it: why mmib
does so, and when the function can go."""
import functools
import gc
import inspect
import itertools
import re
from contextlib import contextmanager
from typing import Any, Callable, Iterator, Optional, Tuple

import torch.distributed as dist
from mmengine._strategy import SingleDeviceStrategy
from mmengine.config import Config
from mmengine.hooks import ParamSchedulerHook
from mmengine.logging import MessageHub
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop, Runner
from torch import nn

from .config.zoo import resolve_config
from .errors import ValueRefusal


def in_training() -> bool:
    """Whether the process is in a training loop.

    A sampler has no Runner to ask. The function can go when MMEngine gives
    samplers their Runner.
    """
    # RuntimeInfoHook, a default hook, keeps the stage up to date.
    info = MessageHub.get_current_instance().runtime_info
    return info.get('loop_stage') == 'train'


def loop_counts_epochs() -> Optional[bool]:
    """Whether the training loop that calls counts epochs. None outside of a
    training loop.

    A loop builds its sampler, and OpenMMLab's loop reads the sampler before
    any hook acts. The function can go when MMEngine gives samplers their
    Runner.
    """
    loop, _ = _caller()
    return None if loop is None else isinstance(loop, EpochBasedTrainLoop)


def in_hook() -> bool:
    """Whether a hook calls, and not the training loop itself.

    The function can go when MMEngine gives hooks data loaders of their own.
    """
    return _caller()[1]


def _caller() -> Tuple[Any, bool]:
    """The training loop that calls, if any, and whether it does so through a
    hook."""
    frame, in_hook = inspect.currentframe(), False
    while frame is not None:
        owner = frame.f_locals.get('self')
        if isinstance(owner, (EpochBasedTrainLoop, IterBasedTrainLoop)):
            return owner, in_hook
        in_hook |= frame.f_code.co_name == 'call_hook'  # Of any runner.
        frame = frame.f_back
    return None, in_hook


def before_saving(runner: Runner, act: Callable[[], None]) -> None:
    """Act on all ranks before any of them saves a checkpoint.

    ``save_checkpoint`` is the last call that all ranks make. What follows is
    called on the first rank alone, where a collective would wait for good.
    The function can go when MMEngine calls ``before_save_checkpoint`` of hooks
    on every rank.
    """
    save_checkpoint = runner.save_checkpoint

    @functools.wraps(save_checkpoint)
    def act_and_save(*args: Any, **kwargs: Any) -> None:
        act()
        save_checkpoint(*args, **kwargs)

    runner.save_checkpoint = act_and_save


def restart_loader(loop: IterBasedTrainLoop) -> None:
    """Let a loop that hasn't begun read from where its sampler stands now.

    OneDL's loop starts its workers when the loop asks for the first batch, and
    skips the past by ``skip`` of the sampler. OpenMMLab's loop starts its
    workers before the checkpoint is read, so the batches of these workers are
    dropped. It skips the past by asking for each past batch, so past batches
    are None. The function can go with the support of OpenMMLab's stack.
    """
    batches = loop.dataloader_iterator
    if hasattr(batches, 'skip_iter'):
        # A loop that derives from OneDL's may have started the workers.
        batches._iterator = None
        return
    kind = type(batches)
    # The old workers end before others start.
    loop.dataloader_iterator = batches = None
    loop.dataloader_iterator = itertools.chain(
        itertools.repeat(None, loop.iter), kind(loop.dataloader))


def follow_progress(runner: Runner, steps_due: Callable[[], int]) -> None:
    """Let schedulers that step by iteration follow a training whose epochs are
    shorter than the epochs of the schedule: ``steps_due`` tells how many
    iterations of the schedule the current iteration stands for.

    The function can go when MMEngine's ParamSchedulerHook asks how many steps
    are due.
    """

    def follow(hook: ParamSchedulerHook) -> None:
        step = hook.after_train_iter

        @functools.wraps(step)
        def step_as_due(*args: Any, **kwargs: Any) -> None:
            for _ in range(steps_due()):
                step(*args, **kwargs)

        hook.after_train_iter = step_as_due

    for hook in runner.hooks:
        if isinstance(hook, ParamSchedulerHook):
            follow(hook)


def expect_iters(runner: Runner, max_iters: int, is_last: bool) -> None:
    """Tell MMEngine how many iterations a training by epochs will have.

    The log's remaining time and models that follow the progress read the
    number, which is exact where the last epoch begins (``is_last``). The loop
    of MMEngine computes the number once, from full epochs. The function can go
    when MMEngine's loop asks its loader in each epoch.
    """
    runner.train_loop._max_iters = max_iters
    runner.message_hub.update_info('max_iters', max_iters)
    wrapper = runner.optim_wrapper
    # DeepSpeed's wrapper counts by itself, and an OptimWrapperDict has no
    # count.
    if getattr(wrapper, '_accumulative_counts', 1) > 1:
        # The last accumulation may be shorter. Where it begins is known in the
        # last epoch; before, -1 says nowhere.
        wrapper._max_counts = max_iters if is_last else -1
        wrapper._remainder_counts = max_iters % wrapper._accumulative_counts


def saves_with_hooks(strategy: Any) -> bool:
    """Whether a strategy calls hooks when it saves and loads checkpoints.

    DDPStrategy and FSDPStrategy derive from SingleDeviceStrategy, and call
    hooks too. The function can go when every strategy does.
    """
    return isinstance(strategy, SingleDeviceStrategy)


def replace_method(owner: Any, name: str, call: Callable) -> None:
    """Let ``call(method, *args, **kwargs)`` take the place of a method, and of
    an earlier replacement.

    Which rows of a loss belong to which image is known in ``get_targets`` of
    mmseg's mask heads, which matches masks, and in ``loss`` of mmpretrain's
    heads, which leaves out images without a label or selects masked tokens:
    until these heads tell their losses the rows. Each head of mmdet takes
    predictions apart in its own way, so predictions are changed where they
    come in: until mmdet's losses take a weight for each image. The loss of a
    batch is known in ``parse_losses`` of a model: until hooks get the loss
    before its backward pass.
    """
    method = getattr(owner, name)
    method = getattr(method, 'unchanged', method)

    @functools.wraps(method)
    def replaced(*args: Any, **kwargs: Any) -> Any:
        return call(method, *args, **kwargs)

    setattr(replaced, 'unchanged', method)
    setattr(owner, name, replaced)


def allow_scoped_bases() -> None:
    """Let configs inherit by ``_base_ = 'mmseg::...'``, ``'mmpretrain::...'``,
    ``'mmdet::...'`` and ``'mmib::...'``.

    MMEngine knows its own libraries alone, by the names of distributions such
    as mmsegmentation, which OneDL's stack doesn't have. Call the function
    before the config is read: ``custom_imports`` are too late. It can go when
    MMEngine finds configs by the name of a module.
    """
    Config._get_cfg_path = staticmethod(_find_base)


@contextmanager
def without_scoped_bases() -> Iterator[None]:
    """Read configs as MMEngine does without mmib."""
    changed = Config._get_cfg_path
    Config._get_cfg_path = staticmethod(_find_base_by_distribution)
    try:
        yield
    finally:
        Config._get_cfg_path = staticmethod(changed)


_find_base_by_distribution = Config._get_cfg_path


def _find_base(path: str, filename: str) -> Tuple[str, Optional[str]]:
    """The path of a base config, and the scope of its parts."""
    package, scoped, _ = path.partition('::')
    if scoped:
        found = resolve_config(path)
        if found != path:
            # mmib has no models of its own: no scope.
            return found, None if package == 'mmib' else package
    return _find_base_by_distribution(path, filename)


def is_lazy(path: str) -> bool:
    """Whether a config file is a lazy config, with ``read_base``.

    MMEngine has no public name for the test, and fails late and obscurely. The
    function can go when there is a public name.
    """
    return Config._is_lazy_import(path)


def change_next_config(change: Callable[..., Config]) -> None:
    """Let ``change(fromfile, path, *args, **kwargs)`` read the next config.

    The libraries' ``tools/train.py`` read the config of the training first,
    and have no place to change it. The function can go when mmib no longer
    runs these scripts.
    """
    fromfile = Config.fromfile

    def changed(path: str, *args: Any, **kwargs: Any) -> Config:
        # Later configs stay as they are.
        Config.fromfile = staticmethod(fromfile)
        return change(fromfile, path, *args, **kwargs)

    Config.fromfile = staticmethod(changed)


@contextmanager
def distributed_on_cpu() -> Iterator[None]:
    """Let processes without a GPU train together.

    MMEngine's launcher gives each process a CUDA device, which fails without
    CUDA. So the process group is made here, and the Runner makes none.
    MMEngine's model wrapper names a device, which ``DistributedDataParallel``
    refuses on a CPU. So the wrapper gets no device here. The function can go
    when MMEngine's launcher knows processes without a GPU.
    """
    dist.init_process_group('gloo')
    wrap_model = Runner.wrap_model

    def wrap_on_cpu(self: Runner, model_wrapper_cfg: Optional[dict],
                    model: nn.Module) -> nn.Module:
        # Names as in the config, where the parts of a list have numbers.
        parts = {
            match[0]: None
            for name, module in model.named_modules()
            if isinstance(module, nn.SyncBatchNorm) and (
                match := re.match(r'[^.]+(\.\d+)?', name))
        }
        if parts:
            raise ValueRefusal(
                'SyncBN needs GPUs, and these processes have none: add '
                '`--cfg-options ' + ' '.join(f'model.{part}.norm_cfg.type=BN'
                                             for part in parts) +
                '`, or train in one process, which needs no SyncBN.')
        if model_wrapper_cfg is None:
            model_wrapper_cfg = dict(
                broadcast_buffers=False,
                find_unused_parameters=self.cfg.get('find_unused_parameters',
                                                    False))
        return wrap_model(self, {
            'device_ids': None,
            **model_wrapper_cfg
        }, model)

    Runner.wrap_model = wrap_on_cpu
    yield
    # A thread of gloo that frees a tensor when the interpreter ends aborts the
    # process, so that a complete training exits with 1
    # (pytorch/pytorch#179291). Gloo waits for its threads when nothing refers
    # to the group. The Runner, which refers to the group, is in a cycle.
    gc.collect()
    dist.destroy_process_group()
