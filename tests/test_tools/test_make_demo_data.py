# Copyright (c) mmib contributors. All rights reserved.
import cv2
import numpy as np
import pytest
from make_demo_data import TRIANGLE, make_demo_data


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
