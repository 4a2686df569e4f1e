# Copyright (c) mmib contributors. All rights reserved.
"""Draw what mmib trains on: every plan of a small synthetic run, with the
plans of the default policy, beside the baseline."""
import os.path as osp

import matplotlib
import numpy as np

from mmib.pruning import EpochPlan, Neyman, Progress

matplotlib.use('Agg')
import matplotlib.pyplot as plt  # noqa: E402

IMAGES, PASSES, RATIO, DELTA = 40, 10, 0.6, 0.85
FULL = IMAGES * PASSES
ITERS = round(RATIO * FULL)
ANNEALING = round(DELTA * ITERS)
COLOURS = {
    'pruned': '#d9d9d9',
    'weight up to 1.5': '#a6c8e4',
    'weight 1.5 to 3': '#3f88c5',
    'weight above 3': '#12355b'
}


def plans():
    """Start, width and weights of each epoch."""
    rng = np.random.default_rng(0)
    policy = Neyman(num_tiers=4, ratio=RATIO)
    scores = np.linspace(0.2, 2, IMAGES)
    # Gradients are the larger, the higher the loss is.
    mean_squares = scores.reshape(4, -1).mean(1)**2
    norms = mean_squares, 0.01 * mean_squares
    start = covered = 0
    while start < ITERS:
        plan, last = EpochPlan.full(np.arange(IMAGES)), ITERS
        if 0 < start < ANNEALING:
            policy.begin_plan(
                Progress(
                    spent=start,
                    covered=covered * IMAGES,
                    annealing=ITERS - ANNEALING,
                    length=ITERS,
                    norms=norms))
            plan, last = policy(scores, rng), ANNEALING
        width = min(len(plan), last - start)
        weights = np.zeros(IMAGES)
        weights[plan.indices] = plan.weights
        covered += width / len(plan)
        yield start, width, weights
        start += width


def draw(axes, start, width, weights):
    kinds = np.digitize(weights, [0.5, 1.5, 3])
    colours = np.array(list(COLOURS.values()))[kinds]
    left, gap = start + 0.04 * IMAGES, 0.08 * IMAGES
    axes.barh(range(IMAGES), width - gap, 0.8, left, color=colours)


def main():
    plt.rcParams.update({'font.size': 8.5})
    figure, (top, bottom) = plt.subplots(
        2,
        1,
        figsize=(8, 3.6),
        sharex=True,
        layout='constrained',
        height_ratios=(1, 3))
    for number in range(PASSES):
        draw(top, number * IMAGES, IMAGES, np.ones(IMAGES))
    for start, width, weights in plans():
        # Of the plan that annealing cuts short there is next to nothing.
        if width > 4:
            draw(bottom, start, width, weights)
    top.set_title('Baseline: 10 epochs, every image in each', loc='left')
    bottom.set_title(
        'mmib: the same 10 epochs in 60 % of the iterations', loc='left')
    bottom.axvline(ANNEALING, color='#c0392b', linewidth=1.2)
    for y, text in ((33, 'high loss: most images are kept'),
                    (20, 'low loss: most images are pruned at random;\n'
                     'those that stay have a larger weight'),
                    (7, 'the last part trains on every image again')):
        colour = '#c0392b' if y == 7 else 'black'
        bottom.text(ITERS + 6, y, text, va='center', size=8, color=colour)
    for axes in (top, bottom):
        axes.set(yticks=[], xlim=(0, FULL), ylim=(-1, IMAGES))
        axes.spines[['top', 'right']].set_visible(False)
    bottom.set_ylabel('images by loss →')
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
    # Sharp on screens with two pixels for each point.
    figure.savefig(out, dpi=240)


if __name__ == '__main__':
    main()
