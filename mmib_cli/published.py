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

import yaml

# The length in the name of a config: thousands of iterations, or multiples of
# 12 epochs.
_LENGTH = re.compile(r'(?<=[-_])(\d+)([kx])(?=_)')
_METRICS = 'mIoU', 'box AP'
# A mean over fewer models says little.
_MIN_MODELS = 4
_YAML = getattr(yaml, 'CSafeLoader', yaml.SafeLoader)


class Published(NamedTuple):
    """A model in several lengths.

    Args:
        metric (str): Name of the metric, such as ``'mIoU'``.
        length (int): The length in the name of the config.
        unit (str): ``'k'`` or ``'x'``, which follows a length.
        values (dict[int, float]): The metric after each length, in increasing
            order. Other lengths are a half and twice :attr:`length`.
        dataset (str): Name of the dataset, such as ``'ADE20K'``.
        gains (dict[int, list[float]]): What each model of the library on the
            dataset gains if its length is doubled, by that length.
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
        bounds = self.bounds(share)
        if not bounds:
            return text
        costs = [f'{kind} about {bounds[kind]:.1f} points' for kind in bounds]
        # The mean of the other bound would be over different models.
        costs[0] += self._mean(next(iter(bounds)), share)
        return (f'{text} So {100 * share:.0f} % of the {self.length}'
                f'{self.unit} schedule, unpruned, loses '
                f'{" and ".join(costs)}, if each doubling gains less.')

    def _doublings(self) -> Dict[str, int]:
        """Return the length whose doubling gives each bound."""
        return {'at most': self.length // 2, 'at least': self.length}

    def _mean(self, kind: str, share: float) -> str:
        """Return the mean of a bound over the models on the dataset: the
        published figures of one model are two runs, which differ by chance
        too."""
        gains = self.gains.get(self._doublings()[kind], ())
        if len(gains) < _MIN_MODELS or fmean(gains) <= 0:
            return ''
        mean = math.log2(1 / share) * fmean(gains)
        return f' (mean of {len(gains)} models on {self.dataset}: {mean:.1f})'


class _Series(NamedTuple):
    """What is published of a model in all lengths, without the lengths."""

    model: str
    unit: str
    metric: str
    dataset: str


_Values = Dict[_Series, Dict[int, float]]


def published(path: str) -> Optional[Published]:
    """Return what the metafile beside a config publishes of the model, with
    the gains of other models by the metafiles of other folders in a folder
    ``configs``. Return None unless two lengths of the model are known."""
    found = _split(osp.splitext(osp.basename(path))[0])
    if found is None:
        return None
    model, length, unit = found
    folder = osp.dirname(osp.abspath(path))
    own = _read_metafiles(glob.escape(folder))
    for metric in _METRICS:
        for series, values in own.items():
            if series[:3] != (model, unit, metric):
                continue
            values = {
                each: values[each]
                for each in sorted(values)
                if each in (length, 2 * length) or 2 * each == length
            }
            if length in values and len(values) > 1:
                parent = osp.dirname(folder)
                # Other folders may be anybody's.
                models = own if osp.basename(parent) != 'configs' else (
                    _read_metafiles(osp.join(glob.escape(parent), '*')))
                return Published(metric, length, unit, values, series.dataset,
                                 _gains(series, models))
    return None


def _split(name: str) -> Optional[Tuple[str, int, str]]:
    """Split the name of a model into the name with ``*`` instead of its
    length, the length and the unit."""
    found = _LENGTH.search(name)
    if found is None:
        return None
    model = f'{name[:found.start(1)]}*{name[found.end(1):]}'
    return model, int(found[1]), found[2]


def _gains(series: _Series, models: _Values) -> Dict[int, List[float]]:
    """Return what each model on the dataset gains if its length is doubled, by
    that length."""
    gains: Dict[int, List[float]] = defaultdict(list)
    for other, values in models.items():
        if series.dataset and other[1:] == series[1:]:
            for length in values:
                if 2 * length in values:
                    gains[length].append(values[2 * length] - values[length])
    return gains


def _read_metafiles(folders: str) -> _Values:
    """Read the metafiles in folders, given by a pattern. Of a model that is
    named twice, the first values stay."""
    found: _Values = defaultdict(dict)
    for path in sorted(glob.glob(osp.join(folders, 'metafile.y*ml'))):
        try:
            with open(path, encoding='utf-8') as file:
                for series, length, value in _results(
                        yaml.load(file, Loader=_YAML)):
                    found[series].setdefault(length, value)
        # A file of the user may hold anything, and a run needs none of it.
        except Exception:
            continue
    return found


def _results(metafile: Any) -> Iterator[Tuple[_Series, int, float]]:
    """Yield the values of a metafile."""
    models = metafile if isinstance(metafile, list) else metafile['Models']
    for model in models:
        split = _split(model['Name'])
        results = model.get('Results') or []
        for result in results if isinstance(results, list) else [results]:
            # A comment took the place of some names in MMSegmentation.
            dataset = result.get('Dataset') or ''
            dataset = '' if dataset.startswith('#') else dataset
            for metric, value in (result.get('Metrics') or {}).items():
                if split and metric in _METRICS:
                    name, length, unit = split
                    series = _Series(name, unit, metric, dataset)
                    yield series, length, float(value)
