# Copyright (c) mmib contributors. All rights reserved.
"""Time a training step of UperNet R-50 on ADE20K against the baseline, in
float32 and in float16, with its memory, on synthetic images.

Without a GPU the steps run on the CPU, in float32 alone, which says whether
the script works.
"""
import argparse
import json

import mmengine
import torch
from mmengine.config import Config
from mmengine.structures import PixelData
from mmseg.datasets import ADE20KDataset
from mmseg.registry import DATASETS
from mmseg.structures import SegDataSample

import mmib
from mmib.config.zoo import resolve_config

from .step import figures, take_turns, without_infobatch

CONFIG = 'mmseg::upernet/upernet_r50_4xb4-80k_ade20k-512x512'


@DATASETS.register_module()
class SyntheticADE20K(ADE20KDataset):
    """Noise in memory, with everything else of the real data set."""

    # Samples are shared by the images: memory stays small.
    NUM_SAMPLES = 16

    def __init__(self, num_images, size, **kwargs):
        self.num_images = num_images
        rng = torch.Generator().manual_seed(0)
        shape = self.NUM_SAMPLES, 1, size, size
        self.images = torch.randint(
            256, (self.NUM_SAMPLES, 3, size, size),
            dtype=torch.uint8,
            generator=rng)
        self.labels = torch.randint(150, shape, generator=rng)
        self.labels[torch.rand(shape, generator=rng) < 0.1] = 255
        super().__init__(**kwargs)

    def load_data_list(self):
        return [dict(img_path=f'{i}.jpg') for i in range(self.num_images)]

    def prepare_data(self, idx):
        sample = SegDataSample(metainfo=self.get_data_info(idx))
        sample.gt_sem_seg = PixelData(data=self.labels[idx % self.NUM_SAMPLES])
        return dict(
            inputs=self.images[idx % self.NUM_SAMPLES], data_samples=sample)


def step_config(size, batch_size, num_images, amp):
    """The flagship training on synthetic images, in float16 with ``amp``."""
    cfg = mmib.convert(Config.fromfile(resolve_config(CONFIG)))
    cfg.model.pretrained = None
    cfg.model.data_preprocessor.size = (size, size)
    cfg.train_dataloader = dict(
        batch_size=batch_size,
        # Loading costs nothing, so plans are drawn in the timed step.
        num_workers=0,
        sampler=cfg.train_dataloader.sampler,
        dataset=dict(
            type='SyntheticADE20K',
            num_images=num_images,
            size=size,
            pipeline=[]))
    if amp:
        cfg.optim_wrapper.type = 'AmpOptimWrapper'
        cfg.optim_wrapper.dtype = 'float16'
    return cfg


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--size', type=int, default=512)
    parser.add_argument('--batch-size', type=int, default=16)
    parser.add_argument('--iters', type=int, default=200)
    parser.add_argument(
        '--warmup', type=int, default=20, help='iterations not counted')
    parser.add_argument(
        '--images',
        type=int,
        default=800,
        help='images in the data set; few, so that the steps see many plans')
    args = parser.parse_args()

    on_gpu = torch.cuda.is_available()
    machine = dict(
        device=torch.cuda.get_device_name() if on_gpu else 'cpu',
        torch=torch.__version__,
        mmengine=mmengine.__version__)
    print(json.dumps(dict(machine, arguments=vars(args))))
    for dtype in ('float32', 'float16') if on_gpu else ('float32', ):
        cfg = step_config(args.size, args.batch_size, args.images,
                          dtype == 'float16')
        configs = dict(baseline=without_infobatch(cfg), mmib=cfg)
        times, memory = take_turns(configs, args.iters, args.warmup)
        result = dict(dtype=dtype, **figures(times['mmib'], times['baseline']))
        if on_gpu:
            result['peak_bytes'] = memory
        print(json.dumps(result), flush=True)


if __name__ == '__main__':
    main()
