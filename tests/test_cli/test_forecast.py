# Copyright (c) mmib contributors. All rights reserved.
import json
import os
import os.path as osp
import subprocess
import sys

import mmseg.datasets  # noqa: F401, as OneDL's prints something
import pytest
from mmengine.config import Config

from mmib_cli.zoo import allow_scoped_bases
from tests.helpers.segmentors import BASELINE, small_config, write_images

ROOT = osp.dirname(osp.dirname(osp.dirname(osp.abspath(__file__))))
EXAMPLE = osp.join(ROOT, 'examples/small_data/baseline.py')
# On 11 images, 3 in a batch, 30 iterations, as in the tests of the hook.
TIERS = [
    'A pass is 11 images, an iteration 3 of them on 1 GPU.',
    'QuantileTiers(quantiles=(0.2, 0.85), ratios=(0.75, 0.5)) prunes until '
    'iteration 26 of 30.',
    'It keeps about 0.525 of the images, with a mean weight of 1.90.',
    'It runs 30 iterations and covers 13.7 passes over the data, for which '
    'the baseline needs 50 iterations: 20 saved if the schedule was '
    'shortened, as `mmib convert` does.'
]
NO_DATA = ('mmib::upernet/'
           'upernet_r50_4xb4-48k-infobatch-tiers_ade20k-512x512')
OF_TIERS = {'custom_hooks.0.policy': dict(type='QuantileTiers')}
NOTHING = {
    'custom_hooks.0.policy': dict(_delete_=True, type='Neyman', ratio=1.)
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
            'needs 50 iterations: 10 saved if the schedule was shortened, as '
            '`mmib convert` does.'
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
            'the baseline needs 500 iterations: 200 saved if'
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
    assert '525 iterations: 225 saved if' in capsys.readouterr().out


def test_without_data(run, capsys):
    run('forecast', NO_DATA)
    said = capsys.readouterr().out
    assert said.startswith('It saves about 43 % of the iterations '
                           'if the schedule was shortened.\n')
    # Of what the config was made from nothing is known.
    assert '\n  mmib train BASELINE --shorten\n' in said
    missing, *lines = said.strip().splitlines()[-5:]
    assert missing.startswith("The data isn't there (")
    assert 'data/ade/ADEChallengeData2016' in missing
    assert lines[1:] == [
        TIERS[2], 'It runs about 57 % of the iterations that the baseline '
        'needs for as many passes.',
        'These figures leave out that the first pass is full.'
    ]


@pytest.mark.parametrize(
    'arguments, changes, saves',
    [
        ('', OF_TIERS,
         'It saves 20 of 50 iterations if the schedule was shortened.'),
        ('--infobatch', LONG, 'It saves 20 of 50 iterations.'),
        # A length that is asked for saves nothing of the one before.
        ('--infobatch --cfg-options train_cfg.max_iters=20', LONG,
         'It saves 13 of 33 iterations if'),
        ('', NOTHING, 'It saves no iterations. A pass is'),
        ('--infobatch --ratio 1 --policy RandomPruning', LONG,
         'It saves no iterations. field'),
    ])
def test_the_answer_comes_first(forecast, arguments, changes, saves):
    assert forecast(arguments, changes).startswith(saves)


@pytest.mark.parametrize('policy, saves', [
    ('Neyman', 'It saves about 32 of 80 iterations.'),
    ('MeanThreshold', 'What it saves depends on the losses.'),
])
def test_epochs_that_become_shorter(run, capsys, policy, saves):
    changes = {
        **BASELINE,
        'train_cfg': dict(
            _delete_=True, type='EpochBasedTrainLoop', max_epochs=20),
        'param_scheduler': [],
        'train_dataloader.sampler': dict(
            _delete_=True, type='DefaultSampler', shuffle=True),
    }
    small_config('unused', **changes).dump('config.py')
    run('forecast', 'config.py', '--infobatch', '--policy', policy)
    said = capsys.readouterr().out
    assert said.startswith(saves)
    control = '' if policy == 'Neyman' else (
        ' --ratio 0.8 --policy MeanThreshold --steps MEAN_WEIGHT')
    assert f'mmib train config.py --shorten{control}\n' in said


def test_json(run, capsys):
    small_config('unused', **LONG).dump('config.py')
    arguments = ('forecast', 'config.py', '--infobatch')
    run(*arguments)
    text = capsys.readouterr().out
    run(*arguments, '--json')
    printed = json.loads(capsys.readouterr().out)
    assert printed['unit'] == 'iteration' and printed['images'] == 11
    assert (printed['length'], printed['length_before']) == (30, 50)
    assert printed['iterations'] == 30 < printed['baseline_iterations'] < 51
    assert printed['changes']['train_cfg.max_iters'] == [50, 30]
    assert printed['changes']['custom_hooks.0.delta'] == [None, 0.85]
    assert printed['control'] == 'mmib train config.py --shorten'
    assert printed['published'] is None
    assert printed['sentences'][0] == 'It saves 20 of 50 iterations.'
    for sentence in printed['sentences']:
        assert sentence in text


def test_the_stack_prints_nothing_on_standard_output(tmp_path):
    """In a process of its own, as it prints when it is imported."""
    code = ('from mmib_cli import main; '
            f"main(['forecast', {NO_DATA!r}, '--json'])")
    result = subprocess.run([sys.executable, '-c', code],
                            cwd=tmp_path,
                            env=dict(os.environ, PYTHONPATH=ROOT),
                            capture_output=True,
                            text=True)
    assert json.loads(result.stdout)['images'] is None
    assert 'OneDL' not in result.stdout + result.stderr


EMPTY = 'train_dataloader.dataset.ann_file=none.txt'


@pytest.mark.parametrize('arguments, changes, message', [
    ('', BASELINE, 'The config trains without InfoBatch: add --infobatch'),
    ('--ratio 0.5', {}, '--ratio needs --infobatch'),
    ('--infobatch', {}, 'The config trains with InfoBatch already'),
    ('--infobatch --ratio 2', BASELINE, '`ratio` is the share'),
    ('', listed([11]), 'entry 0, `11`, is not an image'),
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
