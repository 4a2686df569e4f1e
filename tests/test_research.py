# Copyright (c) mmib contributors. All rights reserved.
"""The tables of the pages in research/ are those of the recorded results."""
import glob
import os.path as osp
import re

import numpy as np
import pytest
from mmengine.config import Config

from benchmarks.camvid.report import TASK
from benchmarks.camvid.run import ARMS, load_arms, load_base
from benchmarks.cifar10 import run
from benchmarks.cifar10.arms import OTHER_ARMS
from benchmarks.cifar10.report import block
from benchmarks.compare.arms import fingerprint
from benchmarks.compare.paired import markdown
from benchmarks.compare.report import load, report
from benchmarks.compare.results import read_results
from research.camvid.learning_rates import by_rate
from research.cifar10 import official
from research.diffusion import diffusion
from research.instruction_tuning import instruction_tuning
from research.label_errors import label_errors
from research.optimizers import weights_and_steps

ROOT = osp.dirname(osp.dirname(osp.abspath(__file__)))
RESULTS = sorted(
    glob.glob(osp.join(ROOT, 'research', 'camvid', 'camvid*.jsonl')))
CIFAR10 = sorted(glob.glob(osp.join(ROOT, 'research', 'cifar10', '*.jsonl')))
NETWORKS = 'swin-w48', 'mae-w64'
DIFFERENCE = re.compile(r'[-+]\d+\.\d+ \[[-+.\d]+, [-+.\d]+\]')


def page(name):
    path = osp.join(ROOT, 'research', name, 'README.md')
    with open(path, encoding='utf-8') as file:
        return file.read()


@pytest.mark.parametrize('path', RESULTS, ids=osp.basename)
def test_tables_are_those_of_the_results(path):
    assert report(load(path, TASK), TASK) in page('camvid')


@pytest.mark.parametrize('path', CIFAR10, ids=osp.basename)
def test_tables_of_cifar10_are_those_of_the_results(path):
    assert block(path) in page('cifar10')


def test_costs_of_the_official_package_are_those_of_the_results():
    assert official.tables() in page('cifar10')


@pytest.mark.parametrize('name', NETWORKS)
def test_tables_of_networks_are_those_of_the_results(name):
    path = osp.join(ROOT, 'research', 'networks', f'{name}.jsonl')
    assert block(path) in page('networks')
    # So that the command goes on with them.
    config, = glob.glob(
        osp.join(ROOT, 'benchmarks', 'cifar10', f'{name}_*_cifar10.py'))
    cells = run.other_cells('', {name: run.load_base('', config=config)})
    assert {(cell.arm, cell.seed, fingerprint(cell.cfg))
            for cell in cells} == {(cell['arm'], cell['seed'], cell['config'])
                                   for cell in read_results(path)}


def test_figures_in_the_text_of_networks_are_those_of_the_tables():
    _, *tables, rest = re.split(r'\n### Results of \S+|\n## What',
                                page('networks'), 3)
    figures = DIFFERENCE.findall(' '.join(rest.split()))
    assert len(figures) == 6
    assert set(figures) <= set(DIFFERENCE.findall(' '.join(tables)))


def test_tables_of_optimizers_are_those_of_the_results():
    text = page('optimizers')
    for table in weights_and_steps.tables():
        assert table in text


def test_steps_are_those_of_the_baseline_where_the_mean_weight_is_1():
    """Within 5 % where pruning and annealing begin, and else not."""
    found = weights_and_steps.edge_rows(
        read_results(weights_and_steps.path_of('classifier')), '')
    plain, divided = ([float(cell.split()[0]) for cell in row]
                      for row in found.to_numpy())
    assert np.abs(divided).max() < 5
    assert plain[0] > 40 and plain[1] < -20


def test_cells_of_optimizers_are_of_their_arms():
    """So that the commands go on with them."""
    path = osp.join(ROOT, 'benchmarks', 'cifar10',
                    'swin-w48_1xb64-625_cifar10.py')
    base = run.load_base('', changes={'evaluation.window': 5}, config=path)
    arms = {
        cell.arm: fingerprint(cell.cfg)
        for cell in run.other_cells('', {'swin-w48': base}, OTHER_ARMS, 1)
    }
    for cell in read_results(weights_and_steps.path_of('swin-w48')):
        assert cell['config'] == arms[cell['arm']]
    folder = osp.join(ROOT, 'research', 'optimizers')
    arms = arms_of(
        osp.join(folder, 'arms.py'),
        osp.join(folder, 'segformer_w16_1xb8-1k_camvid-72x96.py'))
    for cell in read_results(weights_and_steps.path_of('segformer')):
        assert cell['config'] == fingerprint(arms[cell['arm']].cfg)


def test_figures_in_the_text_of_cifar10_are_those_of_the_tables():
    """Differences with their intervals, wherever a line is broken."""
    text = page('cifar10')
    tables = [*map(block, CIFAR10), official.tables()]
    found = set()
    for table in tables:
        text = text.replace(table, '')
        found.update(DIFFERENCE.findall(table))
    figures = DIFFERENCE.findall(' '.join(text.split()))
    assert len(figures) >= 20
    assert set(figures) <= found


def test_the_table_of_learning_rates_is_that_of_the_results():
    folder = osp.join(ROOT, 'research', 'camvid')
    files = {
        rate: osp.join(folder, 'learning-rates', f'{rate}.jsonl')
        for rate in ('0.05', '0.1', '0.2', '0.3')
    }
    files['0.1'] = osp.join(folder, 'camvid-worth.jsonl')
    table = by_rate({rate: load(path, TASK) for rate, path in files.items()})
    assert markdown(table) in page('camvid')


CAMVID = osp.join(ROOT, 'configs', 'upernet',
                  'upernet_r18-w32_1xb8-2k_camvid-72x96.py')


def arms_of(path, config=CAMVID):
    return load_arms(path, load_base(config, {}))


def test_every_cell_of_the_arms_was_run():
    results = read_results(
        osp.join(ROOT, 'research', 'camvid', 'camvid.jsonl'))
    cells = {(cell['arm'], cell['seed'], cell['config']) for cell in results}
    assert cells == {(name, seed, fingerprint(arm.cfg))
                     for name, arm in arms_of(ARMS).items()
                     for seed in range(arm.seeds)}


def test_cells_of_the_follow_ups_are_of_their_arms():
    """So that the command goes on with them."""
    arms = arms_of(osp.join(ROOT, 'research', 'camvid', 'arms_worth.py'))
    configs = {name: fingerprint(arm.cfg) for name, arm in arms.items()}
    for name in ('worth', 'redundant-50', 'redundant-80'):
        path = osp.join(ROOT, 'research', 'camvid', f'camvid-{name}.jsonl')
        for cell in read_results(path):
            assert cell['config'] == configs[cell['arm']]


def rows_of(text):
    """The cells of each line of the tables of a page."""
    return [[cell.strip() for cell in line.split('|')[1:-1]]
            for line in text.split('\n') if line.startswith('|')]


@pytest.mark.parametrize('name, end, count', [('camvid', 'Why', 6),
                                              ('cifar10', 'The setting', 4)])
def test_figures_of_the_summary_are_those_of_the_tables(name, end, count):
    summary, tables = page(name).split(f'\n## {end}\n')
    _, _, *rows = rows_of(summary)
    assert len(rows) >= count
    for _, *row in rows:
        assert row in rows_of(tables)


@pytest.mark.parametrize('name', ['label-errors', 'label-errors-object'])
def test_tables_of_label_errors_are_those_of_the_results(name):
    path = osp.join(ROOT, 'research', 'label_errors', f'{name}.jsonl')
    assert label_errors.table(read_results(path)) in page('label_errors')


def test_tables_of_diffusion_are_those_of_the_results():
    folder = osp.join(ROOT, diffusion.OUT)
    for table in diffusion.tables(folder):
        assert table in page('diffusion')
    cfg = Config.fromfile(
        osp.join(ROOT, diffusion.CONFIG), import_custom_modules=False)
    names = {
        arm: fingerprint(change(cfg))
        for arm, change in diffusion.ARMS.items()
    }
    for cell in read_results(osp.join(folder, 'arms.jsonl')):
        assert cell['config'] == names[cell['arm']]


@pytest.mark.parametrize('setting', instruction_tuning.SETTINGS)
def test_tables_of_instruction_tuning_are_those_of_the_results(
        setting, monkeypatch):
    monkeypatch.chdir(ROOT)
    path = osp.join(instruction_tuning.OUT, f'{setting}.jsonl')
    assert instruction_tuning.arm_table(path) in page('instruction_tuning')
    for cell in read_results(path):
        cfg = instruction_tuning.config_of(setting, cell['arm'])
        assert cell['config'] == fingerprint(cfg)


def test_other_figures_of_instruction_tuning_are_those_of_the_results():
    folder = osp.join(ROOT, instruction_tuning.OUT)
    text = page('instruction_tuning')
    assert instruction_tuning.gradient_table(folder) in text
    summary = text.split('\n## The loss of a conversation\n')[0]
    figures = re.findall(r'(\d\.\d+) (?:from scratch|with LoRA)',
                         ' '.join(summary.split()))
    assert len(figures) == 2
    for setting, figure in zip(instruction_tuning.SETTINGS, figures):
        table = instruction_tuning.arm_table(
            osp.join(folder, f'{setting}.jsonl'))
        assert f'| neyman | 5 | {figure} |' in table
