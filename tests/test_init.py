# Copyright (c) mmib contributors. All rights reserved.
"""What ``import mmib`` registers, and what it needs."""
import subprocess
import sys
import textwrap

import pytest
from mmengine.registry import DATA_SAMPLERS, HOOKS, MODELS

import mmib


def test_import_registers_everything():
    assert HOOKS.get('InfoBatchHook') is mmib.InfoBatchHook
    assert DATA_SAMPLERS.get('InfoBatchSampler') is mmib.InfoBatchSampler
    assert MODELS.get('InfoBatchLoss') is mmib.InfoBatchLoss
    assert mmib.__version__


def run(code):
    return subprocess.run([sys.executable, '-c', code],
                          capture_output=True,
                          text=True)


def test_mmengine_alone_is_enough():
    """No other library of the stack is imported, so none is needed, and what
    finds wrong labels is loaded by its users alone."""
    out = run_without(['mmcv', 'mmseg', 'mmdet'], """
        import mmib
        from mmengine.config import Config
        cfg = Config(dict(
            train_cfg=dict(type='IterBasedTrainLoop', max_iters=10),
            train_dataloader=dict(sampler=dict(type='InfiniteSampler'))))
        print(mmib.convert(cfg).train_cfg.max_iters, mmib.Session.__name__)
        print(*(name for name in sys.modules if 'labels' in name))
        import mmib.labels.config
        from mmengine.registry import DATASETS
        print(DATASETS.get('ListedImages').__module__)
        """)
    assert out.splitlines() == ['6 Session', '', 'mmib.labels.listed_images']


def test_submodules_are_there_without_mmengine():
    """Before any other name was used."""
    for name in ('errors', 'labels', 'pruning', 'worth'):
        assert run_without(['mmengine'], f"""
            import mmib
            print({name!r} in dir(mmib), mmib.{name}.__name__)
        """).split() == ['True', f'mmib.{name}']


def test_rankings_need_no_mmengine():
    """And, for masks, OpenCV alone for the ranking by regions."""
    assert run_without(['mmengine', 'mmcv', 'cv2', 'pandas'], """
        import torch
        from mmib.labels.rankings import rank_labels, rank_masks
        logits = torch.eye(3)[None, :, :, None]
        print(rank_masks(logits, torch.tensor([[[0], [1], [0]]])).argmax(),
              rank_labels(torch.eye(3), torch.tensor([0, 2, 2])).argmax())
    """).split() == ['0', '1']


def run_without(blocked, code):
    """What a process prints that can't import some libraries."""
    blocks = 'import sys\n' + ''.join(f'sys.modules[{name!r}] = None\n'
                                      for name in blocked)
    result = run(blocks + textwrap.dedent(code))
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_plans_and_worth_need_numpy_alone():
    """Neither MMEngine nor torch, and ``import mmib`` loads none."""
    out = run_without(['mmengine', 'torch'], """
        import mmib.pruning, mmib.worth
        import numpy as np
        scores = np.arange(20, dtype=np.float32)
        rng = np.random.default_rng(0)
        print(len(mmib.pruning.RandomPruning(0.5)(scores, rng)))
        print(mmib.worth.variance_ratio(
            np.ones(20), scores).value)
        """)
    assert out.split() == ['10', '1.0']
    out = run_without(['mmengine'], """
        import mmib
        print(mmib.__version__, 'torch' in sys.modules)
        """)
    assert out.split() == [mmib.__version__, 'False']


@pytest.mark.parametrize('missing', ['mmengine', 'cv2'])
def test_a_session_needs_no_mmengine(missing):
    """Nor one that works: MMEngine needs cv2. What does need it says so."""
    out = run_without([missing, 'mmcv', 'mmseg', 'mmdet', 'mmpretrain'], """
        import mmib, torch
        session = mmib.Session(range(12), epochs=3, delta=1., seed=0)
        loader = session.loader(4)
        while session.epoch < 3:
            for slots, batch in loader:
                x = torch.ones(len(batch), requires_grad=True)
                session.weigh(x * (batch + 1), slots, x).mean().backward()
        print(session.progress, session.kept_share < 1)
        for name in ('InfoBatchHook', 'convert', 'nonsense'):
            try:
                getattr(mmib, name)
            except (ImportError, AttributeError) as error:
                print(type(error).__name__, error)
        print('mmengine.runner' in sys.modules)
        """)
    trained, hook, convert, nonsense, has_runner = out.splitlines()
    assert trained == '1.0 True' and has_runner == 'False'
    for name, line in (('InfoBatchHook', hook), ('convert', convert)):
        assert line.startswith(f'ImportError `mmib.{name}` needs MMEngine, ')
        assert missing in line and 'install the package' in line
        assert '`mmib.Session` works without MMEngine' in line
    assert nonsense == ("AttributeError module 'mmib' has no attribute "
                        "'nonsense'")


def test_names_of_the_package():
    """A star import has all of them."""
    names = {}
    exec('from mmib import *', names)
    assert {*mmib.__all__} <= {*names}
    assert names['Session'] is mmib.Session
