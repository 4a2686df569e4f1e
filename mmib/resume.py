# Copyright (c) mmib contributors. All rights reserved.
"""A resumed training reads no data that it was trained on already."""
from typing import Any, Iterator

from mmengine.runner import IterBasedTrainLoop


def restart_loader(loop: IterBasedTrainLoop) -> None:
    """Let a resumed loop read from where its sampler stands now.

    OneDL's loop starts its workers when it asks for the first batch, and skips
    the past by ``skip`` of the sampler. OpenMMLab's has started them before
    the checkpoint was read, so what they were asked for is dropped, and skips
    the past by asking for each batch of it, so these are none.

    Args:
        loop (IterBasedTrainLoop): The loop, before it begins.
    """
    batches = loop.dataloader_iterator
    if hasattr(batches, 'skip_iter'):
        return
    kind = type(batches)
    # Its workers end before others start.
    loop.dataloader_iterator = batches = None
    loop.dataloader_iterator = _PastIsEmpty(kind(loop.dataloader), loop.iter)


class _PastIsEmpty:
    """An iterator whose first items are None, without any work.

    Args:
        iterator (Iterator): Iterator of the items after them.
        num_past (int): How many.
    """

    def __init__(self, iterator: Iterator, num_past: int) -> None:
        self._iterator = iterator
        self._num_past = num_past

    def __iter__(self) -> Iterator:
        return self

    def __next__(self) -> Any:
        if self._num_past > 0:
            self._num_past -= 1
            return None
        return next(self._iterator)
