# Copyright (c) mmib contributors. All rights reserved.
"""The lines of JSON in the log files of a training. A file may be damaged, or
have lines of something else."""
import json
import math
import os.path as osp
from typing import Any, Callable, Dict, List, Optional, Tuple

Check = Callable[[Any], bool]

# Larger than any float32: sums and products of such numbers are finite.
_LARGEST = 1e39
_MOST = 1e15
_NOT_FINITE = (math.inf, -math.inf)
_MISSING = object()


def read_records(path: str) -> Tuple[List[dict], int]:
    """Read a log file.

    Args:
        path (str): Path of a file that may be missing.

    Returns:
        tuple[list[dict], int]: The records; and the number of lines that
        aren't any.
    """
    if not osp.exists(path):
        return [], 0
    records, skipped = [], 0
    with open(path, encoding='utf-8', errors='replace') as file:
        for text in file:
            record = to_record(text)
            if record is not None:
                records.append(record)
            elif text.endswith('\n'):  # A kill leaves half of the last line.
                skipped += 1
    return records, skipped


def to_record(text: str) -> Optional[dict]:
    """What a line says.

    Args:
        text (str): A line of ``infobatch.jsonl`` or ``scalars.json``.

    Returns:
        dict, optional: Scalars (with ``step``), the beginning of a start
        (``begins``), its end (``ends``) or a plan (``kept``), in which all
        that a report uses is as mmib and MMEngine write it. None if the line
        is nothing of these.
    """
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(line, dict):
        return None
    for name, form in _FORMS.items():
        if name in line:
            part = line[name] if name in ('begins', 'ends') else line
            return line if _fits(part, form) else None
    return None


def _fits(part: Any, form: Dict[str, Check]) -> bool:
    return isinstance(part, dict) and all(
        check(part.get(name, _MISSING))
        for name, check in form.items()) and _has_values(part)


def _has_values(part: dict) -> bool:
    """Whether all numbers can be drawn, and so can the names of metrics. A
    loss may be NaN or infinite."""
    return all(map(str.isprintable, part)) and all(
        _is_number(value) or value in _NOT_FINITE or value != value
        for value in part.values() if isinstance(value, (int, float)))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and abs(value) < _LARGEST


def _is_positive(value: Any) -> bool:
    return _is_number(value) and value > 1 / _LARGEST


def _is_size(value: Any) -> bool:
    return _is_number(value) and 0 <= value < _MOST


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and _is_size(value)


def _is_amount(value: Any) -> bool:
    return _is_count(value) and value > 0


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _are_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(map(_is_size, values))


def _are_tiers(tiers: Any) -> bool:
    return (isinstance(tiers, list)
            and all(_are_sizes(tier) and len(tier) == 2 for tier in tiers)
            and (not tiers or sum(size for size, _ in tiers) > 0))


def _is_ratio(values: Any) -> bool:
    """V, its interval and its limit; what isn't known is None."""
    if not isinstance(values, list) or len(values) != 4:
        return False
    if not all(value is None or _is_number(value) for value in values):
        return False
    value, _, high, _ = values
    return value is None or (_is_positive(value) and
                             (high is None or high >= value))


def _is_histogram(value: Any) -> bool:
    if not isinstance(value, dict) or value.keys() != {
            'edges', 'all', 'kept', 'weighted'
    }:
        return False
    edges = value['edges']
    return isinstance(edges, list) and all(map(_is_number, edges)) and all(
        _are_sizes(value[name]) and len(value[name]) == len(edges) - 1 > 0
        for name in ('all', 'kept', 'weighted'))


def _or_missing(check: Check) -> Check:
    return lambda value: value is _MISSING or check(value)


def _or_none(check: Check) -> Check:
    return lambda value: value is None or value is _MISSING or check(value)


# By what tells them apart, which is looked for in this order.
_FORMS: Dict[str, Dict[str, Check]] = {
    'step': {
        'step': _is_count,
        'iter': _or_missing(_is_count),
        'epoch': _or_missing(_is_count),
    },
    'begins': {
        'iter': _is_count,
        'max_iters': _or_none(_is_count),
        'annealing_iter': _or_none(_is_count),
        'pass_length': _is_amount,
        'policy': _or_missing(_is_text),
        'run': _or_none(_is_text),
    },
    'ends': {
        'iter': _is_count,
        'saved_iters': _is_number,
        'variance_ratio': _or_none(_is_ratio),
        'visits': _or_none(_is_count),
        'pruned': _or_none(_is_count),
    },
    'kept': {
        'iter': _is_size,
        'covered': _is_size,
        'full_equivalent': _is_size,
        'kept': _is_amount,
        'threshold': _is_number,
        'tiers': _or_none(_are_tiers),
        'mean_score': _is_number,
        'variance_ratio': _or_none(_is_ratio),
        'mean_ratio': _or_none(_is_ratio),
        'reliability': _or_none(_is_number),
        'histogram': _or_none(_is_histogram),
    },
}
