# Copyright (c) mmib contributors. All rights reserved.
"""A dataset with the right labels of a review."""
import pickle
from pathlib import Path

import pytest
import torch
from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS
from torch.utils.data import DataLoader

from mmib.errors import Refusal
from mmib.labels.config import list_images, lists_checksum
from mmib.labels.images import numbers_in_whole
from mmib.openmmlab.data.datasets import image_numbers
from tests.helpers.segmentors import small_config
from tests.test_openmmlab.test_datasets import (build, concat, path_dataset,
                                                wrapper)

CLASSES = ('cat', 'cow', 'dog', 'dog, wild')


@DATASETS.register_module()
class LabelledDataset(BaseDataset):
    """Images of which each has one class, or what ``labels`` says. The
    pipeline gives path and label."""

    METAINFO = dict(classes=CLASSES)

    def __init__(self, name='a', size=6, labels=None, **kwargs):
        self.infos = [
            dict(img_path=f'{name}/{i}.png', gt_label=label)
            for i, label in enumerate(labels or [0] * size)
        ]
        super().__init__(**kwargs)
        self.pipeline = read

    def load_data_list(self):
        return self.infos

    def get_cat_ids(self, idx):
        return [self.get_data_info(idx)['gt_label']]


def read(info):
    return info['img_path'], info['gt_label']


@DATASETS.register_module()
class ComputedLabels(LabelledDataset):

    def get_data_info(self, idx):
        return dict(super().get_data_info(idx), gt_label=3)


@DATASETS.register_module()
class SwappedLabels(LabelledDataset):
    """Changes labels where they are read."""

    def get_data_info(self, idx):
        info = super().get_data_info(idx)
        return dict(info, gt_label={0: 1, 1: 0}.get(*2 * [info['gt_label']]))


@DATASETS.register_module()
class TensorLabels(LabelledDataset):

    def get_data_info(self, idx):
        info = super().get_data_info(idx)
        return dict(info, gt_label=torch.tensor(info['gt_label']))


def labelled(**kwargs):
    return dict(type='LabelledDataset', **kwargs)


@pytest.fixture
def review(tmp_path, monkeypatch):
    """Write a review in this folder."""
    monkeypatch.chdir(tmp_path)

    def write(*rows, name='review.csv'):
        Path(name).write_text('image,verdict,rank,label\n' + ''.join(
            f'{image},{verdict},{rank},"{label}"\n'
            for rank, (image, verdict, label) in enumerate(rows, 1)))
        return name

    return write


@pytest.fixture
def three(review):
    """Of three wrong images the last has no label."""
    return review(('2.png', 'wrong', 'dog, wild'), ('1.png', 'hard', ''),
                  ('4.png', 'wrong', 'cow'), ('5.png', 'wrong', ''))


def relabelled(file, dataset=None, **kwargs):
    return dict(
        type='ListedImages',
        dataset=dataset or labelled(),
        relabel=file,
        **kwargs)


EXPECTED = {'a/0.png': 0, 'a/1.png': 0, 'a/2.png': 3, 'a/3.png': 0,
            'a/4.png': 1}  # yapf: disable


@pytest.mark.parametrize('serialize', [True, False])
@pytest.mark.parametrize('workers', [0, 2])
def test_the_pipeline_finds_right_labels(three, serialize, workers):
    """In worker processes, too, and in copies of the dataset."""
    dataset = build(relabelled(three, labelled(serialize_data=serialize)))
    loader = DataLoader(
        dataset, num_workers=workers, batch_size=None, collate_fn=None)
    assert dict(loader) == EXPECTED
    assert dict(pickle.loads(pickle.dumps(dataset))[i]
                for i in range(5)) == EXPECTED
    assert dataset.get_cat_ids(4) == [1]
    assert image_numbers(dataset).tolist() == [0, 1, 2, 3, 4]
    assert numbers_in_whole(dataset).tolist() == [0, 1, 2, 3, 4]


def test_another_pipeline_finds_them_too(three):
    """As a hook puts it there."""
    dataset = build(relabelled(three))
    dataset.pipeline = lambda info: info['gt_label']
    assert [*map(dataset.__getitem__, range(5))] == [*EXPECTED.values()]


RARE = wrapper(
    'ClassBalancedDataset',
    labelled(labels=[0, 0, 1, 0, 0, 0]),
    oversample_thr=0.5)


@pytest.mark.parametrize('dataset, repeated', [
    (wrapper('RepeatDataset', labelled(), times=3), 3),
    (concat(labelled(name='b', size=3), labelled()), 1),
    (concat(
        wrapper('RepeatDataset', labelled(name='b', size=3), times=2),
        wrapper('RepeatDataset', labelled(), times=2)), 2),
    (RARE, None),
])
def test_wrappers_in_it(review, dataset, repeated):
    """All repeats of an image have its right label, and no other image."""
    file = review(('a/2.png', 'wrong', 'dog, wild'),
                  ('a/4.png', 'wrong', 'cow'), ('a/5.png', 'wrong', ''))
    found = build(relabelled(file, dataset))
    samples = [found[i] for i in range(len(found))]
    mine = [sample for sample in samples if sample[0].startswith('a/')]
    assert dict(mine) == EXPECTED
    assert len({*mine}) == 5 and {*samples} - {*mine} <= {(f'b/{i}.png', 0)
                                                          for i in range(3)}
    assert repeated is None or len(mine) == 5 * repeated
    assert [found.get_data_info(i)['gt_label']
            for i in range(len(found))] == [label for _, label in samples]


@DATASETS.register_module()
class WithoutInfos:
    """A wrapper of somebody's own with images in another order."""

    def __init__(self, dataset, order):
        self.dataset, self.order = build(dataset), order
        self.metainfo = self.dataset.metainfo

    def __getitem__(self, idx):
        return self.dataset[self.order[idx]]

    def __len__(self):
        return len(self.order)


@DATASETS.register_module()
class Reordered(WithoutInfos):

    def get_data_info(self, idx):
        return self.dataset.get_data_info(self.order[idx])


@pytest.mark.parametrize('order', [[0, 1, 4, 3, 2, 5], [5, 1, 2, 3, 4, 0]])
@pytest.mark.parametrize('image', range(6))
def test_wrappers_of_another_order(review, order, image):
    """No other image gets the label, also where an image has the label
    already."""
    part = labelled(labels=[0, 0, 1, 0, 0, 0])
    file = review((f'a/{image}.png', 'wrong', 'cow'))
    mine = relabelled(file, dict(type='Reordered', dataset=part, order=order))
    if order[image] == image:
        assert [*build(mine)] == [(f'a/{i}.png', int(i in (image, 2)))
                                  for i in order]
    else:
        with pytest.raises(Refusal, match='classes of Reordered, .* order'):
            build(mine)


def test_a_wrapper_that_hides_its_order(review):
    file = review((1, 'wrong', 'cow'))
    mine = dict(type='WithoutInfos', dataset=labelled(size=2), order=[1, 0])
    with pytest.raises(Refusal, match='classes of WithoutInfos, .* order'):
        build(relabelled(file, mine))


def test_wrappers_around_it(three, tmp_path):
    """What balances classes counts the right ones."""
    cfg = small_config(tmp_path)
    for outer in (wrapper('RepeatDataset', labelled(), times=2),
                  wrapper(
                      'ClassBalancedDataset', labelled(), oversample_thr=0.9)):
        cfg.train_dataloader.dataset = outer
        listed = list_images(cfg, relabel=three).train_dataloader.dataset
        assert listed['type'] == outer['type']
        dataset = build(listed)
        samples = [dataset[i] for i in range(len(dataset))]
        assert dict(samples) == EXPECTED and len(samples) > 6


def test_with_other_lists(review):
    file = review(('a/2.png', 'wrong', 'cow'), ('a/3.png', 'wrong', ''))
    dataset = build(relabelled(file, images=[0, 2, 3, 5], without=[0, 3]))
    assert [*dataset] == [('a/2.png', 1), ('a/5.png', 0)]
    # What isn't shown may have a label.
    dataset = build(relabelled(file, images=[1, 3]))
    assert [*dataset] == [('a/1.png', 0)]
    # What is left out stays out.
    dataset = build(relabelled(file, without=[2]))
    assert [*dataset] == [(f'a/{i}.png', 0) for i in (0, 1, 4, 5)]
    with pytest.raises(Refusal, match='`relabel`, .* leaves out all images'):
        build(relabelled(file, images=[3]))


@pytest.mark.parametrize('row, dataset, match', [
    (('0.png', 'wrong', 'Cat'), labelled(),
     'line 2 of review.csv has the label '
     '`Cat`, which is the name of no class of LabelledDataset, whose classes '
     'are cat, cow, dog, dog, wild: correct the column `label`'),
    (('0.png', 'wrong', 'x'), labelled(metainfo=dict(classes=['x', 'x'])),
     'the label `x`, which is the name of several classes'),
    (('0.png', 'wrong', 'x'), labelled(metainfo=dict(classes=None)),
     r'no class of LabelledDataset, whose classes are not known: .* '
     r'`metainfo=dict\(classes='),
    (('0.png', 'wrong', 'cow'), labelled(labels=[[0, 1]] * 3),
     'LabelledDataset, whose images have no `gt_label` of one class: leave '
     r'out the wrong images by `without` \(--without\)'),
    (('a/0', 'wrong', ''), path_dataset(),
     'PathDataset, whose images have no '),
    (('0.png', 'wrong', 'cow'), dict(type='ComputedLabels'),
     'ComputedLabels, whose `get_data_info` makes `gt_label`'),
    (('0', 'wrong', 'cow'), dict(type='IndexDataset', size=3),
     'IndexDataset, whose images have no `gt_label` of one class'),
    (('0.png', 'hard', ''), labelled(),
     'review.csv has no images to leave out'),
    (('9.png', 'wrong', ''), labelled(), 'line 2 of .*, `9.png`, is not an'),
    (('0.png', 'unsure', 'cow'), labelled(),
     'line 2 of .* has the label `cow` '
     'and the verdict unsure'),
])
def test_refusals(review, row, dataset, match):
    with pytest.raises(Refusal, match=match):
        build(relabelled(review(row), dataset))


def test_labels_that_change_where_they_are_read(review):
    """Only the labels of the review are others."""
    file = review(('0.png', 'wrong', 'dog'))
    labels = dict(labels=[0, 1, 2])
    for kind, others in (('SwappedLabels', [0, 2]), ('TensorLabels', [1, 2])):
        dataset = build(relabelled(file, dict(type=kind, **labels)))
        found = [int(label) for _, label in dataset]
        assert found == [2, *others]


def test_what_is_no_review():
    with pytest.raises(Refusal, match='`relabel` .* the name of a file'):
        build(relabelled([1, 2]))


def test_checksums_tell_labels_apart(review, tmp_path):
    """Whatever the file is called, and in whatever order. Trainings with other
    lists alone keep their checksum."""
    cfg = small_config(tmp_path)
    rows = [('1', 'wrong', 'cow'), ('2', 'wrong', '')]

    def checksum(*rows, name='a.csv', option='relabel'):
        file = review(*rows, name=name)
        return lists_checksum(list_images(cfg, **{option: file}))

    first = checksum(*rows)
    assert first == checksum(*rows[::-1], name='b.csv')
    others = [
        checksum(*rows, option='without'),
        checksum(rows[0]),
        checksum(('1', 'wrong', 'cat'), rows[1]),
        checksum(('1', 'wrong', ''), ('2', 'wrong', 'cow'))
    ]
    assert len({first, *others}) == 5
    assert lists_checksum(list_images(cfg, without=[1, 2])) == others[0]
