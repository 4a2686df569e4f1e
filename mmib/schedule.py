# Copyright (c) mmib contributors. All rights reserved.
"""From any schedule to a shorter one.

Pruning makes the passes over the data shorter, so a run saves time only if
its schedule is shorter too.
"""
import copy
import re
from inspect import isclass
from typing import Any, Dict, Iterator, NamedTuple, Tuple

from mmengine.config import Config
from mmengine.registry import LOOPS
from mmengine.runner import IterBasedTrainLoop

from .checks import needs_iterations
from .pruning.budget import DEFAULT_RATIO

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
_ITERATION_FIELD = re.compile(
    r'(?!.*(?:num|max|interval|every|per|warmup)_)(?:.*_)?iters?')
_DURATION_FIELD = re.compile(
    'begin|end|step|period|milestone|iter|T_max|total')


class IterMap(NamedTuple):
    """Where the iterations of a schedule go when its length changes.

    Up to the end of the warm-up they stay. From there to the end they move
    linearly.

    Args:
        old (int): Iterations of the original schedule.
        new (int): Iterations of the new one, at most ``old``.
        warmup (int): Iterations of the warm-up, less than both. Defaults to
            0.
    """

    old: int
    new: int
    warmup: int = 0

    @property
    def scale(self) -> float:
        """float: New iterations for each old one after the warm-up."""
        return (self.new - self.warmup) / (self.old - self.warmup)

    def point(self, iteration: int) -> int:
        """Map a point in time.

        Args:
            iteration (int): Iteration of the original schedule.

        Returns:
            int: Iteration of the new one. What came before the end still
            does.
        """
        if iteration <= self.warmup:
            return iteration
        mapped = self.warmup + round(
            (iteration - self.warmup) * (self.new - self.warmup) /
            (self.old - self.warmup))
        return min(mapped, self.new - 1) if iteration < self.old else mapped

    def duration(self, begin: int, length: int) -> int:
        """Map a span of time.

        Args:
            begin (int): Iteration of the original schedule where it begins.
            length (int): Its iterations.

        Returns:
            int: Its iterations in the new schedule.
        """
        return self.point(begin + length) - self.point(begin)

    def interval(self, interval: int) -> int:
        """Map what is done every so many iterations, so that it is done as
        often as before.

        Args:
            interval (int): Iterations of the original schedule. What is
                never done, by an interval below 1 or longer than the
                schedule, stays.

        Returns:
            int: Iterations of the new one, at least 1.
        """
        if not 0 < interval <= self.old:
            return interval
        if self.old % interval == 0:
            return max(1, self.new // (self.old // interval))
        return min(max(1, round(interval * self.new / self.old)), self.new)


def shorten(cfg: Config, ratio: float = DEFAULT_RATIO) -> Config:
    """Shorten the schedule of a config, and change nothing else.

    Everything that names an iteration moves with the end of the training:
    schedulers, validation, checkpoints and hooks. A warm-up keeps its length:
    a linear or constant scheduler that begins at 0, rises and ends in the
    first quarter of the training (and in the first half of the shorter one).
    What counts validations, such as a patience, stays, because their number
    stays. No data is read.

    Args:
        cfg (Config): A config with a schedule based on iterations. It stays
            as it is.
        ratio (float): Share of the iterations to run, in (0, 1]. With 1 the
            copy is equal. Defaults to 0.6.

    Returns:
        Config: The shorter copy.

    Raises:
        ValueError: If ``ratio`` is out of range, or if something in the
            config can't be shortened. It names the line to change.

    Examples:
        >>> cfg = Config.fromfile('upernet_r50_4xb4-80k_ade20k-512x512.py')
        >>> shorten(cfg).train_cfg.max_iters
        48000
    """
    if not 0 < ratio <= 1:
        raise ValueError('`ratio` is the share of the iterations to run and '
                         f'must be in (0, 1], but got {ratio}.')
    old = iterations_of(cfg)
    new = max(1, round(old * ratio))

    # Changed in place, entry by entry, so that what a lazy config imported
    # stays lazy in it.
    cfg = copy.deepcopy(cfg)
    schedulers = dict(_schedulers(cfg.get('param_scheduler')))
    iter_map = IterMap(old, new, _warmup(schedulers, old, new))
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


def type_name(node: dict) -> str:
    """Name of a ``type`` that is a class, or a string with or without scope.
    """
    kind = node.get('type')
    return kind.__name__ if isclass(kind) else str(kind).rpartition('.')[-1]


def iterations_of(cfg: Config) -> int:
    """Iterations of a config whose training counts them."""
    train_cfg = cfg.get('train_cfg')
    if train_cfg is None:
        raise ValueError('The config has no training: add `train_cfg = '
                         "dict(type='IterBasedTrainLoop', max_iters=...)`.")
    loop = train_cfg.get('type')
    if isinstance(loop, str):
        loop = LOOPS.get(loop)
    by_iter = (
        issubclass(loop, IterBasedTrainLoop)
        if isclass(loop) else train_cfg.get('by_epoch') is False)
    if (not by_iter or train_cfg.get('max_iters') is None
            or 'max_epochs' in train_cfg):
        raise needs_iterations(f'`train_cfg = {dict(train_cfg)}`')
    return int(train_cfg.max_iters)


def _schedulers(node: Any,
                where: str = 'param_scheduler') -> Iterator[Tuple[str, dict]]:
    """All entries of ``param_scheduler`` by their place in it: it may be one,
    a list, or a dict of either with a key for each optimizer."""
    if node is None:
        return
    if isinstance(node, (list, tuple)):
        for i, entry in enumerate(node):
            yield from _schedulers(entry, f'{where}[{i}]')
    elif not isinstance(node, dict):
        raise ValueError(f'`{where}` must be a config to be converted, but '
                         f'is a {type(node).__name__}.')
    elif 'type' in node:
        yield where, node
    else:
        for name, entry in node.items():
            yield from _schedulers(entry, f'{where}.{name}')


def _warmup(schedulers: Dict[str, dict], old: int, new: int) -> int:
    """Last iteration of the warm-up, 0 without one."""
    ends = [0]
    for scheduler in schedulers.values():
        kind = _SCHEDULERS.get(type_name(scheduler))
        rises = (
            kind == 'Linear' and scheduler.get(
                'start_factor', 1 / 3) < scheduler.get('end_factor', 1)
            or kind == 'Constant' and scheduler.get('factor', 1 / 3) < 1)
        end = scheduler.get('end', old)
        if (rises and scheduler.get('begin', 0) == 0
                and end <= min(old / 4, new / 2)):
            ends.append(end)
    return max(ends)


def _convert_scheduler(scheduler: dict, where: str, iter_map: IterMap) -> None:
    name = type_name(scheduler)
    kind = _SCHEDULERS.get(name)
    if kind is None:
        fields = ', '.join(f'{key}={value}'
                           for key, value in scheduler.items()
                           if _DURATION_FIELD.search(key))
        raise ValueError(
            f'`{where}` has the type {name}, which is none of MMEngine or '
            'MMSegmentation: shorten it by hand and add InfoBatch to the '
            'config as docs/configs.md says. '
            f'Its fields that look like iterations: {fields or "none"}.')
    # It counts validations, which stay as many. MMEngine takes it with
    # `by_epoch=True` alone, and iteration-based training is one epoch.
    if kind == 'ReduceOnPlateau':
        return
    if scheduler.get('by_epoch', True):
        raise ValueError(
            f'`{where}.by_epoch` is True, which is also its default, but the '
            f'training counts iterations: set `{where}.by_epoch=False` and '
            'give its times in iterations.')

    begin, end = scheduler.get('begin', 0), scheduler.get('end', iter_map.old)
    new_begin = iter_map.point(begin)
    new_end = iter_map.point(end)
    length, new_length = end - begin, new_end - new_begin
    # Schedulers reach their last value after `length - 1` steps.
    if new_length < min(length, 2):
        raise ValueError(
            f'`{where}` has {length} iterations, of which {new_length} would '
            'be left: raise `ratio`.')
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
    if kind == 'Exponential' and new_length > 1:
        scheduler['gamma'] **= (length - 1) / (new_length - 1)


def _convert_train_cfg(train_cfg: dict, iter_map: IterMap) -> None:
    train_cfg['max_iters'] = iter_map.new
    # The default of IterBasedTrainLoop is shortened too.
    val_interval = train_cfg.get('val_interval', 1000)
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
            and not hook.get('by_epoch', True)):
        if 'interval' in hook:
            hook['interval'] = iter_map.interval(hook['interval'])
        if 'save_begin' in hook:
            hook['save_begin'] = iter_map.point(hook['save_begin'])
    _convert_iteration_fields(hook, iter_map)


def _convert_iteration_fields(node: dict, iter_map: IterMap) -> None:
    for key, value in node.items():
        if _names_iteration(key) or isinstance(value, (dict, list, tuple)):
            node[key] = _convert_value(value, _names_iteration(key), iter_map)


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


def _names_iteration(field: str) -> bool:
    return _ITERATION_FIELD.fullmatch(str(field)) is not None
