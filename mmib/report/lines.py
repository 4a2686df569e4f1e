# Copyright (c) mmib contributors. All rights reserved.
"""The lines of JSON in the log files of a training, which may be damaged."""
import json
import math
import os.path as osp
from typing import Any, Dict, List, Tuple

from ..plan_record import PlanRecord
from ..pruning.form import TEXT, Maybe, check_form, integer, real
from ..state import MEAN_RATIO, PLAN

# Larger than any float32: sums and products of such numbers are finite.
_LARGEST = 1e39
_COUNT = integer(0, 10**15)
# By what tells the lines apart. Older lines lack keys with a question mark.
_FORMS: Dict[str, dict] = {
    'step': {
        'step': _COUNT,
        'iter?': _COUNT,
        'epoch?': _COUNT
    },
    'begins': {
        'iter': _COUNT,
        'max_iters': _COUNT,
        'annealing_iter': _COUNT,
        'pass_length': integer(1),
        'policy': TEXT,
        'run?': Maybe(TEXT),
        'unit?': TEXT,
        'annealing_at?': _COUNT
    },
    'ends': {
        'iter': _COUNT,
        'saved_iters': real(-math.inf),
        'variance_ratio?': MEAN_RATIO,
        'visits?': Maybe(_COUNT),
        'pruned?': Maybe(_COUNT)
    },
    'kept': dict(PLAN, iter=real(), full_equivalent=real())
}


def read_lines(path: str) -> Tuple[List[Any], int]:
    """Read a log file.

    Args:
        path (str): Path of a file that may be missing.

    Returns:
        tuple[list, int]: What :func:`parse` makes of the lines; and the number
        of lines that are damaged.
    """
    if not osp.exists(path):
        return [], 0
    lines, skipped = [], 0
    with open(path, encoding='utf-8', errors='replace') as file:
        for text in file:
            try:
                lines.append(parse(text))
            except (ValueError, TypeError, LookupError, OverflowError,
                    RecursionError):
                # A kill leaves half of the last line.
                skipped += text.endswith('\n')
    return lines, skipped


def parse(text: str) -> Any:
    """Read a line of ``infobatch.jsonl`` or ``scalars.json``: a plan, or a
    dict with ``begins``, with ``ends``, or of scalars, with ``step``. All
    numbers can be drawn.

    Raises:
        Exception: If the line is damaged, or none of these.
    """
    line = json.loads(text)
    name = next((name for name in _FORMS if name in line), '')
    if name == 'kept':
        line = PlanRecord.from_dict(line).to_dict()
    part = line[name] if name in ('begins', 'ends') else line
    form = {
        key.rstrip('?'): of_key
        for key, of_key in _FORMS[name].items()
        if key[-1] != '?' or key[:-1] in part
    }
    check_form(part, form, name, {})
    if name == 'step':
        # A loss may be NaN or infinite.
        part = {
            key: value
            for key, value in line.items()
            if not isinstance(value, float) or math.isfinite(value)
        }
    if not _can_be_drawn(part) or not all(map(str.isprintable, part)):
        raise ValueError
    return line if name != 'kept' else _to_plan(line)


def _can_be_drawn(value: Any) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return all(map(_can_be_drawn, value))
    return not isinstance(value, (int, float)) or abs(value) < _LARGEST


def _to_plan(line: dict) -> PlanRecord:
    record = PlanRecord.from_dict(line)
    histogram = record.histogram
    if histogram and not len(histogram.edges) == len(histogram.all) + 1 > 1:
        raise ValueError
    if record.tiers and not any(size for size, _ in record.tiers):
        raise ValueError
    return record._replace(iter=int(record.iter))
