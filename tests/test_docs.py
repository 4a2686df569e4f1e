# Copyright (c) mmib contributors. All rights reserved.
"""Figures in the tables of README and docs are those of the tables in
research/, and links and commands exist."""
import glob
import os.path as osp
import re
import runpy
import shlex

import numpy as np
import pytest

import mmib
from mmib_cli import COMMANDS
from mmib_cli.answer import _COST

ROOT = osp.dirname(osp.dirname(osp.abspath(__file__)))


def files(*patterns):
    return sorted(
        osp.relpath(path, ROOT) for pattern in patterns
        for path in glob.glob(osp.join(ROOT, pattern)))


RESEARCH = files('research/*/README.md')
PAGES = files('*.md', 'docs/*.md', 'examples/*/*.md', 'research/*.md',
              'configs/*.md', 'benchmarks/*.md',
              'benchmarks/*/*.md') + RESEARCH
# A block whose code is no longer here begins with it.
OLD = 'git checkout '


def read(path):
    with open(osp.join(ROOT, path), encoding='utf-8') as file:
        return file.read()


def rows_of(text):
    """The cells of each line of the tables of a text."""
    return [[cell.strip() for cell in line.split('|')[1:-1]]
            for line in text.split('\n') if line.startswith('|')]


def rows(topic, *cells):
    """The rows of a page of research that have some cells."""
    found = rows_of(read(f'research/{topic}/README.md'))
    return [row for row in found if {*cells} <= {*row}]


def section(page, heading):
    return read(page).split(f'\n{heading}\n')[1].split('\n## ')[0]


def body(page, heading):
    """The rows of the tables of a section, without their heads."""
    found = rows_of(section(page, heading))
    rules = [i for i, row in enumerate(found) if {*row} == {'---'}]
    heads = {*rules, *(i - 1 for i in rules)}
    return [row for i, row in enumerate(found) if i not in heads]


def number(cell):
    """The first number of a cell."""
    return float(re.search(r'[-+]?\d+(\.\d+)?', cell)[0])


def differences_of(text):
    return re.findall(r'[-+]\d+\.\d+ \[[-+.\d]+, [-+.\d]+\]',
                      ' '.join(text.split()))


# Figures: those in the cells of tables, and differences with intervals, are
# those of the tables in research/, which `benchmarks.quality.table` prints.
# Sentences around them may change freely.


def test_differences():
    """Each is in a table of research."""
    pages = [*RESEARCH, 'docs/results.md']
    tables = '\n'.join(
        re.findall(r'^\|.*$', '\n'.join(map(read, RESEARCH)), re.M))
    for page in pages:
        text = read(page)
        if page in RESEARCH:
            text = re.sub(r'^\|.*$', '', text, flags=re.M)
        assert {*differences_of(text)} <= {*differences_of(tables)}, page


def test_what_the_choice_was_worth():
    """The rows are those of a table of research."""
    tables = rows('camvid') + rows('cifar10')
    found = body('docs/results.md', '## What the choice of images was worth')
    assert found and all(row[1:] in tables for row in found)


def column(topic, arm, title):
    """The numbers of an arm in the columns of a title on a page."""
    head, found = [], []
    for row in rows(topic):
        head = row if row[0] == 'arm' else head
        if row[0] == arm and title in head and row[head.index(title)] != '-':
            found.append(number(row[head.index(title)]))
    return found


# The pages of the rows, in their order, and what their arms are compared by.
TRAININGS = [('networks', 'accuracy'), ('networks', 'loss'),
             ('diffusion', 'held-out loss x 1000')
             ] + [('instruction_tuning', 'right answers')] * 2


def test_the_table_of_trainings():
    """V and what came of it are those of the arms on a page."""
    table = body('docs/results.md', '## Other runs')
    for row, (topic, title) in zip(table, TRAININGS, strict=True):
        pruned = 'pruned' if topic == 'diffusion' else 'neyman'
        means = re.findall(r'\d+\.\d', row[2])
        figures = [(pruned, 'V', row[1]), (pruned, title, means[0]),
                   ('short', title, means[1]), ('full', title, means[2])]
        for arm, name, figure in figures:
            # Half of its last digit.
            half = 0.51 * 10**-len(figure.split('.')[1])
            assert any(
                abs(value - float(figure)) < half
                for value in column(topic, arm, name)), (row[0], arm, name)


def cost_of(cell):
    """What a difference with an interval costs, as README has it."""
    value, low, high = map(float, re.findall(r'[-+]\d+\.\d+', cell))
    return f'{-value:.1f}' + '\\*' * (low <= 0 <= high)


def range_of(cells):
    """The lowest and the highest of what differences cost."""
    costs = sorted((cost_of(cell) for cell in cells if cell != 'not run'),
                   key=number)
    if not costs:
        return 'not run'
    low, high = costs[0], costs[-1]
    return low if low == high else f'{low} to {high}'


def is_of(dataset, setting):
    """Whether a setting of the results belongs to a row of README."""
    return setting.startswith(dataset.split(',')[0]) and (
        ('pretrained' in setting) == ('pretrained' in dataset))


TRAIN = '## Train shorter'


def test_the_costs_in_readme():
    """What fewer iterations cost on each dataset, as in the results."""
    settings, name = [], ''
    for row in body('docs/results.md', '## How much will it cost me'):
        training, epochs, *_, plain, pruned = row
        name = re.sub(r'\[([^\]]+)\]\([^)]+\)', r'\1', training) or name
        if epochs.isdigit():
            settings.append((name, int(epochs), plain, pruned))
    head, _, *table = rows_of(section('README.md', TRAIN))
    for dataset, *cells in table:
        for epochs, cell in zip(head[1:], cells, strict=True):
            low, *high = map(int, re.findall(r'\d+', epochs))
            found = [
                setting for setting in settings if is_of(dataset, setting[0])
                and low <= setting[1] <= max(high, default=low)
            ]
            settings = [each for each in settings if each not in found]
            costs = [
                range_of([setting[side] for setting in found])
                for side in (2, 3) if found
            ]
            assert cell == ' / '.join(costs), (dataset, epochs)
    assert not settings


def test_what_a_command_says_of_the_cost():
    """It is the range of the pruned runs in README, which has it twice."""
    cells = sum(body('README.md', TRAIN), [])
    costs = [
        float(cost) for cell in cells if ' / ' in cell
        for cost in re.findall(r'\d+\.\d',
                               cell.split(' / ')[1])
    ]
    for text in _COST, read('README.md').split('\n## ')[0]:
        ranges = re.findall(r'([\d.]+) to ([\d.]+) points', text)
        assert (str(min(costs)), str(max(costs))) in ranges


def test_the_rankings_in_readme():
    """The shares of the wrong labels that two rankings find among the first
    images."""
    short, long, planted, boxes = body('README.md', '## Find wrong labels')
    margin = 'margin of probabilities'
    for cell, *names in ((2, 'margin', 'margin'),
                         (3, margin, f'{margin}, as in cleanlab')):
        # The page has networks of 24 epochs first.
        for row, name, place in zip((short, long), names, (-1, 0)):
            found = rows('real_label_errors', 'network', name)[place]
            assert row[cell] == f'{number(found[-3]):.0f} %'
    names = ('mean of the highest 5% of the pixel losses', 'cleanlab, softmin')
    for cell, name in zip((2, 3), names):
        shares = ' / '.join(f'{100 * number(row[3]):.0f}'
                            for row in rows('label_errors', name))
        assert planted[cell] == f'{shares} %'
    shares = ' / '.join(row[-1].split()[0]
                        for row in body('docs/labels.md', '## Rank the images')
                        if row[0].startswith('a ') and row[-1].endswith('%'))
    assert boxes[2] == f'{shares} %'


def test_the_rule_for_other_trainings():
    """The last column of a table, from the gain, here and in the results."""
    table = rows_of(read('research/zoo/README.md').split('## Why')[0])[2:]
    of_results = [
        row for row in body('docs/results.md', '## How much will it cost me')
        if ' to ' in row[1]
    ]
    for row in table + of_results:
        bound = np.log2(1 / 0.6) * number(row[4])
        if bound < 0:
            assert row[-1] == '-'
        else:
            assert float(row[-1]) == pytest.approx(bound, abs=0.01)
    in_zoo = [[*row[:5], row[6]] for row in table]
    assert of_results and all(row in in_zoo for row in of_results)


def test_the_tables_of_rankings():
    """Of label errors, of boxes and of empty masks."""
    names = {
        'at random': 'at random',
        'last score': 'last score',
        '`score`, the moving average': 'ema=0.8',
        '`pixels`': 'mean of the highest 5% of the pixel losses',
        'cleanlab': 'cleanlab, softmin',
    }
    table = body('docs/labels.md', '## Rank the images')
    found = [row for row in table if row[0] in names]
    assert len(found) == len(names)
    for name, *shares in found:
        # In the tables of large and of small errors.
        tables = rows('label_errors', names[name])
        assert [f'{100 * number(row[3]):.0f} %' for row in tables] == shares
    for i, name in enumerate(('`missing`', '`unsupported`', '`other_class`')):
        (_, _, share), = (row for row in table if row[1] == name)
        cells = [rows('boxes', name)[0][1 + i]]
        if name == '`missing`':
            # By the limit of today, one seed in a cell.
            _, (_, *cells) = (
                row for row in rows('boxes')
                if row[0].startswith('`missing`, a fifth'))
        found = [float(re.split(' / |, ', cell.strip())[2]) for cell in cells]
        assert share == f'{sum(found) / len(found):.0f} %'
    found = body('docs/wrong_labels.md', '## Judge them')
    assert found
    for name, *counts in found:
        expected, = (
            row for row in rows('pet')
            if len(row) == 4 and row[0].startswith(name.split(',')[0]))
        assert counts == expected[1:]


def test_the_api_has_all_public_names():
    documented = re.findall(r'^\.\. (?:autoclass|autofunction|data):: (\w+)$',
                            read('docs/api.rst'), re.M)
    assert {*documented, '__version__'} == set(mmib.__all__)


def commands_of(page):
    """The words of each command of a page whose code is here."""
    blocks = re.findall(r'```shell\n(.*?)```', read(page), re.S)
    blocks = [block for block in blocks if not block.startswith(OLD)]
    inline = re.findall(r'`((?:mmib|python) [^`\n]+)`', read(page))
    lines = '\n'.join([*blocks, *inline]).replace('\\\n', ' ').split('\n')
    split = (shlex.split(line, comments=True) for line in lines)
    return [words for words in split if words]


@pytest.mark.parametrize('page', PAGES)
def test_commands_exist(page):
    """Commands of mmib, and modules and files of this project."""
    for words in commands_of(page):
        if 'mmib' in words[:3] and words[0] != 'mim':
            command = words[words.index('mmib') + 1:][:1]
            assert command in ([], ['COMMAND'], ['--print-completion'],
                               *([name] for name in COMMANDS))
        for word in words:
            if re.match(r'(benchmarks|research|examples)\.', word):
                word = f'{word.replace(".", "/")}.py'
            if re.match(
                    r'(tests|tools|benchmarks|research|configs|examples)/'
                    r'.*\.(py|sh)$', word):
                assert osp.exists(osp.join(ROOT, word)), words
        if words[0] == 'python' and words[1].endswith('.py'):
            folders = [osp.dirname(page), '']
            assert any(
                osp.exists(osp.join(ROOT, x, words[1]))
                for x in folders), words


def anchors_of(page):
    text = re.sub(r'```.*?```', '', read(page), flags=re.S)
    headings = re.findall(r'^#+ (.*)$', text, re.M)
    return {
        re.sub(r'[^\w -]', '', heading.lower()).replace(' ', '-')
        for heading in headings
    }


@pytest.mark.parametrize('page', PAGES)
def test_links_lead_somewhere(page):
    text = re.sub(r'```.*?```', '', read(page), flags=re.S)
    for link in re.findall(r'\]\(([^)\s]+)\)|^\[[^\]]+\]: (\S+)', text, re.M):
        path, _, anchor = ''.join(link).partition('#')
        if path.startswith('http'):
            continue
        path = osp.normpath(osp.join(osp.dirname(page),
                                     path)) if path else page
        assert osp.exists(osp.join(ROOT, path)), link
        assert not anchor or anchor in anchors_of(path), link


@pytest.mark.parametrize('page', PAGES)
def test_no_line_is_a_comment(page):
    """The site leaves out lines that begin with a percent sign."""
    text = re.sub(r'```.*?```', '', read(page), flags=re.S)
    assert re.findall(r'^\s*%.*$', text, re.M) == []


def test_an_image_goes_through_two_plans():
    """The walk that docs/design.md begins with."""
    runpy.run_path(osp.join(ROOT, 'examples', 'two_plans.py'))


def test_all_name_the_same_version():
    version = mmib.__version__
    assert f'\nversion: {version}\n' in read('CITATION.cff')
    newest = re.search(r'^## \[(\d.*?)\] - \d{4}-\d\d-\d\d$',
                       read('CHANGELOG.md'), re.M)[1]
    assert newest == version
    status, = re.findall(r'Development Status :: (\d)', read('setup.py'))
    assert (status == '5') == (int(version.split('.')[0]) > 0)
