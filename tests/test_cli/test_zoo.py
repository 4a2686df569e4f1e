# Copyright (c) mmib contributors. All rights reserved.
import os.path as osp
import sys

import mmseg
import pytest
from mmengine.config import Config
from mmengine.utils import is_installed

import mmib
from mmib import convert
from mmib.errors import Refusal
from mmib_cli import zoo
from mmib_cli.files import base_expression, needs_mmib

NAME = 'upernet/upernet_r50_4xb4-80k_ade20k-512x512'
OWN = 'upernet/upernet_r18_1xb8-1k_camvid-144x192'
ROOT = osp.dirname(osp.dirname(osp.dirname(osp.abspath(__file__))))
FIND_BASE = Config._get_cfg_path
MMSEG = osp.join(mmseg.__path__[0], '.mim', 'configs')
PATH = osp.join(MMSEG, NAME + '.py')
OWN_PATH = osp.join(ROOT, 'configs', OWN + '.py')


@pytest.fixture
def scoped_bases(monkeypatch):
    """Until the test ends."""
    monkeypatch.setattr(Config, '_get_cfg_path', FIND_BASE)
    zoo.allow_scoped_bases()


@pytest.mark.parametrize('name, path', [
    (f'mmseg::{NAME}', PATH),
    (f'mmseg::{NAME}.py', PATH),
    (f'mmib::{OWN}', OWN_PATH),
    (f'mmib::{OWN}.py', OWN_PATH),
    *((path, path)
      for path in ('a.py', './b/mmseg.py', '/c.py', 'mmrotate::a/b.py')),
])
def test_a_config_by_its_name_or_path(name, path):
    assert osp.normpath(zoo.resolve_config(name)) == osp.normpath(path)


@pytest.mark.parametrize('name, close', [
    ('upernet/upernet_r50_4xb4-80k_ade20k-512', NAME),
    (osp.basename(NAME), NAME),
    ('qqq', None),
])
def test_unknown_names(name, close):
    hint = rf'. Close matches:(.|\n)*mmseg::{close}.py' if close else ': see '
    with pytest.raises(Refusal, match=f'`mmseg::{name}`{hint}'):
        zoo.resolve_config(f'mmseg::{name}')


def test_names_of_the_zoo():
    names = zoo.zoo_names(MMSEG)
    assert len(names) > 600 and NAME + '.py' in names
    assert not [name for name in names if '_base_' in name]
    assert names == sorted(names)


def test_base_of_a_path(tmp_path):
    link = tmp_path / 'link.py'
    link.symlink_to(PATH)
    assert base_expression(str(link), str(tmp_path)) == base_expression(
        PATH, str(tmp_path))
    assert eval(base_expression(PATH, str(tmp_path))) == PATH
    own = str(tmp_path / 'a.py')
    assert base_expression(own, str(tmp_path / 'b')) == "'../a.py'"


@pytest.mark.parametrize('name, cfg', [
    (f'mmseg::{NAME}.py', PATH),
    (f'mmseg::{NAME}', PATH),
    (f'mmib::{OWN}', OWN_PATH),
])
def test_scoped_bases_load(tmp_path, scoped_bases, name, cfg):
    config = tmp_path / 'child.py'
    config.write_text(f'_base_ = {name!r}\ntrain_cfg = dict(max_iters=5)\n')
    child, base = Config.fromfile(str(config)), Config.fromfile(cfg)
    assert child.train_cfg.max_iters == 5
    assert child.model.backbone == base.model.backbone
    assert convert(child).train_cfg.max_iters == 3
    assert not needs_mmib(cfg)
    # MMEngine alone finds files of OpenMMLab's distributions.
    assert needs_mmib(str(config)) is not (name == f'mmseg::{NAME}.py'
                                           and is_installed('mmsegmentation'))
    # Those beside a config are found as ever.
    assert Config.fromfile(cfg).to_dict() == base.to_dict()


def test_unknown_bases(tmp_path, scoped_bases):
    config = tmp_path / 'child.py'
    config.write_text("_base_ = 'mmib::upernet/a.py'\n")
    with pytest.raises(Refusal, match='mmib has no config'):
        Config.fromfile(str(config))
    config.write_text("_base_ = 'mmnone::upernet/a.py'\n")
    with pytest.raises(AssertionError, match='mmnone'):
        Config.fromfile(str(config))


def test_configs_of_an_installed_wheel(tmp_path, monkeypatch):
    """They lie in the package."""
    folder = tmp_path / '.mim' / 'configs' / 'upernet'
    folder.mkdir(parents=True)
    (folder / 'a.py').write_text('')
    monkeypatch.setattr(mmib.__spec__, 'submodule_search_locations',
                        [str(tmp_path)])
    assert zoo.resolve_config('mmib::upernet/a') == str(folder / 'a.py')
    assert "'/.mim/configs/upernet/a.py'" in base_expression(
        str(folder / 'a.py'), str(tmp_path))


def test_a_library_that_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, 'mmpretrain', None)
    packages = 'onedl-mmengine onedl-mmcv onedl-mmpretrain'
    with pytest.raises(Refusal, match=f'run `pip install {packages}`'):
        zoo.resolve_config('mmpretrain::resnet/resnet18_8xb16_cifar10')
    path = str(tmp_path / 'a.py')
    assert base_expression(path, str(tmp_path)) == "'a.py'"
