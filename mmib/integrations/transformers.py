# Copyright (c) mmib contributors. All rights reserved.
"""A Session in the Trainer of Hugging Face's transformers."""
import math
import os
from typing import TYPE_CHECKING, Any, Dict, Iterator, Optional

import torch
from torch import Tensor
from transformers.trainer_utils import (PREFIX_CHECKPOINT_DIR,
                                        get_last_checkpoint)

from ..errors import Refusal
from ..loader import Loader
from ..session import Session
from .losses import sample_losses, shifts_labels

if TYPE_CHECKING:
    from transformers import Trainer
else:
    Trainer = object

STATE_NAME = 'infobatch.pt'  # In each checkpoint.


class InfoBatchTrainerMixin(Trainer):
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

    def __init__(self, *args: Any, session: Session, **kwargs: Any) -> None:
        kwargs.setdefault('train_dataset', session.dataset)
        super().__init__(*args, **kwargs)
        self.session = session
        self._shifts: Optional[bool] = None
        # A model that divides by the labels of all accumulated batches would
        # multiply the gradient by the number of these batches.
        self.model_accepts_loss_kwargs = False
        # The state of the Session knows what comes next.
        self.args.ignore_data_skip = True
        self.args.max_steps = _max_steps(self, self.args, session)

    def get_train_dataloader(self) -> '_Batches':
        """Return the loader of the Session, with the slots in each batch."""
        args = self.args
        return _Batches(
            self.session.loader(
                self._train_batch_size,
                args.dataloader_drop_last,
                collate_fn=self._get_collator_with_removed_columns(
                    self.data_collator, 'training'),
                num_workers=args.dataloader_num_workers,
                pin_memory=args.dataloader_pin_memory,
                persistent_workers=args.dataloader_persistent_workers,
                prefetch_factor=args.dataloader_prefetch_factor))

    def losses(self, outputs: Any, inputs: Dict[str, Any]) -> Tensor:
        """Return the loss of each sample, of shape (B,). Override this for
        other losses than the cross entropy of ``inputs['labels']``."""
        if self._shifts is None:
            self._shifts = shifts_labels(outputs, inputs['labels'])
        return sample_losses(outputs['logits'], inputs['labels'], self._shifts)

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
        loss = self.session.weigh(losses, slots, outputs['logits']).mean()
        return (loss, outputs) if return_outputs else loss

    def log(self, logs: Dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log V and the kept share beside the loss."""
        if 'loss' in logs:
            logs['infobatch/kept_share'] = self.session.kept_share
            if math.isfinite(self.session.worth.value):
                logs['infobatch/variance_ratio'] = self.session.worth.value
        super().log(logs, *args, **kwargs)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        state = self.session.state_dict()  # On all ranks.
        if self.args.should_save:
            folder = f'{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}'
            torch.save(
                state,
                os.path.join(self._get_output_dir(trial), folder, STATE_NAME))

    def train(self, resume_from_checkpoint: Any = None, **kwargs: Any) -> Any:
        """Train, or go on with a checkpoint."""
        if resume_from_checkpoint is True:
            resume_from_checkpoint = get_last_checkpoint(self.args.output_dir)
        if resume_from_checkpoint:
            path = os.path.join(resume_from_checkpoint, STATE_NAME)
            if not os.path.exists(path):
                raise Refusal(
                    f'{path} is missing, because the checkpoint was saved '
                    'without a Session: resume from another one, or train '
                    'without `resume_from_checkpoint`.')
            self.session.load_state_dict(torch.load(path, weights_only=True))
        return super().train(resume_from_checkpoint, **kwargs)


class _Batches:
    """The batches of a loader, each a dict with its slots."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Dict[str, Any]]:
        for slots, batch in self._loader:
            yield dict(batch, slots=slots)


def _max_steps(trainer: Any, args: Any, session: Session) -> int:
    """Return the steps of the run, or refuse what contradicts the Session."""
    if session.num_samples is None:
        raise Refusal('The Trainer counts steps, and this Session counts '
                      'epochs: make the Session with `stream=True`.')
    if trainer.train_dataset is not session.dataset:
        raise Refusal('`train_dataset` of the Trainer is not the dataset of '
                      'the Session: remove `train_dataset`.')
    if trainer.compute_loss_func is not None or trainer.label_smoother:
        raise Refusal(
            '`compute_loss_func` and `label_smoothing_factor` give one loss '
            'for a batch, and a Session needs the loss of each sample: remove '
            'them, and override `losses` of InfoBatchTrainerMixin.')
    for name in ('eval_strategy', 'save_strategy'):
        if getattr(args, name) == 'epoch':
            raise Refusal(
                f"`{name}='epoch'` would act once, because the run of a "
                f"Session is one epoch of the Trainer: set `{name}='steps'` "
                f'and `{name[:4]}_steps`.')
    batches = session.num_samples / (args.train_batch_size * args.world_size)
    batches = int(batches) if args.dataloader_drop_last else math.ceil(batches)
    steps = batches // args.gradient_accumulation_steps
    if args.max_steps > steps:
        raise Refusal(
            f'`max_steps` is {args.max_steps}, and the Session has samples for'
            f' {steps} steps: remove `max_steps`, or give the Session more '
            '`epochs`.')
    return args.max_steps if args.max_steps > 0 else steps
