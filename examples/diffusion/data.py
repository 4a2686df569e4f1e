# Copyright (c) mmib contributors. All rights reserved.
"""Images of a folder, as a diffusion model takes them."""
import os.path as osp
from glob import glob

import mmcv
import torch
from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS


@DATASETS.register_module()
class ImageFolder(BaseDataset):
    """All ``*.jpg`` and ``*.png`` below a folder, without labels.

    Args:
        size (int): Height and width in pixels. Others are resized.
        **others: Arguments of MMEngine's ``BaseDataset``, such as
            ``data_root`` and ``indices``.
    """

    def __init__(self, size, **others):
        self.size = size
        super().__init__(**others)

    def load_data_list(self):
        paths = [
            path for kind in ('jpg', 'png') for path in glob(
                osp.join(self.data_root, '**', f'*.{kind}'), recursive=True)
        ]
        # In CIFAR-10's folders each class has a 0000.jpg. So the first images
        # are of all classes.
        paths.sort(key=lambda path: (osp.basename(path), path))
        if not paths:
            raise FileNotFoundError(
                f'no images below `data_root = {self.data_root!r}`')
        return [dict(img_path=path) for path in paths]

    def prepare_data(self, idx):
        image = mmcv.imread(
            self.get_data_info(idx)['img_path'], channel_order='rgb')
        image = mmcv.imresize(image, (self.size, self.size))
        image = torch.from_numpy(image).permute(2, 0, 1)
        return dict(inputs=image / 127.5 - 1)
