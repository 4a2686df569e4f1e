# Copyright (c) mmib contributors. All rights reserved.
"""Notes of a report, and its file."""
from typing import List, Optional, Sequence

from .checkpoint import Checkpoint
from .read import Run

# Scores that predict the next ones worse rank images about at random.
_RELIABLE = 0.1


def write_text(path: str, text: str) -> None:
    """Write a page, whose paths may be no text in UTF-8."""
    with open(path, 'w', encoding='utf-8', errors='backslashreplace') as file:
        file.write(text)


def unreliable(run: Run) -> str:
    """Return a sentence if the scores are too unreliable to rank images, else
    nothing."""
    known = [p.reliability for p in run.plans if p.reliability is not None]
    if not known or known[-1] >= _RELIABLE:
        return ''
    return ('The ranking may be no better than chance: the correlation of a '
            f'score with the next one of its image is {known[-1]:.2f}. Train '
            'longer, or rank the images by `mmib rank`.')


def notes_on(run: Run, others: Sequence[Run], checkpoint: Optional[Checkpoint],
             unread: List[str]) -> List[str]:
    """Return sentences on what is missing of a run, and why."""
    notes = list(run.notes)
    for other in others:
        notes += [f'{other.name}: {note}' for note in other.notes]
    if not run.has_infobatch:
        return [
            *notes, 'This is a run without InfoBatch, so there are '
            'metrics and losses alone. `mmib train CONFIG --score` has '
            'scores of its images.'
        ]
    notes += unread
    if checkpoint is not None and checkpoint.images is None:
        notes.append(f'{checkpoint.name} has no state of InfoBatch, so the '
                     'scores of the images aren\'t known.')
    return notes
