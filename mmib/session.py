# Copyright (c) mmib contributors. All rights reserved.
"""InfoBatch in a training loop of your own."""
import inspect
import math
import operator
import warnings
from typing import Any, Callable, Dict, Optional, Union

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from .errors import Refusal
from .loader import Dealer, Loader
from .plans import Neyman, Policy, as_policy
from .ranks import World, random_seed, world_of_process
from .run.explain import Explanation
from .run.mean_weight import mean_weight_for
from .run.run import Run
from .scores.compiled import weigh_in_graph
from .scores.table import check_ema
from .scores.weigh import is_transformed, own_norms, weigh_losses
from .scores.worth import VarianceRatio
from .stop import StopSignal
from .stream.schedule import Schedule, check_fractions
from .stream.slots import Slots


class Session:
    """InfoBatch in a training loop of your own.

    The loader delivers each batch with its slots, and :meth:`weigh` weighs the
    losses of these slots:

        >>> session = mmib.Session(dataset, Neyman(ratio=0.6), epochs=90)
        >>> loader = session.loader(64, num_workers=8)
        >>> while session.epoch < 90:
        >>>     for slots, (images, labels) in loader:
        >>>         logits = model(images)
        >>>         losses = F.cross_entropy(logits, labels, reduction='none')
        >>>         session.weigh(losses, slots, logits).mean().backward()

    One pass over the loader is an epoch without the images that are pruned.
    Each index of the dataset is an image.

    With several processes, each process creates a Session with the same
    arguments, and ``batch_size`` counts the samples of one process. Begin
    iterators, and call :meth:`state_dict`, on all ranks.

    Args:
        dataset (Dataset): The dataset, with a length.
        policy (Policy or Callable, optional): Draws the plans. The Session
            copies a Policy. If None, ``Neyman(ratio)``. Defaults to None.
        epochs (int): Passes over the dataset, at least 2.
        delta (float): Fraction of the run after which nothing is pruned.
            Defaults to 0.85.
        start (float): Fraction of the run before which nothing is pruned.
            The first pass is full in any case. Defaults to 0.
        ema (float): Share of the old score in the new one at each visit except
            the first, in [0, 1). Defaults to 0.
        normalize (bool, optional): Whether to divide the weights of a plan by
            their mean. If not, steps of SGD are longer by a factor of 1 / kept
            share. True is advised for optimizers such as Adam, and where
            gradients are clipped. If None, :meth:`decide_normalize` decides,
            which Lightning and the Trainer of Hugging Face call, and other
            loops have False. Defaults to None.
        stream (bool): Whether a single iterator of the loader is the whole
            run, for loops that count iterations. The iterator ends after
            ``epochs`` passes times the ``default_ratio`` of the policy (the
            ``ratio`` of Neyman). Defaults to False.
        shuffle (bool): Whether to shuffle. Defaults to True.
        seed (int, optional): Random seed. If None, all ranks agree on a random
            seed. Defaults to None.
        num_replicas (int, optional): Number of ranks if several processes
            train on the same batches, as in tensor parallelism. All processes
            create a Session. If None, each process is a rank. Defaults to
            None.
        rank (int, optional): Rank of this process, less than
            ``num_replicas``. Required with ``num_replicas``. Defaults to None.
        ratio (float, optional): Steps of the run over steps of the baseline,
            for the default policy. If None, 0.6. Defaults to None.

    Raises:
        Refusal: If an argument has a wrong type or is out of range.
    """

    def __init__(self,
                 dataset: Dataset,
                 policy: Union[Policy, Callable, None] = None,
                 epochs: Optional[int] = None,
                 delta: float = 0.85,
                 start: float = 0.,
                 ema: float = 0.,
                 normalize: Optional[bool] = None,
                 stream: bool = False,
                 shuffle: bool = True,
                 seed: Optional[int] = None,
                 num_replicas: Optional[int] = None,
                 rank: Optional[int] = None,
                 ratio: Optional[float] = None) -> None:
        check_fractions(delta, start, 'of a Session')
        check_ema(ema, 'of a Session')
        size = _length_of(dataset)
        policy = _policy_of(policy, ratio)
        num_epochs = _checked_epochs(epochs)
        schedule = _schedule_of(size, stream, policy, num_epochs, delta, start)
        if policy.prunes and schedule.prunes_nothing:
            raise Refusal(
                'Nothing would be pruned: annealing begins after '
                f'{schedule.annealing_from / size:.3g} of '
                f'{schedule.length / size:.3g} passes, and the first pass is '
                'full. Give the Session more `epochs`, or raise `delta`.')
        annealing = schedule.length - schedule.annealing_from
        if policy.prunes and delta < 1 and annealing == 0:
            _warn(f'the last epoch is pruned, because `delta={delta:g}` of '
                  f'{num_epochs} `epochs` is rounded to all of them: give the '
                  'Session 4 `epochs` or more, or from 3 on a lower `delta`, '
                  'so that the run ends with a full epoch. `delta=1` is for '
                  'runs that do not.')
        seed = _checked_seed(seed)
        if seed is None and world_of_process().size > 1:
            seed = random_seed()
        self.dataset = dataset
        self.epochs = None if stream else num_epochs
        """int, optional: Epochs of the run. None with ``stream=True``."""
        self.num_samples = schedule.length if stream else None
        """int, optional: Samples that all ranks together train on in the run,
        with ``stream=True``. None by epochs, where the number depends on the
        plans."""
        self._run = Run(
            np.arange(size), policy, schedule, _warn, shuffle, seed, ema,
            normalize)
        self._dealer = Dealer(self._run, _ranks_of(rank, num_replicas))
        self._stop: Optional[StopSignal] = None

    def loader(self,
               batch_size: int = 1,
               drop_last: bool = False,
               device: Union[torch.device, str, None] = None,
               **arguments: Any) -> Loader:
        """Return a loader, which yields ``(slots, batch)``.

        A Session may have several loaders, such as one for each batch size.
        Their iterators share one stream of slots: an iterator goes on after
        the last batch whose losses were weighed.

        Args:
            batch_size (int): Samples of a batch in this process. Defaults to
                1.
            drop_last (bool): Whether to leave out the samples of an epoch that
                fill no batch. Defaults to False.
            device (torch.device or str, optional): Where to move the tensors
                in dicts, lists and tuples of a batch, and objects that have a
                method ``to``. None leaves them where they are. Defaults to
                None.
            **arguments: Other arguments of ``DataLoader``, such as
                ``num_workers`` and ``collate_fn``.

        Raises:
            Refusal: If an argument decides which samples are delivered, or in
                which order.
        """
        return Loader(self.dataset, self._dealer, batch_size, drop_last,
                      device, arguments)

    def weigh(self,
              losses: Tensor,
              slots: Slots,
              predictions: Optional[Tensor] = None) -> Tensor:
        """Weigh the losses of a batch, and keep them as scores.

        The value of each loss is multiplied by the relative weight of its
        slot, and its gradient by the weight. Therefore the mean of the result
        estimates the mean loss of all images, and the gradient of this mean is
        the gradient of InfoBatch. Reduce the result as you would reduce the
        losses.

        For a part of a batch, give the slots of this part, such as
        ``slots[:8]``. If a slot is weighed twice, its score is the last loss,
        so add the losses of several heads first. A batch that is never weighed
        is skipped. Losses without a gradient, as in validation, are returned
        as they are.

        Args:
            losses (Tensor): Loss of each sample, of shape (B,).
            slots (Slots): The slots of these samples.
            predictions (Tensor, optional): The tensor that the losses are
                computed from, such as logits, of shape (B, ...). Its gradient
                shows what the choice of images is worth. Other terms of the
                loss must not use the same tensor: give the losses and
                ``weigh`` a view, ``logits.view_as(logits)``. If None, losses
                stand in for the norms of gradients. Defaults to None.

        Returns:
            Tensor: Weighted losses of shape (B,), float32 or wider. In
            annealing they have weight 1, and without a gradient they stay.

        Raises:
            Refusal: If losses and slots don't belong together.
        """
        if torch.compiler.is_compiling():
            return self._weigh_compiled(losses, slots, predictions)
        if not isinstance(losses, Tensor):
            raise Refusal(
                f'`losses` are of type {type(losses).__name__}, and must be a '
                'tensor with one number for each sample.')
        if not torch.is_grad_enabled():
            return losses
        if is_transformed(losses):
            raise Refusal(
                'Losses are weighed in the backward pass, which `torch.func` '
                'and forward-mode differentiation leave out: call `weigh` '
                'outside of them, and `backward` on the result.')
        if not losses.requires_grad:
            return losses
        if losses.is_cuda and torch.cuda.is_current_stream_capturing():
            raise _captured()
        if self._dealer.prepared:
            self._dealer.collect()
            self._dealer.prepared.note_eager()
        self._check(losses, slots, predictions)
        log = self._run.log
        if torch._C._current_graph_task_id() != -1 and log.has_visited(slots):
            # A checkpointed function is computed again in the backward pass.
            # The first call has logged the visits, and sees the norms.
            return weigh_losses(losses,
                                *log.weights_again(slots, losses.device))
        if losses.dtype in (torch.float16, torch.bfloat16):
            losses = losses.float()
        if len(slots) == 0:  # Of a mask that chooses nothing.
            return losses
        self._dealer.note_weighed(slots)
        if slots.annealing:
            log.record_unscored(slots.numbers)
            return losses
        entry = log.entry_for(slots, losses)
        if predictions is not None and predictions.requires_grad:
            if log.wants_probe:
                # To compare the gradient at the predictions with the gradient
                # of the losses alone.
                entry.own_norms = own_norms(losses, entry.weights[1],
                                            predictions)
                log.note_probe(entry)
            entry.awaits_norms = True
            predictions.register_hook(entry.note_gradient)
        weighed = entry.weigh(losses)
        log.record(entry)
        return weighed

    def _weigh_compiled(self, losses: Tensor, slots: Slots,
                        predictions: Optional[Tensor]) -> Tensor:
        """Weigh in the graph that is traced, or leave the graph to weigh."""
        weighed = weigh_in_graph(losses, slots, predictions)
        if weighed is None:
            outside = torch.compiler.disable(self.weigh)
            weighed = outside(losses, slots, predictions)
        return weighed

    def _check(self, losses: Tensor, slots: Slots,
               predictions: Optional[Tensor]) -> None:
        if (type(losses) is Tensor and isinstance(slots, Slots)
                and self._dealer.may_weigh(slots)
                and losses.shape == (len(slots), )
                and (predictions is None or type(predictions) is Tensor
                     and predictions.shape[:1] == losses.shape)):
            return
        for name, tensor in (('losses', losses), ('predictions', predictions)):
            if type(tensor).__name__ == 'DTensor':
                raise Refusal(
                    f'`{name}` are a DTensor, of which this rank may have a '
                    f'part: take `{name}.full_tensor()` first, compute what '
                    'follows from it, and give it to `weigh`. Predictions may '
                    'be left out.')
        if losses.dim() != 1:
            raise Refusal(
                f'`losses` have the shape {tuple(losses.shape)}, and need one '
                "number for each sample: compute them with `reduction='none'`,"
                ' and take the mean over what belongs to a sample.')
        if not isinstance(slots, Slots):
            raise Refusal(
                f'`slots` are of type {type(slots).__name__}: hand on the '
                'slots that the loader delivers with a batch, as in `for '
                'slots, batch in loader`.')
        self._dealer.check_slots(slots)
        if len(losses) != len(slots):
            raise Refusal(
                f'{len(losses)} losses were given for {len(slots)} slots. For '
                'a part of a batch give its slots, such as `slots[:8]` or '
                '`slots[mask]`. If `collate_fn` drops samples, let it return '
                'which ones it keeps.')
        if predictions is None:
            return
        if not torch.is_tensor(predictions):
            raise Refusal(
                f'`predictions` are of type {type(predictions).__name__}, and '
                'must be a tensor with a row for each sample.')
        if predictions.shape[:1] != losses.shape:
            raise Refusal(
                f'`predictions` have the shape {tuple(predictions.shape)}, and'
                f' need a row for each of {len(losses)} samples.')

    def num_steps(self, batch_size: int, drop_last: bool = False) -> int:
        """Return the number of batches of a run with ``stream=True``, for
        schedules that count steps. Where a step accumulates several batches,
        divide by their number. By epochs the number depends on the plans.
        Call this method on all ranks.

        Args:
            batch_size (int): Samples of a batch in this process.
            drop_last (bool): Whether the loader leaves out samples that fill
                no batch. Defaults to False.
        """
        if self.num_samples is None:
            raise Refusal(
                'A Session that counts epochs does not know its steps before: '
                'take `progress` for schedules, or make the Session with '
                '`stream=True`.')
        self._dealer.fix_ranks()
        # Fewer samples than ranks are left out.
        samples = self.num_samples // self._run.world.size
        return samples // batch_size if drop_last else -(-samples //
                                                         batch_size)

    def decide_normalize(self,
                         *optimizers: torch.optim.Optimizer,
                         clips: bool = False) -> None:
        """Decide by the optimizers whether weights are divided by their mean,
        unless ``normalize`` was given or a state was loaded. Call this before
        the second epoch.

        Args:
            *optimizers (Optimizer): The optimizers. One that needs weights
                with a mean of 1, which is any other than SGD, is enough.
            clips (bool): Whether gradients are clipped by their norm. Defaults
                to False.
        """
        if self._run.normalize is None:
            kinds = [(type(each).__name__, clips) for each in optimizers]
            self._run.normalize = mean_weight_for(kinds).is_one

    @property
    def epoch(self) -> int:
        """int: Epochs of the run that are over."""
        if not self._run.schedule.by_epoch:
            raise Refusal(
                'A Session with `stream=True` counts no epochs: take one '
                'iterator of the loader, and `progress` for schedules.')
        self._dealer.collect()
        return self._run.epoch - (not self._dealer.is_plan_over)

    @property
    def progress(self) -> float:
        """float: How much of the run is over, in [0, 1], for schedules."""
        self._dealer.collect()
        run, schedule = self._run, self._run.schedule
        if not schedule.by_epoch and self._dealer.is_stream_over:
            return 1.
        # A resumed run may be shorter than before.
        return min(schedule.clock(run.stream.place) / schedule.length, 1.)

    @property
    def wants_to_stop(self) -> bool:
        """bool: Whether SIGTERM or SIGUSR1 asks the run to stop after this
        step. Read the property once after each step, on all ranks, which get
        True after the same step: save then, and end the process with the code
        :data:`mmib.stop.EXIT_CODE`. Where one rank writes the file, the others
        wait for it with ``torch.distributed.barrier()``. The first read
        catches these signals from then on. A second signal, later than the
        first one, ends the process.

        Examples:
            >>> if session.wants_to_stop:
            >>>     torch.save(dict(session=session.state_dict(), ...), path)
            >>>     sys.exit(75)
        """
        if self._stop is None:
            self._stop = StopSignal()
            self._stop.listen()
        if self.progress == 1:
            # What follows the run hears the signals again.
            self._stop.close()
            return False
        return self._stop.after_step()

    @property
    def worth(self) -> VarianceRatio:
        """VarianceRatio: Mean V of the run so far, see :mod:`mmib.worth`. If V
        is below 1, the choice of images can save steps. V is updated at each
        merge of visits, such as at a plan that reads scores and at
        :meth:`state_dict`, and NaN before."""
        return self._run.worth

    @property
    def kept_share(self) -> float:
        """float: Share of the images that the plan in training keeps."""
        self._dealer.collect()
        return self._run.kept_share

    def explain(self, index: int) -> Optional[Explanation]:
        """Explain why the newest plan keeps or leaves out the image of a
        dataset index. None before the first plan. Call this on all ranks.

        Examples:
            >>> print(session.explain(17))
        """
        self._dealer.collect()
        self._dealer.agree_on_rest()
        return self._run.explain(index)

    def __getstate__(self) -> Dict[str, Any]:
        # A copy hears no signals of its own before it asks for them.
        return dict(vars(self), _stop=None)

    def state_dict(self) -> Dict[str, Any]:
        """Return everything that determines the rest of the run, as tensors
        and plain Python values. Call this method on all ranks, which return
        the same state."""
        self._dealer.collect()
        self._dealer.fix_ranks()
        self._dealer.agree_on_rest()
        return self._run.state_dict()

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Resume where :meth:`state_dict` was called, on any number of ranks,
        with any batch size. Begin a new iterator afterwards.

        Args:
            state_dict (dict): The state.

        Raises:
            Refusal: If the state is damaged, or doesn't fit this Session.
        """
        changes = self._run.load_state_dict(state_dict)
        self._dealer.reset()
        if changes:
            _warn(f'the run goes on, and {"; ".join(changes)}.')


def _captured() -> Refusal:
    return Refusal(
        'A CUDA graph that is captured around `weigh` would give each replay '
        'the weights of one batch, and log no visit: capture the model alone, '
        'by `torch.cuda.make_graphed_callables` or `torch.compile(model, '
        "mode='reduce-overhead')`, and call `weigh` outside of the graph.")


def _integer(value: Any) -> int:
    """Return a Python or numpy integer as an int, and -1 for any other
    value."""
    try:
        return operator.index(value)
    except TypeError:
        return -1


def _ranks_of(rank: Any, num_replicas: Any) -> Optional[World]:
    """Return the rank that the user gave, if any."""
    if rank is None and num_replicas is None:
        return None
    own, size = _integer(rank), _integer(num_replicas)
    if not 0 <= own < size:
        raise Refusal('`rank` of a Session is a number from 0 to '
                      f'`num_replicas` - 1, but got `rank={rank!r}` and '
                      f'`num_replicas={num_replicas!r}`.')
    return World(own, size)


def _warn(text: str) -> None:
    """Warn the user, on the first rank."""
    if world_of_process().rank == 0:
        # The warning points at the line of the user's loop.
        inside = __name__.partition('.')[0], 'torch'
        frame, level = inspect.currentframe(), 0
        while frame is not None and frame.f_globals.get(
                '__name__', '').partition('.')[0] in inside:
            frame, level = frame.f_back, level + 1
        warnings.warn(f'InfoBatch: {text}', stacklevel=level + 1)


def _length_of(dataset: Any) -> int:
    """Return the length of a dataset, or refuse a dataset without one."""
    if isinstance(dataset, IterableDataset):
        raise Refusal(
            f'{type(dataset).__name__} is an IterableDataset, which has no '
            'samples to choose from: give the Session a dataset with '
            '`__getitem__` and `__len__`.')
    if isinstance(dataset, DataLoader):
        raise Refusal(
            'The Session got a DataLoader: give the Session the dataset, and '
            'take the batches from `session.loader(batch_size)`.')
    try:
        size = len(dataset)
    except TypeError:
        raise Refusal(
            f'{type(dataset).__name__} has no length: give the Session a '
            'dataset with `__getitem__` and `__len__`.') from None
    if size == 0:
        raise Refusal('The dataset of the Session is empty.')
    return size


def _checked_epochs(epochs: Any) -> int:
    if _integer(epochs) < 2:
        raise Refusal('`epochs` of a Session must be an integer of 2 or more, '
                      'because nothing can be pruned in the first pass, but '
                      f'got {epochs!r}.')
    return _integer(epochs)


def _checked_seed(seed: Any) -> Optional[int]:
    if seed is not None and not 0 <= _integer(seed) < 2**63:
        raise Refusal('`seed` of a Session must be an integer from 0 to 2**63 '
                      f'- 1, but got {seed!r}.')
    return None if seed is None else _integer(seed)


def _policy_of(policy: Union[Policy, Callable, None],
               ratio: Optional[float]) -> Policy:
    if policy is None:
        return Neyman() if ratio is None else Neyman(ratio)
    if ratio is not None:
        raise Refusal('`ratio` of a Session is for the default policy, and '
                      f'`policy` is given: remove `ratio={ratio!r}`, or give '
                      'it to the policy.')
    return as_policy(policy)


def _schedule_of(size: int, stream: bool, policy: Policy, epochs: int,
                 delta: float, start: float) -> Schedule:
    """Return the schedule of a Session."""
    if not stream:
        return Schedule(
            size,
            epochs,
            size,
            delta,
            start,
            by_epoch=True,
            min_gap=epochs * size // 1000)
    ratio = policy.default_ratio
    length = round(ratio * epochs * size)
    if policy.prunes and length < 2 * size:
        raise Refusal(
            f'{ratio:g} of {epochs} `epochs` are {length / size:.2f} passes '
            'over the data, and a Session needs two, because nothing can be '
            'pruned in the first one: give the Session at least '
            f'{math.ceil(2 / ratio)} `epochs`.')
    return Schedule(
        size,
        length,
        1,
        delta,
        start,
        by_epoch=False,
        stream_end=length,
        min_gap=length // 1000)
