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
    return [*find_images(images, len(paths), lambda: paths)]


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
    ])
def test_lists_in_files(listed, lines, paths, images, begin):
    assert listed(*lines, paths=paths, begin=begin) == images


FORM = 'A list is a text file with the path of one image on each line'


@pytest.mark.parametrize('lines', [
    [f'{path} {label}' for path, label in zip(PATHS, (0, 0, 1, 1, 2))],
    [f'{path}, {label}' for path, label in zip(PATHS, (0, 0, 1, 1, 2))],
    ['["data/cat/1.jpg", "data/cat/2.jpg"]'],
    ['[', '"data/cat/1.jpg"', ']'],
    ['image,rank,path,score', '0,1,data/cat/1.jpg,0.5'],
    ['1.000000000000000000e+00'],
    ['3\t1.5', '2\t1e-1'],
])
@pytest.mark.parametrize('paths', [PATHS, [None] * 5])
def test_what_is_no_list(listed, lines, paths):
    """Annotations, JSON, tables, and what ``np.savetxt`` writes."""
    with pytest.raises(Refusal, match=f'line 1 of .* is no image .*{FORM}'):
        listed(*lines, paths=paths)


@pytest.mark.parametrize('paths', [PATHS, DIGITS])
def test_a_number_in_a_text_file_is_not_guessed(listed, paths):
    """It may count images, or be a name."""
    with pytest.raises(Refusal, match='line 2 of .*, `1`, is no .*np.save'):
        listed(paths[0], '1', paths=paths)


def test_lists_in_configs():
    for images in ([3, 0], np.array([3, 0]), (3, np.int32(0))):
        assert find(images) == [3, 0]
    assert find([PATHS[4], 0]) == [4, 0]
    # They have numbers, whatever the images are called.
    assert find([1, 2], DIGITS) == [1, 2]


def test_lists_of_numpy(tmp_path):
    path = tmp_path / 'list.npy'
    for images in ([3, 0], [PATHS[3], PATHS[0]]):
        np.save(path, images)
        assert find(path) == [3, 0]
    for images, match in (([0, 5], 'entry 1 of .*list.npy is image 5, but'),
                          ([1.], 'entry 0 of .*`1.0`, is no image of'),
                          ([None], "list.npy can't be read: Object arrays"),
                          (1, "can't be read: iteration over a 0-d")):
        np.save(path, images)
        with pytest.raises(Refusal, match=match):
            find(path)
    for damaged in (b'', b'PK\x03\x04'):
        path.write_bytes(damaged)
        with pytest.raises(Refusal, match="list.npy can't be read: "):
            find(path)
    with pytest.raises(Refusal):  # It has no right labels.
        find_images(path, 5, lambda: PATHS, 'relabel')


@pytest.mark.parametrize('line', [
    'cat/2.jpg', '/home/somebody/train/cat/2.jpg', r'C:\images\cat\2.jpg',
    './data/cat/2.jpg'
])
def test_paths_of_another_machine(listed, line):
    assert listed(line, PATHS[0]) == [1, 0]


def test_paths_that_differ_by_name():
    assert find(['/elsewhere/2.jpg'], ['a/1.jpg', 'b/2.jpg', None]) == [1]


@pytest.mark.parametrize('names, warned', [
    (['/other/images/1.jpg', '/other/images/2.jpg', '3.jpg'], 2),
    (['data/1.jpg'], 0),
    (['train/1.jpg', 'train/2'], 0),
    (['2.jpg', '3.jpg'], 0),
])
def test_images_of_another_dataset(monkeypatch, names, warned):
    """They have the same names, and nothing else distinguishes them."""
    said = []
    monkeypatch.setattr(lists, 'print_log', lambda text, *_: said.append(text))
    folder = 'data/train' if names[0].startswith('train') else 'data'
    find(names, [f'{folder}/{i}.jpg' for i in range(5)])
    assert len(said) == bool(warned)
    if warned:
        assert f'{warned} lines of the list were found by' in said[0]
        assert 'such as data/1.jpg for /other/images/1.jpg' in said[0]


@pytest.mark.parametrize('encoding', ['utf-16-le', 'utf-16-be'])
def test_lists_of_a_spreadsheet(tmp_path, encoding):
    path = tmp_path / 'list.txt'
    path.write_bytes(f'\ufeff{PATHS[2]}\r\n{PATHS[0]}\r\n'.encode(encoding))
    assert find(path) == [2, 0]


@pytest.mark.parametrize('lines, paths, match', [
    (['0', '5'], [None] * 5, 'line 2 of .*list.txt, `5`, is no image of the '
     'dataset, which has no `img_path` of its 5 images'),
    (['-1'], [None], 'line 1 of .*, `-1`, is no image of the dataset, which'),
    (['0', '', '4', '0'
      ], [None] * 5, 'line 4 of .* the image of line 1 of .* again'),
    ([PATHS[0], 'cat/1.jpg'], PATHS, 'line 2 of .* is the image of line 1'),
    ([], PATHS, 'has no images'),
    (['', ' '], PATHS, 'has no images'),
    ([PATHS[0], '/x/cow/1.jpg'], PATHS, 'line 2 of .*, `/x/cow/1.jpg`, is no '
     'image of the dataset, whose first one is `data/cat/1.jpg`'),
    ([PATHS[0], '1.jpg'], PATHS, 'is the end of 2 of the paths'),
    ([PATHS[0], 'my 3.jpg'], PATHS, 'is the end of 1 of the paths'),
    ([PATHS[0], '9 b.jpg'], PATHS, '`data/cat/1.jpg`. A list is'),
    (['a/2.jpg', '0'], ['a/2.jpg', 'a/2.jpg'], 'end of 2 .* or numbers'),
])
def test_errors_name_the_line(listed, lines, paths, match):
    with pytest.raises(Refusal, match=match) as error:
        listed(*lines, paths=paths)
    assert 'of ListedImages in `train_dataloader.' in str(error.value)


@pytest.mark.parametrize('images, paths, match', [
    ('none.txt', PATHS, "none.txt can't be read: "),
    ('none.npy', PATHS, "none.npy can't be read: "),
    ([0, 7], PATHS, 'entry 1 is image 7'),
    ([], PATHS, 'has no images'),
    (['a.jpg'], [None, None], 'has no `img_path`'),
    (['a.jpg'], ['a.jpg', 'a.jpg'
                 ], 'of 2 of .* `a.jpg`: list whole paths, or'),
    (['a.jpg'], ['x/a.jpg', 'y/a.jpg'], 'of 2 of .* `x/a.jpg`: list whole'),
    (3, PATHS, 'name of a file or a list of images, but got 3'),
])
def test_errors_name_the_entry(images, paths, match):
    with pytest.raises(Refusal, match=match):
        find(images, paths)
