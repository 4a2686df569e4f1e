# Copyright (c) mmib contributors. All rights reserved.
"""Masks in a folder replace the masks of the same names."""
import os
import pickle
import zlib
from pathlib import Path

import cv2
import numpy as np
import pytest
from mmengine.registry import DefaultScope
from PIL import Image

from mmib.errors import Refusal
from mmib.labels import listed_images
from mmib.labels import masks as module
from mmib.labels.masks import masks_checksum, short_names
from tests.test_cli.conftest import run  # noqa: F401
from tests.test_labels import test_repair
from tests.test_labels.test_repair import as_labels, dataset_of, raw
from tests.test_openmmlab.test_datasets import build

brush, config = test_repair.brush, test_repair.config


@pytest.fixture
def masks(config):  # noqa: F811
    """Another mask of an image, in a folder."""
    Path('new').mkdir()
    mask = np.full((96, 96), 3, np.uint8)
    cv2.imwrite('new/4.png', mask)
    return mask


@pytest.mark.parametrize('serialize', [True, False])
@pytest.mark.parametrize('wrapper', ['plain', 'repeat', 'concat', 'listed'])
def test_wrappers(masks, wrapper, serialize):
    part = dataset_of(serialize_data=serialize)
    listed = dict(type='ListedImages', repaired='new')
    if wrapper == 'repeat':
        part = dict(type='RepeatDataset', times=2, dataset=part)
    elif wrapper == 'concat':
        Path('more').symlink_to('data')
        more = dict(part, data_root='more', lazy_init=True)
        # Two masks have one name.
        with pytest.raises(ValueError, match='new/4.png has the name of 2 ma'):
            build(
                dict(
                    listed,
                    dataset=dict(type='ConcatDataset', datasets=[part, more])))
        Path('new/data/annotations/training').mkdir(parents=True)
        Path('new/4.png').rename('new/data/annotations/training/4.png')
        part = dict(type='ConcatDataset', datasets=[more, part])
    elif wrapper == 'listed':
        listed.update(images=['3.jpg', '4.jpg', '5.jpg'], without=['5.jpg'])
    with DefaultScope.overwrite_default_scope('mmseg'):
        dataset = build(dict(listed, dataset=part))
    dataset = pickle.loads(pickle.dumps(dataset))
    samples = [dataset[i]['data_samples'] for i in range(len(dataset))]
    assert len(samples) == dict(
        plain=6, repeat=12, concat=12, listed=2)[wrapper]
    count = 0
    for sample in samples:
        path = Path(sample.img_path)
        new = path.name == '4.jpg' and path.parts[0] == 'data'
        mask = masks if new else raw(f'{path.stem}.png')
        np.testing.assert_array_equal(sample.gt_sem_seg.data[0],
                                      as_labels(mask))
        count += new
    assert count == (2 if wrapper == 'repeat' else 1)


def test_what_is_left_out_stays_out(masks, monkeypatch):
    said = []
    monkeypatch.setattr(listed_images, 'print_log',
                        lambda text, *_: said.append(text))
    with DefaultScope.overwrite_default_scope('mmseg'):
        dataset = build(
            dict(
                type='ListedImages',
                repaired='new',
                without=['4.jpg'],
                dataset=dataset_of()))
    assert len(dataset) == 5
    assert said == [
        'InfoBatch: the dataset has 5 of 6 images; left out by a list: 1; '
        'with masks of new: 0 of 1.'
    ]


def test_masks_that_cannot_be_used(masks):
    listed = dict(type='ListedImages', repaired='new', dataset=dataset_of())
    bad = {
        'has the name of no masks of the dataset. Corr': ('9.png', masks),
        r'new/4.png has 95 x 96 pixels, and ': ('4.png', masks[:, 1:]),
        'new/4.png has the numbers 6, 7, which stand for no class': (
            '4.png', masks + 4 - (np.arange(96) % 2).astype(np.uint8)),
        r'new/4.png has colours \(RGB\)': ('4.png', np.dstack([masks] * 3)),
    }
    with DefaultScope.overwrite_default_scope('mmseg'):
        for match, (name, mask) in bad.items():
            cv2.imwrite(f'new/{name}', mask)
            with pytest.raises(ValueError, match=match):
                build(listed)
            os.remove(f'new/{name}')
        with pytest.raises(ValueError, match='new has no masks, files that'):
            build(listed)
        cv2.imwrite('new/4.png', masks)
        with pytest.raises(ValueError, match="The dataset has no `seg_map_pa"):
            build(
                dict(
                    listed, dataset=dict(type='PathDataset', name='a',
                                         size=3)))


def test_a_mask_of_an_image_that_was_removed(masks):
    """Such as in a try on a few images."""
    listed = dict(
        type='ListedImages', repaired='new', dataset=dataset_of(indices=2))
    with DefaultScope.overwrite_default_scope('mmseg'):
        with pytest.raises(Refusal, match='new/4.png .* removed .*`indices`'):
            build(listed)
        Path('new/4.png').rename('new/9.png')
        with pytest.raises(Refusal, match='the name of no masks'):
            build(listed)


def test_numbers_that_the_mask_before_has(masks):
    """A loader of one's own may make a class of them."""
    path = Path(f'{test_repair.MASKS}/4.png')
    mask = cv2.imread(str(path), -1)
    mask[0] = 40
    cv2.imwrite(str(path), mask)
    mask[1] = 3
    cv2.imwrite('new/4.png', mask)
    listed = dict(type='ListedImages', repaired='new', dataset=dataset_of())
    with DefaultScope.overwrite_default_scope('mmseg'):
        build(listed)
        mask[1] = 41
        cv2.imwrite('new/4.png', mask)
        with pytest.raises(ValueError, match='has the numbers 41, which'):
            build(listed)


def test_a_mask_that_ignores_a_class_is_warned_of(masks, monkeypatch):
    """Such as one of 0 and 255 for two classes, as other tools write them."""
    said = []
    monkeypatch.setattr(module, 'print_log',
                        lambda text, *_: said.append(text))
    listed = dict(type='ListedImages', repaired='new', dataset=dataset_of())
    with DefaultScope.overwrite_default_scope('mmseg'):
        for number, warned in ((5, True), (4, False)):
            mask = raw('4.png')
            # Of the other class a pixel is left.
            mask[mask == number] = 255
            mask[0, 0] = 4
            cv2.imwrite('new/4.png', mask)
            build(listed)
            texts, said[:] = [*said], []
            assert len(texts) == warned
            assert not warned or ' the number 5 in ' in texts[0]


def test_names():
    assert short_names(['a/1.png', 'a/2.png']) == {
        'a/1.png': '1.png',
        'a/2.png': '2.png'
    }
    assert short_names(['../a/m/1.png', '/b/m/1.png']) == {
        '../a/m/1.png': 'a/m/1.png',
        '/b/m/1.png': 'b/m/1.png'
    }


def test_the_checksum_is_of_names_and_contents(tmp_path):
    (tmp_path / 'a.png').write_bytes(b'1')
    first = masks_checksum(tmp_path)
    assert first == zlib.crc32(b'a.png1')
    (tmp_path / 'note.txt').write_bytes(b'1')
    assert masks_checksum(tmp_path) == first
    (tmp_path / 'a.png').rename(tmp_path / 'b.png')
    assert masks_checksum(tmp_path) != first


@pytest.fixture
def told(monkeypatch):
    """What is said of new masks of some images, made of the old ones."""

    def told(change, names=('1.png', '2.png', '4.png')):
        said = []
        monkeypatch.setattr(module, 'print_log',
                            lambda text, *_: said.append(text))
        Path('new').mkdir(exist_ok=True)
        for name in names:
            cv2.imwrite(f'new/{name}', change(raw(name)))
        with DefaultScope.overwrite_default_scope('mmseg'):
            build(
                dict(
                    type='ListedImages',
                    repaired='new',
                    dataset=dataset_of(type='NamedDataset')))
        return ' '.join(said)

    return told


def test_masks_of_another_suffix_are_told(config, told):  # noqa: F811
    """But neither the image of a mask nor a text."""
    Path('new/more').mkdir(parents=True)
    for name in ('1.jpg', 'note.txt'):
        Path('new', name).touch()
    assert not told(small_repair)
    for name in ('3.JPG', 'more/1.gif', '5.npy'):
        Path('new', name).touch()
    text = told(small_repair)
    assert '3 files' in text and 'new/3.JPG' in text


def exchanged(mask):
    return np.array([0, 2, 1, 3, 4, 5], np.uint8)[mask]


def small_repair(mask):
    mask = mask.copy()
    mask[:20, :20] = 3
    return mask


def test_exchanged_classes_are_told(config, told):  # noqa: F811
    """By the names of the classes, and whatever the pixels of others do."""
    text = told(exchanged)
    assert 'sky (100% of the pixels, most to ground), ground (100%' in text
    assert 'square' not in text


def test_masks_of_background_are_told(config, told):  # noqa: F811
    text = told(np.zeros_like)
    assert 'most to no class' in text and 'sky (100%' in text


@pytest.mark.parametrize('turn, name', [
    (np.fliplr, 'mirrored'),
    (np.flipud, 'upside down'),
    (lambda mask: mask[::-1, ::-1], 'by half'),
    (np.rot90, 'to the left'),
    (lambda mask: np.rot90(mask, 3), 'to the right'),
    (np.transpose, 'transposed, with'),
    (lambda mask: mask[::-1, ::-1].T, 'transposed and turned'),
])
def test_turned_masks_are_told(config, told, turn, name):  # noqa: F811
    """Also those that were repaired."""
    assert name in told(lambda mask: turn(small_repair(mask)))


def test_repairs_are_not_told(config, told):  # noqa: F811
    assert not told(small_repair)
    # The wrong class of one object, and a mask that was empty.
    for names in (['1.png'], ['1.png', '2.png']):
        seen = iter([exchanged, small_repair])
        assert not told(lambda mask: next(seen)(mask), names)


def test_two_files_for_one_mask(config):  # noqa: F811
    for name in ('new/4.png', 'new/training/4.png'):
        Path(name).parent.mkdir(exist_ok=True)
        cv2.imwrite(name, raw('4.png'))
    with DefaultScope.overwrite_default_scope('mmseg'):
        with pytest.raises(
                Refusal, match='new/4.png and new/training/4.png would both'):
            build(
                dict(
                    type='ListedImages', repaired='new', dataset=dataset_of()))


def write_colours(path, mask):
    image = Image.fromarray(mask)
    image.putpalette([0, 0, 0, 255, 0, 0, 0, 255, 0])
    image.save(path)


@pytest.mark.parametrize('backend', ['cv2', 'pillow'])
@pytest.mark.parametrize('kind, write', [
    ('grey', lambda path, mask: Image.fromarray(mask).save(path)),
    ('1 bit',
     lambda path, mask: Image.fromarray(255 * mask).convert('1').save(path)),
    ('palette', write_colours),
])
def test_a_mask_is_what_the_loader_reads(tmp_path, kind, write, backend):
    """Or else it is refused."""
    for name in ('img', 'mask', 'new'):
        (tmp_path / name).mkdir()
    old = np.tile(np.uint8([0, 1]), (8, 4))
    drawn = np.eye(8, dtype=np.uint8)
    cv2.imwrite(str(tmp_path / 'img/0.png'), np.dstack([old] * 3))
    cv2.imwrite(str(tmp_path / 'mask/0.png'), old)
    write(tmp_path / 'new/0.png', drawn)
    cfg = dict(
        type='ListedImages',
        repaired=str(tmp_path / 'new'),
        dataset=dict(
            type='BaseSegDataset',
            data_root=str(tmp_path),
            img_suffix='.png',
            data_prefix=dict(img_path='img', seg_map_path='mask'),
            metainfo=dict(classes=('a', 'b'), palette=[[0] * 3, [9] * 3]),
            pipeline=[
                dict(type='LoadImageFromFile'),
                dict(type='LoadAnnotations', imdecode_backend=backend)
            ]))
    with DefaultScope.overwrite_default_scope('mmseg'):
        try:
            labels = build(cfg)[0]['gt_seg_map']
        except Refusal as error:
            assert 'other labels in the dataset than its numbers' in str(error)
            assert kind != 'grey' and (kind, backend) != ('palette', 'pillow')
        else:
            np.testing.assert_array_equal(labels, drawn)
    (tmp_path / 'img/0.png').write_bytes(b'no image')
    with DefaultScope.overwrite_default_scope('mmseg'):
        with pytest.raises(Refusal, match='can\'t be loaded as the dataset'):
            build(cfg)
