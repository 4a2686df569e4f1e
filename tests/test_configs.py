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

import mmib
from mmib_cli.files import converted_name
from mmib_cli.zoo import resolve_config
from tests.helpers.pages import code_of
from tests.helpers.segmentors import write_images

ROOT = osp.dirname(osp.dirname(osp.abspath(__file__)))
CONFIGS = sorted(glob.glob(osp.join(ROOT, 'configs', 'upernet', '*.py')))

# Those that a conversion makes of a baseline: its ratio, and its policy.
SHIPPED = {
    # Under the name that a conversion gives them.
    'upernet_r50_4xb4-48k-infobatch_ade20k-512x512': (0.6, None),
    'upernet_r50_4xb4-64k-infobatch_ade20k-512x512': (0.8, None),
    'upernet_r18_1xb8-600-infobatch_camvid-144x192': (0.6, None),
    # Others.
    'upernet_r50_4xb4-48k-infobatch-tiers_ade20k-512x512': (
        0.6,
        dict(type='QuantileTiers', quantiles=(0.2, 0.85), ratios=(0.75, 0.5))),
    'upernet_r50_4xb4-64k-infobatch-mean_ade20k-512x512': (
        0.8, dict(type='MeanThreshold', ratio=0.5)),
}


@pytest.mark.parametrize('path', CONFIGS, ids=osp.basename)
def test_configs_load_from_any_folder(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cfg = Config.fromfile(path)
    iters = cfg.train_cfg.max_iters
    assert cfg.param_scheduler[-1].end == iters
    for interval in (cfg.train_cfg.val_interval,
                     cfg.default_hooks.checkpoint.interval):
        assert interval == -1 or iters % interval == 0
    if 'infobatch' in osp.basename(path):
        assert cfg.train_dataloader.sampler.type == 'InfoBatchSampler'
        assert cfg.custom_hooks[-1].type == 'InfoBatchHook'
        assert cfg.custom_imports.imports == ['mmib']


@pytest.mark.parametrize('name', SHIPPED)
def test_shipped_configs_are_those_of_a_conversion(name):
    ratio, policy = SHIPPED[name]
    baseline = ('mmseg::upernet/upernet_r50_4xb4-80k_ade20k-512x512'
                if 'ade' in name else
                'mmib::upernet/upernet_r18_1xb8-1k_camvid-144x192')
    path = resolve_config(baseline)
    before = Config.fromfile(path)
    after = mmib.convert(before, ratio, policy=policy)
    shipped = osp.join(ROOT, 'configs', 'upernet', f'{name}.py')
    assert after.to_dict() == Config.fromfile(shipped).to_dict()
    if policy is None:
        assert name == converted_name(path, before, after)


def test_the_page_has_the_config_of_a_conversion(tmp_path):
    """It inherits from another folder here."""
    base = resolve_config(
        'mmseg::upernet/upernet_r50_4xb4-160k_ade20k-512x512')
    code, = code_of('config.md', '## Write the config')
    path = tmp_path / 'by_hand.py'
    path.write_text(code.replace(f'./{osp.basename(base)}', base))
    after = mmib.convert(Config.fromfile(base), 0.6)
    assert after.to_dict() == Config.fromfile(path).to_dict()
    # README leaves out what has a default, and intervals that still fit.
    code, = code_of('../README.md', '## In a config')
    path.write_text(code.replace(f'./{osp.basename(base)}', base))
    short = Config.fromfile(path)
    intervals = short.train_cfg, short.default_hooks.checkpoint
    for cfg, name in zip(intervals, ('val_interval', 'interval')):
        assert 96000 % cfg.pop(name) == 0
    after.train_cfg.pop('val_interval')
    after.default_hooks.checkpoint.pop('interval')
    after.param_scheduler[0].pop('begin')
    after.custom_hooks[0].pop('delta')
    assert after.to_dict() == short.to_dict()


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
    changes = {
        f'{split}_dataloader.dataset.data_root': data_root
        for split in ('train', 'val', 'test')
    }
    for part in ('backbone', 'decode_head', 'auxiliary_head'):
        changes[f'model.{part}.norm_cfg.type'] = 'BN'
    changes.update({
        'model.pretrained': None,
        'model.backbone.base_channels': 8,
        'model.backbone.stem_channels': 8,
        'model.data_preprocessor.size': '(64,64)',
        'model.decode_head.in_channels': '(32,64,128,256)',
        'model.decode_head.channels': 32,
        'model.auxiliary_head.in_channels': 128,
        'model.auxiliary_head.channels': 32,
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
        osp.join(mmseg.__path__[0], '.mim', 'tools', 'train.py'),
        osp.join(ROOT, 'configs', 'upernet', f'{[*SHIPPED][0]}.py'),
        '--cfg-options', *(f'{k}={v}' for k, v in changes.items())
    ],
                         cwd=tmp_path,
                         capture_output=True,
                         text=True)
    output = run.stdout + run.stderr
    assert run.returncode == 0, output
    assert 'InfoBatch: virtual epoch 1, ' in output
    assert 'iterations until annealing' in output
    assert 'Iter(train) [8/8]' in output
    assert 'InfoBatch: 8 iterations covered ' in output
    assert (tmp_path / 'work_dirs').exists()
