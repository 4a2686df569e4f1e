# Copyright (c) mmib contributors. All rights reserved.
"""Train a small autoencoder, whose latents train.py learns to draw.

    python -m examples.diffusion.autoencoder DATA_DIR OUTPUT_DIR

Run this in the root of the repository.
"""
import argparse

import torch
import torch.nn.functional as F
from diffusers import AutoencoderKL
from torch.utils.data import DataLoader

from examples.cifar10 import read


def pixels(folder, size):
    """Return images in [-1, 1], of shape (N, 3, H, W)."""
    return read(folder, size)[0] / 127.5 - 1


@torch.no_grad()
def encode(autoencoder, images):
    """Return the latents of images, of shape (N, 4, H / 4, W / 4)."""
    batches = [
        autoencoder.encode(batch).latent_dist.mode()
        for batch in images.split(500)
    ]
    return torch.cat(batches) * autoencoder.config.scaling_factor


def parse_args(args=None):
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument('data_dir')
    parser.add_argument('output_dir')
    parser.add_argument('--epochs', type=int, default=10)
    parser.add_argument('--size', type=int, default=5000, help='images')
    return parser.parse_args(args)


def main(args):
    torch.manual_seed(0)
    images = pixels(f'{args.data_dir}/train', args.size)
    autoencoder = AutoencoderKL(
        sample_size=images.shape[-1],
        down_block_types=['DownEncoderBlock2D'] * 3,
        up_block_types=['UpDecoderBlock2D'] * 3,
        block_out_channels=(16, 32, 32),
        norm_num_groups=8,
        mid_block_add_attention=False)
    optimizer = torch.optim.Adam(autoencoder.parameters(), lr=2e-3)
    loader = DataLoader(images, batch_size=64, shuffle=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3,
                                                   args.epochs * len(loader))
    for epoch in range(args.epochs):
        total = 0.
        for batch in loader:
            latents = autoencoder.encode(batch).latent_dist
            made = autoencoder.decode(latents.sample()).sample
            error = F.mse_loss(made, batch)
            optimizer.zero_grad()
            (error + 1e-6 * latents.kl().mean()).backward()
            optimizer.step()
            schedule.step()
            total += error.item() / len(loader)
        print(f'epoch {epoch + 1}: mean squared error {total:.4f}', flush=True)
    # Diffusion takes latents with a deviation of 1.
    autoencoder.register_to_config(scaling_factor=1.)
    deviation = encode(autoencoder.eval(), images).std().item()
    autoencoder.register_to_config(scaling_factor=1 / deviation)
    autoencoder.save_pretrained(args.output_dir)


if __name__ == '__main__':
    main(parse_args())
