# Copyright (c) mmib contributors. All rights reserved.
import os.path as osp

from tests.helpers.segmentors import write_images

ROOT = osp.dirname(osp.dirname(osp.dirname(osp.abspath(__file__))))
CAMVID = osp.join(ROOT, 'configs', 'upernet',
                  'upernet_r18-w32_1xb8-2k_camvid-72x96.py')
# Small, and fast.
BASE = """
_base_ = '{base}'
model = dict(
    backbone=dict(base_channels=8, stem_channels=8),
    decode_head=dict(in_channels=[8, 16, 32, 64], channels=8),
    auxiliary_head=dict(in_channels=32, channels=8))
train_dataloader = dict(batch_size=4, dataset=dict(data_root='{data}'))
val_dataloader = dict(dataset=dict(data_root='{data}'))
param_scheduler = []
train_cfg = dict(max_iters=40, val_interval=20)
"""


def write_small_camvid(folder, count):
    """Write drawn images into ``data`` of a folder, and ``base.py``, a small
    training on them."""
    write_images(folder / 'data', count, 'test', 'png')
    (folder / 'base.py').write_text(
        BASE.format(base=CAMVID, data=folder / 'data'))


def rows_of(output):
    """The cells of a printed table, without its head. The stack may have
    printed before it."""
    lines = [line for line in output.splitlines() if line.startswith('|')]
    return [[cell.strip() for cell in line.split('|')[1:-1]]
            for line in lines[2:]]
