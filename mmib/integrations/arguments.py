# Copyright (c) mmib contributors. All rights reserved.
"""Which arguments of a Trainer of transformers fit a Session."""
import math
from typing import Any

from ..errors import Refusal
from ..session import Session


def check_arguments(trainer: Any, session: Session) -> None:
    """Refuse arguments that contradict a Session.

    Args:
        trainer (Trainer): The Trainer.
        session (Session): The Session.
    """
    args = trainer.args
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
    for name in ('eval_strategy', 'save_strategy', 'logging_strategy'):
        if getattr(args, name) == 'epoch':
            raise Refusal(
                f"`{name}='epoch'` would act once, because the run of a "
                f"Session is one epoch of the Trainer: set `{name}='steps'` "
                f'and `{name.partition("_")[0]}_steps`.')
    for name, value, hint in (
        ('train_sampling_strategy', 'random', 'the plans of the Session '
         'decide which samples come, and in which order'),
        ('auto_find_batch_size', False, 'the number of steps follows from the '
         'batch size'),
        ('use_liger_kernel', False, 'its loss is that of a batch'),
    ):
        if getattr(args, name, value) != value:
            raise Refusal(f'`{name}={getattr(args, name)!r}` does not work '
                          f'with a Session, because {hint}: remove it.')
    if args.n_gpu > 1:
        raise Refusal('One process with several GPUs returns losses that '
                      'belong to no sample: start a process for each GPU with '
                      '`torchrun`, or set CUDA_VISIBLE_DEVICES to one.')


def steps_left(args: Any, session: Session) -> int:
    """Return the steps of the optimizer that a Session still has samples for.

    Args:
        args (TrainingArguments): Arguments of the Trainer.
        session (Session): The Session.
    """
    assert session.num_samples is not None
    left = round((1 - session.progress) * session.num_samples)
    # Fewer samples than ranks are left out.
    batches = left // args.world_size / args.train_batch_size
    batches = int(batches) if args.dataloader_drop_last else math.ceil(batches)
    return batches // args.gradient_accumulation_steps
