# Copyright (c) mmib contributors. All rights reserved.
"""Trainings on the images of a list."""
import pickle

import numpy as np
import pytest

from mmib.config.convert import list_images
from mmib.data.datasets import (image_numbers, image_path, images_checksum,
                                numbers_in_whole, unwrap_repeats)
from mmib.errors import Refusal
from tests.system import small_training
from tests.system.epoch_training import by_epoch
from tests.system.small_training import (check_resumed, column, infobatch_hook,
                                         read_log, small_config, state_of,
                                         train)
from tests.test_datasets import (DATASETS_TO_WRAP, RENAMED, TWO, build, concat,
                                 deliver, path_dataset, wrapper)

# Of 14 images.
LIST = [1, 2, 4, 7, 8, 10]
PLAIN = path_dataset(size=14)


def only(images=LIST, dataset=PLAIN, **kwargs):
    return dict(type='ListedImages', dataset=dataset, images=images, **kwargs)


def on(dataset, **changes):
    """Changes for a training on a data set."""
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
    dataset = build(only())
    assert len(dataset) == 6
    assert paths_of(dataset) == [f'a/{i}' for i in LIST]
    in_reverse = build(only([*range(14)][::-1]))
    assert paths_of(in_reverse) == paths_of(build(PLAIN))
    assert dataset.get_data_info(-1)['img_path'] == 'a/10'
    assert [int(sample['inputs'][0, 0, 0]) for sample in dataset] == LIST
    assert dataset.metainfo == build(PLAIN).metainfo
    again = pickle.loads(pickle.dumps(dataset))
    assert paths_of(again) == paths_of(dataset)
    assert image_numbers(dataset).tolist() == [*range(6)]


def test_it_shows_all_but_the_listed_images():
    dataset = build(only(None, without=LIST))
    assert paths_of(dataset) == [f'a/{i}' for i in range(14) if i not in LIST]
    with pytest.raises(Refusal, match='`without`.* leaves out all images'):
        build(only(None, without=[*range(14)]))
    with pytest.raises(Refusal, match='needs `images`, those to show, or'):
        build(dict(type='ListedImages', dataset=PLAIN))
    with pytest.raises(Refusal, match='has no `indices`: set `.*.dataset.in'):
        build(dict(only([0]), indices=6))


def test_it_shows_listed_images_but_others():
    """Numbers in both lists are those of the whole data set."""
    dataset = build(only(without=[2, 3, 10]))
    assert paths_of(dataset) == ['a/1', 'a/4', 'a/7', 'a/8']
    with pytest.raises(Refusal, match='`without`.* leaves out all images'):
        build(only(without=LIST))


@pytest.mark.parametrize('name', DATASETS_TO_WRAP)
def test_numbers_in_the_whole_data_set(name, tmp_path):
    """They are those which a list names, also where images are repeated."""
    cfg = small_config(tmp_path, **on(DATASETS_TO_WRAP[name][0]))
    whole = build(cfg.train_dataloader.dataset)
    count = int(image_numbers(whole).max()) + 1
    assert numbers_in_whole(whole).tolist() == [*range(count)]
    listed = list_images(cfg, without=[0, 3]).train_dataloader.dataset
    expected = [i for i in range(count) if i not in (0, 3)]
    assert numbers_in_whole(build(listed)).tolist() == expected


def test_a_list_of_a_list(tmp_path):
    """A config has one list of images and one of images to leave out, which
    count alike."""
    cfg = small_config(tmp_path, **on(PLAIN))
    listed = list_images(list_images(cfg, images=LIST), without=[1])
    dataset = build(listed.train_dataloader.dataset)
    assert paths_of(dataset) == [f'a/{i}' for i in LIST[1:]]
    assert not isinstance(dataset.dataset, type(dataset))
    for lists in (dict(images=[2]), dict(without=[2])):
        with pytest.raises(Refusal, match='the config has `.*` already'):
            list_images(listed, **lists)


def test_hooks_replace_its_pipeline():
    dataset = build(only())
    dataset.pipeline = len
    assert dataset.dataset.pipeline is dataset.pipeline is len
    assert not hasattr(build(only(dataset=TWO)), 'pipeline')


def test_it_may_wait_until_it_is_needed(tmp_path):
    dataset = build(only('none.txt', lazy_init=True))
    assert dataset.metainfo['classes'] == ('even', 'odd')
    with pytest.raises(Refusal, match="none.txt can't be read"):
        len(dataset)


@pytest.mark.parametrize('name', DATASETS_TO_WRAP)
def test_it_wraps_other_wrappers(name):
    """With all repeats of an image. Its numbers are those of a data set that
    has no more than these images."""
    cfg, num_images, _ = DATASETS_TO_WRAP[name]
    inner = build(cfg)
    names = list(dict.fromkeys(paths_of(inner)))
    if 'mosaic' in name:
        with pytest.raises(Refusal, match='MultiImageMixDataset wrap List'):
            build(only([0], cfg))
        return
    dataset = build(only([names[5], names[0]], cfg))
    expected = [path for path in paths_of(inner) if path in names[:6:5]]
    assert paths_of(dataset) == expected
    numbers = image_numbers(dataset)
    assert [names[:6:5][number] for number in numbers] == expected
    by_number = build(only([0, 5], cfg))
    assert paths_of(by_number) == expected
    assert images_checksum(by_number) == images_checksum(dataset)


@pytest.mark.parametrize('name', DATASETS_TO_WRAP)
def test_the_option_wraps_what_others_repeat_and_mix(name, tmp_path):
    """A training of all libraries' wrappers on listed images alone."""
    cfg = small_config(tmp_path, **on(DATASETS_TO_WRAP[name][0]))
    listed = list_images(cfg, images=LIST[:3])
    assert cfg.train_dataloader.dataset == DATASETS_TO_WRAP[name][0]
    assert listed.custom_imports['imports'] == ['mmib']
    dataset = build(listed.train_dataloader.dataset)
    assert len(np.unique(image_numbers(unwrap_repeats(dataset)))) == 3
    paths = [f'a/{i}' for i in LIST[:3]]
    assert set(paths_of(dataset)) == set(paths)
    # Also of those that are mixed.
    shown = {
        float(value)
        for i in range(len(dataset))
        for value in dataset[i]['inputs'].unique()
    }
    # 0 is the edge of a mosaic.
    assert shown - {0} <= {1, 2, 4}


def test_a_list_needs_a_data_set(tmp_path):
    cfg = small_config(tmp_path)
    cfg.train_dataloader = None
    with pytest.raises(Refusal, match='no data set whose images'):
        list_images(cfg, images=[0])


def test_other_lists_have_other_checksums():
    """Of as many images, with the same names in two folders too."""
    two = concat(path_dataset('a', 7), path_dataset('b', 7))
    nameless = dict(type='IndexDataset', size=14)
    checksums = [
        images_checksum(build(cfg))
        for cfg in (PLAIN, only([0, 1]), only([0, 2]), two, only([1, 2], two),
                    only([8, 9], two),
                    wrapper('RepeatDataset', only([0, 1, 2]), times=2),
                    only([0, 1], nameless), only([3, 4], nameless))
    ]
    assert len(set(checksums)) == len(checksums)


@pytest.mark.parametrize('changes, name', [(on, 'iter_4'),
                                           (epochs_on, 'epoch_4')])
def test_trainings_prune_and_resume(tmp_path, changes, name):
    """By iterations and by epochs: the first pass has each listed image once,
    all passes have no others, and a resumed training is exact."""
    changes = changes(
        only(), **{
            'train_dataloader.num_workers': 2,
            'train_dataloader.persistent_workers': True,
            'default_hooks.checkpoint.interval': 4
        })
    runner = small_training.build(tmp_path, **changes)
    steps = train(runner)
    indices = images_of(steps)
    assert sorted(indices[:6]) == LIST and set(indices) == set(LIST)
    assert max(map(max, column(steps, 'weights'))) > 1
    tables = infobatch_hook(runner).training.tables
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


@pytest.mark.parametrize('cfg, comparable', [
    (only([3, 11], path_dataset(size=14, pipeline=RENAMED)), [False]),
    (only([0, 9, 2],
          concat(path_dataset('a', 7), path_dataset(
              'b', 4, pipeline=RENAMED))), [True, False]),
    (only([0, 2], TWO), [True, None]),
    (wrapper('RepeatDataset', only([0, 9], TWO), times=2), [True, True]),
    (only([0, 9], wrapper('RepeatDataset', TWO, times=2)), [True, True]),
])
def test_paths_are_compared_in_each_part(cfg, comparable):
    """All that are listed are scored, also where paths tell nothing."""
    known, delivered, _ = deliver(cfg)
    assert known == comparable
    assert len(set(sum(delivered, []))) == len(build(cfg))
