# Copyright (c) mmib contributors. All rights reserved.
"""A Session in the Trainer of Hugging Face's transformers."""
import copy
import math
from collections.abc import Mapping
from typing import Any, Dict, Iterator, List

import torch
from torch import Tensor
from transformers import TrainerCallback
from transformers.utils import logging

from ..errors import Refusal
from ..session import Session
from ..stop import StopSignal
from .arguments import check_arguments, loader_arguments, num_steps
from .checkpoints import resume_session, save_session
from .losses import sample_losses, shifts_labels

logger = logging.get_logger(__name__)
# The class after the mixin, for type checkers.
_Trainer: Any = object


class _EpochOfRun(TrainerCallback):
    """Let the epoch in the log go on after a resume. The Trainer, which skips
    no batches there, counts from 0 again."""

    def on_step_end(self, args: Any, state: Any, control: Any,
                    **kwargs: Any) -> None:
        # The run is one epoch.
        state.epoch = state.global_step / state.max_steps


class _StopsAtSignal(TrainerCallback):
    """Save the run after a step and exit, if the cluster asks for this."""

    def __init__(self) -> None:
        self.signal = StopSignal()
        self._stops = self.has_saved = False

    def on_train_begin(self, args: Any, state: Any, control: Any,
                       **kwargs: Any) -> None:
        self.signal = StopSignal()
        self.signal.listen()

    def on_step_end(self, args: Any, state: Any, control: Any,
                    **kwargs: Any) -> None:
        # The last step ends the run anyway.
        self._stops = self.signal.after_step() and (state.global_step
                                                    < state.max_steps)
        if self._stops:
            control.should_save = True
            # A run can't go on from a model alone.
            args.save_only_model = False

    def on_save(self, args: Any, state: Any, control: Any,
                **kwargs: Any) -> None:
        self.has_saved = self._stops


class InfoBatchTrainerMixin(_Trainer):
    """Train with a Session in a Trainer.

    The run of a Session is one epoch of the Trainer, whose ``max_steps``
    follows from the Session, so that schedules end with the run. The loss is
    the mean over samples. V and the kept share are logged beside the loss.
    Checkpoints have the state of the Session, and ``resume_from_checkpoint``
    goes on with the next sample. At SIGTERM or SIGUSR1, the Trainer saves a
    checkpoint after the step, and the process exits with the code 75.

    Args:
        session (Session): A Session with ``stream=True``.
        **kwargs: Arguments of the Trainer.

    Raises:
        Refusal: If an argument of the Trainer contradicts the Session.

    Examples:
        >>> class InfoBatchTrainer(InfoBatchTrainerMixin, Trainer):
        >>>     pass
        >>> InfoBatchTrainer(model, args, session=session).train()
    """

    args: Any
    optimizer: Any

    def __init__(self, *args: Any, session: Session, **kwargs: Any) -> None:
        kwargs.setdefault('train_dataset', session.dataset)
        super().__init__(*args, **kwargs)
        check_arguments(self, session, InfoBatchTrainerMixin)
        self.session = session
        self._shifts: List[bool] = []  # One, once a batch has shown it.
        # A model that divides by the labels of all accumulated batches would
        # multiply the gradient by the number of these batches.
        self.model_accepts_loss_kwargs = False
        self._most_steps = self.args.max_steps
        # The arguments of the user may serve another Trainer.
        self.args = copy.copy(self.args)
        # The state of the Session knows what comes next.
        self.args.ignore_data_skip = True
        self.args.max_steps = num_steps(self.args, session, self._most_steps)
        self._has_weighed = False
        self._slots: Any = None
        # Before the callbacks of the user, which may read the epoch.
        self.callback_handler.callbacks.insert(0, _EpochOfRun())
        self._stop = _StopsAtSignal()
        self.add_callback(self._stop)

    def get_train_dataloader(self) -> Iterator[Dict[str, Any]]:
        """Return the batches of the Session, each with its slots."""
        # A run that is over may be resumed, and trains on nothing.
        if self.session.progress < 1:
            for slots, batch in self.session.loader(**loader_arguments(self)):
                yield dict(batch, slots=slots)

    def losses(self, outputs: Any, inputs: Dict[str, Any]) -> Tensor:
        """Return the loss of each sample, of shape (B,). Override this for
        other losses than the cross entropy of ``inputs['labels']``."""
        labels: Any = inputs.get('labels')
        if len(self._shifts) != 1:
            self._shifts = shifts_labels(outputs, labels)
        if len(self._shifts) == 2:
            # All samples have the loss of the model, which knows its gradient.
            return outputs['loss'].expand(len(labels))
        return sample_losses(outputs['logits'], labels, self._shifts == [True])

    def training_step(self, model: Any, inputs: Dict[str, Any], *args: Any,
                      **kwargs: Any) -> Tensor:
        """Check in the first batch that its losses were weighed, and let the
        optimizer decide on ``normalize`` of the Session."""
        if self._has_weighed:
            return super().training_step(model, inputs, *args, **kwargs)
        # Within wrappers of accelerate.
        optimizer = self.optimizer
        while hasattr(optimizer, 'optimizer'):
            optimizer = optimizer.optimizer
        self.session.decide_normalize(
            optimizer, clips=self.args.max_grad_norm > 0)
        before = self.session.progress
        # A `compute_loss` of the user hands all other inputs to the model.
        inputs = dict(inputs)
        self._slots = inputs.pop('slots', None)
        loss = super().training_step(model, inputs, *args, **kwargs)
        self._slots = None
        self._has_weighed = self.session.progress > before
        if not self._has_weighed:
            raise Refusal(
                f'{type(self).__name__} has trained on a batch whose losses '
                'were not weighed. A Session needs the loss of each sample: '
                'override `losses` of InfoBatchTrainerMixin in the place of '
                '`compute_loss` and `get_train_dataloader`, or call those of '
                'the mixin by `super()`.')
        return loss

    def compute_loss(self,
                     model: Any,
                     inputs: Dict[str, Any],
                     return_outputs: bool = False,
                     **kwargs: Any) -> Any:
        """Weigh the losses of the samples in training."""
        inputs = dict(inputs)
        slots = inputs.pop('slots', self._slots)
        if slots is None:
            return super().compute_loss(model, inputs, return_outputs,
                                        **kwargs)
        outputs = model(**inputs)
        losses = self.losses(outputs, inputs)
        named = outputs if isinstance(outputs, Mapping) else {}  # Not a tuple.
        logits = named.get('logits')
        if not torch.is_tensor(logits) or len(logits) != len(losses):
            logits = None
        loss = self.session.weigh(losses, slots, logits).mean()
        return (loss, outputs) if return_outputs else loss

    def log(self, logs: Dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log V and the kept share beside the loss."""
        if 'loss' in logs:
            logs['infobatch/kept_share'] = self.session.kept_share
            if math.isfinite(self.session.worth.value):
                logs['infobatch/variance_ratio'] = self.session.worth.value
        super().log(logs, *args, **kwargs)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        save_session(self.session, output_dir, self.args.should_save)

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        super()._maybe_log_save_evaluate(*args, **kwargs)
        if self._stop.has_saved:
            logger.warning(
                'InfoBatch: the run stops at %s. '
                '`train(resume_from_checkpoint=True)` goes on.',
                self._stop.signal.name)
            self._stop.signal.leave()

    def train(self, resume_from_checkpoint: Any = None, **kwargs: Any) -> Any:
        """Train, or go on with a checkpoint."""
        done = resume_session(self.session, resume_from_checkpoint,
                              self.args.output_dir)
        # The batch size, or the number of ranks, may have changed.
        self.args.max_steps = num_steps(
            self.args, self.session, self._most_steps, done, warns=True)
        try:
            return super().train(resume_from_checkpoint, **kwargs)
        finally:
            self._stop.signal.close()
