# Copyright (c) mmib contributors. All rights reserved.
"""Train latent diffusion in accelerate and diffusers with InfoBatch.

    python -m examples.diffusion.train DATA_DIR AUTOENCODER_DIR OUTPUT_DIR

Run this in the root of the repository, after autoencoder.py; with several
processes by `accelerate launch -m`. With --resume the training goes on from
the checkpoint of OUTPUT_DIR, and --policy names the controls.
"""
import argparse

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from diffusers import AutoencoderKL, DDPMScheduler, UNet2DModel
from diffusers.optimization import get_cosine_schedule_with_warmup
from diffusers.training_utils import EMAModel
from torch.utils.data import TensorDataset

import mmib
from examples.diffusion.autoencoder import encode, pixels
from mmib.pruning import Neyman, RandomPruning, ScoreOnly

POLICIES = dict(infobatch=Neyman(), random=RandomPruning(), plain=ScoreOnly())
NOISE = DDPMScheduler(beta_schedule='squaredcos_cap_v2')


def losses_of(unet, latents, seed):
    """Return the predicted noise of latents and their losses, of shape (B,).
    Timesteps and noise follow from the seed, so that a resumed run draws the
    same."""
    rng = torch.Generator().manual_seed(seed)
    timesteps = torch.randint(
        NOISE.config.num_train_timesteps, (len(latents), ), generator=rng)
    noise = torch.randn(latents.shape, generator=rng).to(latents.device)
    timesteps = timesteps.to(latents.device)
    predicted = unet(NOISE.add_noise(latents, noise, timesteps),
                     timesteps).sample
    losses = F.mse_loss(predicted, noise, reduction='none').mean((1, 2, 3))
    return predicted, losses


def parse_args(args=None):
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument('data_dir')
    parser.add_argument('autoencoder_dir')
    parser.add_argument('output_dir')
    parser.add_argument('--policy', choices=POLICIES, default='infobatch')
    parser.add_argument('--epochs', type=int, default=40)
    parser.add_argument('--size', type=int, default=5000, help='images')
    parser.add_argument('--batch-size', type=int, default=64)
    parser.add_argument('--save-steps', type=int, default=500)
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--resume', action='store_true')
    return parser.parse_args(args)


def main(args):
    accelerator = Accelerator()
    autoencoder = AutoencoderKL.from_pretrained(args.autoencoder_dir).eval()
    latents, held_out = (
        encode(autoencoder, pixels(f'{args.data_dir}/{split}', args.size))
        for split in ('train', 'test'))
    torch.manual_seed(args.seed)
    unet = UNet2DModel(
        sample_size=latents.shape[-1],
        in_channels=4,
        out_channels=4,
        layers_per_block=1,
        block_out_channels=(32, 64),
        down_block_types=('DownBlock2D', 'AttnDownBlock2D'),
        up_block_types=('AttnUpBlock2D', 'UpBlock2D'),
        norm_num_groups=8)
    optimizer = torch.optim.AdamW(unet.parameters(), lr=2e-3)
    unet, optimizer = accelerator.prepare(unet, optimizer)
    averaged = EMAModel(unet.parameters(), decay=0.995)
    session = mmib.Session(
        TensorDataset(latents),
        POLICIES[args.policy],
        epochs=args.epochs,
        stream=True,
        normalize=True,
        seed=args.seed)
    loader = session.loader(args.batch_size, device=accelerator.device)
    ranks, rank = accelerator.num_processes, accelerator.process_index
    num_steps = session.num_steps(args.batch_size)
    # A prepared schedule would take a step for each process.
    schedule = get_cosine_schedule_with_warmup(optimizer, 100, num_steps)
    accelerator.register_for_checkpointing(session, schedule, averaged)
    if args.resume:
        accelerator.load_state(f'{args.output_dir}/checkpoint')
    averaged.to(accelerator.device)
    for slots, (batch, ) in loader:
        step = schedule.last_epoch
        predicted, losses = losses_of(unet, batch, step * ranks + rank)
        optimizer.zero_grad()
        accelerator.backward(session.weigh(losses, slots, predicted).mean())
        optimizer.step()
        schedule.step()
        averaged.step(unet.parameters())
        if step % args.save_steps == args.save_steps - 1:
            accelerator.save_state(f'{args.output_dir}/checkpoint')
    averaged.copy_to(unet.parameters())
    with torch.no_grad():
        losses = [
            losses_of(unet, batch.to(accelerator.device), number)[1]
            for number, batch in enumerate(held_out.split(500))
        ]
    loss = torch.cat(losses).mean().item()
    accelerator.print(
        dict(steps=schedule.last_epoch, loss=loss, v=session.worth.value))
    if accelerator.is_main_process:
        accelerator.unwrap_model(unet).save_pretrained(args.output_dir)
    return session, loss


if __name__ == '__main__':
    main(parse_args())
