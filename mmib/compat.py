# Copyright (c) mmib contributors. All rights reserved.
"""Every place where mmib reaches into MMEngine or a library on it: why, and
when it can go."""
import functools
import gc
import inspect
import re
from contextlib import contextmanager
from typing import Any, Callable, Iterator, Optional, Tuple

import torch.distributed as dist
from mmengine.config import Config
from mmengine.hooks import ParamSchedulerHook
from mmengine.logging import MessageHub
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop, Runner
from torch import nn

from .config.zoo import resolve_config


def in_training() -> bool:
    """Whether the process is in a training loop.

    A sampler has no Runner to ask. It can go when MMEngine gives samplers one
    or when the sampler is built by the hook.
    """
    # RuntimeInfoHook, a default hook, keeps the stage up to date.
    info = MessageHub.get_current_instance().runtime_info
    return info.get('loop_stage') == 'train'


def loop_counts_epochs() -> Optional[bool]:
    """Whether the training loop that asks counts epochs. None if who asks is
    no training loop.

    A loop builds its sampler, and OpenMMLab's reads it before any hook acts.
    It can go when MMEngine gives samplers their Runner.
    """
    frame = inspect.currentframe()
    while frame is not None:
        owner = frame.f_locals.get('self')
        if isinstance(owner, (EpochBasedTrainLoop, IterBasedTrainLoop)):
            return isinstance(owner, EpochBasedTrainLoop)
        frame = frame.f_back
    return None


def before_saving(runner: Runner, act: Callable[[], None]) -> None:
    """Act on all ranks before any of them saves a checkpoint.

    ``save_checkpoint`` is the last call that all ranks make at once. Nothing
    later is called on more than the first one, where a collective would wait
    for good. It can go when MMEngine calls ``before_save_checkpoint`` of hooks
    on every rank.

    Args:
        runner (Runner): The runner of the training process.
        act (Callable): What to do.
    """
    save_checkpoint = runner.save_checkpoint

    @functools.wraps(save_checkpoint)
    def act_and_save(*args: Any, **kwargs: Any) -> None:
        act()
        save_checkpoint(*args, **kwargs)

    runner.save_checkpoint = act_and_save


def restart_loader(loop: IterBasedTrainLoop) -> None:
    """Let a loop read from where its sampler stands now.

    OneDL's loop starts its workers when it asks for the first batch, and skips
    the past by ``skip`` of the sampler. OpenMMLab's has started them before
    the checkpoint was read, so what they were asked for is dropped, and skips
    the past by asking for each batch of it, so these are none. It can go with
    the support of OpenMMLab's stack.

    Args:
        loop (IterBasedTrainLoop): The loop, before it begins.
    """
    batches = loop.dataloader_iterator
    if hasattr(batches, 'skip_iter'):
        # One that derives from it may have started them.
        batches._iterator = None
        return
    kind = type(batches)
    # Its workers end before others start.
    loop.dataloader_iterator = batches = None
    loop.dataloader_iterator = _SkipsWithoutLoading(
        kind(loop.dataloader), loop.iter)


class _SkipsWithoutLoading:
    """An iterator whose first ``num_skipped`` items are None, without any
    work."""

    def __init__(self, iterator: Iterator, num_skipped: int) -> None:
        self._iterator = iterator
        self._num_skipped = num_skipped

    def __iter__(self) -> Iterator:
        return self

    def __next__(self) -> Any:
        if self._num_skipped > 0:
            self._num_skipped -= 1
            return None
        return next(self._iterator)


def follow_progress(runner: Runner, steps_due: Callable[[], int]) -> None:
    """Let schedulers that step by iteration follow the progress of a training
    whose epochs are shorter than those that they were made for.

    It can go when MMEngine's ParamSchedulerHook asks how many steps are due.

    Args:
        runner (Runner): The runner of the training process.
        steps_due (Callable): For how many iterations of the schedule the
            current iteration stands.
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
    """Let the log's remaining time, and models that follow the progress, know
    that a training which counts epochs has other iterations than its loader
    had when it was built.

    It can go when MMEngine's loop asks its loader in each epoch.

    Args:
        runner (Runner): The runner of the training process.
        max_iters (int): Iterations of the training to expect.
        is_last (bool): Whether the last epoch begins, so that they are known.
    """
    runner.train_loop._max_iters = max_iters
    runner.message_hub.update_info('max_iters', max_iters)
    wrapper = runner.optim_wrapper
    # Those of DeepSpeed count by themselves, and a dict of some not at all.
    if getattr(wrapper, '_accumulative_counts', 1) > 1:
        # The last gradients that are accumulated may be fewer. It isn't known
        # before the last epoch where that is: with -1, nowhere.
        wrapper._max_counts = max_iters if is_last else -1
        wrapper._remainder_counts = max_iters % wrapper._accumulative_counts


def observe_calls(owner: Any, name: str, observe: Callable) -> None:
    """Call a function with the arguments of each call of a method, before it.

    Which rows of a loss belong to which image is known there alone: in
    ``get_targets`` of mmseg's mask heads, which matches masks, in ``loss`` of
    the parts of mmpretrain's MultiTaskHead, which leaves out images without a
    label, and of its heads that predict masked tokens. It can go when these
    pass it to their losses.

    Args:
        owner (object): A head, or a part of it.
        name (str): The method. Who observed it before doesn't any more.
        observe (Callable): Takes the arguments.
    """

    def observed(*args: Any, **kwargs: Any) -> Tuple[tuple, dict]:
        observe(*args, **kwargs)
        return args, kwargs

    change_calls(owner, name, observed)


def observe_results(owner: Any, name: str, observe: Callable) -> None:
    """Call a function with the result of each call of a method.

    What MMEngine adds up to the loss of a batch is known in ``parse_losses``
    of the model alone. It can go when hooks get the loss before its backward
    pass.

    Args:
        owner (object): A model.
        name (str): The method. Who observed it before doesn't any more.
        observe (Callable): Takes the result.
    """
    method = getattr(owner, name)
    method = getattr(method, 'unchanged', method)

    @functools.wraps(method)
    def observed(*args: Any, **kwargs: Any) -> Any:
        result = method(*args, **kwargs)
        observe(result)
        return result

    setattr(observed, 'unchanged', method)
    setattr(owner, name, observed)


def change_calls(owner: Any, name: str, change: Callable) -> None:
    """Change the arguments of each call of a method.

    The heads of mmdet take predictions of the whole batch apart in ways of
    their own, so these are changed where they come in. It can go when mmdet's
    losses take a weight for each image.

    Args:
        owner (object): A head, or a part of it.
        name (str): The method. Who changed its calls before doesn't any more.
        change (Callable): Takes the arguments, and returns a tuple and a dict
            of them.
    """
    method = getattr(owner, name)
    method = getattr(method, 'unchanged', method)

    @functools.wraps(method)
    def changed(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = change(*args, **kwargs)
        return method(*args, **kwargs)

    setattr(changed, 'unchanged', method)
    setattr(owner, name, changed)


def allow_scoped_bases() -> None:
    """Let configs inherit by ``_base_ = 'mmseg::...'``, ``'mmpretrain::...'``,
    ``'mmdet::...'`` and ``'mmib::...'``.

    MMEngine looks for distributions such as mmsegmentation, which have other
    names on OneDL's stack, and knows the configs of its own libraries alone.
    Call it before the config is read: ``custom_imports`` are too late. It can
    go when MMEngine finds configs by the module that has them.
    """
    Config._get_cfg_path = staticmethod(_find_base)


@contextmanager
def without_scoped_bases() -> Iterator[None]:
    """Read configs as a script does that knows nothing of mmib."""
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


def change_next_config(change: Callable[..., Config]) -> None:
    """Let the next config that is read be another one.

    The libraries' ``tools/train.py`` read the config of the training first,
    and have no place to change it. It can go with their use.

    Args:
        change (Callable): ``change(fromfile, path, *args, **kwargs)`` returns
            the config, with MMEngine's own ``fromfile``.
    """
    fromfile = Config.fromfile

    def changed(path: str, *args: Any, **kwargs: Any) -> Config:
        # What is read after the config of the training is as it was.
        Config.fromfile = staticmethod(fromfile)
        return change(fromfile, path, *args, **kwargs)

    Config.fromfile = staticmethod(changed)


@contextmanager
def distributed_on_cpu() -> Iterator[None]:
    """Let processes without a GPU train together.

    MMEngine's launcher gives each a CUDA device, which builds of torch for
    CPU can't, and its wrapper names a device, which
    ``DistributedDataParallel`` refuses for models on the CPU. So the process
    group is there before the Runner, which then makes none, and the wrapper
    has no device. Its other arguments are those of the Runner. It can go when
    MMEngine's launcher knows processes without a GPU.
    """
    dist.init_process_group('gloo')
    wrap_model = Runner.wrap_model

    def wrap_on_cpu(self: Runner, model_wrapper_cfg: Optional[dict],
                    model: nn.Module) -> nn.Module:
        # As in the config: the parts of a list are numbered.
        parts = {
            match[0]: None
            for name, module in model.named_modules()
            if isinstance(module, nn.SyncBatchNorm) and (
                match := re.match(r'[^.]+(\.\d+)?', name))
        }
        if parts:
            raise ValueError(
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
    # A thread of gloo that lets go of a tensor when the interpreter ends
    # aborts the process, and a training that is complete exits with 1
    # (pytorch/pytorch#179291). Gloo waits for its threads when nothing refers
    # to the group any more; the Runner, whose model does, is in a cycle.
    gc.collect()
    dist.destroy_process_group()
