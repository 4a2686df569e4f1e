# Copyright (c) mmib contributors. All rights reserved.
import glob
import os.path as osp
import re
import subprocess
import sys

import mmengine
import mmseg
import pytest
from mmengine.config import Config

from tests.system.small_training import write_images

ROOT = osp.dirname(osp.dirname(osp.abspath(__file__)))
CONFIGS = sorted(glob.glob(osp.join(ROOT, 'configs', 'upernet', '*.py')))
FLAGSHIP = 'upernet_r50_4xb4-{}_ade20k-512x512.py'
MMSEG = osp.join(mmseg.__path__[0], '.mim')


def load(name):
    return Config.fromfile(osp.join(ROOT, 'configs', 'upernet', name))


@pytest.mark.parametrize('path', CONFIGS, ids=osp.basename)
def test_configs_load_from_any_folder(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cfg = Config.fromfile(path)
    iters = cfg.train_cfg.max_iters
    assert cfg.train_cfg.type == 'IterBasedTrainLoop'
    assert cfg.param_scheduler[-1].end == iters
    for interval in (cfg.train_cfg.val_interval,
                     cfg.default_hooks.checkpoint.interval):
        assert interval == -1 or iters % interval == 0
    pruned = 'infobatch' in osp.basename(path)
    assert (cfg.train_dataloader.sampler.type == 'InfoBatchSampler') is pruned
    hooks = [hook.type for hook in cfg.get('custom_hooks', [])]
    assert ('InfoBatchHook' in hooks) is pruned
    if pruned:
        assert cfg.custom_imports.imports == ['mmib']


def test_metafiles_name_all_configs():
    """As OpenMMLab's tools read them."""
    index = mmengine.load(osp.join(ROOT, 'model-index.yml'))
    found = []
    for metafile in index['Import']:
        meta = mmengine.load(osp.join(ROOT, metafile))
        collections = {
            collection['Name']
            for collection in meta['Collections']
            if collection['Metadata']['Weight'] == ''
        }
        for model in meta['Models']:
            path = osp.join(ROOT, model['Config'])
            assert osp.dirname(path) == osp.dirname(osp.join(ROOT, metafile))
            assert model['Name'] == osp.basename(path)[:-len('.py')]
            assert model['In Collection'] in collections
            assert 'Weights' not in model
            found.append(path)
    everywhere = glob.glob(osp.join(ROOT, 'configs', '[!_]*', '*.py'))
    assert sorted(found) == sorted(everywhere)


def check_batch_size(model):
    """That a metafile has the one of all GPUs. Returns the config."""
    cfg = Config.fromfile(osp.join(ROOT, model['Config']))
    gpus = int(re.search(r'_(\d+)xb', model['Name'])[1])
    assert model['Metadata'][
        'Batch Size'] == gpus * cfg.train_dataloader.batch_size
    return cfg


def test_metafile_tells_what_was_measured():
    meta = mmengine.load(osp.join(ROOT, 'configs', 'upernet', 'metafile.yml'))
    with open(osp.join(ROOT, 'research', 'camvid', 'README.md')) as file:
        rows = [line.split(' | ') for line in file if line[:7] == '| full ']
    for model in meta['Models']:
        cfg = check_batch_size(model)
        if 'Results' in model:
            mean = f'{model["Results"]["Metrics"]["mIoU"]:.2f}'
            found = [row for row in rows if len(row) > 4 and row[4] == mean]
            assert found[0][2] == str(cfg.train_cfg.max_iters)


def test_flagship_trains_with_the_train_script_of_mmseg(tmp_path):
    """As it is from another folder, but for size, device and downloads."""
    data_root = tmp_path / 'ade'
    write_images(data_root, 12)
    changes = dict.fromkeys([
        f'{split}_dataloader.dataset.data_root'
        for split in ('train', 'val', 'test')
    ], data_root)
    changes.update(
        dict.fromkeys([
            f'model.{part}.norm_cfg.type'
            for part in ('backbone', 'decode_head', 'auxiliary_head')
        ], 'BN'))
    changes.update({
        'model.pretrained': None,
        'model.data_preprocessor.size': '(64,64)',
        'model.decode_head.channels': 32,
        'train_dataloader.dataset.pipeline.2.scale': '(96,96)',
        'train_dataloader.dataset.pipeline.3.crop_size': '(64,64)',
        'train_dataloader.num_workers': 2,
        'train_cfg.max_iters': 8,
        'train_cfg.val_interval': 100,
        'default_hooks.logger.interval': 1,
        'default_hooks.checkpoint.interval': 100,
        'default_hooks.checkpoint.save_last': False,
    })
    run = subprocess.run([
        sys.executable,
        osp.join(MMSEG, 'tools', 'train.py'),
        osp.join(ROOT, 'configs', 'upernet', FLAGSHIP.format('48k-infobatch')),
        '--cfg-options', *(f'{k}={v}' for k, v in changes.items())
    ],
                         cwd=tmp_path,
                         capture_output=True,
                         text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    output = run.stdout + run.stderr
    assert 'InfoBatch: virtual epoch 1, ' in output
    assert 'iterations until annealing' in output
    assert 'Iter(train) [8/8]' in output
    assert 'InfoBatch: 8 iterations covered ' in output
    assert (tmp_path / 'work_dirs').exists()
