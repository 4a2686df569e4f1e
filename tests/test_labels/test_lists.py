# Copyright (c) mmib contributors. All rights reserved.
import codecs
import os
from pathlib import Path

import numpy as np
import pytest

from mmib.errors import Refusal
from mmib.labels import lists
from mmib.labels.lists import find_images

# As datasets have them.
PATHS = [
    f'data/{name}.jpg'
    for name in ('cat/1', 'cat/2', 'dog/1', 'dog/my 3', 'dog/a,4')
]


def find(images, paths=PATHS):
    return [*find_images(images, paths)]


@pytest.fixture
def listed(tmp_path):
    """Returns what is listed in a file of these lines."""

    def read(*lines, paths=PATHS, begin=b''):
        file = tmp_path / 'list.txt'
        file.write_bytes(begin +
                         b''.join(os.fsencode(line) + b'\n' for line in lines))
        images = find(str(file), paths)
        assert find(Path(file), paths) == images
        return images

    return read


# As VOC has them: images 0, 1 and 2.
DIGITS = [f'data/{name}.jpg' for name in ('000001', '000012', '9')]
# A name that is no text.
NO_TEXT = os.fsdecode(b'data/\xff.jpg')


@pytest.mark.parametrize('begin', [b'', codecs.BOM_UTF8])
@pytest.mark.parametrize(
    'lines, paths, images',
    [
        ([PATHS[2], '', PATHS[0]], PATHS, [2, 0]),
        (PATHS, PATHS, [0, 1, 2, 3, 4]),
        ([NO_TEXT], [*PATHS, NO_TEXT], [5]),
        # Names without their suffix.
        (['000012', '000001'], DIGITS, [1, 0]),
        (['data/000012', '9.jpg'], DIGITS, [1, 2]),
        # As mmib writes images without a path, or with the same one.
        (['3', '0', ' 2'], [None] * 4, [3, 0, 2]),
        (['1'], ['a/0.jpg', 'b/1.jpg', 'b/1.jpg'], [1]),
        (['0', '1'], ['a/1.jpg', None], [0, 1]),
        (['1'], ['a/1.jpg', 'a//1.jpg'], [1]),
        # The copies of an image, and others as ever.
        (['b/1.jpg', 'a/0.jpg'], ['a/0.jpg', 'b/1.jpg', 'b//1.jpg'], [1, 2, 0]
         ),
        (['1', '0.jpg'], ['a/0.jpg', 'b/1.jpg', 'b/1.jpg'], [1, 0]),
        (['a.jpg'], ['a.jpg'] * 5, [0, 1, 2, 3, 4]),
    ])
def test_lists_in_files(listed, lines, paths, images, begin):
    assert listed(*lines, paths=paths, begin=begin) == images


def test_lists_in_configs():
    for images in ([3, 0], np.array([3, 0]), (3, np.int32(0))):
        assert find(images) == [3, 0]
    assert find([PATHS[4], 0]) == [4, 0]
    # They have numbers, whatever the images are called.
    assert find([1, 2], DIGITS) == [1, 2]


@pytest.mark.parametrize('line', [
    'cat/2.jpg', '/home/somebody/train/cat/2.jpg', r'C:\images\cat\2.jpg',
    './data/cat/2.jpg'
])
def test_paths_of_another_machine(listed, line):
    assert listed(line, PATHS[0]) == [1, 0]


NAMES = ['data/a/1.jpg', 'data/b/2.jpg', 'data/b/c.d.png']


@pytest.mark.parametrize('line',
                         ['2.jpg', 'b/2', '/elsewhere/b/2.jpg', r'D:\b\2.jpg'])
def test_paths_that_differ_by_name(listed, line):
    assert listed(line, 'c.d', paths=NAMES) == [1, 2]


@pytest.mark.parametrize('line', ['/elsewhere/a/2.jpg', 'a/2', 'b/2.png'])
def test_images_of_another_dataset(listed, line):
    """They may have the same names, in another folder."""
    with pytest.raises(Refusal, match='begins with data/a/1.jpg, '):
        listed(line, paths=NAMES)


def test_names_without_their_suffix_name_one_image(listed):
    paths = ['a/x.jpg', 'a/x.png', 'a/y.png']
    assert listed('x.png', 'a/x.jpg', paths=paths) == [1, 0]
    for line in ('x', 'y'):
        with pytest.raises(Refusal, match=f'line 1 of .*, `{line}`, is not'):
            listed(line, paths=paths)


FORM = ('is not an image of the dataset, which begins with {}. A list is a '
        'text file with one such name on each line, and nothing else. ')
NAMED = FORM.format('data/cat/1.jpg, data/cat/2.jpg, .*')
NUMBERED = FORM.format('0, 1, 2')


@pytest.mark.parametrize('lines, paths, match', [
    (['0', '5'], [None] * 5, f'line 2 .*list.txt, `5`, {NUMBERED}'),
    (['-1'], [None] * 5, f'line 1 of .*, `-1`, {NUMBERED}'),
    (['a/2.jpg', '0'], ['a/2.jpg'] * 5, 'line 2 of .* the image of line 1'),
    (['a/2.jpg', '2.jpg'], ['a/2.jpg'] * 5, 'line 2 .* the image of line 1'),
    (['0', '', '4', '0'
      ], [None] * 5, 'line 4 of .* the image of line 1 of .* again'),
    ([PATHS[0], 'cat/1.jpg'], PATHS, 'line 2 of .* is the image of line 1'),
    ([], PATHS, 'has no images'),
    (['', ' '], PATHS, 'has no images'),
    ([PATHS[0], '/x/cow/1.jpg'
      ], PATHS, f'line 2 of .*, `/x/cow/1.jpg`, {NAMED}'),
    ([PATHS[0], '1.jpg'], PATHS, f'line 2 of .*, `1.jpg`, {NAMED}'),
    ([PATHS[0], 'my 3.jpg'], PATHS, NAMED),
    ([PATHS[0], '1'], PATHS, 'line 2 of .*, `1`, is not .* Numbers of'),
    ([DIGITS[0], '9'], DIGITS, 'line 2 of .*, `9`, is not .* Numbers of'),
])
def test_errors_name_the_line(listed, lines, paths, match):
    """A number may count images, or be a name: it isn't guessed."""
    with pytest.raises(Refusal, match=match) as error:
        listed(*lines, paths=paths)
    assert 'of ListedImages in `train_dataloader.' in str(error.value)


@pytest.mark.parametrize('lines', [
    [f'{path} {label}' for path, label in zip(PATHS, (0, 0, 1, 1, 2))],
    [f'{path}, {label}' for path, label in zip(PATHS, (0, 0, 1, 1, 2))],
    ['["data/cat/1.jpg", "data/cat/2.jpg"]'],
    ['[', '"data/cat/1.jpg"', ']'],
    ['image,rank,path,score', '0,1,data/cat/1.jpg,0.5'],
    ['1.000000000000000000e+00'],
    ['3\t1.5', '2\t1e-1'],
    ['\x93NUMPY\x01'],
])
@pytest.mark.parametrize('paths, match', [(PATHS, NAMED),
                                          ([None] * 5, NUMBERED)])
def test_what_is_no_list(listed, lines, paths, match):
    """Annotations, JSON, tables, and files of numpy."""
    with pytest.raises(Refusal, match=f'line 1 of .*{match}'):
        listed(*lines, paths=paths)


@pytest.mark.parametrize('images, paths, match', [
    ('none.txt', PATHS, "none.txt can't be read: "),
    ([0, 7], PATHS, f'entry 1, `7`, {NAMED}'),
    ([-1], PATHS, 'entry 0, `-1`, is not'),
    ([1.0], PATHS, 'entry 0, `1.0`, is not'),
    ([], PATHS, 'has no images'),
    (['a.jpg'], [None] * 5, NUMBERED),
    (['a.jpg'], ['x/a.jpg', 'y/a.jpg'], 'begins with x/a.jpg, y/a.jpg. '),
    (3, PATHS, 'name of a file, or for .* a list of images, but got 3'),
])
def test_errors_name_the_entry(images, paths, match):
    with pytest.raises(Refusal, match=match):
        find(images, paths)


@pytest.mark.parametrize('name, warns', [
    ('cat/1.jpg', False),
    ('./cat/1', False),
    ('data/cat/1.jpg', False),
    ('/home/somebody/data/cat/1.jpg', False),
    ('val/cat/1.jpg', True),
    ('/elsewhere/cat/1', True),
])
def test_images_in_other_folders(monkeypatch, name, warns):
    """They may be those of another split with the same names."""
    said = []
    monkeypatch.setattr(lists, 'print_log', lambda text, *_: said.append(text))
    assert find([name, PATHS[1]]) == [0, 1]
    assert len(said) == warns
    if warns:
        assert f'in other folders, such as {PATHS[0]} for {name}.' in said[0]


@pytest.mark.parametrize('name', ['b.v1', 'd/b.v1', 'b.v1.png'])
def test_dots_in_names_are_no_other_folders(monkeypatch, name):
    """The end of such a name isn't a suffix."""
    said = []
    monkeypatch.setattr(lists, 'print_log', lambda text, *_: said.append(text))
    assert find([name], ['d/b.png', 'd/b.v1.png', 'd/b.v2.png']) == [1]
    assert not said
    assert find(['val/d/b.v1'],
                ['train/d/b.v1.png', 'train/d/b.v2.png']) == [0]
    assert len(said) == 1


def test_names_beside_images_without_one(listed):
    """Such images have numbers alone."""
    paths = ['a/1x.jpg', 'a/1x.jpg', 'a/2x.jpg', None]
    assert listed('2x.jpg', '0', paths=paths) == [2, 0]
    assert listed('1x.jpg', '3', paths=paths) == [0, 1, 3]
    assert find(['./1.jpg', '/data/2.jpg'], ['1.jpg', '2.jpg']) == [0, 1]
