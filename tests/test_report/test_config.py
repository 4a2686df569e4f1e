# Copyright (c) mmib contributors. All rights reserved.
import pytest
from mmengine.config import Config

from mmib.report.config import ConfigError, buildable, imports_of, read_config

VALUES = dict(
    a=[1, -2.5, None, (True, 'x'), []],
    b=dict(c={
        'not an identifier': 1,
        3: dict()
    }, d=float('inf')),
    e=-float('inf'),
    f='<script>')


def test_reads_what_mmengine_dumps(tmp_path):
    path = tmp_path / 'config.py'
    Config(VALUES).dump(path)
    assert read_config(path) == Config(VALUES).to_dict() == VALUES


@pytest.mark.parametrize('text', [
    "a = open('{}', 'w')", 'import os', "a = __import__('os').getcwd()",
    "a = dict(b=dict(**dict(c=open('{}', 'w'))))", 'a = [x for x in ()]',
    'a.b = 1', "_base_ = __import__('mmseg').__path__[0]", 'a = b'
])
def test_runs_nothing(tmp_path, text):
    path = tmp_path / 'config.py'
    path.write_text('x = 1\n' + text.format(tmp_path / 'ran'))
    with pytest.raises(ConfigError, match='line 2.*runs no config|has `\\*'):
        read_config(path)
    assert not (tmp_path / 'ran').exists()


@pytest.mark.parametrize('text', ['a = (', '\0', '(' * 10000, 'a = {[]: 1}'])
def test_no_python(tmp_path, text):
    path = tmp_path / 'config.py'
    path.write_text(text)
    with pytest.raises(ConfigError):
        read_config(path)


def test_builds_what_is_installed():
    part = dict(
        type='BaseSegDataset',
        pretrained='http://somewhere',
        pipeline=[dict(type='mmseg.LoadAnnotations')],
        backbone=dict(type='ResNet', init_cfg=dict(type='Pretrained')))
    built = buildable({}, part, trust=False)
    assert built.pretrained is None and built.backbone.init_cfg is None
    assert built.backbone.type == 'ResNet'
    assert part['pretrained'] == 'http://somewhere'


@pytest.mark.parametrize(
    'part, match',
    [
        (dict(type='os.system', command='true'), '`os.system`.*--trust'),
        (dict(type='ResNet', a=[dict(type='mmengine.load')]), 'mmengine.load'),
        (dict(type='ResNet', _scope_='os'), '--trust'),
        (dict(type='BaseSegDataset', ann_file='a.pkl'), '`ann_file`.*--trust'),
        (dict(type='BaseSegDataset',
              backend_args=dict(backend='http')), 'elsewhere'),
        (dict(type='BaseSegDataset',
              metainfo=dict(classes='http://a/b')), '`classes`.*elsewhere'),
        (dict(type='BaseSegDataset',
              metainfo=dict(classes='a.yaml')), '--trust'),
        # MMSegmentation loads such a file, and YAML may hold code.
        (dict(type='CrossEntropyLoss', class_weight='w.yml'), '`class_weight`'
         ),
        (dict(type='ResNet',
              a=__file__[:-3] + '.bin'), '`a` of the config names'),
    ])
def test_builds_nothing_else(part, match):
    with pytest.raises(ConfigError, match=match):
        buildable({}, part, trust=False)
    assert buildable({}, part, trust=True).type == part['type']


def test_a_file_without_an_end_may_hold_anything(tmp_path):
    part = dict(type='ResNet', a=str(tmp_path / 'weights'))
    assert buildable({}, part, trust=False).a == part['a']
    (tmp_path / 'weights').touch()
    with pytest.raises(ConfigError, match='`a` of the config names a file'):
        buildable({}, part, trust=False)


def test_steps_of_a_pipeline():
    """One of them unpickles its file."""
    steps = [
        dict(type='LoadImageFromFile'),
        dict(type='LoadBiomedicalImageFromFile', decode_backend='pickle')
    ]
    assert len(buildable({}, steps[:1], trust=False)) == 1
    with pytest.raises(ConfigError, match='step `LoadBiomedical.*--trust'):
        buildable({}, steps, trust=False)


def test_foreign_scope():
    with pytest.raises(ConfigError, match='`os`.*--trust'):
        buildable(dict(default_scope='os'), dict(), trust=False)


def test_custom_imports():
    config = dict(custom_imports=dict(imports=['mmib', 'mine']))
    assert imports_of(config) == ['mine']
    assert imports_of(dict(custom_imports=dict(imports='mine'))) == ['mine']
    assert imports_of({}) == []
