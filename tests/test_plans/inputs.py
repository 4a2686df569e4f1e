# Copyright (c) mmib contributors. All rights reserved.
"""What policies are given in tests."""
import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from mmib.pruning import EpsilonGreedy, Progress

FINITE = st.floats(0, 1e6, width=32)
RATIOS = st.floats(0, 0.99)
SHARES = st.floats(0.01, 1.2)
KEEPS = st.floats(0.01, 1)
SELECTIONS = st.builds(EpsilonGreedy, KEEPS, st.floats(0, 1),
                       st.integers(1, 4))
RNGS = st.integers(0, 2**32).map(np.random.default_rng)
# Of any size, with many ties or few of them.
SCORES = st.one_of(
    st_numpy.arrays(np.float32, st.integers(1, 60), elements=FINITE),
    st_numpy.arrays(
        np.float32, st.integers(1, 300), elements=st.sampled_from([0.5, 1,
                                                                   3])),
    st.builds(lambda size, rng: rng.random(size, np.float32),
              st.integers(1, 300), RNGS))


def needing(share, policy, norms=None):
    """A policy to a budget that is told that it needs a kept share."""
    left = 900_000.
    covered = left * (1 / policy.ratio - 1 / share)
    policy.begin_plan(Progress(0, covered, 0, left, norms=norms))
    return policy


def random_scores(size, seed=0):
    return np.random.default_rng(seed).random(size, np.float32)


def drawn(policy, scores, seed=0):
    return policy(np.float32(scores), np.random.default_rng(seed))
