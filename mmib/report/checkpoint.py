# Copyright (c) mmib contributors. All rights reserved.
"""Read what a checkpoint knows of each image, and run nothing in it."""
import glob
import os.path as osp
import re
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, List, Optional, Tuple, Union

import numpy as np
import pandas as pd
import torch

from ..errors import Refusal
from ..openmmlab.console.reporter import RUN_KEY
from ..openmmlab.runner.checkpoint import unsealed
from ..run.states import VERSIONS, to_current

# What MMEngine puts into a checkpoint beside tensors and plain values.
_IGNORED = ('builtins.getattr', 'numpy.dtype', 'numpy.ndarray', 'slice',
            'numpy.core.multiarray._reconstruct',
            'numpy._core.multiarray._reconstruct',
            'numpy.core.multiarray.scalar', 'numpy._core.multiarray.scalar',
            'mmengine.logging.history_buffer.HistoryBuffer')


class _Ignored:
    """A stand-in for an object that a report has no use for. The real
    `getattr` would reach everything."""

    def __init__(self, *args: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        pass


@dataclass
class Checkpoint:
    """What is read of a checkpoint.

    Args:
        path (str): The file.
        images (pd.DataFrame, optional): What is known of each image, by its
            number: its ``score``, the moving average of its losses, and its
            ``last_score``, both NaN before the first visit, its ``visits``,
            how often it was ``pruned``, and the iteration of its
            ``last_visit``, from 1. None without mmib.
        weights (dict[str, Tensor]): Parameters and buffers of the model.
        run (str): Time at which its run began, '' where it isn't known.
        images_checksum (int, optional): Of the images and their order. None
            without mmib.
        state (dict, optional): The state of InfoBatch. None without mmib.
        classes (list[str]): Names of the classes that the network was trained
            on, by number. Empty where they aren't known.
    """

    path: str
    images: Optional[pd.DataFrame] = None
    weights: Dict[str, torch.Tensor] = field(default_factory=dict)
    run: str = ''
    images_checksum: Optional[int] = None
    state: Optional[Dict[str, Any]] = None
    classes: List[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """str: The file's name."""
        return osp.basename(self.path)


def read_newest(work_dir: str,
                run: str = '') -> Tuple[Optional[Checkpoint], List[str]]:
    """Read the newest checkpoint in a folder that can be read, of the run
    that began at the time ``run``, if that is known.

    Returns:
        tuple[Checkpoint, optional, list[str]]: The checkpoint, or None; and a
        sentence on each newer one that can't be read, and on what is missing.
    """
    notes: List[str] = []
    for found in read_all(work_dir, run):
        if isinstance(found, Checkpoint):
            return found, notes
        notes.append(found)
    notes.append('There is no checkpoint '
                 f'{"that can be used" if notes else "yet"}, so the scores of '
                 'the images aren\'t known.')
    return None, notes


def read_all(work_dir: str, run: str = '') -> Iterator[Union[Checkpoint, str]]:
    """Read the checkpoints in a folder, the newest first, with the arguments
    of :func:`read_newest`. Yield a sentence on each that can't be used."""
    for path in _newest_first(work_dir):
        try:
            checkpoint = read_checkpoint(path)
        except Refusal as error:
            yield str(error)
            continue
        if not run or checkpoint.run in ('', run):
            yield checkpoint
        else:
            yield (f'{checkpoint.name} is of another run, begun at '
                   f'{checkpoint.run}, so it isn\'t used.')


def _newest_first(work_dir: str) -> List[str]:
    paths = glob.glob(osp.join(glob.escape(work_dir), '*.pth'))
    numbered = [(int(match.group(1)), path) for path in paths
                if (match := re.search(r'(?:iter|epoch)_(\d+)\.pth$', path))]
    paths = [path for _, path in sorted(numbered, reverse=True)]
    try:
        with open(
                osp.join(work_dir, 'last_checkpoint'),
                encoding='utf-8',
                errors='replace') as file:
            # The folder may have been moved.
            last = osp.join(work_dir, osp.basename(file.read(4096).strip()))
    except OSError:
        return paths
    # After a kill a run goes on from an earlier one than the last.
    return sorted(paths, key=lambda path: path != last)


def read_checkpoint(path: str) -> Checkpoint:
    """Read one checkpoint.

    Raises:
        Refusal: If it can't be read.
    """
    allowed: List[Any] = [(_Ignored, name) for name in _IGNORED]
    name = osp.basename(path)
    try:
        with torch.serialization.safe_globals(allowed):
            # The file may be large: only what is used is read.
            content = torch.load(
                path, map_location='cpu', weights_only=True, mmap=True)
    # A damaged file may raise anything.
    except Exception as error:
        raise Refusal(f'{name} is damaged, or holds more than data, so it '
                      'isn\'t used.') from error
    try:
        # Published weights have no message hub.
        hub = content.get('message_hub') or dict(runtime_info={})
        run = hub['runtime_info'].get(RUN_KEY, '')
        weights = {
            key: value
            for key, value in content['state_dict'].items()
            if torch.is_tensor(value)
        }
    except (LookupError, TypeError, AttributeError) as error:
        raise Refusal(f'{name} is not a checkpoint of a run.') from error
    classes = _classes(content.get('meta'))
    state = content.get('infobatch')
    if state is None:
        return Checkpoint(path, None, weights, run, classes=classes)
    if isinstance(state, dict) and state.get('version') not in VERSIONS:
        raise Refusal(f'{name} has a state of InfoBatch of another version.')
    try:
        checksum = state.get('images_checksum')
        state = to_current(unsealed(state))
        return Checkpoint(path, _images(state['tables']), weights, run,
                          checksum, state, classes)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise Refusal(
            f'{name} has a state of InfoBatch that is damaged.') from error


def _classes(meta: Any) -> List[str]:
    """Return the names of classes in the meta information of a checkpoint,
    where older libraries write them in capitals, or beside the dataset's."""
    found = meta if isinstance(meta, dict) else {}
    found = {**found, **(found.get('dataset_meta') or {})}
    classes = found.get('classes') or found.get('CLASSES')
    if not isinstance(classes, (list, tuple)):
        return []
    return [*map(str, classes)]


def _images(tables: Dict[str, Any]) -> pd.DataFrame:
    known = pd.DataFrame({
        name: tables[name].numpy()
        for name in ('visits', 'pruned', 'last_visit')
    })
    scores = pd.DataFrame({
        'score': tables['averages'].numpy(),
        'last_score': tables['scores'].numpy()
    })
    scores[known.last_visit == 0] = np.nan
    return scores.join(known)
