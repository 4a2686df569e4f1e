# Copyright (c) mmib contributors. All rights reserved.
"""From a work folder to the files of its report."""
import os
import os.path as osp
from typing import List, Optional, Sequence

from ..data.verdicts import escaped, read_review
from ..errors import Refusal
from .checkpoint import Checkpoint, read_newest
from .page import render
from .pictures import Gallery, take_pictures
from .read import Run, read_run

# Scores that tell less of the next ones rank images about at random.
_RELIABLE = 0.1
# Of the table of all images. What isn't known is empty.
_COLUMNS = ('path', 'score', 'average', 'visits', 'pruned', 'last_visit')


def write_report(work_dir: str,
                 compare: Optional[str] = None,
                 out: Optional[str] = None,
                 num_images: int = 12,
                 predictions: bool = True,
                 rank_by: str = 'score',
                 reviews: Optional[List[str]] = None) -> List[str]:
    """Write the report of a training. Its config is code, and is run.

    Args:
        work_dir (str): Folder of the training.
        compare (str, optional): Folder of another training.
        out (str, optional): The page. Defaults to ``report.html`` in the
            folder.
        num_images (int): Images of each end of the ranking. Defaults to 12.
        predictions (bool): Whether to predict these images. Defaults to True.
        rank_by (str): ``'score'`` or ``'pixels'``. Defaults to ``'score'``.
        reviews (list[str], optional): Files of reviews, whose images aren't
            shown again.

    Returns:
        list[str]: Paths of the page, and of the table of all images.

    Raises:
        Refusal: If a folder has nothing of a training, a file can't be
            written, or the images can't be ranked.
    """
    judged = {row.image for path in reviews or () for row in read_review(path)}
    run = read_run(work_dir)
    other = read_run(compare) if compare is not None else None
    out = osp.join(work_dir, 'report.html') if out is None else out
    _check_writable(out, reviews or ())
    checkpoint, unread = read_newest(work_dir, run.start)
    gallery, files = Gallery(), [out]
    if checkpoint is not None and checkpoint.images is not None:
        files.append(f'{osp.splitext(out)[0]}_images.csv')
        _check_writable(files[-1], reviews or ())
        gallery = take_pictures(run.config, checkpoint, num_images,
                                predictions, rank_by == 'pixels', judged)
        if rank_by == 'score':
            gallery.young = _unreliable(run)
        names = dict.fromkeys([*_COLUMNS, *checkpoint.images])
        images = checkpoint.images.reindex(columns=list(names))
        images['path'] = images['path'].map(escaped, na_action='ignore')
        # A path may be no text in UTF-8.
        images.to_csv(
            files[-1],
            index_label='image',
            encoding='utf-8',
            errors='backslashreplace')
    elif rank_by != 'score':
        raise Refusal(f'--rank-by {rank_by} needs a checkpoint with a '
                      f'state of InfoBatch. {" ".join(unread)}')
    notes = _notes(run, other, checkpoint, unread) + gallery.notes
    text = render(run, other, notes, checkpoint, gallery, rank_by,
                  [osp.basename(path) for path in files[1:]])
    with open(out, 'w', encoding='utf-8', errors='backslashreplace') as file:
        file.write(text)
    return files


def _check_writable(path: str, reviews: Sequence[str]) -> None:
    if osp.realpath(path) in map(osp.realpath, reviews):
        raise Refusal(f'{path} is a review: give another file with --out.')
    try:
        os.makedirs(osp.dirname(osp.abspath(path)), exist_ok=True)
        open(path, 'a').close()
    except OSError as error:
        raise Refusal(
            f'{path} can\'t be written: {error.strerror}. Give another file '
            'with --out.') from error


def _unreliable(run: Run) -> str:
    """That scores tell too little to rank images, or nothing."""
    known = [p.reliability for p in run.plans if p.reliability is not None]
    if not known or known[-1] >= _RELIABLE:
        return ''
    return ('The ranking may be no better than chance: the correlation of a '
            f'score with the next one of its image is {known[-1]:.2f}. Train '
            'longer, or rank by pixels.')


def _notes(run: Run, other: Optional[Run], checkpoint: Optional[Checkpoint],
           unread: List[str]) -> List[str]:
    """What is missing of a training, and why."""
    notes = list(run.notes)
    if other is not None:
        notes += [f'{other.name}: {note}' for note in other.notes]
    if not run.has_infobatch:
        return [
            *notes, 'This is a training without InfoBatch, so there are '
            'metrics and losses alone. `mmib train CONFIG --score` has '
            'scores of its images.'
        ]
    notes += unread
    if checkpoint is not None and checkpoint.images is None:
        notes.append(f'{checkpoint.name} has no state of InfoBatch, so the '
                     'scores of the images aren\'t known.')
    return notes
