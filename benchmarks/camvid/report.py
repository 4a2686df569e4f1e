# Copyright (c) mmib contributors. All rights reserved.
"""Print what a comparison by run.py found, as tables, and draw plots.

The arm ``full`` is the baseline. The results may still grow: arms with few
seeds have rows too.
"""
import argparse
import itertools
import os
import os.path as osp
from typing import Dict, Optional

import matplotlib
import numpy as np
import paired
import pandas as pd
from paired import BASELINE, compare, markdown
from results import read_results

matplotlib.use('Agg')
import matplotlib.pyplot as plt  # noqa: E402

# Arms of arms.py: each but for one thing like the other.
PAIRS = [
    'tiers:short', 'budget:short', 'random:short', 'mean:short_80',
    'above_mean:short_80', 'no_rescale:short', 'epsilon_greedy:short',
    'ucb:short', 'tiers:random', 'budget:random', 'epsilon_greedy:random',
    'ucb:random', 'budget:tiers', 'no_rescale:tiers', 'no_annealing:tiers',
    'ema:tiers', 'mean:above_mean', 'neyman:random', 'neyman:tiers',
    'tiers_shuffled:random', 'random:short_lr', 'tiers:short_lr',
    'neyman:short_lr'
]
# Part of the iterations, at their end, whose evaluations count.
LAST = 0.1
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


def load(path: str) -> pd.DataFrame:
    """Read the results: a row for each cell, with the keys of its line and
    `miou`, by `arm` and `seed`. It raises a ValueError where cells can't be
    compared with each other."""
    cells = paired.by_arm_and_seed(
        read_results(path),
        ('batch_size', 'num_images', 'device', 'threads', 'versions'))
    miou = [final_miou(cell) for _, cell in cells.iterrows()]
    return cells.assign(miou=miou)


def final_miou(cell: pd.Series) -> float:
    """Mean mIoU of the evaluations in the last part of the iterations."""
    # (1 - 0.1) * iters may round to more.
    start = cell['iters'] - LAST * cell['iters'] - 1e-6
    return np.mean([e['mIoU'] for e in cell['evals'] if e['iter'] >= start])


def result_table(cells: pd.DataFrame) -> pd.DataFrame:
    """Quality of each arm."""
    of_arms = cells.groupby('arm')
    return pd.DataFrame({
        'seeds': of_arms.size(),
        'iterations': of_arms['iters'].first(),
        'virtual epochs': of_arms['virtual_epochs'].mean().map(
            '{:.1f}'.format),
        'mIoU': of_arms['miou'].mean(),
        'sd': of_arms['miou'].std()
    }).join(paired.differences(cells['miou'].unstack(), _ratios(cells)))


def _ratios(cells: pd.DataFrame) -> Optional[pd.Series]:
    """V of each arm, where cells have it."""
    if 'variance_ratio' not in cells:
        return None
    values = cells['variance_ratio'].dropna().str[0].astype(float)
    return values.groupby('arm').mean()


def pair_table(cells: pd.DataFrame) -> pd.DataFrame:
    """What arms differ by from others than the baseline."""
    return paired.pair_table(cells['miou'].unstack(), PAIRS)


def worth_table(cells: pd.DataFrame) -> pd.DataFrame:
    """What V says that choices of images are worth, and what came of them."""
    iters = cells.groupby('arm')['iters'].first()
    return paired.worth_table(cells['miou'].unstack(), iters, _ratios(cells),
                              'mIoU')


def cost_table(cells: pd.DataFrame) -> pd.DataFrame:
    """Cost of each arm, in the median over its seeds."""
    titles = {
        'saved_iters': 'covered besides',
        'train_seconds': 'wall time (s)',
        'train_cpu_seconds': 'CPU time (s)',
        'step_ms': 'step (ms)'
    }
    cells = cells.assign(step_ms=1000 * cells['step_seconds'])
    of_arms = cells.groupby('arm')
    iters = of_arms['iters'].first()
    saved = (1 - iters / iters[BASELINE]).map('{:.1%}'.format)
    medians = of_arms[list(titles)].median().round().astype(int)
    return pd.DataFrame({
        'iterations': iters,
        'iterations saved': saved
    }).join(medians.rename(columns=titles))


def report(cells: pd.DataFrame) -> str:
    """All tables, with what their columns are."""
    pairs, worth = pair_table(cells), worth_table(cells)
    return '\n\n'.join([
        '### Results',
        f'mIoU: mean of the evaluations in the last {LAST:.0%} of the '
        'iterations, over seeds. Differences: mean over the seeds that both '
        'arms have, with its 95 % t-interval. Undecided: the interval holds '
        '0, the difference is inside the spread of the seeds.',
        markdown(result_table(cells)),
        *(['### What each part does',
           markdown(pairs)] if len(pairs) else []),
        *([
            '### What the choice was worth',
            'V, mean over the seeds, and the share of the steps that it makes '
            'of it; the mIoU that as many more steps bring a plain training, '
            'by what the longer one gains; and what was seen.',
            markdown(worth)
        ] if len(worth) else []),
        '### Cost',
        'Covered besides: iterations that the baseline needs more for the '
        'same virtual epochs. Times are those of training without validation, '
        'medians over the seeds. They hold what other work on the machine '
        'took, so arms of different hours are not to be compared by them: '
        'benchmarks/step.py does that.',
        markdown(cost_table(cells)),
        '### mIoU of each cell',
        markdown(cells['miou'].unstack().add_prefix('seed ')),
    ])


def line_styles(cells: pd.DataFrame) -> Dict[str, dict]:
    """How each arm is drawn, in all plots."""
    looks = itertools.cycle(itertools.product(DASHES, COLOURS))
    styles = {BASELINE: dict(color=BASELINE_COLOUR)}
    for arm in cells.index.unique('arm').drop(BASELINE):
        dash, colour = next(looks)
        styles[arm] = dict(color=colour, linestyle=dash)
    return styles


def draw_miou(cells: pd.DataFrame) -> plt.Figure:
    """mIoU against the images processed, of a few arms in each panel. Those
    with most seeds come first, with a band."""
    styles = line_styles(cells)
    seeds = cells.groupby('arm').size()
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
            curve = evals['mIoU'].groupby(images).agg(['mean', 'std'])
            mean, sd = curve['mean'], curve['std']
            axis.plot(mean, label=f'{arm} ({seeds[arm]})', **styles[arm])
            if seeds[arm] == seeds.max():
                look = dict(styles[arm], alpha=0.15, linewidth=0)
                axis.fill_between(mean.index, mean - sd, mean + sd, **look)
        axis.set(xlabel='images processed')
        axis.legend(loc='lower right', title='arm (seeds)')
    axes[0, 0].set_ylabel('mIoU (%), mean over seeds, band: 1 sd')
    return figure


def draw_differences(cells: pd.DataFrame) -> Optional[plt.Figure]:
    """Difference to the baseline, of each seed and the mean of an arm."""
    mious, styles = cells['miou'].unstack(), line_styles(cells)
    dots = (mious - mious.loc[BASELINE]).drop(BASELINE).dropna(how='all')
    if dots.empty:
        return None
    figure, axis = plt.subplots(figsize=(6.5, 1.1 + 0.36 * len(dots)))
    axis.axvline(0, color=BASELINE_COLOUR, linewidth=1)
    for row, (arm, of_seeds) in enumerate(dots.iterrows()):
        colour = styles[arm]['color']
        mean, half, _ = compare(mious, arm, BASELINE)
        axis.scatter(
            of_seeds, [row + 0.25] * len(of_seeds), 16, colour, alpha=0.4)
        axis.errorbar(mean, row, xerr=half, fmt='D', color=colour)
    axis.set(
        title='dots: seeds, diamond: mean with its 95 % interval',
        yticks=range(len(dots)),
        yticklabels=[f'{a} ({n})' for a, n in dots.count(axis=1).items()],
        xlabel=f'mIoU minus that of {BASELINE} with the same seed')
    axis.invert_yaxis()
    return figure


def plan_curves(cell: pd.Series) -> pd.DataFrame:
    """What the plans of a cell were like, until its end. Thresholds are nan
    where no score decides."""
    last = dict(cell['plans'][-1], iter=cell['iters'])
    plans = pd.DataFrame([*cell['plans'], last]).set_index('iter')
    return plans.assign(threshold=plans['threshold'].replace(0, np.nan))


def draw_plans(cells: pd.DataFrame) -> Optional[plt.Figure]:
    """Kept share and threshold of the plans of each arm's lowest seed."""
    styles = line_styles(cells)
    pruned = cells[cells['plans'].str.len() > 0].groupby('arm').head(1)
    if pruned.empty:
        return None
    figure, axes = plt.subplots(2, 1, figsize=(7.5, 5.5), sharex=True)
    # Ever thinner: many arms keep the same share, and none should be hidden.
    widths = np.linspace(3.5, 0.9, len(pruned))
    for ((arm, _), cell), width in zip(pruned.iterrows(), widths):
        curves = plan_curves(cell)
        style = dict(styles[arm], label=arm, linewidth=width)
        for axis, name in zip(axes, ('kept_share', 'threshold')):
            axis.step(curves.index, curves[name], where='post', **style)
    axes[0].set(ylabel='kept share', ylim=(0, 1.05))
    axes[1].set(ylabel='threshold', xlabel='iteration')
    figure.legend(*axes[0].get_legend_handles_labels(), loc='outside right')
    return figure


def draw_scores(cells: pd.DataFrame) -> Optional[plt.Figure]:
    """Images of the plans of the first arm that has histograms, of its lowest
    seed, by their scores, as Fig. 6 of the InfoBatch paper."""
    able = cells[cells['histograms'].str.len() > 0]
    if able.empty:
        return None
    (arm, seed), cell = next(able.iterrows())
    means = {plan['iter']: plan['mean_score'] for plan in cell['plans']}
    number = len(cell['histograms'])
    figure, axes = plt.subplots(
        1, number, figsize=(0.6 + 3 * number, 3.2), squeeze=False)
    styles = dict(
        kept=dict(label='kept', fill=True, color=COLOURS[5], alpha=0.6),
        weighted=dict(label='kept, by weight', color=COLOURS[0]),
        all=dict(label='all images', color=BASELINE_COLOUR, linestyle='--'))
    for axis, histogram in zip(axes[0], cell['histograms']):
        for key, style in styles.items():
            axis.stairs(histogram[key], histogram['edges'], **style)
        mean = means[histogram['iter']]
        axis.axvline(mean, label='mean score', color='0.1', linestyle=':')
        axis.set(title=f'plan at iteration {histogram["iter"]:.0f}')
    axes[0, 0].set_ylabel('images')
    figure.supxlabel(f'score ({arm}, seed {seed})')
    axes[0, -1].legend(loc='upper right')
    return figure


def write_plots(folder: str, cells: pd.DataFrame) -> None:
    """Write the plots for which there are figures, as PNGs in a folder."""
    os.makedirs(folder, exist_ok=True)
    with plt.rc_context(STYLE):
        for draw in (draw_miou, draw_differences, draw_plans, draw_scores):
            figure = draw(cells)
            if figure:
                name = draw.__name__.replace('draw_', '')
                figure.savefig(osp.join(folder, f'{name}.png'))
                plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('results', help='file of JSON lines by run.py')
    parser.add_argument('--out', help='folder for the plots (default: none)')
    args = parser.parse_args()
    try:
        cells = load(args.results)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    print(report(cells))
    if args.out:
        write_plots(args.out, cells)


if __name__ == '__main__':
    main()
