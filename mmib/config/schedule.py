# Copyright (c) mmib contributors. All rights reserved.
"""From any schedule to a shorter one.

Pruning makes the passes over the data shorter, so a run saves time only if
its schedule is shorter too.
"""
import copy
import re
from inspect import isclass
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

from mmengine.config import Config
from mmengine.registry import LOOPS
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop

from ..pruning.budget import DEFAULT_RATIO
from .checks import check_form, needs_known_loop

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
_LENGTH_FIELD = dict(iteration='max_iters', epoch='max_epochs')
_DURATION_FIELD = re.compile(
    'begin|end|step|period|milestone|iter|T_max|total')


class IterMap(NamedTuple):
    """Where the iterations of a schedule go when its length changes, or the
    epochs of one that counts them.

    Up to the end of the warm-up they stay. From there to the end they move
    linearly.

    Args:
        old (int): Iterations of the original schedule.
        new (int): Iterations of the new one, at most ``old``.
        warmup (int): Iterations of the warm-up, less than both. Defaults to
            0.
        unit (str): What the training counts, ``'iteration'`` or ``'epoch'``.
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
    stays. Where a training counts epochs, this holds for epochs. No data is
    read.

    Args:
        cfg (Config): The config of a training. It stays as it is.
        ratio (float): Share of the iterations, or epochs, to run, in (0, 1].
            With 1 the copy is equal. Defaults to 0.6.

    Returns:
        Config: The shorter copy.

    Raises:
        ValueError: If ``ratio`` is out of range, if the config prunes, or if
            something in it can't be shortened. It names the line to change.
        TypeError: If a part of the config has the wrong form.

    Examples:
        >>> cfg = Config.fromfile('upernet_r50_4xb4-80k_ade20k-512x512.py')
        >>> shorten(cfg).train_cfg.max_iters
        48000
    """
    check_baseline(cfg)
    if not 0 < ratio <= 1:
        raise ValueError(
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


def check_baseline(cfg: Config) -> None:
    """Check that a config is of the baseline, in the form of MMEngine.

    Raises:
        ValueError: If it trains with InfoBatch, or without data.
        TypeError: If a part of it has the wrong form.
    """
    check_form(cfg)
    sampler = (cfg.get('train_dataloader') or {}).get('sampler') or {}
    if (type_name(sampler) in ('InfoBatchSampler', 'InfoBatchEpochSampler')
            or infobatch_hooks(cfg)):
        raise ValueError(
            'The config trains with InfoBatch already: convert or shorten the '
            'config that it was made from, or remove InfoBatchHook from '
            '`custom_hooks` and InfoBatchSampler from '
            '`train_dataloader.sampler`.')


def infobatch_hooks(cfg: Config) -> List[dict]:
    """Configs of InfoBatchHook in ``custom_hooks``."""
    return [
        hook for hook in cfg.get('custom_hooks') or []
        if isinstance(hook, dict) and type_name(hook) == 'InfoBatchHook'
    ]


def type_name(node: dict) -> str:
    """Name of a ``type`` that is a class, or a string with or without scope.
    """
    kind = node.get('type')
    return kind.__name__ if isclass(kind) else str(kind).rpartition('.')[-1]


def length_of(cfg: Config) -> Tuple[str, int]:
    """What a training counts, ``'iteration'`` or ``'epoch'``, and how many.

    Raises:
        ValueError: If the config has no training, or a loop of which nothing
            is known.
    """
    train_cfg = cfg.get('train_cfg')
    if train_cfg is None:
        raise ValueError('The config has no training: add `train_cfg = '
                         "dict(type='IterBasedTrainLoop', max_iters=...)`.")
    loop = train_cfg.get('type')
    if isinstance(loop, str):
        loop = LOOPS.get(loop)
    for unit, kind, by_epoch in (('iteration', IterBasedTrainLoop, False),
                                 ('epoch', EpochBasedTrainLoop, True)):
        is_kind = (
            issubclass(loop, kind)
            if isclass(loop) else train_cfg.get('by_epoch') is by_epoch)
        if is_kind and train_cfg.get(_LENGTH_FIELD[unit]) is not None:
            others = set(_LENGTH_FIELD.values()) - {_LENGTH_FIELD[unit]}
            if not others & set(train_cfg):
                length = train_cfg[_LENGTH_FIELD[unit]]
                if not isinstance(length, (int, float)):
                    raise ValueError(f'`train_cfg.{_LENGTH_FIELD[unit]}` must '
                                     f'be a number, but got {length!r}.')
                return unit, int(length)
    raise needs_known_loop(f'`train_cfg = {dict(train_cfg)}`')


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


def _warmup(schedulers: Dict[str, dict], unit: str, old: int, new: int) -> int:
    """Last iteration of the warm-up, 0 without one."""
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
            'config as docs/train.md says. '
            f'Its fields that look like iterations: {fields or "none"}.')
    # It counts validations, which stay as many. MMEngine takes it with
    # `by_epoch=True` alone, and iteration-based training is one epoch.
    if kind == 'ReduceOnPlateau':
        return
    if _counts(scheduler) != iter_map.unit:
        if iter_map.unit == 'iteration':
            raise ValueError(
                f'`{where}.by_epoch` is True, which is also its default, but '
                'the training counts iterations: set '
                f'`{where}.by_epoch=False` and give its times in iterations.')
        # A warm-up, which keeps its length.
        if (_rises(scheduler, kind) and scheduler.get('begin', 0) == 0
                and 'end' in scheduler):
            return
        raise ValueError(
            f'`{where}.by_epoch` is False, but the training counts epochs: '
            f'set `{where}.by_epoch=True`, give its times in epochs, and add '
            '`convert_to_iter_based=True` to have it step by iteration.')

    begin, end = scheduler.get('begin', 0), scheduler.get('end', iter_map.old)
    new_begin = iter_map.point(begin)
    new_end = iter_map.point(end)
    length, new_length = end - begin, new_end - new_begin
    # Schedulers reach their last value after `length - 1` steps.
    if new_length < min(length, 2):
        raise ValueError(
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
    if kind == 'Exponential' and new_length > 1:
        scheduler['gamma'] **= (length - 1) / (new_length - 1)


def _convert_train_cfg(train_cfg: dict, iter_map: IterMap) -> None:
    train_cfg[_LENGTH_FIELD[iter_map.unit]] = iter_map.new
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
