# Copyright (c) mmib contributors. All rights reserved.
"""One HTML file of everything."""
import base64
import hashlib
import math
import os.path as osp
from datetime import timedelta
from functools import partial
from typing import List, NamedTuple, Optional
from urllib.parse import quote

import jinja2
from markupsafe import Markup, escape

from ..log.reporter import worth_in_words
from ..version import __version__
from ..worth import VarianceRatio, gain
from . import figures
from .read import Run

# A narrow space at which no line breaks.
_THIN = '\u202f'


class Figure(NamedTuple):
    """A figure of the summary: what it is, its value, and what to know."""

    title: str
    value: str
    note: str = ''


class Section(NamedTuple):
    """A part of the page that isn't of the run: HTML, its style and its
    script, or none."""

    html: Markup
    style: Markup
    script: Markup


def environment_of(folder: str) -> jinja2.Environment:
    """For templates in a folder."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True)
    environment.filters.update(
        digest=_digest,
        figure=number,
        sentence=_sentence,
        # A file name may be no text in UTF-8.
        url=partial(quote, errors='surrogateescape'))
    return environment


def render(run: Run, other: Optional[Run], notes: List[str],
           section: Optional[Section]) -> str:
    """Draw the plots, and fill ``template.html``."""
    progress = figures.progress(run, other)
    environment = environment_of(osp.dirname(__file__))
    return environment.get_template('template.html').render(
        version=__version__,
        run=run,
        other=other,
        summary=summary(run, other),
        notes=notes,
        # Those of the first metric and the loss, and all others.
        progress=progress[:4],
        more_progress=progress[4:],
        worth=figures.worth(run),
        pruning=figures.pruning(run),
        histograms=figures.histograms(run),
        section=section or Section(*[Markup()] * 3))


def _digest(script: str) -> str:
    """By which the page allows its script."""
    digest = hashlib.sha256(script.encode()).digest()
    return base64.b64encode(digest).decode()


def _sentence(text: str) -> Markup:
    """A sentence of which the parts in backticks are code."""
    parts = [escape(part) for part in text.split('`')]
    for i in range(1, len(parts) - 1, 2):
        parts[i] = Markup('<code>{}</code>').format(parts[i])
    return Markup('').join(parts)


def number(value: Optional[float], digits: int = 4) -> str:
    """A number in a few digits, and a dash where it isn't known."""
    if value is None or not math.isfinite(value):
        return '–'
    if float(value).is_integer() and abs(value) < 1e9:
        return f'{value:,.0f}'.replace(',', _THIN)
    return f'{value:.{digits}g}'


def summary(run: Run, other: Optional[Run]) -> List[Figure]:
    """The row of figures on top."""
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
                f'{run.saved_iters / max(full, 1):.0%} saved'))
    figures += _times(run, other) + _quality(run, other)
    if run.prunes:
        figures.append(_worth(run, other))
    if run.pruned and run.visits:
        figures.append(
            Figure(
                'Pruned', f'{run.pruned / run.visits:.0%}',
                f'{number(run.pruned)} of {number(run.visits)} visits of '
                'images'))
    return figures


def _times(run: Run, other: Optional[Run]) -> List[Figure]:
    if run.seconds is None:
        return []
    notes = [_validation(run)]
    if run.num_starts > 1:
        notes.append(f'in {run.num_starts} starts')
    if other is not None and other.seconds is not None:
        notes.append(f'{other.name}: {_time(other.seconds)} '
                     f'{_validation(other)}')
    return [Figure('Wall time', _time(run.seconds), ', '.join(notes))]


def _validation(run: Run) -> str:
    return f'with{"" if run.has_infobatch else "out"} validation'


def _time(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


def _quality(run: Run, other: Optional[Run]) -> List[Figure]:
    if not run.metrics:
        return []
    name, curve = next(iter(run.metrics.items()))
    note = f'at iteration {number(curve.iterations[-1])}'
    if other is not None and name in other.metrics:
        compared = other.metrics[name]
        note += (f'; {other.name}: {compared.values[-1]:.2f} at '
                 f'{number(compared.iterations[-1])}')
    return [Figure(name, f'{curve.values[-1]:.2f}', note)]


def _worth(run: Run, other: Optional[Run]) -> Figure:
    title = 'Choice of images'
    if run.worth is None or not math.isfinite(run.worth.low):
        return Figure(
            title, '–', 'What it was worth isn\'t known: too few '
            'visits followed a plan')
    words = worth_in_words(run.worth, 'On average the', '.')
    return Figure(title, f'V {run.worth.value:.2f}',
                  words + _gain(run, run.worth, other))


def _gain(run: Run, worth: VarianceRatio, other: Optional[Run]) -> str:
    """What the choice of images can have brought, by what a plain training of
    another length tells of more steps."""
    name = next(iter(run.metrics), '')
    if other is None or other.prunes or name not in other.metrics:
        return ''
    curve, compared = run.metrics[name], other.metrics[name]
    longer = math.log(compared.iterations[-1] / curve.iterations[-1])
    brought = gain(worth, longer, compared.values[-1] - curve.values[-1])
    if brought is None:
        return (' Compare with a plain training of another length to see what '
                f'that is in {name}.')
    value, low, high = brought
    return (f' By what more iterations brought in {other.name}, that can have '
            f'brought {value:+.2f} {name} ({low:+.2f} to {high:+.2f}; the '
            'spread of seeds comes on top).')
