# Copyright (c) mmib contributors. All rights reserved.
"""The answer of a command about a converted run: what the run saves, what that
costs, and what changes."""
import re
import shlex
from argparse import Namespace
from typing import Any, Dict, Iterator, List, NamedTuple, Optional

from mmengine.config import Config
from mmengine.registry import HOOKS

from mmib.openmmlab.config.outlook import forecast_of
from mmib.openmmlab.config.parts import infobatch_hooks, length_of
from mmib.openmmlab.console.forecast import Forecast
from mmib.openmmlab.hook import InfoBatchHook
from mmib.openmmlab.registry import type_name
from mmib.openmmlab.runner.mean_weight import decide_mean_weight
from mmib.pruning import Policy

from .files import ABSENT, changes, number, table
from .published import Published, published

# Of docs/results.md.
_COST = ('Fewer iterations cost quality, whichever images are left out: 60 % '
         'of them cost 0.1 to 7.3 points in runs on small datasets.')
# Fields that every conversion changes.
_ALWAYS = re.compile(r'custom_imports\..*|train_dataloader\.sampler\.type|'
                     r'custom_hooks\.\d+\.type')
# Options that choose images, for the control too.
_LISTS = ('subset', 'without', 'relabel', 'repaired')


class Answer(NamedTuple):
    """An answer about a run.

    Args:
        saves (str): A sentence on what the run saves.
        costs (list[str]): What that costs, and the control to run.
        rows (list[tuple]): Name of each field that changes, and its values.
        details (list[str]): Sentences on when and how much the run prunes.
        figures (dict): The same as numbers, for a program.
    """

    saves: str
    costs: List[str]
    rows: List[tuple]
    details: List[str]
    figures: Dict[str, Any]

    def text(self, verbose: bool = False) -> str:
        """Return the answer as it is printed, with all rows or without those
        that every conversion has."""
        shown = [
            row for row in self.rows
            if verbose or not _ALWAYS.fullmatch(row[0])
        ]
        parts = ['\n'.join([self.saves, *self.costs])]
        if shown:
            parts.append(table([('field', 'before', 'after'), *shown]))
        if self.details:
            parts.append('\n'.join(self.details))
        return '\n\n'.join(parts)


def answer(before: Config,
           after: Config,
           args: Namespace,
           *slots: int,
           data: str = '',
           advises: bool = False) -> Answer:
    """Return the answer about a run.

    Args:
        before (Config): The config before the conversion. The same object as
            ``after`` if nothing was converted.
        after (Config): The config of the run.
        args (Namespace): Arguments of the command.
        *slots: Images of a pass, GPUs, and repeats of an image, as for
            :func:`forecast_of`. Nothing if the data weren't read.
        data (str): A sentence on the data. Defaults to ''.
        advises (bool): Whether to name the command that reads the data.
            Defaults to False.
    """
    rows = changes(before, after)
    options = getattr(args, 'cfg_options', ())
    if any(name.startswith('train_cfg') for name in options):
        # A length that the user asks for isn't a saving.
        before = after
    (unit, full_length), (_, length) = length_of(before), length_of(after)
    figures: Dict[str, Any] = dict(
        unit=unit,
        length=length,
        length_before=full_length,
        iterations=None,
        baseline_iterations=None,
        published=None)
    saves, ratio = '', None
    if length < full_length:
        ratio = length / full_length
        saves = (f'It saves {number(full_length - length)} of '
                 f'{number(full_length)} {unit}s.')
    hooks, details = infobatch_hooks(after), [data] if data else []
    if hooks:
        hook = HOOKS.build(hooks[0])
        expected = forecast_of(after, hook, *slots)
        share = expected.share
        figures.update(_figures(expected, hook, bool(slots)))
        if unit == 'epoch' and share is not None:
            ratio = ratio or expected.iters / expected.full_iters
        if before is after or unit == 'epoch' or share is None:
            saves = saves or _expected(expected, hook, unit, bool(slots))
        details += expected.lines
        if hook.policy.prunes:
            details += _remarks(before, after, share, bool(slots), advises)
    known = published(before.filename or '')
    if known:
        figures.update(published=known.values)
    costs, control = _costs(known, ratio) if saves else [], None
    if saves and hooks:
        control = _control(args, hook, ratio, _steps(after, hook, share
                                                     is None))
        others = ', with your --cfg-options' * bool(options)
        costs.append('Train the control too, which is as short, has as long '
                     f'steps and prunes nothing{others}:\n  {control}')
    saves = saves or 'It saves no iterations.'
    figures.update(
        control=control,
        changes={
            name: [None if each == ABSENT else each for each in values]
            for name, *values in rows
        },
        sentences=[saves, *costs, *details])
    return Answer(saves, costs, rows, details, figures)


def _remarks(before: Config, after: Config, share: Optional[float],
             knows_images: bool, advises: bool) -> Iterator[str]:
    """Yield what the forecast leaves out, and warnings."""
    unit, length = length_of(after)
    if unit == 'iteration' and not knows_images and share is not None:
        yield ('These figures leave out that the first pass is full.' +
               ' `mmib forecast` reads the data and counts it.' * advises)
    if share == 1:
        yield ('Warning: it prunes nothing. Train longer, raise `delta`, or '
               'change the `policy`.')
    elif before is not after and length_of(before) == ('iteration', length):
        yield ('Warning: the run is as long as before and makes more passes. '
               'Lower the ratio to save iterations.')
    batch_sampler = before.train_dataloader.get('batch_sampler') or {}
    if type_name(batch_sampler) == 'AspectRatioBatchSampler':
        yield ('Warning: `AspectRatioBatchSampler` is dropped: a batch may '
               'have upright and wide images, which are padded to one size, '
               'so that an iteration takes longer.')


def _figures(expected: Forecast, hook: InfoBatchHook,
             knows_images: bool) -> Dict[str, Any]:
    """Return the figures of a forecast."""
    figures = dict(
        policy=repr(hook.policy),
        kept_share=expected.share,
        mean_weight=expected.mean_weight)
    if expected.share is not None and knows_images:
        figures.update(
            iterations=expected.iters, baseline_iterations=expected.full_iters)
    return figures


def _expected(expected: Forecast, hook: InfoBatchHook, unit: str,
              knows_images: bool) -> str:
    """Return what is saved, compared with a baseline of as many passes."""
    if expected.share is None:
        return 'What it saves depends on the losses.' * hook.policy.prunes
    iters, full = expected.iters, expected.full_iters
    if full - iters < 0.5 * knows_images or iters == full:
        return ''
    about = 'about ' if unit == 'epoch' else ''
    # The length of that baseline isn't known.
    condition = '' if about else ' if the schedule was shortened'
    if not knows_images:
        return (f'It saves about {100 * (1 - iters / full):.0f} % of the '
                f'iterations{condition}.')
    return (f'It saves {about}{number(full - iters)} of {number(full)} '
            f'iterations{condition}.')


def _costs(known: Optional[Published], ratio: Optional[float]) -> List[str]:
    """Return what a share of the iterations costs: by the published figures of
    the model, and by mmib's own runs where these give no bound."""
    if not known or not ratio:
        return [_COST]
    own = [] if known.bounds(ratio) else [_COST]
    return [known.sentences(ratio), *own]


def _steps(after: Config, hook: InfoBatchHook, is_unknown: bool) -> str:
    """Return the value of --steps for the control, '' for the default.
    ``is_unknown`` says whether the mean weight depends on the losses: the user
    fills this weight in."""
    if decide_mean_weight(None, after.get('optim_wrapper', {})).is_one:
        return ''
    return '1' if hook.normalize else 'MEAN_WEIGHT' * is_unknown


def _control(args: Namespace, hook: InfoBatchHook, ratio: Optional[float],
             steps: str) -> str:
    """Return the command that trains the control, with a value of --steps."""
    own = vars(args)
    is_baseline = own.get('infobatch', 'out' in own)
    words = ['mmib', 'train', args.config if is_baseline else 'BASELINE']
    words.append('--shorten')
    ratio = round(args.ratio or ratio or hook.policy.default_ratio, 3)
    if ratio != Policy.default_ratio:
        words += ['--ratio', f'{ratio:g}']
    for name in ('policy', 'delta'):
        if own.get(name) not in (None, 'Neyman'):
            words += [f'--{name}', str(own[name])]
    if steps:
        words += ['--steps', steps]
    for name in _LISTS:
        if own.get(name):
            words += [f'--{name}', own[name]]
    return shlex.join(words)
