# Copyright (c) mmib contributors. All rights reserved.
"""The comparison of ways to train, on a few drawn images."""
import itertools
import json
import os
import subprocess
import sys
from argparse import Namespace

import cv2
import mmcv
import numpy as np
import pandas as pd
import pytest
import torch
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from PIL import Image

from benchmarks.quality import arms, camvid, cifar10
from benchmarks.quality import classification as images
from benchmarks.quality import run, table, train

from .utils import ROOT, rows_of, write_small_camvid

# With 4 channels, channels last, torch 2.13 crashes on CPUs without AVX-512.
SMALL = {
    'model.backbone.base_channels': 8,
    'model.backbone.stem_channels': 8,
    'model.channels': 32,
    'train_dataloader.batch_size': 4
}
OPTIONS = [f'{name}={value}' for name, value in SMALL.items()]


@pytest.fixture(scope='module')
def data(tmp_path_factory):
    """Packed images whose brightness tells their class: 2 of each to train
    on, 1 that is held out, 1 more, and 2 to test on."""
    folder = tmp_path_factory.mktemp('cifar10')
    rng = np.random.default_rng(0)
    for split, count in (('train', 4), ('test', 2)):
        for label in range(10):
            (folder / split / f'class{label}').mkdir(parents=True)
            for number in range(count):
                image = 25 * label + rng.integers(0, 20, (32, 32, 3))
                path = folder / split / f'class{label}' / f'{number}.jpg'
                cv2.imwrite(str(path), image.astype(np.uint8))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cifar10, 'TRAIN', 2)
        patch.setattr(cifar10, 'HELD_OUT', 1)
        cifar10.prepare(str(folder), str(folder / 'cifar10.npz'))
    return str(folder / 'cifar10.npz')


def full_training(data, iters=40):
    cfg = cifar10.full_training(data)
    cfg.merge_from_dict(SMALL)
    return arms.with_passes(cfg, iters / cfg.train_cfg.max_iters)


def test_splits(data):
    sizes = dict(train=20, held_out=10, test=20)
    found = {split: images.PackedImages(data, split) for split in sizes}
    for split, (inputs, labels) in ((s, x.tensors) for s, x in found.items()):
        assert inputs.shape == (sizes[split], 3, 32, 32)
        means = inputs.double().mean((1, 2, 3))
        assert ((means - 10) / 25).round().tolist() == labels.tolist()
        assert len({*labels.bincount().tolist()}) == 1
    train, held_out = (found[x].tensors[0] for x in ('train', 'held_out'))
    assert not (held_out[:, None] == train).flatten(2).all(-1).any()


def test_packed_images_have_a_size(tmp_path):
    cv2.imwrite(str(tmp_path / 'x.png'), np.full((20, 10, 3), (0, 0, 255)))
    path = str(tmp_path / 'x.npz')
    images.pack(dict(train=[(str(tmp_path / 'x.png'), 7)]), path, (6, 4))
    image, label = images.PackedImages(path, 'train')[0]
    # In RGB.
    assert image.shape == (3, 4, 6) and image[:, 1, 1].tolist() == [255, 0, 0]
    assert label == 7


def test_crops_are_those_of_the_padded_image():
    torch.manual_seed(0)
    image = torch.arange(1, 5).reshape(1, 1, 2, 2).expand(200, 2, 2, 2)
    found = images.crop_and_flip(image, 1)
    padded = np.pad(image[0, 0].numpy(), 1)
    windows = [padded[i:i + 2, j:j + 2] for i in range(3) for j in range(3)]
    expected = {tuple(w.ravel()) for w in windows}
    expected |= {tuple(w[:, ::-1].ravel()) for w in windows}
    assert {tuple(crop[0].ravel().tolist()) for crop in found} == expected
    assert (found[:, 0] == found[:, 1]).all()


@pytest.mark.parametrize('mode', ['L', 'P'])
def test_camvid_is_copied(tmp_path, monkeypatch, mode):
    """Four quarters, each with its label and its colour."""
    monkeypatch.setattr(camvid, 'SIZE', (4, 2))
    labels = np.kron([[0, 1], [2, 11]], np.ones((6, 8))).astype(np.uint8)
    mask = Image.fromarray(labels)
    if mode == 'P':
        mask = mask.copy()
        mask.putpalette(np.arange(768) % 256)
    (tmp_path / 'data/annotations/test').mkdir(parents=True)
    mask.save(tmp_path / 'data/annotations/test/a.png')
    image = np.repeat(labels[..., None] * 20, 3, axis=2)
    mmcv.imwrite(image, str(tmp_path / 'data/images/test/a.png'))
    camvid.prepare(str(tmp_path / 'data'), str(tmp_path / 'out'))
    small = mmcv.imread(tmp_path / 'out/annotations/test/a.png', 'unchanged')
    assert small.tolist() == [[0, 0, 1, 1], [2, 2, 11, 11]]
    small = mmcv.imread(tmp_path / 'out/images/test/a.png')
    assert small[..., 0].tolist() == [[0, 0, 20, 20], [40, 40, 220, 220]]


@HOOKS.register_module()
class NoteSteps(Hook):
    """Notes the learning rate and the weight decay of each step."""

    steps = []

    def before_train_iter(self, runner, *_, **__):
        group = runner.optim_wrapper.param_groups[0]
        self.steps.append((group['lr'], group['weight_decay']))


def test_long_steps(data, tmp_path, monkeypatch):
    """From the second of 8 passes until annealing, of 24 iterations."""
    steps = {}
    for name in ('short', 'short_lr', 'short_lr_decay'):
        monkeypatch.setattr(NoteSteps, 'steps', [])
        cfg = arms.make_config(full_training(data), 0.6, 8, **arms.ARMS[name])
        cfg.custom_hooks = [dict(type='NoteSteps')]
        train.train(cfg, 'accuracy', 0, str(tmp_path / name), np.inf)
        steps[name] = np.array(NoteSteps.steps)
    for name, decay in (('short_lr', 1), ('short_lr_decay', 1.9)):
        expected = np.ones((24, 2))
        expected[5:20] = 1.9, 1 / decay
        np.testing.assert_allclose(steps[name] / steps['short'], expected)


@pytest.mark.parametrize('name, arm', [('cifar10', 'neyman'),
                                       ('camvid', 'tiers')])
def test_a_training_in_parts(data, tmp_path, monkeypatch, name, arm):
    """It is that in one go, however often it is stopped."""
    module = dict(cifar10=cifar10, camvid=camvid)[name]
    if name == 'cifar10':
        full = full_training(data)
    else:
        write_small_camvid(tmp_path, 16)
        full = Config.fromfile(tmp_path / 'base.py')
    cfg = arms.make_config(full, 0.6, 8, **arms.ARMS[arm])

    def start(folder, deadline):
        return train.train(cfg, module.METRIC, 0, str(tmp_path / folder),
                           deadline)

    whole = start('whole', np.inf)
    # Each look at this clock is a second.
    clock = itertools.count()
    monkeypatch.setattr(train, 'time', Namespace(time=lambda: next(clock)))
    parts, count = None, 0
    while parts is None:
        parts, count = start('parts', next(clock) + 10), count + 1
    assert count > 2 and not (tmp_path / 'parts').exists()
    for figures in (whole, parts):
        figures.pop('seconds')
    assert json.dumps(parts) == json.dumps(whole)
    iters = cfg.train_cfg.max_iters
    assert [point['iter'] for point in whole['evals']
            ] == [iters // 4, iters // 2, 3 * iters // 4, iters]
    assert whole['quality'] == whole['evals'][-1][module.METRIC]
    assert 0.5 < whole['v'] < 2


def test_the_command(data, tmp_path, monkeypatch, capsys):
    """In processes, and again: nothing is trained twice."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'more.py').write_text('arms = dict(more=dict(short=True))')
    command = [
        'run.py', 'cifar10', '--data', data, '--arms', 'full', 'more',
        '--arms-file', 'more.py', '--ratio', '0.5', '0.8', '--passes', '0.1',
        '--lr', '0.1', 'full=0.2', '--out', 'x.jsonl', '--cfg-options',
        *OPTIONS, '--seeds', '0'
    ]
    for more, said in ((['--jobs', '2'], '3 of 3'), (['1', '--arms',
                                                      'full'], '1 of 2')):
        monkeypatch.setattr('sys.argv', command + more)
        with pytest.raises(SystemExit, match='False'):
            run.main()
        assert f'{said} cells' in capsys.readouterr().out
    lines = run.read_results(tmp_path / 'x.jsonl')
    assert {(x['arm'], x['ratio'], x['lr'], x['iters'])
            for x in lines} == {('full', 1, 0.2, 8), ('more', 0.5, 0.1, 4),
                                ('more', 0.8, 0.1, 6)}
    assert all(line['options'] == SMALL for line in lines)
    monkeypatch.setattr('sys.argv',
                        ['table.py', 'x.jsonl', '--against', 'more'])
    table.main()
    said = capsys.readouterr().out
    assert said.count('### cifar10, 0.1 passes, ratio') == 2
    assert [row[:4] for row in rows_of(said.split('###')[1])
            ] == [['full', '0.2', '2', '8'], ['more', '0.1', '1', '4']]


@pytest.mark.parametrize('values, expected', [
    ([1, 2, 3], '+2.00 [-0.48, +4.48]'),
    ([-2, -2.5, -3], '-2.50 [-3.74, -1.26]'),
    ([1.5], '+1.50'),
    ([], '-'),
])
def test_differences(values, expected):
    """Of the seeds that both arms have, as 2 +- 4.302653 * 1 / sqrt(3). Among
    rates the best one counts."""
    figures = dict(data_set='cifar10', passes=24., ratio=0.6, options={})
    figures.update(v=0.9, iters=9, metric='accuracy')
    cells = []
    for alone, (arm, lr, qualities) in enumerate(
        (('a', 0.1, values), ('b', 0.025, [0] * len(values)),
         ('b', 0.1, [-9] * len(values)))):
        for seed, quality in [*enumerate(qualities), (10 + alone, 0.)]:
            cells.append(
                dict(figures, arm=arm, lr=lr, seed=seed, quality=quality))
    (title, group), = table.groups(pd.DataFrame(cells))
    assert title == 'cifar10, 24 passes, ratio 0.6'
    found = table.table(group, 'b')
    assert found.columns[-1] == 'difference to b at 0.025'
    assert found.loc['a', 0.1].iloc[-1] == expected


def test_results_without_the_arm_to_compare_with(tmp_path, monkeypatch,
                                                 capsys):
    """One table has no differences; an arm of no table is an error."""
    for passes, arm in ((6., 'full'), (12., 'full'), (12., 'short')):
        run.append_result(
            tmp_path / 'x.jsonl',
            dict(
                data_set='cifar10',
                passes=passes,
                ratio=1.,
                options={},
                arm=arm,
                lr=0.1,
                seed=0,
                iters=9,
                metric='accuracy',
                quality=60.))
    monkeypatch.setattr('sys.argv', ['table.py', str(tmp_path / 'x.jsonl')])
    table.main()
    six, twelve = capsys.readouterr().out.split('###')[1:]
    assert 'difference' not in six and 'difference to short' in twelve
    monkeypatch.setattr('sys.argv', [*sys.argv, '--against', 'random'])
    with pytest.raises(SystemExit, match='no arm random'):
        table.main()


def test_cells_end_with_a_run_that_is_killed(data, tmp_path):
    (tmp_path / 'own').mkdir()
    (tmp_path / 'own/slow.py').write_text(
        'import multiprocessing, time\n'
        'if multiprocessing.parent_process():\n'
        '    print("begun", flush=True)\n    time.sleep(600)\n')
    command = ('-m benchmarks.quality.run cifar10 --out x.jsonl --arms full '
               '--cfg-options custom_imports.imports=own.slow --data').split()
    process = subprocess.Popen([sys.executable, *command, data],
                               cwd=tmp_path,
                               env=dict(
                                   os.environ,
                                   PYTHONPATH=f'{ROOT}:{tmp_path}'),
                               stdout=subprocess.PIPE)
    assert any(b'begun' in line for line in process.stdout)
    process.kill()
    # The output ends with the last process that has it.
    process.communicate(timeout=300)
    assert not (tmp_path / 'x.jsonl').exists()
