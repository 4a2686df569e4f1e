# Copyright (c) mmib contributors. All rights reserved.
"""How many label errors are among the images with the highest scores?

For each seed, some masks of the training images become wrong, a config trains
on them with InfoBatch, and the images are ranked in several ways: by what the
training saw of them, and by the losses of the network that it ends with. Each
seed appends a JSON line to the results. What has a line isn't run again, and
a training that ended isn't trained again: remove its line to rank anew.

cleanlab's ranking needs `pip install cleanlab`.
"""
import argparse
import copy
import json
import math
import os
import os.path as osp
import time
from typing import Dict, List

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from camvid.arm_configs import fingerprint
from camvid.cell import environment
from camvid.results import append_result, read_results
from corrupt_masks import copy_with_errors
from mmengine.config import DictAction
from mmengine.dataset import pseudo_collate
from mmengine.registry import DATASETS
from mmengine.runner import Runner
from pruned_training import VisitRecorder, build_runner, means_of_images
from torch import Tensor

try:
    from cleanlab.segmentation.rank import get_label_quality_scores
except ImportError:
    get_label_quality_scores = None

VISITS = 'visits.csv'
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
TOP_PIXELS = (0.01, 0.05, 0.2)


def rank_visits(visits: pd.DataFrame, num_images: int, iters: int,
                shares: np.ndarray) -> Dict[str, np.ndarray]:
    """Values of the images, of shape (N,), by what a training saw of them.

    Args:
        visits (pd.DataFrame): Those of a :class:`VisitRecorder`.
        num_images (int): Number of images, N.
        iters (int): Iterations of the training.
        shares (np.ndarray): Share of each class in each mask, (N, C).
    """
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
        'ema=0.8, relative': smooth(relative),
        'mean of the last third': mean(loss),
        "score='gradient'": last(norm),
        "score='gradient', ema=0.8": smooth(norm),
        "score='gradient', mean of the last third": mean(norm),
        'mean over labelled pixels': mean(scored['labelled']),
        'mean over labelled pixels, with annealing': mean(visits['labelled']),
        'mean over classes, with annealing': mean(visits['balanced']),
    }
    found = {
        name: values.reindex(range(num_images)).to_numpy()
        for name, values in found.items()
    }
    scores = found['mean of the last third']
    distances = np.abs(shares[:, None] - shares).sum(-1)
    np.fill_diagonal(distances, np.inf)
    alike = np.argsort(distances)[:, :min(NEIGHBOURS, num_images - 1)]
    found['the same, over that of images with similar classes'] = (
        scores / scores[alike].mean(1))
    return found


def measure(logits: Tensor, labels: Tensor) -> Dict[str, float]:
    """Values of an image by the predictions of a network: the higher, the
    less its labels are like them.

    Args:
        logits (Tensor): Those of the classes, of shape (C, H, W).
        labels (Tensor): The labels, of shape (H, W).
    """
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


def look(runner: Runner) -> tuple:
    """Let a network predict the whole training images, as in validation.

    Returns:
        tuple: Values of the images by name, each of shape (N,); the share of
        each class, (N, C); names of the images.
    """
    cfg = copy.deepcopy(runner.cfg)
    images = cfg.train_dataloader.dataset
    images.pipeline = cfg.val_dataloader.dataset.pipeline
    dataset = DATASETS.build(images)
    model = runner.model.eval()
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


def identify(runner: Runner, share: float) -> dict:
    """What the results of a training depend on, besides its seed."""
    cfg = copy.deepcopy(runner.cfg)
    for key in ('work_dir', 'randomness'):
        cfg.pop(key)
    return dict(config=fingerprint(cfg), share=share, **environment())


def train(runner: Runner, identity: dict) -> dict:
    """Train, note the visits in the work folder, and return figures. What a
    training of the same identity has left there is not done again."""
    path = osp.join(runner.work_dir, 'training.json')
    if osp.exists(path):
        with open(path, encoding='utf-8') as file:
            figures = json.load(file)
        if {**figures, **identity} == figures:
            return figures
    recorder = VisitRecorder()
    runner.register_hook(recorder)
    start = time.perf_counter()
    runner.train()
    recorder.visits.to_csv(osp.join(runner.work_dir, VISITS), index=False)
    figures = dict(
        **identity,
        iters=runner.max_iters,
        mIoU=float(runner.message_hub.get_scalar('val/mIoU').current()),
        seconds=time.perf_counter() - start)
    with open(path, 'w', encoding='utf-8') as file:
        json.dump(figures, file)
    return figures


def run_seed(args: argparse.Namespace, seed: int,
             finished: List[dict]) -> dict:
    """The line of a seed, which is to stand beside those that are finished.
    """
    folder = osp.join(args.work_dir, f'seed-{seed}')
    data = osp.join(folder, 'data')
    errors = copy_with_errors(args.data, data, args.share, seed)
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
        ratio=args.ratio)
    identity = identify(runner, args.share)
    for line in finished:
        if {**line, **identity} != line:
            raise ValueError(
                f'The results of seed {line["seed"]} are of another config, '
                'share or environment: give another --out, or the same.')
    figures = train(runner, identity)
    path = osp.join(folder, f'iter_{runner.max_iters}.pth')
    checkpoint = torch.load(path, 'cpu', weights_only=False)
    runner.model.load_state_dict(checkpoint['state_dict'])
    of_network, shares, names = look(runner)
    visits = pd.read_csv(osp.join(folder, VISITS))
    of_visits = rank_visits(visits, len(names), runner.max_iters, shares)
    wrong = pd.DataFrame.from_dict(errors, 'index')
    kinds = wrong['kind'].reindex(names)
    sources = dict(training=of_visits, network=of_network)
    return dict(
        seed=seed,
        num_images=len(names),
        **figures,
        changed=wrong.groupby('kind')['changed'].mean().to_dict(),
        ranks={
            source: {
                name: ranks(np.array(values), kinds)
                for name, values in found.items()
            }
            for source, found in sources.items()
        })


def ranks(values: np.ndarray, kinds: pd.Series) -> Dict[str, List[int]]:
    """Ranks of the label errors of each kind, from 0, by falling values."""
    order = np.argsort(-np.nan_to_num(values, nan=-np.inf), kind='stable')
    of_kinds = kinds.iloc[order].reset_index(drop=True)
    return {
        kind: of_kinds.index[of_kinds == kind].tolist()
        for kind in sorted(kinds.dropna().unique())
    }


def judge(found: Dict[str, List[int]], num_images: int) -> Dict[str, float]:
    """How good a ranking is.

    Args:
        found (dict[str, list[int]]): What :func:`ranks` returned.
        num_images (int): Number of images.

    Returns:
        dict[str, float]: Precision among the first k of k errors, which is
        recall too; recall among the first 2 k, of all and of each kind;
        average precision.
    """
    all_ranks = np.sort(np.concatenate(list(found.values())))
    k = len(all_ranks)
    return {
        'first k': np.mean(all_ranks < k),
        'first 2k': np.mean(all_ranks < 2 * k),
        'average precision': np.mean(np.arange(1, k + 1) / (all_ranks + 1)),
        **{
            f'{kind}, first 2k': np.mean(np.array(own) < 2 * k)
            for kind, own in found.items()
        }
    }


def by_chance(line: dict) -> Dict[str, float]:
    """Means of :func:`judge` over rankings at random."""
    rng = np.random.default_rng(0)
    of_kinds = next(iter(line['ranks']['training'].values()))
    ends = np.cumsum([len(own) for own in of_kinds.values()])
    drawn = []
    for _ in range(DRAWS):
        places = rng.permutation(line['num_images'])[:ends[-1]]
        own = np.split(places, ends[:-1])
        drawn.append(judge(dict(zip(of_kinds, own)), line['num_images']))
    return pd.DataFrame(drawn).mean().to_dict()


def table(lines: List[dict]) -> str:
    """What the rankings found: means over the seeds, with their range."""
    rows = [
        dict(source=source, ranking=name, **judge(found, line['num_images']))
        for line in lines for source, of_source in line['ranks'].items()
        for name, found in of_source.items()
    ]
    rows += [
        dict(source='', ranking='at random', **by_chance(line))
        for line in lines
    ]
    seeds = pd.DataFrame(rows).groupby(['source', 'ranking'], sort=False)
    means, lows, highs = seeds.mean(), seeds.min(), seeds.max()
    cells = means.map('{:.2f}'.format)
    for name in ('first k', 'first 2k', 'average precision'):
        cells[name] += (
            lows[name].map(' ({:.2f} to '.format) +
            highs[name].map('{:.2f})'.format))
    head = ['from', 'ranking', *cells.columns]
    text = [head, ['---'] * len(head)]
    text += [[*index, *row]
             for index, row in zip(cells.index, cells.to_numpy())]
    return '\n'.join(f'| {" | ".join(row)} |' for row in text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('config', help='config of the full training')
    parser.add_argument('data', help='folder with images/ and annotations/')
    parser.add_argument(
        '--out', required=True, help='results, a file of JSON lines')
    parser.add_argument('--seeds', type=int, default=3)
    parser.add_argument(
        '--share',
        type=float,
        default=0.05,
        help='share of the training masks that become wrong (default: 0.05)')
    parser.add_argument('--ratio', type=float, default=0.6)
    parser.add_argument('--work-dir', default='work_dirs/label_errors')
    parser.add_argument(
        '--cfg-options', nargs='+', action=DictAction, default={})
    args = parser.parse_args()
    if get_label_quality_scores is None:
        print('cleanlab is not installed: its ranking is left out')
    os.makedirs(osp.dirname(osp.abspath(args.out)), exist_ok=True)
    open(args.out, 'a').close()
    for seed in range(args.seeds):
        finished = read_results(args.out)
        if seed not in [line['seed'] for line in finished]:
            append_result(args.out, run_seed(args, seed, finished))
    print(table(read_results(args.out)))


if __name__ == '__main__':
    main()
