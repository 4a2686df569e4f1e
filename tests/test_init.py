# Copyright (c) mmib contributors. All rights reserved.
import ast
import subprocess
import sys
from pathlib import Path

from mmengine.registry import DATA_SAMPLERS, HOOKS, MODELS

import mmib
from mmib import pruning


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
    """No other library of the stack is imported, so none is needed."""
    result = run('import sys\n'
                 "for name in ('mmcv', 'mmseg', 'mmdet'):\n"
                 '    sys.modules[name] = None\n'
                 'import mmib\n'
                 "from mmengine.config import Config\n"
                 "cfg = Config(dict(train_cfg=dict(type='IterBasedTrainLoop', "
                 'max_iters=10), train_dataloader=dict(sampler=dict('
                 "type='InfiniteSampler'))))\n"
                 'print(mmib.convert(cfg).train_cfg.max_iters)')
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ['6']


def test_plans_and_policies_need_numpy_alone():
    """Each file of mmib/pruning, by what it imports."""
    imported = set()
    for path in Path(pruning.__file__).parent.glob('*.py'):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                imported.add(node.module)
            elif isinstance(node, ast.ImportFrom):
                # mmib/errors.py imports nothing.
                assert node.level == 1 or node.module == 'errors', path
    roots = {module.partition('.')[0] for module in imported}
    assert roots <= {*sys.stdlib_module_names, 'numpy'}
