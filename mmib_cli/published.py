# Copyright (c) mmib contributors. All rights reserved.
"""What a library publishes of a model in several lengths of training, and what
fewer iterations cost by that."""
import glob
import math
import os.path as osp
import re
from typing import Any, Dict, Iterator, NamedTuple, Optional

from mmengine.fileio import load

# The length in the name of a config: thousands of iterations, or multiples of
# 12 epochs.
_LENGTH = re.compile(r'(?<=[-_])(\d+)([kx])(?=_)')
_METRICS = 'mIoU', 'box AP'


class Published(NamedTuple):
    """A model in several lengths.

    Args:
        metric (str): Name of the metric, such as ``'mIoU'``.
        length (int): The length in the name of the config.
        unit (str): ``'k'`` or ``'x'``, which follows a length.
        values (dict[int, float]): The metric after each length, in increasing
            order. Other lengths are a half and twice :attr:`length`.
    """

    metric: str
    length: int
    unit: str
    values: Dict[int, float]

    def bounds(self, share: float) -> Dict[str, float]:
        """Return what a share of the length costs ``'at most'`` and ``'at
        least'``, as far as this is known, in points of the metric.

        If each doubling of the length gains less than the one before, the
        metric lies on a curve over log2 of the length that gets flatter. The
        loss is then at most the part of the last doubling that the share
        leaves out, and at least the same part of the next doubling.
        """
        found: Dict[str, float] = {}
        part = math.log2(1 / share)
        values = self.values
        lengths = {'at most': self.length // 2, 'at least': self.length}
        for kind, length in lengths.items():
            if length in values and 2 * length in values:
                gain = values[2 * length] - values[length]
                if gain > 0 and (kind == 'at least' or part <= 1):
                    found[kind] = part * gain
        # This model gains more by the second doubling than by the first one.
        if found.get('at least', 0) > found.get('at most', math.inf):
            return {}
        return found

    def sentences(self, share: float) -> str:
        """Return what is published, and what a share of the length costs."""
        text = ', '.join(f'{value:.2f} after {length}{self.unit}'
                         for length, value in self.values.items())
        text = f'This model has a published {self.metric} of {text}.'
        bounds = ' and '.join(f'{kind} about {cost:.1f}'
                              for kind, cost in self.bounds(share).items())
        return text + (
            f' By these figures, {100 * share:.0f} % of the {self.length}'
            f'{self.unit} cost {bounds} points, if each doubling gains less '
            'than the one before.') * bool(bounds)


def published(path: str) -> Optional[Published]:
    """Return what the metafile beside a config publishes of the model, or None
    unless two lengths are known."""
    name = osp.splitext(osp.basename(path))[0]
    found = _LENGTH.search(name)
    if found is None:
        return None
    length, unit = int(found[1]), found[2]
    known: Dict[tuple, float] = {}
    folder = glob.escape(osp.dirname(path))
    for metafile in glob.glob(osp.join(folder, 'metafile.y*ml')):
        try:
            known.update(_values(load(metafile)))
        # A file of the user may hold anything, and a run needs none of it.
        except Exception:
            continue
    for metric in _METRICS:
        values = {}
        halves = [] if length % 2 else [length // 2]
        for each in (*halves, length, 2 * length):
            other = f'{name[:found.start(1)]}{each}{name[found.end(1):]}'
            if (other, metric) in known:
                values[each] = known[other, metric]
        if length in values and len(values) > 1:
            return Published(metric, length, unit, values)
    return None


def _values(metafile: Any) -> Iterator[tuple]:
    """Yield the name of a model with the name of a metric, and the value."""
    models = metafile if isinstance(metafile, list) else metafile['Models']
    for model in models:
        results = model.get('Results') or []
        for result in results if isinstance(results, list) else [results]:
            for metric, value in (result.get('Metrics') or {}).items():
                if metric in _METRICS:
                    yield (model['Name'], metric), float(value)
