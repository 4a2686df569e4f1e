# Copyright (c) mmib contributors. All rights reserved.
import gc
import os
import weakref
from collections import Counter

import hypothesis
import pytest
import torch
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

# The time of an example says nothing on a busy machine.
hypothesis.settings.register_profile('mmib', deadline=None)
hypothesis.settings.load_profile('mmib')

# Small networks, and tests with several processes: more threads only wait
# for each other.
torch.set_num_threads(1)
os.environ['OMP_NUM_THREADS'] = '1'
# OpenMMLab's MMEngine doesn't load its own checkpoints otherwise with torch
# 2.6 or later.
os.environ['TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD'] = '1'

_loader_iterators = weakref.WeakSet()
_init = _MultiProcessingDataLoaderIter.__init__


def _remember(self, *args, **kwargs):
    _init(self, *args, **kwargs)
    _loader_iterators.add(self)


_MultiProcessingDataLoaderIter.__init__ = _remember


@pytest.fixture(autouse=True)
def stop_workers():
    """Stop the workers of data loaders that a test leaves behind. When the
    garbage collector does it, each takes five seconds."""
    yield
    for iterator in list(_loader_iterators):
        iterator._shutdown_workers()


def pytest_addoption(parser):
    parser.addoption(
        '--kills', type=int, default=30, help='of tests/system/test_kills.py')
    parser.addoption('--seed', type=int, default=0, help='of these kills')


def pytest_collection_modifyitems(items):
    """Mark what is skipped without MMPretrain, for `make test-mmpretrain`, and
    without MMDetection."""
    texts = {
        path: path.read_text(encoding='utf-8')
        for path in {item.path
                     for item in items}
    }
    for item in items:
        for library in ('mmpretrain', 'mmdet'):
            if f"importorskip('{library}" in texts[item.path]:
                item.add_marker(library)


def pytest_collection_finish():
    """What was imported stays: the garbage collector needn't look at it again,
    nor copy it in each worker of a loader."""
    gc.freeze()


def pytest_terminal_summary(terminalreporter):
    """What the tests recorded: texts, and the sums of numbers."""
    sums = Counter()
    for report in terminalreporter.getreports('passed'):
        for name, value in report.user_properties:
            if isinstance(value, str):
                terminalreporter.line(f'{name}: {value}')
            else:
                sums[name] += value
    for name, value in sums.items():
        terminalreporter.line(f'{name}: {value}')
