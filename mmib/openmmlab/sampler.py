# Copyright (c) mmib contributors. All rights reserved.
"""The sampler, which gives MMEngine's data loader the slots of a run."""
import sys
from itertools import chain, count, islice
from typing import Any, Iterator, Optional, Sized

from mmengine.dataset import DefaultSampler
from mmengine.registry import DATA_SAMPLERS
from mmengine.runner import BaseLoop

from ..errors import Refusal, check_no_others
from ..ranks import World
from ..run.run import Run
from ..stream.baseline import BaselineOrder
from .data.datasets import unwrap_repeats

# Number of slots that a rank reads from the stream at once, to save time.
_CHUNK = 1024
# Samplers of the baseline, by iterations and by epochs.
BASELINES = ('InfiniteSampler', 'DefaultSampler')


@DATA_SAMPLERS.register_module()
class InfoBatchSampler(DefaultSampler):
    """The sampler of the baseline, without the images that
    :class:`InfoBatchHook` prunes.

    By iterations, the plans of all virtual epochs form one infinite stream of
    slots, as in ``InfiniteSampler``. By epochs, each epoch is one plan, as in
    ``DefaultSampler``, without the pruned images. Full passes have the same
    indices as these samplers with the same seed. Until a hook has connected a
    run, the stream is the stream of ``InfiniteSampler``, and the length is the
    length of ``DefaultSampler``, because a loop by epochs asks for the length.

    Rank ``k`` of ``W`` reads the slots ``k, k + W, ...``, and all ranks ask
    for the next plan at the same request. By iterations, a rest of fewer than
    ``W`` slots is issued together with the next plan. By epochs, slots of the
    plan are repeated until all ranks have equally many.

    A data loader returns batches in the order of its requests, so slots are
    matched with batches by order. By iterations, only the training loop may
    read from the sampler. By epochs, the first iterator of an epoch belongs to
    the loop, and other iterators, such as that of ``PreciseBNHook``, get full
    passes.

    A ``RepeatDataset`` is several passes by iterations, and one by epochs.

    Args:
        dataset (Sized): The dataset.
        shuffle (bool): Whether to shuffle. If not, plans of mmib keep the
            order of the dataset. Defaults to True.
        seed (int, optional): Random seed. If None, all ranks agree on a
            random seed. Defaults to None.

    Raises:
        Refusal: If there is another argument, or the dataset is empty.
    """

    def __init__(self,
                 dataset: Sized,
                 shuffle: bool = True,
                 seed: Optional[int] = None,
                 **unknown: Any) -> None:
        check_no_others(unknown, InfoBatchSampler,
                        '`train_dataloader.sampler`')
        if len(dataset) == 0:
            raise Refusal(
                'InfoBatchSampler got an empty dataset: check `data_root` '
                'and `data_prefix` in `train_dataloader.dataset`.')
        super().__init__(dataset, shuffle, seed)
        self.num_indices = len(dataset)
        """int: Indices of the dataset, with all repeats."""
        self.num_images = len(unwrap_repeats(dataset))
        """int: Indices of the dataset, without repeats."""
        self._run: Optional[Run] = None
        # By iterations: the end of the slots that all ranks have issued, and
        # how many iterators have begun.
        self._cursor = self._num_readers = 0
        # By epochs: the first slot of the epoch, None between epochs.
        self._epoch_begin: Optional[int] = None
        # By epochs: whether the next iterator belongs to the loop.
        self._awaits_loop = False
        # Whether a hook builds this sampler, for a data loader of its own.
        self._built_in_training = _in_training()

    def __iter__(self) -> Iterator[int]:
        """Issue the slots of this rank."""
        # A generator, so nothing runs before the first `next`: torch may call
        # `iter` alone.
        run = self._run
        if run is None or not run.schedule.by_epoch:
            yield from self._stream()
        elif self._awaits_loop:
            self._awaits_loop = False
            yield from run.stream.indices(run.stream.position, run.world,
                                          run.stream.left)
        elif (run.stream.position == self._epoch_begin
              and run.stream.end > self._epoch_begin):
            # Batches of the loop can't be distinguished from other batches.
            raise _other_reader()
        else:
            # A full pass of the baseline.
            yield from super().__iter__()

    def _stream(self) -> Iterator[int]:
        self._num_readers += 1
        if self._num_readers > 1 and self._run is not None:
            raise _other_reader()
        # As `InfiniteSampler`.
        passes = BaselineOrder(self.num_indices, self.shuffle, self.seed)
        indices = chain.from_iterable(
            passes.next(self.num_indices).tolist() for _ in count())
        baseline = islice(indices, self.rank, None, self.world_size)
        while True:
            if self._run is None:
                if not self._built_in_training and _in_training():
                    raise _no_hook()
                self._cursor += self.world_size
                yield next(baseline)
            else:
                stream = self._run.stream
                while stream.end - self._cursor < self.world_size:
                    if not self._run.next_plan():
                        return
                for index in stream.indices(self._cursor, self._run.world,
                                            _CHUNK):
                    self._cursor += self.world_size
                    yield index

    def __len__(self) -> int:
        """Return the slots of a full pass by iterations, and the slots of this
        rank in the epoch by epochs."""
        if self._run is not None and not self._run.schedule.by_epoch:
            return self.num_images
        if self._run is None or self._epoch_begin is None:
            return self.num_samples
        slots = self._run.stream.end - self._epoch_begin
        return -(-slots // self.world_size)

    def connect(self, run: Run) -> None:
        """Issue the slots of a run from now on.

        OpenMMLab's training loop starts its workers before any hook can act.
        These workers already have indices of full passes, and the run draws
        the same full passes.
        """
        if self._num_readers > 1 and not run.schedule.by_epoch:
            raise _other_reader()
        self._run = run
        run.set_ranks(World(self.rank, self.world_size))
        in_flight, self._cursor = self._cursor, run.stream.position
        if run.stream.position > 0:
            # After a resume, the loop reads with a new iterator.
            self._num_readers = 0
        elif in_flight and not run.schedule.by_epoch:
            while run.stream.end < in_flight and run.next_plan():
                continue
            self._cursor = in_flight

    def batch_size(self, full: int) -> int:
        """Return the size of the next batch of this rank, which may be smaller
        than ``full``, the batch size, at the end of an epoch."""
        assert self._run is not None
        stream = self._run.stream
        issued = stream.end if self._run.schedule.by_epoch else self._cursor
        return min(full, (issued - stream.position) // self.world_size)

    def issue_rest(self) -> None:
        """Let the loop read the rest of the open plan of the run."""
        assert self._run is not None
        self._epoch_begin = self._run.stream.position
        self._awaits_loop = True

    def end_epoch(self) -> None:
        """End the epoch."""
        self._epoch_begin, self._awaits_loop = None, False

    def skip(self, num_indices: int) -> None:
        """Do nothing: the state has already moved the position. MMEngine's
        loop calls this where it resumes."""


def _no_hook() -> Refusal:
    return Refusal(
        'InfoBatchSampler is read before any InfoBatchHook, and would '
        'prune nothing. If the config has none: add `custom_hooks = '
        "[dict(type='InfoBatchHook')]`, or set "
        '`train_dataloader.sampler.type` back to '
        f'{BASELINES[0]!r}, or in a run by epochs to {BASELINES[1]!r}. If it '
        'has one: a hook before it reads from `train_dataloader`; let that '
        'hook build a data loader of its own.')


def _other_reader() -> Refusal:
    return Refusal(
        'Something other than the training loop reads from '
        '`train_dataloader`, and InfoBatch would not know which images a batch'
        ' has: let a hook that looks at the data build a data loader of its '
        'own. In a notebook, look at `runner.train_dataloader.dataset[0]`, and'
        ' build the Runner anew.')


def _in_training() -> bool:
    """Return whether a training loop is running in this thread. The message
    hub of MMEngine doesn't show this, because it keeps the stage of a run that
    was interrupted."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == 'run':
            loop = frame.f_locals.get('self')
            if isinstance(loop, BaseLoop) and hasattr(loop, 'max_iters'):
                return True
        frame = frame.f_back
    return False
