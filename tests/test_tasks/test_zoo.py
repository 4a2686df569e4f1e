# Copyright (c) mmib contributors. All rights reserved.
import os.path as osp
from importlib.metadata import PackageNotFoundError

import mmseg
import pytest
from mmengine.config import Config
from mmengine.config.utils import MODULE2PACKAGE

from mmib import compat, convert
from mmib.tasks.segmentation import zoo

NAME = 'upernet/upernet_r50_4xb4-80k_ade20k-512x512'
PATH = osp.join(mmseg.__path__[0], '.mim', 'configs', NAME + '.py')


@pytest.fixture
def packages(monkeypatch):
    """MMEngine's table, which is restored after the test."""
    monkeypatch.setitem(MODULE2PACKAGE, 'mmseg', 'mmsegmentation')
    return MODULE2PACKAGE


@pytest.mark.parametrize('suffix', ['', '.py'])
def test_a_config_by_its_name(suffix):
    assert zoo.resolve_config(f'mmseg::{NAME}{suffix}') == PATH


@pytest.mark.parametrize('path',
                         ['a.py', './b/mmseg.py', '/c.py', 'mmdet::a/b.py'])
def test_other_paths_stay(path):
    assert zoo.resolve_config(path) == path


@pytest.mark.parametrize('name, close', [
    ('upernet/upernet_r50_4xb4-80k_ade20k-512', NAME),
    (osp.basename(NAME), NAME),
    ('qqq', None),
])
def test_unknown_names(name, close):
    with pytest.raises(FileNotFoundError) as error:
        zoo.resolve_config(f'mmseg::{name}')
    message = str(error.value)
    assert f'`mmseg::{name}`' in message
    assert ('Close matches' in message) is (close is not None)
    if close:
        assert f'mmseg::{close}.py' in message


def test_names_of_the_zoo():
    names = zoo.zoo_names()
    assert len(names) > 600 and NAME + '.py' in names
    assert not [name for name in names if '_base_' in name]
    assert names == sorted(names)


def test_name_of_a_path(tmp_path):
    assert zoo.zoo_name(PATH) == NAME + '.py'
    assert zoo.zoo_name(str(tmp_path / 'a.py')) is None
    link = tmp_path / 'link.py'
    link.symlink_to(PATH)
    assert zoo.zoo_name(str(link)) == NAME + '.py'


def test_scoped_bases_load(tmp_path, packages):
    config = tmp_path / 'child.py'
    config.write_text(f"_base_ = 'mmseg::{NAME}.py'\n"
                      'train_cfg = dict(max_iters=5)\n')
    compat.allow_scoped_bases()
    cfg = Config.fromfile(str(config))
    assert cfg.train_cfg.max_iters == 5
    assert cfg.model.backbone == Config.fromfile(PATH).model.backbone
    assert convert(cfg).train_cfg.max_iters == 3


def test_scoped_bases_of_the_original_distribution(packages, monkeypatch):

    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(compat, 'distribution', missing)
    compat.allow_scoped_bases()
    assert packages['mmseg'] == 'mmsegmentation'
