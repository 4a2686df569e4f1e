# Copyright (c) mmib contributors. All rights reserved.
"""Follow two images through two plans: the core of mmib without a network, a
loop or a Runner."""
import numpy as np

from mmib.pruning import EpochPlan, MeanThreshold, Progress, draw_plan
from mmib.scores.table import ImageTable
from mmib.stream.stream import Stream
from mmib.worth import from_sums

rng = np.random.default_rng(0)
losses = np.array([0.1, 0.2, 0.3, 0.4, 2.0, 3.0], np.float32)
stream = Stream(pass_length=6)
table = ImageTable(images=np.arange(6))  # All scores are 1.


def train(plan, iteration):
    """Visit each slot of a plan: the network gives a loss and a norm."""
    stream.deal(plan, len(plan), plan.mean_weight)
    slots = stream.slots_left()
    stream.advance(stream.end)
    scores = losses[slots.indices]
    iterations = np.full(len(scores), iteration)
    table.add(slots, iterations, scores, norms=np.sqrt(scores))


# The first plan is a full pass: each image once, with weight 1.
train(EpochPlan.full(rng.permutation(6)), iteration=1)
assert table.scores[0] == losses[0] and table.visits[0] == 1

# The second plan is drawn from the scores. Their mean is 1, and half of the
# four images below it are pruned.
progress = Progress(spent=6, covered=6, annealing=0, length=24)
plan = draw_plan(MeanThreshold(0.5), table.scores, progress, rng)
kept = np.isin(np.arange(6), plan.indices)
table.count_pruned(~kept)
assert len(plan) == 4 and kept[0] and not kept[1]

# Image 0 stands for a pruned one too: its gradient has weight 2 in this plan.
assert plan.weights[plan.indices == 0] == 2 and plan.weights.sum() == 6
losses[:2] = 0.05  # The network has learned meanwhile.
train(plan, iteration=2)

# Image 0 was visited and has its new raw loss as score. Image 1 was pruned
# and keeps the score it had.
assert table.scores[0] == np.float32(0.05) and table.visits[0] == 2
assert table.scores[1] == np.float32(0.2) and table.pruned[1] == 1
# V is known after more than five visits that followed a plan.
assert np.isnan(from_sums(table.sums).value)
