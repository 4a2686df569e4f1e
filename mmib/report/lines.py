# Copyright (c) mmib contributors. All rights reserved.
"""The lines of JSON in the log files of a training."""
import json
import os.path as osp
from typing import Any, List, Tuple

from ..plan_record import PlanRecord

# What the lines with which a training begins and ends have.
_KEYS = dict(
    begins={
        'iter', 'unit', 'max_iters', 'annealing_iter', 'pass_length', 'policy'
    },
    ends={'iter', 'saved_iters', 'variance_ratio', 'visits', 'pruned'})


def read_lines(path: str) -> Tuple[List[Any], int]:
    """Read a log file that may be missing: what :func:`parse` makes of its
    lines, and the number of lines that are damaged."""
    if not osp.exists(path):
        return [], 0
    lines, skipped = [], 0
    with open(path, encoding='utf-8', errors='replace') as file:
        for text in file:
            try:
                lines.append(parse(text))
            except (ValueError, TypeError, LookupError, AttributeError,
                    OverflowError):
                # A kill leaves half of the last line.
                skipped += text.endswith('\n')
    return lines, skipped


def parse(text: str) -> Any:
    """Read a line of ``infobatch.jsonl`` or ``scalars.json``: a plan, or a
    dict with ``begins``, with ``ends``, or of scalars, with ``step``.

    Raises:
        ValueError, TypeError, LookupError, AttributeError or OverflowError:
            If the line is none of these.
    """
    line = json.loads(text)
    if 'kept' in line:
        plan = PlanRecord.from_dict(line)
        return plan._replace(iter=int(plan.iter))
    for name, keys in _KEYS.items():
        if name in line:
            if not keys <= line[name].keys():
                raise ValueError
            return line
    if type(line['step']) is not int:
        raise ValueError
    return line
