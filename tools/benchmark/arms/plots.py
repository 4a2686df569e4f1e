# Copyright (c) mmib contributors. All rights reserved.
"""Plots of a comparison."""
import os.path as osp
from typing import Dict, List, Optional

import matplotlib
import numpy as np
from mmengine.utils import mkdir_or_exist
from PIL import Image

from .results import Arms, differences, mious, paired_difference

matplotlib.use('Agg')
import matplotlib.pyplot as plt  # noqa: E402

BASELINE_COLOUR = '0.1'
# Okabe and Ito's, which the colour-blind can tell apart.
COLOURS = ('#D55E00', '#0072B2', '#009E73', '#CC79A7', '#E69F00', '#56B4E9')
DASHES = ('-', '--', ':')
LINES_OF_A_PANEL = 7
STYLE = {
    'figure.dpi': 100,
    'figure.constrained_layout.use': True,
    'font.size': 9,
    'axes.grid': True,
    'axes.spines.top': False,
    'axes.spines.right': False,
    'axes.titlesize': 'medium',
    'grid.alpha': 0.3,
    'legend.frameon': False,
    'legend.fontsize': 'small',
    'lines.linewidth': 1.4,
}


def line_styles(arms: Arms) -> Dict[str, dict]:
    """How each arm is drawn, in all plots. The first one is the baseline."""
    first, *others = arms
    styles = {first: dict(color=BASELINE_COLOUR, linestyle='-')}
    for i, arm in enumerate(others):
        styles[arm] = dict(
            color=COLOURS[i % len(COLOURS)],
            linestyle=DASHES[i // len(COLOURS) % len(DASHES)])
    return styles


def panels_of(arms: Arms, baseline: str) -> List[List[str]]:
    """Share the arms out to panels: those with most seeds, then the others.

    Args:
        arms (dict): Cells of each arm by seed.
        baseline (str): Arm that each panel begins with.

    Returns:
        list[list[str]]: Arms of each panel.
    """
    most = max(map(len, arms.values()))
    main = [a for a in arms if a != baseline and len(arms[a]) == most]
    others = [a for a in arms if a != baseline and len(arms[a]) < most]
    panels = []
    for names in (main, others):
        if names:
            panels += np.array_split(names, -(-len(names) // LINES_OF_A_PANEL))
    return [[baseline, *names] for names in panels or [[]]]


def draw_miou(arms: Arms, baseline: str) -> plt.Figure:
    """mIoU against the images processed."""
    panels, styles = panels_of(arms, baseline), line_styles(arms)
    most = max(map(len, arms.values()))
    figure, axes = plt.subplots(
        1,
        len(panels),
        figsize=(1 + 4 * len(panels), 4.4),
        sharey=True,
        squeeze=False)
    for axis, names in zip(axes[0], panels):
        for arm in names:
            cells = list(arms[arm].values())
            images = [
                e['iter'] * cells[0]['batch_size'] for e in cells[0]['evals']
            ]
            curves = np.array([[e['mIoU'] for e in cell['evals']]
                               for cell in cells])
            mean, is_main = curves.mean(axis=0), len(cells) == most
            axis.plot(
                images,
                mean,
                label=f'{arm} ({len(cells)})',
                linewidth=1.6 if is_main else 1,
                **styles[arm])
            if is_main and most > 1:
                sd = curves.std(axis=0, ddof=1)
                axis.fill_between(
                    images,
                    mean - sd,
                    mean + sd,
                    color=styles[arm]['color'],
                    alpha=0.15,
                    linewidth=0)
        axis.set(xlabel='images processed')
        axis.legend(loc='lower right', title='arm (seeds)')
    axes[0, 0].set_ylabel('mIoU (%), mean over seeds, band: 1 sd')
    return figure


def draw_differences(arms: Arms, baseline: str,
                     last: float) -> Optional[plt.Figure]:
    """Difference to the baseline, of each seed and the mean of an arm."""
    values, styles = mious(arms, last), line_styles(arms)
    found = {
        arm: paired_difference(values[arm], values[baseline])
        for arm in arms if arm != baseline
    }
    found = {
        arm: difference
        for arm, difference in found.items() if difference.n
    }
    if not found:
        return None
    figure, axis = plt.subplots(figsize=(6.5, 1.1 + 0.36 * len(found)))
    axis.axvline(0, color=BASELINE_COLOUR, linewidth=1)
    for row, (arm, difference) in enumerate(found.items()):
        colour = styles[arm]['color']
        dots = list(differences(values[arm], values[baseline]).values())
        axis.plot(
            dots, [row + 0.25] * len(dots),
            'o',
            color=colour,
            alpha=0.4,
            markersize=4)
        axis.plot([difference.low, difference.high], [row, row], color=colour)
        axis.plot(
            difference.mean, row, 'D', color=colour, markeredgecolor='white')
    axis.set(
        title='dots: seeds, diamond: mean with its 95 % interval',
        yticks=range(len(found)),
        yticklabels=[f'{arm} ({d.n})' for arm, d in found.items()],
        ylim=(-0.5, len(found) - 0.3),
        xlabel=f'mIoU minus that of {baseline} with the same seed')
    axis.invert_yaxis()
    axis.grid(axis='y', visible=False)
    return figure


def lowest(seeds: Dict[int, dict]) -> dict:
    """The cell of the lowest seed."""
    return seeds[min(seeds)]


def plan_curves(cell: dict):
    """What the plans of a cell were like, until its end.

    Returns:
        tuple[list[float]]: Iterations, kept shares and thresholds, which are
        nan where no score decides.
    """
    plans = cell['plans'] + [dict(cell['plans'][-1], iter=cell['iters'])]
    shares = [plan['kept_share'] for plan in plans]
    thresholds = [
        plan['threshold'] if plan['threshold'] != 0 else np.nan
        for plan in plans
    ]
    return [plan['iter'] for plan in plans], shares, thresholds


def draw_plans(arms: Arms) -> Optional[plt.Figure]:
    """Kept share and threshold of the plans of each arm's lowest seed."""
    styles = line_styles(arms)
    pruned = {
        arm: lowest(seeds)
        for arm, seeds in arms.items() if lowest(seeds).get('plans')
    }
    if not pruned:
        return None
    figure, axes = plt.subplots(2, 1, figsize=(7.5, 5.5), sharex=True)
    # Ever thinner: many arms keep the same share, and none should be hidden.
    widths = np.linspace(3.5, 0.9, len(pruned))
    for (arm, cell), width in zip(pruned.items(), widths):
        iters, shares, thresholds = plan_curves(cell)
        for axis, curve in zip(axes, (shares, thresholds)):
            axis.step(
                iters,
                curve,
                where='post',
                label=arm,
                linewidth=width,
                **styles[arm])
    axes[0].set(ylabel='kept share', ylim=(0, 1.05))
    axes[1].set(ylabel='threshold', xlabel='iteration')
    figure.legend(*axes[0].get_legend_handles_labels(), loc='outside right')
    return figure


def scores_arm(arms: Arms, name: Optional[str]) -> Optional[str]:
    """Choose the arm whose scores are drawn.

    Args:
        arms (dict): Cells of each arm by seed.
        name (str, optional): What the user asked for.

    Returns:
        str: This arm, else ``tiers``, else the first one with histograms.
        None if there is none.

    Raises:
        ValueError: If the arm asked for has none.
    """
    able = [
        arm for arm, seeds in arms.items() if lowest(seeds).get('histograms')
    ]
    if name and name not in able:
        raise ValueError(f'--scores {name} has no histograms; {able} have.')
    return name or ('tiers' if 'tiers' in able else next(iter(able), None))


def draw_scores(arm: str, cell: dict) -> plt.Figure:
    """Images of plans by their scores, as Fig. 6 of the InfoBatch paper."""
    histograms = cell['histograms']
    means = {plan['iter']: plan['mean_score'] for plan in cell['plans']}
    figure, axes = plt.subplots(
        1,
        len(histograms),
        figsize=(0.6 + 3 * len(histograms), 3.2),
        squeeze=False)
    for axis, histogram in zip(axes[0], histograms):
        edges = histogram['edges']
        axis.stairs(
            histogram['kept'],
            edges,
            fill=True,
            color=COLOURS[5],
            alpha=0.6,
            label='kept')
        axis.stairs(
            histogram['weighted'],
            edges,
            color=COLOURS[0],
            linewidth=1.4,
            label='kept, by weight')
        axis.stairs(
            histogram['all'],
            edges,
            color=BASELINE_COLOUR,
            linestyle='--',
            label='all images')
        axis.axvline(
            means[histogram['iter']],
            color=BASELINE_COLOUR,
            linestyle=':',
            label='mean score')
        axis.set(title=f'plan at iteration {histogram["iter"]:.0f}')
    axes[0, 0].set_ylabel('images')
    figure.supxlabel(f'score ({arm}, seed {cell["seed"]})', fontsize='medium')
    axes[0, -1].legend(loc='upper right')
    return figure


def save(figure: plt.Figure, path: str):
    """Write a plot. A palette makes it a third as large."""
    figure.canvas.draw()
    pixels = np.asarray(figure.canvas.buffer_rgba())[..., :3]
    Image.fromarray(pixels).quantize().save(path, optimize=True)
    plt.close(figure)


def write_plots(folder: str, arms: Arms, baseline: str, last: float,
                arm_of_scores: Optional[str]):
    """Write the plots for which there are figures.

    Args:
        folder (str): Folder for the PNGs. It need not exist.
        arms (dict): Cells of each arm by seed.
        baseline (str): Arm to compare with.
        last (float): Part of the iterations whose evaluations count.
        arm_of_scores (str, optional): Arm whose scores are drawn.
    """
    mkdir_or_exist(folder)
    with plt.rc_context(STYLE):
        plots = {
            'miou.png': draw_miou(arms, baseline),
            'differences.png': draw_differences(arms, baseline, last),
            'plans.png': draw_plans(arms),
        }
        if arm_of_scores:
            plots['scores.png'] = draw_scores(arm_of_scores,
                                              lowest(arms[arm_of_scores]))
        for name, figure in plots.items():
            if figure:
                save(figure, osp.join(folder, name))
