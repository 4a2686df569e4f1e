# Copyright (c) mmib contributors. All rights reserved.
"""Cells of the comparison on CIFAR-10, on a few drawn images."""
import itertools
import os.path as osp
from concurrent.futures import ThreadPoolExecutor

import cv2
import numpy as np
import pytest

pytest.importorskip('mmpretrain')

import torch  # noqa: E402
from mmengine.registry import DefaultScope  # noqa: E402
from mmpretrain.registry import MODELS  # noqa: E402

from benchmarks.cifar10 import cell, data, pack, run  # noqa: E402
from benchmarks.compare import recorder  # noqa: E402
from benchmarks.compare import run as compare  # noqa: E402
from benchmarks.compare.results import read_results  # noqa: E402
from mmib.worth import MeanRatio  # noqa: E402
from research.paper_regime import cell as regime_cell  # noqa: E402
from research.paper_regime import run as regime  # noqa: E402

SMALL = {
    'model.backbone.base_channels': 2,
    'model.backbone.stem_channels': 2,
    'model.head.in_channels': 8,
    'train_dataloader.batch_size': 4
}


@pytest.fixture(scope='module')
def images(tmp_path_factory):
    """A packed file of images whose brightness tells their class."""
    folder = tmp_path_factory.mktemp('cifar10')
    rng = np.random.default_rng(0)
    for split, count in (('train', 3), ('test', 2)):
        for label in range(10):
            of_class = folder / split / f'class{label}'
            of_class.mkdir(parents=True)
            for number in range(count):
                image = 25 * label + rng.integers(0, 20, (32, 32, 3))
                cv2.imwrite(
                    str(of_class / f'{number}.jpg'), image.astype(np.uint8))
    path = str(folder / 'cifar10.npz')
    pack.pack(pack.draw_files(str(folder), 2, 1), path)
    return path


def test_splits(images):
    sizes = dict(train=20, held_out=10, test=20)
    for split, size in sizes.items():
        inputs, labels = data.load(images, split)
        assert inputs.shape == (size, 3, 32, 32)
        means = inputs.double().mean((1, 2, 3))
        assert ((means - 10) / 25).round().tolist() == labels.tolist()
        assert labels.bincount().tolist() == [size // 10] * 10
    held_out, train = (
        data.load(images, split).inputs for split in ('held_out', 'train'))
    assert not (held_out[:, None] == train[None]).all(-1).all(-1).all(-1).any()
    both = data.load(images, 'train+held_out')
    assert (both.inputs[:20] == train).all()
    assert (both.inputs[20:] == held_out).all()
    assert both.labels.bincount().tolist() == [3] * 10


def test_crops_are_those_of_the_padded_image():
    torch.manual_seed(0)
    image = torch.arange(1, 5).reshape(1, 1, 2, 2).expand(200, 2, 2, 2)
    found = data.crop_and_flip(image, 1)
    padded = np.pad(image[0, 0].numpy(), 1)
    windows = [padded[i:i + 2, j:j + 2] for i in range(3) for j in range(3)]
    expected = {tuple(w.ravel()) for w in windows}
    expected |= {tuple(w[:, ::-1].ravel()) for w in windows}
    assert {tuple(crop[0].ravel().tolist()) for crop in found} == expected
    assert (found[:, 0] == found[:, 1]).all()


def test_wrong_labels():
    """A share of them, always the same, is that of another class."""
    labels = torch.arange(1000) % 10
    wrong = data.wrong_labels(labels, 0.2)
    assert (wrong != labels).sum() == 200 and wrong.bincount().min() > 80
    assert (data.wrong_labels(labels, 0.2) == wrong).all()


def test_fast_backbone():
    """The same outputs in float32, and nearly the same in bfloat16."""
    backbone = MODELS.build(
        dict(
            type='ResNet_CIFAR',
            depth=18,
            num_stages=3,
            stem_channels=8,
            base_channels=8,
            strides=(1, 2, 2),
            dilations=(1, 1, 1),
            out_indices=(2, )))
    backbone.eval()
    inputs = torch.randn(2, 3, 32, 32)
    expected, = backbone(inputs)
    for bfloat16, tolerance in ((False, 1e-4), (True, 0.1)):
        found, = compare.FastBackbone(backbone, bfloat16)(inputs)
        assert found.dtype == torch.float32
        torch.testing.assert_close(
            found, expected, rtol=tolerance, atol=tolerance)


def test_v_by_quarter():
    means = [
        MeanRatio(),
        MeanRatio(),
        MeanRatio(10, 12.),
        MeanRatio(30, 28.),
        MeanRatio(30, 28.)
    ]
    found = recorder.by_quarter([0, 0.1, 0.3, 0.8, 1], means)
    np.testing.assert_allclose(found, [1.2, np.nan, 0.8, np.nan])


def test_the_command(images, tmp_path, monkeypatch):
    """Learning rates are tuned, then arms trained, and nothing twice."""
    monkeypatch.setattr(run.main_arms, 'RATES', (0.05, 0.1))
    monkeypatch.setattr(run.main_arms, 'TUNING_SEEDS', (100, ))
    options = [f'{key}={value}' for key, value in SMALL.items()]
    monkeypatch.setattr('sys.argv', [
        'run.py', '--data', images, '--out',
        str(tmp_path), '--device', 'cpu', '--seeds', '1', '--iters', '30',
        '--only', 'full', 'short_lr', 'neyman', 'el2n', '--cfg-options',
        *options
    ])
    for _ in range(2):
        with pytest.raises(SystemExit) as end:
            run.main()
        assert end.value.code == 0
    rates = read_results(tmp_path / 'learning-rates.jsonl')
    assert sorted((row['arm'], row['lr'])
                  for row in rates) == [(arm, rate)
                                        for arm in ('full', 'random', 'short')
                                        for rate in (0.05, 0.1)]
    rows = read_results(tmp_path / 'passes-24.jsonl')
    cells = {row['arm']: row for row in rows}
    assert len(rows) == 4 and len(cells) == 4
    assert cells['full']['iters'] == 30 and cells['full']['num_images'] == 20
    assert cells['el2n']['num_images'] == 12 and cells['el2n']['iters'] == 18
    assert cells['neyman']['virtual_epochs'] > 18 * 4 / 20
    assert 0 < cells['neyman']['kept_share'] < 1
    assert 0 < cells['neyman']['variance_ratio'][0] < 3
    for row in rows:
        assert len(row['evals']) == 4
        last = row['evals'][-1]
        assert last['iter'] == row['iters']
        assert last['accuracy'] == row['accuracy']
    more = read_results(tmp_path / 'passes-72.jsonl')
    assert {
        row['arm']: row['iters']
        for row in more
    } == dict(
        full=90, neyman=54, short_lr=54)


def config_of(name):
    return osp.join(osp.dirname(run.__file__), f'{name}_1xb64-625_cifar10.py')


def test_the_command_with_other_networks(images, tmp_path, monkeypatch):
    """A Swin and an MAE, each with a metric of its own."""
    # Starting a process takes longer than the cells.
    monkeypatch.setattr(compare, 'ProcessPoolExecutor',
                        lambda jobs, **_: ThreadPoolExecutor(jobs))
    monkeypatch.setattr(torch, 'set_num_threads', lambda number: None)
    monkeypatch.setattr('sys.argv', [
        'run.py', '--data', images, '--out',
        str(tmp_path), '--config',
        config_of('swin-w48'),
        config_of('mae-w64'), '--device', 'cpu', '--seeds', '1', '--iters',
        '20', '--only', 'neyman', '--cfg-options',
        'train_dataloader.dataset.indices=None',
        'train_dataloader.batch_size=4', 'evaluation.window=5'
    ])
    with pytest.raises(SystemExit) as end:
        run.main()
    assert end.value.code == 0
    for name, metric in (('swin-w48', 'accuracy'), ('mae-w64', 'loss')):
        row, = read_results(tmp_path / f'{name}.jsonl')
        assert row['iters'] == 12 and row['num_images'] == 20
        assert row['evals'][-1]['iter'] == 12
        assert row['evals'][-1][metric] == row[metric]
        assert 0 < row['kept_share'] < 1
        assert 0 < row['variance_ratio'][0] < 3
        # Of 5, 5 and 2 iterations, in which the rate falls to 0.
        first, _, last = row['step_lengths']
        assert 0 < last < first


def test_the_loss_of_masked_images_is_that_of_the_model(images):
    """With the same masks each time, and no others in the training."""
    cfg = run.load_base(images, config=config_of('mae-w64'))
    with DefaultScope.overwrite_default_scope('mmpretrain'):
        model = MODELS.build(cfg.model)
    torch.manual_seed(1)
    found = [cell.evaluate(model, images, 'test', 'loss') for _ in range(2)]
    drawn = torch.rand(1)
    assert model.training
    torch.manual_seed(1)
    assert torch.rand(1) == drawn
    inputs = data.load(images, 'test').inputs
    batch = dict(inputs=inputs, labels=torch.zeros(0, dtype=torch.long))
    torch.manual_seed(0)
    with torch.no_grad():
        loss = model(**model.data_preprocessor(batch), mode='loss')['loss']
    assert found == pytest.approx([100 * loss.item()] * 2, abs=1e-3)


def test_the_papers_regime_in_parts(images, tmp_path, monkeypatch):
    """Each training stops on its way, and goes on as if it had not."""
    monkeypatch.setattr(compare, 'ProcessPoolExecutor',
                        lambda jobs, **_: ThreadPoolExecutor(jobs))
    monkeypatch.setattr(torch, 'set_num_threads', lambda number: None)

    def start(folder, is_over, *arms):
        """Run the command, which asks whether its time is over before each
        training and after each epoch. Return its results by seed and arm."""
        answers = itertools.chain(is_over, itertools.repeat(False))
        monkeypatch.setattr(regime_cell, 'is_over', lambda _: next(answers))
        options = dict(
            SMALL, **{
                'optim_wrapper.type': 'OptimWrapper',
                'train_dataloader.dataset.device': 'cpu'
            })
        monkeypatch.setattr('sys.argv', [
            'run.py', '--data', images, '--out',
            str(tmp_path / folder), '--device', 'cpu', '--seeds', '1',
            '--epochs', '10', '--only', *arms, '--cfg-options',
            *(f'{key}={value}' for key, value in options.items())
        ])
        with pytest.raises(SystemExit) as end:
            regime.main()
        assert end.value.code == 0
        path = tmp_path / folder / 'epochs-10.jsonl'
        rows = read_results(path) if path.exists() else []
        return {row['arm']: row for row in rows}, len(rows)

    arms = 'full', 'short', 'neyman'
    # Each stops after four epochs. Three tune the rate of `short`.
    stops = 5 * [*4 * [False], True]
    assert start('parts', stops, *arms) == ({}, 0)
    cells = tmp_path / 'parts' / 'cells'
    assert len([*cells.glob('*/epoch_4.pth')]) == 5
    for _ in range(2):
        parts, num_lines = start('parts', [], *arms)
        assert num_lines == 3 and not [*cells.iterdir()]
    rates = read_results(tmp_path / 'parts' / 'learning-rates.jsonl')
    assert [(row['num_images'], row['epochs'])
            for row in rates] == 3 * [(20, 6)]
    assert {row['lr'] for row in rates} == {*regime.RATES}
    best = max(row['accuracy'] for row in rates)
    assert parts['short']['lr'] == min(row['lr'] for row in rates
                                       if row['accuracy'] == best)
    epochs = dict(full=10, short=6, neyman=10)
    assert {arm: row['epochs'] for arm, row in parts.items()} == epochs
    assert {arm: row['virtual_epochs'] for arm, row in parts.items()} == epochs
    assert parts['neyman']['iters'] < parts['full']['iters'] == 80
    assert {row['num_images'] for row in parts.values()} == {30}
    whole, _ = start('whole', [], 'full', 'neyman')
    for arm, row in whole.items():
        for key in ('weights_crc', 'iters', 'evals'):
            assert parts[arm][key] == row[key]
    for key in ('plans', 'variance_ratio', 'variance_ratio_of_quarters'):
        assert parts['neyman'][key] == whole['neyman'][key]
