# Copyright (c) mmib contributors. All rights reserved.
"""Reports of detectors."""
import json

import cv2
import numpy as np
import pytest

# Makes MMDetection importable.
import tests.test_tasks.test_detection  # noqa: F401

pytest.importorskip('mmdet.models', exc_type=ImportError)

import torch  # noqa: E402
from mmengine.config import Config  # noqa: E402
from mmengine.runner import Runner  # noqa: E402

from mmib import convert  # noqa: E402
from mmib.labels import gallery as pictures  # noqa: E402
from mmib.labels.images import DatasetImages  # noqa: E402
from mmib.labels.layers import box_layer, to_uri  # noqa: E402
from mmib.labels.predictions import Predictor  # noqa: E402
from mmib.report.checkpoint import read_newest  # noqa: E402
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


def test_boxes_of_labels_and_of_predictions(tmp_path, monkeypatch):
    dataset = coco(tmp_path, 4)
    cfg = small_detector.config(
        tmp_path / 'work_dir',
        dict(small_detector.DETR, test_cfg=dict(max_per_img=6)),
        train_dataloader=dict(dataset=dict(_delete_=True, **dataset)),
        train_cfg=dict(max_epochs=2),
        default_hooks=dict(checkpoint=dict(type='CheckpointHook', interval=2)))
    Runner.from_cfg(convert(cfg, 0.6)).train()
    cfg = Config.fromfile(str(next((tmp_path / 'work_dir').glob('*.py'))))
    cfg.test_dataloader = dict(dataset=dataset)
    checkpoint, _ = read_newest(str(tmp_path / 'work_dir'), 0.)
    reader = DatasetImages(cfg)
    predict = Predictor(cfg, checkpoint.weights, 'cpu')
    # A network so young is sure of nothing.
    scores = predict(reader.info(0)).pred_instances.scores
    least = scores.median().item()
    monkeypatch.setattr(pictures, '_PROBABLE', least)
    gallery = pictures.take_pictures(cfg, checkpoint.images,
                                     checkpoint.weights, 4)
    assert not gallery.notes and len(gallery.highest) == 4
    hidden = []
    for card in gallery.highest:
        found = predict(reader.info(card.number)).pred_instances
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
