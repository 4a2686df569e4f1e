# Copyright (c) mmib contributors. All rights reserved.
import os

import cv2
import numpy as np
import pytest
import torch
from label_errors import measure
from mmengine.structures import PixelData
from mmseg.structures import SegDataSample

from mmib.report.checkpoint import Images
from mmib.report.config import ConfigError
from mmib.report.gallery import cards, overlay, to_uri
from mmib.report.images import (Predictor, TrainingImages, image_losses,
                                mean_and_guess, open_predictor)

from ..system.small_training import write_images


def config_of(root, **changes):
    return dict(
        train_dataloader=dict(
            dataset=dict(
                type='BaseSegDataset',
                data_root=str(root),
                data_prefix=dict(
                    img_path='images/training',
                    seg_map_path='annotations/training'),
                reduce_zero_label=True,
                metainfo=dict(
                    classes=tuple('abcde'),
                    palette=[[9 * i] * 3 for i in range(5)]),
                pipeline=[
                    dict(type='LoadImageFromFile'),
                    dict(type='LoadAnnotations', reduce_zero_label=True),
                    dict(type='RandomFlip', prob=0.5),
                    dict(type='PackSegInputs')
                ],
                **changes)))


@pytest.fixture(scope='module')
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp('images') / 'data'
    write_images(str(root), 4)
    return root


def test_paths_and_pixels(root):
    images = TrainingImages(config_of(root), 4, trust=False)
    path = root / 'images' / 'training' / '2.jpg'
    assert images.paths()[2] == str(path)
    results = images.read(2)
    np.testing.assert_array_equal(results['img'], cv2.imread(str(path)))
    mask = cv2.imread(str(root / 'annotations' / 'training' / '2.png'),
                      0).astype(int)
    np.testing.assert_array_equal(results['gt_seg_map'], (mask - 1) % 256)
    assert images.classes == list('abcde')
    assert images.palette[4].tolist() == [36] * 3


def test_repeated_images_have_one_number(root):
    """Numbers are those of the scores."""
    part = config_of(root)['train_dataloader']['dataset']
    twice = dict(type='RepeatDataset', times=2, dataset=part)
    config = dict(
        train_dataloader=dict(
            dataset=dict(type='ConcatDataset', datasets=[part, twice])))
    images = TrainingImages(config, 8, trust=False)
    assert images.paths()[4:] == images.paths()[:4]
    assert 'gt_seg_map' in images.read(7)


@pytest.mark.parametrize('changes, match', [
    (dict(data_root='/nowhere'), 'FileNotFoundError|has 0 images'),
    (dict(indices=2), 'has 2 images here, and the checkpoint 4'),
])
def test_other_data(root, changes, match):
    config = config_of(root)
    config['train_dataloader']['dataset'].update(changes)
    with pytest.raises(ConfigError, match=match):
        TrainingImages(config, 4, trust=False)


def test_config_without_data():
    with pytest.raises(ConfigError, match='the config has none'):
        TrainingImages({}, 4, trust=False)


def test_reads_nothing_outside_of_the_data(tmp_path):
    root, secret = tmp_path / 'data', tmp_path / 'secret.jpg'
    write_images(str(root), 3)
    folder = root / 'images' / 'training'
    (folder / '1.jpg').rename(secret)
    (folder / '1.jpg').symlink_to(secret)
    (folder / '2.jpg').rename(folder / 'other')
    (folder / '2.jpg').symlink_to(folder / 'other')
    images = TrainingImages(config_of(root), 3, trust=False)
    with pytest.raises(ConfigError, match='outside of the folders'):
        images.read(1)
    assert 'img' in images.read(2)


def test_a_folder_of_the_data_may_be_a_link(tmp_path):
    root = tmp_path / 'data'
    write_images(str(root), 2)
    (root / 'images').rename(tmp_path / 'elsewhere')
    (root / 'images').symlink_to(tmp_path / 'elsewhere')
    images = TrainingImages(config_of(root), 2, trust=False)
    assert 'img' in images.read(0)


def test_cards_of_both_ends(root):
    scores = np.float32([0.5, 3, np.nan, 1])
    images = Images(scores, paths=list('abcd'), visits=np.arange(4))
    highest, lowest = cards(images, 2, None, None)
    assert [(c.number, c.path, c.rank, c.visits, c.pruned)
            for c in highest] == [(1, 'b', 1, 1, None), (3, 'd', 2, 3, None)]
    # None is in both.
    assert [(c.number, c.rank) for c in lowest] == [(0, 3)]
    assert cards(images, 0, None, None) == ([], [])


def test_pictures(root):
    reader = TrainingImages(config_of(root), 4, trust=False)
    images = Images(np.arange(4, dtype=np.float32))
    (card, ), _ = cards(images, 1, reader,
                        lambda image: np.zeros(image.shape[:2], int))
    assert [name for name, _ in card.pictures
            ] == ['image', 'labels', 'prediction'] and not card.note

    def fails(image):
        raise ConfigError('it is broken')

    (card, ), _ = cards(images, 1, reader, fails)
    assert [name for name, _ in card.pictures] == ['image', 'labels']
    assert card.note == 'No prediction: it is broken.'
    os.remove(root / 'images' / 'training' / '3.jpg')
    (card, ), _ = cards(images, 1, reader, None)
    assert not card.pictures and card.note.startswith('No picture: ')


def test_overlay():
    image = np.full((1, 3, 3), 100, np.uint8)
    palette = np.zeros((256, 3), np.uint8)
    palette[1] = 200, 0, 50
    mixed = overlay(image, np.array([[0, 1, 255]]), palette)
    assert mixed.tolist() == [[[50] * 3, [75, 50, 150], [100] * 3]]
    with pytest.raises(ConfigError, match='don\'t fit'):
        overlay(image, np.zeros((2, 2)), palette)


def test_pictures_are_small():
    uri = to_uri(np.zeros((3000, 1000, 3), np.uint8))
    assert uri.startswith('data:image/jpeg;base64,') and len(uri) < 10000


def test_model_that_does_not_fit():
    head = dict(type='FCNHead', in_channels=4, channels=4, num_classes=2)
    model = dict(
        type='EncoderDecoder',
        backbone=dict(type='FastSCNN'),
        decode_head=dict(head, in_channels=128))
    for config, match in (({}, 'the config has none'),
                          (dict(default_scope='mmdet'),
                           'MMSegmentation'), (dict(
                               model=model,
                               test_pipeline=[dict(type='LoadImageFromFile')]),
                                               'lacks `')):
        with pytest.raises(ConfigError, match=match):
            open_predictor(config, {}, False, 'cpu')


def test_losses_of_an_image():
    """They are those whose worth the benchmark has measured."""
    torch.manual_seed(0)
    logits, labels = torch.randn(4, 9, 7), torch.randint(0, 3, (9, 7))
    labels[0, :3] = 255
    losses = image_losses(logits, labels)
    expected = measure(logits, labels)
    assert losses.pixels == pytest.approx(
        expected['mean of the highest 5% of the pixel losses'])
    assert losses.counts.tolist() == [(labels == label).sum()
                                      for label in range(4)]
    mean, _ = mean_and_guess(losses.sums, losses.counts)
    assert mean == pytest.approx(expected['mean pixel loss'])


def test_what_guessing_costs():
    """A network that says how frequent the classes are has its loss."""
    labels = torch.tensor([[0, 0, 0, 1, 255]])
    logits = torch.tensor([0.75, 0.25, 1e-30]).log()[:, None, None]
    losses = image_losses(logits.expand(3, 1, 5), labels)
    mean, guess = mean_and_guess(losses.sums, losses.counts)
    assert mean == pytest.approx(guess) == pytest.approx(0.5623, abs=1e-4)
    # One class needs no learning.
    assert mean_and_guess(np.zeros(2), np.array([0, 7])) == (0, 0)
    assert mean_and_guess(np.zeros(1), np.zeros(1)) == (0, 0)


def test_an_image_without_labels_has_no_loss():
    losses = image_losses(
        torch.zeros(2, 3, 3), torch.full((3, 3), 255, dtype=torch.int64))
    assert np.isnan(losses.pixels)


def test_losses_of_a_binary_model():
    """mmseg gives its probabilities."""

    class Binary(Predictor):

        def __init__(self):
            pass

        def _predict(self, image):
            probability = torch.full((1, 2, 2), 0.75)
            return SegDataSample(seg_logits=PixelData(data=probability))

    labels = np.uint8([[1, 1], [0, 255]])
    losses = Binary().losses(np.zeros((2, 2, 3), np.uint8), labels)
    # Of three pixels the highest 5 % are one.
    assert losses.pixels == pytest.approx(-np.log(0.25))
    with pytest.raises(ConfigError, match='don\'t fit a prediction'):
        Binary().losses(np.zeros((2, 2, 3), np.uint8), labels[:1])
