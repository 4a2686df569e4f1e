# Copyright (c) mmib contributors. All rights reserved.
"""Train a segmentor: MMSegmentation's own ``tools/train.py`` with mmib's
parts registered, so with the same arguments."""
import os.path as osp
import runpy

import mmib  # noqa: F401

if __name__ == '__main__':
    # After mmib, which says what to install where there is no stack.
    import mmseg
    runpy.run_path(
        osp.join(mmseg.__path__[0], '.mim', 'tools', 'train.py'),
        run_name='__main__')
