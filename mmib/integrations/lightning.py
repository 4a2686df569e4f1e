# Copyright (c) mmib contributors. All rights reserved.
"""A Session in PyTorch Lightning."""
import math
import warnings
from typing import Any, Dict

from lightning.pytorch import Callback, LightningModule, Trainer

from ..errors import Refusal
from ..session import Session


class InfoBatchCallback(Callback):
    """Keep a Session in the checkpoints of a Trainer, and log what it does.

    The loader of the Session is the training dataloader, and ``training_step``
    weighs the losses. Each epoch of the Trainer is an epoch of the Session;
    with ``Session(..., stream=True)`` the run is one epoch of the Trainer.

    At the end of each epoch the callback logs ``infobatch/kept_share``,
    ``infobatch/progress`` and, once it is known,
    ``infobatch/variance_ratio``, which is V of :mod:`mmib.worth`.

    Args:
        session (Session): The Session.

    Raises:
        Refusal: If the Trainer trains for more epochs than the Session,
            overfits on some batches, or resumes without the Session.

    Examples:
        >>> session = mmib.Session(dataset, epochs=90)
        >>> trainer = Trainer(
        >>>     max_epochs=90, callbacks=[InfoBatchCallback(session)])
        >>> trainer.fit(model, session.loader(64, num_workers=8))
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self._trains = False  # And doesn't validate a checkpoint.

    def setup(self, trainer: Trainer, pl_module: LightningModule,
              stage: str) -> None:
        """Check the arguments of the Trainer before the first step."""
        self._trains = stage == 'fit'
        if not self._trains:
            return
        if trainer.overfit_batches:
            raise Refusal(
                '`overfit_batches` of the Trainer takes the same few batches '
                'in each epoch, from which a Session cannot choose: remove '
                '`overfit_batches`, or train without InfoBatchCallback.')
        epochs, expected = trainer.max_epochs, self.session.epochs or 1
        # -1 is no limit. `fast_dev_run` and `max_steps` end a run early.
        if epochs in (None, -1, expected) or trainer.fast_dev_run:
            return
        text = (f'`max_epochs` of the Trainer is {epochs}, and the Session has'
                f' {expected} (with `stream=True` always 1)')
        if epochs > expected:
            raise Refusal(f'{text}: give both the same number.')
        warnings.warn(
            f'InfoBatch: {text}, so the Trainer ends before the last epochs, '
            'in which nothing is pruned: give both the same number.')

    def on_train_start(self, trainer: Trainer,
                       pl_module: LightningModule) -> None:
        """Check that a checkpoint of the Trainer has the Session."""
        if trainer.global_step and self.session.progress == 0:
            raise Refusal(
                'The checkpoint of the Trainer has no state of the Session: '
                'resume from a checkpoint that was saved with '
                'InfoBatchCallback, or begin a new run.')

    def on_train_epoch_start(self, trainer: Trainer,
                             pl_module: LightningModule) -> None:
        """Check that the epochs of the Trainer are those of the Session."""
        done = trainer.current_epoch
        if self.session.epochs is not None and done != self.session.epoch:
            warnings.warn(
                f'InfoBatch: {done} epochs of the Trainer are over, and '
                f'{self.session.epoch} of the Session. `limit_train_batches` '
                'and `max_steps` end an epoch of the Trainer early, and a '
                'second, longer loader ends epochs of the Session. To go on '
                'within an epoch, resume from a checkpoint that was saved '
                'there.')

    def on_train_epoch_end(self, trainer: Trainer,
                           pl_module: LightningModule) -> None:
        """Log what the plan of the epoch was."""
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

    def state_dict(self) -> Dict[str, Any]:
        """Return the state of the Session. Lightning calls this on all ranks.
        """
        return self.session.state_dict()

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Go on where the checkpoint was saved, also within an epoch."""
        if self._trains:
            self.session.load_state_dict(state_dict)
