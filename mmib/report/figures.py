# Copyright (c) mmib contributors. All rights reserved.
"""Plots of a run as pictures that stand in a page, for light and dark."""
import base64
import io
import itertools
from contextlib import contextmanager
from typing import Any, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PolyCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from .read import LoggedPlan, Run

# Sizes of a plot beside one other, and beside two, in inches.
WIDE, SMALL = (5.2, 2.8), (3.8, 2.6)
FULL_EQUIVALENT = 'full equivalent (iterations of the baseline)'

# Colours, on a light ground and on a dark one.
TEXT, FAINT, RUN, OTHER, ACCENT = ('#333a45', '#c9cfd8', '#1f6fd6', '#d9730d',
                                   '#14866d')
_DARK = {
    TEXT: '#c8d0dc',
    FAINT: '#47505e',
    RUN: '#6aa9ff',
    OTHER: '#ffa94d',
    ACCENT: '#4fd1ae'
}
_STYLE = {
    # A pair of $ in a name is not a formula.
    'text.parse_math': False,
    'text.color': TEXT,
    'axes.labelcolor': TEXT,
    'xtick.labelcolor': TEXT,
    'ytick.labelcolor': TEXT,
    'axes.edgecolor': FAINT,
    'grid.color': FAINT,
    'xtick.color': FAINT,
    'ytick.color': FAINT,
    'font.family': 'DejaVu Sans',
    'font.size': 9,
    'axes.grid': True,
    'axes.axisbelow': True,
    'grid.linewidth': 0.5,
    'axes.spines.top': False,
    'axes.spines.right': False,
    'legend.frameon': False,
    'lines.linewidth': 1.6,
    # Glyphs are outlines, so that no font is needed.
    'svg.fonttype': 'path',
    'svg.hashsalt': 'mmib'
}


class Picture(NamedTuple):
    """A plot in a page, as a data URI on a light and on a dark ground, and
    what to see in it."""

    title: str
    light: str
    dark: str
    note: str


@contextmanager
def _drawn(pictures: List[Picture],
           title: str,
           ylabel: str,
           note: str = '',
           size: Tuple[float, float] = SMALL,
           run: Optional[Run] = None) -> Iterator[Axes]:
    """Add a picture of what is drawn on the axes with the colours above, over
    the iterations of a run if one is given."""
    file = io.BytesIO()
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=size, layout='constrained')
        axes = figure.add_subplot()
        axes.set_ylabel(ylabel)
        yield axes
        if run is not None:
            _add_iterations(axes, run)
        figure.savefig(
            file, format='svg', transparent=True, metadata={'Date': None})
    light = dark = file.getvalue().decode()
    for colour, other in _DARK.items():
        dark = dark.replace(colour, other)
    pictures.append(Picture(title, _to_uri(light), _to_uri(dark), note))


def _add_iterations(axes: Axes, run: Run) -> None:
    """Add the axis of iterations, with annealing in it."""
    axes.set_xlabel('iterations')
    end = run.max_iters if run.finished else run.last_iter
    axes.set_xlim(0, max(end or 0, 1))
    begin = run.annealing_iter
    if begin is not None and end and begin < end:
        axes.axvspan(begin, end, color=FAINT, alpha=0.35, lw=0)
        axes.annotate(
            'annealing', ((begin + end) / 2, 0.5),
            xycoords=('data', 'axes fraction'),
            ha='center',
            va='center',
            rotation=90,
            fontsize=8)


def _to_uri(svg: str) -> str:
    data = base64.b64encode(svg.encode()).decode()
    return f'data:image/svg+xml;base64,{data}'


def progress(run: Run, others: Sequence[Run]) -> List[Picture]:
    """Plot the first metric, the loss and other metrics, each by iterations
    and, where runs are compared of which one prunes, by full equivalent."""
    runs = [run, *others]
    kinds = ['iterations']
    if others and any(each.prunes for each in runs):
        kinds.append('full equivalent')
    names = list(dict.fromkeys(n for r in runs for n in r.metrics))
    curves = [(name, [r.metrics.get(name) for r in runs]) for name in names]
    curves.insert(1 if names else 0, ('Loss', [r.loss for r in runs]))
    pictures: List[Picture] = []
    for name, values in curves:
        if any(curve is not None and len(curve.values) for curve in values):
            for kind in kinds:
                with _drawn(
                        pictures, f'{name} by {kind}', name,
                        size=WIDE) as axes:
                    _plot_curves(axes, runs, values, kind != 'iterations')
    return pictures


def _plot_curves(axes: Axes, runs: Sequence[Run], curves: list,
                 by_full: bool) -> None:
    # Others alike, because they may be seeds of one run.
    styles = itertools.chain([(RUN, '-')],
                             itertools.cycle([(OTHER, '--'), (OTHER, ':'),
                                              (OTHER, '-.')]))
    for run, curve, (color, line) in zip(runs, curves, styles):
        if curve is not None and len(curve.values):
            x = curve.iterations
            axes.plot(
                run.full_equivalent(x) if by_full else x,
                curve.values,
                color=color,
                ls=line,
                marker='o' if len(x) <= 20 else None,
                markersize=4,
                label=_label(run, runs))
    axes.set_xlabel(FULL_EQUIVALENT if by_full else 'iterations')
    axes.set_xlim(left=0)
    if len(runs) > 1:
        axes.legend()


def _label(run: Run, runs: Sequence[Run]) -> str:
    names = [other.name for other in runs]
    name = run.name if len(set(names)) == len(names) else run.path
    name = name if len(name) <= 30 else '…' + name[-29:]
    return name.lstrip('_')


def worth(run: Run) -> List[Picture]:
    """Plot V over time."""
    pictures: List[Picture] = []
    known = [plan for plan in run.plans if plan.variance_ratio is not None]
    if known:
        note = ('Below 1 the choice of images helps, at 1 it is chance, above '
                '1 it harms.')
        with _drawn(pictures, 'V, with its 95 % interval', 'V', note, WIDE,
                    run) as axes:
            iterations = [plan.iter for plan in known]
            ratios = np.array([plan.variance_ratio for plan in known])
            value, low, high, limit = ratios.astype(np.float64).T
            axes.axhline(1, color=TEXT, lw=1, ls='--', label='at random')
            axes.fill_between(
                iterations, low, high, color=RUN, alpha=0.25, lw=0)
            axes.plot(iterations, value, color=RUN, label='V')
            if np.isfinite(limit).any():
                axes.plot(
                    iterations,
                    limit,
                    ':',
                    color=ACCENT,
                    lw=1.2,
                    label='least that a choice can reach')
            axes.figure.legend(loc='outside upper left', ncols=3)
    return pictures


def pruning(run: Run) -> List[Picture]:
    """Plot kept share, tiers and scores over time."""
    pictures: List[Picture] = []
    if not run.prunes:
        return pictures
    iterations = [plan.iter for plan in run.plans] + [run.last_iter]

    def steps(values: list, **kwargs: Any) -> None:
        axes.step(iterations, values + values[-1:], where='post', **kwargs)

    with _drawn(pictures, 'Kept share', 'kept images (%)', run=run) as axes:
        steps([100 * run.kept_share(plan) for plan in run.plans], color=RUN)
        axes.set_ylim(0, 105)
    if any(plan.tiers for plan in run.plans):
        note = 'The images in order of their score, in tiers (bands).'
        with _drawn(pictures, 'Kept share by score',
                    'lowest to highest\nscore (% of images)', note) as axes:
            _plot_tiers(axes, run.plans, iterations)
    title, note = 'Mean score', 'This policy has no threshold.'
    has_threshold = any(plan.threshold for plan in run.plans)
    if has_threshold:
        title += ' and threshold'
        note = 'Images with the threshold or more are all kept.'
    with _drawn(pictures, title, 'score', note, run=run) as axes:
        means = [plan.mean_score for plan in run.plans]
        axes.plot(iterations[:-1], means, color=RUN, label='mean score')
        if has_threshold:
            thresholds = [plan.threshold or np.nan for plan in run.plans]
            steps(thresholds, color=ACCENT, label='threshold')
            axes.legend()
    return pictures


def _plot_tiers(axes: Axes, plans: Sequence[LoggedPlan],
                iterations: Sequence[float]) -> None:
    """Plot a column for each plan, and in it the kept share of each tier."""
    colours = ScalarMappable(Normalize(0, 1), 'viridis')
    corners: List[List[Tuple[float, float]]] = []
    shares: List[float] = []
    for plan, end in zip(plans, iterations[1:]):
        sizes, kept = np.array([tier[:2] for tier in plan.tiers],
                               np.float64).reshape(-1, 2).T
        edges = 100 * np.append(0, sizes.cumsum()) / max(sizes.sum(), 1)
        corners += [[(plan.iter, low), (plan.iter, high), (end, high),
                     (end, low)] for low, high in zip(edges, edges[1:])]
        shares += (kept / np.maximum(sizes, 1)).tolist()
    axes.add_collection(
        PolyCollection(
            corners,
            facecolors=colours.to_rgba(np.array(shares)),
            rasterized=True))
    axes.grid(False)
    axes.set(xlim=(0, iterations[-1]), ylim=(0, 100), xlabel='iterations')
    bar = axes.figure.colorbar(colours, ax=axes, label='kept share')
    bar.outline.set_visible(False)


def histograms(run: Run) -> List[Picture]:
    """Plot the scores at the first, middle and last plan that prunes."""
    known = [(plan.iter, plan.histogram) for plan in run.plans
             if plan.histogram]
    pictures: List[Picture] = []
    for i in sorted({0, len(known) // 2, len(known) - 1} if known else ()):
        iteration, (edges, every, kept, weighted) = known[i]
        with _drawn(pictures, f'Scores at iteration {iteration}',
                    'images') as axes:
            axes.stairs(every, edges, fill=True, color=FAINT, label='all')
            axes.stairs(kept, edges, color=RUN, label='kept', lw=1.6)
            axes.stairs(
                weighted,
                edges,
                color=OTHER,
                label='kept, by weight',
                lw=1.6,
                ls=(0, (3, 1.5)))
            axes.set_xlabel('score')
            axes.legend()
    return pictures
