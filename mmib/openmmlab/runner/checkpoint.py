# Copyright (c) mmib contributors. All rights reserved.
"""The state in a checkpoint: sealed with a checksum, and checked when it is
read."""
import os.path as osp
import zlib
from pathlib import Path
from typing import Any, Dict

import torch
from mmengine.dist import is_main_process
from mmengine.hooks import CheckpointHook
from mmengine.runner import Runner
from mmengine.utils import apply_to

from ...errors import damaged

_PLAIN = (str, int, float, bool, type(None))


def save_between_steps(runner: Runner) -> str:
    """Save a checkpoint after a step, from which ``resume`` goes on. Call this
    function on all ranks, in ``after_train_iter``.

    Returns:
        str: Path of the checkpoint.
    """
    hooks = [each for each in runner.hooks if isinstance(each, CheckpointHook)]
    folder = hooks[0].out_dir if hooks else runner.work_dir
    name = f'iter_{runner.iter + 1}.pth'
    # A checkpoint by epochs would begin the epoch again.
    runner.save_checkpoint(folder, name, by_epoch=False)
    path = osp.join(folder, name)
    if is_main_process():
        # As CheckpointHook does, for `find_latest_checkpoint`.
        Path(runner.work_dir, 'last_checkpoint').write_text(path)
    return path


def seal(state: Dict[str, Any]) -> Dict[str, Any]:
    """Add a checksum of all keys, values, types and shapes to a state."""
    return dict(state, checksum=_checksum(state))


def unsealed(state: Any) -> Dict[str, Any]:
    """Return a state after its checksum is checked, if the state has one."""
    if not isinstance(state, dict):
        raise damaged('infobatch', 'is not a dict')
    if 'checksum' in state and state['checksum'] != _checksum(state):
        raise damaged('infobatch', 'is not what mmib has written')
    return state


def _checksum(state: Dict[str, Any]) -> int:
    rest = {key: state[key] for key in state if key != 'checksum'}
    text = apply_to(rest, lambda value: type(value) not in _PLAIN, _describe)
    return zlib.crc32(repr(text).encode())


def _describe(value: Any) -> str:
    """Return a text that is the same in each process and for each version of
    numpy, whatever the policy of a user has kept."""
    if not torch.is_tensor(value):
        return ''
    try:
        checksum = zlib.crc32(value.cpu().numpy().tobytes())
    except (TypeError, RuntimeError):  # numpy has no bfloat16.
        checksum = 0
    return f'{value.dtype} {tuple(value.shape)} {checksum}'
