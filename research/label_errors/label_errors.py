# Copyright (c) mmib contributors. All rights reserved.
"""How many label errors are among the images with the highest scores?

For each seed, some masks of the training images become wrong, a config trains
on them with InfoBatch, and the images are ranked in several ways: by what the
training saw of them, and by the losses of the network that it ends with. Each
seed appends a JSON line to the results. What has a line isn't run again.

cleanlab's ranking needs `pip install cleanlab`.
"""
import argparse
import copy
import math
import os.path as osp
from typing import Dict, List, Sequence, Tuple

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from mmengine.config import Config, DictAction
from mmengine.dataset import pseudo_collate
from mmengine.model import BaseModel
from mmengine.registry import DATASETS
from mmengine.runner import Runner
from torch import Tensor

from benchmarks.compare.paired import markdown
from benchmarks.compare.recorder import environment
from benchmarks.compare.results import append_result, read_results
from research.pruned_training import (HIGHEST, VisitRecorder, build_runner,
                                      means_of_images)

from .corrupt_masks import LARGE_KINDS, MIN_CHANGED, copy_with_errors

try:
    from cleanlab.segmentation.rank import get_label_quality_scores
except ImportError:
    get_label_quality_scores = None

IGNORED = 255
EMA = 0.8
# Part of the training from which on the visits of an image are averaged.
LATE = 2 / 3
# Visits that the mean of all images at a time remembers.
TREND_VISITS = 200
# Images with the most similar classes, of which the mean score is taken.
NEIGHBOURS = 20
# Of rankings at random, for their mean.
DRAWS = 1000
TOP_PIXELS = (0.01, HIGHEST, 0.2)


def rank_visits(visits: pd.DataFrame, num_images: int, iters: int,
                shares: np.ndarray) -> Dict[str, np.ndarray]:
    """Values of the images, of shape (N,), by what a training saw of them."""
    scored = visits.dropna(subset=['loss'])
    late = visits['iter'] >= LATE * iters

    def last(values: pd.Series) -> pd.Series:
        return values.groupby(visits['image']).last()

    def smooth(values: pd.Series) -> pd.Series:
        return last(
            values.groupby(visits['image']).transform(
                lambda own: own.ewm(alpha=1 - EMA, adjust=False).mean()))

    def mean(values: pd.Series) -> pd.Series:
        means = values[late[values.index]].groupby(visits['image']).mean()
        # Of an image without a late visit the last one counts.
        return means.combine_first(last(values))

    loss, norm = scored['loss'], scored['norm']
    relative = loss / loss.ewm(alpha=1 / TREND_VISITS).mean()
    found = {
        'last score': last(loss),
        'ema=0.8': smooth(loss),
        'ema=0.8, relative=True': smooth(relative),
        'mean score, last third': mean(loss),
        "score='gradient'": last(norm),
        "score='gradient', ema=0.8": smooth(norm),
        "score='gradient', mean, last third": mean(norm),
        'loss of labelled pixels, last third': mean(scored['labelled']),
        'the same, and annealing': mean(visits['labelled']),
        'the same, each class alike': mean(visits['balanced']),
        f'the same, highest {HIGHEST:.0%} of the pixels': mean(
            visits['highest']),
    }
    found = {
        name: values.reindex(range(num_images)).to_numpy()
        for name, values in found.items()
    }
    scores = found['mean score, last third']
    distances = np.abs(shares[:, None] - shares).sum(-1)
    np.fill_diagonal(distances, np.inf)
    alike = np.argsort(distances)[:, :min(NEIGHBOURS, num_images - 1)]
    found['mean score, over that of similar masks'] = (
        scores / scores[alike].mean(1))
    return found


def measure(logits: Tensor, labels: Tensor) -> Dict[str, float]:
    """Values of an image by the predictions of a network: the higher, the
    less its labels are like them."""
    losses = F.cross_entropy(
        logits[None], labels[None], ignore_index=IGNORED, reduction='none')
    mean, balanced = means_of_images(losses, labels[None], len(logits))
    values = {
        'mean pixel loss': mean.item(),
        'mean pixel loss, each class alike': balanced.item()
    }
    labelled = labels != IGNORED
    losses = losses[0, labelled].sort(descending=True).values
    logits, labels = logits[:, labelled], labels[labelled]
    for share in TOP_PIXELS:
        highest = losses[:math.ceil(share * len(losses))]
        name = f'mean of the highest {share:.0%} of the pixel losses'
        values[name] = highest.mean().item()
    is_other = logits.argmax(0) != labels
    values['share of pixels predicted otherwise'] = (
        is_other.float().mean().item())
    if get_label_quality_scores is not None and len(labels):
        # It knows no ignored pixels: the others are an image of one row.
        quality, _ = get_label_quality_scores(
            labels[None, None].numpy(),
            logits.softmax(0)[None, :, None].numpy(),
            method='softmin',
            verbose=False)
        values['cleanlab, softmin'] = 1 - quality[0]
    return values


def class_shares(labels: Tensor, num_classes: int) -> np.ndarray:
    """Share of each class in the labelled pixels, of shape (C,)."""
    counts = torch.bincount(labels[labels != IGNORED], minlength=num_classes)
    return (counts / counts.sum().clamp(1)).numpy()


def look(cfg: Config,
         model: BaseModel) -> Tuple[Dict[str, list], np.ndarray, List[str]]:
    """Let a network predict the whole training images, as in validation:
    values of the N images by name, share of each class (N, C), names."""
    cfg = copy.deepcopy(cfg)
    images = cfg.train_dataloader.dataset
    images.pipeline = cfg.val_dataloader.dataset.pipeline
    dataset = DATASETS.build(images)
    model.eval()
    rows, shares, names = [], [], []
    for i in range(len(dataset)):
        with torch.no_grad():
            sample = model.test_step(pseudo_collate([dataset[i]]))[0].cpu()
        logits = sample.seg_logits.data
        labels = sample.gt_sem_seg.data[0].long()
        rows.append(measure(logits, labels))
        shares.append(class_shares(labels, len(logits)))
        path = osp.relpath(sample.img_path,
                           osp.join(images.data_root, 'images', 'training'))
        names.append(osp.splitext(path)[0])
    values = pd.DataFrame(rows).to_dict('list')
    return values, np.stack(shares), names


def set_up(args: argparse.Namespace,
           seed: int) -> Tuple[Runner, Dict[str, dict]]:
    """Make the errors of a seed, and the runner of its training."""
    folder = osp.join(args.work_dir, f'seed-{seed}')
    data = osp.join(folder, 'data')
    errors = copy_with_errors(args.data, data, args.share, seed, args.kinds)
    changes = {
        **args.cfg_options,
        'train_dataloader.dataset.data_root': data,
        'val_dataloader.dataset.data_root': args.data,
        # With EMAHook it has the moving average of the weights.
        'default_hooks.checkpoint.save_last': True,
    }
    runner = build_runner(
        argparse.Namespace(
            config=args.config,
            seed=seed,
            work_dir=folder,
            cfg_options=changes),
        ratio=0.6)
    return runner, errors


def run_seed(args: argparse.Namespace, seed: int) -> dict:
    """Train with the errors of a seed, and return its line."""
    runner, errors = set_up(args, seed)
    recorder = VisitRecorder()
    runner.register_hook(recorder)
    runner.train()
    iters = runner.max_iters
    checkpoint = torch.load(
        osp.join(runner.work_dir, f'iter_{iters}.pth'),
        'cpu',
        weights_only=False)
    runner.model.load_state_dict(checkpoint['state_dict'])
    of_network, shares, names = look(runner.cfg, runner.model)
    of_visits = rank_visits(recorder.visits, len(names), iters, shares)
    images = [names.index(name) for name in errors]
    sources = dict(training=of_visits, network=of_network)
    return dict(
        seed=seed,
        num_images=len(names),
        share=args.share,
        kinds=args.kinds,
        **environment(('mmcv', 'mmseg')),
        iters=iters,
        mIoU=float(runner.message_hub.get_scalar('val/mIoU').current()),
        errors=errors,
        ranks={
            source: {
                name: ranks(np.array(values))[images].tolist()
                for name, values in found.items()
            }
            for source, found in sources.items()
        })


def ranks(values: np.ndarray) -> np.ndarray:
    """Rank of each value, 0 for the highest. NaN is the lowest."""
    order = np.argsort(-np.nan_to_num(values, nan=-np.inf), kind='stable')
    return np.argsort(order)


def judge(found: Sequence[int], kinds: Sequence[str]) -> Dict[str, float]:
    """How good a ranking is, by the rank and kind of each of k errors:
    precision, which is recall too, among the first k; recall among the first
    2 k, of all and of each kind; average precision."""
    found, kinds = np.array(found), np.array(kinds)
    k = len(found)
    return {
        'first k': np.mean(found < k),
        'first 2k': np.mean(found < 2 * k),
        'average precision': np.mean(
            np.arange(1, k + 1) / (np.sort(found) + 1)),
        **{
            f'{kind}, first 2k': np.mean(found[kinds == kind] < 2 * k)
            for kind in dict.fromkeys(kinds)
        }
    }


def by_chance(num_images: int, kinds: Sequence[str]) -> Dict[str, float]:
    """Means of :func:`judge` over rankings at random."""
    rng = np.random.default_rng(0)
    drawn = [
        judge(rng.permutation(num_images)[:len(kinds)], kinds)
        for _ in range(DRAWS)
    ]
    return pd.DataFrame(drawn).mean().to_dict()


def table(lines: List[dict]) -> str:
    """What the rankings found: means over the seeds, with their range."""
    rows = []
    for line in lines:
        kinds = sorted(error['kind'] for error in line['errors'].values())
        chance = by_chance(line['num_images'], kinds)
        rows.append(dict(source='', ranking='at random', **chance))
    for line in lines:
        kinds = [error['kind'] for error in line['errors'].values()]
        rows += [
            dict(source=source, ranking=name, **judge(found, kinds))
            for source, of_source in line['ranks'].items()
            for name, found in of_source.items()
        ]
    seeds = pd.DataFrame(rows).groupby(['source', 'ranking'], sort=False)
    means, lows, highs = seeds.mean(), seeds.min(), seeds.max()
    cells = means.map('{:.2f}'.format)
    for name in ('first k', 'first 2k', 'average precision'):
        cells[name] += (
            lows[name].map(' ({:.2f} to '.format) +
            highs[name].map('{:.2f})'.format))
    return markdown(cells.reset_index('ranking'), 'from')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('config', help='config of the full training')
    parser.add_argument('data', help='folder with images/ and annotations/')
    parser.add_argument(
        '--out', required=True, help='results, a file of JSON lines')
    parser.add_argument('--seeds', type=int, default=3)
    parser.add_argument(
        '--share', type=float, default=0.05, help='of masks that become wrong')
    parser.add_argument(
        '--kinds', nargs='+', choices=MIN_CHANGED, default=LARGE_KINDS)
    parser.add_argument('--work-dir', default='work_dirs/label_errors')
    parser.add_argument(
        '--cfg-options', nargs='+', action=DictAction, default={})
    args = parser.parse_args()
    lines = read_results(args.out) if osp.exists(args.out) else []
    for seed in range(args.seeds):
        if not any(line['seed'] == seed for line in lines):
            append_result(args.out, run_seed(args, seed))
    print(table(read_results(args.out)))


if __name__ == '__main__':
    main()
