# Copyright (c) mmib contributors. All rights reserved.
import json
import os.path as osp
import subprocess
import sys

import check_families
import pytest
import torch
from families import checks
from families.steps import Step, compare, holds
from mmengine.registry import DefaultScope
from mmseg.utils import register_all_modules

import mmib

ROOT = osp.dirname(osp.dirname(osp.dirname(osp.abspath(__file__))))
FCN = 'fcn/fcn_r18-d8_4xb2-80k_cityscapes-512x1024'


def run(*args):
    result = subprocess.run([
        sys.executable,
        osp.join(ROOT, 'tools', 'check_families.py'), *map(str, args)
    ],
                            capture_output=True,
                            text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_families_prune_and_are_not_run_again(tmp_path):
    out = tmp_path / 'families.jsonl'
    families = ('fcn', 'encnet', 'ocrnet')
    log = run(*families, '--out', out)
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line['family']
            for line in lines] == ['encnet', 'fcn', 'ocrnet', 'ocrnet']
    for line in lines:
        assert line['result'] == 'prunes', line
        assert line['config'] in log
        assert len(line['scores']) == 2 and len(line['scores'][0]) == 2
    assert 'sigmoid' in lines[0]['heads'][0]  # EncHead's second loss
    assert len(lines[2]['heads']) == 2  # a cascade

    before = out.read_bytes()
    assert run(*families, '--out', out) == ''
    assert out.read_bytes() == before
    table = run('--markdown', '--out', out)
    assert table.count('| prunes |') == 4
    assert '3 of 3 families prune. Configs: 4 prunes.' in table


@pytest.fixture
def scope():
    register_all_modules(init_default_scope=False)
    with DefaultScope.overwrite_default_scope('mmseg'):
        yield


@pytest.mark.parametrize('fault, reason', [
    ('forgotten', 'not what the weights by hand give'),
    ('wrong divisor', 'with weight 1 it is not stock'),
    ('weighted scores', 'depend on the weights'),
])
def test_faults_are_noticed(scope, monkeypatch, fault, reason):
    wrap_losses = checks.wrap_losses
    forward = mmib.InfoBatchLoss.forward

    def faulty_wrap(model):
        losses = wrap_losses(model)
        return losses[:1] if fault == 'forgotten' else losses

    def faulty_forward(self, *args, **kwargs):
        value = forward(self, *args, **kwargs)
        if fault == 'wrong divisor':
            value = value * 1.001
        if fault == 'weighted scores':
            self.scores = self.scores * self.weights
        return value

    monkeypatch.setattr(checks, 'wrap_losses', faulty_wrap)
    monkeypatch.setattr(mmib.InfoBatchLoss, 'forward', faulty_forward)
    line = checks.check_in(torch.float32, FCN)
    assert line['result'] == 'WRONG'
    assert reason in line['reason']


def test_a_refused_config_keeps_the_sentence(scope, monkeypatch):

    def refuse(model):
        raise ValueError('InfoBatch knows no such head.')

    monkeypatch.setattr(checks, 'wrap_losses', refuse)
    line = checks.check_in(torch.float32, FCN)
    assert line['result'] == 'clear error'
    assert line['reason'] == 'InfoBatch knows no such head.'


def test_not_a_number_never_holds():
    expected = [Step([], 1., dict(a=torch.ones(1), b=torch.ones(1)))]
    assert holds(compare(expected, expected))
    broken = expected[0].gradients | dict(a=torch.tensor([float('nan')]))
    for step in Step([], 1., broken), Step([], float('nan'), broken):
        assert not holds(compare([step], expected))


def test_the_table_shows_the_best_of_two_stacks():
    line = dict(family='ccnet', config='ccnet/x', heads=['CCHead: Loss'])
    table = check_families.table([
        dict(
            line,
            stack='OneDL 1',
            result='cannot run here',
            reason='RuntimeError: no ops'),
        dict(line, stack='OpenMMLab 1', result='prunes')
    ])
    assert '| ccnet | `x` | CCHead: Loss | prunes | OpenMMLab |' in table
    assert 'no ops' not in table


def test_unknown_families():
    with pytest.raises(SystemExit):
        check_families.main(['no_such_family'])
