# Copyright (c) mmib contributors. All rights reserved.
"""Draw images with a trained model, and write them as one picture:

    python -m examples.diffusion.sample CONFIG CHECKPOINT samples.jpg
"""
import argparse

import mmcv
from mmengine.config import Config
from mmengine.registry import MODELS
from mmengine.runner import load_checkpoint


def grid(images, columns):
    """Images in [-1, 1], of shape (B, 3, H, W), as the rows of one picture,
    uint8 of shape (rows * H, columns * W, 3)."""
    _, _, height, width = images.shape
    pixels = ((images + 1) * 127.5).round().byte()
    pixels = pixels.view(-1, columns, 3, height, width)
    pixels = pixels.permute(0, 3, 1, 4, 2).contiguous()
    return pixels.view(-1, columns * width, 3).cpu().numpy()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('config')
    parser.add_argument('checkpoint')
    parser.add_argument('out')
    parser.add_argument('--rows', type=int, default=4)
    parser.add_argument('--columns', type=int, default=8)
    parser.add_argument('--steps', type=int, default=20)
    parser.add_argument('--seed', type=int, default=0)
    args = parser.parse_args()
    # This imports the modules of the example too.
    cfg = Config.fromfile(args.config)
    model = MODELS.build(cfg.model).eval()
    load_checkpoint(model, args.checkpoint, map_location='cpu')
    images = model.sample(args.rows * args.columns, args.steps, args.seed)
    mmcv.imwrite(mmcv.rgb2bgr(grid(images, args.columns)), args.out)


if __name__ == '__main__':
    main()
