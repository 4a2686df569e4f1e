# Copyright (c) mmib contributors. All rights reserved.
"""The commands with configs of MMPretrain."""
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip('mmpretrain.models', exc_type=ImportError)

from mmengine.config import Config  # noqa: E402

from mmib_cli import main  # noqa: E402
from tests.test_tasks.test_classification.small_classifier import \
    config  # noqa: E402


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Run a command, in this process and another folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv('LOCAL_RANK', '0')
    # What it replaces, it may leave replaced.
    for name in ('fromfile', '_get_cfg_path'):
        monkeypatch.setattr(Config, name, getattr(Config, name))
    monkeypatch.setattr(sys, 'argv', ['mmib'])
    return lambda *arguments: main(list(arguments))


def baseline(name):
    """A config in this folder, of a small training without pruning."""
    cfg = config('unused')
    cfg.train_dataloader.sampler.type = 'InfiniteSampler'
    cfg.custom_hooks = []
    for key in ('work_dir', 'experiment_name'):
        cfg.pop(key)
    Path(f'{name}.py').write_text(cfg.pretty_text)
    return f'{name}.py'


def test_train_runs_the_script_of_mmpretrain(run):
    # No other library's script has this option.
    run('train', baseline('small'), '--infobatch', '--no-persistent-workers')
    log, = Path('work_dirs/small-24-infobatch').glob('*/*.log')
    text = log.read_text()
    assert 'InfoBatch: 24 iterations covered' in text


def test_forecast(run, capsys):
    run('forecast', baseline('forecast'), '--infobatch')
    assert 'A pass is 22 images' in capsys.readouterr().out


@pytest.mark.parametrize('arguments', [
    ['mmpretrain::resnet/resnet18_8xb16_cifar10', '--infobatch'],
    ['mmib::resnet/resnet18_8xb16-infobatch_cifar10'],
])
def test_names_of_configs(run, arguments):
    """Up to the data, which isn't there."""
    with pytest.raises(RuntimeError, match='Cannot find CIFAR10'):
        run('train', *arguments, '--cfg-options',
            'train_dataloader.dataset.download=False')
    dumped, = Path('work_dirs/resnet18_8xb16-infobatch_cifar10').glob('*.py')
    cfg = Config.fromfile(str(dumped))
    assert cfg.train_cfg.max_epochs == 200
    assert cfg.train_dataloader.sampler.type == 'InfoBatchEpochSampler'
    assert cfg.custom_hooks[-1].policy == dict(type='Neyman', ratio=0.6)


def test_mmsegmentation_is_not_needed(tmp_path):
    name = 'mmpretrain::resnet/resnet18_8xb16_cifar10'
    code = ("import sys; sys.modules['mmseg'] = None\n"
            'from mmib_cli import main\n'
            f"main(['convert', {name!r}, {str(tmp_path)!r}])\n"
            f"main(['forecast', {name!r}, '--infobatch', '--cfg-options', "
            "'train_dataloader.dataset.download=False'])")
    result = subprocess.run([sys.executable, '-c', code],
                            cwd=tmp_path,
                            capture_output=True,
                            text=True)
    assert result.returncode == 0, result.stderr
    assert 'It saves about 40 % of the iterations.' in result.stdout
    assert "The data isn't there (Cannot find CIFAR10" in result.stdout
    assert (tmp_path / 'resnet18_8xb16-infobatch_cifar10.py').exists()
