# Copyright (c) mmib contributors. All rights reserved.
"""What small wrong regions of masks cost, and which rankings find them.

In a tenth of the masks a connected region of 2 to 10 % of the image becomes
another class. A network trains on them and ranks all images. Of the first 20 %
by `regions` the wrong ones are left out, ignored or repaired, and a network
trains anew. With `pip install cleanlab`:

    OMP_NUM_THREADS=1 python -m research.label_errors.small_errors \\
        configs/upernet/upernet_r18-w32_1xb8-2k_camvid-72x96.py \\
        data/camvid-160x120 work_dirs/small_errors

It goes on after a stop, and prints the tables at the end.
"""
import argparse
import os
import os.path as osp
import shutil

import cv2
import numpy as np
import pandas as pd
from cleanlab.segmentation.rank import get_label_quality_scores
from mmengine.config import Config

import mmib
from benchmarks.quality.run import append_result, read_results
from benchmarks.quality.train import environment, train
from mmib.config.convert import list_images
from mmib.data.verdicts import HARD, WRONG, Judged, write_review
from mmib.labels.images import IGNORED, DatasetImages
from mmib.labels.predictions import Predictor
from mmib.report.checkpoint import read_checkpoint
from mmib_cli import rank, review

# Shares: of images that are wrong, of an image that a region has, and of the
# images that somebody looks at, the last one.
WRONG_IMAGES, REGION, SHARES = 0.1, (0.02, 0.1), (0.05, 0.1, 0.2)
ARMS = ('nothing', 'right', 'repaired', 'ignored', 'without')
# The value of unlabelled pixels in files.
UNLABELLED = 0


def read_masks(folder):
    return {
        name: cv2.imread(osp.join(folder, name), cv2.IMREAD_UNCHANGED)
        for name in sorted(os.listdir(folder))
    }


def relabel_region(mask, classes, rng):
    """Let a region become another class, None where none has the size."""
    regions = []
    for label in np.setdiff1d(mask, [UNLABELLED]):
        _, numbers = cv2.connectedComponents(np.uint8(mask == label))
        sizes = np.bincount(numbers.flat)[1:] / mask.size
        fitting = (sizes >= REGION[0]) & (sizes <= REGION[1])
        regions += [numbers == i + 1 for i in np.flatnonzero(fitting)]
    if not regions:
        return None
    region = regions[rng.integers(len(regions))]
    other = rng.choice(np.setdiff1d(classes, mask[region]))
    return np.where(region, other, mask).astype(mask.dtype)


def plant_errors(masks, wrong, seed):
    """Write the masks to a folder, some with a wrong region."""
    os.makedirs(wrong, exist_ok=True)
    names = [*masks]
    classes = np.setdiff1d(np.unique([*masks.values()]), [UNLABELLED])
    rng = np.random.default_rng(seed)
    missing = round(WRONG_IMAGES * len(names))
    for i in rng.permutation(len(names)):
        mask = masks[names[i]]
        other = relabel_region(mask, classes, rng) if missing else None
        if other is not None:
            mask, missing = other, missing - 1
        cv2.imwrite(osp.join(wrong, names[i]), mask)


def softmin(reader, predictor):
    """cleanlab's ranking of the images, the worst has the highest value."""
    for number in reader.numbers:
        logits = predictor(reader.info(number)).seg_logits.data
        labels = reader.read(number)['gt_seg_map']
        labelled = labels != IGNORED
        # It knows no ignored pixels: the others are an image of one row.
        quality, _ = get_label_quality_scores(
            labels[labelled][None, None].astype(int),
            logits.softmax(0).numpy()[:, labelled][None, :, None],
            verbose=False)
        yield 1 - quality[0]


def look(cfg, network, looked, right, wrong):
    """Rank the images, judge the first ones by what is right, and write what
    to train on. Returns a line with the ranks of wrong images."""
    shutil.rmtree(looked, ignore_errors=True)
    os.makedirs(osp.join(looked, 'repaired'))
    config, judged, ignored = (
        osp.join(looked, x) for x in ('config.py', 'review.csv', 'ignored'))
    cfg.dump(config)
    rank.main([config, network, '--images', '0', '--out', looked])
    table = pd.read_csv(osp.join(looked, 'rank_train_images.csv'))
    predictor = Predictor(cfg, read_checkpoint(network).weights, 'cpu')
    table['softmin'] = [*softmin(DatasetImages(cfg), predictor)]
    table.index = table['path'].map(osp.basename)
    right, wrong = read_masks(right), read_masks(wrong)
    ranks = table[['region', 'loss_pixels', 'softmin']].rank(
        ascending=False, method='first').astype(int)
    differs = {name: right[name] != wrong[name] for name in right}
    errors = [name for name in table.index if differs[name].any()]
    rows, pixels = [], []
    for name, place in ranks['region'].items():
        if place <= round(SHARES[-1] * len(table)):
            verdict = WRONG if name in errors else HARD
            rows.append(Judged(table['path'][name], verdict, place))
            if verdict == WRONG:
                cv2.imwrite(f'{looked}/repaired/{name}', right[name])
    write_review(judged, rows)
    options = ['--config', config, '--checkpoint', network, '--ignore']
    review.main([judged, '--export', ignored, *options])
    for name, mask in read_masks(ignored).items():
        out = (mask != wrong[name]) & (wrong[name] != UNLABELLED)
        pixels.append((differs[name], out, differs[name] & out))
    return dict(
        num_images=len(table),
        wrong={name: differs[name].mean()
               for name in errors},
        # Of images with ignored pixels: the wrong, the ignored, and both.
        pixels=np.sum(pixels, (0, 2, 3)).tolist(),
        ranks=ranks.loc[errors].to_dict('list'))


def run(args, arm, seed):
    """Train an arm, or look at the network of `nothing`: a line."""
    folder = osp.abspath(osp.join(args.out, f'seed-{seed}'))
    right = osp.abspath(osp.join(args.data, 'annotations', 'training'))
    wrong, looked, networks, work_dir = (
        osp.join(folder, x) for x in ('masks', 'looked', 'networks', arm))
    if arm == 'nothing':
        plant_errors(read_masks(right), wrong, seed)
    cfg = mmib.shorten(Config.fromfile(args.config))
    for loader in (cfg.train_dataloader, cfg.val_dataloader):
        loader.dataset.data_root = osp.abspath(args.data)
    cfg.train_dataloader.dataset.data_prefix.seg_map_path = (
        right if arm == 'right' else wrong)
    if arm == 'look':
        name = f'nothing/iter_{cfg.train_cfg.max_iters}.pth'
        return look(cfg, osp.join(networks, name), looked, right, wrong)
    if arm == 'without':
        cfg = list_images(cfg, without=osp.join(looked, 'review.csv'))
    if arm in ('ignored', 'repaired'):
        cfg = list_images(cfg, repaired=osp.join(looked, arm))
    cfg.custom_hooks.append(
        dict(type='CheckpointHook', by_epoch=False, out_dir=networks))
    figures = train(cfg, 'mIoU', seed, work_dir, float('inf'))
    return dict(mIoU=figures['quality'], **figures, **environment(['mmseg']))


def print_tables(lines):
    """Means over the seeds with their ranges."""

    def row(name, *columns):
        cells = [
            f'{np.mean(x):.2f} ({min(x):.2f} to {max(x):.2f})' for x in columns
        ]
        print('|', ' | '.join([name, *cells]), '|')

    found = pd.DataFrame(lines).set_index(['arm', 'seed'])
    looked = found.loc['look']
    for name in looked['ranks'].iloc[0]:
        ranks = np.sort([each[name] for each in looked['ranks']])
        shares = [(ranks <= round(x * looked['num_images'].iloc[0])).mean(1)
                  for x in SHARES]
        precisions = np.arange(1, 1 + ranks.shape[1]) / ranks
        row(name, *shares, precisions.mean(1))
    for arm in ARMS:
        values = found['mIoU'][arm]
        row(arm, values, values - found['mIoU']['nothing'])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n')[0])
    for name in ('config', 'data', 'out'):
        parser.add_argument(name)
    parser.add_argument('--seeds', type=int, nargs='+', default=[0, 1, 2])
    args = parser.parse_args()
    results = osp.join(args.out, 'results.jsonl')
    for arm in (ARMS[0], 'look', *ARMS[1:]):
        for seed in args.seeds:
            key = dict(arm=arm, seed=seed)
            if not any(key.items() <= x.items()
                       for x in read_results(results)):
                append_result(results, dict(key, **run(args, arm, seed)))
    print_tables(read_results(results))


if __name__ == '__main__':
    main()
