# Copyright (c) mmib contributors. All rights reserved.
"""The benchmark of label errors, on a few drawn images."""
import functools
import json
from types import SimpleNamespace

import mmcv
import numpy as np
import pandas as pd
import pytest
import torch
from mmengine.runner import Runner

from benchmarks import corrupt_masks, label_errors, label_errors_picture
from benchmarks.pruned_training import means_of_images
from mmib.scores import ScoreTable
from tests.visits import make_visits

from ..system.small_training import write_images
from .utils import CAMVID, rows_of

ALL = {'classes', 'shifted', 'exchanged'}
SMALL = [
    'model.backbone.base_channels=8', 'model.backbone.stem_channels=8',
    'model.decode_head.in_channels=[8,16,32,64]',
    'model.decode_head.channels=8', 'model.auxiliary_head.in_channels=32',
    'model.auxiliary_head.channels=8', 'train_dataloader.batch_size=4',
    'param_scheduler=[]', 'train_cfg.max_iters=40'
]


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def halves(left, right, size=20):
    """A mask of two classes."""
    mask = np.full((size, size), left, np.uint8)
    mask[:, size // 2:] = right
    return mask


def test_swapped_classes(rng):
    mask = halves(1, 2)
    mask[0] = 0  # Stays ignored.
    mask[1, 0] = 3  # Too small.
    seen = set()
    for _ in range(50):
        new = corrupt_masks.swap_classes(mask, [1, 2, 3, 4], rng)
        assert (new[0] == 0).all()
        assert new[1, 0] == 3
        seen.add((new[5, 0], new[5, -1]))
    assert seen == {(2, 1), (2, 2), (3, 2), (4, 2), (1, 1), (1, 3), (1, 4)}


def test_a_mask_of_one_class_stays_if_there_is_no_other(rng):
    mask = np.ones((4, 4), np.uint8)
    assert corrupt_masks.swap_classes(mask, [1], rng) is mask
    assert corrupt_masks.swap_classes(0 * mask, [1, 2], rng).max() == 0
    assert corrupt_masks.swap_classes(mask, [1, 2], rng).min() in (1, 2)


def test_shifted_masks(rng):
    mask = 1 + np.arange(400).reshape(20, 20)
    rolled = [(axis, sign * distance) for axis in (0, 1) for sign in (-1, 1)
              for distance in (3, 4, 5)]
    seen = set()
    for _ in range(200):
        new = corrupt_masks.shift(mask, rng)
        kept = new > 0
        found = [
            how for how in rolled
            if (np.roll(mask, how[1], how[0]) == new)[kept].all()
        ]
        axis, distance = found[0]
        wraps = bool(kept.all())
        seen.add((axis, distance > 0, wraps))
        if not wraps:
            # What came in is ignored.
            lines = (new == 0).all(1 - axis)
            assert (~kept).sum() == 20 * abs(distance)
            end = lines[:distance] if distance > 0 else lines[distance:]
            assert end.all()
    assert len(seen) == 8


def test_relabelled_objects(rng):
    mask = np.ones((20, 20), np.uint8)
    mask[:4, :4] = mask[8:12, 8:12] = 2
    mask[15:18, 15:18] = 0
    mask[0, 19] = 3  # Too small.
    seen = set()
    for _ in range(60):
        new = corrupt_masks.relabel_object(mask, [1, 2, 3], rng)
        (rows, columns), where = np.where(new != mask), new != mask
        assert where.sum() == 16
        seen.add((rows[0], columns[0], new[where][0]))
        assert len(set(new[where])) == 1
    assert seen == {(0, 0, 1), (0, 0, 3), (8, 8, 1), (8, 8, 3)}
    assert corrupt_masks.relabel_object(0 * mask, [1, 2], rng).max() == 0


def test_masks_without_an_object_are_passed_over(rng):
    masks = [np.ones((20, 20), np.uint8) for _ in range(20)]
    for mask in masks[:6]:
        mask[:4, :4] = 2
    errors = corrupt_masks.corrupt(masks, 0.2, rng, ['object'])
    assert len(errors) == 4 and max(errors) < 6
    with pytest.raises(ValueError, match='2 masks are missing'):
        corrupt_masks.corrupt(masks, 0.4, rng, ['object'])


def test_changed_share_is_of_labelled_pixels():
    true = np.array([1, 1, 2, 2, 0, 3])
    mask = np.array([1, 2, 2, 0, 1, 1])
    assert corrupt_masks.changed(true, mask) == 2 / 5
    assert corrupt_masks.changed(true, 0 * mask) == 0


def test_errors_are_of_three_kinds_in_equal_parts(rng):
    masks = [np.full((10, 10), 2 + i) for i in range(40)]
    for mask in masks:
        mask[:, :5] = 1
    before = [mask.copy() for mask in masks]
    errors = corrupt_masks.corrupt(masks, 0.3, rng)
    kinds = [error.kind for error in errors.values()]
    assert {kind: kinds.count(kind) for kind in kinds} == dict.fromkeys(ALL, 4)
    for image, error in errors.items():
        share = corrupt_masks.changed(masks[image], error.mask)
        assert error.changed == share >= corrupt_masks.MIN_CHANGED[error.kind]
        if error.kind == 'exchanged':
            # Two have each other's mask.
            partner, = [
                i for i, other in errors.items()
                if i != image and other.kind == 'exchanged' and (
                    error.mask == masks[i]).all() and (
                        other.mask == masks[image]).all()
            ]
    np.testing.assert_array_equal(masks, before)


@pytest.mark.parametrize('num, share, said', [
    (10, 0.05, '0.05 of 10 images are 0 label errors'),
    (10, 1.2, '1.2 of 10 images are 12 label errors'),
    (12, 0.5, '2 masks are missing in which .* too uniform, or too alike'),
])
def test_what_cannot_be_corrupted(rng, num, share, said):
    with pytest.raises(ValueError, match=said):
        corrupt_masks.corrupt([np.ones((4, 4))] * num, share, rng)


def test_visits_are_ranked():
    """Two images; the first one is last visited in the first third."""
    visits = pd.DataFrame(
        dict(
            iter=[0, 1, 2, 3, 6, 7, 8],
            image=[0, 1, 0, 1, 1, 1, 1],
            loss=[8., 5., 4., 3., 2., 1., np.nan],
            norm=[1., 1., 3., 2., 3., 5., np.nan],
            labelled=[8., 5., 4., 3., 2., 1., 6.],
            balanced=[8., 5., 4., 3., 2., 1., 9.],
            highest=[8., 5., 4., 3., 2., 1., 0.]))
    shares = np.eye(2)
    found = label_errors.rank_visits(visits, 2, 9, shares)
    want = {
        'last score': [4, 1],
        'mean score, last third': [4, 1.5],
        "score='gradient'": [3, 5],
        "score='gradient', mean, last third": [3, 4],
        'loss of labelled pixels, last third': [4, 1.5],
        'the same, and annealing': [4, 3],
        'the same, each class alike': [4, 4],
        'the same, highest 5% of the pixels': [4, 1],
        # Over the mean of the other one.
        'mean score, over that of similar masks': [4 / 1.5, .375]
    }
    for name, values in want.items():
        np.testing.assert_allclose(found[name], values, err_msg=name)
    # As mmib has it.
    table = ScoreTable(np.arange(2), torch.device('cpu'), label_errors.EMA)
    for _, visit in visits.dropna().iterrows():
        table.record(
            make_visits([int(visit['image'])], [visit['loss']],
                        int(visit['iter'])))
    np.testing.assert_allclose(found['ema=0.8'], table.numpy(), rtol=1e-6)


def by_hand():
    """Logits of two classes, labels, and the loss of each pixel."""
    logits = torch.zeros(2, 2, 3)
    logits[1] = torch.tensor([[0, 1, 2], [3, 4, 5.]])
    labels = torch.tensor([[0, 0, 0], [1, 255, 0]])
    losses = logits.logsumexp(0) - torch.where(labels == 0, 0, logits[1])
    return logits, labels, losses.numpy()


def test_measures_of_an_image():
    logits, labels, losses = by_hand()
    of_class_0 = [*losses[0], losses[1, 2]]
    found = label_errors.measure(logits, labels)
    found.pop('cleanlab, softmin', None)
    want = {
        'mean pixel loss': np.mean([*of_class_0, losses[1, 0]]),
        'mean pixel loss, each class alike': (np.mean(of_class_0) +
                                              losses[1, 0]) / 2,
        'share of pixels predicted otherwise': 3 / 5,
        **{
            f'mean of the highest {share} of the pixel losses': losses[1, 2]
            for share in ('1%', '5%', '20%')
        }
    }
    assert found == pytest.approx(want)
    nothing = label_errors.measure(logits, torch.full((2, 3), 255))
    assert nothing['mean pixel loss'] == 0


def test_what_is_ignored_does_not_count_for_cleanlab(monkeypatch):
    """It is handed the other pixels alone."""
    logits, labels, losses = by_hand()

    def quality(labels, pred_probs, **kwargs):
        assert labels.tolist() == [[[0, 0, 0, 1, 0]]]
        assert pred_probs.shape == (1, 2, 1, 5)
        own = np.take_along_axis(pred_probs, labels[:, None], 1)
        np.testing.assert_allclose(
            own[0, 0, 0],
            np.exp(-losses.flatten()[[0, 1, 2, 3, 5]]),
            rtol=1e-6)
        return np.array([0.25]), None

    monkeypatch.setattr(label_errors, 'get_label_quality_scores', quality)
    assert label_errors.measure(logits, labels)['cleanlab, softmin'] == 0.75


def test_cleanlab():
    pytest.importorskip('cleanlab')
    logits, labels, losses = by_hand()
    own = np.exp(-losses.flatten()[[0, 1, 2, 3, 5]]).astype(float)
    weights = np.exp((1 - own) / 0.1)
    quality = (own * weights).sum() / weights.sum()
    found = label_errors.measure(logits, labels)['cleanlab, softmin']
    assert found == pytest.approx(1 - quality, rel=1e-5)


def test_means_of_images():
    losses = torch.tensor([[[1., 2, 3, 0]], [[0., 0, 0, 0]]])
    labels = torch.tensor([[[0, 0, 1, 255]], [[255, 255, 255, 255]]])
    mean, balanced = means_of_images(losses, labels, 3)
    assert mean.tolist() == [2, 0] and balanced.tolist() == [2.25, 0]


def test_ranks():
    found = label_errors.ranks(np.array([1., 2, 3, np.nan, 0, 2]))
    assert found.tolist() == [3, 1, 0, 5, 4, 2]


def test_a_ranking_is_judged():
    found = label_errors.judge([5, 3, 0, 9], ['a', 'b', 'a', 'b'])
    assert found == pytest.approx({
        'first k': 2 / 4,
        'first 2k': 3 / 4,
        'average precision': (1 + 2 / 4 + 3 / 6 + 4 / 10) / 4,
        'a, first 2k': 1,
        'b, first 2k': 0.5
    })


def test_chance():
    found = label_errors.by_chance(100, ['a'] * 6 + ['b'] * 4)
    assert found['first k'] == pytest.approx(0.1, abs=0.01)
    assert found['first 2k'] == pytest.approx(0.2, abs=0.01)
    assert found['b, first 2k'] == pytest.approx(0.2, abs=0.02)
    assert found['average precision'] > 0.1


def test_table_has_means_and_ranges():
    errors = {name: dict(kind='a') for name in ('one', 'two')}
    lines = [
        dict(
            num_images=8,
            errors=errors,
            ranks=dict(
                training=dict(x=[1, 0], y=[0, other]), network=dict(x=[6, 7])))
        for other in (1, 7)
    ]
    rows = rows_of(label_errors.table(lines))
    assert [row[:3] for row in rows[1:]] == [
        ['training', 'x', '1.00 (1.00 to 1.00)'],
        ['training', 'y', '0.75 (0.50 to 1.00)'],
        ['network', 'x', '0.00 (0.00 to 0.00)'],
    ]
    assert rows[0][1] == 'at random' and rows[2][-1] == '0.75'


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp('label_errors')
    write_images(folder / 'data', 16, 'test', 'png')
    return folder


def run_script(folder, monkeypatch, *options):
    monkeypatch.chdir(folder)
    command = f'label_errors.py {CAMVID} data --out results.jsonl --seeds 1'
    monkeypatch.setattr('sys.argv', [
        *command.split(), '--share', '0.4', *options, '--cfg-options', *SMALL
    ])
    label_errors.main()


@pytest.fixture(scope='module')
def line(folder):
    """What one seed of the benchmark writes."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        run_script(folder, monkeypatch)
    line, = label_errors.read_results(folder / 'results.jsonl')
    return line


def test_results(folder, line):
    assert line['seed'] == 0 and line['num_images'] == 16
    assert line['iters'] == 24 and 0 <= line['mIoU'] <= 100
    kinds = [error['kind'] for error in line['errors'].values()]
    assert {kind: kinds.count(kind) for kind in kinds} == dict.fromkeys(ALL, 2)
    for of_source in line['ranks'].values():
        for ranks in of_source.values():
            assert len(set(ranks)) == 6
            assert 0 <= min(ranks) and max(ranks) < 16


def test_masks_of_the_list_are_wrong_and_no_other(folder, line):
    data = folder / 'work_dirs/label_errors/seed-0/data'
    errors = json.loads((data / corrupt_masks.LIST).read_text())
    assert errors == line['errors'] and len(errors) == 6
    for i in range(16):
        true, mask = (
            mmcv.imread(
                str(root / 'annotations/training' / f'{i}.png'), 'unchanged')
            for root in (folder / 'data', data))
        share = corrupt_masks.changed(true, mask)
        assert share == pytest.approx(
            errors[str(i)]['changed'] if str(i) in errors else 0, abs=1e-4)
        assert (data / f'images/training/{i}.png').exists()


def test_scores_are_those_of_mmib(folder, line):
    """A training's own score table is the first ranking."""
    seed = folder / 'work_dirs/label_errors/seed-0'
    checkpoint = torch.load(seed / 'iter_24.pth', 'cpu', weights_only=False)
    scores = checkpoint['infobatch']['scores']['scores'].numpy()
    # The order of the data set is that of the paths.
    names = [
        path.stem for path in sorted((seed / 'data/images').rglob('*.png'))
    ]
    ranks = label_errors.ranks(scores)[[
        names.index(e) for e in line['errors']
    ]]
    assert ranks.tolist() == line['ranks']['training']['last score']
    visits = pd.read_csv(seed / label_errors.VISITS)
    # In annealing nothing is scored.
    assert visits['loss'].notna().sum() == 20 * 4 < len(visits) == 24 * 4
    means = visits[['labelled', 'balanced', 'highest']]
    assert means.notna().all(axis=None)
    assert (means['highest'] > means['labelled']).all()
    # Noise: all pixels are alike.
    assert visits['labelled'].corr(visits['balanced']) > 0.9


def test_what_is_finished_is_not_done_again(folder, line, monkeypatch, capsys):

    def refuse(runner):
        raise AssertionError('It trains.')

    monkeypatch.setattr(Runner, 'train', refuse)
    text = (folder / 'results.jsonl').read_text()
    run_script(folder, monkeypatch)
    assert (folder / 'results.jsonl').read_text() == text
    rows = rows_of(capsys.readouterr().out)
    assert rows[1][:2] == ['training', 'last score']
    # Without its line, a training is ranked anew.
    run_script(folder, monkeypatch, '--out', 'anew.jsonl')
    assert (folder / 'anew.jsonl').read_text() == text
    # Of another config or share it is trained.
    runner = SimpleNamespace(
        work_dir=folder / 'work_dirs/label_errors/seed-0',
        register_hook=lambda hook: None)
    runner.train = functools.partial(refuse, runner)
    with pytest.raises(AssertionError, match='It trains'):
        label_errors.train(runner, dict(share=0.8))
    with pytest.raises(SystemExit):
        run_script(folder, monkeypatch, '--seeds', '2', '--share', '0.8')
    assert 'give another --out' in capsys.readouterr().err


def test_what_is_refused(folder, monkeypatch, capsys):
    for options, said in ((['--share', '2'], 'at most all images'),
                          (['--kinds', 'hole'], 'invalid choice'),
                          (['--out', 'data'], 'Is a directory')):
        with pytest.raises(SystemExit):
            run_script(folder, monkeypatch, '--out', 'none.jsonl', *options)
        assert said in capsys.readouterr().err


def test_picture(tmp_path, rng):
    """The highest scores come first, and wrong masks are framed in red."""
    names = [
        f'{kind}_{i:04d}'
        for i, kind in enumerate(['easy', 'mislabelled', 'hard'] * 7)
    ]
    for name in names:
        mmcv.imwrite(
            rng.integers(256, size=(9, 9, 3), dtype=np.uint8),
            str(tmp_path / 'images' / f'{name}.jpg'))
        mmcv.imwrite(
            np.ones((9, 9), np.uint8),
            str(tmp_path / 'annotations' / f'{name}.png'))
    scores = np.arange(21)[::-1] / 10
    figure = label_errors_picture.draw(
        [str(tmp_path / 'images' / f'{name}.jpg') for name in names], scores,
        {names[0]: dict(kind='shifted')}, [(0, 0, 255)])
    titles = [axis.get_title() for axis in figure.axes if axis.get_title()]
    assert titles[:4] == [
        '1. mask shifted', '2. shapes mislabelled', '3. right, hard',
        '4. right, easy'
    ]
    assert len(titles) == label_errors_picture.NUM_DRAWN
    mask = figure.axes[label_errors_picture.NUM_COLUMNS].images[0]
    assert mask.get_array()[0, 0].tolist() == [0, 0, 255]
