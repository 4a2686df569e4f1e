# Copyright (c) mmib contributors. All rights reserved.
"""What holds for all models that return losses of samples, as that a ratio of
0 is the baseline, is in ``tests/test_tasks/test_per_sample.py``."""
import copy
import functools
import os.path as osp
import sys
import uuid

import cv2
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import DATASETS, MODELS
from mmengine.runner import Runner

import mmib
from mmib.openmmlab import tasks
from mmib.openmmlab.batch import BatchContext
from tests.system.processes import run_ranks
from tests.system.small_training import (distribute, infobatch_hook,
                                         train_and_note, weights_of)

pytest.importorskip('diffusers')

CONFIG = osp.join(
    osp.dirname(__file__), '../../examples/diffusion/ddpm_cifar10.py')
SIZE, NUM_IMAGES, SAVED = 8, 23, 9
SMALL = dict(
    sample_size=SIZE,
    block_out_channels=(8, 8),
    down_block_types=('DownBlock2D', 'AttnDownBlock2D'),
    up_block_types=('AttnUpBlock2D', 'UpBlock2D'),
    attention_head_dim=4,
    norm_num_groups=4)


def config(folder, work_dir, **changes):
    """The config of the example, small: 30 iterations of 4 images."""
    cfg = Config.fromfile(CONFIG)
    cfg.merge_from_dict(
        dict(
            work_dir=str(work_dir),
            experiment_name=f'diffusion_{uuid.uuid4()}',
            log_level='WARNING',
            model=dict(unet=SMALL, num_bands=4),
            train_dataloader=dict(
                batch_size=4,
                dataset=dict(data_root=str(folder), size=SIZE, indices=None)),
            train_cfg=dict(max_iters=30)))
    cfg.merge_from_dict(changes)
    return cfg


@pytest.fixture(scope='module')
def images(tmp_path_factory):
    """A folder of drawn images of two classes, and some of another size."""
    folder, rng = tmp_path_factory.mktemp('images'), np.random.default_rng(0)
    for number in range(NUM_IMAGES):
        side = 12 if number == 5 else SIZE
        color = rng.integers(256, size=(1, 1, 3))
        noise = rng.integers(-9 * number, 9 * number + 1, size=(side, side, 3))
        path = folder / 'ab'[number % 2] / f'{number:02}.png'
        path.parent.mkdir(exist_ok=True)
        cv2.imwrite(str(path), np.clip(color + noise, 0, 255).astype(np.uint8))
    return folder


def note(runner, data_batch, outputs):
    """Loss and scores of a step."""
    scores = infobatch_hook(runner).batch.scores
    return outputs['loss'].item(), scores is not None and scores.tolist()


def test_the_first_images_are_of_all_classes(images, tmp_path):
    config(images, '')  # imports the data set
    dataset = DATASETS.build(
        dict(type='ImageFolder', data_root=str(images), size=SIZE, indices=6))
    paths = [dataset.get_data_info(i)['img_path'] for i in range(6)]
    assert [osp.basename(osp.dirname(path)) for path in paths] == [*'ababab']
    for i, path in enumerate(paths):
        image = dataset[i]['inputs']
        assert image.shape == (3, SIZE, SIZE)
        if i != 5:  # another size
            pixels = (image.permute(1, 2, 0) + 1) * 127.5
            np.testing.assert_allclose(
                pixels, cv2.imread(path)[..., ::-1], atol=1e-3)
    with pytest.raises(FileNotFoundError, match='data_root'):
        DATASETS.build(
            dict(type='ImageFolder', data_root=str(tmp_path), size=SIZE))


@pytest.fixture
def model(images):
    torch.manual_seed(0)
    return MODELS.build(config(images, '').model)


def test_losses_norms_and_scores_by_hand(model):
    expected, batch = copy.deepcopy(model), BatchContext()
    tasks.attach(model, batch)
    images = torch.rand(2, 3, SIZE, SIZE) * 2 - 1
    batch.begin(torch.tensor([1., 3.]))
    loss, _ = model.parse_losses(model(images, mode='loss'))
    loss.backward()

    timesteps, noise = expected.draw(images)
    kept = expected.schedule.alphas_cumprod[timesteps][:, None, None, None]
    noisy = kept.sqrt() * images + (1 - kept).sqrt() * noise
    predicted = expected.unet(noisy, timesteps).sample
    errors = ((predicted - noise)**2).mean((1, 2, 3))
    gradients, = torch.autograd.grad(errors.sum(), predicted)
    torch.testing.assert_close(
        batch.norms, gradients.flatten(1).norm(dim=1), rtol=1e-5, atol=0)
    torch.testing.assert_close(loss.detach(), (errors.detach() *
                                               torch.tensor([1., 3.])).mean())
    # The first image of a band has its mean, or half of it.
    bands = timesteps * 4 // 1000
    means = torch.stack([errors[bands == band].mean() for band in bands])
    torch.testing.assert_close(batch.scores, (errors / means).detach())


def test_the_score_doesnt_depend_on_the_timestep(model):
    """Losses that are a factor of the image times one of the timestep."""
    rng = np.random.default_rng(0)
    timesteps = torch.from_numpy(rng.integers(1000, size=(300, 32)))
    images = torch.from_numpy(rng.uniform(0.5, 1.5, size=(300, 32))).float()
    scale = torch.tensor([10., 1., 0.1, 0.01])[timesteps * 4 // 1000]
    scores = torch.stack([
        model.relative(*batch) for batch in zip(images * scale, timesteps)
    ])[50:]
    torch.testing.assert_close(scores, images[50:], rtol=0.2, atol=0)
    log_scale = scale[50:].log().flatten()
    correlation = torch.corrcoef(torch.stack([scores.flatten(), log_scale]))
    assert abs(correlation[0, 1]) < 0.05
    # A loss that isn't finite has no part in the means.
    before = model.band_losses.clone()
    score = model.relative(
        torch.tensor([torch.nan, 5.]), torch.tensor([0, 999]))
    assert not score[0].isfinite() and score[1].isfinite()
    torch.testing.assert_close(model.band_losses[:3], before[:3])
    assert model.band_losses[3] > before[3]


def test_the_raw_loss_is_a_choice(model):
    model.normalize_score = False
    assert [*model(torch.rand(2, 3, SIZE, SIZE), mode='loss')] == ['loss']


def train_rank(rank, results, images, work_dir):
    # As `mmib train --infobatch` makes it, with a checkpoint amid pruning.
    cfg = mmib.convert(config(images, work_dir))
    cfg.default_hooks.checkpoint.interval = SAVED
    results[rank] = []
    for _ in range(2):
        runner = Runner.from_cfg(cfg)
        distribute(runner)
        steps = train_and_note(runner, note)
        ratio = infobatch_hook(runner).run.worth.value
        results[rank].append((steps, weights_of(runner), ratio))
        cfg.update(
            resume=True, load_from=osp.join(work_dir, f'iter_{SAVED}.pth'))


def test_two_ranks_and_resume(images, tmp_path):
    ranks = run_ranks(
        functools.partial(
            train_rank, images=str(images), work_dir=str(tmp_path)), 2)
    (whole, weights, ratio), (others, _, _) = (rank[0] for rank in ranks)
    assert len(whole) == 18 and ratio > 0
    # Of other images, at other timesteps.
    assert not set(loss for loss, _ in whole) & set(loss for loss, _ in others)
    for steps, resumed in ranks:
        assert resumed[0] == steps[0][SAVED:]
        # Also the mean losses of the timesteps, which all ranks share.
        torch.testing.assert_close(steps[1], weights, rtol=0, atol=0)
        torch.testing.assert_close(resumed[1], weights, rtol=0, atol=0)


def test_samples_become_a_picture(images, model, tmp_path, monkeypatch):
    cfg, out = tmp_path / 'config.py', tmp_path / 'samples.png'
    config(images, tmp_path).dump(str(cfg))
    torch.save(dict(state_dict=model.state_dict()), tmp_path / 'model.pth')
    from examples.diffusion import sample
    monkeypatch.setattr(
        sys, 'argv',
        f'sample {cfg} {tmp_path}/model.pth {out} --rows 2 --columns 3 '
        '--steps 4 --seed 1'.split())
    sample.main()
    picture = cv2.imread(str(out))
    assert picture.shape == (2 * SIZE, 3 * SIZE, 3)
    made = model.eval().sample(6, num_steps=4, seed=1)
    last = ((made[-1].permute(1, 2, 0) + 1) * 127.5).round().byte()
    np.testing.assert_array_equal(picture[-SIZE:, -SIZE:, ::-1], last)
