# Copyright (c) mmib contributors. All rights reserved.
"""Images of a dataset, their predictions and their cards."""
import base64
import csv
import json
import os

import cv2
import numpy as np
import pandas as pd
import pytest
import torch
from mmengine.config import Config
from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS, DefaultScope
from mmengine.structures import BaseDataElement, PixelData
from mmseg.structures import SegDataSample

from mmib.errors import Refusal
from mmib.labels.gallery import Gallery, rank_images
from mmib.labels.images import CannotShow, DatasetImages, as_picture
from mmib.labels.layers import (box_layer, class_layer, confusions, heat_layer,
                                side_of, to_uri)
from mmib.labels.page import render, write_table
from mmib.labels.predictions import Predictor, compare
from mmib.labels.rankings import RANKINGS, top_pixels
from mmib.labels.repair import numbers_of
from mmib.report.checkpoint import Checkpoint
from tests.helpers.segmentors import write_images


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
    images = DatasetImages(config_of(root))
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
    images = DatasetImages(config)
    names = [os.path.basename(path) for path in images.paths()]
    assert names == ['0.jpg', '2.jpg']
    # By their numbers in the whole dataset, as tables have them.
    assert images.find('2') == images.find('2.jpg') == (1, 1)
    for name in ('1', '02', '9', '1.jpg'):
        with pytest.raises(Refusal, match=f'{name} names no image of the'):
            images.find(name)


def test_repeated_images_have_one_number(root):
    """Numbers are those of the scores."""
    config = config_of(root)
    part = config.train_dataloader.dataset
    twice = dict(type='RepeatDataset', times=2, dataset=part)
    config.train_dataloader.dataset = dict(
        type='ConcatDataset', datasets=[part, twice])
    images = DatasetImages(config)
    assert images.paths()[4:] == images.paths()[:4]
    assert 'gt_seg_map' in images.read(7)


@pytest.mark.parametrize('changes, match', [
    (dict(data_root='/nowhere'), 'FileNotFoundError|has 0 images'),
    (dict(indices=2), 'has 2 images here, and the checkpoint 4'),
    (dict(type='Nowhere'), 'Nowhere'),
])
def test_other_data(root, changes, match):
    with pytest.raises(CannotShow, match=match):
        DatasetImages(config_of(root, **changes)).check(
            Checkpoint('a.pth', images_of(np.arange(4.))))


@pytest.mark.parametrize('bands', [None, 1, 2, 3, 4, 13])
@pytest.mark.parametrize('dtype', [np.uint8, np.uint16, np.float32])
def test_pictures_of_any_number_of_bands(bands, dtype):
    shape = (4, 5) if bands is None else (4, 5, bands)
    image = np.random.default_rng(0).integers(7, 200, shape).astype(dtype)
    picture = as_picture(image)
    assert picture.shape == (4, 5, 3) and picture.dtype == np.uint8
    shown = np.atleast_3d(image)[..., :3 if (bands or 1) > 2 else 1]
    if dtype == np.uint8:
        np.testing.assert_array_equal(picture[..., :shown.shape[2]], shown)
    else:
        assert (picture.min((0, 1)) == 0).all()
        assert (picture.max((0, 1)) == 255).all()
    if shown.shape[2] == 1:
        assert (picture == picture[..., :1]).all()
    # An image of one value has no range.
    flat = as_picture(np.full(shape, np.nan, np.float32))
    assert not flat.any()


def test_config_without_data():
    with pytest.raises(CannotShow, match='the config has none'):
        DatasetImages(Config())
    imports = dict(custom_imports=dict(imports=['nowhere']))
    with pytest.raises(CannotShow, match='Failed to import nowhere'):
        DatasetImages(
            Config(dict(imports, train_dataloader=dict(dataset=dict()))))


def images_of(scores):
    """Images with these scores, which are the averages too."""
    return pd.DataFrame(
        dict(
            score=scores,
            last_score=scores,
            visits=np.arange(len(scores)),
            pruned=0))


def gallery_of(config, scores, count):
    checkpoint = Checkpoint('a.pth', images_of(scores))
    return rank_images(config, checkpoint, 'train', 'score', count)


def test_cards_of_both_ends(root):
    """Of a model that can't be built, too."""
    scores = np.float32([0.5, 3, np.nan, 1])
    gallery = gallery_of(config_of(root), scores, 2)
    assert [(c.number, c.rank) for c in gallery.highest] == [(1, 1), (3, 2)]
    # Nothing was pruned, and the last scores are the averages.
    assert gallery.highest[1].figures == [('average score', 1), ('visits', 3)]
    images = images_of(scores)
    images['last_score'] += 1
    card = rank_images(
        config_of(root), Checkpoint('a.pth', images), 'train', 'score',
        2).highest[1]
    assert card.figures[:2] == [('average score', 1), ('last score', 2)]
    # None is in both.
    assert [(c.number, c.rank) for c in gallery.lowest] == [(0, 3)]
    note, = gallery.notes
    assert note == ('There are no predictions: the config has no pipeline for '
                    'tests.')
    assert [name
            for name, _ in gallery.highest[0].pictures] == ['image', 'labels']
    none = gallery_of(config_of(root), scores, 0)
    assert none.highest == none.lowest == []


@pytest.mark.parametrize('split, checkpoint, match', [
    ('val', Checkpoint('a.pth', images_of(
        np.arange(4.))), 'its training images alone: leave out --data'),
    ('train', Checkpoint('a.pth'),
     'because a.pth has none. `mmib train CONFIG --score` trains'),
])
def test_no_scores_to_rank_by(root, split, checkpoint, match):
    config = config_of(root)
    config.val_dataloader = config.train_dataloader
    with pytest.raises(Refusal, match=match):
        rank_images(config, checkpoint, split, 'score', 1)


def test_a_model_whose_images_rank_by_score_alone(root):
    checkpoint = Checkpoint('a.pth', images_of(np.arange(4.)))
    with pytest.raises(Refusal, match='for tests. --rank-by score ranks the'):
        rank_images(config_of(root), checkpoint, 'train', None, 1)


@pytest.mark.parametrize('base, note', [
    (torch.utils.data.Dataset, 'the dataset has no files'),
    (BaseDataset, "the dataset has no 'img_path' of it"),
])
def test_a_dataset_without_files(base, note):
    """Its images have numbers, and take verdicts."""

    class Numbered(base):

        def load_data_list(self):
            return [dict(row=i) for i in range(3)]

        def __len__(self):
            return 3

    DATASETS.register_module(module=Numbered, force=True)
    config = Config(dict(train_dataloader=dict(dataset=dict(type='Numbered'))))
    gallery = gallery_of(config, [1., 0., 2.], 1)
    card, = gallery.highest
    assert (card.name, card.path, card.pictures) == ('2', None, [])
    assert card.note == f'No picture: {note}.'
    html = render(gallery, 'key', config, [], 'a.csv')
    assert 'aria-label="image 2"' in html and 'save review.csv' in html


def test_pictures(root, monkeypatch):
    labels = cv2.imread(str(root / 'annotations' / 'training' / '3.png'), 0)
    sample = SegDataSample(
        pred_sem_seg=PixelData(data=torch.zeros((1, *labels.shape))),
        seg_logits=PixelData(data=torch.zeros((5, *labels.shape))))

    class Predicts:

        def __init__(self, *args):
            pass

        def __call__(self, info):
            if fails:
                raise CannotShow('it is broken')
            return sample

    monkeypatch.setattr('mmib.labels.gallery.Predictor', Predicts)

    def card():
        gallery = gallery_of(config_of(root), np.arange(4.), 1)
        return gallery.highest[0]

    fails = False
    assert [name for name, _ in card().pictures
            ] == ['image', 'labels', 'prediction', 'loss', 'differences']
    layers = {name: decoded(uri) for name, uri in card().pictures}
    # 0 is no class, and 1 the first one.
    different = labels > 1
    assert ((layers['differences'][..., 3] > 0) == different).all()
    # The loss of guessing is the same everywhere.
    assert set(layers['loss'][labels > 0, 3]) == {layers['loss'][..., 3].max()}
    assert (layers['loss'][labels == 0, 3] == 0).all()
    # Each of the classes has about a fifth of the pixels.
    shares = np.bincount(labels.ravel())[2:] / (labels > 0).sum()
    most = 'bcde'[shares.argmax()]
    assert card().classes[0] == (f'labelled {most}, predicted a:',
                                 f'{100 * shares.max():.0f} % of the pixels')
    assert card().pair == f'{most}, a' and len(card().classes) == 2
    assert not card().note
    fails = True
    assert [name for name, _ in card().pictures] == ['image', 'labels']
    assert card().note == 'No prediction: it is broken.'
    os.remove(root / 'annotations' / 'training' / '3.png')
    assert not card().pictures and card().note.startswith('No picture: ')


def test_boxes(root):
    """Those of datasets of MMDetection."""

    class Boxes(BaseDataset):
        METAINFO = dict(classes=('cat', 'dog'), palette=[[9, 9, 9]] * 2)

        def load_data_list(self):
            path = str(root / 'images' / 'training' / '{}.jpg')
            instances = [
                dict(bbox=[5., 6., 50., 40.], bbox_label=1),
                dict(bbox=[0., 0., 9., 9.], bbox_label=0)
            ]
            return [
                dict(img_path=path.format(i), instances=instances[:i])
                for i in range(3)
            ]

    DATASETS.register_module(module=Boxes, force=True)
    dataset = dict(type='Boxes', pipeline=[dict(type='LoadImageFromFile')])
    config = Config(dict(train_dataloader=dict(dataset=dataset)))
    gallery = gallery_of(config, np.arange(3.), 3)
    two, one, none = gallery.highest
    assert [name for name, _ in two.pictures] == ['image', 'labels']
    assert two.classes == [('labels:', 'cat, dog')]
    assert one.classes == [('labels:', 'dog')]
    assert [name for name, _ in none.pictures] == ['image']
    assert decoded(one.pictures[1][1])[20, 5].tolist() == [9, 9, 9, 255]
    assert two.name == str(root / 'images' / 'training' / '2.jpg')


def test_paths_that_are_no_text(root):
    """As `pathlib` has them."""

    class Paths(BaseDataset):

        def load_data_list(self):
            return [dict(img_path=root / 'images' / 'training' / '0.jpg')]

    DATASETS.register_module(module=Paths, force=True)
    config = config_of(root)
    config.train_dataloader.dataset = dict(
        type='Paths', pipeline=[dict(type='LoadImageFromFile')])
    card, = gallery_of(config, [1.], 1).highest
    path = str(root / 'images' / 'training' / '0.jpg')
    assert json.dumps(card.name) == json.dumps(path)
    assert [name for name, _ in card.pictures] == ['image']


def test_copies_of_an_image(root):
    """Have its path as a name, and a verdict on one counts for all."""
    config = config_of(root)
    part = config.train_dataloader.dataset
    config.train_dataloader.dataset = dict(
        type='ConcatDataset', datasets=[part, dict(part, indices=2)])
    gallery = gallery_of(config, np.arange(6.), 6)
    assert [card.path for card in gallery.highest
            ] == ['1.jpg', '0.jpg', '3.jpg', '2.jpg']
    assert [card.rank for card in gallery.highest] == [1, 2, 3, 4]
    assert '2 of 6 images are copies' in ' '.join(gallery.notes)
    wrong = [card.name for card in gallery.highest[:1]]
    with DefaultScope.overwrite_default_scope('mmseg'):
        left = DATASETS.build(
            dict(
                type='ListedImages',
                dataset=config.train_dataloader.dataset,
                without=wrong))
    assert len(left) == 4
    reader = DatasetImages(config)
    assert reader.find(wrong[0]) == (1, 1)
    assert numbers_of(reader, [*wrong, '3', '5']) == [1, 3, 5]


def test_images_of_one_path_that_differ(root):
    """As two crops of a file. A review has them by number."""

    class Crops(BaseDataset):

        def load_data_list(self):
            path = str(root / 'images' / 'training' / '{}.jpg')
            return [
                dict(img_path=path.format(i // 2), box=np.full(2000, i % 2))
                for i in range(4)
            ] + [dict(img_path=path.format(3), box=0)]

    DATASETS.register_module(module=Crops, force=True)
    config = config_of(root)
    config.train_dataloader.dataset = dict(
        type='Crops', pipeline=[dict(type='LoadImageFromFile')])
    names = [
        card.name for card in gallery_of(config, np.arange(5.), 5).highest
    ]
    assert names[1:] == [*'3210']
    assert names[0].endswith('3.jpg')


@pytest.mark.parametrize('ranking', ['score', 'pixels', 'regions'])
def test_images_without_labels(tmp_path, ranking, monkeypatch):
    """They have no loss, and would lie among the easiest."""
    write_images(str(tmp_path), 4)
    path = tmp_path / 'annotations' / 'training' / '2.png'
    cv2.imwrite(str(path), 0 * cv2.imread(str(path), 0))

    class Predicts:

        def __init__(self, *args):
            pass

        @staticmethod
        def pipeline(info):
            return info

        def predict(self, inputs):
            return [*map(self, inputs)]

        def __call__(self, info):
            shape = cv2.imread(info['img_path']).shape[:2]
            return SegDataSample(
                seg_logits=PixelData(data=torch.zeros((5, *shape))),
                pred_sem_seg=PixelData(data=torch.zeros((1, *shape))))

    monkeypatch.setattr('mmib.labels.gallery.Predictor', Predicts)
    scores = np.float32([0.3, 0, 0, 0.1])
    checkpoint = Checkpoint('a.pth', images_of(scores))
    gallery = rank_images(config_of(tmp_path), checkpoint, 'train', ranking, 4)
    assert gallery.unlabelled == [
        str(tmp_path / 'images' / 'training' / '2.jpg')
    ]
    assert {card.number for card in gallery.highest} == {0, 1, 3}
    assert gallery.num_ranked == 3
    # The network predicts the first class everywhere.
    assert [
        note.split(':')[0] for note in gallery.notes
    ] == ['The network predicts these labelled classes in no image'] * (
        ranking != 'score')
    html = render(gallery, 'key', config_of(tmp_path), [], 'a.csv')
    assert 'Images without any labelled pixel, which teach nothing: 1.' in html
    write_table(str(tmp_path / 'a.csv'), gallery.images)
    table = pd.read_csv(tmp_path / 'a.csv')
    assert table.image[table[ranking].isna()].tolist() == [2]
    # A network that guesses has one value for all.
    ranks = [1, 2, 3] if ranking == 'score' else [1, 1, 1]
    assert table['rank'].dropna().tolist() == ranks


def test_the_table_of_all_images(tmp_path):
    """A program that reads it has the paths again."""
    paths = ['a\rb', 'a\nb', 'a,"b"', 'a\r\nb', None]
    images = dict(images_of(np.arange(5.)), path=paths, more=[1] * 5)
    write_table(str(tmp_path / 'images.csv'), pd.DataFrame(images))
    with open(tmp_path / 'images.csv', encoding='utf-8', newline='') as file:
        rows = list(csv.DictReader(file))
    assert [row['path'] or None for row in rows] == paths
    read = pd.read_csv(tmp_path / 'images.csv', index_col='image')
    assert read.path[:4].tolist() == paths[:4]
    assert list(read) == [
        'path', 'score', 'last_score', 'visits', 'pruned', 'more'
    ]


def test_a_run_that_was_tested(root, tmp_path):
    """MMEngine writes the checkpoint of a test into the config of the run,
    from which the next run doesn't begin."""
    config = config_of(root)
    path = tmp_path / 'run.py'
    for options in ('', ' --cfg-options load_from=None'):
        config.dump(path)
        trained = Config(config_of(root).to_dict(), filename=str(path))
        gallery = gallery_of(trained, np.arange(4.), 1)
        html = render(gallery, 'key', trained, [], 'a.csv')
        command = f'mmib train {path} --without review.csv{options}'
        assert f'<pre>{command}</pre>' in html
        config.load_from = 'a.pth'


@pytest.mark.parametrize('name', RANKINGS)
def test_each_ranking_is_explained(name):
    gallery = Gallery(
        pd.DataFrame({name: [1.]}), 'a.pth', rank_by=name, unlabelled=['a'])
    html = render(gallery, 'key', Config(), [], 'a.csv')
    assert html.count('Images rank by ') == 1


def test_layers():
    palette = np.zeros((256, 3), np.uint8)
    palette[1] = 200, 0, 50
    layer = class_layer(np.array([[0, 1, 255]]), palette)
    assert layer[0, :2].tolist() == [[0, 0, 0, 128], [50, 0, 200, 128]]
    assert layer[0, 2, 3] == 0
    heat = heat_layer(np.array([[0, 1.3, 4, 99, np.nan]]))[0]
    # The higher, the brighter and the less transparent.
    assert heat[0, 3] == heat[4, 3] == 0
    assert (np.diff(heat[:4, 3].astype(int)) > 0).all()
    assert (np.diff(heat[:4, :3].astype(int).sum(1)) > 0).all()
    layer = box_layer((40, 60, 3), [[10.2, 5, 30, 20]], [1], palette)
    rows, columns = np.nonzero(layer[..., 3])
    assert (rows.min(), rows.max()) in ((4, 20), (4, 21), (5, 20))
    assert layer[5, 20].tolist() == [50, 0, 200, 255]
    # A box is empty.
    assert layer[12, 20, 3] == 0 and 9 <= columns.min() <= 10
    # The last one is thick.
    boxes = [[10, 5, 20, 20], [40, 5, 50, 20]]
    layer = box_layer((40, 60, 3), boxes, [0, 1], palette, 1)
    drawn = np.count_nonzero(layer[..., 3], 0)
    assert (drawn[:30] > 10).sum() < (drawn[30:] > 10).sum()


def decoded(uri):
    assert uri.startswith('data:image/webp;base64,')
    data = np.frombuffer(base64.b64decode(uri.partition(',')[2]), np.uint8)
    return cv2.imdecode(data, cv2.IMREAD_UNCHANGED)


def test_files_of_pictures():
    rng = np.random.default_rng(0)
    layer = rng.integers(256, size=(30, 10, 4), dtype=np.uint8)
    layer[..., 3] = 128
    np.testing.assert_array_equal(decoded(to_uri(layer, 30)), layer)
    # Labels aren't mixed.
    half = decoded(to_uri(layer, 15))
    assert half.shape == (15, 5, 4)
    assert {*map(tuple, half.reshape(-1, 4))
            } <= {*map(tuple, layer.reshape(-1, 4))}
    uri = to_uri(np.zeros((3000, 1000, 3), np.uint8), 240)
    assert decoded(uri).shape == (240, 80, 3) and len(uri) < 1000
    # As many pixels in all pages that are large.
    assert side_of(1) == side_of(24) == 1024
    assert side_of(400) == 480 == 2 * side_of(1600)


def test_confused_classes():
    labels = np.repeat([3, 3, 1, 0, 255], [60, 20, 10, 9, 30])
    predicted = np.repeat([4, 3, 0, 1, 2], [60, 20, 10, 9, 30])
    found = confusions(labels, predicted, least=0.1)
    assert found == [(3, 4, pytest.approx(60 / 99)),
                     (1, 0, pytest.approx(10 / 99))]
    assert confusions(labels, labels) == []
    assert confusions(np.array([255]), np.array([0])) == []


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
    for config, match in ((dict(default_scope='mmpose'), 'MMSegmentation'),
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
    return compare(sample, dict(gt_seg_map=labels))['losses']


def test_losses_of_an_image():
    torch.manual_seed(0)
    logits, labels = torch.randn(4, 9, 7), torch.randint(0, 3, (9, 7))
    labels[0, :3] = 255
    losses = losses_of(logits, labels.numpy())
    pixels = -logits.log_softmax(0).gather(0, labels.clamp(max=3)[None])[0]
    np.testing.assert_array_equal(np.isnan(losses), labels == 255)
    pixels = pixels[labels < 4]
    np.testing.assert_allclose(losses[labels < 4], pixels, 1e-5)
    # The highest 5 % of 60 pixels.
    assert top_pixels(losses) == pytest.approx(
        pixels.topk(3).values.mean().item())
    with pytest.raises(CannotShow, match='don\'t fit a prediction'):
        losses_of(logits, labels[:1].numpy())


def test_losses_without_labels_and_of_a_binary_model():
    ignored = np.full((3, 3), 255)
    assert np.isnan(top_pixels(losses_of(torch.zeros(2, 3, 3), ignored)))
    # mmseg gives its probabilities.
    losses = losses_of(
        torch.full((1, 2, 2), 0.75), np.uint8([[1, 1], [0, 255]]))
    assert top_pixels(losses) == pytest.approx(-np.log(0.25))
    with pytest.raises(CannotShow, match='no probabilities of classes'):
        compare(SegDataSample(), dict(gt_seg_map=ignored))
    with pytest.raises(CannotShow, match='no label of it'):
        compare(SegDataSample(seg_logits=PixelData(data=ignored[None])), {})


@pytest.mark.parametrize('label, match', [
    (7, 'its label is 7, and the network has 3 classes'),
    (-1, 'its label is -1'),
    ([1], 'no label of it, or several'),
    ([0, 1], 'no label of it, or several'),
])
def test_images_that_have_no_margin(label, match):
    sample = BaseDataElement(pred_score=torch.full((3, ), 1 / 3))
    with pytest.raises(CannotShow, match=match):
        compare(sample, dict(gt_label=label))


def test_sums_of_masks_are_no_logits():
    """MaskFormer's kind tells probabilities of classes, up to a factor."""

    class Mask2FormerHead(torch.nn.Module):
        pass

    class Model(torch.nn.Module):
        decode_head = Mask2FormerHead()

        def test_step(self, inputs):
            maps = torch.tensor([0.1, 0.7, 0.2])[:, None, None] * 0.9
            return [
                SegDataSample(seg_logits=PixelData(data=maps.expand(3, 4, 5)))
            ]

    predictor = Predictor.__new__(Predictor)
    predictor._model = Model()
    sample, = predictor.predict([dict(inputs=torch.zeros(3, 4, 5))])
    seen = compare(sample, dict(gt_seg_map=np.zeros((4, 5), np.uint8)))
    np.testing.assert_allclose(seen['losses'], -np.log(0.1), 1e-5)
    np.testing.assert_allclose(seen['gaps'], 0.6, 1e-5)
