# Copyright (c) mmib contributors. All rights reserved.
"""The state of a Session in the checkpoints of a Trainer of transformers."""
import os
from typing import Any

import torch
from transformers import TrainerState
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import get_last_checkpoint

from ..errors import Refusal
from ..session import Session

STATE_NAME = 'infobatch.pt'  # In the folder of a checkpoint.


def save_session(session: Session, folder: str, is_main: bool) -> None:
    """Save the state of a Session. All ranks call this, and one writes."""
    state = session.state_dict()
    if is_main:
        torch.save(state, os.path.join(folder, STATE_NAME))


def resume_session(session: Session, checkpoint: Any, output_dir: str) -> int:
    """Resume a Session from a checkpoint, ``resume_from_checkpoint`` of the
    Trainer, and return the steps of the optimizer so far."""
    if checkpoint is True:
        checkpoint = get_last_checkpoint(output_dir)
    if not checkpoint:
        if session.progress > 0:
            raise Refusal('The Session has trained before, and a model that '
                          'begins anew needs another one: make a new Session '
                          'and a new Trainer.')
        return 0
    path = os.path.join(checkpoint, STATE_NAME)
    if not os.path.exists(path):
        raise Refusal(
            f'{path} is missing, because the checkpoint was saved without a '
            'Session or with `save_only_model`: resume from another one, or '
            'train without `resume_from_checkpoint`.')
    session.load_state_dict(torch.load(path, weights_only=True))
    return TrainerState.load_from_json(
        os.path.join(checkpoint, TRAINER_STATE_NAME)).global_step
