# Copyright (c) mmib contributors. All rights reserved.
"""The lines of JSON in the log files of a training, which may be damaged."""
import json
import math
import os.path as osp
from typing import Any, List, Tuple

from ..plan_record import PlanRecord
from ..pruning.form import TEXT, Maybe, check_form, integer, real
from ..state import MEAN_RATIO, PLAN

# Larger than any float32: sums and products of such numbers are finite.
_LARGEST = 1e39
_COUNT = integer(0, 10**15)
# By what tells the lines apart.
_FORMS = {
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
    """Read a line of ``infobatch.jsonl`` or ``scalars.json``.

    Args:
        text (str): The line.

    Returns:
        PlanRecord or dict: A plan; or a dict with ``begins``, with ``ends``,
        or of scalars, with ``step``. All that a report uses can be drawn.

    Raises:
        Exception: If the line is damaged, or none of these.
    """
    line = json.loads(text)
    name = next((name for name in _FORMS if name in line), '')
    if name == 'kept':
        line = PlanRecord.from_dict(line).to_dict()
    part = line[name] if name in ('begins', 'ends') else line
    check_form(part, _FORMS[name], name, {})
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
