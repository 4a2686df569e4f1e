# Copyright (c) mmib contributors. All rights reserved.
"""Draw lengths.svg, law.svg and optimizers.svg from the results in research/:
python docs/images/figures.py"""
import json
import re
from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use('Agg')
import matplotlib.pyplot as plt  # noqa: E402

HERE = Path(__file__).resolve().parent
RESEARCH = HERE.parents[1] / 'research'
PLAIN, PRUNED, GREY = '#4d4d4d', '#1f77b4', '#9a9a9a'


def rows(topic):
    """The cells of each line of the tables of a page of research."""
    text = (RESEARCH / topic / 'README.md').read_text(encoding='utf-8')
    return [[cell.strip() for cell in line.split('|')[1:-1]]
            for line in text.split('\n') if line.startswith('|')]


def interval(cell):
    """Mean, and the ends of the interval, of a cell."""
    return [float(each) for each in re.findall(r'[-+]\d+\.\d+', cell)]


def save(figure, name, message):
    figure.suptitle(message, x=0.01, ha='left')
    # Without a date, so that the same results give the same file.
    figure.savefig(HERE / name, metadata={'Date': None})
    plt.close(figure)


def lengths():
    """What 60 % of the iterations cost, by the length of the schedule."""
    table = rows('lengths')
    table = table[2:next(i for i, row in enumerate(table) if row[0] == '200') +
                  1]
    figure, axes = plt.subplots(figsize=(7.5, 3.6), layout='constrained')
    for column, shift, colour, label in ((2, 0.97, PLAIN, 'nothing pruned'),
                                         (6, 1.03, PRUNED,
                                          'pruned by the default policy')):
        epochs, cost = zip(*((shift * float(row[0]), interval(row[column]))
                             for row in table if '[' in row[column]))
        mean, low, high = np.transpose(cost)
        axes.errorbar(
            epochs,
            mean, (mean - low, high - mean),
            marker='o',
            color=colour,
            capsize=3,
            label=label)
    ticks = [float(row[0]) for row in table]
    axes.set_xscale('log')
    axes.set_xticks(ticks, [f'{tick:.0f}' for tick in ticks])
    axes.minorticks_off()
    axes.axhline(0, color=GREY, linewidth=0.8)
    axes.set(
        xlabel='epochs of the full run on 10,000 images of CIFAR-10',
        ylabel='points compared with the full run')
    axes.legend(frameon=False, loc='lower right')
    axes.spines[['top', 'right']].set_visible(False)
    save(
        figure, 'lengths.svg',
        'Running 60 % of the iterations costs less, the longer the schedule, '
        'pruned or not')


def law():
    """What V predicts and what was seen, one row a comparison."""
    table = sorted((row for row in rows('shares')
                    if len(row) == 5 and re.match(r'\d\.\d\d$', row[2])),
                   key=lambda row: float(row[3]))
    places = range(len(table))
    predicted = [float(row[3]) for row in table]
    mean, low, high = np.transpose([interval(row[4]) for row in table])
    figure, axes = plt.subplots(figsize=(7.5, 7.2), layout='constrained')
    axes.axvline(0, color=GREY, linewidth=0.8)
    axes.errorbar(
        mean,
        places,
        xerr=(mean - low, high - mean),
        fmt='o',
        color=PLAIN,
        markersize=4,
        linewidth=1.2,
        label='seen, with its 95 % interval')
    axes.plot(
        predicted,
        places,
        'D',
        color='#d95f02',
        markersize=5,
        label='predicted by V')
    axes.set_yticks(
        places, [f'{row[0]}: {row[1]}, V {row[2]}' for row in table], size=8)
    axes.set(
        ylim=(-0.7, len(table) - 0.3),
        xlabel='points gained compared with pruning at random')
    axes.legend(frameon=False, loc='lower right')
    axes.spines[['top', 'right']].set_visible(False)
    save(
        figure, 'law.svg',
        f'In {sum(low * high <= 0)} of {len(table)} comparisons the interval '
        'of the gain by choosing images includes zero')


def optimizers():
    """How long the steps of AdamW are, by the mean weight."""
    arms = {
        'random': ('#c0392b', 'mean weight 1.9'),
        'random_mean1': (PRUNED, 'mean weight 1: the default with AdamW')
    }
    figure, panels = plt.subplots(
        1, 2, figsize=(7.5, 3.2), sharey=True, layout='constrained')
    for axes, name, title in zip(panels, ('classifier', 'swin-w48'),
                                 ('A small classifier', 'A small Swin')):
        lines = (RESEARCH / 'optimizers' / f'{name}.jsonl').read_text()
        cells = [json.loads(line) for line in lines.splitlines()]
        of_arm = {
            arm: np.array(
                [cell['step_lengths'] for cell in cells if cell['arm'] == arm])
            for arm in ('short', *arms)
        }
        iters, count = cells[0]['iters'], len(cells[0]['step_lengths'])
        middles = (np.arange(count) + 0.5) * iters / count
        begin = -(-cells[0]['num_images'] // cells[0]['batch_size'])
        end = round(0.85 * iters)
        axes.axvspan(begin, end, color='#f0f0f0')
        axes.text((begin + end) / 2, 1.7, 'pruning', ha='center')
        axes.text((end + iters) / 2, 1.7, 'annealing', ha='center', size=8)
        axes.axhline(1, color=GREY, linewidth=0.8)
        for arm, (colour, label) in arms.items():
            steps = (of_arm[arm] / of_arm['short']).mean(axis=0)
            axes.plot(middles, steps, color=colour, label=label)
        axes.set(xlim=(0, iters), ylim=(0.4, 1.85), xlabel='iteration')
        axes.set_title(title, size=10, loc='left')
        axes.spines[['top', 'right']].set_visible(False)
    panels[0].set_ylabel('step length, without pruning = 1')
    figure.legend(
        *panels[0].get_legend_handles_labels(),
        loc='outside lower center',
        ncols=2,
        frameon=False)
    save(
        figure, 'optimizers.svg',
        'AdamW: weights with a mean of 1.9 make steps too long, then too '
        'short')


if __name__ == '__main__':
    plt.rcParams.update({'font.size': 9, 'svg.hashsalt': 'mmib'})
    lengths()
    law()
    optimizers()
