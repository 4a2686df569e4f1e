# Copyright (c) mmib contributors. All rights reserved.
"""The page of a run, in one HTML file."""
import math
import os.path as osp
import shlex
from datetime import timedelta
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

import jinja2
import numpy as np
from markupsafe import Markup, escape

from ..openmmlab.config.parts import hooks_of
from ..openmmlab.console.reporter import worth_in_words
from ..scores.worth import VarianceRatio
from ..version import __version__
from . import figures
from .checkpoint import Checkpoint
from .read import Run

# A narrow space at which no line breaks.
_THIN = '\u202f'
# What seeds of one config may differ in.
_OF_A_SEED = ('experiment_name', 'launcher', 'load_from', 'randomness',
              'resume', 'seed', 'work_dir')


class Figure(NamedTuple):
    """A figure of the summary, with a note on it."""

    title: str
    value: str
    note: str = ''


def environment_of(folder: str = '') -> jinja2.Environment:
    """Return what renders templates in a folder, and those of a report."""
    environment = jinja2.Environment(
        # Nothing is loaded from the current folder, which '' would stand for.
        loader=jinja2.FileSystemLoader(
            [*filter(None, [folder]),
             osp.dirname(__file__)]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True)
    environment.filters.update(
        figure=number, sentence=_sentence, control=_control_in_words)
    return environment


def render(run: Run, others: Sequence[Run], checkpoint: Optional[Checkpoint],
           unread: Sequence[str]) -> str:
    """Return the page of a run, beside others or alone.

    Args:
        run (Run): The run.
        others (Sequence[Run]): Runs to compare with.
        checkpoint (Checkpoint, optional): The newest checkpoint of the run.
        unread (Sequence[str]): Sentences on checkpoints that can't be read.
    """
    progress = figures.progress(run, others)
    return environment_of().get_template('run.html').render(
        version=__version__,
        title=run.name,
        run=run,
        others=others,
        verdict=verdict(run, others),
        summary=summary(run, others),
        notes=_notes_on(run, others, checkpoint, unread),
        # The plots of the first metric and the loss, and all others.
        progress=progress[:4],
        more_progress=progress[4:],
        worth=figures.worth(run),
        pruning=figures.pruning(run),
        histograms=figures.histograms(run),
        rank_command=_rank_command(run, checkpoint))


def write_text(path: str, text: str) -> None:
    """Write a page, whose paths may be no text in UTF-8."""
    with open(path, 'w', encoding='utf-8', errors='backslashreplace') as file:
        file.write(text)


def _notes_on(run: Run, others: Sequence[Run],
              checkpoint: Optional[Checkpoint],
              unread: Sequence[str]) -> List[str]:
    """Sentences on what is missing of a run, and why."""
    notes = list(run.notes)
    for other in others:
        notes += [f'{other.name}: {note}' for note in other.notes]
    if not run.has_infobatch:
        return [
            *notes, 'This is a run without InfoBatch, so there are '
            'metrics and losses alone. `mmib train CONFIG --score` has '
            'scores of its images.'
        ]
    notes += unread
    if checkpoint is not None and checkpoint.images is None:
        notes.append(f'{checkpoint.name} has no state of InfoBatch, so the '
                     'scores of the images aren\'t known.')
    return notes


def _control_in_words(run: Run, other: Run) -> str:
    """Name a control of a pruned run by its steps. '' for another run."""
    lengths = run.last_iter, other.last_iter
    if not run.prunes or max(lengths) > 1.05 * min(lengths):
        return ''
    steps = 'its config'
    if hooks_of(other.config, 'StepScaleHook'):
        steps = 'a pruned run'
    return f': a control with the steps of {steps}'


def _rank_command(run: Run, checkpoint: Optional[Checkpoint]) -> str:
    """The command that shows images by their scores, '' where there are
    none."""
    if checkpoint is None or checkpoint.images is None:
        return ''
    config = run.config.filename or 'CONFIG'
    return shlex.join(
        ['mmib', 'rank', config, checkpoint.path, '--rank-by', 'score'])


def _sentence(text: str) -> Markup:
    """Return a sentence of which the parts in backticks are code."""
    parts = [escape(part) for part in text.split('`')]
    for i in range(1, len(parts) - 1, 2):
        parts[i] = Markup('<code>{}</code>').format(parts[i])
    return Markup('').join(parts)


def number(value: Optional[float], digits: int = 4) -> str:
    """Return a number in a few digits, and a dash where it isn't known."""
    if value is None or not math.isfinite(value):
        return '–'
    if float(value).is_integer() and abs(value) < 1e9:
        return f'{value:,.0f}'.replace(',', _THIN)
    return f'{value:.{digits}g}'


def verdict(run: Run, others: Sequence[Run] = ()) -> str:
    """Return what came of a run in a few sentences: what was saved, the last
    metric beside the metrics of other runs, and whether a control is missing.
    '' of a run that doesn't prune."""
    if not run.prunes or not run.last_iter:
        return ''
    full = run.last_iter + run.saved_iters
    text = (f'{number(run.last_iter)} iterations made as many passes as '
            f'{number(round(full))} of the baseline: '
            f'{run.saved_iters / max(full, 1):.0%} saved')
    if run.seconds is not None:
        saved = run.seconds * run.saved_iters / run.last_iter
        text += f', about {_time(saved)}'
    if run.max_iters and run.last_iter < run.max_iters:
        text = f'So far {text}'
    parts = [text]
    if run.metrics:
        name, curve = next(iter(run.metrics.items()))
        words = [f'{name} {curve.values[-1]:.2f}'] + [
            f'{other.name} {other.metrics[name].values[-1]:.2f}'
            for other in others if name in other.metrics
        ]
        parts.append(', '.join(words))
    if not others:
        parts.append('No control is shown: `mmib train CONFIG --shorten` '
                     'trains one, and `mmib report --compare` shows both')
    return '. '.join(parts) + '.'


def summary(run: Run, others: Sequence[Run] = ()) -> List[Figure]:
    """Return the row of figures on top."""
    note = 'finished' if run.finished else ''
    if run.max_iters and run.last_iter < run.max_iters:
        note = f'of {number(run.max_iters)}: still running, or it was stopped'
    figures = [Figure('Iterations', number(run.last_iter), note)]
    if run.prunes:
        full = run.last_iter + run.saved_iters
        figures.append(
            Figure(
                'Full equivalent', number(round(full)),
                f'iterations that the baseline needs for as many passes: '
                f'{run.saved_iters / max(full, 1):.0%} fewer here'))
    figures += _times(run, others) + _quality(run, others)
    if run.prunes:
        figures.append(_worth(run, others))
    if run.pruned and run.visits:
        figures.append(
            Figure(
                'Pruned', f'{run.pruned / run.visits:.0%}',
                f'{number(run.pruned)} of {number(run.visits)} visits of '
                'images'))
    return figures


def _times(run: Run, others: Sequence[Run]) -> List[Figure]:
    if run.seconds is None:
        return []
    notes = [f'in {run.num_starts} starts'] if run.num_starts > 1 else []
    notes += [
        f'{other.name}: {_time(other.seconds)}' for other in others
        if other.seconds is not None
    ]
    return [Figure('Wall time', _time(run.seconds), ', '.join(notes))]


def _time(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


def _quality(run: Run, others: Sequence[Run]) -> List[Figure]:
    if not run.metrics:
        return []
    name, curve = next(iter(run.metrics.items()))
    best = int(curve.values.argmax())
    notes = [
        f'at iteration {number(curve.iterations[-1])}; highest '
        f'{curve.values[best]:.2f} at {number(curve.iterations[best])}'
    ]
    compared = [other for other in others if name in other.metrics]
    for other in compared:
        iterations, values = other.metrics[name]
        notes.append(f'{other.name}: {values[-1]:.2f} at '
                     f'{number(iterations[-1])}')
    for seeds in _by_config(compared, name):
        if len(seeds) > 1:
            last = [other.metrics[name].values[-1] for other in seeds]
            notes.append(f'mean of {_names(seeds)}, which have one config: '
                         f'{np.mean(last):.2f}, standard deviation '
                         f'{np.std(last, ddof=1):.2f}')
    return [Figure(name, f'{curve.values[-1]:.2f}', '; '.join(notes))]


def _by_config(runs: Sequence[Run], metric: str) -> List[List[Run]]:
    """Group runs that are seeds of one config, and as long."""
    groups: Dict[str, List[Run]] = {}
    for run in runs:
        # Runs whose config isn't known stay alone.
        config = run.config.to_dict() or dict(path=run.path)
        own = sorted((key, value) for key, value in config.items()
                     if key not in _OF_A_SEED)
        length = run.metrics[metric].iterations[-1]
        groups.setdefault(repr((own, length)), []).append(run)
    return list(groups.values())


def _names(runs: Sequence[Run]) -> str:
    return ', '.join(run.name for run in runs)


def _worth(run: Run, others: Sequence[Run]) -> Figure:
    title = 'Choice of images'
    if run.worth is None or not math.isfinite(run.worth.low):
        return Figure(
            title, '–', 'What it was worth isn\'t known: too few '
            'visits followed a plan')
    words = worth_in_words(run.worth, 'On average the', '.')
    return Figure(title, f'V {run.worth.value:.2f}',
                  words + _gain(run, run.worth, others))


def _gain(run: Run, worth: VarianceRatio, others: Sequence[Run]) -> str:
    """What the choice of images can have brought, by what more steps brought
    plain runs of another length."""
    name = next(iter(run.metrics), '')
    plain = [
        other for other in others if not other.prunes and name in other.metrics
    ]
    if not plain:
        return ''
    curve = run.metrics[name]
    # The first of several configs counts.
    seeds = _by_config(plain, name)[0]
    length = seeds[0].metrics[name].iterations[-1]
    longer = math.log(length / curve.iterations[-1])
    differ = np.mean([other.metrics[name].values[-1]
                      for other in seeds]) - curve.values[-1]
    if abs(longer) > 0.05 and differ * longer <= 0:
        return (f' More iterations brought no {name} here, so what the choice '
                'brought isn\'t known.')
    brought = quality_gain(worth, longer, float(differ))
    if brought is None:
        return (' Compare with a plain run of another length to see what '
                f'that is in {name}.')
    value, low, high = brought
    return (
        f' By what more iterations brought in {_names(seeds)}, that can have '
        f'brought {value:+.2f} {name} ({low:+.2f} to {high:+.2f}; the '
        'spread of seeds comes on top).')


def quality_gain(ratio: VarianceRatio, longer: float,
                 differ: float) -> Optional[Tuple[float, float, float]]:
    """Return the quality that the choice of images accounts for if it is worth
    ``1 / V`` times the iterations, and the ends of the interval. None where
    this explains most of the difference between the runs.

    Args:
        ratio (VarianceRatio): V of the choice.
        longer (float): Log of the iterations of a plain run over those of the
            run with the choice.
        differ (float): How much higher the quality of the plain one is.
    """
    # The mean of V may reach below 0.
    bring = [-math.log(max(v, 1e-9)) for v in ratio[:3]]
    if abs(longer) < 0.05 or min(1 - more / longer for more in bring) < 0.3:
        return None
    value, *ends = (more * differ / (longer - more) for more in bring)
    return value, min(ends), max(ends)
