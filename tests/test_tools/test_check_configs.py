# Copyright (c) mmib contributors. All rights reserved.
import json
import sys

import check_configs
import pytest
from mmengine.config import Config

from mmib import convert
from mmib.zoo import resolve_config

NAMES = [
    'upernet/upernet_r50_4xb4-80k_ade20k-512x512.py',
    'vpd/vpd_sd_4xb8-25k_nyu-480x480.py',
    'knet/knet-s3_r50-d8_upernet_8xb2-adamw-80k_ade20k-512x512.py'
]


@pytest.fixture
def sweep(monkeypatch, tmp_path):
    """Run the tool on a few configs and return its lines."""

    def run(*names, out='results.jsonl'):
        monkeypatch.setattr(check_configs, 'zoo_names', lambda: list(names))
        monkeypatch.setattr(sys, 'argv',
                            ['check_configs.py', '--out',
                             str(tmp_path / out)])
        with pytest.raises(SystemExit) as stop:
            check_configs.main()
        with open(tmp_path / out) as file:
            return stop.value.code, [json.loads(line) for line in file]

    return run


def test_configs_of_each_kind(sweep, capsys):
    code, lines = sweep(*NAMES)
    assert code == 0
    assert lines == [
        dict(config=name, ratio=0.6, status='ok') for name in NAMES
    ]
    assert capsys.readouterr().out.split() == ['3', 'ok']


def test_it_goes_on_where_it_stopped(sweep, monkeypatch):
    sweep(NAMES[0])
    seen = []

    def check_config(name, ratio, folder):
        seen.append(name)
        return 'a reason'

    monkeypatch.setattr(check_configs, 'check_config', check_config)
    code, lines = sweep(*NAMES[:2])
    assert seen == [NAMES[1]] and code == 1
    assert [line['status'] for line in lines] == ['ok', 'a reason']


def test_a_missing_package_is_named(sweep, tmp_path, monkeypatch):
    path = tmp_path / 'config.py'
    path.write_text("custom_imports = dict(imports='no_such_package')\n")
    monkeypatch.setattr(check_configs, 'resolve_config', lambda _: str(path))
    code, lines = sweep('any')
    assert code == 1
    assert lines[0]['status'] == (
        "needs a package: No module named 'no_such_package'")


@pytest.mark.parametrize('change, problem', [
    ({
        'param_scheduler.1.end': 90000
    }, 'param_scheduler[1] ends after the training'),
    ({
        'param_scheduler.1.end': 40000
    }, 'param_scheduler[1] ends at 40000 of 48000'),
    ({
        'param_scheduler.1.milestones': [10000, 47000]
    }, 'param_scheduler[1].milestones are outside'),
    ({
        'param_scheduler.0.end': 600,
        'param_scheduler.1.begin': 600
    }, 'param_scheduler[0] is a warm-up that changed'),
    ({
        'param_scheduler.0.end': 600
    }, 'schedulers follow each other in another way'),
    ({
        'train_cfg.val_interval': 8000
    }, '6 validations instead of 10'),
    ({
        'default_hooks.checkpoint.interval': 50000
    }, 'default_hooks.checkpoint.interval=50000'),
    ({
        'custom_hooks.0.begin_iter': 50000
    }, 'custom_hooks.0.begin_iter=50000 is after'),
    ({
        'custom_hooks.0.policy.full_iters': 1
    }, 'is not for 80000'),
])
def test_wrong_schedules_are_found(change, problem):
    before = Config.fromfile(resolve_config(f'mmseg::{NAMES[2]}'))
    after = convert(before)
    assert check_configs.check_schedule(before, after) == []
    after.merge_from_dict(change)
    problems = check_configs.check_schedule(before, after)
    assert any(
        text.startswith(problem) or problem in text
        for text in problems), problems
