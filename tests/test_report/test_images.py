# Copyright (c) mmib contributors. All rights reserved.
"""Images of a data set, their predictions and their cards."""
import os

import cv2
import numpy as np
import pandas as pd
import pytest
import torch
from mmengine.config import Config
from mmengine.structures import PixelData
from mmseg.structures import SegDataSample

from mmib.report.checkpoint import Checkpoint
from mmib.report.images import CannotShow, TrainingImages
from mmib.report.pictures import overlay, take_pictures, to_uri
from mmib.report.predictions import Predictor, image_losses, mean_and_guess

from ..system.small_training import write_images


def config_of(root, **changes):
    dataset = dict(
        type='BaseSegDataset',
        data_root=str(root),
        data_prefix=dict(
            img_path='images/training', seg_map_path='annotations/training'),
        reduce_zero_label=True,
        metainfo=dict(
            classes=tuple('abcde'), palette=[[9 * i] * 3 for i in range(5)]),
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='LoadAnnotations', reduce_zero_label=True),
            dict(type='RandomFlip', prob=0.5),
            dict(type='PackSegInputs')
        ])
    dataset.update(changes)
    return Config(
        dict(default_scope='mmseg', train_dataloader=dict(dataset=dataset)))


@pytest.fixture(scope='module')
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp('images') / 'data'
    write_images(str(root), 4)
    return root


def test_paths_pixels_and_labels(root):
    images = TrainingImages(config_of(root), 4)
    path = root / 'images' / 'training' / '2.jpg'
    assert images.paths()[2] == str(path)
    results = images.read(2)
    np.testing.assert_array_equal(results['img'], cv2.imread(str(path)))
    mask = cv2.imread(str(root / 'annotations' / 'training' / '2.png'),
                      0).astype(int)
    np.testing.assert_array_equal(results['gt_seg_map'], (mask - 1) % 256)
    assert images.classes == list('abcde')
    assert images.palette[4].tolist() == [36] * 3


def test_a_list_that_is_read_late(root):
    part = config_of(root).train_dataloader.dataset
    config = config_of(root)
    config.train_dataloader.dataset = dict(
        type='ListedImages', dataset=part, images=[2, 0], lazy_init=True)
    paths = TrainingImages(config, 2).paths()
    assert [os.path.basename(path) for path in paths] == ['0.jpg', '2.jpg']


def test_repeated_images_have_one_number(root):
    """Numbers are those of the scores."""
    config = config_of(root)
    part = config.train_dataloader.dataset
    twice = dict(type='RepeatDataset', times=2, dataset=part)
    config.train_dataloader.dataset = dict(
        type='ConcatDataset', datasets=[part, twice])
    images = TrainingImages(config, 8)
    assert images.paths()[4:] == images.paths()[:4]
    assert 'gt_seg_map' in images.read(7)


@pytest.mark.parametrize('changes, match', [
    (dict(data_root='/nowhere'), 'FileNotFoundError|has 0 images'),
    (dict(indices=2), 'has 2 images here, and the checkpoint 4'),
    (dict(type='Nowhere'), 'Nowhere'),
])
def test_other_data(root, changes, match):
    with pytest.raises(CannotShow, match=match):
        TrainingImages(config_of(root, **changes), 4)


def test_config_without_data():
    with pytest.raises(CannotShow, match='the config has none'):
        TrainingImages(Config(), 4)
    imports = dict(custom_imports=dict(imports=['nowhere']))
    with pytest.raises(CannotShow, match='Failed to import nowhere'):
        TrainingImages(
            Config(dict(imports, train_dataloader=dict(dataset=dict()))), 4)


def test_cards_of_both_ends():
    scores = np.float32([0.5, 3, np.nan, 1])
    images = pd.DataFrame(dict(score=scores, visits=np.arange(4)))
    gallery = take_pictures(Config(), Checkpoint('a.pth', images), 2)
    assert [(c.number, c.rank, c.visits, c.pruned)
            for c in gallery.highest] == [(1, 1, 1, None), (3, 2, 3, None)]
    # None is in both.
    assert [(c.number, c.rank) for c in gallery.lowest] == [(0, 3)]
    note, = gallery.notes
    assert 'because of the data set: the config has none.' in note
    none = take_pictures(Config(), Checkpoint('a.pth', images), 0)
    assert none.highest == none.lowest == []


def test_pictures(root, monkeypatch):
    sample = SegDataSample(
        pred_sem_seg=PixelData(
            data=torch.zeros((
                1, *cv2.imread(str(root / 'images' / 'training' /
                                   '3.jpg')).shape[:2]))))

    class Predicts:

        def __init__(self, *args):
            pass

        def __call__(self, info):
            if fails:
                raise CannotShow('it is broken')
            return sample

    monkeypatch.setattr('mmib.report.pictures.Predictor', Predicts)
    checkpoint = Checkpoint('a.pth', pd.DataFrame(dict(score=np.arange(4.))))

    def card():
        gallery = take_pictures(config_of(root), checkpoint, 1)
        return gallery.highest[0]

    fails = False
    assert [name for name, _ in card().pictures
            ] == ['image', 'labels', 'prediction'] and not card().note
    fails = True
    assert [name for name, _ in card().pictures] == ['image', 'labels']
    assert card().note == 'No prediction: it is broken.'
    os.remove(root / 'annotations' / 'training' / '3.png')
    assert not card().pictures and card().note.startswith('No picture: ')


def test_overlay():
    image = np.full((1, 3, 3), 100, np.uint8)
    palette = np.zeros((256, 3), np.uint8)
    palette[1] = 200, 0, 50
    mixed = overlay(image, np.array([[0, 1, 255]]), palette)
    assert mixed.tolist() == [[[50] * 3, [75, 50, 150], [100] * 3]]
    with pytest.raises(CannotShow, match='don\'t fit'):
        overlay(image, np.zeros((2, 2)), palette)
    uri = to_uri(np.zeros((3000, 1000, 3), np.uint8))
    assert uri.startswith('data:image/jpeg;base64,') and len(uri) < 10000


def test_model_that_does_not_fit():
    head = dict(type='FCNHead', in_channels=128, channels=4, num_classes=2)
    model = dict(
        type='EncoderDecoder',
        backbone=dict(type='FastSCNN'),
        decode_head=head)
    tested = dict(
        dataset=dict(pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='PackSegInputs')
        ]))
    for config, match in ((dict(default_scope='mmdet'), 'MMSegmentation'),
                          (dict(model=model), 'no pipeline for tests'),
                          (dict(test_dataloader=tested), 'model'), (dict(
                              model=dict(type='Mine'),
                              val_dataloader=tested), 'Mine'),
                          (dict(model=model,
                                test_dataloader=tested), 'lacks `')):
        config = Config(dict(dict(default_scope='mmseg'), **config))
        with pytest.raises(CannotShow, match=match):
            Predictor(config, {}, 'cpu')


def losses_of(logits, labels):
    sample = SegDataSample(seg_logits=PixelData(data=logits))
    return image_losses(sample, labels)


def test_losses_of_an_image():
    torch.manual_seed(0)
    logits, labels = torch.randn(4, 9, 7), torch.randint(0, 3, (9, 7))
    labels[0, :3] = 255
    losses = losses_of(logits, labels.numpy())
    pixels = -logits.log_softmax(0).gather(0, labels.clamp(max=3)[None])[0]
    pixels = pixels[labels < 4]
    # The highest 5 % of 60 pixels.
    assert losses.highest == pytest.approx(pixels.topk(3).values.mean().item())
    assert losses.counts.tolist() == [(labels == label).sum()
                                      for label in range(4)]
    mean, _ = mean_and_guess(losses.sums, losses.counts)
    assert mean == pytest.approx(pixels.mean().item())
    with pytest.raises(CannotShow, match='don\'t fit a prediction'):
        losses_of(logits, labels[:1].numpy())


def test_what_guessing_costs():
    """A network that says how frequent the classes are has its loss."""
    logits = torch.tensor([0.75, 0.25, 1e-30]).log()[:, None, None]
    losses = losses_of(logits.expand(3, 1, 5), np.array([[0, 0, 0, 1, 255]]))
    mean, guess = mean_and_guess(losses.sums, losses.counts)
    assert mean == pytest.approx(guess) == pytest.approx(0.5623, abs=1e-4)
    # One class needs no learning.
    assert mean_and_guess(np.zeros(2), np.array([0, 7])) == (0, 0)
    assert mean_and_guess(np.zeros(1), np.zeros(1)) == (0, 0)


def test_losses_without_labels_and_of_a_binary_model():
    ignored = np.full((3, 3), 255)
    assert np.isnan(losses_of(torch.zeros(2, 3, 3), ignored).highest)
    # mmseg gives its probabilities.
    losses = losses_of(
        torch.full((1, 2, 2), 0.75), np.uint8([[1, 1], [0, 255]]))
    assert losses.highest == pytest.approx(-np.log(0.25))
    with pytest.raises(CannotShow, match='classes of pixels'):
        image_losses(SegDataSample(), ignored)
