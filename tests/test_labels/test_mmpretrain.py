# Copyright (c) mmib contributors. All rights reserved.
"""Rankings of classifiers."""
import os.path as osp
import re

import cv2
import numpy as np
import pandas as pd
import pytest
import torch

pytest.importorskip('mmpretrain.models', exc_type=ImportError)

from mmengine.config import Config  # noqa: E402
from mmengine.registry import MODELS  # noqa: E402
from mmengine.runner import Runner  # noqa: E402
from mmpretrain.datasets import CIFAR10  # noqa: E402

import mmib_cli  # noqa: E402
from mmib.errors import Refusal  # noqa: E402
from mmib.labels.gallery import rank_images  # noqa: E402
from mmib.labels.images import CannotShow, DatasetImages  # noqa: E402
from mmib.labels.predictions import Predictor  # noqa: E402
from mmib.report.checkpoint import read_newest  # noqa: E402
from tests.test_tasks.test_classification.small_classifier import \
    config  # noqa: E402

CLASSES = ('dark', 'light')


def write_images(root, number):
    """Grey noise, a folder for each class."""
    rng = np.random.default_rng(0)
    for label, name in enumerate(CLASSES):
        (root / name).mkdir(parents=True)
        for i in range(number):
            image = rng.integers(80, size=(16, 16, 3)) + 150 * label
            cv2.imwrite(str(root / name / f'{i}.png'), image)


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    """A work folder."""
    root = tmp_path_factory.mktemp('report')
    write_images(root / 'data', 8)
    dataset = dict(
        type='CustomDataset',
        data_root=str(root / 'data'),
        pipeline=[dict(type='LoadImageFromFile'),
                  dict(type='PackInputs')])
    backends = [dict(type='LocalVisBackend')]
    cfg = config(
        root / 'work_dir',
        model=dict(
            backbone=dict(
                _delete_=True,
                type='ResNet_CIFAR',
                depth=18,
                stem_channels=4,
                base_channels=4),
            neck=dict(type='GlobalAveragePooling'),
            head=dict(in_channels=32, num_classes=2)),
        train_dataloader=dict(
            dataset=dict(dataset, _delete_=True),
            sampler=dict(type='InfoBatchSampler')),
        train_cfg=dict(_delete_=True, by_epoch=True, max_epochs=8),
        val_dataloader=dict(
            batch_size=4,
            num_workers=0,
            sampler=dict(type='DefaultSampler', shuffle=False),
            collate_fn=dict(type='default_collate'),
            dataset=dataset),
        val_cfg=dict(),
        val_evaluator=dict(type='Accuracy'),
        default_hooks=dict(
            checkpoint=dict(type='CheckpointHook', interval=8),
            logger=dict(type='LoggerHook', interval=2)),
        vis_backends=backends,
        visualizer=dict(type='UniversalVisualizer', vis_backends=backends))
    cfg.model.data_preprocessor = dict(
        type='ClsDataPreprocessor', mean=[127.] * 3, std=[50.] * 3)
    Runner.from_cfg(cfg).train()
    return root / 'work_dir'


def test_cards_have_classes_and_predictions(trained, tmp_path):
    path, = trained.glob('*.py')
    mmib_cli.main([
        'rank',
        str(path),
        str(trained / 'epoch_8.pth'), '--rank-by', 'score', '--images', '3',
        '--out',
        str(tmp_path)
    ])
    text = (tmp_path / 'rank_train.html').read_text('utf-8')
    predicted = re.findall(r'>predicted <b>(dark|light), (\d+) %<', text)
    labelled = re.findall('>class <b>(dark|light)<', text)
    # Of those that are confused.
    assert re.findall('data-pair="(.*?)"', text) == [
        '' if label == name else f'{label}, {name}'
        for label, (name, _) in zip(labelled, predicted)
    ]
    # The likelier one of two.
    assert len(predicted) == len(labelled) == 6
    assert all(50 <= int(share) <= 100 for _, share in predicted)
    assert 'There are no predictions' not in text


def test_predictions_are_those_of_the_model(trained):
    """The classes are easily told apart."""
    cfg = Config.fromfile(str(next(trained.glob('*.py'))))
    checkpoint, _ = read_newest(str(trained))
    reader = DatasetImages(cfg)
    predict = Predictor(cfg, checkpoint.weights, 'cpu')
    for n, name in enumerate(['dark'] * 8 + ['light'] * 8):
        assert reader.names(reader.read(n)['gt_label']) == name
        assert reader.names(predict(reader.info(n)).pred_label) == name


@pytest.mark.parametrize('split', ['train', 'val'])
def test_ranked_by_margins(trained, tmp_path, split):
    """As the model itself tells them, without batches."""
    path, = trained.glob('*.py')
    checkpoint = trained / 'epoch_8.pth'
    mmib_cli.main([
        'rank',
        str(path),
        str(checkpoint), '--data', split, '--out',
        str(tmp_path), '--images', '2'
    ])
    table = pd.read_csv(tmp_path / f'rank_{split}_images.csv')
    table = table.set_index('image').sort_index()
    cfg = Config.fromfile(str(path))
    model = MODELS.build(cfg.model).eval()
    model.load_state_dict(
        torch.load(str(checkpoint), weights_only=False)['state_dict'])
    for number, image in enumerate(table.path):
        image = torch.from_numpy(cv2.imread(image).transpose(2, 0, 1))
        with torch.no_grad():
            logits = model((image[None].float() - 127) / 50, mode='tensor')
        dark, light = logits[0].double().tolist()
        expected = light - dark if number < 8 else dark - light
        assert table.margin[number] == pytest.approx(expected, 1e-5, 1e-5)
    assert table.score.notna().all() if split == 'train' else ('score'
                                                               not in table)
    text = (tmp_path / f'rank_{split}.html').read_text()
    first = table.margin.idxmax()
    assert re.findall('image of image (\\d+)', text)[0] == str(first)


def test_a_class_that_is_never_predicted(trained, tmp_path, capsys):
    path, = trained.glob('*.py')
    options = ['--out', str(tmp_path), '--images', '0']
    mmib_cli.main(['rank', str(path), str(trained / 'epoch_8.pth'), *options])
    assert 'labelled classes' not in capsys.readouterr().err
    checkpoint = torch.load(str(trained / 'epoch_8.pth'), weights_only=False)
    checkpoint['state_dict']['head.fc.bias'][1] = -1e4
    torch.save(checkpoint, str(tmp_path / 'blind.pth'))
    mmib_cli.main(['rank', str(path), str(tmp_path / 'blind.pth'), *options])
    said = ('The network predicts these labelled classes in no image: light '
            '(8 images). ')
    assert said in capsys.readouterr().err
    assert said in (tmp_path / 'rank_train.html').read_text()


def test_weights_are_not_fetched(trained):
    """Those of the checkpoint are there."""
    cfg = Config.fromfile(str(next(trained.glob('*.py'))))
    cfg.model.pretrained = 'http://nowhere/weights.pth'
    with pytest.raises(CannotShow, match='the checkpoint lacks `backbone'):
        Predictor(cfg, {}, 'cpu')
    cfg.model = dict(type='MAE', backbone=cfg.model.backbone)
    with pytest.raises(CannotShow, match='MAE predicts no classes'):
        Predictor(cfg, {}, 'cpu')


def test_a_data_set_that_holds_its_images(monkeypatch):
    pixels = np.zeros((4, 4, 3), np.uint8)
    pixels[..., 0] = 200
    monkeypatch.setattr(
        CIFAR10, 'load_data_list',
        lambda self: [dict(img=pixels.copy(), gt_label=i) for i in range(3)])
    dataset = dict(
        type='CIFAR10',
        data_root='nowhere',
        pipeline=[dict(type='PackInputs')])
    loader = dict(dataset=dataset)
    reader = DatasetImages(
        Config(dict(default_scope='mmpretrain', train_dataloader=loader)))
    assert reader.paths() == [None] * 3
    results = reader.read(2)
    # Red in the order of OpenCV.
    assert results['img'][0, 0].tolist() == [0, 0, 200]
    assert reader.info(2)['img'][0, 0].tolist() == [200, 0, 0]
    assert reader.names(results['gt_label']) == 'bird'
    assert not osp.exists('nowhere')


def test_a_split_without_a_class(trained, tmp_path):
    """It has other numbers than the network, which go by the names."""
    cfg = Config.fromfile(str(next(trained.glob('*.py'))))
    checkpoint, _ = read_newest(str(trained))
    assert checkpoint.classes == [*CLASSES]
    root = tmp_path / 'val'
    root.mkdir()
    (root / 'light').symlink_to(trained.parent / 'data' / 'light')
    cfg.val_dataloader.dataset.data_root = str(root)
    gallery = rank_images(cfg, checkpoint, 'val', None, 2)
    assert len(gallery.images) == 8 and (gallery.images.margin < 0).all()
    assert 'by the names' in gallery.notes[0]
    # A review gives classes of the dataset alone.
    assert gallery.labels == ['light']
    card = gallery.highest[0]
    assert ('class', 'light') in card.classes and not card.predicted
    checkpoint.classes = ['dark', 'bright']
    with pytest.raises(Refusal, match='`light` of the dataset has no number'):
        rank_images(cfg, checkpoint, 'val', None, 2)
