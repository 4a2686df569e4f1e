# Copyright (c) mmib contributors. All rights reserved.
"""Where mmib reaches into MMEngine's Runner: why, and when the function can
go."""
import functools
import inspect
import itertools
from typing import Any, Callable, Optional

from mmengine.dist import get_dist_info, master_only
from mmengine.hooks import Hook
from mmengine.runner import IterBasedTrainLoop, Runner

from ...errors import Refusal


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


def expect_iters(runner: Runner, max_iters: int, is_last: bool) -> None:
    """Set how many iterations MMEngine expects of a run by epochs.

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
        # The last accumulation may be shorter. In the last epoch it is known
        # where that accumulation begins. Until then, -1 stands for nowhere.
        wrapper._max_counts = max_iters if is_last else -1
        wrapper._remainder_counts = max_iters % wrapper._accumulative_counts


def before_saving(runner: Runner, act: Callable[[], None]) -> None:
    """Act on all ranks before any of them saves a checkpoint.

    ``save_checkpoint`` is the last call that all ranks make. What follows is
    called only on the first rank, where a collective would wait forever.
    The function can go when MMEngine calls ``before_save_checkpoint`` of hooks
    on every rank. A save by the first rank alone is refused where it can be
    seen: the first rank would wait forever.
    """
    save_checkpoint = runner.save_checkpoint

    @functools.wraps(save_checkpoint)
    def act_and_save(*args: Any, **kwargs: Any) -> None:
        if get_dist_info()[1] > 1 and _is_in_master_only():
            raise Refusal(
                'A checkpoint is saved on the first rank alone, and needs '
                'what all ranks know of the images: remove `@master_only` '
                'from the method that calls `runner.save_checkpoint`. Call it '
                'on all ranks; the first rank writes the file.')
        act()
        save_checkpoint(*args, **kwargs)

    runner.save_checkpoint = act_and_save


def is_accumulating(runner: Runner) -> bool:
    """Return whether the optimizer still waits for gradients of more batches.
    The function can go when MMEngine's optimizer wrapper shows this."""
    wrapper = runner.optim_wrapper
    counts = getattr(wrapper, '_accumulative_counts', 1)
    return counts > 1 and not wrapper.should_update()


# All functions that are decorated have one code.
_MASTER_ONLY = getattr(master_only(print), '__code__')


def _is_in_master_only() -> bool:
    """Return whether a function that called this one is decorated with
    MMEngine's ``master_only``."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not _MASTER_ONLY:
        frame = frame.f_back
    return frame is not None


class _Edge(Hook):
    """The hook at one end of the list of hooks."""

    def __init__(self,
                 begin: Optional[Callable] = None,
                 end: Optional[Callable] = None,
                 leave: Optional[Callable] = None) -> None:
        self._begin, self._end, self._leave = begin, end, leave

    def before_train_iter(self,
                          runner: Runner,
                          batch_idx: int,
                          data_batch: Optional[dict] = None) -> None:
        if self._begin is not None:
            self._begin(runner, batch_idx, data_batch)

    def after_train_iter(self,
                         runner: Runner,
                         batch_idx: int,
                         data_batch: Optional[dict] = None,
                         outputs: Optional[dict] = None) -> None:
        if self._end is not None:
            self._end(data_batch)
        if self._leave is not None:
            self._leave(runner)


def at_edges_of_steps(runner: Runner, begin: Callable, end: Callable,
                      leave: Callable) -> None:
    """Act at the edges of each step: after all other hooks have prepared the
    step, before any of them sees that the step is over, and after all of them
    have seen this.

    A hook may save a checkpoint in either event, and may compute losses that
    aren't trained on. Both then lie outside of the step. The function can go
    when the priorities of hooks differ between events.

    Args:
        runner (Runner): The runner, in ``before_train``.
        begin (Callable): ``begin(runner, batch_idx, data_batch)``.
        end (Callable): ``end(data_batch)``.
        leave (Callable): ``leave(runner)``.
    """
    # Another list: MMEngine is going through the old one.
    runner._hooks = [
        _Edge(end=end), *runner._hooks,
        _Edge(begin=begin, leave=leave)
    ]
