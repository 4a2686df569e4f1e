# Copyright (c) mmib contributors. All rights reserved.
"""From any schedule to a shorter one.

Pruning makes the passes over the data shorter, so a run saves time only if
its schedule is shorter too.
"""
import copy
import math
import re
from fractions import Fraction
from typing import (Any, Callable, Dict, Iterator, NamedTuple, Optional, Tuple,
                    Union)

from mmengine.config import Config

from ...errors import Refusal
from ...plans import Policy
from ..hook import InfoBatchHook
from ..registry import type_name
from ..runner.mean_weight import decide_mean_weight
from ..step_scale import no_scale
from .outlook import forecast_of
from .parts import LENGTH_FIELD, add_import, check_baseline, length_of

# MMEngine registers a scheduler of each kind for the learning rate, the
# momentum and any parameter. `PolyLRRatio` is one of MMSegmentation.
_SCHEDULER = re.compile(
    '(Constant|CosineAnnealing|CosineRestart|Exponential|Linear|MultiStep|'
    'OneCycle|Poly|ReduceOnPlateau|Step)(LR|LRRatio|Momentum|ParamScheduler)')
# `start_iters` is a point in time; `num_iters` and `interval_iters` are not. A
# hook that computes a schedule has the end of the run as `max_iters`.
_POINT_FIELD = {
    unit: re.compile(
        r'max_' + name + 's?|' +
        r'(?!.*(?:num|max|interval|every|per|profile|warmup)_)(?:.*_)?' +
        name + 's?')
    for unit, name in (('iteration', 'iter'), ('epoch', 'epoch'))
}
# `num_last_epochs` counts back from the end of the run.
_LAST_FIELD = dict(
    iteration=re.compile('(?:.*_)?last_iters'),
    epoch=re.compile('(?:.*_)?last_epochs'))
_DURATION_FIELD = re.compile(
    'begin|end|step|period|milestone|iter|T_max|total')


class IterMap(NamedTuple):
    """Where the iterations of a schedule go when its length changes, or the
    epochs of a schedule that counts epochs.

    Args:
        old (int): The length before.
        new (int): The new length.
        warmup (int): End of the warm-up, less than both lengths. Iterations
            until then stay, and later ones move linearly. Defaults to 0.
        unit (str): What the run counts, ``'iteration'`` or ``'epoch'``.
            Defaults to ``'iteration'``.
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
        """Map a point in time. A point before the end stays before it."""
        if iteration <= self.warmup:
            return iteration
        mapped = self.warmup + round(
            (iteration - self.warmup) * (self.new - self.warmup) /
            (self.old - self.warmup))
        return min(mapped, self.new - 1) if iteration < self.old else mapped

    def duration(self, begin: int, length: int) -> int:
        """Map the length of a span that begins at an old iteration."""
        return self.point(begin + length) - self.point(begin)

    def last(self, length: int) -> int:
        """Map the length of a span that ends with the run."""
        return self.new - self.point(max(self.old - length, 0))

    def interval(self, interval: int) -> int:
        """Map an interval, so that what happens at each interval happens as
        often as before. An interval below 1 or longer than the schedule, with
        which nothing happens, stays."""
        if not 0 < interval <= self.old:
            return interval
        if self.old % interval == 0:
            return max(1, self.new // (self.old // interval))
        return min(max(1, round(interval * self.new / self.old)), self.new)


class EpochIterMap(NamedTuple):
    """Where the iterations of a schedule that counts epochs go when its length
    changes. How many iterations an epoch has isn't known.

    Args:
        ratio (Fraction, optional): New iterations for each old one, on average
            over the run. None where the ratio depends on the losses.
        warmup (int): End of a warm-up that counts iterations, which stays.
            Defaults to 0.
        epochs (IterMap, optional): Where the epochs go. If None, the epochs
            become shorter and stay as many, but the last ones, which are full.
            Defaults to None.
    """

    ratio: Optional[Fraction]
    warmup: int = 0
    epochs: Optional[IterMap] = None

    def point(self, iteration: int) -> int:
        """Map a point in time. A point before the end stays before it.

        Raises:
            Refusal: If epochs of a warm-up stay, so that where the point goes
                depends on their iterations, or if the ratio isn't known.
        """
        if iteration <= self.warmup or self.ratio == 1:
            return iteration
        if self.epochs and self.epochs.warmup:
            raise self._refusal(
                iteration,
                f'how many iterations the {self.epochs.warmup} epochs of its '
                'warm-up have isn\'t known',
                ', or give the warm-up in iterations (`by_epoch=False`)')
        if self.ratio is None:
            raise self._refusal(
                iteration, 'how much shorter the epochs become depends on the '
                'losses')
        # Rounded down, or else the last points would be the end.
        return max(self.warmup, math.floor(iteration * self.ratio))

    def last(self, length: int) -> int:
        """Map the length of a span that ends with the run."""
        if self.epochs is None:
            return length
        old, new, warmup, _ = self.epochs
        return math.ceil(length * (new - warmup) / (old - warmup))

    def interval(self, interval: int) -> int:
        """Map an interval. An interval below 1, with which nothing happens,
        stays. Without a ratio, all intervals stay."""
        if interval < 1 or self.ratio is None:
            return interval
        return max(1, round(interval * self.ratio))

    @staticmethod
    def _refusal(iteration: int, why: str, or_else: str = '') -> Refusal:
        return Refusal(
            f'A hook has the iteration {iteration}, but the run counts '
            f'epochs, and {why}: let the hook count epochs (`begin_epoch` for '
            f'`begin_iter`, `by_epoch=True`){or_else}.')


# By what a hook counts.
_Maps = Dict[str, Union[IterMap, EpochIterMap]]


def shorten(cfg: Config,
            ratio: float = Policy.default_ratio,
            steps: Optional[float] = 1.,
            policy: Optional[dict] = None,
            delta: float = 0.85) -> Config:
    """Shorten the schedule of a config, and by default change nothing else.

    Everything that names an iteration moves with the end of the run:
    schedulers, validation, checkpoints and hooks. A warm-up keeps its length.
    A warm-up is a linear or constant scheduler that begins at 0, rises and
    ends in the first quarter of the run (and in the first half of the shorter
    run). The number of validations stays, and so does what counts them, such
    as a patience. Where a run counts epochs, this holds for epochs, and for
    the iterations of hooks. No data is read.

    Args:
        cfg (Config): The config of a run. The config stays as it is.
        ratio (float): Share of the iterations, or epochs, to run, in (0, 1].
            With 1 the copy is equal. Defaults to 0.6.
        steps (float, optional): How many times as long the steps are where a
            pruned run prunes. If None, as long as in that run: the control
            then has a :class:`~mmib.openmmlab.step_scale.StepScaleHook`,
            unless the optimizer makes the mean weight of a plan 1. Defaults to
            1.
        policy (dict, optional): Config of the policy of that run, for
            ``steps``. If None, ``Neyman`` with the ratio. Defaults to None.
        delta (float): Fraction of that run that prunes. Defaults to 0.85.

    Returns:
        Config: The shorter copy.

    Raises:
        Refusal: If ``ratio`` is out of range, if the config prunes, if a part
            of the config has the wrong form or can't be shortened, or if the
            steps of the policy aren't known. The error names the line to
            change.

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
        if _moves(scheduler, where, unit):
            _convert_scheduler(scheduler, where, iter_map)
    _convert_train_cfg(cfg.train_cfg, iter_map)
    # To MMEngine a run by iterations is one epoch, so that what a hook would
    # do in a later one comes neither in the long run nor in the short one.
    maps: _Maps = {unit: iter_map}
    if unit == 'epoch':
        maps['iteration'] = EpochIterMap(
            Fraction(new, old),
            _warmup(schedulers, 'iteration', math.inf, math.inf), iter_map)
    _convert_hooks(cfg, maps)
    if steps != 1 and new < old:
        policy = policy or dict(type='Neyman', ratio=ratio)
        _scale_steps(cfg, iter_map, steps, policy, delta)
    return cfg


def move_hooks(cfg: Config, ratio: Optional[float]) -> None:
    """Move the iterations that hooks name, in place, where a run counts epochs
    and its epochs become shorter. How many iterations an epoch has isn't
    known, so points move by the mean ratio of the run, and are approximate.

    Args:
        cfg (Config): The config of a run that counts epochs.
        ratio (float, optional): New iterations for each old one, in (0, 1].
            None where the ratio depends on the losses.

    Raises:
        Refusal: If a hook names an iteration and the ratio isn't known.
    """
    schedulers = dict(_schedulers(cfg.get('param_scheduler')))
    _convert_hooks(
        cfg,
        dict(
            iteration=EpochIterMap(
                None if ratio is
                None else Fraction(ratio).limit_denominator(10**6),
                _warmup(schedulers, 'iteration', math.inf, math.inf))))


def _scale_steps(cfg: Config, iter_map: IterMap, scale: Optional[float],
                 policy: dict, delta: float) -> None:
    """Let a shorter config have the steps of a run that prunes."""
    hook = dict(type='StepScaleHook', policy=policy, delta=delta)
    pruned = InfoBatchHook(policy, delta)
    if not pruned.policy.prunes or decide_mean_weight(
            None,
            cfg.get('optim_wrapper') or {}).is_one:
        return
    if scale is not None:
        if not 0 < scale < math.inf:
            raise Refusal('`steps` must be a positive number, but got '
                          f'{scale}.')
        hook['scale'] = scale
    else:
        expected = forecast_of(cfg, pruned).mean_weight
        if expected is None:
            raise no_scale(pruned.policy)
        if expected == 1:
            return
    if iter_map.unit == 'epoch':
        hook['max_epochs'] = iter_map.old
    add_import(cfg, 'mmib')
    cfg.custom_hooks = [*(cfg.get('custom_hooks') or []), hook]


def _schedulers(node: Any,
                where: str = 'param_scheduler') -> Iterator[Tuple[str, dict]]:
    """Yield the place of each scheduler, and the scheduler.
    ``param_scheduler`` may be a scheduler, a list, or a dict of either with a
    key for each optimizer."""
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


def _kind(scheduler: dict) -> Optional[str]:
    """Return the kind of a scheduler, such as ``'Poly'``, None if unknown."""
    match = _SCHEDULER.fullmatch(type_name(scheduler))
    return match and match[1]


def _unit(node: dict) -> str:
    """Return what a scheduler or a CheckpointHook counts."""
    return 'epoch' if node.get('by_epoch', True) else 'iteration'


def _begins_rising(scheduler: dict) -> bool:
    """Return whether a scheduler rises from the beginning of the run on, as a
    warm-up does."""
    kind, get = _kind(scheduler), scheduler.get
    rises = (
        kind == 'Linear' and get('start_factor', 1 / 3) < get('end_factor', 1)
        or kind == 'Constant' and get('factor', 1 / 3) < 1)
    return rises and get('begin', 0) == 0


def _warmup(schedulers: Dict[str, dict], unit: str, old: float,
            new: float) -> int:
    """Return the last iteration of the warm-up, 0 without a warm-up."""
    ends = [
        scheduler.get('end', old) for scheduler in schedulers.values()
        if _unit(scheduler) == unit and _begins_rising(scheduler)
    ]
    last = min(old / 4, new / 2)
    return max([end for end in ends if end <= last and end < math.inf],
               default=0)


def _moves(scheduler: dict, where: str, unit: str) -> bool:
    """Return whether the times of a scheduler move with the end of the run."""
    kind = _kind(scheduler)
    if kind is None:
        fields = ', '.join(f'{key}={value}'
                           for key, value in scheduler.items()
                           if _DURATION_FIELD.search(key))
        raise Refusal(
            f'`{where}` has the type {type_name(scheduler)}, which is none of '
            'MMEngine or MMSegmentation: shorten it by hand and add InfoBatch '
            'to the config as `help(mmib.InfoBatchHook)` shows. '
            f'Its fields that look like iterations: {fields or "none"}.')
    # This scheduler counts validations, which stay as many. MMEngine takes the
    # scheduler only with `by_epoch=True`: to MMEngine, iteration-based
    # training is one epoch.
    if kind == 'ReduceOnPlateau':
        return False
    if _unit(scheduler) == unit:
        return True
    if unit == 'iteration':
        raise Refusal(
            f'`{where}.by_epoch` is True, which is also its default, but '
            'the run counts iterations: set '
            f'`{where}.by_epoch=False` and give its times in iterations.')
    # A warm-up by iterations keeps its length.
    if _begins_rising(scheduler) and 'end' in scheduler:
        return False
    raise Refusal(
        f'`{where}.by_epoch` is False, but the run counts epochs: '
        f'set `{where}.by_epoch=True`, give its times in epochs, and add '
        '`convert_to_iter_based=True` to have it step by iteration.')


def _convert_scheduler(scheduler: dict, where: str, iter_map: IterMap) -> None:
    begin, end = scheduler.get('begin', 0), scheduler.get('end', iter_map.old)
    new_begin, new_end = iter_map.point(begin), iter_map.point(end)
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
    if _kind(scheduler) == 'Exponential' and new_length > 1:
        scheduler['gamma'] **= (length - 1) / (new_length - 1)


def _convert_train_cfg(train_cfg: dict, iter_map: IterMap) -> None:
    train_cfg[LENGTH_FIELD[iter_map.unit]] = iter_map.new
    # The default of the loop is shortened too.
    interval = train_cfg.get('val_interval',
                             1 if iter_map.unit == 'epoch' else 1000)
    if iter_map.interval(interval) != interval:
        train_cfg['val_interval'] = iter_map.interval(interval)
    if 'val_begin' in train_cfg:
        train_cfg['val_begin'] = iter_map.point(train_cfg['val_begin'])
    if train_cfg.get('dynamic_intervals') is not None:
        train_cfg['dynamic_intervals'] = [
            (iter_map.point(milestone), iter_map.interval(interval))
            for milestone, interval in train_cfg['dynamic_intervals']
        ]


def _convert_hooks(cfg: Config, maps: _Maps) -> None:
    for hook in (*(cfg.get('default_hooks') or {}).values(),
                 *(cfg.get('custom_hooks') or [])):
        if isinstance(hook, dict):
            _convert_hook(hook, maps)


def _convert_hook(hook: dict, maps: _Maps) -> None:
    iter_map = maps.get(_unit(hook))
    if type_name(hook) == 'CheckpointHook' and iter_map:
        if 'interval' in hook:
            hook['interval'] = iter_map.interval(hook['interval'])
        if 'save_begin' in hook:
            hook['save_begin'] = iter_map.point(hook['save_begin'])
    if type_name(hook) == 'YOLOXModeSwitchHook' and 'epoch' in maps:
        # The default of MMDetection's hook is shortened too.
        if maps['epoch'].last(15) != 15:
            hook.setdefault('num_last_epochs', 15)
    _move_points(hook, maps)


def _move_points(node: dict, maps: _Maps) -> None:
    """Move the points in time that the fields of a hook name."""
    for key, value in node.items():
        move = None
        for unit, iter_map in maps.items():
            if _LAST_FIELD[unit].fullmatch(str(key)):
                move = iter_map.last
            elif _POINT_FIELD[unit].fullmatch(str(key)):
                move = iter_map.point
        if move or isinstance(value, (dict, list, tuple)):
            node[key] = _moved(value, move, maps)


def _moved(value: Any, move: Optional[Callable[[int], int]],
           maps: _Maps) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_moved(item, move, maps) for item in value)
    # What has a type of its own, such as a transform, has other iterations.
    if isinstance(value, dict) and 'type' not in value:
        _move_points(value, maps)
    # A bool is an int, and EmptyCacheHook has `after_iter=True`.
    elif move and type(value) is int:
        return move(value)
    return value
