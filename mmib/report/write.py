# Copyright (c) mmib contributors. All rights reserved.
"""From a work folder to the files of its report."""
import os
import os.path as osp
from typing import List, Optional

import numpy as np
import pandas as pd

from .checkpoint import Checkpoint, Images, read_newest
from .page import render
from .pictures import Gallery, take_pictures
from .read import ReportError, Run, read_run


def write_report(work_dir: str,
                 compare: Optional[str] = None,
                 out: Optional[str] = None,
                 num_images: int = 12,
                 predictions: bool = True,
                 rank_by: str = 'score') -> List[str]:
    """Write the report of a training. Its config is code, and is run.

    Args:
        work_dir (str): Folder of the training.
        compare (str, optional): Folder of another training.
        out (str, optional): The page. Defaults to ``report.html`` in the
            folder.
        num_images (int): Images of each end of the ranking. Defaults to 12.
        predictions (bool): Whether to predict these images. Defaults to True.
        rank_by (str): ``'score'`` or ``'pixels'``. Defaults to ``'score'``.

    Returns:
        list[str]: Paths of the files.

    Raises:
        ReportError: If a folder has nothing of a training, a file can't be
            written, or the images can't be ranked.
    """
    run = read_run(work_dir)
    other = read_run(compare) if compare is not None else None
    out = osp.join(work_dir, 'report.html') if out is None else out
    _check_writable(out)
    checkpoint, unread = read_newest(work_dir, run.start)
    gallery, files = Gallery(), [out]
    if checkpoint is not None and checkpoint.images is not None:
        gallery = take_pictures(run.config, checkpoint, num_images,
                                predictions, rank_by == 'pixels')
        table = f'{osp.splitext(out)[0]}_images.csv'
        write_table(checkpoint.images, table)
        files.append(table)
    elif rank_by != 'score':
        raise ReportError(f'--rank-by {rank_by} needs a checkpoint with a '
                          f'state of InfoBatch. {" ".join(unread)}')
    notes = _notes(run, other, checkpoint, unread) + gallery.notes
    text = render(run, other, notes, checkpoint, gallery, rank_by,
                  [osp.basename(path) for path in files[1:]])
    # A path may be no text in UTF-8.
    with open(out, 'w', encoding='utf-8', errors='backslashreplace') as file:
        file.write(text)
    return files


def _check_writable(path: str) -> None:
    try:
        os.makedirs(osp.dirname(osp.abspath(path)), exist_ok=True)
        open(path, 'a').close()
    except OSError as error:
        raise ReportError(
            f'{path} can\'t be written: {error.strerror}. Give another file '
            'with --out.') from error


def _notes(run: Run, other: Optional[Run], checkpoint: Optional[Checkpoint],
           unread: List[str]) -> List[str]:
    """What is missing of a training, and why."""
    notes = list(run.notes)
    if other is not None:
        notes += [f'{other.name}: {note}' for note in other.notes]
    if not run.has_infobatch:
        return [
            *notes, 'This is a training without InfoBatch, so there are '
            'metrics and losses alone.'
        ]
    notes += unread
    if checkpoint is not None and checkpoint.images is None:
        notes.append(f'{checkpoint.name} has no state of InfoBatch, so the '
                     'scores of the images aren\'t known.')
    return notes


def write_table(images: Images, path: str) -> None:
    """Write what is known of each image as CSV. ``loss_pixels`` is there if
    the network was asked; what isn't known is empty."""
    size = len(images)
    unknown = pd.array([pd.NA] * size, 'Int64')
    table = pd.DataFrame({
        'image': np.arange(size),
        'path': images.paths or [None] * size,
        'score': images.scores,
        'average': np.nan if images.averages is None else images.averages,
    })
    for name in ('visits', 'pruned', 'last_visit'):
        column = getattr(images, name)
        table[name] = unknown if column is None else column
    if images.losses is not None:
        table['loss_pixels'] = images.losses
    # A path may be no text in UTF-8.
    table.to_csv(
        path, index=False, encoding='utf-8', errors='backslashreplace')
