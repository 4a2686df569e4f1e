# Copyright (c) mmib contributors. All rights reserved.
import os.path as osp

ROOT = osp.dirname(osp.dirname(osp.dirname(osp.abspath(__file__))))
CAMVID = osp.join(ROOT, 'configs', 'upernet',
                  'upernet_r18-w32_1xb8-2k_camvid-72x96.py')


def rows_of(output):
    """The cells of a printed table, without its head. The stack may have
    printed before it."""
    lines = [line for line in output.splitlines() if line.startswith('|')]
    return [[cell.strip() for cell in line.split('|')[1:-1]]
            for line in lines[2:]]
