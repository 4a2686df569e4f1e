# Copyright (c) mmib contributors. All rights reserved.
"""Trainings on the images of a list."""
import pickle

import numpy as np
import pytest
from mmengine.config import Config
from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS

from mmib.errors import Refusal
from mmib.labels.config import list_images
from mmib.labels.images import numbers_in_whole
from mmib.openmmlab.data.datasets import (image_numbers, image_path,
                                          images_checksum, unwrap_repeats)
from tests.helpers import segmentors as small_training
from tests.helpers.epochs import by_epoch
from tests.helpers.segmentors import (check_resumed, column, infobatch_hook,
                                      read_log, small_config, state_of, train)
from tests.test_openmmlab.test_datasets import (DATASETS_TO_WRAP, TWO, build,
                                                only, path_dataset)

# Of 14 images.
LIST = [1, 2, 4, 7, 8, 10]
PLAIN = path_dataset(size=14)


def on(dataset, **changes):
    """Changes for a training on a dataset."""
    return {
        'train_dataloader.dataset': dict(dataset, _delete_=True),
        **changes
    }


def epochs_on(dataset, **changes):
    changes = {**by_epoch(**changes), **on(dataset)}
    del changes['train_dataloader.dataset.size']
    return changes


def paths_of(dataset):
    return [image_path(dataset, i) for i in range(len(dataset))]


def images_of(steps):
    return sum(column(steps, 'images'), [])


def test_it_shows_the_listed_images():
    dataset = build(only(LIST))
    assert len(dataset) == 6
    assert paths_of(dataset) == [f'a/{i}' for i in LIST]
    assert dataset.get_data_info(-1)['img_path'] == 'a/10'
    assert [int(sample['inputs'][0, 0, 0]) for sample in dataset] == LIST
    assert dataset.metainfo == build(PLAIN).metainfo
    again = pickle.loads(pickle.dumps(dataset))
    assert paths_of(again) == paths_of(dataset)
    assert image_numbers(dataset).tolist() == [*range(6)]


@pytest.mark.parametrize(
    'images, without, shown',
    [
        ([*range(14)][::-1], None, [*range(14)]),
        (None, LIST, [0, 3, 5, 6, 9, 11, 12, 13]),
        # Numbers in both lists are those of the whole dataset.
        (LIST, [2, 3, 10], [1, 4, 7, 8]),
    ])
def test_it_shows_all_but_those_to_leave_out(images, without, shown):
    dataset = build(only(images, without=without))
    assert paths_of(dataset) == [f'a/{i}' for i in shown]


@pytest.mark.parametrize('cfg, message', [
    (only(None, without=[*range(14)]), '`without`.* leaves out all images'),
    (only(LIST, without=LIST), '`without`.* leaves out all images'),
    (only([0], indices=6), 'has no `indices`: set `.*.dataset.in'),
    (only([0],
          DATASETS_TO_WRAP['mosaic'][0]), 'MultiImageMixDataset wrap List'),
])
def test_lists_that_are_refused(cfg, message):
    with pytest.raises(Refusal, match=message):
        build(cfg)


@pytest.mark.parametrize('name', DATASETS_TO_WRAP)
def test_the_option_wraps_what_others_repeat_and_mix(name, tmp_path):
    """A training of all libraries' wrappers on listed images alone, by their
    numbers in the whole dataset, also where images are repeated."""
    cfg = small_config(tmp_path, **on(DATASETS_TO_WRAP[name][0]))
    whole = build(cfg.train_dataloader.dataset)
    count = int(image_numbers(whole).max()) + 1
    assert numbers_in_whole(whole).tolist() == [*range(count)]
    listed = list_images(cfg, images=[1, 2, 4, 6], without=[0, 6])
    assert cfg.train_dataloader.dataset == DATASETS_TO_WRAP[name][0]
    assert listed.custom_imports['imports'] == ['mmib.labels']
    dataset = build(listed.train_dataloader.dataset)
    assert numbers_in_whole(dataset).tolist() == LIST[:3]
    assert len(np.unique(image_numbers(unwrap_repeats(dataset)))) == 3
    assert set(paths_of(dataset)) == {f'a/{i}' for i in LIST[:3]}
    # Also of those that are mixed.
    shown = {
        float(value)
        for i in range(len(dataset))
        for value in dataset[i]['inputs'].unique()
    }
    # 0 is the edge of a mosaic.
    assert shown - {0} <= {1, 2, 4}


def test_a_list_of_a_list(tmp_path):
    """A config has one list of images and one of images to leave out, which
    count alike."""
    cfg = small_config(tmp_path, **on(PLAIN))
    listed = list_images(list_images(cfg, images=LIST), without=[1])
    with pytest.raises(Refusal, match='no dataset whose images'):
        list_images(Config(), images=[0])
    dataset = build(listed.train_dataloader.dataset)
    assert paths_of(dataset) == [f'a/{i}' for i in LIST[1:]]
    assert not isinstance(dataset.dataset, type(dataset))
    for lists in (dict(images=[2]), dict(without=[2])):
        with pytest.raises(Refusal, match='the config has `.*` already'):
            list_images(listed, **lists)


def test_hooks_replace_its_pipeline():
    dataset = build(only(LIST))
    dataset.pipeline = len
    assert dataset.dataset.pipeline is dataset.pipeline is len
    assert not hasattr(build(only([0], TWO)), 'pipeline')


def test_it_may_wait_until_it_is_needed(tmp_path):
    dataset = build(only('none.txt', lazy_init=True))
    assert dataset.metainfo['classes'] == ('even', 'odd')
    with pytest.raises(Refusal, match="none.txt can't be read"):
        len(dataset)


@pytest.mark.parametrize(
    'name', [name for name in DATASETS_TO_WRAP if 'mosaic' not in name])
def test_it_wraps_other_wrappers(name):
    """With all repeats of an image. Its numbers are those of a dataset that
    has no more than these images."""
    cfg, _, _ = DATASETS_TO_WRAP[name]
    inner = build(cfg)
    names = list(dict.fromkeys(paths_of(inner)))
    dataset = build(only([names[5], names[0]], cfg))
    expected = [path for path in paths_of(inner) if path in names[:6:5]]
    assert paths_of(dataset) == expected
    numbers = image_numbers(dataset)
    assert [names[:6:5][number] for number in numbers] == expected
    by_number = build(only([0, 5], cfg))
    assert paths_of(by_number) == expected
    assert images_checksum(by_number) == images_checksum(dataset)


@pytest.mark.parametrize('changes, name', [(on, 'iter_4'),
                                           (epochs_on, 'epoch_4')])
def test_trainings_prune_and_resume(tmp_path, changes, name):
    """By iterations and by epochs: the first pass has each listed image once,
    all passes have no others, and a resumed training is exact."""
    changes = changes(
        only(LIST), **{
            'train_dataloader.num_workers': 2,
            'train_dataloader.persistent_workers': True,
            'default_hooks.checkpoint.interval': 4
        })
    runner = small_training.build(tmp_path, **changes)
    steps = train(runner)
    indices = images_of(steps)
    assert sorted(indices[:6]) == LIST and set(indices) == set(LIST)
    assert max(map(max, column(steps, 'weights'))) > 1
    tables = infobatch_hook(runner).run.table
    assert len(tables.scores) == len(tables.visits) == 6
    assert (tables.scores != 1).all()
    assert state_of(runner)['paths_comparable'] == [True]
    assert 'has 6 of 14 images, those of a list.' in read_log(tmp_path)
    check_resumed(tmp_path, runner, steps, name, **changes)


def test_an_image_that_cannot_be_read():
    """A listed one is delivered in its place."""
    dataset = build(only([2, 3], path_dataset(size=500, broken=(2, ))))
    for index in (0, 1) * 5:
        assert dataset[index]['data_samples'].img_path == 'a/3'


@DATASETS.register_module()
class Filtered(BaseDataset):
    """Of four images each second one is removed."""

    def load_data_list(self):
        return [dict(img_path=f'data/{i}.jpg') for i in range(4)]

    def filter_data(self):
        return self.data_list[::2]


def test_an_image_that_a_filter_removed():
    cfg = dict(type='ListedImages', dataset=dict(type='Filtered'))
    for option in ('images', 'without'):
        with pytest.raises(Refusal, match='`3.jpg`, is an image that the da'):
            build(dict(cfg, **{option: ['3.jpg']}))
        with pytest.raises(Refusal, match='`9.jpg`, is not an image'):
            build(dict(cfg, **{option: ['9.jpg']}))
