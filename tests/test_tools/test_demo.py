# Copyright (c) mmib contributors. All rights reserved.
import os
import os.path as osp

import cv2
import numpy as np
import pytest
from demo import summarize
from make_demo_data import TRIANGLE, make_demo_data


@pytest.fixture(scope='module')
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp('demo')
    make_demo_data(str(root), num_training=60, num_validation=20)
    return root


@pytest.mark.parametrize('split, size', [('training', 60), ('validation', 20)])
def test_data_in_the_layout_of_ade20k(root, split, size):
    images = sorted(os.listdir(root / 'images' / split))
    masks = sorted(os.listdir(root / 'annotations' / split))
    assert len(images) == size
    assert [osp.splitext(name)[0]
            for name in images] == [osp.splitext(name)[0] for name in masks]
    labels = set()
    for image, mask in zip(images, masks):
        image = cv2.imread(str(root / 'images' / split / image))
        mask = cv2.imread(
            str(root / 'annotations' / split / mask), cv2.IMREAD_UNCHANGED)
        assert image.shape == (96, 96, 3) and mask.shape == (96, 96)
        labels |= set(np.unique(mask).tolist())
    assert labels == set(range(TRIANGLE + 1))
    kinds = {name.split('_')[0] for name in images}
    assert kinds == {'easy', 'hard'
                     } | ({'mislabelled'} if split == 'training' else set())


def test_data_follow_from_the_seed(tmp_path):

    def make(folder):
        make_demo_data(str(folder), num_training=3, num_validation=1)
        return {
            path.relative_to(folder): path.read_bytes()
            for path in folder.rglob('*.*')
        }

    files = make(tmp_path / 'one')
    assert len(files) == 2 * (3 + 1)
    assert make(tmp_path / 'two') == files


def test_summary():
    share, saved = 'infobatch/kept_share', 'infobatch/saved_iters'
    plan = {share: 1., saved: 0., 'step': 0}
    records = [plan, dict(iter=25, loss=1.), dict(plan, **{share: 0.525})]
    records += [dict(mIoU=50., step=100), dict(iter=300)]
    records += [dict(mIoU=65.4321, step=300), {saved: 200., 'step': 300}]
    text = summarize(records, 240, 93.4)
    assert '300, where the baseline needs 500' in text
    assert 'for as many passes: 40% saved' in text
    assert 'each virtual epoch (pass): 0 114\n' in text
    assert 'mIoU         65.43\n' in text
    assert '1 min 33 s' in text
