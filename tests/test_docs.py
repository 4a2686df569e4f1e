# Copyright (c) mmib contributors. All rights reserved.
"""What the documentation reports is what was recorded."""
import argparse
import glob
import os.path as osp
import re

import numpy as np
import pytest
from camvid.arm_configs import add_arguments, fingerprint, load_arms
from camvid.learning_rates import by_rate
from camvid.report import load, markdown, report
from camvid.results import read_results
from mmengine.config import Config

import mmib
from benchmarks import (detection_heads, diffusion, instruction_tuning,
                        label_errors, weights_and_steps)
from benchmarks.cifar10 import run
from benchmarks.cifar10.report import block

ROOT = osp.dirname(osp.dirname(osp.abspath(__file__)))
RESULTS = sorted(
    glob.glob(osp.join(ROOT, 'docs', 'evidence', 'camvid*.jsonl')))
EVIDENCE = 'evidence.md', 'evidence_cifar10.md'
CIFAR10 = sorted(
    glob.glob(osp.join(ROOT, 'docs', 'evidence', 'cifar10', '*.json*')))
NETWORKS = 'swin-w48', 'mae-w64'
DIFFERENCE = re.compile(r'[-+]\d+\.\d+ \[[-+.\d]+, [-+.\d]+\]')


def read(*path):
    with open(osp.join(ROOT, *path), encoding='utf-8') as file:
        return file.read()


@pytest.mark.parametrize('path', RESULTS, ids=osp.basename)
def test_tables_are_those_of_the_results(path):
    assert report(load(path)) in read('research', 'camvid', 'README.md')


@pytest.mark.parametrize('path', CIFAR10, ids=osp.basename)
def test_tables_of_cifar10_are_those_of_the_results(path):
    assert block(path) in read('research', 'cifar10', 'README.md')


@pytest.mark.parametrize('name', NETWORKS)
def test_tables_of_networks_are_those_of_the_results(name):
    path = osp.join(ROOT, 'docs', 'evidence', 'systems', f'{name}.jsonl')
    assert block(path).replace('\n### ', '\n## ').replace(
        '### Results', '## Results') in read('research', 'networks', 'README.md')
    # So that the command goes on with them.
    config, = glob.glob(
        osp.join(ROOT, 'benchmarks', 'cifar10', f'{name}_*_cifar10.py'))
    cells = run.other_cells({name: run.load_base('', config=config)})
    assert {(cell.arm, cell.seed, fingerprint(cell.cfg))
            for cell in cells} == {(cell['arm'], cell['seed'], cell['config'])
                                   for cell in read_results(path)}


def test_figures_in_the_text_of_networks_are_those_of_the_tables():
    page = read('docs', 'systems.md')
    section = page.split('## Swin and MAE')[-1].split('\n## ')[0]
    _, *tables, rest = re.split(r'\n### Results of \S+|\n### What', section, 3)
    figures = DIFFERENCE.findall(' '.join(rest.split()))
    assert len(figures) == 6
    assert set(figures) <= set(DIFFERENCE.findall(' '.join(tables)))


def test_tables_of_optimizers_are_those_of_the_results():
    page = read('research', 'optimizers', 'README.md')
    for table in weights_and_steps.tables():
        assert table in page


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
        for cell in run.other_cells({'swin-w48': base}, run.OTHER_ARMS, 1)
    }
    for cell in read_results(weights_and_steps.path_of('swin-w48')):
        assert cell['config'] == arms[cell['arm']]
    folder = osp.join(ROOT, 'benchmarks', 'camvid')
    arms = arms_of(
        '--arms',
        osp.join(folder, 'arms_optimizers.py'),
        config=osp.join(folder, 'segformer_w16_1xb8-1k_camvid-72x96.py'))
    for cell in read_results(weights_and_steps.path_of('segformer')):
        assert cell['config'] == fingerprint(arms[cell['arm']].cfg)


def test_figures_in_the_text_of_cifar10_are_those_of_the_tables():
    """Differences with their intervals, wherever a line is broken."""
    page, tables = read('research', 'cifar10', 'README.md'), map(block, CIFAR10)
    found = set()
    for table in tables:
        page = page.replace(table, '')
        found.update(DIFFERENCE.findall(table))
    figures = DIFFERENCE.findall(' '.join(page.split()))
    assert len(figures) >= 20
    assert set(figures) <= found


def test_the_table_of_learning_rates_is_that_of_the_results():
    folder = osp.join(ROOT, 'docs', 'evidence')
    files = {
        rate: osp.join(folder, 'learning-rates', f'{rate}.jsonl')
        for rate in ('0.05', '0.1', '0.2', '0.3')
    }
    files['0.1'] = osp.join(folder, 'camvid-worth.jsonl')
    table = by_rate({rate: load(path) for rate, path in files.items()})
    assert markdown(table) in read('research', 'camvid', 'README.md')


CAMVID = osp.join(ROOT, 'configs', 'upernet',
                  'upernet_r18-w32_1xb8-2k_camvid-72x96.py')


def arms_of(*options, config=CAMVID):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return load_arms(parser.parse_args([config, *options]))


def test_every_cell_of_the_arms_was_run():
    results = read_results(osp.join(ROOT, 'docs', 'evidence', 'camvid.jsonl'))
    cells = {(cell['arm'], cell['seed'], cell['config']) for cell in results}
    assert cells == {(name, seed, fingerprint(arm.cfg))
                     for name, arm in arms_of().items()
                     for seed in range(arm.seeds)}


def test_cells_of_the_follow_ups_are_of_their_arms():
    """So that the command goes on with them."""
    arms = arms_of('--arms',
                   osp.join(ROOT, 'benchmarks', 'camvid', 'arms_worth.py'))
    configs = {name: fingerprint(arm.cfg) for name, arm in arms.items()}
    for name in ('worth', 'redundant-50', 'redundant-80'):
        path = osp.join(ROOT, 'docs', 'evidence', f'camvid-{name}.jsonl')
        for cell in read_results(path):
            assert cell['config'] == configs[cell['arm']]


def rows_of(text):
    """The cells of each line of the tables of a page."""
    return [[cell.strip() for cell in line.split('|')[1:-1]]
            for line in text.split('\n') if line.startswith('|')]


def test_figures_of_readme_are_in_the_evidence():
    evidence = '\n'.join(read('docs', name) for name in EVIDENCE)
    section = read('README.md').split('## Does it work?')[1].split('\n## ')[0]
    figures = re.findall(r'[-+]?\d+\.\d+', section)
    assert len(figures) >= 8
    for figure in figures:
        assert re.search(rf'(?<![\d.]){re.escape(figure)}(?![\d])', evidence)
    _, _, *rows = rows_of(section)
    assert len(rows) >= 6
    for row in rows:
        assert row in rows_of(evidence)


@pytest.mark.parametrize('name, end, count',
                         [('evidence.md', 'Why', 6),
                          ('evidence_cifar10.md', 'The setting', 4)])
def test_figures_of_the_summary_are_those_of_the_tables(name, end, count):
    summary, tables = read('docs', name).split(f'\n## {end}\n')
    _, _, *rows = rows_of(summary)
    assert len(rows) >= count
    for _, *row in rows:
        assert row in rows_of(tables)


def test_the_api_has_all_public_names():
    documented = re.findall(r'^\.\. (?:autoclass|autofunction|data):: (\w+)$',
                            read('docs', 'api.rst'), re.M)
    assert set(documented) == set(mmib.__all__) - {'__version__'}


@pytest.mark.parametrize('name', ['label-errors', 'label-errors-object'])
def test_tables_of_label_errors_are_those_of_the_results(name):
    path = osp.join(ROOT, 'docs', 'evidence', f'{name}.jsonl')
    assert label_errors.table(read_results(path)) in read(
        'research', 'label_errors', 'README.md')


def test_tables_of_diffusion_are_those_of_the_results():
    folder = osp.join(ROOT, diffusion.OUT)
    for table in diffusion.tables(folder):
        assert table in read('research', 'diffusion', 'README.md')
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
    assert instruction_tuning.arm_table(path) in read(
        'research', 'instruction_tuning', 'README.md')
    for cell in read_results(path):
        cfg = instruction_tuning.config_of(setting, cell['arm'])
        assert cell['config'] == fingerprint(cfg)


def test_other_figures_of_instruction_tuning_are_those_of_the_results():
    folder = osp.join(ROOT, instruction_tuning.OUT)
    page = read('research', 'instruction_tuning', 'README.md')
    assert instruction_tuning.gradient_table(folder) in page
    summary = page.split('\n## The loss of a conversation\n')[0]
    figures = re.findall(r'(\d\.\d+) (?:from scratch|with LoRA)', summary)
    assert len(figures) == 2
    for setting, figure in zip(instruction_tuning.SETTINGS, figures):
        table = instruction_tuning.arm_table(
            osp.join(folder, f'{setting}.jsonl'))
        assert f'| neyman | 5 | {figure} |' in table


@pytest.mark.parametrize('pruned, names, metric, scale', [
    ('neyman', ['camvid', 'camvid-worth'], 'mIoU', 1),
    ('neyman', ['camvid-pretrained'], 'mIoU', 1),
    ('neyman', ['cifar10/passes-24'], 'accuracy', 1),
    ('neyman', ['cifar10/passes-72'], 'accuracy', 1),
    ('neyman', ['systems/swin-w48'], 'accuracy', 1),
    ('neyman', ['systems/mae-w64'], 'loss', 1),
    ('pruned', ['diffusion/arms'], 'held_out_loss', 1000),
    ('neyman', ['llama/lora'], 'exact', 1),
    ('neyman', ['llama/scratch'], 'exact', 1),
])
def test_the_table_of_systems(pruned, names, metric, scale):
    files = [
        read_results(osp.join(ROOT, 'docs', 'evidence', f'{name}.jsonl'))
        for name in names
    ]

    def mean(arm, value):
        # Of the first file that has the arm.
        of_arm = ([cell for cell in cells if cell['arm'] == arm]
                  for cells in files)
        return np.mean(list(map(value, next(filter(None, of_arm)))))

    def figure(cell):
        return scale * (cell if metric in cell else cell['evals'][-1])[metric]

    ratio = mean(pruned, lambda cell: cell['variance_ratio'][0])
    means = [f'{mean(arm, figure):.1f}' for arm in (pruned, 'short', 'full')]
    row = f'| {ratio:.2f} | 40 % | {" / ".join(means)} '
    assert row in read('docs', 'systems.md')


def test_the_table_of_detection_is_that_of_the_results():
    page = read('research', 'detection', 'README.md')
    results = read_results(osp.join(ROOT, detection_heads.OUT))
    rows = detection_heads.CHECKED + detection_heads.REFUSED
    assert [x['config'] for x in results
            ] == [config for _, _, configs in rows for config in configs]
    assert detection_heads.table(detection_heads.CHECKED, results) in page
    unweighted = [x['unweighted'] for x in results]
    assert f'{min(unweighted):.1f} to {max(unweighted):.1f}' in page
    by_config = {x['config']: x for x in results}
    for heads, _, (config, ) in detection_heads.REFUSED:
        key = 'elsewhere' if re.search('AutoAssign|RepPoints',
                                       heads) else 'alone'
        row = re.search(rf'^\| {heads}.*$', page, re.M)
        assert f'{100 * by_config[config][key]:.2g} %' in row[0]
