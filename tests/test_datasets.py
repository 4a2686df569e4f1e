# Copyright (c) mmib contributors. All rights reserved.
from itertools import islice

import numpy as np
import pytest
from mmcv.transforms import BaseTransform
from mmengine.dataset import BaseDataset, ClassBalancedDataset
from mmengine.dataset import ConcatDataset as EngineConcat
from mmengine.dataset import InfiniteSampler, RepeatDataset
from mmengine.registry import DefaultScope
from mmseg.datasets import BaseSegDataset
from mmseg.registry import DATASETS, TRANSFORMS
from torch.utils.data import ConcatDataset

from mmib import InfoBatchSampler
from mmib.data.datasets import (image_numbers, image_path, images_checksum,
                                unwrap_repeats)
from mmib.data.delivery import DeliveryCheck
from mmib.errors import Refusal
from tests.system.small_training import (infobatch_hook, read_log,
                                         small_runner, train_and_note,
                                         write_images)


@TRANSFORMS.register_module()
class DrawImage(BaseTransform):
    """Every pixel has the number in the path. Some paths can't be read."""

    def transform(self, results):
        if 'broken' in results['img_path']:
            return None
        value = float(results['img_path'].split('/')[-1])
        size = (8, 8)
        return dict(
            results,
            img=np.full((*size, 3), value, np.float32),
            gt_seg_map=np.full(size,
                               int(value) % 2, np.uint8),
            seg_fields=['gt_seg_map'],
            img_shape=size,
            ori_shape=size)


@TRANSFORMS.register_module()
class RenameImage(BaseTransform):
    """Changes all paths, as one that makes them absolute does."""

    def transform(self, results):
        return dict(results, img_path=f'/data/{results["img_path"]}')


@DATASETS.register_module()
class PathDataset(BaseDataset):
    """Images of a folder. Some of them can't be read."""

    METAINFO = dict(classes=('even', 'odd'), palette=[[0] * 3, [255] * 3])

    def __init__(self, name, size, broken=(), **kwargs):
        self.paths = [
            f'{name}{"broken" if i in broken else ""}/{i}' for i in range(size)
        ]
        super().__init__(**kwargs)

    def load_data_list(self):
        return [dict(img_path=path) for path in self.paths]

    def get_cat_ids(self, idx):
        # One image in five has the rare category.
        return [int(idx % 5 == 0)]


PACK = [dict(type='PackSegInputs')]
DRAW = [dict(type='DrawImage')]
RENAMED = DRAW + [dict(type='RenameImage')] + PACK


def path_dataset(name='a', size=7, pipeline=DRAW + PACK, **kwargs):
    return dict(
        type='PathDataset', name=name, size=size, pipeline=pipeline, **kwargs)


def wrapper(type, dataset, **kwargs):
    return dict(type=type, dataset=dataset, **kwargs)


def concat(*datasets):
    return dict(type='ConcatDataset', datasets=list(datasets))


TWO = concat(path_dataset('a', 7), path_dataset('b', 4))
RARE = wrapper('ClassBalancedDataset', path_dataset(), oversample_thr=0.5)
MOSAIC = wrapper(
    'MultiImageMixDataset',
    concat(
        path_dataset('a', 7, pipeline=DRAW),
        path_dataset('b', 4, pipeline=DRAW)),
    pipeline=[dict(type='RandomMosaic', prob=1., img_scale=(8, 8)), *PACK])
# Name: config, distinct images, slots of a full pass.
DATASETS_TO_WRAP = {
    'plain': (path_dataset(), 7, 7),
    'concat': (TWO, 11, 11),
    'repeat': (wrapper('RepeatDataset', path_dataset(), times=5), 7, 7),
    'repeat of concat': (wrapper('RepeatDataset', TWO, times=3), 11, 11),
    'concat of repeat': (concat(
        wrapper('RepeatDataset', path_dataset('a', 7), times=2),
        path_dataset('b', 4)), 11, 18),
    'class balanced': (RARE, 7, 9),
    'repeat of class balanced': (wrapper('RepeatDataset', RARE,
                                         times=2), 7, 9),
    'mosaic': (MOSAIC, 11, 11),
    'mosaic of repeat': (dict(
        MOSAIC, dataset=wrapper('RepeatDataset', MOSAIC['dataset'],
                                times=2)), 11, 11),
}


def build(cfg):
    with DefaultScope.overwrite_default_scope('mmseg'):
        return DATASETS.build(cfg)


@pytest.mark.parametrize('name', DATASETS_TO_WRAP)
def test_image_numbers(name):
    """Two indices have one number when, and only when, they have one path."""
    cfg, num_images, num_slots = DATASETS_TO_WRAP[name]
    dataset = build(cfg)
    distinct = unwrap_repeats(dataset)
    numbers = image_numbers(distinct)
    assert len(distinct) == len(numbers) == num_slots
    assert sorted(set(numbers)) == list(range(num_images))
    # The indices of one pass are valid for the data set of the loader.
    paths = [image_path(dataset, i) for i in range(num_slots)]
    assert len(set(paths)) == num_images
    assert len(set(zip(paths, numbers))) == num_images
    # Full passes are the baseline's stream, with all repeats.
    ours = InfoBatchSampler(dataset, seed=3)
    ours.by_epoch = False
    baseline = InfiniteSampler(dataset, seed=3)
    assert [*islice(ours, 80)] == [*islice(baseline, 80)]


class Listed(PathDataset):
    """Images with given paths."""

    def __init__(self, paths, **kwargs):
        self.paths = paths
        BaseDataset.__init__(self, **kwargs)


NAMES = ['a/1.jpg', 'a/2.jpg', 'b/1.jpg', 'b/2.jpg', 'b/\udcff.jpg', 'c.jpg']


def moved(*names, root='/data/set/'):
    return Listed([root + name for name in names])


def test_images_in_the_same_order():
    """The same in another folder, in parts, repeated as a whole, or as the
    images that `indices` has left."""
    expected = images_checksum(moved(*NAMES))
    for dataset in (moved(*NAMES, root=''), moved(*NAMES, root='/'),
                    moved(*NAMES, root='../another folder/'),
                    moved(*NAMES,
                          root='C:/'), Listed(NAMES, serialize_data=False),
                    EngineConcat([moved(*NAMES[:2]),
                                  moved(*NAMES[2:])]),
                    RepeatDataset(moved(*NAMES), times=3),
                    Listed(['z', *NAMES], indices=[1, 2, 3, 4, 5, 6])):
        assert images_checksum(dataset) == expected


def test_other_images_or_another_order():
    class_balanced = [
        ClassBalancedDataset(moved(*NAMES), threshold)
        for threshold in (0.1, 0.5, 0.9)
    ]
    checksums = set(
        map(images_checksum, [
            moved(*NAMES),
            moved(*NAMES[::-1]),
            moved(*NAMES[:2], *NAMES[:1:-1]),
            moved(*NAMES[:-1], 'd.jpg'),
            moved(*NAMES[:-1]),
            EngineConcat([moved(*NAMES)] * 2), *class_balanced[1:]
        ]))
    assert len(checksums) == 8
    assert images_checksum(class_balanced[0]) in checksums


def test_images_without_paths_are_counted():
    paths = EngineConcat([moved(*NAMES), Listed([None] * 5)])
    checksums = [
        images_checksum(dataset)
        for dataset in (range(5), range(6), Listed([None] * 5), paths,
                        ConcatDataset([range(2), range(3)]))
    ]
    assert checksums[0] == checksums[2] == checksums[4]
    assert len(set(checksums)) == 3


def deliver(cfg, batch_size=3):
    """Compare the batches of some passes over a data set. Returns what is
    known of its parts, the indices of each batch whose own image was
    delivered, and the warnings."""
    dataset, warnings = build(cfg), []
    check = DeliveryCheck(dataset, warnings.append)
    rng = np.random.default_rng(0)
    order = np.concatenate([rng.permutation(len(dataset)) for _ in range(6)])
    delivered = []
    for start in range(0, len(order) - batch_size + 1, batch_size):
        indices = order[start:start + batch_size]
        samples = [dataset[int(index)]['data_samples'] for index in indices]
        delivered.append(indices[check(indices, samples)].tolist())
    return check.comparable, delivered, warnings


@pytest.mark.parametrize('name', ['repeat', 'repeat of concat'])
def test_repeats_where_epochs_count(name):
    """A pass has all of them."""
    comparable, delivered, _ = deliver(DATASETS_TO_WRAP[name][0])
    assert set(comparable) == {True}
    assert {len(indices) for indices in delivered} == {3}


@DATASETS.register_module()
class NamelessDataset(PathDataset):
    """Samples have paths of which the data set doesn't know."""

    def load_data_list(self):
        return [dict(number=i) for i in range(len(self.paths))]

    def __getitem__(self, index):
        info = dict(img_path=self.paths[index], sample_idx=index)
        return self.pipeline(info)


@pytest.mark.parametrize(
    'cfg, tried', [
        (path_dataset(pipeline=RENAMED), 7),
        (path_dataset(size=14, pipeline=RENAMED), 10),
        (dict(path_dataset(), type='NamelessDataset'), 0),
    ],
    ids=['renamed', 'more images', 'nameless'])
def test_paths_that_tell_nothing(cfg, tried):
    """Every image is scored once that is known, and a line says so."""
    _, delivered, warnings = deliver(cfg)
    # With the last image that is tried, in batches of three, it is known.
    known = max(tried - 1, 0) // 3
    assert [*map(len, delivered)] == [0] * known + [3] * (
        len(delivered) - known)
    assert len(warnings) == (tried > 0)
    assert all('the pipeline changes `img_path`' in each for each in warnings)


def test_an_image_that_cannot_be_read(tmp_path):
    """Another one is delivered, and its loss isn't the score of the first.
    Those that can be read have one score each, whatever repeats them."""
    broken = path_dataset(broken=(2, 5))
    cfg = concat(
        wrapper('RepeatDataset', broken, times=2), path_dataset('b', 4))
    runner = small_runner(
        tmp_path, **{
            'train_dataloader.dataset': dict(cfg, _delete_=True),
            'train_dataloader.num_workers': 2,
            'train_cfg.max_iters': 40
        })
    hook, table = infobatch_hook(runner), {}
    dataset = runner.train_dataloader.dataset

    def note(runner, data_batch, outputs):
        paths = [sample.img_path for sample in data_batch['data_samples']]
        indices = hook.training.own_slots.indices
        asked = [image_path(dataset, i) for i in indices]
        if hook.batch.scores is not None:
            table.update((path, score) for path, other, score in zip(
                paths, asked, hook.batch.scores.tolist()) if path == other)
        return sum(path != other for path, other in zip(paths, asked))

    # Some batches had a substitute, and others none.
    assert {0, 1} <= {*train_and_note(runner, note)}
    assert len(table) == 9 and not any('broken' in path for path in table)
    paths = [image_path(dataset, i) for i in range(18)]
    np.testing.assert_allclose(
        hook.training.tables.by_index(18),
        [table.get(path, 1) for path in paths])
    log = read_log(tmp_path)
    for i in (2, 5):
        assert log.count(f'another image than abroken/{i},') == 1


@pytest.mark.parametrize('content', [b'no image', b'', None])
def test_the_advised_loading_replaces_damaged_files(tmp_path, content):
    """With the data set of MMSegmentation."""
    write_images(tmp_path, 4)
    loading = dict(
        type='LoadImageFromFile', ignore_empty=True, imdecode_backend='pillow')
    dataset = BaseSegDataset(
        data_root=str(tmp_path),
        data_prefix=dict(
            img_path='images/training', seg_map_path='annotations/training'),
        metainfo=dict(classes=('a', 'b'), palette=[[0] * 3, [9] * 3]),
        pipeline=[loading])
    path = tmp_path / 'images' / 'training' / '1.jpg'
    # After the files were listed.
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    assert dataset[1]['img_path'] != str(path)


def test_one_part_that_renames_its_images():
    """It is scored, and what can't be read of the other part isn't."""
    _, delivered, warnings = deliver(
        concat(
            path_dataset('a', 7, broken=(2, )),
            path_dataset('b', 4, pipeline=RENAMED)))
    assert set(sum(delivered, [])) == {*range(11)} - {2}
    renamed, = [each for each in warnings if 'changes `img_path`' in each]
    assert 'the pipeline of part 1 of `train_dataloader.dataset`' in renamed
    assert len(warnings) == 2


def test_the_first_image_cannot_be_read():
    """In batches of one, that says nothing of the others."""
    first = int(np.random.default_rng(0).permutation(7)[0])
    _, delivered, warnings = deliver(path_dataset(broken=(first, )), 1)
    assert set(sum(delivered, [])) == {*range(7)} - {first}
    warning, = warnings
    assert f'another image than abroken/{first},' in warning


def test_a_batch_in_another_order():
    dataset = build(path_dataset())
    samples = [dataset[i]['data_samples'] for i in (3, 1)]
    with pytest.raises(Refusal, match='another order.*collate_fn`'):
        DeliveryCheck(dataset, None)(np.array([1, 3]), samples)


@pytest.mark.parametrize('state, parts, expected', [
    ([True, False], 2, [True, False]),
    ([True, False], 1, [None]),
])
def test_what_a_checkpoint_knows_of_paths(state, parts, expected):
    """Nothing of a data set with other parts."""
    dataset = ConcatDataset([[0]] * parts) if parts > 1 else [0]
    check = DeliveryCheck(dataset, None)
    check.load(state)
    assert check.comparable == expected
