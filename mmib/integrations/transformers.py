# Copyright (c) mmib contributors. All rights reserved.
"""A Session in the Trainer of Hugging Face's transformers."""
import copy
import functools
import math
import os
from collections.abc import Mapping
from typing import Any, Dict, Iterator, Optional

import torch
from torch import Tensor
from transformers import Trainer, TrainerState
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import (PREFIX_CHECKPOINT_DIR,
                                        get_last_checkpoint, seed_worker)

from ..errors import Refusal
from ..loader import Loader
from ..session import Session
from .arguments import check_arguments, steps_left
from .losses import sample_losses, shifts_labels

STATE_NAME = 'infobatch.pt'  # In each checkpoint.

# The class after the mixin, for type checkers.
_Trainer: Any = object


class InfoBatchTrainerMixin(_Trainer):
    """Train with a Session in a Trainer.

    The run of a Session is one epoch of the Trainer, whose ``max_steps``
    follows from the Session, so that schedules end with the run. The loss is
    the mean over samples. V and the kept share are logged beside the loss.
    Checkpoints have the state of the Session, and ``resume_from_checkpoint``
    goes on with the next sample.

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

    def __init__(self, *args: Any, session: Session, **kwargs: Any) -> None:
        kwargs.setdefault('train_dataset', session.dataset)
        super().__init__(*args, **kwargs)
        check_arguments(self, session)
        inherited = super().compute_loss.__func__
        if inherited is not Trainer.compute_loss and (
                type(self).losses is InfoBatchTrainerMixin.losses):
            raise Refusal(
                f'`compute_loss` of {type(self).__name__} is not called in '
                'training, where a Session needs the loss of each sample: '
                'override `losses` of InfoBatchTrainerMixin.')
        self.session = session
        self._shifts: Optional[bool] = None
        # A model that divides by the labels of all accumulated batches would
        # multiply the gradient by the number of these batches.
        self.model_accepts_loss_kwargs = False
        self._most_steps = self.args.max_steps
        # The arguments of the user may serve another Trainer.
        self.args = copy.copy(self.args)
        # The state of the Session knows what comes next.
        self.args.ignore_data_skip = True
        self._set_max_steps(0)

    def _set_max_steps(self, done: int) -> None:
        """Let the Trainer end with the Session, after so many steps so far."""
        steps, most = done + steps_left(self.args, self.session), (
            self._most_steps)
        if steps < 1 or most > steps:
            raise Refusal(
                f'The Session has samples for {steps} steps, and `max_steps` '
                f'is {most}: remove `max_steps`, give the Session more '
                '`epochs`, or lower the batch size.')
        self.args.max_steps = most if most > 0 else steps

    def get_train_dataloader(self) -> '_Batches':
        """Return the loader of the Session, with the slots in each batch."""
        args = self.args
        return _Batches(
            self.session,
            self.session.loader(
                self._train_batch_size,
                args.dataloader_drop_last,
                collate_fn=self._get_collator_with_removed_columns(
                    self.data_collator, 'training'),
                num_workers=args.dataloader_num_workers,
                worker_init_fn=functools.partial(
                    seed_worker,
                    num_workers=args.dataloader_num_workers,
                    rank=args.process_index),
                multiprocessing_context=(
                    args.dataloader_multiprocessing_context),
                in_order=args.dataloader_in_order,
                pin_memory=args.dataloader_pin_memory,
                persistent_workers=args.dataloader_persistent_workers,
                prefetch_factor=args.dataloader_prefetch_factor))

    def losses(self, outputs: Any, inputs: Dict[str, Any]) -> Tensor:
        """Return the loss of each sample, of shape (B,). Override this for
        other losses than the cross entropy of ``inputs['labels']``."""
        found = [self._shifts]
        if self._shifts is None:
            found = shifts_labels(outputs, inputs.get('labels'))
        if len(found) == 2:
            # All samples have the loss of the model, which knows its gradient.
            return outputs['loss'].expand(len(inputs['labels']))
        self._shifts = found[0] if found else None
        return sample_losses(outputs['logits'], inputs['labels'],
                             bool(self._shifts))

    def compute_loss(self,
                     model: Any,
                     inputs: Dict[str, Any],
                     return_outputs: bool = False,
                     **kwargs: Any) -> Any:
        """Weigh the losses of the samples in training."""
        if 'slots' not in inputs:
            return super().compute_loss(model, inputs, return_outputs,
                                        **kwargs)
        inputs = dict(inputs)
        slots = inputs.pop('slots')
        outputs = model(**inputs)
        losses = self.losses(outputs, inputs)
        logits = outputs.get('logits') if isinstance(outputs,
                                                     Mapping) else None
        if torch.is_tensor(logits) and len(logits) != len(losses):
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

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        state = self.session.state_dict()  # On all ranks.
        if self.args.should_save:
            folder = os.path.join(
                self._get_output_dir(trial),
                f'{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}')
            os.makedirs(folder, exist_ok=True)
            torch.save(state, os.path.join(folder, STATE_NAME))
        super()._save_checkpoint(model, trial)

    def train(self, resume_from_checkpoint: Any = None, **kwargs: Any) -> Any:
        """Train, or go on with a checkpoint."""
        folder = resume_from_checkpoint
        if folder is True:
            folder = get_last_checkpoint(self.args.output_dir)
        if folder:
            path = os.path.join(folder, STATE_NAME)
            if not os.path.exists(path):
                raise Refusal(
                    f'{path} is missing, because the checkpoint was saved '
                    'without a Session: resume from another one, or train '
                    'without `resume_from_checkpoint`.')
            self.session.load_state_dict(torch.load(path, weights_only=True))
            # The batch size, or the number of ranks, may have changed.
            self._set_max_steps(
                TrainerState.load_from_json(
                    os.path.join(folder, TRAINER_STATE_NAME)).global_step)
        elif self.session.progress > 0:
            raise Refusal('The Session has trained before, and a model that '
                          'begins anew needs another one: make a new Session '
                          'and a new Trainer.')
        return super().train(resume_from_checkpoint, **kwargs)


class _Batches:
    """The batches of a loader, each a dict with its slots."""

    def __init__(self, session: Session, loader: Loader) -> None:
        self._session, self._loader = session, loader

    def __iter__(self) -> Iterator[Dict[str, Any]]:
        # A run that is over may be resumed, and trains on nothing.
        if self._session.progress < 1:
            for slots, batch in self._loader:
                yield dict(batch, slots=slots)
