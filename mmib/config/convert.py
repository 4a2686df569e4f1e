# Copyright (c) mmib contributors. All rights reserved.
"""From a config of the baseline to one that trains with InfoBatch."""
import copy
import os
from inspect import isclass
from typing import Any, Optional, Sequence, Union

from mmengine.config import Config
from mmengine.registry import HOOKS

from ..clock import Clock, EpochClock, IterationClock
from ..hook import InfoBatchHook
from ..log.forecast import Forecast, forecast
from ..pruning.budget import DEFAULT_RATIO, ToBudget
from ..registry import POLICIES
from ..sampler import BASELINES
from ..tasks.pairing import pair_augments
from .checks import check_delta, no_batch_sampler
from .schedule import (check_baseline, infobatch_hooks, length_of, shorten,
                       type_name)
from .step_size import MeanWeight, decide, optimizers_of

_WHY_NOT = dict(
    RepeatAugSampler=', which asks for each image several times in an epoch '
    'that is shorter by as much, so that a pass has no end')
_OUTER_WRAPPERS = ('RepeatDataset', 'ClassBalancedDataset',
                   'MultiImageMixDataset')


def default_ratio(policy: str) -> float:
    """Share of the iterations that a policy is meant for.

    Args:
        policy (str): Its type.

    Returns:
        float: 0.8 for the mean threshold, as in the paper, and for its
        opposite; 0.6 for others.
    """
    return 0.8 if policy in ('MeanThreshold', 'AboveMean') else DEFAULT_RATIO


def convert(cfg: Config,
            ratio: Optional[float] = None,
            delta: float = 0.85,
            policy: Optional[dict] = None,
            **hook: Any) -> Config:
    """Convert a config of the baseline to InfoBatch.

    A schedule that counts iterations is that of :func:`shorten`; one that
    counts epochs stays, as its epochs become shorter. What else changes are
    the sampler, the hook, ``custom_imports`` and batch augmentations that mix
    images (:func:`~mmib.tasks.pairing.pair_augments`).
    ``AspectRatioBatchSampler``, which changes the order of the images, is
    dropped. No data is read.

    Args:
        cfg (Config): The config of a training. It stays as it is.
        ratio (float, optional): Share of the iterations to run, in (0, 1]. If
            None, it is the ``ratio`` of ``Neyman`` or ``Budget``, and where
            this isn't given :func:`default_ratio`. Where epochs count, it is
            for these two: other policies prune what they prune. Defaults to
            None.
        delta (float): Fraction of these iterations that prune, in [0, 1].
            Defaults to 0.85.
        policy (dict, optional): Config of the policy that draws the plans. If
            None, it is ``Neyman``. ``Neyman`` and ``Budget`` get the ratio,
            and prune as much as it takes to cover all the passes of the
            original schedule. Defaults to None.
        **hook: Other arguments of :class:`InfoBatchHook`.

    Returns:
        Config: The converted copy.

    Raises:
        ValueError: If an argument is out of range, if the ratio isn't that of
            the policy, if nothing would be pruned, or if something in the
            config can't be converted. It names the line to change.
        TypeError: If ``InfoBatchHook`` or the policy has no such argument, or
            a part of the config has the wrong form.
        KeyError: If no policy has the ``type`` of ``policy``.

    Examples:
        >>> cfg = Config.fromfile('upernet_r50_4xb4-80k_ade20k-512x512.py')
        >>> convert(cfg, ema=0.8).custom_hooks[-1].ema
        0.8
    """
    if isinstance(cfg, (str, os.PathLike)):
        raise TypeError('`convert` takes a config, not its path: '
                        f'mmib.convert(Config.fromfile({str(cfg)!r})).')
    check_baseline(cfg)
    check_delta(delta, 'the argument `delta`, or --delta of the command')
    unit, _ = length_of(cfg)
    if not isinstance(policy, (dict, type(None))):
        raise TypeError('`policy` must be the config of a policy, such as '
                        f"dict(type='Neyman'), but got {policy!r}.")
    policy = copy.deepcopy(policy or dict(type='Neyman'))
    ratio = _settle_ratio(ratio, policy, unit)
    # The epochs of a pruned training are shorter, and as many.
    cfg = pair_augments(shorten(cfg, ratio) if unit == 'iteration' else cfg)
    hook = dict(policy=policy, delta=delta, **hook)
    built = InfoBatchHook(**hook)  # Checks the arguments.
    if _forecast(built, cfg).share == 1:
        raise ValueError(
            f'With `ratio={ratio}` and `delta={delta}` {built.policy!r} would '
            'leave nothing out: lower `ratio`, raise `delta`, or give another '
            '`policy`.')

    cfg.train_dataloader.sampler = _sampler(cfg.train_dataloader, unit)
    if _groups_by_shape(cfg.train_dataloader):
        if cfg.train_dataloader.batch_sampler.get('drop_last'):
            cfg.train_dataloader.drop_last = True
        cfg.train_dataloader.batch_sampler = None
    cfg.custom_imports = _custom_imports(cfg.get('custom_imports'))
    cfg.custom_hooks = [
        *(cfg.get('custom_hooks') or []),
        dict(type='InfoBatchHook', **hook)
    ]
    return cfg


def list_images(cfg: Config, images: Union[str, Sequence]) -> Config:
    """Let a training show the images of a list alone.

    :class:`~mmib.datasets.ListedImages` wraps the data set. What repeats or
    mixes images wraps this, and so has listed ones only. No data is read.

    Args:
        cfg (Config): The config of a training, which may prune. It stays as
            it is.
        images (str or Sequence): The list, see ``ListedImages``.

    Returns:
        Config: The changed copy.

    Raises:
        ValueError: If the config has no ``train_dataloader.dataset``.
    """
    cfg = copy.deepcopy(cfg)
    outer = cfg.get('train_dataloader') or {}
    if not isinstance(outer.get('dataset'), dict):
        raise ValueError('The config has no data set whose images could be '
                         'listed: add `train_dataloader.dataset`.')
    while type_name(outer['dataset']) in _OUTER_WRAPPERS:
        outer = outer['dataset']
    outer['dataset'] = dict(
        type='ListedImages', dataset=outer['dataset'], images=images)
    cfg.custom_imports = _custom_imports(cfg.get('custom_imports'))
    return cfg


def summary(before: Config, after: Config) -> str:
    """What a conversion makes of a training, in a few sentences.

    The number of images isn't known, so shares and passes are about right.

    Args:
        before (Config): The config of the baseline.
        after (Config): What :func:`convert` made of it.

    Returns:
        str: The sentences. Empty of a config without InfoBatchHook.
    """
    hooks = infobatch_hooks(after)
    if not hooks:
        return ''
    (unit, full_iters), (_, iters) = length_of(before), length_of(after)
    hook = HOOKS.build(hooks[0])
    outlook = _forecast(hook, after)
    covers = outlook.full_iters
    sentences = [outlook.when, outlook.how_much]
    if covers is not None and unit == 'epoch':
        saved = 100 * (1 - outlook.iters / covers)
        sentences.append(f'It saves about {saved:.0f} % of the iterations.')
    elif covers is not None:
        sentences.append(f'It covers about {100 * covers / full_iters:.0f}'
                         ' % of the passes of the original schedule.')
    if unit == 'iteration' and iters < full_iters:
        sentences.append(f'It saves {full_iters - iters} of {full_iters} '
                         'iterations.')
    elif unit == 'iteration':
        sentences.append(
            'Warning: it saves no iterations, as the training is as long as '
            'before and makes more passes. Lower the ratio to save some.')
    text = ' '.join(sentences)
    if _groups_by_shape(before.train_dataloader):
        text += (
            '\nWarning: `AspectRatioBatchSampler` is dropped: a batch may '
            'have upright and wide images, which are padded to one size, so '
            'that an iteration takes longer.')
    return text


def _forecast(hook: InfoBatchHook, cfg: Config) -> Forecast:
    """Without the data: a pass is one slot."""
    return forecast(hook.policy, clock_of(cfg, hook),
                    mean_weight(hook, cfg).is_one)


def mean_weight(hook: InfoBatchHook, cfg: Config) -> MeanWeight:
    """Which mean the weights of a training will have.

    Args:
        hook (InfoBatchHook): The hook in it.
        cfg (Config): Its config.
    """
    optimizers = optimizers_of(cfg.get('optim_wrapper') or {})
    return decide(hook.normalize, optimizers)


def clock_of(cfg: Config,
             hook: InfoBatchHook,
             pass_length: int = 1,
             batch_size: int = 1,
             gpus: int = 1) -> Clock:
    """The clock of a training, before it is built.

    Args:
        cfg (Config): Its config.
        hook (InfoBatchHook): The hook in it.
        pass_length (int): Slots of a full pass. Defaults to 1.
        batch_size (int): Images of a rank in an iteration. Defaults to 1.
        gpus (int): GPUs, or other ranks, that train. Defaults to 1.
    """
    unit, length = length_of(cfg)
    slots_per_iter = batch_size * gpus
    if unit == 'epoch':
        # All ranks have as many slots, and each leaves its own last ones.
        slots = -(-pass_length // gpus)
        if not cfg.train_dataloader.get('drop_last'):
            slots += batch_size - 1
        iters_per_epoch = slots // batch_size
        return EpochClock(pass_length, slots_per_iter, iters_per_epoch, length,
                          hook.delta, hook.start)
    return IterationClock(pass_length, slots_per_iter, length, hook.delta,
                          hook.start)


def _settle_ratio(ratio: Optional[float], policy: dict, unit: str) -> float:
    """The one ratio of a conversion, which a policy with a budget gets too."""
    name, kind = type_name(policy), policy.get('type')
    kind = POLICIES.get(kind) if isinstance(kind, str) else kind
    has_budget = isclass(kind) and issubclass(kind, ToBudget)
    own = policy.get('ratio') if has_budget else None
    if has_budget and None not in (ratio, policy.get('full_iters')):
        raise ValueError(
            f'`ratio={ratio}` and `full_iters={policy["full_iters"]}` of '
            f'{name} in `policy` both say how much to prune: remove '
            '`full_iters`.')
    if None not in (ratio, own) and ratio != own:
        raise ValueError(
            f'`ratio={ratio}` and the `ratio={own}` of {name} in `policy` are '
            'one number, the share of the iterations to run: give one of '
            'them.')
    if ratio is not None and unit == 'epoch' and not has_budget:
        raise ValueError(
            f'`ratio={ratio}` changes nothing for {name} in a training that '
            'counts epochs: remove `ratio` (--ratio of the command), or take '
            'the policy Neyman or Budget.')
    ratio = own if ratio is None else ratio
    ratio = default_ratio(name) if ratio is None else ratio
    if has_budget and policy.get('full_iters') is None:
        policy['ratio'] = ratio
    return ratio


def _groups_by_shape(train_dataloader: dict) -> bool:
    """Whether batches are of images that are all upright, or all wide."""
    batch_sampler = train_dataloader.get('batch_sampler') or {}
    return type_name(batch_sampler) == 'AspectRatioBatchSampler'


def _sampler(train_dataloader: dict, unit: str) -> dict:
    if not _groups_by_shape(train_dataloader) and train_dataloader.get(
            'batch_sampler') is not None:
        raise no_batch_sampler()
    sampler = train_dataloader.get('sampler') or {}
    name = type_name(sampler)
    if name not in BASELINES:
        of = BASELINES[unit == 'epoch']
        raise ValueError(
            f'InfoBatchSampler takes the place of {of}, not of {name}'
            f'{_WHY_NOT.get(name, "")}: set `train_dataloader.sampler = '
            f"dict(type='{of}', shuffle=True)` first.")
    kept = {key: sampler[key] for key in ('shuffle', 'seed') if key in sampler}
    return dict(type='InfoBatchSampler', **kept)


def _custom_imports(custom_imports: Optional[dict]) -> dict:
    custom_imports = dict(custom_imports or dict(allow_failed_imports=False))
    imports = custom_imports.get('imports') or []
    imports = [imports] if isinstance(imports, str) else list(imports)
    if 'mmib' not in imports:
        imports.append('mmib')
    return dict(custom_imports, imports=imports)
