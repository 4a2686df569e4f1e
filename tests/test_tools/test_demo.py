# Copyright (c) mmib contributors. All rights reserved.
import cv2
import numpy as np
import pytest
from demo import summarize
from make_demo_data import TRIANGLE, make_demo_data

from mmib.report.read import read_run
from tests.helpers.work_dirs import write_finished


@pytest.fixture(scope='module')
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp('demo')
    make_demo_data(str(root), num_training=60, num_validation=20)
    return root


@pytest.mark.parametrize('split, size', [('training', 60), ('validation', 20)])
def test_data_in_the_layout_of_ade20k(root, split, size):
    images = sorted((root / 'images' / split).glob('*.jpg'))
    masks = sorted((root / 'annotations' / split).glob('*.png'))
    names = [path.stem for path in images]
    assert names == [path.stem for path in masks] and len(names) == size
    for image in images:
        assert cv2.imread(str(image)).shape == (96, 96, 3)
    labels = [cv2.imread(str(mask), cv2.IMREAD_UNCHANGED) for mask in masks]
    assert np.shape(labels) == (size, 96, 96)
    assert set(np.unique(labels)) == set(range(TRIANGLE + 1))
    kinds = {name.split('_')[0] for name in names}
    assert kinds - {'mislabelled'} == {'easy', 'hard'}
    assert ('mislabelled' in kinds) == (split == 'training')


def test_data_are_the_same_each_time(tmp_path):
    files = []
    for folder in (tmp_path / 'one', tmp_path / 'two'):
        make_demo_data(str(folder), num_training=3, num_validation=1)
        files.append({
            path.relative_to(folder): path.read_bytes()
            for path in folder.rglob('*.*')
        })
    assert files[0] == files[1] and len(files[0]) == 2 * (3 + 1)


def test_summary(tmp_path):
    text = summarize(read_run(str(write_finished(tmp_path))), 93.4)
    assert '40, where the baseline needs 50' in text
    assert 'for as many passes: 20% saved' in text
    assert 'of 12 images in each virtual epoch (pass): 0 3 3 3 0\n' in text
    assert 'mIoU         40.00\n' in text
    assert '1 min 33 s' in text
