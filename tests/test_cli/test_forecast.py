# Copyright (c) mmib contributors. All rights reserved.
import os.path as osp

import mmseg.datasets  # noqa: F401, as OneDL's prints something
import pytest
from mmengine.config import Config

from mmib.config.zoo import allow_scoped_bases

from ..system.small_training import BASELINE, small_config, write_images

EXAMPLE = osp.join(osp.dirname(__file__), '..', '..', 'examples', 'small_data')

# On 11 images, 3 in a batch, 30 iterations, as in tests/test_hook.py.
TIERS = [
    'A pass is 11 images, an iteration 3 of them on 1 GPU.',
    'QuantileTiers(quantiles=(0.2, 0.85), ratios=(0.75, 0.5)) prunes until '
    'iteration 26 of 30.',
    'It keeps about 0.525 of the images, with a mean weight of 1.90.',
    'It runs 30 iterations and covers 13.7 passes over the data, for which '
    'the baseline needs 50 iterations: 20 saved.'
]
NO_DATA = ('mmib::upernet/'
           'upernet_r50_4xb4-48k-infobatch-tiers_ade20k-512x512')


@pytest.fixture
def forecast(run, capsys):
    """Forecast a config, with changes, and return the lines."""

    def call(*arguments, **changes):
        small_config('unused', **changes).dump('config.py')
        run('forecast', 'config.py', *arguments)
        return capsys.readouterr().out.splitlines()

    return call


def with_policy(**policy):
    return {'custom_hooks.0.policy': dict(_delete_=True, **policy)}


def test_a_config_with_infobatch(forecast):
    assert forecast(**with_policy(type='QuantileTiers')) == TIERS


def test_the_example_is_converted(run, capsys):
    """On the data that its first line draws."""
    write_images('data', 16)
    run('forecast', osp.join(EXAMPLE, 'baseline.py'), '--infobatch')
    lines = capsys.readouterr().out.splitlines()
    assert 'A pass is 16 images, an iteration 8 of them on 1 GPU.' in lines
    assert 'the baseline needs 500 iterations: 200 saved.' in lines[-1]


def test_a_baseline_is_converted(forecast):
    changes = dict(BASELINE, **{
        'train_cfg.max_iters': 50,
        'param_scheduler': []
    })
    lines = forecast('--infobatch', '--policy', 'QuantileTiers', **changes)
    assert lines[0] == TIERS[0] and lines[-3:] == TIERS[1:]
    assert 'train_cfg.max_iters 50 30'.split() in map(str.split, lines)
    lines = forecast('--infobatch', '--ratio', 0.8, '--delta', 0.5, **changes)
    assert lines[-3].endswith(' prunes until iteration 20 of 40.')
    assert 'needs 50 iterations: 10 saved.' in lines[-1]


def test_several_gpus(forecast):
    lines = forecast('--gpus', 2, **with_policy(type='QuantileTiers'))
    assert lines[0].endswith('an iteration 6 of them on 2 GPUs.')
    # As many images in half the iterations.
    assert lines[1] == TIERS[1] and 'covers 28.' in lines[3]


def test_options_change_what_is_forecast(forecast):
    lines = forecast('--cfg-options', 'train_cfg.max_iters=60',
                     'custom_hooks.0.delta=0.5',
                     'train_dataloader.dataset.size=30')
    assert lines[0].startswith('A pass is 30 images')
    assert lines[1].endswith(' prunes until iteration 30 of 60.')


def test_a_repeated_data_set(run, capsys):
    """Its first three passes are full ones, until each image was asked for.
    """
    write_images('data', 16)
    allow_scoped_bases()
    cfg = Config.fromfile(osp.join(EXAMPLE, 'baseline.py'))
    covered = []
    for times in (1, 3):
        cfg.train_dataloader.dataset = dict(
            type='RepeatDataset',
            times=times,
            dataset=cfg.train_dataloader.dataset)
        cfg.dump('config.py')
        run('forecast', 'config.py', '--infobatch', '--policy',
            'QuantileTiers')
        lines = capsys.readouterr().out.splitlines()
        covered.append(lines[-1])
    # (2040 - 16) x (1 / 0.525 - 1) / 8 iterations, and 2040 - 48.
    assert covered[0].endswith('529 iterations: 229 saved.')
    assert covered[1].endswith('525 iterations: 225 saved.')


def listed(images):
    return {
        'train_dataloader.dataset': dict(
            _delete_=True,
            type='ListedImages',
            images=images,
            dataset=dict(type='IndexDataset', size=11))
    }


def test_a_list_of_images(forecast):
    lines = forecast(**listed([1, 4, 5, 8]),
                     **with_policy(type='QuantileTiers'))
    assert lines[0].startswith('A pass is 4 images') and lines[2] == TIERS[2]
    # The passes are those over the list.
    assert 'covers 39.' in lines[3]


def test_a_warning(forecast):
    lines = forecast(**with_policy(type='Budget', ratio=1.))
    assert lines[-1].startswith('Warning: it prunes nothing')


def test_without_data(run, capsys):
    run('forecast', NO_DATA)
    missing, *lines = capsys.readouterr().out.strip().splitlines()[-5:]
    assert missing.startswith("The data isn't there (")
    assert 'data/ade/ADEChallengeData2016' in missing
    assert lines[1:3] == [
        TIERS[2], 'It runs about 57 % of the iterations that the baseline '
        'needs for as many passes.'
    ]
    # As `mmib convert`, which reads no data.
    assert lines[3].startswith('Without the data it is left out that the fir')


def test_an_empty_list_of_annotations(run, tmp_path):
    write_images('data', 16)
    (tmp_path / 'data' / 'none.txt').write_text('')
    with pytest.raises(SystemExit, match='has no images: check `ann_file`'):
        run('forecast', osp.join(EXAMPLE, 'baseline.py'), '--infobatch',
            '--cfg-options', 'train_dataloader.dataset.ann_file=none.txt')


@pytest.mark.parametrize('arguments, changes, message', [
    ([], BASELINE, 'The config trains without InfoBatch: add --infobatch'),
    (['--ratio', 0.5], {}, '--ratio needs --infobatch'),
    (['--infobatch'], {}, 'The config trains with InfoBatch already'),
    (['--infobatch', '--ratio', 2], BASELINE, '`ratio` is the share'),
    (['--gpus', 0], {}, '--gpus must be 1 or more'),
    ([], listed([11]), 'entry 0 is image 11'),
    (['--cfg-options', 'train_dataloader.dataset.size=0'
      ], {}, 'The training data has no images'),
    (['--cfg-options', 'train_cfg.max_iters=3'
      ], {}, '`train_cfg.max_iters = 3` with 3 images'),
])
def test_refusals(forecast, arguments, changes, message):
    with pytest.raises(SystemExit) as stop:
        forecast(*arguments, **changes)
    assert stop.value.code.startswith(f'Error: {message}')
    assert len(stop.value.code.splitlines()) == 1
