# Copyright (c) mmib contributors. All rights reserved.
import codecs
import os
from pathlib import Path

import numpy as np
import pytest

from mmib.data.lists import find_images
from mmib.errors import Refusal

# As data sets have them.
PATHS = [
    f'data/{name}.jpg'
    for name in ('cat/1', 'cat/2', 'dog/1', 'dog/my 3', 'dog/a,4')
]


def find(images, paths=PATHS):
    return find_images(images, len(paths), lambda: paths)


@pytest.fixture
def listed(tmp_path):
    """Returns what is listed in a file of these lines."""

    def read(*lines, paths=PATHS, begin=b''):
        file = tmp_path / 'list.txt'
        file.write_bytes(begin +
                         b''.join(os.fsencode(line) + b'\n' for line in lines))
        images, note = find(str(file), paths)
        assert find(Path(file), paths)[0].tolist() == images.tolist()
        return images.tolist(), note

    return read


@pytest.mark.parametrize('begin', [b'', codecs.BOM_UTF8])
@pytest.mark.parametrize('lines, images', [
    (('3', '0', '', '2'), [0, 2, 3]),
    ((PATHS[2], PATHS[0]), [0, 2]),
    (PATHS, [0, 1, 2, 3, 4]),
])
def test_lists_in_files(listed, lines, images, begin):
    assert listed(*lines, begin=begin) == (images, '')


@pytest.mark.parametrize('lines', [
    [f'{path} {label}' for path, label in zip(PATHS, (0, 0, 1, 1, 2))],
    [f'{path}, {label}' for path, label in zip(PATHS, (0, 0, 1, 1, 2))],
    ['cat/1.jpg 3'],
    ['3\t1.5', '2\t1e-1'],
])
def test_annotations_are_no_lists(listed, lines):
    """Labels aren't taken for weights."""
    with pytest.raises(Refusal, match='line 1 of .* an image alone, so'):
        listed(*lines)


def test_lists_in_configs():
    for images in ([3, 0], ['3', '0'], np.array([3, 0]), (3, 0)):
        numbers, _ = find(images)
        assert numbers.tolist() == [0, 3] and numbers.dtype == np.int64
    assert find([PATHS[4]])[0].tolist() == [4]


@pytest.mark.parametrize('line', [
    'cat/2.jpg', '/home/somebody/train/cat/2.jpg', r'C:\images\cat\2.jpg',
    './data/cat/2.jpg'
])
def test_paths_of_another_machine(listed, line):
    images, note = listed(line, PATHS[0])
    assert images == [0, 1]
    assert note == ('they were found by the last 2 parts of their paths, such '
                    f'as {PATHS[1]} for {line}')


def test_paths_that_differ_by_name():
    paths = ['a/1.jpg', 'b/2.jpg', None]
    images, note = find(['/elsewhere/2.jpg'], paths)
    assert images.tolist() == [1] and 'found by the names' in note


def test_a_path_that_is_no_text(listed):
    name = os.fsdecode(b'data/\xff.jpg')
    assert listed(name, paths=[*PATHS, name])[0] == [5]


@pytest.mark.parametrize('lines, match', [
    (('0', '5'), 'line 2 of .*list.txt is image 5, but the data set has '
     'images 0 to 4'),
    (('-1', ), 'line 1 of .* is image -1'),
    (('0', '', '2', '0'), 'line 4 of .* is the image of line 1 of .* again'),
    ((PATHS[0], 'cat/1.jpg'), 'line 2 of .* is the image of line 1'),
    ((), 'has no images'),
    (('', ' '), 'has no images'),
    ((PATHS[0], '/x/cow/1.jpg'), r'line 2 of .*, `/x/cow/1.jpg`, is no image '
     r'of the data set, whose first one is `data/cat/1.jpg`'),
    ((PATHS[0], '1.jpg'), 'is the end of 2 of the paths'),
    ((PATHS[0], 'my 3.jpg'), 'is the end of 1 of the paths'),
    ((PATHS[0], '9 b.jpg'), 'first one is `data/cat/1.jpg`. Correct the list'),
    ((PATHS[0], '1'), '`1`, is no image'),
])
def test_errors_name_the_line(listed, lines, match):
    with pytest.raises(Refusal, match=match) as error:
        listed(*lines)
    assert 'of ListedImages in `train_dataloader.' in str(error.value)


@pytest.mark.parametrize('images, paths, match', [
    ('none.txt', PATHS, "none.txt can't be read: "),
    ([0, 7], PATHS, 'entry 1 is image 7'),
    ([], PATHS, 'has no images'),
    (['a.jpg'], [None, None], "doesn't tell `img_path`"),
    (['a.jpg'], ['a.jpg', 'a.jpg'], 'path of several images'),
    (['a.jpg'], ['x/a.jpg', 'y/a.jpg'
                 ], 'the end of 2 of .* `x/a.jpg`, .* their last 2 parts'),
    (3, PATHS, 'name of a file or a list of images, but got 3'),
])
def test_errors_name_the_entry(images, paths, match):
    with pytest.raises(Refusal, match=match):
        find(images, paths)
