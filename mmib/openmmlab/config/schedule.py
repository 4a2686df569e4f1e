# Copyright (c) mmib contributors. All rights reserved.
"""From any schedule to a shorter one.

Pruning makes the passes over the data shorter, so a run saves time only if
its schedule is shorter too.
"""
import copy
import re
from typing import Any, Dict, Iterator, NamedTuple, Optional, Tuple

from mmengine.config import Config

from ...errors import Refusal
from ...pruning import Policy
from ..runner.checks import type_name
from .parts import LENGTH_FIELD, check_baseline, length_of

# MMEngine registers a scheduler of each kind for the learning rate, the
# momentum and any parameter.
_KINDS = ('Constant', 'CosineAnnealing', 'CosineRestart', 'Exponential',
          'Linear', 'MultiStep', 'OneCycle', 'Poly', 'ReduceOnPlateau', 'Step')
_SCHEDULERS = {
    kind + suffix: kind
    for kind in _KINDS
    for suffix in ('LR', 'Momentum', 'ParamScheduler')
}
_SCHEDULERS['PolyLRRatio'] = 'Poly'

# `start_iters` is a point in time; `num_iters` and `interval_iters` are not.
_POINT_FIELD = {
    unit: re.compile(r'(?!.*(?:num|max|interval|every|per|warmup)_)(?:.*_)?' +
                     name + 's?')
    for unit, name in (('iteration', 'iter'), ('epoch', 'epoch'))
}
_DURATION_FIELD = re.compile(
    'begin|end|step|period|milestone|iter|T_max|total')


class IterMap(NamedTuple):
    """Where the iterations of a schedule go when its length changes, or the
    epochs of a schedule that counts epochs.

    Iterations of the warm-up, which are less than both lengths, stay. Those
    after the warm-up move linearly. ``unit`` is what the training counts,
    ``'iteration'`` or ``'epoch'``.
    """

    old: int
    new: int
    warmup: int = 0
    unit: str = 'iteration'

    @property
    def scale(self) -> float:
        """float: New iterations for each old one after the warm-up."""
        return (self.new - self.warmup) / (self.old - self.warmup)

    def point(self, iteration: int) -> int:
        """Map a point in time. What came before the end still does."""
        if iteration <= self.warmup:
            return iteration
        mapped = self.warmup + round(
            (iteration - self.warmup) * (self.new - self.warmup) /
            (self.old - self.warmup))
        return min(mapped, self.new - 1) if iteration < self.old else mapped

    def duration(self, begin: int, length: int) -> int:
        """Map the length of a span that begins at an old iteration."""
        return self.point(begin + length) - self.point(begin)

    def interval(self, interval: int) -> int:
        """Map an interval, so that what is done at each interval is done as
        often as before.

        An interval below 1 or longer than the schedule stays: what has it is
        never done.
        """
        if not 0 < interval <= self.old:
            return interval
        if self.old % interval == 0:
            return max(1, self.new // (self.old // interval))
        return min(max(1, round(interval * self.new / self.old)), self.new)


def shorten(cfg: Config, ratio: float = Policy.default_ratio) -> Config:
    """Shorten the schedule of a config, and change nothing else.

    Everything that names an iteration moves with the end of the training:
    schedulers, validation, checkpoints and hooks. A warm-up keeps its length.
    A warm-up is a linear or constant scheduler that begins at 0, rises and
    ends in the first quarter of the training (and in the first half of the
    shorter one). The number of validations stays, and so does what counts
    them, such as a patience. Where a training counts epochs, this holds for
    epochs. No data is read.

    Args:
        cfg (Config): The config of a training. The config stays as it is.
        ratio (float): Share of the iterations, or epochs, to run, in (0, 1].
            With 1 the copy is equal. Defaults to 0.6.

    Returns:
        Config: The shorter copy.

    Raises:
        Refusal: If ``ratio`` is out of range, if the config prunes, or if a
            part of the config has the wrong form or can't be shortened. The
            error names the line to change.

    Examples:
        >>> cfg = Config.fromfile('upernet_r50_4xb4-80k_ade20k-512x512.py')
        >>> shorten(cfg).train_cfg.max_iters
        48000
    """
    check_baseline(cfg)
    if not 0 < ratio <= 1:
        raise Refusal(
            '`ratio` is the share of the iterations to run and must be in '
            f'(0, 1], but got {ratio}: change the argument `ratio`, or '
            '--ratio of the command.')
    unit, old = length_of(cfg)
    new = max(1, round(old * ratio))

    # Changed in place, entry by entry, so that what a lazy config imported
    # stays lazy in it.
    cfg = copy.deepcopy(cfg)
    schedulers = dict(_schedulers(cfg.get('param_scheduler')))
    iter_map = IterMap(old, new, _warmup(schedulers, unit, old, new), unit)
    for where, scheduler in schedulers.items():
        _convert_scheduler(scheduler, where, iter_map)
    _convert_train_cfg(cfg.train_cfg, iter_map)
    hooks = [
        *(cfg.get('default_hooks') or {}).values(),
        *(cfg.get('custom_hooks') or [])
    ]
    for hook in hooks:
        if isinstance(hook, dict):
            _convert_hook(hook, iter_map)
    return cfg


def _schedulers(node: Any,
                where: str = 'param_scheduler') -> Iterator[Tuple[str, dict]]:
    """All schedulers by their place. ``param_scheduler`` may be a scheduler, a
    list, or a dict of either with a key for each optimizer."""
    if node is None:
        return
    if isinstance(node, (list, tuple)):
        for i, entry in enumerate(node):
            yield from _schedulers(entry, f'{where}[{i}]')
    elif not isinstance(node, dict):
        raise Refusal(f'`{where}` must be a config to be converted, but '
                      f'is a {type(node).__name__}.')
    elif 'type' in node:
        yield where, node
    else:
        for name, entry in node.items():
            yield from _schedulers(entry, f'{where}.{name}')


def _warmup(schedulers: Dict[str, dict], unit: str, old: int, new: int) -> int:
    """The last iteration of the warm-up, 0 without a warm-up."""
    ends = [0]
    for scheduler in schedulers.values():
        if _counts(scheduler) != unit:
            continue
        kind = _SCHEDULERS.get(type_name(scheduler))
        end = scheduler.get('end', old)
        if (_rises(scheduler, kind) and scheduler.get('begin', 0) == 0
                and end <= min(old / 4, new / 2)):
            ends.append(end)
    return max(ends)


def _counts(scheduler: dict) -> str:
    return 'epoch' if scheduler.get('by_epoch', True) else 'iteration'


def _rises(scheduler: dict, kind: Optional[str]) -> bool:
    return (kind == 'Linear' and scheduler.get(
        'start_factor', 1 / 3) < scheduler.get('end_factor', 1)
            or kind == 'Constant' and scheduler.get('factor', 1 / 3) < 1)


def _moves(scheduler: dict, where: str, unit: str) -> bool:
    """Whether the times of a scheduler move with the end of the training."""
    name = type_name(scheduler)
    kind = _SCHEDULERS.get(name)
    if kind is None:
        fields = ', '.join(f'{key}={value}'
                           for key, value in scheduler.items()
                           if _DURATION_FIELD.search(key))
        raise Refusal(
            f'`{where}` has the type {name}, which is none of MMEngine or '
            'MMSegmentation: shorten it by hand and add InfoBatch to the '
            'config as docs/reference.md says. '
            f'Its fields that look like iterations: {fields or "none"}.')
    # This scheduler counts validations, which stay as many. MMEngine takes the
    # scheduler with `by_epoch=True` alone: to MMEngine, iteration-based
    # training is one epoch.
    if kind == 'ReduceOnPlateau':
        return False
    if _counts(scheduler) == unit:
        return True
    if unit == 'iteration':
        raise Refusal(
            f'`{where}.by_epoch` is True, which is also its default, but '
            'the training counts iterations: set '
            f'`{where}.by_epoch=False` and give its times in iterations.')
    # A warm-up, which keeps its length.
    if (_rises(scheduler, kind) and scheduler.get('begin', 0) == 0
            and 'end' in scheduler):
        return False
    raise Refusal(
        f'`{where}.by_epoch` is False, but the training counts epochs: '
        f'set `{where}.by_epoch=True`, give its times in epochs, and add '
        '`convert_to_iter_based=True` to have it step by iteration.')


def _convert_scheduler(scheduler: dict, where: str, iter_map: IterMap) -> None:
    if not _moves(scheduler, where, iter_map.unit):
        return
    begin, end = scheduler.get('begin', 0), scheduler.get('end', iter_map.old)
    new_begin = iter_map.point(begin)
    new_end = iter_map.point(end)
    length, new_length = end - begin, new_end - new_begin
    # Schedulers reach their last value after `length - 1` steps.
    if new_length < min(length, 2):
        raise Refusal(
            f'`{where}` has {length} {iter_map.unit}s, of which {new_length} '
            'would be left: raise `ratio`, or --ratio of the command.')
    for field, value in (('begin', new_begin), ('end', new_end)):
        if field in scheduler:
            scheduler[field] = value
    for field in ('T_max', 'total_steps'):
        if scheduler.get(field) is not None:
            scheduler[field] = max(1,
                                   iter_map.duration(begin, scheduler[field]))
    # Milestones are counted from `begin`.
    if 'milestones' in scheduler:
        scheduler['milestones'] = [
            iter_map.duration(begin, milestone)
            for milestone in scheduler['milestones']
        ]
    if 'periods' in scheduler:
        periods = []
        for period in scheduler['periods']:
            periods.append(iter_map.duration(begin, period))
            begin += period
        scheduler['periods'] = periods
    if 'step_size' in scheduler:
        scheduler['step_size'] = max(
            1, round(scheduler['step_size'] * iter_map.scale))
    is_exponential = _SCHEDULERS[type_name(scheduler)] == 'Exponential'
    if is_exponential and new_length > 1:
        scheduler['gamma'] **= (length - 1) / (new_length - 1)


def _convert_train_cfg(train_cfg: dict, iter_map: IterMap) -> None:
    train_cfg[LENGTH_FIELD[iter_map.unit]] = iter_map.new
    # The default of the loop is shortened too.
    val_interval = train_cfg.get('val_interval',
                                 dict(iteration=1000, epoch=1)[iter_map.unit])
    if iter_map.interval(val_interval) != val_interval:
        train_cfg['val_interval'] = iter_map.interval(val_interval)
    if 'val_begin' in train_cfg:
        train_cfg['val_begin'] = iter_map.point(train_cfg['val_begin'])
    if train_cfg.get('dynamic_intervals') is not None:
        train_cfg['dynamic_intervals'] = [
            (iter_map.point(milestone), iter_map.interval(interval))
            for milestone, interval in train_cfg['dynamic_intervals']
        ]


def _convert_hook(hook: dict, iter_map: IterMap) -> None:
    if (type_name(hook) == 'CheckpointHook'
            and _counts(hook) == iter_map.unit):
        if 'interval' in hook:
            hook['interval'] = iter_map.interval(hook['interval'])
        if 'save_begin' in hook:
            hook['save_begin'] = iter_map.point(hook['save_begin'])
    _convert_iteration_fields(hook, iter_map)


def _convert_iteration_fields(node: dict, iter_map: IterMap) -> None:
    for key, value in node.items():
        is_point = _POINT_FIELD[iter_map.unit].fullmatch(str(key)) is not None
        if is_point or isinstance(value, (dict, list, tuple)):
            node[key] = _convert_value(value, is_point, iter_map)


def _convert_value(value: Any, is_iteration: bool, iter_map: IterMap) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(
            _convert_value(item, is_iteration, iter_map) for item in value)
    # What has a type of its own, such as a transform, has other iterations.
    if isinstance(value, dict) and 'type' not in value:
        _convert_iteration_fields(value, iter_map)
    # A bool is an int, and EmptyCacheHook has `after_iter=True`.
    elif is_iteration and type(value) is int:
        return iter_map.point(value)
    return value
