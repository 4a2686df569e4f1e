# Copyright (c) mmib contributors. All rights reserved.
"""A Session in PyTorch Lightning."""
import math
import os
import signal
import warnings
from typing import Any, Callable, Dict, Iterator, Optional

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import StochasticWeightAveraging
from lightning.pytorch.utilities import rank_zero_warn
from torch.optim.lr_scheduler import LRScheduler

from ..errors import Refusal
from ..session import Session
from ..stop import SIGNALS, StopSignal


class InfoBatchCallback(Callback):
    """Keep a Session in the checkpoints of a Trainer, and log what it does.

    The loader of the Session is the training dataloader, and ``training_step``
    weighs the losses. Each epoch of the Trainer is an epoch of the Session;
    with ``Session(..., stream=True)`` the run is one epoch of the Trainer.

    At the end of each epoch the callback logs ``infobatch/kept_share``,
    ``infobatch/progress`` and, once it is known,
    ``infobatch/variance_ratio``, which is V of :mod:`mmib.worth`.

    If the Session got no ``normalize``, the optimizers and
    ``gradient_clip_val`` of the Trainer decide.

    At SIGTERM or SIGUSR1, the Trainer saves ``last.ckpt`` after the step,
    beside its other checkpoints, and the process exits with the code 75. Where
    Lightning requeues a job of slurm, it saves and requeues after the step.

    Args:
        session (Session): The Session.

    Raises:
        Refusal: If the Trainer trains for more epochs than the Session,
            overfits on some batches, resumes without the Session, or has
            trained on a batch that wasn't weighed.

    Examples:
        >>> session = mmib.Session(dataset, epochs=90)
        >>> trainer = Trainer(
        >>>     max_epochs=90, callbacks=[InfoBatchCallback(session)])
        >>> trainer.fit(model, session.loader(64, num_workers=8))
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self._trains = False  # And doesn't validate a checkpoint.
        # The progress of the Session before the first batch.
        self._progress: Optional[float] = None

    def setup(self, trainer: Trainer, pl_module: LightningModule,
              stage: str) -> None:
        """Check the arguments of the Trainer before the first step."""
        self._trains = stage == 'fit'
        if not self._trains:
            return
        # The last callback, because others act after the same step too.
        trainer.callbacks = [*trainer.callbacks, _StopsAtSignal(self.session)]
        if trainer.overfit_batches:
            raise Refusal(
                '`overfit_batches` of the Trainer takes the same few batches '
                'in each epoch, from which a Session cannot choose: remove '
                '`overfit_batches`, or train without InfoBatchCallback.')
        averages = any(
            isinstance(each, StochasticWeightAveraging)
            for each in trainer.callbacks)
        has_norms = StochasticWeightAveraging.pl_module_contains_batch_norm(
            pl_module)
        if averages and has_norms:
            _warn('the run ends without the epoch in which '
                  'StochasticWeightAveraging computes the statistics of '
                  'BatchNorm, because the Session has no batches for it. Call '
                  '`torch.optim.swa_utils.update_bn` with a plain '
                  '`DataLoader` after `fit`.')
        epochs, expected = trainer.max_epochs, self.session.epochs or 1
        # -1 is no limit. `fast_dev_run` and `max_steps` end a run early.
        if epochs in (None, -1, expected) or trainer.fast_dev_run:
            return
        text = (f'`max_epochs` of the Trainer is {epochs}, and the Session has'
                f' {expected} (with `stream=True` always 1)')
        if epochs > expected:
            raise Refusal(f'{text}: give both the same number.')
        _warn(f'{text}, so the Trainer ends before the last epochs, in which '
              'nothing is pruned: give both the same number.')

    def on_train_start(self, trainer: Trainer,
                       pl_module: LightningModule) -> None:
        """Check that a checkpoint of the Trainer has the Session."""
        if trainer.global_step and self.session.progress == 0:
            raise Refusal(
                'The checkpoint of the Trainer has no state of the Session: '
                'resume from a checkpoint that was saved with '
                'InfoBatchCallback, or begin a new run.')
        self.session.decide_normalize(
            *trainer.optimizers,
            clips=bool(trainer.gradient_clip_val)
            and trainer.gradient_clip_algorithm != 'value')
        self._progress = self.session.progress
        for config in trainer.lr_scheduler_configs:
            # By epochs the number of steps depends on the plans.
            is_known = self.session.epochs is None and not any(
                number < 0 for number in _counts_of(config.scheduler))
            if config.interval == 'step' and not is_known:
                _warn(f'{type(config.scheduler).__name__} counts steps, and '
                      'their number is not known: '
                      '`estimated_stepping_batches` is -1. Count epochs, '
                      'compute the learning rate from `session.progress`, or '
                      'make the Session with `stream=True`, which has '
                      '`session.num_steps(batch_size)` steps.')

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule,
                           outputs: Any, batch: Any, batch_idx: int) -> None:
        """Check that the first batch with a loss was weighed."""
        if self._progress is None or outputs is None:
            return
        if self.session.progress == self._progress:
            raise Refusal(
                'The Trainer has trained on a batch, and nothing was weighed: '
                'give `fit` a loader of the Session, `session.loader(...)`, '
                'and call `session.weigh` in `training_step`.')
        self._progress = None

    def on_train_epoch_start(self, trainer: Trainer,
                             pl_module: LightningModule) -> None:
        """Check that the epochs of the Trainer are those of the Session."""
        done = trainer.current_epoch
        if self.session.epochs is not None and done != self.session.epoch:
            _warn(f'{done} epochs of the Trainer are over, and '
                  f'{self.session.epoch} of the Session. '
                  '`limit_train_batches` and `max_steps` end an epoch of the '
                  'Trainer early, and a second, longer loader ends epochs of '
                  'the Session. To go on within an epoch, resume from a '
                  'checkpoint that was saved there.')

    def on_train_epoch_end(self, trainer: Trainer,
                           pl_module: LightningModule) -> None:
        """Log what the plan of the epoch was, and warn if no validation was
        due in the epoch."""
        done = trainer.fit_loop.epoch_loop.batch_progress.current.ready
        interval = trainer.val_check_batch
        if (trainer.enable_validation and trainer.check_val_every_n_epoch
                and isinstance(interval, int) and done < interval):
            _warn(f'an epoch has ended after {done} batches without a '
                  f'validation, because `val_check_interval` is {interval}: '
                  'remove it, to validate after each epoch, or set '
                  '`check_val_every_n_epoch=None`, to count batches over '
                  'epochs.')
        values = dict(
            kept_share=self.session.kept_share,
            progress=self.session.progress,
            variance_ratio=self.session.worth.value)
        pl_module.log_dict({
            f'infobatch/{name}': value
            for name, value in values.items() if not math.isnan(value)
        })
        if self.session.progress == 1:
            trainer.should_stop = True  # Also with `max_epochs=-1`.

    def on_train_end(self, trainer: Trainer,
                     pl_module: LightningModule) -> None:
        """Warn if the run ends before the epochs in which nothing is pruned.
        """
        progress, share = self.session.progress, self.session.kept_share
        if progress < 1 and share < 1 and not trainer.fast_dev_run:
            _warn(f'the Trainer ends at {100 * progress:.0f} % of the run of '
                  'the Session, while it prunes: `max_steps`, `max_time` and '
                  'EarlyStopping leave out the last epochs, in which nothing '
                  'is pruned. Let the Trainer end where the Session ends.')

    def teardown(self, trainer: Trainer, pl_module: LightningModule,
                 stage: str) -> None:
        """Leave the callbacks of the Trainer as they were."""
        trainer.callbacks = [
            each for each in trainer.callbacks
            if not isinstance(each, _StopsAtSignal)
        ]

    def state_dict(self) -> Dict[str, Any]:
        """Return the state of the Session. Lightning calls this on all ranks.
        """
        return self.session.state_dict()

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Go on where the checkpoint was saved, also within an epoch."""
        if self._trains:
            self.session.load_state_dict(state_dict)


class _StopsAtSignal(Callback):
    """Save the run after a step and exit, if the cluster asks for this."""

    def __init__(self, session: Session) -> None:
        self.session, self._stop = session, StopSignal()
        self._num_steps = 0
        # Lightning's own handler of each signal.
        self._handlers: Dict[str, Callable] = {}

    def on_train_start(self, trainer: Trainer,
                       pl_module: LightningModule) -> None:
        """Take the place of Lightning's handlers, which act within a step, and
        on one rank alone."""
        for number in SIGNALS:
            handler = signal.getsignal(number)
            if _is_of_lightning(handler):
                self._handlers[number.name] = handler  # type: ignore
                signal.signal(number, signal.SIG_DFL)
        # Not 0 in a run that goes on.
        self._num_steps = trainer.global_step
        self._stop.listen()

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule,
                           outputs: Any, batch: Any, batch_idx: int) -> None:
        """Stop after a step of the optimizer, unless the step ends the run.
        Between two steps, gradients that are accumulated would be lost."""
        before, self._num_steps = self._num_steps, trainer.global_step
        stops, name = self._stop.after_step(), self._stop.name
        if not stops or self._num_steps == before or (self.session.progress
                                                      == 1):
            return
        if name == 'SIGUSR1' and name in self._handlers:
            # On slurm, where Lightning saves and requeues the job.
            self._handlers[name](signal.Signals[name], None)
        else:
            folders = [
                each.dirpath for each in trainer.checkpoint_callbacks
                if getattr(each, 'dirpath', None)
            ]
            path = os.path.join(*folders[:1] or [trainer.default_root_dir],
                                'last.ckpt')
            trainer.save_checkpoint(path)
            rank_zero_warn(f'InfoBatch: the run stops at {name}. '
                           f'`fit(..., ckpt_path={path!r})` goes on.')
        self._stop.leave()

    def on_train_end(self, trainer: Trainer,
                     pl_module: LightningModule) -> None:
        """Wait for signals no more."""
        self._stop.close()


def _is_of_lightning(handler: Any) -> bool:
    """Return whether a signal is handled by Lightning, and by nobody else."""
    parts = getattr(handler, 'signal_handlers', ())
    return bool(parts) and all(
        str(getattr(each, '__module__', '')).startswith('lightning.')
        for each in parts)


def _warn(text: str) -> None:
    warnings.warn(f'InfoBatch: {text}', stacklevel=2)


def _counts_of(value: Any) -> Iterator[int]:
    """Yield the counts in the arguments of a scheduler, also of those that it
    is made of, and of functions as in the schedules of transformers."""
    if type(value) is int:
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _counts_of(each)
    elif isinstance(value, LRScheduler):
        for name, each in vars(value).items():
            if name not in ('optimizer', 'last_epoch'):
                yield from _counts_of(each)
    elif callable(value):
        cells = getattr(value, '__closure__', None) or ()
        keywords = getattr(value, 'keywords', {})
        yield from _counts_of([each.cell_contents for each in cells])
        yield from _counts_of([*keywords.values()])
