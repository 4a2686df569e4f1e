# Copyright (c) mmib contributors. All rights reserved.
"""Trainings of a real Runner."""
import pytest

pytest.importorskip('mmpretrain.models', exc_type=ImportError)
pytestmark = pytest.mark.mmpretrain

import numpy as np  # noqa: E402

from .small_classifier import hook_of, train  # noqa: E402


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    return train(tmp_path_factory.mktemp('work_dir'))


def test_training_scores_each_image_and_saves_iterations(trained):
    hook = hook_of(trained)
    scores = hook.scores.numpy()
    assert np.isfinite(scores).all() and (scores != 1).all()
    assert hook.planner.saved_iters(hook.sampler.position) > 1
    assert not hook.planner.visits.lacks_norms


def test_paths_of_samples_tell_what_was_delivered(trained):
    assert hook_of(trained)._delivery.comparable == [True]
