# Copyright (c) mmib contributors. All rights reserved.
"""Draw images, and write them as one picture.

    python -m examples.diffusion.sample AUTOENCODER_DIR OUTPUT_DIR samples.png
"""
import argparse

import torch
from diffusers import AutoencoderKL, DDIMScheduler, UNet2DModel
from PIL import Image

from examples.diffusion.train import NOISE


@torch.no_grad()
def sample(autoencoder, unet, num_images, num_steps=50, seed=0):
    """Return images, uint8 of shape (N, H, W, 3)."""
    scheduler = DDIMScheduler.from_config(NOISE.config, clip_sample=False)
    scheduler.set_timesteps(num_steps)
    size = unet.config.sample_size
    latents = torch.randn(
        num_images,
        unet.config.in_channels,
        size,
        size,
        generator=torch.Generator().manual_seed(seed))
    for timestep in scheduler.timesteps:
        noise = unet(latents, timestep).sample
        latents = scheduler.step(noise, timestep, latents).prev_sample
    latents = latents / autoencoder.config.scaling_factor
    images = autoencoder.decode(latents).sample.clamp(-1, 1)
    return ((images + 1) * 127.5).round().byte().permute(0, 2, 3, 1)


def main(args=None):
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument('autoencoder_dir')
    parser.add_argument('output_dir', help='of train.py')
    parser.add_argument('picture')
    parser.add_argument('--rows', type=int, default=4)
    parser.add_argument('--columns', type=int, default=8)
    args = parser.parse_args(args)
    autoencoder = AutoencoderKL.from_pretrained(args.autoencoder_dir).eval()
    unet = UNet2DModel.from_pretrained(args.output_dir).eval()
    images = sample(autoencoder, unet, args.rows * args.columns)
    rows = images.unflatten(0, (args.rows, args.columns))
    picture = rows.transpose(1, 2).flatten(2, 3).flatten(0, 1)
    Image.fromarray(picture.numpy()).save(args.picture)


if __name__ == '__main__':
    main()
