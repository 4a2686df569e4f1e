# Copyright (c) mmib contributors. All rights reserved.
import functools
import os

import pytest
import torch
import torch.nn.functional as F
from diffusers import AutoencoderKL
from PIL import Image

from examples.diffusion import autoencoder, sample, train
from tests.helpers.audit import assert_same
from tests.helpers.processes import environment_of, free_port, run_ranks
from tests.helpers.runs import state_of

pytestmark = pytest.mark.filterwarnings('ignore')


@pytest.fixture(scope='module')
def trained(pictures, tmp_path_factory):
    folder = str(tmp_path_factory.mktemp('autoencoder'))
    autoencoder.main(
        autoencoder.parse_args([pictures, folder, '--epochs', '3']))
    return folder


def run(pictures, trained, folder, *options):
    args = [pictures, trained, str(folder), '--epochs', '6', '--batch-size']
    return train.main(
        train.parse_args([*args, '8', '--save-steps', '10', *options]))


def weights_of(folder):
    from diffusers import UNet2DModel
    unet = UNet2DModel.from_pretrained(folder)
    return torch.cat([p.detach().flatten() for p in unet.parameters()])


def test_latents_have_a_deviation_of_1(pictures, trained):
    model = AutoencoderKL.from_pretrained(trained).eval()
    images = autoencoder.pixels(f'{pictures}/train', None)
    latents = autoencoder.encode(model, images)
    assert images.min() >= -1 and images.max() <= 1
    assert latents.shape == (64, 4, 4, 4)
    assert latents.std().item() == pytest.approx(1, rel=1e-4)


def test_losses_by_hand():
    latents = torch.randn(3, 4, 4, 4)
    seen = []

    class Network:

        def __call__(self, noisy, timesteps):
            seen.append((noisy, timesteps))
            return self

        sample = torch.zeros(3, 4, 4, 4)

    predicted, losses = train.losses_of(Network(), latents, 7)
    again = train.losses_of(Network(), latents, 7)[1]
    other = train.losses_of(Network(), latents, 8)[1]
    noisy, timesteps = seen[0]
    kept = train.NOISE.alphas_cumprod[timesteps].view(-1, 1, 1, 1)
    noise = (noisy - kept.sqrt() * latents) / (1 - kept).sqrt()
    assert predicted is Network.sample and torch.equal(losses, again)
    assert not torch.equal(losses, other)
    torch.testing.assert_close(
        losses,
        torch.stack([F.mse_loss(x, 0 * x) for x in noise]),
        rtol=1e-3,
        atol=0)


def test_stop_and_resume(pictures, trained, tmp_path, monkeypatch):
    """The resumed run has the same weights to the bit."""
    whole, loss = run(pictures, trained, tmp_path / 'whole')
    # 60 % of 6 passes over 64 images.
    assert whole.num_samples == 230 and whole.progress == 1

    class Stop(Exception):
        pass

    losses_of = train.losses_of

    def stop(unet, latents, seed):
        if seed == 14:
            raise Stop
        return losses_of(unet, latents, seed)

    with monkeypatch.context() as patch:
        patch.setattr(train, 'losses_of', stop)
        with pytest.raises(Stop):
            run(pictures, trained, tmp_path / 'part')
    resumed, resumed_loss = run(pictures, trained, tmp_path / 'part',
                                '--resume')
    assert resumed_loss == loss
    assert torch.equal(
        weights_of(tmp_path / 'part'), weights_of(tmp_path / 'whole'))
    assert_same(state_of(resumed), state_of(whole))


def train_rank(rank, results, port, pictures, trained, folder):
    os.environ['ACCELERATE_USE_CPU'] = 'true'  # As `accelerate launch --cpu`.
    with environment_of(rank, 2, port):
        session, loss = run(pictures, trained, folder)
        results[rank] = session.progress, loss


def test_two_ranks(pictures, trained, tmp_path):
    ranks = run_ranks(
        functools.partial(
            train_rank,
            port=free_port(),
            pictures=pictures,
            trained=trained,
            folder=str(tmp_path)), 2)
    assert ranks[0] == ranks[1] and ranks[0][0] == 1


def test_samples_become_a_picture(pictures, trained, tmp_path):
    run(pictures, trained, tmp_path, '--policy', 'plain')
    path = tmp_path / 'samples.png'
    sample.main(
        [trained,
         str(tmp_path),
         str(path), '--rows', '2', '--columns', '3'])
    assert Image.open(path).size == (3 * 16, 2 * 16)
