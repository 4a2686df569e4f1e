# Copyright (c) mmib contributors. All rights reserved.
"""From a config of the baseline to one that trains with InfoBatch."""
import copy
import os
from inspect import isclass
from typing import Any, Iterator, Optional

from mmengine.config import Config

from ...errors import Refusal
from ...plans import Neyman, Policy
from ..hook import InfoBatchHook
from ..registry import POLICIES, type_name
from ..runner.checks import OWN_CHOICE, check_shares, no_batch_sampler
from ..sampler import BASELINES
from .outlook import forecast_of
from .parts import add_import, check_baseline, length_of
from .schedule import move_hooks, shorten

_UNPAIRED = ('Mixup', 'CutMix', 'ResizeMix')
_WHY_NOT = dict(
    RepeatAugSampler=', which asks for each image several times in an epoch '
    'that is shorter by as much, so that a pass has no end')


def convert(cfg: Config,
            ratio: Optional[float] = None,
            delta: float = 0.85,
            policy: Optional[dict] = None,
            **hook: Any) -> Config:
    """Convert a config of the baseline to InfoBatch.

    The conversion changes the sampler, the hook, ``custom_imports`` and batch
    augmentations that mix images: ``Mixup`` becomes ``PairedMixup``, and
    ``CutMix`` and ``ResizeMix`` are changed alike. A schedule that counts
    iterations is shortened by :func:`shorten`. A schedule that counts epochs
    stays, because its epochs become shorter. Iterations that its hooks name
    are scaled. ``AspectRatioBatchSampler``,
    which changes the order of the images, is dropped. No data is read.

    Args:
        cfg (Config): The config of a run. The config stays as it is.
        ratio (float, optional): Share of the iterations to run, in (0, 1]. If
            None, the ratio is the ``ratio`` of ``Neyman``, else the
            ``default_ratio`` of the policy. In a run that counts epochs only
            ``Neyman`` has a ratio. Defaults to None.
        delta (float): Fraction of these iterations that prune, in [0, 1].
            Defaults to 0.85.
        policy (dict, optional): Config of the policy that draws the plans.
            ``Neyman`` gets the ratio, and prunes as much as is needed to cover
            all the passes of the original schedule. If None, the policy is
            ``Neyman``. Defaults to None.
        **hook: Other arguments of :class:`InfoBatchHook`.

    Returns:
        Config: The converted copy.

    Raises:
        Refusal: If an argument is unknown or out of range, if ``ratio`` and
            the ratio of the policy differ, if nothing would be pruned, or if a
            part of the config can't be converted. The error names the line to
            change.

    Examples:
        >>> cfg = Config.fromfile('upernet_r50_4xb4-80k_ade20k-512x512.py')
        >>> convert(cfg, ema=0.8).custom_hooks[-1].ema
        0.8
    """
    if isinstance(cfg, (str, os.PathLike)):
        raise Refusal('`convert` takes a config, not its path: '
                      f'mmib.convert(Config.fromfile({str(cfg)!r})).')
    check_baseline(cfg)
    unit, _ = length_of(cfg)
    if not isinstance(policy, (dict, type(None))):
        raise Refusal('`policy` must be the config of a policy, such as '
                      f"dict(type='Neyman'), but got {policy!r}.")
    policy = copy.deepcopy(policy or dict(type='Neyman'))
    ratio = _settle_ratio(ratio, policy, unit)
    cfg = pair_augments(shorten(cfg, ratio) if unit == 'iteration' else cfg)
    hook = dict(policy=policy, delta=delta, **hook)
    built = InfoBatchHook(**hook)  # Checks the arguments.
    outlook = forecast_of(cfg, built)
    if outlook.share == 1:
        raise Refusal(
            f'With `ratio={ratio}` and `delta={delta}` {built.policy!r} would '
            'leave nothing out: lower `ratio`, raise `delta`, or give another '
            '`policy`.')
    # The epochs of a pruned run are shorter, and as many.
    if unit == 'epoch' and built.policy.prunes:
        known = outlook.share is not None
        move_hooks(cfg, outlook.iters / outlook.full_iters if known else None)
    _convert_loader(cfg.train_dataloader, unit)
    add_import(cfg, 'mmib')
    cfg.custom_hooks = [
        *(cfg.get('custom_hooks') or []),
        dict(type='InfoBatchHook', **hook)
    ]
    return cfg


def _settle_ratio(ratio: Optional[float], policy: dict, unit: str) -> float:
    """Return the one ratio of a conversion, and give it to ``Neyman``."""
    name, kind = type_name(policy), policy.get('type')
    kind = POLICIES.get(kind) if isinstance(kind, str) else kind
    default = getattr(kind, 'default_ratio', Policy.default_ratio)
    if not getattr(kind, 'prunes', True):
        if ratio not in (None, 1):
            raise Refusal(
                f'`ratio={ratio}`, but {name} prunes nothing and runs all '
                'iterations: remove `ratio` (--ratio of the command).')
        return default
    if isclass(kind) and issubclass(kind, Neyman):
        own = policy.get('ratio')
        if None not in (ratio, own) and ratio != own:
            raise Refusal(
                f'`ratio={ratio}` and the `ratio={own}` of {name} in `policy` '
                'are one number, the share of the iterations to run: give one '
                'of them.')
        ratio = own if ratio is None else ratio
        policy['ratio'] = default if ratio is None else ratio
        return policy['ratio']
    if ratio is not None and unit == 'epoch':
        raise Refusal(
            f'`ratio={ratio}` changes nothing for {name} in a run that counts '
            'epochs: remove `ratio` (--ratio of the command), or take the '
            'policy Neyman.')
    return default if ratio is None else ratio


def _convert_loader(loader: dict, unit: str) -> None:
    batch_sampler = loader.get('batch_sampler')
    if batch_sampler is not None:
        if type_name(batch_sampler) != 'AspectRatioBatchSampler':
            raise no_batch_sampler()
        if batch_sampler.get('drop_last'):
            loader['drop_last'] = True
        loader['batch_sampler'] = None
    sampler = loader.get('sampler') or {}
    name = type_name(sampler)
    if name not in BASELINES:
        check_shares(name, sampler)
        of = BASELINES[unit == 'epoch']
        why = _WHY_NOT.get(name, OWN_CHOICE) if sampler else ''
        raise Refusal(
            f'InfoBatchSampler takes the place of {of}, not of {name}'
            f'{why}: set `train_dataloader.sampler = '
            f"dict(type='{of}', shuffle=True)` first.")
    kept = {key: sampler[key] for key in ('shuffle', 'seed') if key in sampler}
    loader['sampler'] = dict(type='InfoBatchSampler', **kept)


def pair_augments(cfg: Config) -> Config:
    """Let the batch augmentations in a copy of a config mix image i with image
    B - 1 - i, so that InfoBatch knows which images are mixed. MMPretrain need
    not be installed."""
    cfg = copy.deepcopy(cfg)
    for augment in _augments(cfg):
        if type_name(augment) in _UNPAIRED:
            augment['type'] = 'Paired' + type_name(augment)
            add_import(cfg, 'mmib.openmmlab.tasks.classification')
    return cfg


def _augments(cfg: Config) -> Iterator[dict]:
    """Yield the batch augmentations of the model, of the data preprocessor,
    and of each stage of SwitchRecipeHook."""
    model = cfg.get('model')
    places = [_get(model, 'train_cfg')]
    owners = [_get(model, 'data_preprocessor'), cfg.get('data_preprocessor')]
    for hook in cfg.get('custom_hooks') or []:
        if isinstance(hook, dict) and type_name(hook) == 'SwitchRecipeHook':
            owners += hook.get('schedule') or []
    places += [_get(owner, 'batch_augments') for owner in owners]
    for place in places:
        augments = _get(place, 'augments')
        if not isinstance(augments, (list, tuple)):
            augments = [augments]
        yield from (each for each in augments if isinstance(each, dict))


def _get(node: Any, key: str) -> Any:
    return node.get(key) if isinstance(node, dict) else None
