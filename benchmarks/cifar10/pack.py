# Copyright (c) mmib contributors. All rights reserved.
"""Pack the images of CIFAR-10 that the comparison uses into one file.

It takes training images of each class to train on, others of each class to
tune learning rates on, and all test images. The JPEG files are kept as they
are.
"""
import argparse
import glob
import os
import os.path as osp
from typing import Dict, List, Tuple

import numpy as np

TRAIN, HELD_OUT = 1000, 500

Files = List[Tuple[str, int]]


def draw_files(root: str,
               train: int = TRAIN,
               held_out: int = HELD_OUT,
               seed: int = 0) -> Dict[str, Files]:
    """Draw the images of each split, with the number of their class."""
    rng = np.random.default_rng(seed)
    splits = dict(train=[], held_out=[], test=[])
    for label, name in enumerate(sorted(os.listdir(osp.join(root, 'train')))):
        paths = {
            split: sorted(glob.glob(osp.join(root, split, name, '*.jpg')))
            for split in ('train', 'test')
        }
        if len(paths['train']) < train + held_out or not paths['test']:
            raise FileNotFoundError(
                f'{root} has {len(paths["train"])} training and '
                f'{len(paths["test"])} test images of the class {name}.')
        order = rng.permutation(len(paths['train']))
        for split, numbers in (('train', order[:train]),
                               ('held_out', order[train:][:held_out])):
            splits[split] += [(paths['train'][i], label) for i in numbers]
        splits['test'] += [(path, label) for path in paths['test']]
    return splits


def pack(splits: Dict[str, Files], out: str) -> None:
    """Write the images of all splits to an ``.npz`` file: of each split the
    bytes of its files, where each one ends, and the labels."""
    arrays = {}
    for split, files in splits.items():
        texts = [np.fromfile(path, np.uint8) for path, _ in files]
        arrays[f'{split}_bytes'] = np.concatenate(texts)
        arrays[f'{split}_ends'] = np.cumsum([len(text) for text in texts])
        arrays[f'{split}_labels'] = np.array([label for _, label in files])
    os.makedirs(osp.dirname(osp.abspath(out)), exist_ok=True)
    np.savez_compressed(out, **arrays)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        'root', help='folder with train/CLASS/*.jpg and test/CLASS/*.jpg')
    parser.add_argument('out', help='the .npz file to write')
    parser.add_argument(
        '--train',
        type=int,
        default=TRAIN,
        help='images of each class to train on (default: %(default)s)')
    parser.add_argument(
        '--held-out',
        type=int,
        default=HELD_OUT,
        help='images of each class to tune on (default: %(default)s)')
    args = parser.parse_args()
    pack(draw_files(args.root, args.train, args.held_out), args.out)


if __name__ == '__main__':
    main()
