# Copyright (c) mmib contributors. All rights reserved.
"""Print what a comparison by run.py found, as tables, and draw plots.

The results may still grow: arms with few seeds have rows too.
"""
import argparse
import os
import os.path as osp
from typing import Dict, List, NamedTuple, Optional

import matplotlib
import numpy as np
import pandas as pd
from PIL import Image
from results import read_results
from scipy import stats

matplotlib.use('Agg')
import matplotlib.pyplot as plt  # noqa: E402

# Of arms.py: each but for one thing like the other.
PAIRS = [
    'tiers:short', 'budget:short', 'random:short', 'mean:short_80',
    'above_mean:short_80', 'no_rescale:short', 'epsilon_greedy:short',
    'ucb:short', 'tiers:random', 'budget:random', 'epsilon_greedy:random',
    'ucb:random', 'budget:tiers', 'no_rescale:tiers', 'no_annealing:tiers',
    'ema:tiers', 'mean:above_mean'
]
NONE = '-'
BASELINE_COLOUR = '0.1'
# Okabe and Ito's, which the colour-blind can tell apart.
COLOURS = ('#D55E00', '#0072B2', '#009E73', '#CC79A7', '#E69F00', '#56B4E9')
DASHES = ('-', '--', ':')
LINES_OF_A_PANEL = 7
STYLE = {
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


def load(path: str, baseline: str = 'full', last: float = 0.1) -> pd.DataFrame:
    """Read the results, and refuse those that don't make a comparison.

    Args:
        path (str): File of JSON lines.
        baseline (str): Arm that the others are compared with. Defaults to
            'full'.
        last (float): Part of the iterations whose evaluations count. Defaults
            to 0.1.

    Returns:
        pd.DataFrame: A row for each cell, with the keys of its line and
        `miou`, by `arm` (the baseline first, else as in the file) and `seed`.

    Raises:
        ValueError: If cells can't be compared with each other.
    """
    cells = pd.DataFrame(read_results(path))
    if baseline not in cells.get('arm', pd.Series()).values:
        raise ValueError(f'The results have no cell of {baseline}, the '
                         'baseline: train it, or give another --baseline.')
    for _, cell in cells[cells.duplicated(['arm', 'seed'])].iterrows():
        raise ValueError(f'The results have two lines for seed {cell["seed"]} '
                         f'of {cell["arm"]}: remove one of them.')
    _check_alike('the results', cells,
                 ['batch_size', 'num_images', 'device', 'threads', 'versions'])
    for arm, of_arm in cells.groupby('arm'):
        _check_alike(arm, of_arm, ['config', 'iters'])
    cells['miou'] = [final_miou(cell, last) for _, cell in cells.iterrows()]
    names = [baseline, *cells['arm'][cells['arm'] != baseline].unique()]
    cells['arm'] = pd.Categorical(cells['arm'], names)
    return cells.sort_values(['arm', 'seed']).set_index(['arm', 'seed'])


def _check_alike(name: str, cells: pd.DataFrame, keys: List[str]) -> None:
    for key in keys:
        values = sorted(cells[key].astype(str).unique())
        if len(values) > 1:
            raise ValueError(
                f'The cells of {name} differ in `{key}`, {", ".join(values)}: '
                'compare those that are alike.')


def final_miou(cell: pd.Series, last: float) -> float:
    """Mean mIoU of the evaluations in the last part of the iterations."""
    # Not (1 - 0.7) * 10, which is above 3.
    start = cell['iters'] - last * cell['iters'] - 1e-6
    return np.mean([e['mIoU'] for e in cell['evals'] if e['iter'] >= start])


class Difference(NamedTuple):
    """How far an arm lies above another one.

    Args:
        mean (float): Mean over the seeds of both, nan without any.
        low (float): Lower end of the 95 % t-interval, nan for one seed.
        high (float): Upper end.
        n (int): Seeds of both.
    """

    mean: float
    low: float
    high: float
    n: int

    @property
    def verdict(self) -> str:
        """str: What the interval says."""
        if self.n < 2:
            return NONE
        if self.low > 0:
            return 'above'
        return 'below' if self.high < 0 else 'undecided'

    def __str__(self) -> str:
        if self.n < 2:
            return f'{self.mean:+.2f}' if self.n else NONE
        return f'{self.mean:+.2f} [{self.low:+.2f}, {self.high:+.2f}]'


def compare(mious: pd.DataFrame, arm: str, other: str) -> Difference:
    """Compare two arms seed by seed.

    Args:
        mious (pd.DataFrame): mIoU of each arm (rows) and seed (columns).
        arm (str): Name of an arm.
        other (str): Name of the one to compare with.
    """
    values = (mious.loc[arm] - mious.loc[other]).dropna()
    mean, n = values.mean(), len(values)
    half = stats.t.ppf(0.975, n - 1) * values.sem() if n > 1 else np.nan
    return Difference(mean, mean - half, mean + half, n)


def result_table(cells: pd.DataFrame) -> pd.DataFrame:
    """Quality of each arm. The first one is the baseline."""
    mious, rows = cells['miou'].unstack(), {}
    baseline = mious.index[0]
    for arm, of_arm in cells.groupby('arm', observed=True):
        found = compare(mious, arm, baseline)
        both = mious.loc[baseline][mious.loc[arm].notna()]
        compared = [_text(both.mean()), found, found.verdict]
        rows[arm] = [
            len(of_arm), of_arm['iters'].iloc[0],
            f'{of_arm["virtual_epochs"].mean():.1f}',
            _text(of_arm['miou'].mean()),
            _text(of_arm['miou'].std()),
            *([NONE] * 3 if arm == baseline else compared)
        ]
    columns = [
        'seeds', 'iterations', 'virtual epochs', 'mIoU', 'sd',
        f'{baseline} with these seeds', f'difference to {baseline}', 'which is'
    ]
    return pd.DataFrame.from_dict(rows, 'index', object, columns)


def pair_table(cells: pd.DataFrame, pairs: List[str]) -> pd.DataFrame:
    """What arms differ by from others than the baseline.

    Args:
        cells (pd.DataFrame): The cells.
        pairs (list[str]): Two arms with a colon between. Those of which one
            wasn't run have no row.
    """
    mious, rows = cells['miou'].unstack(), []
    for arm, other in (pair.split(':') for pair in pairs):
        if arm in mious.index and other in mious.index:
            found = compare(mious, arm, other)
            rows.append([arm, other, found.n, found, found.verdict])
    columns = ['arm', 'compared with', 'seeds', 'difference', 'which is']
    return pd.DataFrame(rows, columns=columns, dtype=object).set_index('arm')


def cost_table(cells: pd.DataFrame) -> pd.DataFrame:
    """Cost of each arm, in the median over its seeds."""
    of_arms = cells.groupby('arm', observed=True)
    iters = of_arms['iters'].first()
    table = {
        'iterations': iters,
        'iterations saved': (1 - iters / iters.iloc[0]).map('{:.1%}'.format)
    }
    for title, key, factor in (('covered besides', 'saved_iters',
                                1), ('wall time (s)', 'train_seconds', 1),
                               ('CPU time (s)', 'train_cpu_seconds',
                                1), ('step (ms)', 'step_seconds', 1000)):
        figures = factor * of_arms[key].median()
        table[title] = figures.map('{:.0f}'.format)
    return pd.DataFrame(table, dtype=object)


def cell_table(cells: pd.DataFrame) -> pd.DataFrame:
    """The mIoU of each cell."""
    return cells['miou'].unstack().map(_text).add_prefix('seed ')


def _text(value: float) -> str:
    return NONE if np.isnan(value) else f'{value:.2f}'


def markdown(table: pd.DataFrame) -> str:
    """A table with the arms in its first column."""
    rows = [['arm', *table.columns]]
    rows += [[arm, *row] for arm, row in zip(table.index, table.values)]
    lines = ['| ' + ' | '.join(map(str, row)) + ' |' for row in rows]
    return '\n'.join([lines[0], '|---' * len(rows[0]) + '|', *lines[1:]])


def report(cells: pd.DataFrame,
           pairs: List[str] = PAIRS,
           last: float = 0.1) -> str:
    """All tables, with what their columns are."""
    paired = pair_table(cells, pairs)
    return '\n\n'.join([
        '### Results',
        f'mIoU: mean of the evaluations in the last {last:.0%} of the '
        'iterations, over seeds. Differences: mean over the seeds that both '
        'arms have, with its 95 % t-interval. Undecided: the interval holds '
        '0, the difference is inside the spread of the seeds.',
        markdown(result_table(cells)),
        *(['### What each part does',
           markdown(paired)] if len(paired) else []),
        '### Cost',
        'Covered besides: iterations that the baseline needs more for the '
        'same virtual epochs. Times are those of training without validation, '
        'medians over the seeds. They hold what other work on the machine '
        'took, so arms of different hours are not to be compared by them: '
        'benchmarks/step.py does that.',
        markdown(cost_table(cells)),
        '### mIoU of each cell',
        markdown(cell_table(cells)),
    ])


def line_styles(cells: pd.DataFrame) -> Dict[str, dict]:
    """How each arm is drawn, in all plots. The first one is the baseline."""
    first, *others = cells.index.unique('arm')
    styles = {first: dict(color=BASELINE_COLOUR, linestyle='-')}
    for i, arm in enumerate(others):
        styles[arm] = dict(
            color=COLOURS[i % len(COLOURS)],
            linestyle=DASHES[i // len(COLOURS) % len(DASHES)])
    return styles


def panels_of(cells: pd.DataFrame) -> List[List[str]]:
    """Share the arms out to panels, each with the baseline: those with most
    seeds, then the others."""
    seeds = cells.groupby('arm', observed=True).size()
    baseline, others = seeds.index[0], seeds.iloc[1:]
    panels = []
    for names in (others.index[others == seeds.max()],
                  others.index[others < seeds.max()]):
        if len(names):
            panels += np.array_split(names, -(-len(names) // LINES_OF_A_PANEL))
    return [[baseline, *names] for names in panels or [[]]]


def draw_miou(cells: pd.DataFrame) -> plt.Figure:
    """mIoU against the images processed."""
    panels, styles = panels_of(cells), line_styles(cells)
    most = cells.groupby('arm', observed=True).size().max()
    size = (1 + 4 * len(panels), 4.4)
    figure, axes = plt.subplots(
        1, len(panels), figsize=size, sharey=True, squeeze=False)
    for axis, names in zip(axes[0], panels):
        for arm in names:
            of_arm = cells.loc[arm]
            evals = pd.DataFrame(of_arm['evals'].explode().tolist())
            images = evals['iter'] * of_arm['batch_size'].iloc[0]
            curve = evals['mIoU'].groupby(images).agg(['mean', 'std'])
            is_main = len(of_arm) == most
            style = dict(styles[arm], linewidth=1.6 if is_main else 1)
            axis.plot(curve['mean'], label=f'{arm} ({len(of_arm)})', **style)
            if is_main:
                low, high = (curve['mean'] + s * curve['std'] for s in (-1, 1))
                style = dict(color=style['color'], alpha=0.15, linewidth=0)
                axis.fill_between(curve.index, low, high, **style)
        axis.set(xlabel='images processed')
        axis.legend(loc='lower right', title='arm (seeds)')
    axes[0, 0].set_ylabel('mIoU (%), mean over seeds, band: 1 sd')
    return figure


def draw_differences(cells: pd.DataFrame) -> Optional[plt.Figure]:
    """Difference to the baseline, of each seed and the mean of an arm."""
    mious, styles = cells['miou'].unstack(), line_styles(cells)
    baseline = mious.index[0]
    dots = (mious - mious.loc[baseline]).iloc[1:].dropna(how='all')
    if dots.empty:
        return None
    figure, axis = plt.subplots(figsize=(6.5, 1.1 + 0.36 * len(dots)))
    axis.axvline(0, color=BASELINE_COLOUR, linewidth=1)
    for row, arm in enumerate(dots.index):
        colour, found = styles[arm]['color'], compare(mious, arm, baseline)
        style = dict(color=colour, alpha=0.4, markersize=4)
        axis.plot(dots.loc[arm], [row + 0.25] * len(dots.columns), 'o',
                  **style)
        axis.plot([found.low, found.high], [row, row], color=colour)
        axis.plot(found.mean, row, 'D', color=colour, markeredgecolor='white')
    axis.set(
        title='dots: seeds, diamond: mean with its 95 % interval',
        yticks=range(len(dots)),
        yticklabels=[f'{a} ({n})' for a, n in dots.count(axis=1).items()],
        ylim=(-0.5, len(dots) - 0.3),
        xlabel=f'mIoU minus that of {baseline} with the same seed')
    axis.invert_yaxis()
    axis.grid(axis='y', visible=False)
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
    pruned = cells[cells['plans'].str.len() > 0].groupby(
        'arm', observed=True).head(1)
    if pruned.empty:
        return None
    figure, axes = plt.subplots(2, 1, figsize=(7.5, 5.5), sharex=True)
    # Ever thinner: many arms keep the same share, and none should be hidden.
    widths = np.linspace(3.5, 0.9, len(pruned))
    for ((arm, _), cell), width in zip(pruned.iterrows(), widths):
        curves = plan_curves(cell)
        style = dict(styles[arm], label=arm, linewidth=width, where='post')
        for axis, name in zip(axes, ('kept_share', 'threshold')):
            axis.step(curves.index, curves[name], **style)
    axes[0].set(ylabel='kept share', ylim=(0, 1.05))
    axes[1].set(ylabel='threshold', xlabel='iteration')
    figure.legend(*axes[0].get_legend_handles_labels(), loc='outside right')
    return figure


def draw_scores(cells: pd.DataFrame, arm: str) -> plt.Figure:
    """Images of the plans of an arm's lowest seed by their scores, as Fig. 6
    of the InfoBatch paper."""
    cell = cells.loc[arm].iloc[0]
    means = {plan['iter']: plan['mean_score'] for plan in cell['plans']}
    number = len(cell['histograms'])
    figure, axes = plt.subplots(
        1, number, figsize=(0.6 + 3 * number, 3.2), squeeze=False)
    styles = dict(
        kept=dict(label='kept', fill=True, color=COLOURS[5], alpha=0.6),
        weighted=dict(
            label='kept, by weight', color=COLOURS[0], linewidth=1.4),
        all=dict(label='all images', color=BASELINE_COLOUR, linestyle='--'))
    of_mean = dict(label='mean score', color=BASELINE_COLOUR, linestyle=':')
    for axis, histogram in zip(axes[0], cell['histograms']):
        for key, style in styles.items():
            axis.stairs(histogram[key], histogram['edges'], **style)
        axis.axvline(means[histogram['iter']], **of_mean)
        axis.set(title=f'plan at iteration {histogram["iter"]:.0f}')
    axes[0, 0].set_ylabel('images')
    figure.supxlabel(
        f'score ({arm}, seed {cells.loc[arm].index[0]})', fontsize='medium')
    axes[0, -1].legend(loc='upper right')
    return figure


def scores_arm(cells: pd.DataFrame, name: Optional[str]) -> Optional[str]:
    """Choose the arm whose scores are drawn: the one that was asked for, else
    ``tiers``, else the first one with histograms.

    Raises:
        ValueError: If the arm asked for has none.
    """
    able = list(cells[cells['histograms'].str.len() > 0].index.unique('arm'))
    if name and name not in able:
        raise ValueError(f'--scores {name} has no histograms; {able} have.')
    return name or ('tiers' if 'tiers' in able else next(iter(able), None))


def write_plots(folder: str, cells: pd.DataFrame, arm: Optional[str]) -> None:
    """Write the plots for which there are figures.

    Args:
        folder (str): Folder for the PNGs. It need not exist.
        cells (pd.DataFrame): The cells.
        arm (str, optional): Arm whose scores are drawn.
    """
    os.makedirs(folder, exist_ok=True)
    with plt.rc_context(STYLE):
        plots = {
            'miou.png': draw_miou(cells),
            'differences.png': draw_differences(cells),
            'plans.png': draw_plans(cells),
            'scores.png': draw_scores(cells, arm) if arm else None,
        }
        for name, figure in plots.items():
            if figure:
                figure.canvas.draw()
                pixels = np.asarray(figure.canvas.buffer_rgba())[..., :3]
                # A palette makes it a third as large.
                Image.fromarray(pixels).quantize().save(
                    osp.join(folder, name), optimize=True)
                plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('results', help='file of JSON lines by run.py')
    parser.add_argument('--out', help='folder for the plots (default: none)')
    parser.add_argument(
        '--last',
        type=float,
        default=0.1,
        help='part of the iterations whose evaluations count')
    parser.add_argument(
        '--baseline', default='full', help='arm to compare with')
    parser.add_argument(
        '--pairs',
        nargs='+',
        metavar='ARM:ARM',
        help='arms to compare with each other (default: those of arms.py)')
    parser.add_argument(
        '--scores', metavar='ARM', help='arm whose scores are drawn')
    args = parser.parse_args()
    if not 0 <= args.last <= 1:
        parser.error(f'--last is a part, from 0 to 1, but got {args.last}')
    try:
        cells = load(args.results, args.baseline, args.last)
        arms = list(cells.index.unique('arm'))
        arm = scores_arm(cells, args.scores)
        for pair in args.pairs or []:
            names = pair.split(':')
            if len(names) != 2 or not set(names) <= set(arms):
                raise ValueError(f'--pairs has {pair}, which are no two of '
                                 f'{arms} with a colon between.')
    except (OSError, ValueError) as error:
        parser.error(str(error))
    print(report(cells, args.pairs or PAIRS, args.last))
    if args.out:
        write_plots(args.out, cells, arm)


if __name__ == '__main__':
    main()
