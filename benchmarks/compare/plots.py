# Copyright (c) mmib contributors. All rights reserved.
"""Plots of what a comparison found."""
import itertools
import os
import os.path as osp
from typing import Dict

import matplotlib
import pandas as pd

from .paired import BASELINE, compare

matplotlib.use('Agg')
import matplotlib.pyplot as plt  # noqa: E402

BASELINE_COLOUR = '0.1'
# Okabe and Ito's, which the colour-blind can tell apart.
COLOURS = ('#D55E00', '#0072B2', '#009E73', '#CC79A7', '#E69F00', '#56B4E9')
DASHES = ('-', '--', ':')
ARMS_OF_A_PANEL = 4
STYLE = {
    'figure.constrained_layout.use': True,
    'font.size': 9,
    'axes.grid': True,
    'grid.alpha': 0.3,
    'legend.frameon': False,
    'lines.linewidth': 1.4,
}


def line_styles(cells: pd.DataFrame) -> Dict[str, dict]:
    """How each arm is drawn, in all plots."""
    looks = itertools.cycle(itertools.product(DASHES, COLOURS))
    styles = {BASELINE: dict(color=BASELINE_COLOUR)}
    for arm in cells.index.unique('arm').drop(BASELINE):
        dash, colour = next(looks)
        styles[arm] = dict(color=colour, linestyle=dash)
    return styles


def draw_curves(cells: pd.DataFrame, metric: str) -> plt.Figure:
    """A metric against the images processed, of a few arms in each panel.
    Those with most seeds come first, with a band."""
    styles = line_styles(cells)
    seeds = cells.groupby('arm', observed=True).size()
    arms = seeds.drop(BASELINE).sort_values(ascending=False, kind='stable')
    num_panels = max(1, -(-len(arms) // ARMS_OF_A_PANEL))
    size = 1 + 4 * num_panels, 4.4
    figure, axes = plt.subplots(
        1, num_panels, figsize=size, sharey=True, squeeze=False)
    for i, axis in enumerate(axes[0]):
        names = arms.index[i * ARMS_OF_A_PANEL:][:ARMS_OF_A_PANEL]
        for arm in [BASELINE, *names]:
            of_arm = cells.loc[arm]
            evals = pd.DataFrame(of_arm['evals'].explode().tolist())
            images = evals['iter'] * of_arm['batch_size'].iloc[0]
            curve = evals[metric].groupby(images).agg(['mean', 'std'])
            mean, sd = curve['mean'], curve['std']
            axis.plot(mean, label=f'{arm} ({seeds[arm]})', **styles[arm])
            if seeds[arm] == seeds.max():
                look = dict(styles[arm], alpha=0.15, linewidth=0)
                axis.fill_between(mean.index, mean - sd, mean + sd, **look)
        axis.set(xlabel='images processed')
        axis.legend(loc='lower right', title='arm (seeds)')
    axes[0, 0].set_ylabel(f'{metric} (%), mean over seeds, band: 1 sd')
    return figure


def draw_differences(cells: pd.DataFrame, metric: str) -> plt.Figure:
    """Difference to the baseline, of each seed and the mean of an arm."""
    values, styles = cells['quality'].unstack(), line_styles(cells)
    dots = (values - values.loc[BASELINE]).drop(BASELINE).dropna(how='all')
    figure, axis = plt.subplots(figsize=(6.5, 1.1 + 0.36 * len(dots)))
    axis.axvline(0, color=BASELINE_COLOUR, linewidth=1)
    for row, (arm, of_seeds) in enumerate(dots.iterrows()):
        colour = styles[arm]['color']
        mean, half, _ = compare(values, arm, BASELINE)
        axis.scatter(
            of_seeds, [row + 0.25] * len(of_seeds), 16, colour, alpha=0.4)
        axis.errorbar(mean, row, xerr=half, fmt='D', color=colour)
    axis.set(
        title='dots: seeds, diamond: mean with its 95 % interval',
        yticks=range(len(dots)),
        yticklabels=[f'{a} ({n})' for a, n in dots.count(axis=1).items()],
        xlabel=f'{metric} minus that of {BASELINE} with the same seed')
    axis.invert_yaxis()
    return figure


def write_plots(folder: str, cells: pd.DataFrame, metric: str) -> None:
    """Write the plots as PNGs in a folder."""
    os.makedirs(folder, exist_ok=True)
    plots = {metric.lower(): draw_curves, 'differences': draw_differences}
    with plt.rc_context(STYLE):
        for name, draw in plots.items():
            figure = draw(cells, metric)
            figure.savefig(osp.join(folder, f'{name}.png'))
            plt.close(figure)
