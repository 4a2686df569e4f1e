# Copyright (c) mmib contributors. All rights reserved.
"""What a comparison found, as tables.

The arm ``full`` is the baseline. The results may still grow: arms with few
seeds have rows too.
"""
from typing import NamedTuple, Optional, Sequence

import pandas as pd

from . import paired
from .paired import BASELINE, RANDOM, markdown
from .results import read_results

ALIKE = 'batch_size', 'device', 'threads', 'versions'


class Task(NamedTuple):
    """What is reported of a comparison by a metric, and what tells how much
    more steps bring (``gain``)."""

    metric: str
    # A sentence that says which value of the metric counts.
    quality: str
    gain: str
    # Arms that are compared with each other, as `arm:other`.
    pairs: Sequence[str]
    # What all cells must have alike, where it is noted.
    alike: Sequence[str] = ALIKE
    # The order of the tables. Others follow in that of the results.
    arms: Sequence[str] = ()
    # Part of the iterations, at their end, whose evaluations count. With 0 the
    # last one alone.
    last: float = 0.
    # Whether there is a table of the metric on the way and none of each cell.
    has_curve: bool = False


def load(path: str, task: Task) -> pd.DataFrame:
    """Read the results: a row for each cell, with the keys of its line and
    `quality`, by `arm` and `seed`. It raises a ValueError where cells can't be
    compared with each other."""
    order = {arm: number for number, arm in enumerate(task.arms)}
    rows = sorted(
        read_results(path), key=lambda row: order.get(row['arm'], len(order)))
    cells = paired.by_arm_and_seed(rows, task.alike)
    quality = [final_quality(cell, task) for _, cell in cells.iterrows()]
    return cells.assign(quality=quality)


def final_quality(cell: pd.Series, task: Task) -> float:
    """Mean of the evaluations in the last part of the iterations."""
    # (1 - 0.1) * iters may round to more.
    start = cell['iters'] - task.last * cell['iters'] - 1e-6
    return pd.Series([
        point[task.metric] for point in cell['evals'] if point['iter'] >= start
    ]).mean()


def by_arm(cells: pd.DataFrame):
    """Cells in groups."""
    return cells.groupby('arm', observed=True)


def ratios(cells: pd.DataFrame) -> Optional[pd.Series]:
    """V of each arm that has it, in the mean over its seeds."""
    if 'variance_ratio' not in cells:
        return None
    values = cells['variance_ratio'].dropna().str[0].astype(float).dropna()
    return by_arm(values).mean()


def result_table(cells: pd.DataFrame, task: Task) -> pd.DataFrame:
    """Quality of each arm."""
    of_arms = by_arm(cells)
    table = pd.DataFrame({
        'seeds': of_arms.size(),
        'iterations': of_arms['iters'].first(),
        'virtual epochs': of_arms['virtual_epochs'].mean().map(
            '{:.1f}'.format),
        task.metric: of_arms['quality'].mean(),
        'sd': of_arms['quality'].std()
    })
    if 'lr' in cells:
        rates = of_arms['lr'].first().map('{:g}'.format)
        table.insert(0, 'learning rate', rates)
    return table.join(
        paired.differences(cells['quality'].unstack(), ratios(cells)))


def worth_table(cells: pd.DataFrame, task: Task) -> pd.DataFrame:
    """What V says that choices of images are worth, and what came of them."""
    alike = by_arm(cells)[['iters', *cells.columns.intersection(['lr'])]]
    alike = alike.first()
    found = ratios(cells)
    # V of those that cost as much as the control and have its learning rate.
    if found is not None and RANDOM in found:
        same = (alike == alike.loc[RANDOM]).all(axis=1)
        found = found[same[found.index]]
    return paired.worth_table(cells['quality'].unstack(), alike['iters'],
                              found, task.metric)


def quarter_table(cells: pd.DataFrame) -> pd.DataFrame:
    """V in each quarter of the training, mean over the seeds."""
    if 'variance_ratio_of_quarters' not in cells:
        return pd.DataFrame()
    quarters = cells['variance_ratio_of_quarters'].dropna()
    table = pd.DataFrame(quarters.tolist(), quarters.index,
                         [f'quarter {number}' for number in (1, 2, 3, 4)],
                         float)
    table = by_arm(table.dropna(how='all')).mean()
    table.insert(0, 'V', ratios(cells))
    return table


def curve_table(cells: pd.DataFrame, task: Task) -> pd.DataFrame:
    """The metric on the way, mean over the seeds."""
    evals = cells['evals'].map(
        lambda points: [point[task.metric] for point in points])
    table = pd.DataFrame(evals.tolist(), evals.index)
    count = len(table.columns)
    table.columns = [f'after {(i + 1) / count:.0%}' for i in table.columns]
    return by_arm(table).mean()


def cost_table(cells: pd.DataFrame) -> pd.DataFrame:
    """Cost of each arm, in the median over its seeds."""
    titles = {
        'saved_iters': 'covered besides',
        'train_seconds': 'wall time (s)',
        'train_cpu_seconds': 'CPU time (s)',
        'step_ms': 'step (ms)'
    }
    of_arms = by_arm(cells.reindex(columns=['iters', *titles]).fillna(0))
    iters = of_arms['iters'].first()
    saved = (1 - iters / iters[BASELINE]).map('{:.1%}'.format)
    medians = of_arms[list(titles)].median().round().astype(int)
    return pd.DataFrame({
        'iterations': iters,
        'iterations saved': saved
    }).join(medians.rename(columns=titles))


def report(cells: pd.DataFrame, task: Task, passes: int = 0) -> str:
    """All tables, with what their columns are. ``passes`` are those of the
    full training, where there are results of several."""
    of = f' of {passes} passes' if passes else ''
    within = f' in {passes} passes' if passes else ''
    values = cells['quality'].unstack()
    sections = [
        (f'### Results{of}',
         f'{task.quality} Differences: mean over the seeds '
         'that both arms have, with its 95 % t-interval. Undecided: the '
         'interval holds 0, the difference is inside the spread of the seeds.',
         result_table(cells, task)),
        (f'### What each part does{within}', '',
         paired.pair_table(values, task.pairs)),
        (f'### What the choice was worth{within}',
         'V, mean over the seeds, and the share of the steps that it '
         f'makes of it; the {task.metric} that as many more steps '
         f'bring a plain training, by what {task.gain}; and what was '
         'seen.', worth_table(cells, task)),
        (f'### V by quarter{of}',
         'Of the iterations, in the mean over the visits and the '
         'seeds.', quarter_table(cells))
    ]
    if task.has_curve:
        sections.append(
            (f'### {task.metric.capitalize()} on the way{of}',
             'After shares of the iterations of the arm, mean over the seeds.',
             curve_table(cells, task)))
    if 'train_cpu_seconds' in cells:
        sections.append((
            f'### Cost{of}',
            'Covered besides: iterations that the baseline needs more for the '
            'same virtual epochs. Times are those of training without '
            'validation, medians over the seeds. They hold what other work on '
            'the machine took, so arms of different hours are not to be '
            'compared by them: benchmarks/step.py does that.',
            cost_table(cells)))
    if not task.has_curve:
        sections.append((f'### {task.metric} of each cell{of}', '',
                         values.add_prefix('seed ')))
    return '\n\n'.join(text for title, said, table in sections if len(table)
                       for text in (title, said, markdown(table)) if text)
