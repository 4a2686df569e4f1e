# Copyright (c) mmib contributors. All rights reserved.
"""Images of datasets ranked by a network that was trained without mmib."""
import html
import re
import shutil
from pathlib import Path

import cv2
import numpy as np
import pandas as pd
import pytest
import torch
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from mmengine.registry import DATASETS, MODELS
from mmengine.runner import Runner
from scipy import ndimage

from mmib.labels.images import CannotShow, DatasetImages
from mmib.labels.predictions import Predictor
from tests.helpers.segmentors import BASELINE, write_images
from tests.helpers.work_dirs import files_config


def write_scenes(root, count=8):
    """Blocks, each of a class, which is seen by the colour."""
    write_images(str(root), count)
    rng = np.random.default_rng(0)
    colours = rng.integers(256, size=(6, 3))
    for path in root.glob('annotations/*/*.png'):
        blocks = rng.integers(1, 6, (6, 6)).repeat(16, 0).repeat(16, 1)
        cv2.imwrite(str(path), blocks)
        folder = root / 'images' / path.parent.name
        cv2.imwrite(str(folder / f'{path.stem}.jpg'), colours[blocks])


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    """Folder of a baseline, its config and its last checkpoint, as sure of
    itself as after a long training."""
    root = tmp_path_factory.mktemp('baseline')
    write_scenes(root / 'data')
    work_dir = root / 'run'
    cfg = files_config(root / 'data', work_dir, **BASELINE)
    Runner.from_cfg(cfg).train()
    config, = work_dir.glob('*.py')
    path = work_dir / 'iter_40.pth'
    checkpoint = torch.load(str(path), weights_only=False)
    checkpoint['state_dict']['decode_head.conv_seg.weight'] *= 30
    torch.save(checkpoint, str(path))
    return work_dir, config, path


@pytest.fixture
def rank(run, trained):
    return lambda *options: run('rank', *trained[1:], '--out', 'out', *options)


def table_of(split, folder='out'):
    table = pd.read_csv(f'{folder}/rank_{split}_images.csv', index_col='image')
    ranked = table['rank'].dropna()
    assert ranked.tolist() == [*range(1, len(ranked) + 1)]
    return table.sort_index()


def compared(config, checkpoint, split):
    """Pixel losses and regions of each image, computed in another way: image
    by image in the model's own words, and with scipy."""
    cfg = Config.fromfile(str(config))
    model = MODELS.build(cfg.model).eval()
    weights = torch.load(str(checkpoint), weights_only=False)['state_dict']
    model.load_state_dict(weights)
    part = cfg[f'{split}_dataloader'].dataset
    tested = DATASETS.build(
        dict(part, pipeline=cfg.val_dataloader.dataset.pipeline))
    for number in range(len(tested)):
        with torch.no_grad():
            sample, = model.test_step(pseudo_collate([tested[number]]))
        mask = cv2.imread(sample.seg_map_path, cv2.IMREAD_UNCHANGED)
        labels = torch.from_numpy(mask.astype(np.int64) - 1)
        logits = sample.seg_logits.data.double()
        known = (labels >= 0) & (labels < len(logits))
        logs = logits.log_softmax(0)
        of_label = logs.gather(0, labels.clamp(0)[None])[0]
        losses = np.sort(-of_label[known].numpy())[::-1]
        gaps = (logs.amax(0).exp() - of_label.exp()).masked_fill(~known, 0)
        square = np.ones((3, 3))
        regions, count = ndimage.label(
            ndimage.binary_dilation(
                ndimage.binary_erosion(gaps > 0.3, square, border_value=1),
                square))
        sums = ndimage.sum_labels(gaps.numpy(), regions, range(1, count + 1))
        yield (losses[:-(-len(losses) // 20)].mean(),
               max(sums, default=0) / int(known.sum()))


@pytest.mark.parametrize('split', ['train', 'val'])
def test_rankings_of_a_baseline(rank, trained, split):
    """Page, table, and the same numbers as by another way."""
    rank('--data', split, '--images', 2)
    table = table_of(split)
    losses, regions = zip(*compared(*trained[1:], split))
    np.testing.assert_allclose(table.pixels, losses, 1e-5)
    np.testing.assert_allclose(table.regions, regions, 1e-5, 1e-7)
    assert len({*regions}) == len(regions)
    text = Path(f'out/rank_{split}.html').read_text()
    first = table.pixels.idxmax()
    assert f'Images of <code>{split}_dataloader</code>' in text
    assert re.findall('image of image (\\d+)', text)[0] == str(first)
    assert split == 'val' or first != table.regions.idxmax()
    # The other split is not what a training reads.
    assert ('--without review.csv' in text) == (split == 'train')
    assert 'average score' not in text


def test_the_ranking_is_chosen(rank):
    rank('--rank-by', 'regions', '--images', 1)
    first = table_of('train').regions.idxmax()
    text = Path('out/rank_train.html').read_text()
    assert re.findall('image of image (\\d+)', text)[0] == str(first)
    with pytest.raises(
            SystemExit,
            match='no ranking by margin here: give '
            '--rank-by regions or pixels'):
        rank('--rank-by', 'margin')


def test_a_ranking_of_another_task_is_refused_at_once(rank, monkeypatch):
    predict, batches = Predictor.predict, []

    def count(self, inputs):
        batches.append(len(inputs))
        return predict(self, inputs)

    monkeypatch.setattr(Predictor, 'predict', count)
    rank()
    every, batches[:] = len(batches), []
    for other in ('margin', 'missing'):
        with pytest.raises(SystemExit, match=f'no ranking by {other} here'):
            rank('--rank-by', other)
    assert len(batches) == 2 and every > 2


def test_scores_of_a_training_are_columns(run, trained, tmp_path):
    work_dir = tmp_path / 'scored'
    Runner.from_cfg(files_config(trained[0].parent / 'data', work_dir)).train()
    run('rank', next(work_dir.glob('*.py')), work_dir / 'iter_40.pth')
    table = pd.read_csv(work_dir / 'rank_train_images.csv')
    assert table[['score', 'last_score', 'regions',
                  'pixels']].notna().all(axis=None)


def test_stopped(rank, monkeypatch, capsys):
    """What was predicted until then is ranked."""
    predict, calls = Predictor.predict, []

    def stops(predictor, inputs):
        calls.append(inputs)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return predict(predictor, inputs)

    monkeypatch.setattr(Predictor, 'predict', stops)
    rank()
    assert table_of(
        'train').regions.notna().tolist() == [True] * 3 + [False] * 5
    said = 'Stopped after 3 of 8 images: others have no rank.'
    printed = capsys.readouterr().err
    assert said in printed
    # A line for each image of three, where there is no terminal.
    assert re.findall(r'(\d+) %', printed) == ['12', '25', '37']
    assert said in Path('out/rank_train.html').read_text()


def test_images_without_a_loss(rank, monkeypatch, capsys):
    """They have no rank, and it is said why."""
    read = DatasetImages.read

    def fails_once(images, number):
        if number == 3:
            raise CannotShow('it is broken')
        return read(images, number)

    monkeypatch.setattr(DatasetImages, 'read', fails_once)
    rank()
    said = "1 of 8 images aren't ranked: it is broken."
    assert said in capsys.readouterr().err
    assert said in html.unescape(Path('out/rank_train.html').read_text())
    table = table_of('train')
    assert np.flatnonzero(table.pixels.isna()).tolist() == [3]


def test_review_goes_on(rank, trained):
    """Images that were judged aren't shown again."""
    rank('--images', 1)
    first = table_of('train').sort_values('pixels').path.iloc[-1]
    Path('review.csv').write_text(f'image,verdict,rank\n{first},hard,1\n')
    rank('--images', 1, '--review', 'review.csv')
    shown = re.findall("data-row='\\[\"(.*?)\"",
                       Path('out/rank_train.html').read_text())
    assert shown and first not in shown


@pytest.mark.parametrize('name', ['rank_train.html', 'rank_train_images.csv'])
def test_a_review_is_not_written_over(rank, name):
    Path('out').mkdir()
    review = Path('out', name)
    review.write_text('image,verdict,rank\n1.jpg,wrong,1\n')
    before = review.read_text()
    with pytest.raises(SystemExit, match=f'Error: {review} is a review'):
        rank('--review', review)
    assert review.read_text() == before


def test_a_config_with_a_base_of_a_library(run, trained):
    """Which MMEngine alone finds on one of the stacks."""
    base = 'mmseg::fcn/fcn_r50-d8_4xb2-40k_cityscapes-512x1024.py'
    Path('mine.py').write_text(f'_base_ = {base!r}\n')
    Path('review.csv').write_text('image,verdict,rank\n1.jpg,wrong,1\n')
    for command in (['rank', 'mine.py', trained[2]],
                    ['review', 'review.csv', '--export', 'out', '--config',
                     'mine.py']):  # yapf: disable
        with pytest.raises(SystemExit, match='cityscapes'):
            run(*command)


def test_labels_that_are_no_class(rank, trained):
    """The file and its labels are named, whatever else could be ranked."""
    shutil.copytree(trained[0].parent / 'data', 'data')
    path = sorted(Path('data/annotations/training').iterdir())[5]
    mask = cv2.imread(str(path), -1)
    mask[:2, :2] = 60
    cv2.imwrite(str(path), mask)
    with pytest.raises(
            SystemExit,
            match=f'{path.name} has the labels 59, and .* classes 0 to 4'):
        rank('--cfg-options', 'train_dataloader.dataset.data_root=data')


def test_classes_that_are_never_predicted(run, trained, capsys):
    """They are named with how many images have them, if any has."""
    shutil.copytree(trained[0].parent / 'data', 'data')
    for number in range(8):
        path = f'data/annotations/training/{number}.png'
        mask = cv2.imread(path, -1)
        # No image has discs, and two have no squares.
        mask[np.isin(mask, [3, 4] if number < 2 else [3])] = 0
        assert {2, 5} <= {*mask.flat} and (4 in mask) == (number > 1)
        cv2.imwrite(path, mask)
    checkpoint = torch.load(str(trained[2]), weights_only=False)
    checkpoint['state_dict']['decode_head.conv_seg.bias'][0] = 1e4
    torch.save(checkpoint, 'sky.pth')
    run('rank', trained[1], 'sky.pth', '--out', 'out', '--cfg-options',
        'train_dataloader.dataset.data_root=data')
    said = ('The network predicts these labelled classes in no image: ground '
            '(8 images), triangle (8 images), square (6 images). ')
    assert said in capsys.readouterr().err
    assert said in html.unescape(Path('out/rank_train.html').read_text())


@pytest.mark.parametrize('change, match', [
    ('model.decode_head.in_channels=7', 'checkpoint can.t be used with '),
    ('model.decode_head.num_convs=2', 'the checkpoint lacks `decode'),
    ('train_dataloader.dataset.data_root=nowhere', 'can.t be ranked: '),
])
def test_what_does_not_fit(rank, run, trained, change, match):
    config, checkpoint = trained[1:]
    with pytest.raises(SystemExit, match=match):
        rank('--cfg-options', change)
    assert not list(Path('out').iterdir())
    with pytest.raises(SystemExit, match='There is no checkpoint nowhere.pth'):
        run('rank', config, 'nowhere.pth')
    Path('text.pth').write_text('text')
    with pytest.raises(SystemExit, match='text.pth is damaged, or holds more'):
        run('rank', config, 'text.pth')


def test_data_without_labels(rank, trained, tmp_path):
    data = tmp_path / 'data'
    shutil.copytree(trained[0].parent / 'data', data)
    shutil.rmtree(data / 'annotations')
    with pytest.raises(SystemExit, match='can.t be ranked: .*annotations'):
        rank('--cfg-options', f'train_dataloader.dataset.data_root={data}')
