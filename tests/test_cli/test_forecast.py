# Copyright (c) mmib contributors. All rights reserved.
import os.path as osp

import mmseg.datasets  # noqa: F401, as OneDL's prints something
import pytest
from mmengine.config import Config

from mmib.openmmlab.config.zoo import allow_scoped_bases

from ..system.small_training import BASELINE, small_config, write_images

EXAMPLE = osp.join(
    osp.dirname(__file__), '../../examples/small_data/baseline.py')
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
OF_TIERS = {'custom_hooks.0.policy': dict(type='QuantileTiers')}
NOTHING = {
    'custom_hooks.0.policy': dict(_delete_=True, type='Budget', ratio=1.)
}
LONG = dict(BASELINE, **{'train_cfg.max_iters': 50, 'param_scheduler': []})


def listed(images):
    return {
        'train_dataloader.dataset': dict(
            _delete_=True,
            type='ListedImages',
            images=images,
            dataset=dict(type='IndexDataset', size=11))
    }


@pytest.fixture
def forecast(run, capsys):
    """Forecast a config, and return what is said, in one line."""

    def call(arguments, changes=None):
        path = EXAMPLE
        if changes is None:
            write_images('data', 16)
        else:
            path = 'config.py'
            small_config('unused', **changes).dump(path)
        run('forecast', path, *arguments.split())
        return ' '.join(capsys.readouterr().out.split())

    return call


@pytest.mark.parametrize(
    'arguments, changes, texts',
    [
        ('', OF_TIERS, TIERS),
        ('--infobatch --policy QuantileTiers', LONG,
         [*TIERS, 'train_cfg.max_iters 50 30']),
        ('--infobatch --ratio 0.8 --delta 0.5', LONG, [
            'prunes until iteration 20 of 40.',
            'needs 50 iterations: 10 saved.'
        ]),
        # As many images in half the iterations.
        ('--gpus 2', OF_TIERS,
         ['an iteration 6 of them on 2 GPUs.', TIERS[1], 'covers 28.']),
        ('--cfg-options train_cfg.max_iters=60 custom_hooks.0.delta=0.5 '
         'train_dataloader.dataset.size=30', OF_TIERS,
         ['A pass is 30 images', 'prunes until iteration 30 of 60.']),
        # The passes are those over the list.
        ('', dict(OF_TIERS, **listed(
            [1, 4, 5, 8])), ['A pass is 4 images', TIERS[2], 'covers 39.']),
        ('', NOTHING, ['Warning: it prunes nothing']),
        # On the data that the first line of the example draws.
        ('--infobatch', None, [
            'A pass is 16 images, an iteration 8 of them on 1 GPU.',
            'the baseline needs 500 iterations: 200 saved.'
        ]),
    ])
def test_what_is_told(forecast, arguments, changes, texts):
    told = forecast(arguments, changes)
    for text in texts:
        assert text in told


def test_a_repeated_data_set(run, capsys):
    """Its first three passes are full ones, until each image was asked for.
    """
    write_images('data', 16)
    allow_scoped_bases()
    cfg = Config.fromfile(EXAMPLE)
    cfg.train_dataloader.dataset = dict(
        type='RepeatDataset', times=3, dataset=cfg.train_dataloader.dataset)
    cfg.dump('config.py')
    run('forecast', 'config.py', '--infobatch', '--policy', 'QuantileTiers')
    # (2040 - 48) x (1 / 0.525 - 1) / 8 iterations.
    assert '525 iterations: 225 saved.' in capsys.readouterr().out


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
    assert lines[3].startswith('These figures leave out that the first pass')


EMPTY = 'train_dataloader.dataset.ann_file=none.txt'


@pytest.mark.parametrize('arguments, changes, message', [
    ('', BASELINE, 'The config trains without InfoBatch: add --infobatch'),
    ('--ratio 0.5', {}, '--ratio needs --infobatch'),
    ('--infobatch', {}, 'The config trains with InfoBatch already'),
    ('--infobatch --ratio 2', BASELINE, '`ratio` is the share'),
    ('--gpus 0', {}, '--gpus must be 1 or more'),
    ('', listed([11]), 'entry 0 is image 11'),
    ('--cfg-options train_dataloader.dataset.size=0', {},
     'The training data has no images: check `ann_file`'),
    (f'--infobatch --cfg-options {EMPTY}', None,
     'The training data has no images: check `ann_file`'),
    ('--cfg-options train_cfg.max_iters=3', {},
     '`train_cfg.max_iters = 3` with 3 images'),
])
def test_refusals(forecast, tmp_path, arguments, changes, message):
    (tmp_path / 'data').mkdir()
    (tmp_path / 'data' / 'none.txt').touch()
    with pytest.raises(SystemExit) as stop:
        forecast(arguments, changes)
    assert stop.value.code.startswith(f'Error: {message}')
    assert len(stop.value.code.splitlines()) == 1
