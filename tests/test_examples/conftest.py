# Copyright (c) mmib contributors. All rights reserved.
from importlib.util import find_spec

import numpy as np
import pytest
from PIL import Image

# `make test-frameworks` has what the examples need.
collect_ignore_glob = [] if find_spec('lightning') else ['test_*.py']


@pytest.fixture(scope='session')
def pictures(tmp_path_factory):
    """A folder like that of CIFAR-10: 64 images of two classes in `train`, 16
    in `test`, of one colour each, and noise."""
    folder, rng = tmp_path_factory.mktemp('pictures'), np.random.default_rng(0)
    for split, size in (('train', 32), ('test', 8)):
        for name, least in (('dark', 0), ('light', 150)):
            (folder / split / name).mkdir(parents=True)
            for number in range(size):
                color = rng.integers(least, least + 100, (1, 1, 3))
                noise = rng.integers(-number, number + 1, (16, 16, 3))
                pixels = np.clip(color + noise, 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / split / name /
                                             f'{number:04}.png')
    return str(folder)
