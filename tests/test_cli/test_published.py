# Copyright (c) mmib contributors. All rights reserved.
"""What is published of a model in several lengths."""
import csv
import glob
import math
import os.path as osp
import re

import pytest

from mmib_cli.published import Published, published
from mmib_cli.zoo import installed_configs

ROOT = osp.dirname(osp.dirname(osp.dirname(__file__)))


def test_the_metafiles_of_mmseg():
    """Some of the pairs that research/zoo has found in the metafiles, by
    another reader."""
    folder, found = installed_configs('mmseg'), 0
    with open(osp.join(ROOT, 'research/zoo/results.csv')) as file:
        rows = [
            row for row in csv.DictReader(file) if row['library'] == 'mmseg'
        ]
    for row in rows[::8]:
        shorter = int(row['length'])
        expected = {
            shorter: float(row['quality']),
            2 * shorter: float(row['quality_doubled'])
        }
        for length in expected:
            name = row['model'].replace('*', str(length))
            for path in glob.glob(osp.join(folder, '*', f'{name}.py')):
                known = published(path)
                bounds = known.bounds(0.6)
                assert bounds.get('at least',
                                  0) <= bounds.get('at most', math.inf)
                assert (known.metric, known.unit) == ('mIoU', 'k')
                assert known.length == length
                assert expected.items() <= known.values.items()
                found += 1
    assert found > 30


def test_the_mean_of_a_dataset(monkeypatch):
    """The gains that research/zoo has found of all models on ADE20K."""
    path = osp.join(
        installed_configs('mmseg'),
        'upernet/upernet_r50_4xb4-160k_ade20k-512x512.py')
    known = published(path)
    with open(osp.join(ROOT, 'research/zoo/results.csv')) as file:
        gains = [
            float(row['gain']) for row in csv.DictReader(file)
            if (row['data'], row['length']) == ('ade20k', '80')
        ]
    assert known.dataset == 'ADE20K' and len(gains) == 41
    assert sorted(known.gains[80]) == pytest.approx(sorted(gains))
    # 0.737 times 1.35 and times 0.64.
    assert {'1.0', '0.5', '41'} <= numbers(known.sentences(0.6))
    # By a path from the folder, too.
    monkeypatch.chdir(osp.dirname(path))
    assert published(osp.basename(path)) == known


def numbers(text):
    return {*re.findall(r'\d+(?:\.\d+)?', text)}


UPERNET = Published('mIoU', 160, 'k', {80: 40.7, 160: 42.05}, 'ADE20K', {})


def test_the_mean_of_few_models_is_not_said():
    """Nor a mean by which more iterations make a model worse, nor one over
    other models than the first bound's."""
    for gains, is_said in (([.5] * 4, True), ([.5] * 3, False),
                           ([.5, .5, .5, -2], False)):
        known = UPERNET._replace(gains={80: gains, 160: [2] * 5})
        assert ('0.4' in numbers(known.sentences(0.6))) is is_said
        longer = known._replace(values={**known.values, 320: 42.25})
        assert ('0.4' in numbers(longer.sentences(0.6))) is is_said
        assert '1.5' not in numbers(longer.sentences(0.6))


def test_what_a_share_costs():
    """At most, or at least, the part of a doubling that is left out."""
    part = math.log2(1 / 0.6)
    assert UPERNET.bounds(0.6) == pytest.approx({'at most': 1.35 * part})
    shorter = UPERNET._replace(length=80)
    assert shorter.bounds(0.6) == pytest.approx({'at least': 1.35 * part})
    both = UPERNET._replace(values={80: 40.7, 160: 42.05, 320: 42.25})
    assert both.bounds(0.6) == pytest.approx({
        'at most': 1.35 * part,
        'at least': 0.2 * part
    })
    # The rule doesn't hold where the second doubling gains more.
    assert UPERNET._replace(values={
        80: 40.7,
        160: 42.05,
        320: 44
    }).bounds(0.6) == {}
    # Half of the length is the shorter model, and with less the rule says
    # nothing of the longer one.
    assert UPERNET.bounds(0.5) == pytest.approx({'at most': 1.35})
    assert UPERNET.bounds(0.4) == {}
    # Nothing is known of a model that a longer schedule makes worse.
    assert UPERNET._replace(values={80: 42.05, 160: 40.7}).bounds(0.6) == {}


def test_what_is_not_published(tmp_path):
    """A config without a metafile, a length or another length."""
    folder = installed_configs('mmseg')
    assert published(str(tmp_path / 'fcn_4xb4-160k_mine.py')) is None
    assert published('') is None
    assert published(osp.join(folder, 'upernet', 'mine.py')) is None
    (tmp_path / 'metafile.yml').write_text('Models:\n'
                                           '- Name: a_2x_b\n'
                                           '  Results:\n'
                                           '  - Metrics: {box AP: 37}\n'
                                           '- Name: a_1x_b\n')
    assert published(str(tmp_path / 'a_2x_b.py')) is None
    # A file of the user may hold anything.
    for text in ('', 'Models:', 'Models: [', '- Results: 3'):
        (tmp_path / 'metafile.yml').write_text(text)
        assert published(str(tmp_path / 'a_2x_b.py')) is None


def test_the_metafile_of_a_detector(tmp_path):
    """Results are a list there, of several datasets, and a length counts 12
    epochs."""
    folder = tmp_path / 'configs' / 'a'
    for name in ('a', 'b'):
        (tmp_path / 'configs' / name).mkdir(parents=True)
        (tmp_path / 'configs' / name / 'metafile.yml').write_text(
            'Models:\n'
            f'- Name: {name}_1x_c\n'
            '  Results:\n'
            '  - {Dataset: COCO, Metrics: {box AP: 37}}\n'
            '  - {Dataset: LVIS, Metrics: {box AP: 20}}\n'
            f'- Name: {name}_2x_c\n'
            '  Results:\n'
            '  - {Dataset: COCO, Metrics: {mask AP: 30}}\n'
            '  - {Dataset: COCO, Metrics: {box AP: 38.5}}\n')
    known = published(str(folder / 'a_1x_c.py'))
    assert known == ('box AP', 1, 'x', {
        1: 37,
        2: 38.5
    }, 'COCO', {
        1: [1.5, 1.5]
    })
    # Other folders may be anybody's.
    (tmp_path / 'configs').rename(tmp_path / 'home')
    known = published(str(tmp_path / 'home' / 'a' / 'a_1x_c.py'))
    assert known.gains == {1: [1.5]}


def test_a_metafile_holds_plain_values(tmp_path):
    """It may be somebody else's, so a file with objects of Python is passed
    over."""
    text = ('- {Name: a_1x_b, Results: {Metrics: {box AP: 37}}}\n'
            '- {Name: a_2x_b, Results: {Metrics: {box AP: 38}}}\n')
    for more, is_read in (('', True), ('- !!python/tuple [1]\n', False)):
        (tmp_path / 'metafile.yml').write_text(text + more)
        assert (published(str(tmp_path / 'a_1x_b.py')) is not None) is is_read
