# Copyright (c) mmib contributors. All rights reserved.
"""Which rankings of images find small errors of masks, and which gross ones.

Masks get errors of several kinds and sizes, a small network trains on them,
and what it says of the pixels is kept, so that rankings cost no training.
CamVid is as ``camvid.py`` copies it, Oxford-IIIT Pet and magnetic tiles are as
the public repositories Mohammed14324/Pet-image-segmentation and
abin24/Magnetic-tile-defect-datasets. have them:

    OMP_NUM_THREADS=1 python -m benchmarks.quality.small_masks tiles \\
        $TILES work_dirs/small_masks --seeds 0 1
"""
import argparse
import csv
import os
import os.path as osp
from functools import partial
from glob import glob
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import cv2
import numpy as np
import torch
from mmengine.config import Config
from mmengine.runner import Runner

from mmib.labels.images import DatasetImages
from mmib.labels.predictions import Predictor, compare
from mmib.labels.rankings import region_share
from mmib.report.checkpoint import read_checkpoint

from .camvid import prepare

CONFIGS = osp.join(osp.dirname(__file__), '../../configs/upernet')
TILES = ('free', 'blowhole', 'break', 'crack', 'fray', 'uneven')
# Shares of the pixels of an image that an error changes.
SIZES = dict(small=(0.001, 0.02), medium=(0.02, 0.1), gross=(0.1, 1.))
# How many errors of a size and kind a seed has.
CAMVID = {
    ('small', 'emptied'): 8,
    ('small', 'shifted'): 8,
    ('small', 'class'): 8,
    ('medium', 'class'): 6,
    ('gross', 'exchanged'): 6,
    ('gross', 'class'): 6
}
TILES_ERRORS = {
    ('small', 'emptied'): 12,
    ('small', 'shifted'): 12,
    ('medium', 'emptied'): 6,
    ('gross', 'exchanged'): 6,
    ('gross', 'emptied'): 6
}
ERRORS = dict(camvid=CAMVID, pet={}, tiles=TILES_ERRORS)
ITERATIONS = {'camvid': 1200, 'camvid-unet': 900, 'pet': 1150, 'tiles': 900}
# Of a UNet, so that it learns rare classes in so few iterations.
WEIGHTS = {
    'camvid-unet': [.5, .4, 2., .4, 1., .7, 2., 2., .9, 2.6, 3.9],
    'tiles': [1., 4.]
}
# Numbers in the files: of objects, of all classes that may fill a large part.
OBJECTS = dict(camvid=(3, 7, 8, 9, 10, 11), tiles=(1, ))
LARGE = range(1, 12)
UNLABELLED = dict(camvid=0, tiles=255)


def read(path: str) -> np.ndarray:
    return cv2.imread(path, cv2.IMREAD_UNCHANGED)


def copy_tiles(source: str, out: str) -> None:
    """Write half of the tiles with a defect and as many without, at half the
    size."""
    for name in TILES:
        paths = sorted(glob(f'{source}/MT_{name.title()}/Imgs/*.jpg'))[::2]
        for path in paths[:196]:
            mask = read(path[:-3] + 'png')
            images = dict(images=read(path), masks=(mask > 127) * 255.)
            for folder, image in images.items():
                half = cv2.resize(
                    image, None, fx=.5, fy=.5, interpolation=cv2.INTER_AREA)
                if folder == 'masks':
                    half = np.uint8(half > 127)
                # A UNet wants multiples of 8.
                half = half[:len(half) // 8 * 8, :half.shape[1] // 8 * 8]
                file = f'{name}-{osp.basename(path)[:-3]}png'
                os.makedirs(f'{out}/train/{folder}', exist_ok=True)
                cv2.imwrite(f'{out}/train/{folder}/{file}', half)


def around(mask: np.ndarray, region: np.ndarray, unlabelled: int) -> int:
    """The class that most of the pixels around a region have."""
    ring = cv2.dilate(np.uint8(region), np.ones((5, 5))).astype(bool) & ~region
    labels = mask[ring & (mask != unlabelled)]
    return int(np.bincount(labels).argmax()) if labels.size else unlabelled


def small_error(mask: np.ndarray, kind: str, size: Tuple[float, float],
                objects: Any, unlabelled: int,
                rng: np.random.Generator) -> Optional[np.ndarray]:
    """Let a connected object vanish, move by its own extent or become another
    one, None where none has the size."""
    regions = []
    for label in np.intersect1d(mask, objects):
        _, numbers = cv2.connectedComponents(np.uint8(mask == label))
        shares = np.bincount(numbers.flat)[1:] / mask.size
        regions += [(label, numbers == i + 1) for i, share in enumerate(shares)
                    if size[0] <= share < size[1]]
    if not regions:
        return None
    label, region = regions[rng.integers(len(regions))]
    wrong = mask.copy()
    if kind == 'class':
        wrong[region] = rng.choice(np.setdiff1d(objects, label))
        return wrong
    wrong[region] = around(mask, region, unlabelled)
    if kind == 'shifted':
        rows, columns = np.nonzero(region)
        step = [(-1, 0), (1, 0), (0, -1), (0, 1)][rng.integers(4)]
        rows = rows + step[0] * (np.ptp(rows) + 1)
        columns = columns + step[1] * (np.ptp(columns) + 1)
        inside = ((rows >= 0) & (rows < len(mask)) & (columns >= 0)
                  & (columns < mask.shape[1]))
        wrong[rows[inside], columns[inside]] = label
    return wrong


def gross_error(mask: np.ndarray, kind: str, other: np.ndarray,
                rng: np.random.Generator) -> Optional[np.ndarray]:
    """Take the mask of another image, or let a class of a tenth of the image
    become another one, None where none has a tenth."""
    if kind == 'exchanged':
        return cv2.resize(
            other, mask.shape[::-1], interpolation=cv2.INTER_NEAREST)
    labels = [x for x in LARGE if np.mean(mask == x) >= SIZES['gross'][0]]
    if not labels:
        return None
    label = rng.choice(labels)
    return np.where(mask == label, rng.choice(np.setdiff1d(LARGE, label)),
                    mask).astype(mask.dtype)


def plant(name: str, right: str, wrong: str, seed: int) -> Iterator[dict]:
    """Write the masks of a folder to another one, some with an error."""
    os.makedirs(wrong, exist_ok=True)
    before = {file: read(osp.join(right, file)) for file in os.listdir(right)}
    masks, left = dict(before), sorted(before)
    rng = np.random.default_rng(seed)
    for (size, kind), count in ERRORS[name].items():
        for file in rng.permutation(left):
            mask, (low, high) = masks[file], SIZES[size]
            if size == 'gross' and kind != 'emptied':
                other = before[rng.choice(sorted(before))]
                error = gross_error(mask, kind, other, rng)
            else:
                error = small_error(mask, kind, (low, high), OBJECTS[name],
                                    UNLABELLED[name], rng)
            if error is None or not count:
                continue
            share = float(np.mean(error != mask))
            # What moves changes up to twice its size.
            if not low <= share <= 2 * high:
                continue
            left.remove(file)
            count -= 1
            masks[file] = error
            yield dict(file=file, size=size, kind=kind, share=f'{share:.5f}')
        if count:
            raise ValueError(f'{count} {size} errors of {kind} fit nowhere')
    for file, mask in masks.items():
        if name == 'pet' and 0 not in mask:
            yield dict(file=file, size='empty', kind='of people', share='')
        cv2.imwrite(osp.join(wrong, file), mask)


def use_unet(cfg: Config, weights: List[float]) -> None:
    """Train a small UNet, which sees each pixel, by Adam."""
    stages = 4
    cfg.model.auxiliary_head = None
    cfg.model.backbone = dict(
        type='UNet',
        in_channels=3,
        base_channels=16,
        num_stages=stages,
        strides=(1, ) * stages,
        enc_num_convs=(1, ) * stages,
        dec_num_convs=(1, ) * (stages - 1),
        downsamples=(True, ) * (stages - 1),
        enc_dilations=(1, ) * stages,
        dec_dilations=(1, ) * (stages - 1),
        norm_cfg=dict(type='BN'))
    cfg.model.decode_head = dict(
        type='FCNHead',
        in_channels=16,
        in_index=stages - 1,
        channels=16,
        num_convs=0,
        concat_input=False,
        num_classes=len(weights),
        norm_cfg=dict(type='BN'),
        loss_decode=dict(type='CrossEntropyLoss', class_weight=weights))
    cfg.optim_wrapper.optimizer = dict(type='Adam', lr=0.003)
    size = cfg.model.data_preprocessor.size = 64, 80
    for step in cfg.train_dataloader.dataset.pipeline:
        if step.type == 'RandomCrop':
            step.crop_size = size


def config_of(name: str, data: str, masks: str, out: str) -> Config:
    """The config of a training that ends with a checkpoint in ``out``."""
    file = ('upernet_r18-w32_1xb8-2k_camvid-72x96.py'
            if 'camvid' in name else 'upernet_r18-w32_1xb16-4600_pet-96x96.py')
    cfg = Config.fromfile(osp.join(CONFIGS, file))
    part, tested = cfg.train_dataloader.dataset, cfg.test_dataloader.dataset
    if name == 'tiles':
        cfg.train_dataloader.batch_size = 8
        part.metainfo = tested.metainfo = dict(classes=('good', 'defect'))
        part.img_suffix = tested.img_suffix = '.png'
        part.pipeline = [
            step for step in part.pipeline if step.type != 'RandomResize'
        ]
    if name in WEIGHTS:
        use_unet(cfg, WEIGHTS[name])
    part.data_root = tested.data_root = osp.abspath(data)
    part.data_prefix.seg_map_path = osp.abspath(masks)
    iterations = ITERATIONS[name]
    cfg.train_cfg.update(max_iters=iterations, val_interval=10**9)
    cfg.param_scheduler[-1].end = iterations
    cfg.default_hooks.checkpoint = dict(
        type='CheckpointHook', by_epoch=False, interval=iterations)
    cfg.work_dir = out
    return cfg


def train(cfg: Config, seed: int) -> str:
    """Train without a validation, and return the checkpoint."""
    path = osp.join(cfg.work_dir, f'iter_{cfg.train_cfg.max_iters}.pth')
    if not osp.exists(path):
        cfg = Config(cfg.to_dict())
        for part in 'val', 'test':
            for key in 'dataloader', 'cfg', 'evaluator':
                cfg[f'{part}_{key}'] = None
        cfg.update(
            randomness=dict(seed=seed), visualizer=None, log_level='WARNING')
        cfg.experiment_name = osp.basename(cfg.work_dir)
        Runner.from_cfg(cfg).train()
    return path


def top(share: float, losses: np.ndarray, gaps: np.ndarray) -> float:
    known = np.sort(losses[~np.isnan(losses)])
    return float(known[-int(np.ceil(share * known.size)):].mean())


def smoothed(side: float, losses: np.ndarray, gaps: np.ndarray) -> float:
    """The highest mean loss of a square, its side as a share of the image's.
    """
    pixels = 2 * round(side * np.sqrt(losses.size) / 2) + 1
    return float(cv2.blur(np.nan_to_num(losses), (pixels, pixels)).max())


def contradicted(losses: np.ndarray, gaps: np.ndarray) -> float:
    return float(losses[gaps > 0.3].sum())


def worst_region(losses: np.ndarray, gaps: np.ndarray) -> float:
    _, numbers = cv2.connectedComponents(np.uint8(gaps > 0.3), connectivity=4)
    sums = np.bincount(numbers.ravel(), np.nan_to_num(losses).ravel())
    return float(sums[1:].max(initial=0))


RANKINGS: Dict[str, Callable] = {
    'highest 5 %': partial(top, 0.05),
    'highest 2 %': partial(top, 0.02),
    'highest 1 %': partial(top, 0.01),
    'highest 0.3 %': partial(top, 0.003),
    'sum where contradicted': contradicted,
    'sum in the worst region': worst_region,
    'smoothed, 5 % of the side': partial(smoothed, 0.05),
    'smoothed, 10 % of the side': partial(smoothed, 0.1),
    'mean of the squares': lambda losses, gaps: float(np.nanmean(losses**2)),
    '`regions`': lambda losses, gaps: region_share(gaps),
}


def look(cfg: Config, checkpoint: str) -> Dict[str, Tuple[np.ndarray, ...]]:
    """Losses, gaps and predictions of each image, as `mmib rank` has them."""
    reader = DatasetImages(cfg)
    predictor = Predictor(cfg, read_checkpoint(checkpoint).weights, 'cpu')
    found = {}
    for number, path in zip(reader.numbers, reader.paths()):
        sample = predictor(reader.info(number))
        seen = compare(sample, reader.read(number))
        arrays = seen['losses'], seen['gaps']
        found[osp.basename(
            str(path))] = (*(x.astype(np.float16) for x in arrays),
                           sample.pred_sem_seg.data[0].numpy().astype(
                               np.uint8))
    return found


def ranks_of(errors: List[dict], seen: dict) -> Iterator[dict]:
    """The rank of each error by each ranking, among the right images and the
    errors of the same size: as if there were no others."""
    numbers = {
        file: [
            of(*(x.astype(np.float32) for x in arrays[:2]))
            for of in RANKINGS.values()
        ]
        for file, arrays in seen.items()
    }
    for error in errors:
        others = {x['file'] for x in errors if x['size'] != error['size']}
        rivals = np.array([numbers[x] for x in numbers if x not in others])
        own = numbers[error['file']]
        # In the middle of those that have the same number.
        ranks = (1 + (rivals > own).sum(0) + (rivals >= own).sum(0)) / 2
        yield dict(
            error, images=len(rivals), **dict(zip(RANKINGS, ranks.tolist())))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n')[0])
    parser.add_argument('dataset', choices=ITERATIONS)
    parser.add_argument('source')
    parser.add_argument('out')
    parser.add_argument('--seeds', type=int, nargs='+', default=[0, 1, 2])
    args = parser.parse_args()
    torch.set_num_threads(1)
    data, name = args.source, args.dataset
    images = name.split('-')[0]
    if images != 'pet':
        data = osp.join(args.out, f'{images}-data')
        if not osp.exists(data):
            dict(camvid=prepare, tiles=copy_tiles)[images](args.source, data)
    folder = 'annotations/training' if images == 'camvid' else 'train/masks'
    right = osp.join(data, folder)
    for seed in args.seeds:
        out = osp.join(args.out, f'{name}-{seed}')
        masks = osp.join(out, 'masks')
        errors = [*plant(images, right, masks, seed)]
        pixels = osp.join(out, 'pixels.npz')
        if not osp.exists(pixels):
            cfg = config_of(name, data, masks, out)
            found = np.array(look(cfg, train(cfg, seed)), object)
            np.savez_compressed(pixels, seen=found)
        seen = np.load(pixels, allow_pickle=True)['seen'].item()
        rows = [
            dict(dataset=name, seed=seed, **row)
            for row in ranks_of(errors, seen)
        ]
        with open(osp.join(out, 'errors.csv'), 'w', newline='') as file:
            writer = csv.DictWriter(file, [*rows[0]])
            writer.writeheader()
            writer.writerows(rows)


if __name__ == '__main__':
    main()
