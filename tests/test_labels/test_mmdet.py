# Copyright (c) mmib contributors. All rights reserved.
"""Rankings of detectors."""
import json

import cv2
import numpy as np
import pandas as pd
import pytest

# Makes MMDetection importable.
import tests.test_tasks.test_detection  # noqa: F401

pytest.importorskip('mmdet.models', exc_type=ImportError)

import torch  # noqa: E402
from mmdet.structures import DetDataSample  # noqa: E402
from mmengine.config import Config  # noqa: E402
from mmengine.runner import Runner  # noqa: E402
from mmengine.structures import InstanceData  # noqa: E402

from mmib import convert  # noqa: E402
from mmib.labels import boxes, cards  # noqa: E402
from mmib.labels.gallery import rank_images  # noqa: E402
from mmib.labels.images import CannotShow, DatasetImages  # noqa: E402
from mmib.labels.layers import box_layer, to_uri  # noqa: E402
from mmib.labels.page import render  # noqa: E402
from mmib.labels.predictions import Predictor, compare  # noqa: E402
from mmib.report.checkpoint import read_newest  # noqa: E402
from mmib_cli import main  # noqa: E402
from tests.test_tasks.test_detection import small_detector  # noqa: E402


def coco(root, number):
    """Drawn images with a box each, in files."""
    categories = [dict(id=1, name='cat'), dict(id=2, name='dog')]
    found = dict(images=[], annotations=[], categories=categories)
    for i in range(number):
        pixels = np.full((48, 64, 3), 60, np.uint8)
        pixels[10:30, 5 + i:40] = 200
        cv2.imwrite(str(root / f'{i}.png'), pixels)
        found['images'].append(
            dict(id=i, file_name=f'{i}.png', height=48, width=64))
        box = dict(bbox=[5 + i, 10, 35 - i, 20], area=700, iscrowd=0)
        found['annotations'].append(
            dict(box, id=i, image_id=i, category_id=1 + i % 2))
    (root / 'boxes.json').write_text(json.dumps(found))
    return dict(
        type='CocoDataset',
        metainfo=dict(classes=('cat', 'dog'), palette=[(9, 9, 9), (0, 99, 0)]),
        data_root=str(root),
        ann_file='boxes.json',
        data_prefix=dict(img=''),
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='LoadAnnotations', with_bbox=True),
            # Boxes are told in pixels of the image before.
            dict(type='Resize', scale=(128, 96)),
            dict(
                type='PackDetInputs',
                meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape',
                           'scale_factor'))
        ])


def turned(root, file, out):
    """Write the annotations with the categories in another order."""
    found = json.loads((root / file).read_text())
    found['categories'].reverse()
    (root / out).write_text(json.dumps(found))


@pytest.mark.parametrize('train, val', [
    ('boxes.json', 'boxes.json'),
    ('boxes.json', 'turned.json'),
    ('turned.json', 'boxes.json'),
    ('turned.json', 'turned.json'),
])
def test_labels_are_numbered_as_the_file_was(tmp_path, train, val):
    """Of which the network was trained. MMDetection numbers classes in the
    order of the file, and calls them in that of `classes`."""
    dataset = coco(tmp_path, 2)
    turned(tmp_path, 'boxes.json', 'turned.json')
    cfg = Config(
        dict(
            default_scope='mmdet',
            train_dataloader=dict(dataset=dict(dataset, ann_file=train)),
            val_dataloader=dict(dataset=dict(dataset, ann_file=val))))
    networks = ['cat', 'dog'] if train == 'boxes.json' else ['dog', 'cat']
    for split in ('train', 'val'):
        reader = DatasetImages(cfg, split)
        # As a checkpoint has them.
        changed = reader.number_as(['cat', 'dog'])
        assert changed == (split == 'val' and train != val)
        assert reader.classes == networks
        for number, name in enumerate(['cat', 'dog']):
            box, = reader.info(number)['instances']
            assert networks[box['bbox_label']] == name
            box, = reader.read(number)['instances']
            assert reader.names(box['bbox_label']) == name
    cfg.train_dataloader.dataset.ann_file = 'nowhere.json'
    reader = DatasetImages(cfg, 'val')
    if val == 'boxes.json':
        assert not reader.number_as(['cat', 'dog'])
    else:
        with pytest.raises(CannotShow, match='categories dog, cat, and `cla'):
            reader.number_as(['cat', 'dog'])


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    """Config of a short training with scores, with a dataset for tests, and
    its checkpoint."""
    root = tmp_path_factory.mktemp('boxes')
    dataset = coco(root, 4)
    cfg = small_detector.config(
        root / 'work_dir',
        dict(small_detector.DETR, test_cfg=dict(max_per_img=6)),
        train_dataloader=dict(dataset=dict(_delete_=True, **dataset)),
        train_cfg=dict(max_epochs=2),
        default_hooks=dict(checkpoint=dict(type='CheckpointHook', interval=2)))
    Runner.from_cfg(convert(cfg, 0.6)).train()
    path = str(next((root / 'work_dir').glob('*.py')))
    cfg = Config.fromfile(path)
    cfg.test_dataloader = dict(dataset=dataset)
    cfg.dump(path)
    checkpoint, _ = read_newest(str(root / 'work_dir'), 0.)
    return Config.fromfile(path), checkpoint


@pytest.fixture
def predicted(trained):
    """Reader of the images, and what is predicted of each."""
    reader = DatasetImages(trained[0])
    predict = Predictor(trained[0], trained[1].weights, 'cpu')
    return reader, [
        predict(reader.info(number)).pred_instances for number in range(4)
    ]


def test_boxes_of_labels_and_of_predictions(trained, predicted, monkeypatch):
    cfg, checkpoint = trained
    reader, samples = predicted
    # A network so young is sure of nothing.
    least = samples[0].scores.median().item()
    monkeypatch.setattr(cards, '_PROBABLE', least)
    gallery = rank_images(cfg, checkpoint, 'train', 'score', 4)
    assert not gallery.notes and len(gallery.highest) == 4
    hidden = []
    for card in gallery.highest:
        found = samples[card.number]
        shown = found[found.scores >= least]
        hidden.append(len(found) > len(shown) > 0)
        layer = box_layer((48, 64), shown.bboxes.tolist(),
                          shown.labels.tolist(), reader.palette)
        assert [name for name, _ in card.pictures
                ] == ['image', 'labels', 'prediction']
        assert card.pictures[2] == ('prediction', to_uri(layer, 1024))
        labelled = ('cat', 'dog')[card.number % 2]
        names = [('cat', 'dog')[n] for n in torch.unique(shown.labels)]
        assert card.classes == [('labels:', labelled),
                                ('prediction:', ', '.join(names))]
        assert not card.note
    assert any(hidden)


def test_what_a_score_of_boxes_is(trained):
    """No loss and no crop, and a moving average that is told once."""
    cfg, checkpoint = trained
    gallery = rank_images(cfg, checkpoint, 'train', 'score', 1)
    html = render(gallery, 'key', cfg, [], 'a.csv')
    assert 'the norm of the gradient of its loss' in html
    assert 'a high loss' not in html and 'random crops' not in html
    figures = dict(gallery.highest[0].figures)
    assert 'average score' in figures and 'last score' not in figures


@pytest.mark.parametrize('kind', ['missing', 'unsupported'])
def test_ranked(trained, predicted, kind, tmp_path, monkeypatch):
    """Page and tables have what is said of each image by itself."""
    cfg, checkpoint = trained
    _, samples = predicted
    # All boxes of a network so young are suspicious.
    monkeypatch.setattr(boxes, '_CONFIDENT', samples[0].scores.min().item())
    monkeypatch.setattr(boxes, '_APART', 1.)
    monkeypatch.setattr(boxes, '_SUPPORTED', 1.)
    options = [] if kind == 'missing' else ['--rank-by', kind]
    main([
        'rank', cfg.filename, checkpoint.path, '--out',
        str(tmp_path), '--images', '1', *options
    ])
    images = pd.read_csv(tmp_path / 'rank_train_images.csv', index_col='image')
    table = pd.read_csv(tmp_path / 'rank_train_boxes.csv')
    assert list(table) == [
        'image', 'path', 'left', 'top', 'right', 'bottom', 'label',
        'predicted', 'confidence', 'iou', 'kind'
    ]
    # By rank.
    assert [*table.image.unique()
            ] == [n for n in images.index if n in {*table.image}]
    of_images = [
        boxes.Boxes(
            np.array([[5. + number, 10, 40, 30]]), np.array([number % 2]),
            found.bboxes.double().numpy(), found.labels.numpy(),
            found.scores.double().numpy())
        for number, found in enumerate(samples)
    ]
    limit = boxes.limit_of(of_images)
    for number, known in enumerate(of_images):
        known = known._replace(limit=limit)
        for name, find in boxes.KINDS.items():
            suspects = find(known)
            assert images[name][number] == pytest.approx(
                sum(each.weight for each in suspects))
            rows = table[(table.image == number) & (table.kind == name)]
            np.testing.assert_allclose(
                rows[['left', 'top', 'right', 'bottom']],
                np.reshape([each.box for each in suspects], (-1, 4)),
                rtol=1e-5)
            assert set(rows.predicted.dropna()) <= {'cat', 'dog'}
            assert rows.label.isna().all() == (name == 'missing' or rows.empty)
    assert (table.kind == kind).any()
    page = (tmp_path / 'rank_train.html').read_text()
    first = images[kind].idxmax()
    assert f'boxes of image {first}"' in page
    number = ((table.kind == kind) & (table.image == first)).sum()
    assert page.count(f'>{kind}:') >= min(number, 5) > 0
    assert 'href="rank_train_boxes.csv"' in page
    assert f'{len(table)} boxes that may be wrong' in page
    count = (images[kind] > (limit if kind == 'missing' else 0)).sum()
    assert f'{count} of 4 images have ' in page
    assert '--without review.csv' in page


@pytest.mark.parametrize('confident', [-1., 1.])
def test_classes_without_a_confident_box(trained, predicted, confident,
                                         tmp_path, monkeypatch, capsys):
    cfg, checkpoint = trained
    monkeypatch.setattr(boxes, '_CONFIDENT', confident)
    main([
        'rank', cfg.filename, checkpoint.path, '--out',
        str(tmp_path), '--images', '0'
    ])
    seen = {
        int(label)
        for each in predicted[1]
        for label in each.labels[each.scores > confident]
    }
    names = [
        f'{("cat", "dog")[n]} (2 images)' for n in (0, 1) if n not in seen
    ]
    said = ('The network predicts these labelled classes in no image with '
            f'confidence: {", ".join(names)}. ')
    for text in (capsys.readouterr().err,
                 (tmp_path / 'rank_train.html').read_text()):
        assert (said in text) == bool(names)
        assert ('labelled classes' in text) == bool(names)
    assert names or confident < 0


def test_without_boxes():
    """Of labels or of predictions."""
    found = InstanceData(
        bboxes=torch.zeros(2, 4),
        labels=torch.zeros(2, dtype=torch.int64),
        scores=torch.ones(2))
    sample = DetDataSample(pred_instances=found)
    with pytest.raises(CannotShow, match='the dataset has no boxes of it'):
        compare(sample, dict())
    with pytest.raises(CannotShow, match='predicts masks without boxes'):
        compare(sample, dict(instances=[]))
    sample.pred_instances = found[:0]
    crowd = dict(bbox=[0, 0, 9, 9], bbox_label=1, ignore_flag=1)
    known = compare(sample,
                    dict(instances=[crowd, dict(crowd, ignore_flag=0)]))
    assert known['boxes'].labels.tolist() == [1]
