# Copyright (c) mmib contributors. All rights reserved.
"""Time a training step of real networks on a GPU against the baseline, in
float32, bfloat16 and float16, with its memory, on synthetic images.

Without a GPU the steps run on the CPU, in float32, which says whether the
script works.
Results are printed, a JSON line each, and appended to the file of --out, of
which finished ones aren't run again. `resnet18` needs MMPretrain.
"""
import argparse
import itertools
import json
from typing import NamedTuple

import numpy as np
import torch
from mmengine.config import Config
from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS
from mmengine.structures import PixelData

import mmib
from mmib_cli.zoo import resolve_config

from .quality.run import append_result, read_results
from .quality.train import environment
from .step import figures, take_turns, without_infobatch


class Network(NamedTuple):
    """A config, its classes, the side of its images and its batch size."""

    config: str
    num_classes: int
    size: int
    batch_size: int


NETWORKS = dict(
    upernet_r50=Network('mmseg::upernet/upernet_r50_4xb4-80k_ade20k-512x512',
                        150, 512, 16),
    upernet_swin_t=Network(
        'mmseg::swin/swin-tiny-patch4-window7-in1k-pre_upernet_8xb2-160k_'
        'ade20k-512x512', 150, 512, 16),
    segformer_b0=Network(
        'mmseg::segformer/segformer_mit-b0_8xb2-160k_ade20k-512x512', 150, 512,
        16),
    resnet18=Network('mmpretrain::resnet/resnet18_8xb16_cifar10', 10, 32, 128))
DTYPES = 'float32', 'bfloat16', 'float16'
# Plans are drawn as often as in a dataset of so many batches.
BATCHES = 50
# Of the whole training, which prunes for longer than any measurement.
MAX_ITERS = 100_000


@DATASETS.register_module()
class SyntheticImages(BaseDataset):
    """Noise, of which images share a few samples. On a GPU they lie in its
    memory, so that a step waits for no copy."""

    NUM_SAMPLES = 16

    def __init__(self, num_images, size, num_classes, segments):
        self.num_images, self.segments = num_images, segments
        rng = torch.Generator().manual_seed(0)
        self.images = torch.randint(
            256, (self.NUM_SAMPLES, 3, size, size),
            dtype=torch.uint8,
            generator=rng)
        shape = (1, size, size) if segments else (1, )
        shape = (self.NUM_SAMPLES, *shape)
        self.labels = torch.randint(num_classes, shape, generator=rng)
        if segments:
            self.labels[torch.rand(shape, generator=rng) < 0.1] = 255
        device = 'cuda' if torch.cuda.is_available() else 'cpu'
        self.images, self.labels = (
            each.to(device) for each in (self.images, self.labels))
        super().__init__()

    def load_data_list(self):
        return [dict(img_path=f'{i}.jpg') for i in range(self.num_images)]

    def prepare_data(self, idx):
        metainfo, label = self.get_data_info(idx), self.labels[
            idx % self.NUM_SAMPLES]
        if self.segments:
            from mmseg.structures import SegDataSample
            sample = SegDataSample(metainfo=metainfo)
            sample.gt_sem_seg = PixelData(data=label)
        else:
            from mmpretrain.structures import DataSample
            sample = DataSample(metainfo=metainfo).set_gt_label(label)
        return dict(
            inputs=self.images[idx % self.NUM_SAMPLES], data_samples=sample)


def step_config(network, dtype, compiled):
    """The training of a network on synthetic images."""
    cfg = Config.fromfile(resolve_config(network.config))
    segments = network.config.startswith('mmseg')
    cfg.model.pretrained = cfg.model.backbone.init_cfg = None
    if segments:
        cfg.model.data_preprocessor.size = (network.size, ) * 2
    cfg.train_dataloader = dict(
        batch_size=network.batch_size,
        # Loading costs nothing, so plans are drawn in the timed step.
        num_workers=0,
        sampler=dict(type='InfiniteSampler'),
        dataset=dict(
            type='SyntheticImages',
            num_images=BATCHES * network.batch_size,
            size=network.size,
            num_classes=network.num_classes,
            segments=segments))
    cfg.train_cfg = dict(type='IterBasedTrainLoop', max_iters=MAX_ITERS)
    cfg.param_scheduler = []
    if dtype != 'float32':
        cfg.optim_wrapper.update(type='AmpOptimWrapper', dtype=dtype)
    cfg.compile = compiled
    return mmib.convert(cfg)


def measure(network, dtype, compiled, iters, warmup):
    """The figures of a network; and the median time until a step is launched
    and the largest memory, each with mmib and of the baseline."""
    # What was compiled before counts towards torch's limits.
    torch.compiler.reset()
    cfg = step_config(network, dtype, compiled)
    steps = take_turns(
        dict(baseline=without_infobatch(cfg), mmib=cfg), iters, warmup)
    seconds, host, peaks = zip(steps['mmib'], steps['baseline'])
    return dict(
        figures(*seconds),
        host_seconds=[float(np.median(of)) for of in host],
        peak_bytes=[int(of.max()) for of in peaks])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--networks', nargs='+', default=[*NETWORKS])
    parser.add_argument(
        '--dtypes',
        nargs='+',
        default=DTYPES if torch.cuda.is_available() else DTYPES[:1])
    parser.add_argument(
        '--compile', action='store_true', help='with torch.compile')
    parser.add_argument('--iters', type=int, default=200)
    parser.add_argument(
        '--warmup',
        type=int,
        default=60,
        help='iterations not counted; the first pass, of 50, is full')
    parser.add_argument('--out', help='results, a file of JSON lines')
    args = parser.parse_args()
    finished = read_results(args.out) if args.out else []
    for name, dtype in itertools.product(args.networks, args.dtypes):
        what = dict(
            environment(['mmcv']),
            network=name,
            dtype=dtype,
            compiled=args.compile,
            iters=args.iters,
            warmup=args.warmup)
        if any(what.items() <= line.items() for line in finished):
            continue
        found = measure(NETWORKS[name], dtype, args.compile, args.iters,
                        args.warmup)
        print(json.dumps(dict(what, **found)), flush=True)
        if args.out is not None:
            append_result(args.out, dict(what, **found))


if __name__ == '__main__':
    main()
