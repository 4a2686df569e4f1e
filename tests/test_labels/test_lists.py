# Copyright (c) mmib contributors. All rights reserved.
import codecs
import json
import os
from pathlib import Path

import numpy as np
import pytest

from mmib.errors import Refusal
from mmib.labels import lists
from mmib.labels.lists import as_line, find_images

# As datasets have them.
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


# As VOC and COCO have them: images 0, 1, 2 and 3.
DIGITS = [f'data/{name}.jpg' for name in ('000001', '000012', '9', '2')]
# A name that is no text.
NO_TEXT = os.fsdecode(b'data/\xff.jpg')


@pytest.mark.parametrize('begin', [b'', codecs.BOM_UTF8])
@pytest.mark.parametrize(
    'lines, paths, images',
    [
        (['3', '0', '', '4'], PATHS, [0, 3, 4]),
        ([PATHS[2], PATHS[0]], PATHS, [0, 2]),
        (PATHS, PATHS, [0, 1, 2, 3, 4]),
        ([NO_TEXT], [*PATHS, NO_TEXT], [5]),
        # Names without their suffix.
        (['000012'], DIGITS, [1]),
        (['000012', '000001'], DIGITS, [0, 1]),
        (['data/000012', '9.jpg'], DIGITS, [1, 2]),
        # No number of an image.
        (['9'], DIGITS, [2]),
        # No name of one.
        (['0', '3'], DIGITS, [0, 3]),
        # Number and name of one image.
        (['0', '1'], ['a/0.jpg', 'a/1.jpg'], [0, 1]),
        # As mmib writes images that share a path.
        (['1'], ['a/0.jpg', 'b/1.jpg', 'b/1.jpg'], [1]),
    ])
def test_lists_in_files(listed, lines, paths, images, begin):
    assert listed(*lines, paths=paths, begin=begin)[0] == images


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
    for images in ([3, 0], ['3', '0'], np.array([3, 0]), (3, np.int32(0))):
        numbers, note = find(images)
        assert numbers.tolist() == [0, 3] and numbers.dtype == np.int64
        assert note == ''
    assert find([PATHS[4]])[0].tolist() == [4]
    # They have numbers, whatever the images are called.
    assert find([1, 2], DIGITS)[0].tolist() == [1, 2]


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


@pytest.mark.parametrize('names, warned', [
    (['/other/images/1.jpg', '/other/images/2.jpg', '3.jpg'], 2),
    (['data/1.jpg'], 0),
    (['2.jpg', '3.jpg'], 0),
])
def test_images_of_another_data_set(monkeypatch, names, warned):
    """They have the same names, and nothing else tells them."""
    said = []
    monkeypatch.setattr(lists, 'print_log', lambda text, *_: said.append(text))
    find(names, [f'data/{i}.jpg' for i in range(5)])
    assert len(said) == bool(warned)
    if warned:
        assert f'{warned} of 3 lines of the list were found by' in said[0]
        assert 'such as data/1.jpg for /other/images/1.jpg' in said[0]


NAMES = [
    'a\nb.jpg', 'a\r.jpg', ' a.jpg', 'a.jpg ', '\ta', 'a\u3000', '"a.jpg"',
    '"', '\ufeffa.jpg', 'a"b.jpg', '\\n',
    os.fsdecode(b' \xff')
]


def test_names_that_are_no_lines(listed):
    """They come back."""
    lines = [as_line(name) for name in NAMES]
    assert lines[-3] == NAMES[-3] and json.loads(lines[0]) == NAMES[0]
    for name, line in zip(NAMES, lines):
        assert listed(line, paths=['b.jpg', name])[0] == [1]
    assert listed(*lines, paths=NAMES)[0] == [*range(len(NAMES))]


@pytest.mark.parametrize('encoding', ['utf-16-le', 'utf-16-be'])
def test_lists_of_a_spreadsheet(tmp_path, encoding):
    path = tmp_path / 'list.txt'
    path.write_bytes(f'\ufeff{PATHS[2]}\r\n{PATHS[0]}\r\n'.encode(encoding))
    assert find(path)[0].tolist() == [0, 2]


@pytest.mark.parametrize('lines, paths, match', [
    (['0', '5'], PATHS, 'line 2 of .*list.txt is image 5, but the dataset has '
     'images 0 to 4'),
    (['-1'], PATHS, 'line 1 of .* is image -1'),
    (['0', '', '4', '0'
      ], PATHS, 'line 4 of .* the image of line 1 of .* again'),
    ([PATHS[0], 'cat/1.jpg'], PATHS, 'line 2 of .* is the image of line 1'),
    ([], PATHS, 'has no images'),
    (['', ' '], PATHS, 'has no images'),
    ([PATHS[0], '/x/cow/1.jpg'], PATHS, 'line 2 of .*, `/x/cow/1.jpg`, is no '
     'image of the dataset, whose first one is `data/cat/1.jpg`'),
    ([PATHS[0], '1.jpg'], PATHS, 'is the end of 2 of the paths'),
    ([PATHS[0], 'my 3.jpg'], PATHS, 'is the end of 1 of the paths'),
    ([PATHS[0], '9 b.jpg'], PATHS, '`data/cat/1.jpg`. Correct the list'),
    ([PATHS[0], '1'], PATHS, '`1`, is no image'),
    (['1', '2'], DIGITS, 'line 2 of .*, `2`, may be the number of '
     '`data/9.jpg` or the name of `data/2.jpg`: list '),
    (['2'], ['a/2.jpg', 'b/2.jpg', 'c/1.jpg'], 'the name of several images'),
])
def test_errors_name_the_line(listed, lines, paths, match):
    with pytest.raises(Refusal, match=match) as error:
        listed(*lines, paths=paths)
    assert 'of ListedImages in `train_dataloader.' in str(error.value)


def test_the_table_of_all_images_is_no_list(listed):
    with pytest.raises(
            Refusal, match='line 1 of .* no column `verdict`.* all images: '):
        listed('image,path,score', '0,data/cat/1.jpg,0.5')


@pytest.mark.parametrize('images, paths, match', [
    ('none.txt', PATHS, "none.txt can't be read: "),
    ([0, 7], PATHS, 'entry 1 is image 7'),
    ([], PATHS, 'has no images'),
    (['a.jpg'], [None, None], "doesn't tell `img_path`"),
    (['a.jpg'], ['a.jpg', 'a.jpg'], 'path of several images'),
    (['a.jpg'], ['x/a.jpg', 'y/a.jpg'], 'of 2 of .* `x/a.jpg`, .* 2 parts'),
    (3, PATHS, 'name of a file or a list of images, but got 3'),
])
def test_errors_name_the_entry(images, paths, match):
    with pytest.raises(Refusal, match=match):
        find(images, paths)
