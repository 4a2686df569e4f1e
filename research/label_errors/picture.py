# Copyright (c) mmib contributors. All rights reserved.
"""Draw the images with the highest scores of a training with label errors.

The demo's scenes are drawn, of which a tenth is mislabelled; more masks become
wrong by corrupt_masks.py, and the demo's config trains on them with
`ema=0.8`.
"""
import argparse
import os.path as osp
import subprocess
import sys
from typing import Dict, Sequence

import matplotlib
import mmcv
import numpy as np
from mmengine.config import Config
from mmengine.runner import Runner

from research.pruned_training import infobatch_hook

from .corrupt_masks import copy_with_errors

matplotlib.use('Agg')
import matplotlib.pyplot as plt  # noqa: E402

ROOT = osp.join(osp.dirname(osp.abspath(__file__)), '..', '..')
CONFIG = osp.join(ROOT, 'configs', 'upernet',
                  'upernet_r18_1xb8-300-infobatch_demo-64x64.py')
SHARE = 0.05
NUM_DRAWN, NUM_COLUMNS = 16, 8
# What each image is, and whether its mask is wrong.
TITLES = dict(
    classes='classes swapped',
    shifted='mask shifted',
    exchanged='mask of another',
    mislabelled='shapes mislabelled')
WRONG, RIGHT = '#c0392b', '0.6'


def draw(images: Sequence[str], scores: np.ndarray, errors: Dict[str, dict],
         palette: Sequence) -> plt.Figure:
    """Draw the images with the highest scores over their masks.

    Args:
        images (list[str]): Paths of the demo's images.
        scores (np.ndarray): Score of each of them, of shape (N,).
        errors (dict[str, dict]): What :func:`copy_with_errors` returned.
        palette (list): RGB colour of each class.
    """
    colours = np.array([[255] * 3, *palette], np.uint8)
    num_rows = -(-NUM_DRAWN // NUM_COLUMNS)
    figure, axes = plt.subplots(
        2 * num_rows,
        NUM_COLUMNS,
        figsize=(1.35 * NUM_COLUMNS, 2.95 * num_rows),
        layout='constrained')
    figure.get_layout_engine().set(h_pad=0.02, w_pad=0.02, hspace=0, wspace=0)
    for rank, index in enumerate(np.argsort(-scores)[:NUM_DRAWN]):
        row, column = divmod(rank, NUM_COLUMNS)
        path = images[index]
        name = osp.splitext(osp.basename(path))[0]
        kind = errors[name]['kind'] if name in errors else name.split('_')[0]
        colour = WRONG if kind in TITLES else RIGHT
        mask = mmcv.imread(
            path.replace('images', 'annotations').replace('.jpg', '.png'),
            'unchanged')
        shown = mmcv.imread(path, channel_order='rgb'), colours[mask]
        for axis, picture in zip(axes[2 * row:2 * row + 2, column], shown):
            axis.imshow(picture)
            axis.set(xticks=[], yticks=[])
            axis.spines[:].set(color=colour, linewidth=2.5)
        title = f'{rank + 1}. {TITLES.get(kind, f"right, {kind}")}'
        axes[2 * row, column].set_title(title, color=colour, size=7)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('out', help='picture to write, such as a JPEG')
    parser.add_argument('--work-dir', default='work_dirs/label_errors_picture')
    args = parser.parse_args()

    drawn, data = (
        osp.join(args.work_dir, folder) for folder in ('drawn', 'data'))
    script = osp.join(ROOT, 'tools', 'make_demo_data.py')
    subprocess.run([sys.executable, script, drawn], check=True)
    errors = copy_with_errors(drawn, data, SHARE, seed=0)
    cfg = Config.fromfile(CONFIG)
    cfg.work_dir = args.work_dir
    cfg.custom_hooks[-1].ema = 0.8
    cfg.train_dataloader.dataset.data_root = data
    cfg.val_dataloader.dataset.data_root = drawn
    runner = Runner.from_cfg(cfg)
    runner.train()
    hook = infobatch_hook(runner)
    images = [
        info['img_path']
        for info in map(hook.dataset.get_data_info, range(len(hook.dataset)))
    ]
    palette = hook.dataset.metainfo['palette']
    figure = draw(images, hook.scores.numpy(), errors, palette)
    figure.savefig(args.out, dpi=110)


if __name__ == '__main__':
    main()
