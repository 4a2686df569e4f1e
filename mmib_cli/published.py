# Copyright (c) mmib contributors. All rights reserved.
"""What a library publishes of a model in several lengths of training, and what
fewer iterations cost by that."""
import glob
import math
import os.path as osp
import re
from collections import defaultdict
from statistics import fmean
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

from mmengine.fileio import load

# The length in the name of a config: thousands of iterations, or multiples of
# 12 epochs.
_LENGTH = re.compile(r'(?<=[-_])(\d+)([kx])(?=_)')
_METRICS = 'mIoU', 'box AP'
# A mean over fewer models says little.
_MIN_MODELS = 4


class Published(NamedTuple):
    """A model in several lengths.

    Args:
        metric (str): Name of the metric, such as ``'mIoU'``.
        length (int): The length in the name of the config.
        unit (str): ``'k'`` or ``'x'``, which follows a length.
        values (dict[int, float]): The metric after each length, in increasing
            order. Other lengths are a half and twice :attr:`length`.
        dataset (str): Name of the dataset, such as ``'ADE20K'``.
        gains (dict[int, list[float]]): By a length, what twice that length
            gains each model of the library on the dataset.
    """

    metric: str
    length: int
    unit: str
    values: Dict[int, float]
    dataset: str
    gains: Dict[int, List[float]]

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
        for kind, length in self._doublings().items():
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
        bounds = ' and '.join(
            f'{kind} about {cost:.1f} points{self._mean(kind, share)}'
            for kind, cost in self.bounds(share).items())
        return text + (
            f' So {100 * share:.0f} % of the {self.length}'
            f'{self.unit} cost an unpruned run {bounds}, if gains shrink with '
            'the length.') * bool(bounds)

    def _doublings(self) -> Dict[str, int]:
        """Return the length whose doubling gives each bound."""
        return {'at most': self.length // 2, 'at least': self.length}

    def _mean(self, kind: str, share: float) -> str:
        """Return the mean of a bound over the models on the dataset: two runs
        of one model differ by chance too."""
        gains = self.gains.get(self._doublings()[kind], ())
        if len(gains) < _MIN_MODELS or fmean(gains) <= 0:
            return ''
        mean = math.log2(1 / share) * fmean(gains)
        return f' (mean of {len(gains)} models on {self.dataset}: {mean:.1f})'


class _Result(NamedTuple):
    """The value of a metric on a dataset."""

    value: float
    dataset: str


# By the names of a model and of a metric.
_Results = Dict[Tuple[str, str], _Result]


def published(path: str) -> Optional[Published]:
    """Return what the metafile beside a config publishes of the model, or None
    unless two lengths are known."""
    name = osp.splitext(osp.basename(path))[0]
    found = _LENGTH.search(name)
    if found is None:
        return None
    length, unit = int(found[1]), found[2]
    folder = osp.dirname(path)
    results = _results(glob.escape(folder))
    halves = [] if length % 2 else [length // 2]
    for metric in _METRICS:
        values = {
            each: results[key].value
            for each in (*halves, length, 2 * length)
            if (key := (_with_length(found, each), metric)) in results
        }
        if length in values and len(values) > 1:
            dataset = results[name, metric].dataset
            # The library has a folder for each family of models.
            library = _results(osp.join(glob.escape(osp.dirname(folder)), '*'))
            gains = _gains(library, metric, unit, dataset)
            return Published(metric, length, unit, values, dataset, gains)
    return None


def _with_length(found: re.Match, length: int) -> str:
    """Return a name in which a length was found, with another length."""
    name = found.string
    return f'{name[:found.start(1)]}{length}{name[found.end(1):]}'


def _gains(results: _Results, metric: str, unit: str,
           dataset: str) -> Dict[int, List[float]]:
    """Return, by a length, what twice that length gains each model on a
    dataset."""
    gains = defaultdict(list)
    for (name, each), result in results.items():
        found = _LENGTH.search(name)
        if found and (each, found[2], result.dataset) == (metric, unit,
                                                          dataset):
            length = int(found[1])
            longer = results.get((_with_length(found, 2 * length), metric))
            if longer:
                gains[length].append(longer.value - result.value)
    return gains


def _results(folders: str) -> _Results:
    """Return the results in the metafiles of folders, given by a pattern."""
    results: _Results = {}
    for metafile in glob.glob(osp.join(folders, 'metafile.y*ml')):
        try:
            results.update(_read(load(metafile)))
        # A file of the user may hold anything, and a run needs none of it.
        except Exception:
            continue
    return results


def _read(metafile: Any) -> Iterator[tuple]:
    """Yield the names of a model and of a metric, and the result."""
    models = metafile if isinstance(metafile, list) else metafile['Models']
    for model in models:
        results = model.get('Results') or []
        for result in results if isinstance(results, list) else [results]:
            for metric, value in (result.get('Metrics') or {}).items():
                if metric in _METRICS:
                    yield (model['Name'], metric), _Result(
                        float(value), result.get('Dataset', 'its dataset'))
