# Copyright (c) mmib contributors. All rights reserved.
"""Run everything that needs a GPU, and write down what came out.

Two parts: the tests that are marked `gpu`, and the time and memory of a
training step of UperNet R-50 against stock MMSegmentation, in float32 and in
float16, on synthetic images. Without a GPU the tests are skipped and the steps
run on the CPU, which says whether the script works.

The result is written after each part, so what has failed or was stopped leaves
the rest. The exit status is 1 if anything failed.
"""
import argparse
import json
import os.path as osp
import subprocess
import sys
import tempfile
import traceback
import xml.etree.ElementTree as ElementTree

import mmcv
import mmengine
import mmseg
import torch
from mmengine.config import Config
from mmengine.structures import PixelData
from mmseg.datasets import ADE20KDataset
from mmseg.registry import DATASETS
from mmseg.structures import SegDataSample

import mmib
from mmib.zoo import resolve_config

ROOT = osp.dirname(osp.dirname(osp.abspath(__file__)))
sys.path.append(osp.join(ROOT, 'benchmarks'))
from step import compare, figures, pruned_iters  # noqa: E402

CONFIG = 'mmseg::upernet/upernet_r50_4xb4-80k_ade20k-512x512'


@DATASETS.register_module()
class SyntheticADE20K(ADE20KDataset):
    """Noise in memory, with everything else of the real data set.

    Args:
        num_images (int): Number of images.
        size (int): Their height and width.
    """

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
        label = PixelData(data=self.labels[idx % self.NUM_SAMPLES])
        return dict(
            inputs=self.images[idx % self.NUM_SAMPLES],
            data_samples=SegDataSample(
                gt_sem_seg=label,
                metainfo=dict(img_path=self.get_data_info(idx)['img_path'])))


def machine():
    """Name the device and the versions.

    Returns:
        dict: Plain values.
    """
    on_gpu = torch.cuda.is_available()
    return dict(
        device=torch.cuda.get_device_name() if on_gpu else 'cpu',
        cuda=torch.version.cuda,
        cudnn=torch.backends.cudnn.version() if on_gpu else None,
        torch=torch.__version__,
        mmengine=mmengine.__version__,
        mmcv=mmcv.__version__,
        mmseg=mmseg.__version__,
        mmib=mmib.__version__)


def run_tests():
    """Run the tests that are marked ``gpu``.

    Returns:
        dict: How many passed, failed and were skipped, with the reasons of
        those that didn't pass.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = osp.join(folder, 'report.xml')
        result = subprocess.run([
            sys.executable, '-m', 'pytest', '-m', 'gpu', 'tests/test_gpu.py',
            '--junitxml', report
        ],
                                cwd=ROOT,
                                stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT,
                                text=True)
        print(result.stdout)
        if not osp.exists(report):
            return dict(error=result.stdout[-2000:])
        cases = list(ElementTree.parse(report).getroot().iter('testcase'))
    outcomes = dict(passed=0, failed=0, skipped=0)
    messages = {}
    for case in cases:
        notes = [
            note for note in case
            if note.tag in ('failure', 'error', 'skipped')
        ]
        if not notes:
            outcomes['passed'] += 1
        for note in notes:
            kind = 'skipped' if note.tag == 'skipped' else 'failed'
            outcomes[kind] += 1
            messages[case.get('name')] = note.get('message')
    outcomes['messages'] = messages
    # Such as a collection that failed, which is no test.
    if result.returncode != 0 and not outcomes['failed']:
        outcomes['error'] = result.stdout[-2000:]
    return outcomes


def step_config(size, batch_size, num_images, amp):
    """The flagship training on synthetic images.

    Args:
        size (int): Height and width of the images.
        batch_size (int): Images in a step.
        num_images (int): Images in the data set.
        amp (bool): Whether to train in float16.

    Returns:
        Config: A config with InfoBatchHook.
    """
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


def run_steps(args, amp):
    """Compare the steps of pruned and stock training.

    Returns:
        dict: Seconds, ratios, and bytes of memory.
    """
    if amp and not torch.cuda.is_available():
        return dict(skipped='AmpOptimWrapper needs a GPU')
    cfg = step_config(args.size, args.batch_size, args.images, amp)
    if args.warmup + args.iters > pruned_iters(cfg):
        raise ValueError('annealing, which has no cost, begins at '
                         f'{pruned_iters(cfg)} iterations: take fewer --iters')
    times, memory = compare(cfg, args.iters, args.warmup)
    result = figures(times['mmib'], times['baseline'])
    if torch.cuda.is_available():
        result['peak_bytes'] = memory
    return result


def has_failed(part):
    return 'error' in part or part.get('failed', 0) > 0


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--out', required=True, help='JSON file to write')
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

    result = dict(machine=machine(), arguments=vars(args))
    parts = dict(
        tests=run_tests,
        float32=lambda: run_steps(args, amp=False),
        float16=lambda: run_steps(args, amp=True))
    for name, part in parts.items():
        try:
            result[name] = part()
        except Exception:
            result[name] = dict(error=traceback.format_exc())
        # One part that fails must not cost the others.
        with open(args.out, 'w') as file:
            json.dump(result, file, indent=2)
    print(json.dumps(result, indent=2))
    sys.exit(any(has_failed(result[name]) for name in parts))


if __name__ == '__main__':
    main()
