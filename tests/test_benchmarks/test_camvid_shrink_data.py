# Copyright (c) mmib contributors. All rights reserved.
import mmcv
import numpy as np
import pytest
from camvid.shrink_data import shrink
from PIL import Image


@pytest.mark.parametrize('mode', ['L', 'P'])
def test_small_copy(tmp_path, mode):
    # Four quarters, each with its label and its colour.
    labels = np.kron([[0, 1], [2, 11]], np.ones((6, 8))).astype(np.uint8)
    image = np.repeat(labels[..., None] * 20, 3, axis=2)
    mask = Image.fromarray(labels)
    if mode == 'P':
        mask = mask.copy()
        mask.putpalette(np.arange(768) % 256)
    (tmp_path / 'data' / 'annotations' / 'test').mkdir(parents=True)
    mask.save(tmp_path / 'data' / 'annotations' / 'test' / 'a.png')
    mmcv.imwrite(image, str(tmp_path / 'data' / 'images' / 'test' / 'a.png'))
    shrink(str(tmp_path / 'data'), str(tmp_path / 'out'), (4, 2))
    small = mmcv.imread(
        str(tmp_path / 'out' / 'annotations' / 'test' / 'a.png'), 'unchanged')
    assert small.tolist() == [[0, 0, 1, 1], [2, 2, 11, 11]]
    small = mmcv.imread(str(tmp_path / 'out' / 'images' / 'test' / 'a.png'))
    assert small[..., 0].tolist() == [[0, 0, 20, 20], [40, 40, 220, 220]]
