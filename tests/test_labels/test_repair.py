# Copyright (c) mmib contributors. All rights reserved.
"""Masks that are exported, repaired, and trained on."""
import json
import os
import re
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pandas as pd
import pytest
import torch
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.registry import HOOKS, MODELS, DefaultScope
from mmseg.datasets import BaseSegDataset
from mmseg.registry import DATASETS

from mmib.errors import Refusal
from mmib.labels import repair
from mmib.labels.config import list_images
from mmib.labels.gallery import rank_images
from mmib.labels.images import CannotShow, DatasetImages
from mmib.labels.predictions import Predictor
from mmib.labels.repair import masks_in, painted
from mmib.labels.verdicts import Judged, write_review
from mmib.report.checkpoint import Checkpoint
from tests.helpers.segmentors import BASELINE, read_log, write_images
from tests.helpers.work_dirs import files_config
from tests.test_openmmlab.test_datasets import build

from ..test_cli.conftest import run  # noqa: F401
from .test_gallery import decoded

MASKS = 'data/annotations/training'
WRONG = ('1.jpg', '4.jpg', '5.jpg')
# What the training read of each image.
READ = defaultdict(list)


@HOOKS.register_module()
class KeepMasks(Hook):
    """Keeps the labels of each batch as the training reads them."""

    def after_train_iter(self, runner, batch_idx, data_batch, outputs):
        for sample in data_batch['data_samples']:
            READ[Path(sample.img_path).name].append(
                sample.gt_sem_seg.data[0].numpy())


@DATASETS.register_module()
class NamedDataset(BaseSegDataset):
    """A config may name some of its classes alone, in another order."""

    METAINFO = dict(classes=('sky', 'ground', 'disc', 'square', 'triangle'))


@pytest.fixture
def brush(monkeypatch):
    """The packing of Label Studio, or the simplest one where label-studio-sdk
    isn't installed."""
    try:
        return repair._brush()
    except ValueError:
        plain = SimpleNamespace(
            mask2rle=lambda mask: np.repeat(mask, 4).tolist(),
            decode_rle=lambda rle: np.array(rle, np.uint8))
        monkeypatch.setattr(repair, '_brush', lambda: plain)
        return plain


@pytest.fixture
def config(run, brush):  # noqa: F811
    """A config of a training on 6 images, of which 3 were judged wrong, in the
    current folder, with a checkpoint."""
    write_images('data', 6)
    READ.clear()
    cfg = files_config('data', 'unused', **BASELINE)
    for key in ('work_dir', 'experiment_name'):
        cfg.pop(key)
    for part in ('cfg', 'dataloader', 'evaluator'):
        cfg.pop(f'val_{part}')
    cfg.train_cfg = dict(type='IterBasedTrainLoop', max_iters=6)
    cfg.train_dataloader.dataset.pipeline.pop(2)  # No crops.
    cfg.train_dataloader.update(batch_size=2, num_workers=2)
    cfg.default_hooks.checkpoint.interval = 3
    cfg.custom_hooks = [dict(type='KeepMasks')]
    cfg.dump('files.py')
    with DefaultScope.overwrite_default_scope('mmseg'):
        model = MODELS.build(cfg.model)
    # A network that is sure.
    with torch.no_grad():
        model.decode_head.conv_seg.weight *= 300
    torch.save(dict(state_dict=model.state_dict()), 'net.pth')
    write_review('review.csv', [
        Judged(f'data/images/training/{name}', 'wrong', rank)
        for rank, name in enumerate(WRONG, 1)
    ] + [Judged('data/images/training/0.jpg', 'hard', 9)])
    return 'files.py'


@pytest.fixture
def exported(config, run):  # noqa: F811
    run('review', 'review.csv', '--export', 'out', '--config', config)
    return Path('out')


def raw(name):
    return cv2.imread(f'{MASKS}/{name}', cv2.IMREAD_UNCHANGED)


def as_labels(mask):
    """As `reduce_zero_label` makes them."""
    return np.where(np.isin(mask, (0, 255)), 255, mask - np.uint8(1))


def assert_read(new):
    """The training has read these masks, and the others as they are."""
    assert len(READ) == len(os.listdir(MASKS))
    for name, read in READ.items():
        mask = name.replace('jpg', 'png')
        for labels in read:
            np.testing.assert_array_equal(labels,
                                          as_labels(new.get(mask, raw(mask))))


def region(name, pixels):
    """A stroke as Label Studio exports it."""
    return dict(
        type='brushlabels',
        original_width=pixels.shape[1],
        original_height=pixels.shape[0],
        value=dict(
            format='rle',
            rle=repair._brush().mask2rle(255 * pixels.astype(np.uint8)),
            brushlabels=[name]))


def box(*corners, shape=(96, 96)):
    top, left, bottom, right = corners
    pixels = np.zeros(shape, bool)
    pixels[top:bottom, left:right] = True
    return pixels


def repaired_tasks(folder):
    """What Label Studio exports when somebody paints two boxes in the first
    mask, erases one class in the second, and leaves the third alone."""
    tasks = json.loads((folder / 'tasks.json').read_text())
    tasks[0]['annotations'][0]['result'] += [
        region('disc', box(10, 10, 50, 40)),
        region('sky', box(40, 30, 60, 60))
    ]
    regions = tasks[1]['annotations'][0]['result']
    regions[:] = [
        each for each in regions if each['value']['brushlabels'] != ['ground']
    ]
    return tasks


def expected():
    """The masks that this makes."""
    first, second = raw('1.png'), raw('4.png')
    before = first.copy()
    first[10:50, 10:40] = 3
    sky = box(40, 30, 60, 60)
    # Where a pixel was sky, the disc is what is new.
    first[sky & ~((before == 1) & box(10, 10, 50, 40))] = 1
    second[second == 2] = 255
    return {'1.png': first, '4.png': second}


def save(folder, tasks, name='project-1.json'):
    (folder / name).write_text(json.dumps(tasks))


def test_what_is_exported(exported, config, run):  # noqa: F811
    assert sorted(
        path.relative_to(exported).as_posix() for path in exported.rglob('*')
        if path.is_file()) == [
            'README.txt', 'images/1-1.png', 'images/4-4.png', 'images/5-5.png',
            'label_config.xml', 'masks/1.png', 'masks/4.png', 'masks/5.png',
            'tasks.json'
        ]
    for name in WRONG:
        image = cv2.imread(f'data/images/training/{name}')
        mask = name.replace('jpg', 'png')
        picture = f'out/images/{name[0]}-{name[0]}.png'
        np.testing.assert_array_equal(cv2.imread(picture), image)
        np.testing.assert_array_equal(
            cv2.imread(f'out/masks/{mask}', -1), raw(mask))
    text = (exported / 'label_config.xml').read_text()
    assert '<Label value="ground" category="2" background="#32c863"/>' in text
    nowhere = '--cfg-options', 'train_dataloader.dataset.data_root=nowhere'
    with pytest.raises(SystemExit, match='because .*nowhere'):
        run('review', 'review.csv', '--export', 'more', '--config', config,
            *nowhere)
    with pytest.raises(SystemExit, match='--cfg-options are for --export'):
        run('review', 'review.csv', *nowhere)
    assert f'path {exported.resolve()}/images. ' in (exported /
                                                     'README.txt').read_text()
    task = json.loads((exported / 'tasks.json').read_text())[0]
    assert task['data'] == dict(
        image='/data/local-files/?d=images/1-1.png',
        mask='1.png',
        ignored=255,
        path='data/images/training/1.jpg')
    assert [
        each['value']['brushlabels']
        for each in task['annotations'][0]['result']
    ] == [['sky'], ['ground'], ['disc'], ['square'], ['triangle']]


def test_a_training_reads_the_repaired_masks(exported, run, capsys):  # noqa
    """And all others as they are, by workers."""
    before = {path.name: path.read_bytes() for path in Path(MASKS).iterdir()}
    save(exported, repaired_tasks(exported))
    run('train', 'files.py', '--repaired', 'out')
    text = capsys.readouterr().out
    assert 'project-1.json has 2 repaired masks of 3 that were sent.' in text
    text = 'has 6 of 6 images; with masks of out/repaired-'
    assert text in read_log('work_dirs/files_repaired_out')
    assert_read(expected())
    assert {
        path.name: path.read_bytes()
        for path in Path(MASKS).iterdir()
    } == before


def test_a_training_goes_on_with_the_same_masks_only(exported, run):  # noqa
    save(exported, repaired_tasks(exported))
    arguments = ['train', 'files.py', '--repaired', 'out', '--cfg-options']
    run(*arguments, 'train_cfg.max_iters=3')
    run(*arguments, 'train_cfg.max_iters=6', '--resume')
    assert 'resumed epoch: 0, iter: 3' in read_log(
        'work_dirs/files_repaired_out')
    tasks = repaired_tasks(exported)
    tasks[2]['annotations'][0]['result'][0]['value']['brushlabels'] = ['disc']
    save(exported, tasks)
    for more in ((), ('--resume', )):
        with pytest.raises(
                SystemExit, match='other images,? or (other )?labels'):
            run(*arguments, 'train_cfg.max_iters=6', *more)
    with pytest.raises(SystemExit, match='other labels.*--repaired'):
        run('train', 'files.py', '--work-dir', 'work_dirs/files_repaired_out',
            '--resume')


@pytest.mark.parametrize('damaged', [True, False])
def test_a_mask_that_cannot_be_read(exported, run, damaged):  # noqa: F811
    """Nothing is written, also if other masks were read before."""
    for path in Path(MASKS).iterdir():
        if path.name != '1.png':
            path.unlink()
            if damaged:
                path.write_bytes(b'no mask')
    with pytest.raises(SystemExit, match='^Error: Nothing was exported of '):
        run('review', 'review.csv', '--export', 'more', '--config', 'files.py')
    assert not Path('more').exists()


def test_two_annotations_and_those_that_were_skipped(exported):
    tasks = repaired_tasks(exported)
    # As it was sent: somebody has copied the prediction beside it.
    tasks[0]['annotations'].append(
        json.loads((exported / 'tasks.json').read_text())[0]['annotations'][0])
    tasks[0]['annotations'].append(dict(result=[], was_cancelled=True))
    save(exported, tasks[:1])  # Some images alone are exported.
    folder = Path(masks_in('out'))
    assert [path.name for path in folder.iterdir()] == ['1.png']
    assert masks_in('out') == str(folder)
    tasks[0]['annotations'].append(
        dict(result=[region('sky', box(0, 0, 9, 9))]))
    save(exported, tasks)
    with pytest.raises(
            ValueError, match='1.png in .*two annotations that dif'):
        masks_in('out')


def test_several_processes_make_the_masks(exported, monkeypatch):
    """Each process of a training does."""
    save(exported, repaired_tasks(exported))
    first, made = repair._repaired, []

    def slow(*arguments):
        masks = first(*arguments)
        if not made:
            made.append(None)
            made.append(masks_in('out'))
        return masks

    monkeypatch.setattr(repair, '_repaired', slow)
    assert masks_in('out') == made[1]
    assert len(list(Path(made[1]).iterdir())) == 2


def test_masks_of_several_folders_have_one_name(config):
    write_images('more', 2)
    cfg = Config.fromfile(config)
    part = cfg.train_dataloader.dataset
    cfg.train_dataloader.dataset = dict(
        type='RepeatDataset',
        times=2,
        dataset=dict(
            type='ConcatDataset',
            datasets=[part, dict(part, data_root='more')]))
    reader = DatasetImages(cfg)
    repair.export_tasks(
        reader,
        repair.numbers_of(
            reader,
            ['more/images/training/1.jpg', 'data/images/training/1.jpg']),
        'out', None)
    tasks = json.loads(Path('out/tasks.json').read_text())
    assert [task['data']['mask'] for task in tasks
            ] == [f'more/{MASKS[5:]}/1.png', f'{MASKS}/1.png']
    tasks[0]['annotations'][0]['result'].append(
        region('disc', np.ones((96, 96), bool)))
    save(Path('out'), tasks)
    listed = list_images(cfg, repaired=masks_in('out'))
    with DefaultScope.overwrite_default_scope('mmseg'):
        before = build(cfg.train_dataloader.dataset)
        after = build(listed.train_dataloader.dataset)
    assert len(before) == len(after) == 16
    for i in range(16):
        old, new = (each[i]['data_samples'] for each in (before, after))
        same = torch.equal(old.gt_sem_seg.data, new.gt_sem_seg.data)
        assert same == (new.img_path != 'more/images/training/1.jpg')


def exported_pictures(parts):
    """Export all images of parts of a dataset, of two classes. Return the
    mask, the picture and the image of each task."""
    part = dict(
        type='BaseSegDataset',
        metainfo=dict(classes=('a', 'b'), palette=[[0] * 3, [9] * 3]),
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='LoadAnnotations')
        ])
    reader = DatasetImages(
        Config(
            dict(
                default_scope='mmseg',
                train_dataloader=dict(
                    dataset=dict(
                        type='ConcatDataset',
                        datasets=[dict(part, **each) for each in parts])))))
    repair.export_tasks(reader, reader.numbers, 'out', None)
    tasks = json.loads(Path('out/tasks.json').read_text())
    pictures = [task['data']['image'].partition('?d=')[2] for task in tasks]
    assert len({*pictures}) == len(tasks)
    return [(task['data']['mask'], cv2.imread(f'out/{picture}'),
             cv2.imread(task['data']['path']))
            for task, picture in zip(tasks, pictures)]


@pytest.mark.parametrize('suffixes', [('.png', '.tif'), ('.bmp', '.png'),
                                      ('.PNG', '.png')])
@pytest.mark.parametrize('folders', [('one', 'two'), ('one', 'one')])
def test_masks_that_share_a_stem(tmp_path, monkeypatch, brush, suffixes,
                                 folders):
    monkeypatch.chdir(tmp_path)
    for i, (folder, suffix) in enumerate(zip(folders, suffixes)):
        for name in (f'img{i}', folder):
            Path(name).mkdir(exist_ok=True)
        cv2.imwrite(f'img{i}/01.png', np.full((8, 8, 3), 50 + i, np.uint8))
        mask = cv2.imencode('.png', np.eye(8, dtype=np.uint8))[1]
        Path(folder, f'01{suffix}').write_bytes(mask.tobytes())
    found = exported_pictures(
        dict(
            data_prefix=dict(img_path=f'img{i}', seg_map_path=folder),
            img_suffix='.png',
            seg_map_suffix=suffix)
        for i, (folder, suffix) in enumerate(zip(folders, suffixes)))
    assert [Path(mask).name
            for mask, *_ in found] == [f'01{suffix}' for suffix in suffixes]
    for _, picture, image in found:
        np.testing.assert_array_equal(picture, image)


def test_images_that_share_a_mask(tmp_path, monkeypatch, brush):
    """Such as those of two cameras."""
    monkeypatch.chdir(tmp_path)
    for name in ('left', 'right', 'masks'):
        Path(name).mkdir()
        pixels = np.full((8, 8, 3), len(name), np.uint8)
        cv2.imwrite(f'{name}/01.png', pixels)
    cv2.imwrite('masks/01.png', np.eye(8, dtype=np.uint8))
    found = exported_pictures(
        dict(
            data_prefix=dict(img_path=name, seg_map_path='masks'),
            img_suffix='.png') for name in ('left', 'right'))
    assert [mask for mask, *_ in found] == ['01.png'] * 2
    for _, picture, image in found:
        np.testing.assert_array_equal(picture, image)


def change_class(tasks):
    tasks[0]['annotations'][0]['result'][0]['value']['brushlabels'] = ['moon']


def change_size(tasks):
    tasks[0]['annotations'][0]['result'][0] = region('sky',
                                                     np.ones((96, 95), bool))


def change_image(tasks):
    tasks[0]['data']['mask'] = '9.png'


def change_tool(tasks):
    tasks[0]['annotations'][0]['result'].append(
        dict(type='polygonlabels', value=dict(points=[])))


def erase(tasks):
    tasks[0]['annotations'][0]['result'].clear()


@pytest.mark.parametrize('change, match', [
    (change_class,
     '1.png in .* has a brushlabels of moon: .* one class of sky, gr'),
    (change_size, r'1.png in .* has \(96, 95\) pixels, and .*\(96, 96\)'),
    (change_image, 'is not an export of the images that came from here'),
    (change_tool,
     'has a polygonlabels of no class: mark pixels with the brush'),
    (erase, 'has no class in any pixel: skip the image'),
    (lambda tasks: None, 'has no repaired mask: all are as they were sent'),
    (lambda tasks: tasks.append(dict(image=1)), 'in the format JSON'),
])
def test_what_cannot_come_back(exported, change, match):
    tasks = json.loads((exported / 'tasks.json').read_text())
    change(tasks)
    save(exported, tasks)
    before = sorted(exported.rglob('*'))
    with pytest.raises(ValueError, match=match):
        masks_in('out')
    assert sorted(exported.rglob('*')) == before


def test_files_of_an_export(exported, run):  # noqa: F811
    with pytest.raises(SystemExit, match='out has no JSON files of Label St'):
        run('train', 'files.py', '--repaired', 'out')
    for name in ('a.json', 'b.json'):
        save(exported, [], name)
    with pytest.raises(SystemExit, match='out has 2 JSON files.*, alone'):
        run('train', 'files.py', '--repaired', 'out')


def test_a_pixel_has_the_class_that_is_new():
    before = np.array([[1, 1, 1, 2, 255, 9]], np.uint8)
    classes = dict(a=1, b=2, c=3)
    sent = [(1, before == 1), (2, before == 2)]

    def strokes(*rows):
        drawn = [(classes[name], np.array([[each == 'x' for each in row]]))
                 for name, row in rows]
        return painted(drawn, sent, before, 255)[0].tolist()

    # What no class is stays what it is.
    assert strokes(('a', 'xxx   '), ('b', '   x  ')) == [1, 1, 1, 2, 255, 9]
    assert strokes(('a', 'x     '),
                   ('b', '   x  ')) == [1, 255, 255, 2, 255, 9]
    # Whichever stroke is the later one.
    assert strokes(('a', 'xxx   '), ('b', ' x x x')) == [1, 2, 1, 2, 255, 2]
    assert strokes(('b', ' x x x'), ('a', 'xxx   ')) == [1, 2, 1, 2, 255, 2]
    # Of two new ones.
    assert strokes(('b', 'x     '), ('c', 'xx x  ')) == [3, 3, 255, 3, 255, 9]
    # Another number of the same class stays.
    before[0, :2] = 7
    assert strokes(('a', 'xxx   '), ('b', ' x x  ')) == [7, 2, 1, 2, 255, 9]


def test_predictions_are_exported(config, run):  # noqa: F811
    run('review', 'review.csv', '--export', 'out', '--config', config,
        '--checkpoint', 'net.pth')
    cfg = Config.fromfile(config)
    reader = DatasetImages(cfg)
    predict = Predictor(cfg,
                        torch.load('net.pth', weights_only=True)['state_dict'],
                        'cpu')
    for task in json.loads(Path('out/tasks.json').read_text()):
        number = int(task['data']['mask'].partition('.')[0])
        predicted = predict(reader.info(number)).pred_sem_seg.data[0].numpy()
        regions = repair._regions(
            task['predictions'][0]['result'], predicted.shape,
            dict(sky=0, ground=1, disc=2, square=3, triangle=4), '')
        found = painted(regions, [], np.full_like(predicted, 9), 255)
        np.testing.assert_array_equal(found, predicted)


def test_classes_in_another_order(config, run):  # noqa: F811
    """Than those of the network, and one that no mask has: labels, colours
    and what is exported go by the names."""
    cfg = Config.fromfile(config)
    part = cfg.train_dataloader.dataset
    part.type = 'NamedDataset'
    names = list(NamedDataset.METAINFO['classes'])
    cfg.val_dataloader = Config.fromfile(config).train_dataloader
    other = ['disc', 'sky', 'triangle', 'square', 'ground']
    cfg.val_dataloader.dataset.update(
        type='NamedDataset', metainfo=dict(classes=other))
    weights = torch.load('net.pth', weights_only=True)['state_dict']
    checkpoint = Checkpoint('a.pth', None, weights, classes=names)
    right, found = (
        rank_images(cfg, checkpoint, split, 'pixels', 1)
        for split in ('train', 'val'))
    pd.testing.assert_series_equal(right.images.pixels, found.images.pixels)
    assert [name for name, _ in found.classes] == names
    assert 'by the names' not in ' '.join(right.notes)
    assert 'by the names' in found.notes[0]
    shown = right.highest[0].pictures, found.highest[0].pictures
    assert [name for name, _ in shown[0]] == [name for name, _ in shown[1]]
    predict = Predictor(cfg, weights, 'cpu')
    for split in ('train', 'val'):
        reader = DatasetImages(cfg, split)
        reader.number_as(names)
        repair.export_tasks(reader, [0, 3], split, predict)

    def strokes(split):
        """Of labels and predictions, by number in masks."""
        text = Path(split, 'label_config.xml').read_text()
        return sorted(
            re.findall(r'Label value="(\w+)" category="(\d)"', text)), [
                task['annotations'][0]['result'] +
                task['predictions'][0]['result']
                for task in json.loads(Path(split, 'tasks.json').read_text())
            ]

    assert strokes('train') == strokes('val')
    with pytest.raises(CannotShow, match='has the classes disc, .*metainfo'):
        DatasetImages(cfg, 'val').number_as(names[:4])
    checkpoint.classes = names[:4]
    with pytest.raises(Refusal, match='`triangle` of the dataset has no numb'):
        rank_images(cfg, checkpoint, 'val', 'pixels', 1)


def test_suspect_regions_are_ignored(config, run, capsys):  # noqa: F811
    run('review', 'review.csv', '--export', 'out', '--config', config,
        '--checkpoint', 'net.pth', '--ignore')
    assert 'out has masks of 3 images, with the' in capsys.readouterr().out
    run('train', config, '--repaired', 'out')
    for name, read in READ.items():
        labels = as_labels(raw(name.replace('jpg', 'png')))
        changed = read[0] != labels
        assert changed.any() == (name in WRONG)
        assert (read[0][changed] == 255).all()
    for path in Path('out').iterdir():
        new = cv2.imread(str(path), -1)
        np.testing.assert_array_equal(new[new != 255],
                                      raw(path.name)[new != 255])


def dataset_of(*wrappers, **changes):
    part = dict(
        Config.fromfile('files.py').train_dataloader.dataset, **changes)
    for wrapper in wrappers:
        part = dict(dataset=part, **wrapper)
    return part


def labels_of(dataset):
    return {
        Path(sample['data_samples'].img_path).name: sample['data_samples'].
        gt_sem_seg.data[0].numpy()
        for sample in (dataset[i] for i in range(len(dataset)))
    }


MERGED = 'sky', 'ground', 'shape'


@DATASETS.register_module()
class MergedDataset(NamedDataset):
    """Discs, squares and triangles are one class."""

    @classmethod
    def get_label_map(cls, new_classes=None):
        return {0: 0, 1: 1, 2: 2, 3: 2, 4: 2}


@DATASETS.register_module()
class OtherIgnoredDataset(NamedDataset):

    def __init__(self, **kwargs):
        super().__init__(ignore_index=254, **kwargs)


@pytest.mark.parametrize('ignored', [255, 254])
def test_pixels_of_no_class_stay_ignored(config, ignored):
    """Whatever number stands for them. Pictures don't colour them."""
    for name in WRONG:
        path = f'{MASKS}/{name.replace("jpg", "png")}'
        mask = raw(Path(path).name) - np.uint8(1)
        mask[mask == 255] = ignored
        mask[:9] = ignored
        cv2.imwrite(path, mask)
    part = dataset_of(
        type='NamedDataset' if ignored == 255 else 'OtherIgnoredDataset',
        reduce_zero_label=False)
    part['pipeline'][1]['reduce_zero_label'] = False
    cfg = Config.fromfile('files.py')
    cfg.train_dataloader.dataset = part
    weights = torch.load('net.pth', weights_only=True)['state_dict']
    count = repair.export_ignored(
        DatasetImages(cfg), [1, 4, 5], 'out', Predictor(cfg, weights, 'cpu'))
    assert count == 3
    for path in Path('out').iterdir():
        before, after = raw(path.name), cv2.imread(str(path), -1)
        changed = after != before
        assert changed.any() and (after[changed] == ignored).all()
        assert not changed[:9].any()
    scores = np.isin(range(6), (1, 4, 5)).astype(float)
    images = pd.DataFrame(dict(score=scores, last_score=scores))
    checkpoint = Checkpoint('a.pth', images, weights)
    for card in rank_images(cfg, checkpoint, 'train', 'score', 3).highest:
        layers = {name: decoded(uri) for name, uri in card.pictures[1:]}
        assert {*layers} >= {'labels', 'loss', 'differences'}
        for name, layer in layers.items():
            assert (layer[:9, :, 3] == 0).all() or name == 'prediction'
            assert layer[..., 3].any()


@pytest.mark.parametrize('reduce_zero_label', [True, False])
@pytest.mark.parametrize('changes, names', [
    (dict(type='NamedDataset', metainfo=dict(classes=('triangle', 'sky'))),
     dict(triangle=4, sky=0)),
    (dict(type='MergedDataset', metainfo=dict(classes=MERGED)),
     dict(sky=0, ground=1, shape=2)),
    (dict(type='OtherIgnoredDataset'),
     dict(sky=0, ground=1, disc=2, square=3, triangle=4)),
], ids=['subset', 'merged', 'other ignored'])  # yapf: disable
def test_other_pixels_keep_their_numbers(config, reduce_zero_label, changes,
                                         names):
    """Those of classes that aren't trained too."""
    part = dataset_of(reduce_zero_label=reduce_zero_label, **changes)
    part['pipeline'][1]['reduce_zero_label'] = reduce_zero_label
    cfg = Config(
        dict(default_scope='mmseg', train_dataloader=dict(dataset=part)))
    reader = DatasetImages(cfg)
    if reduce_zero_label and changes['type'] == 'OtherIgnoredDataset':
        # No number in a file becomes 254.
        with pytest.raises(ValueError, match='takes 254 for a class'):
            repair.export_tasks(reader, [0, 3], 'out', None)
        return
    repair.export_tasks(reader, [0, 3], 'out', None)
    first = int(reduce_zero_label)
    text = Path('out/label_config.xml').read_text()
    for name, number in names.items():
        assert f'"{name}" category="{number + first}"' in text
    assert text.count('category') == len(names)
    for name in ('0.png', '3.png'):
        np.testing.assert_array_equal(
            cv2.imread(f'out/masks/{name}', -1), raw(name))
    tasks = json.loads(Path('out/tasks.json').read_text())
    tasks[0]['annotations'][0]['result'].append(
        region('sky', box(10, 10, 50, 40)))
    erased = tasks[1]['annotations'][0]['result'].pop()
    erased, = erased['value']['brushlabels']
    save(Path('out'), tasks)
    new = Path(masks_in('out'))
    painted, old = raw('0.png'), cv2.imread(str(new / '0.png'), -1)
    painted[10:50, 10:40] = first
    np.testing.assert_array_equal(old, painted)
    before, after = raw('3.png'), cv2.imread(str(new / '3.png'), -1)
    labels = reader.read(3)['gt_seg_map']
    gone = labels == [*names].index(erased)
    ignored = 254 if 'Other' in changes['type'] else 255
    assert gone.any() and (after[gone] == ignored).all()
    np.testing.assert_array_equal(after[~gone], before[~gone])
    # The training reads it so.
    read = reader.read(3, str(new / '3.png'))['gt_seg_map']
    np.testing.assert_array_equal(read, np.where(gone, 255, labels))


def test_refusals_of_an_export(config, run):  # noqa: F811

    def refused(match, *arguments):
        with pytest.raises(SystemExit, match=match):
            run('review', *arguments)

    export = ('review.csv', '--export', 'out')
    refused('--export needs --config', *export)
    refused('are for --export', 'review.csv', '--config', config)
    export += ('--config', config)
    refused('--ignore needs --checkpoint', *export, '--ignore')
    Path('bad.pth').write_bytes(b'no')
    refused('bad.pth is damaged', *export, '--checkpoint', 'bad.pth')
    write_review('none.csv', [Judged('0.jpg', 'hard', 1)])
    refused('No image was judged wrong', 'none.csv', *export[1:])
    write_review('other.csv', [Judged('9.jpg', 'wrong', 1)])
    refused("1 of 1 images .* `9.jpg`, aren't in this dataset", 'other.csv',
            *export[1:])
    assert not Path('out').exists()
    Path('out').mkdir()
    Path('out/mine.txt').touch()
    refused('out is there already', *export)
    assert os.listdir('out') == ['mine.txt']
    assert not [name for name in os.listdir() if name.startswith('.mmib')]


def test_what_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(
        __import__('sys').modules, 'label_studio_sdk.converter', None)
    with pytest.raises(ValueError, match='pip install label-studio-sdk'):
        repair._brush()
