# Copyright (c) mmib contributors. All rights reserved.
"""Arguments of a Trainer of transformers, and those of its loader."""
import functools
import math
import warnings
from typing import Any, Dict

from transformers import Trainer
from transformers.trainer_utils import seed_worker

from ..errors import Refusal
from ..session import Session


def check_arguments(trainer: Any, session: Session, mixin: Any) -> None:
    """Refuse arguments that contradict a Session.

    Args:
        trainer (Trainer): The Trainer.
        session (Session): The Session.
        mixin (type): The class of the Trainer that weighs the losses.
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
    own_losses = type(trainer).losses is not mixin.losses
    inherited = super(mixin, trainer).compute_loss.__func__
    if inherited is not Trainer.compute_loss and not own_losses:
        raise Refusal(
            f'`compute_loss` of {type(trainer).__name__} is not called in '
            'training, where a Session needs the loss of each sample: '
            'override `losses` of InfoBatchTrainerMixin.')
    for name in ('eval_strategy', 'save_strategy', 'logging_strategy'):
        if getattr(args, name) == 'epoch':
            raise Refusal(
                f"`{name}='epoch'` would act once, because the run of a "
                f"Session is one epoch of the Trainer: set `{name}='steps'` "
                f'and `{name.partition("_")[0]}_steps`.')
    for name, value, hint in (
        ('train_sampling_strategy', 'random', 'the plans of the Session '
         'decide which samples are delivered, and in which order'),
        ('auto_find_batch_size', False, 'the number of steps follows from the '
         'batch size'),
        ('use_liger_kernel', False, 'its loss is that of a batch'),
    ):
        if getattr(args, name, value) != value:
            raise Refusal(f'`{name}={getattr(args, name)!r}` does not work '
                          f'with a Session, because {hint}: remove it.')
    if trainer.accelerator.split_batches:
        raise Refusal('`split_batches` of `accelerator_config` divides a batch'
                      ' among the processes, and the batch size of a Session '
                      'is that of one process: remove it.')
    if args.n_gpu > 1:
        raise Refusal('One process with several GPUs returns losses that '
                      'belong to no sample: start a process for each GPU with '
                      '`torchrun`, or set CUDA_VISIBLE_DEVICES to one.')
    if max(trainer.get_tp_size(), trainer.get_cp_size(),
           trainer.get_sp_size()) > 1:
        raise Refusal(
            'With tensor, context or sequence parallelism several processes '
            'train on the same samples, and InfoBatchTrainerMixin would give '
            'each its own: remove it, or write a loop of your own with '
            '`num_replicas` and `rank` of the Session.')


def num_steps(args: Any,
              session: Session,
              most: int,
              done: int = 0,
              warns: bool = False) -> int:
    """Return the steps of the optimizer at which the run ends: ``most``, the
    ``max_steps`` of the user, if positive, or else ``done`` steps so far and
    those that the Session still has samples for. With ``warns``, warn if the
    run ends before the Session."""
    assert session.num_samples is not None
    if session.progress == 1 and not done:
        raise Refusal('The Session is over, because it has trained before: '
                      'make a new Session for each Trainer.')
    left = round((1 - session.progress) * session.num_samples)
    # Fewer samples than ranks are left out.
    batches = left // args.world_size / args.train_batch_size
    batches = int(batches) if args.dataloader_drop_last else math.ceil(batches)
    steps = done + batches // args.gradient_accumulation_steps
    if steps < 1 or most > steps:
        raise Refusal(
            f'The Session has samples for {steps} steps, and `max_steps` is '
            f'{most}: remove `max_steps`, give the Session more `epochs`, or '
            'lower the batch size.')
    if warns and 0 < most < steps:
        warnings.warn(
            f'InfoBatch: `max_steps` ends the run after {most} of the {steps} '
            'steps of the Session, without the last part of a run, in which '
            'nothing is pruned: remove `max_steps`, and give the Session '
            'fewer `epochs` for a shorter run.')
    return most if most > 0 else steps


def loader_arguments(trainer: Any) -> Dict[str, Any]:
    """Return the arguments of the training loader, as the Trainer has them."""
    args = trainer.args
    names = ('drop_last', 'in_order', 'multiprocessing_context', 'num_workers',
             'persistent_workers', 'pin_memory', 'prefetch_factor')
    arguments = {name: getattr(args, f'dataloader_{name}') for name in names}
    collate_fn = trainer._get_collator_with_removed_columns(
        trainer.data_collator, 'training')
    worker_init_fn = functools.partial(
        seed_worker,
        num_workers=args.dataloader_num_workers,
        rank=args.process_index)
    return dict(
        arguments,
        batch_size=args.train_batch_size,
        collate_fn=collate_fn,
        worker_init_fn=worker_init_fn)
