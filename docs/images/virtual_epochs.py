# Copyright (c) mmib contributors. All rights reserved.
"""Draw what InfoBatch trains on: every plan of a small made-up training, with
the plans of `Budget`, beside the baseline."""
import os.path as osp

import matplotlib
import numpy as np

from mmib.pruning import Budget, EpochPlan, Progress

matplotlib.use('Agg')
import matplotlib.pyplot as plt  # noqa: E402

IMAGES, PASSES, RATIO, DELTA = 40, 10, 0.6, 0.85
FULL = IMAGES * PASSES
ITERS = round(RATIO * FULL)
ANNEALING = round(DELTA * ITERS)
COLOURS = {
    'pruned': '#f2f2f2',
    'weight 1': '#a6c8e4',
    'weight 1.5 to 2.5': '#3f88c5',
    'weight above 2.5': '#12355b'
}


def plans():
    """Start, width and weights of each virtual epoch."""
    rng = np.random.default_rng(0)
    policy = Budget(ratio=RATIO)
    scores = np.linspace(0.2, 2, IMAGES)
    start = covered = 0
    while start < ITERS:
        plan, last = EpochPlan.full(np.arange(IMAGES)), ITERS
        if 0 < start < ANNEALING:
            policy.begin_plan(
                Progress(
                    spent=start,
                    covered=covered * IMAGES,
                    annealing=ITERS - ANNEALING,
                    length=ITERS))
            plan, last = policy(scores, rng), ANNEALING
        width = min(len(plan), last - start)
        weights = np.zeros(IMAGES)
        weights[plan.indices] = plan.weights
        covered += width / len(plan)
        yield start, width, weights
        start += width


def draw(axes, start, width, weights):
    kinds = np.digitize(weights, [0.5, 1.25, 2.5])
    colours = np.array(list(COLOURS.values()))[kinds]
    left, gap = start + 0.04 * IMAGES, 0.08 * IMAGES
    axes.barh(range(IMAGES), width - gap, 0.8, left, color=colours)


def main():
    plt.rcParams.update({'font.size': 8.5})
    figure, (top, bottom) = plt.subplots(
        2, 1, figsize=(8, 4.3), sharex=True, layout='constrained')
    for number in range(PASSES):
        draw(top, number * IMAGES, IMAGES, np.ones(IMAGES))
    for start, width, weights in plans():
        # Of the plan that annealing cuts short there is next to nothing.
        if width > 4:
            draw(bottom, start, width, weights)
    top.set_title(
        'Baseline: each of 10 passes trains on every image', loc='left')
    bottom.set_title(
        'InfoBatch: 10 virtual epochs in 60 % of the iterations', loc='left')
    bottom.axvline(ANNEALING, color='#c0392b', linewidth=1.2)
    for y, text in ((34, 'images with a high loss: always, weight 1'),
                    (20, 'others: some at random, with a larger weight'),
                    (6, 'the lowest 20 %: fewest, largest weight')):
        bottom.text(ITERS + 6, y, text, va='center', size=8)
    text = 'annealing: everything again'
    bottom.text(ANNEALING + 1.5, 42.2, text, color='#c0392b', size=8)
    for axes in (top, bottom):
        axes.set(yticks=[], xlim=(0, FULL), ylim=(-1, IMAGES))
        axes.set_ylabel('images by loss →')
        axes.spines[['top', 'right']].set_visible(False)
    bottom.set_xticks([0, 0.51 * FULL, 0.6 * FULL, FULL],
                      ['0', '51 %', '60 %', '100 % of the iterations'])
    bottom.get_xticklabels()[-1].set_ha('right')
    figure.legend(
        [plt.Rectangle((0, 0), 1, 1, color=c) for c in COLOURS.values()],
        COLOURS,
        ncols=4,
        loc='outside lower center',
        frameon=False)
    out = osp.join(osp.dirname(osp.abspath(__file__)), 'virtual_epochs.png')
    figure.savefig(out, dpi=130)


if __name__ == '__main__':
    main()
