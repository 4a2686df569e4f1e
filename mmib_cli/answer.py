# Copyright (c) mmib contributors. All rights reserved.
"""What a command says of a run that is made from another one: what it
saves, then what that costs, then what changes."""
import re
import shlex
from argparse import Namespace
from typing import Any, Dict, List, NamedTuple, Optional

from mmengine.config import Config
from mmengine.registry import HOOKS

from mmib.openmmlab.config.parts import infobatch_hooks, length_of
from mmib.openmmlab.console.forecast import forecast_of
from mmib.openmmlab.hook import InfoBatchHook
from mmib.pruning import Policy

from .files import ABSENT, changes, number, saving, summary, table

_COST = ('Fewer iterations cost quality, whichever images are left out: '
         'docs/results.md has figures.')
# Fields that every conversion changes in the same way.
_ALWAYS = re.compile(r'custom_imports\..*|train_dataloader\.sampler\.type|'
                     r'custom_hooks\.\d+\.type')
# These choose other images, for the control too.
_LISTS = ('subset', 'without', 'relabel', 'repaired')


class Answer(NamedTuple):
    """What is said of a run.

    Args:
        saves (str): What it saves, a sentence.
        costs (list[str]): What that costs, and the control to run.
        rows (list[tuple]): Name of each field that changes, and its values.
        details (list[str]): Sentences on when and how much it prunes.
        figures (dict): The same in numbers, for a program.
    """

    saves: str
    costs: List[str]
    rows: List[tuple]
    details: List[str]
    figures: Dict[str, Any]

    def text(self, verbose: bool = False) -> str:
        """Return the answer as it is printed, of all rows or those that other
        conversions don't have."""
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
    """Say what becomes of a run.

    Args:
        before (Config): The config before conversion, or the same.
        after (Config): The config of the run.
        args (Namespace): Arguments of the command.
        *slots: Images of a pass, GPUs, and repeats of an image, where the data
            were read, as for :func:`forecast_of`.
        data (str): A sentence on the data. Defaults to ''.
        advises (bool): Whether to name the command that reads the data.
            Defaults to False.
    """
    rows = changes(before, after)
    options = getattr(args, 'cfg_options', ())
    if any(name.startswith('train_cfg') for name in options):
        # Who asks for a length doesn't save what it is less than another one.
        before = after
    (unit, full_length), (_, length) = length_of(before), length_of(after)
    figures: Dict[str, Any] = dict(
        unit=unit,
        length=length,
        length_before=full_length,
        iterations=None,
        baseline_iterations=None)
    hooks, saves = infobatch_hooks(after), saving(before, after)
    ratio = length / full_length if saves else None
    if hooks:
        hook = HOOKS.build(hooks[0])
        expected = forecast_of(after, hook, *slots)
        share = expected.share
        figures.update(
            policy=repr(hook.policy),
            kept_share=share,
            mean_weight=expected.mean_weight)
        if share is not None:
            iters, full = expected.iters, expected.full_iters
            if unit == 'epoch':
                ratio = ratio or iters / full
            if slots:
                figures.update(iterations=iters, baseline_iterations=full)
            if before is after or unit == 'epoch':
                saves = saves or _expected(iters, full, unit, bool(slots))
        elif hook.policy.prunes:
            saves = saves or 'What it saves depends on the losses.'
    details = summary(before, after, *slots, advises=advises)
    details = [line for line in (data, *details) if line not in ('', saves)]
    costs = [_COST] if saves else []
    control = None
    if saves and hooks:
        control = _control(args, hook, ratio)
        others = ', with your --cfg-options' * bool(options)
        costs.append('Train the control too, which is as short and prunes '
                     f'nothing{others}:\n  {control}')
    saves = saves or 'It saves no iterations.'
    figures.update(
        control=control,
        changes={
            name: [None if each == ABSENT else each for each in values]
            for name, *values in rows
        },
        sentences=[saves, *costs, *details])
    return Answer(saves, costs, rows, details, figures)


def _expected(iters: float, full: float, unit: str,
              knows_images: bool) -> Optional[str]:
    """What is saved of the iterations of a baseline with as many passes."""
    if full - iters < 0.5 * knows_images or iters == full:
        return None
    if not knows_images:
        return (f'It saves about {100 * (1 - iters / full):.0f} % of the '
                'iterations.')
    about = 'about ' if unit == 'epoch' else ''
    return (f'It saves {about}{number(full - iters)} of {number(full)} '
            'iterations.')


def _control(args: Namespace, hook: InfoBatchHook,
             ratio: Optional[float]) -> str:
    """The command that trains the control."""
    own = vars(args)
    is_baseline = own.get('infobatch', 'out' in own)
    words = ['mmib', 'train', args.config if is_baseline else 'BASELINE']
    words.append('--shorten')
    ratio = round(args.ratio or ratio or hook.policy.default_ratio, 3)
    if ratio != Policy.default_ratio:
        words += ['--ratio', f'{ratio:g}']
    for name in _LISTS:
        if own.get(name):
            words += [f'--{name}', own[name]]
    return shlex.join(words)
