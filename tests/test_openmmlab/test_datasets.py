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
from mmib.errors import Refusal
from mmib.labels.listed_images import ListedImages
from mmib.openmmlab.data.datasets import (image_numbers, image_path,
                                          images_checksum, unwrap_repeats)
from mmib.openmmlab.data.delivery import DeliveryCheck
from tests.helpers.segmentors import (infobatch_hook, read_log, small_runner,
                                      train_and_note, write_images)


@TRANSFORMS.register_module()
class DrawImage(BaseTransform):
    """Every pixel has the number in the path. Some paths can't be read. All
    may be changed, as where a transform makes them absolute."""

    def __init__(self, root=''):
        self.root = root

    def transform(self, results):
        if 'broken' in results['img_path']:
            return None
        value = int(results['img_path'].split('/')[-1])
        return dict(
            results,
            img_path=self.root + results['img_path'],
            img=np.full((8, 8, 3), value, np.float32),
            gt_seg_map=np.full((8, 8), value % 2, np.uint8),
            seg_fields=['gt_seg_map'],
            img_shape=(8, 8),
            ori_shape=(8, 8))


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
RENAMED = [dict(type='DrawImage', root='/data/'), *PACK]


def path_dataset(name='a', size=7, pipeline=DRAW + PACK, **kwargs):
    return dict(
        type='PathDataset', name=name, size=size, pipeline=pipeline, **kwargs)


def wrapper(type, dataset, **kwargs):
    return dict(type=type, dataset=dataset, **kwargs)


def concat(*datasets):
    return dict(type='ConcatDataset', datasets=list(datasets))


TWO = concat(path_dataset('a', 7), path_dataset('b', 4))
REPEATED = wrapper('RepeatDataset', TWO, times=3)
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
    'concat with empty parts': (concat(
        path_dataset('none', 0, serialize_data=False), path_dataset('a', 7),
        path_dataset('none', 0, serialize_data=False),
        path_dataset('b', 4)), 11, 11),
    'repeat': (wrapper('RepeatDataset', path_dataset(), times=5), 7, 7),
    'repeat of concat': (REPEATED, 11, 11),
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
    # The indices of one pass are valid for the dataset of the loader.
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


def only(images, dataset=path_dataset(size=14), **kwargs):
    return dict(
        type=ListedImages.__name__, dataset=dataset, images=images, **kwargs)


def test_the_checksum_is_that_of_the_images_in_their_order():
    same = [
        *(moved(*NAMES, root=root)
          for root in ('', '/', '../another folder/', 'C:/', '/data/set/')),
        Listed(NAMES, serialize_data=False),
        # In parts, repeated as a whole, or what `indices` has left.
        EngineConcat([moved(*NAMES[:2]), moved(*NAMES[2:])]),
        RepeatDataset(moved(*NAMES), times=3),
        Listed(['z', *NAMES], indices=[1, 2, 3, 4, 5, 6]),
        # Here nothing is rare.
        ClassBalancedDataset(moved(*NAMES), 0.1)
    ]
    # Images without paths are counted.
    nameless = range(5), Listed([None] * 5), ConcatDataset(
        [range(2), range(3)])
    two = concat(path_dataset('a', 7), path_dataset('b', 7))
    indices = dict(type='IndexDataset', size=14)
    others = [
        moved(*NAMES[::-1]),
        moved(*NAMES[:2], *NAMES[:1:-1]),
        moved(*NAMES[:-1], 'd.jpg'),
        moved(*NAMES[:-1]),
        EngineConcat([moved(*NAMES)] * 2),
        ClassBalancedDataset(moved(*NAMES), 0.5),
        ClassBalancedDataset(moved(*NAMES), 0.9),
        range(6),
        EngineConcat([moved(*NAMES), Listed([None] * 5)]),
        # Lists of as many images, with the same names in two folders too.
        *(build(only(numbers, two)) for numbers in ([0, 1], [1, 2], [8, 9])),
        *(build(only(numbers, indices)) for numbers in ([0, 1], [3, 4])),
        build(two),
        build(wrapper('RepeatDataset', only([0, 1, 2]), times=2))
    ]
    groups = [[*map(images_checksum, each)]
              for each in (same, nameless, others)]
    assert len({*groups[0]}) == len({*groups[1]}) == 1
    assert len({*sum(groups, [])}) == 2 + len(others)


def deliver(cfg, batch_size=3):
    """Compare the batches of some passes over a dataset. Returns what is
    known of its parts, the indices of each batch whose own image was
    delivered, and the warnings."""
    dataset, warnings, delivered = build(cfg), [], []
    check = DeliveryCheck(dataset, warnings.append)
    rng = np.random.default_rng(0)
    order = np.concatenate([rng.permutation(len(dataset)) for _ in range(6)])
    for start in range(0, len(order) - batch_size + 1, batch_size):
        indices = order[start:start + batch_size]
        samples = [dataset[int(index)]['data_samples'] for index in indices]
        delivered.append(indices[check(indices,
                                       dict(data_samples=samples))].tolist())
    # MMEngine's logger shows each warning once.
    return check.comparable, delivered, {*warnings}


# In the first batch of one image.
FIRST = int(np.random.default_rng(0).permutation(7)[0])
PARTS = [path_dataset(), path_dataset('b', 4, pipeline=RENAMED)]


@pytest.mark.parametrize('batch_size', [1, 3])
@pytest.mark.parametrize('cfg, comparable, replaced', [
    (DATASETS_TO_WRAP['repeat'][0], [True], []),
    (wrapper('RepeatDataset', concat(*PARTS), times=2), [True, False], []),
    (path_dataset(broken=(FIRST, )), [True], [FIRST]),
    (concat(path_dataset(broken=(2, )), PARTS[1]), [True, False], [2]),
    (only([3, 11], path_dataset(size=14, pipeline=RENAMED)), [False], []),
    (only([0, 9, 2], concat(*PARTS)), [True, False], []),
    (only([0, 2], TWO), [True, None], []),
    (wrapper('RepeatDataset', only([0, 9], TWO), times=2), [True, True], []),
    (only([0, 9], REPEATED), [True, True], []),
])
def test_paths_are_compared_in_each_part(cfg, comparable, replaced,
                                         batch_size):
    """All images are scored, also where paths tell nothing, but those that
    another one replaced."""
    known, delivered, warnings = deliver(cfg, batch_size)
    assert known == comparable
    assert {*sum(delivered, [])} == {*range(len(build(cfg)))} - {*replaced}
    if not replaced and False not in comparable:
        assert {*map(len, delivered)} == {batch_size}
    assert len(warnings) == len(replaced) + comparable.count(False)
    for image in replaced:
        assert any(f'another image than abroken/{image},' in each
                   for each in warnings)
    if comparable == [True, False]:
        where = 'the pipeline of part 1 of `train_dataloader.dataset` changes'
        assert any(where in each for each in warnings)


@DATASETS.register_module()
class NamelessDataset(PathDataset):
    """Samples have paths of which the dataset doesn't know."""

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
        # The slots of this rank are those of the batch just trained on.
        indices = hook._slots.indices
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
        hook.run.table.by_index(18), [table.get(path, 1) for path in paths])
    log = read_log(tmp_path)
    for i in (2, 5):
        assert log.count(f'another image than abroken/{i},') == 1


@pytest.mark.parametrize('content', [b'no image', b'', None])
def test_the_advised_loading_replaces_damaged_files(tmp_path, content):
    """With the dataset of MMSegmentation."""
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


def test_a_batch_in_another_order():
    dataset = build(path_dataset())
    samples = [dataset[i]['data_samples'] for i in (3, 1)]
    with pytest.raises(Refusal, match='another order.*collate_fn`'):
        DeliveryCheck(dataset, None)(np.array([1, 3]),
                                     dict(data_samples=samples))


def test_what_a_checkpoint_knows_of_paths():
    """Nothing of a dataset with other parts."""
    for dataset, expected in ((ConcatDataset([[0],
                                              [0]]), [True,
                                                      False]), ([0], [None])):
        check = DeliveryCheck(dataset, None)
        check.load([True, False])
        assert check.comparable == expected
