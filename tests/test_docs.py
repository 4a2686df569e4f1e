# Copyright (c) mmib contributors. All rights reserved.
"""Tables in research/ are those of the recorded results, figures in README and
docs are those of research/, and commands exist."""
import glob
import os.path as osp
import re
import shlex

import numpy as np
import pytest
from mmengine.config import Config

import mmib
from benchmarks.camvid.report import TASK
from benchmarks.camvid.run import ARMS, load_arms, load_base
from benchmarks.cifar10 import run
from benchmarks.cifar10.arms import OTHER_ARMS
from benchmarks.cifar10.report import block
from benchmarks.compare.arms import fingerprint
from benchmarks.compare.paired import compare, markdown
from benchmarks.compare.report import load, report
from benchmarks.compare.results import read_results
from mmib_cli import COMMANDS
from research.camvid.learning_rates import by_rate
from research.cifar10 import official
from research.diffusion import diffusion
from research.hard_selection import arms_cifar10 as arms_hard
from research.hard_selection import arms_resnet
from research.hard_selection import tables as hard_selection
from research.instruction_tuning import instruction_tuning
from research.label_errors import label_errors
from research.optimizers import weights_and_steps
from research.review import known_errors
from research.review import picture as review
from research.shares import arms_cifar10, law, picture

ROOT = osp.dirname(osp.dirname(osp.abspath(__file__)))
PAGES = ['README.md'] + sorted(
    osp.relpath(path, ROOT) for pattern in ('docs/*.md', 'examples/*/*.md')
    for path in glob.glob(osp.join(ROOT, pattern)))
RESEARCH = sorted(
    osp.relpath(path, ROOT)
    for path in glob.glob(osp.join(ROOT, 'research', '*', 'README.md')))
CAMVID = osp.join(ROOT, 'configs', 'upernet',
                  'upernet_r18-w32_1xb8-2k_camvid-72x96.py')
PRETRAINED = osp.join(ROOT, 'benchmarks', 'camvid',
                      'upernet_efficientnet-lite0_1xb8-1k_camvid-72x96.py')
DIFFERENCE = re.compile(r'[-+]\d+\.\d+ \[[-+.\d]+, [-+.\d]+\]')


def read(path):
    with open(osp.join(ROOT, path), encoding='utf-8') as file:
        return file.read()


def rows_of(text):
    """The cells of each line of the tables of a page."""
    return [[cell.strip() for cell in line.split('|')[1:-1]]
            for line in text.split('\n') if line.startswith('|')]


ROWS = [row for page in RESEARCH for row in rows_of(read(page))]


def section(page, heading):
    return read(page).split(f'\n{heading}\n')[1].split('\n## ')[0]


def results(*path):
    return osp.join(ROOT, 'research', *path)


def tables_of(topic):
    """The tables of a page of research, made of the results."""
    files = sorted(glob.glob(results(topic, '*.jsonl')))
    if topic == 'camvid':
        rates = {
            rate: results(topic, 'learning-rates', f'{rate}.jsonl')
            for rate in ('0.05', '0.1', '0.2', '0.3')
        }
        rates['0.1'] = results(topic, 'camvid-worth.jsonl')
        yield markdown(by_rate({r: load(rates[r], TASK) for r in rates}))
        for path in files:
            yield report(load(path, TASK), TASK)
    elif topic in ('cifar10', 'networks'):
        yield from map(block, files)
        if topic == 'cifar10':
            yield official.tables()
    elif topic == 'shares':
        for panel in picture.PANELS:
            yield markdown(picture.losses(picture.load(panel)), 'share')
        rates = {
            rate: load(
                results(topic, 'learning-rates', f'{rate}.jsonl'), TASK)
            for rate in ('0.025', '0.05', '0.1')
        }
        yield markdown(by_rate(rates))
        yield markdown(picture.steps_table())
        yield law.in_markdown(law.law_table())
    elif topic == 'hard_selection':
        for table in (hard_selection.cifar10_table(),
                      hard_selection.camvid_table(),
                      hard_selection.rate_table()):
            yield markdown(table, 'training')
    elif topic == 'review':
        for name, (_, metric) in review.STUDIES.items():
            lines = review.load(name)
            yield markdown(review.found_table(lines), 'wrong')
            yield markdown(review.table(lines, metric), 'wrong')
        yield markdown(known_errors.table(), 'ranking')
    elif topic == 'label_errors':
        for path in files:
            yield label_errors.table(read_results(path))
    elif topic == 'instruction_tuning':
        yield instruction_tuning.gradient_table(results(topic))
        for setting in instruction_tuning.SETTINGS:
            yield instruction_tuning.arm_table(
                results(topic, f'{setting}.jsonl'))
    elif topic == 'diffusion':
        yield from diffusion.tables(results(topic))
    elif topic == 'optimizers':
        yield from weights_and_steps.tables()


@pytest.mark.parametrize('topic, count, figures', [
    ('camvid', 8, 1),
    ('cifar10', 4, 20),
    ('networks', 2, 6),
    ('shares', 5, 6),
    ('hard_selection', 3, 2),
    ('review', 5, 2),
    ('label_errors', 2, 0),
    ('instruction_tuning', 3, 0),
    ('diffusion', 3, 1),
    ('optimizers', 3, 0),
])
def test_tables_of_research(topic, count, figures):
    """They are those of the results. Differences in the text are in them."""
    text, tables = read(f'research/{topic}/README.md'), [*tables_of(topic)]
    assert len(tables) == count
    for table in tables:
        assert table in text
        text = text.replace(table, '')
    found = DIFFERENCE.findall(' '.join(text.split()))
    assert len(found) >= figures
    assert {*found} <= {*DIFFERENCE.findall(' '.join(tables))}


def on_camvid(arms, config=CAMVID, **changes):
    """The fingerprint of the config of each arm, once for each seed."""
    arms = load_arms(arms, load_base(config, changes))
    return [(name, fingerprint(arm.cfg)) for name, arm in arms.items()
            for _ in range(arm.seeds)]


def on_cifar10(name, **changes):
    """The same of other networks. With changes, of all arms."""
    path, = glob.glob(
        osp.join(ROOT, 'benchmarks', 'cifar10', f'{name}_*_cifar10.py'))
    base = run.load_base('', changes=changes, config=path)
    return [(cell.arm, fingerprint(cell.cfg)) for cell in run.other_cells(
        '', {name: base}, OTHER_ARMS if changes else None)]


def with_resnet(passes):
    """The same on CIFAR-10, at the learning rates that were tuned."""
    bases = {number: run.load_base('', number) for number in (24, 72)}
    rates = run.best_rates(
        read_results(results('cifar10', 'learning-rates.jsonl')))
    return [(cell.arm, fingerprint(cell.cfg))
            for cell in run.all_cells('', bases, rates)
            if cell.path == f'passes-{passes}.jsonl']


def in_shares():
    """The same of shares of the iterations."""
    changes = {'fast_backbone.bfloat16': True}
    cells = run.all_cells('', {24: run.load_base('', changes=changes)}, {},
                          arms_cifar10)
    return [(cell.arm, fingerprint(cell.cfg)) for cell in cells]


def with_hard_selection(setting):
    """The same of hard selection, at the learning rates that were tuned."""
    network, _, wrong = setting.partition('-')
    base = run.load_base(
        '',
        changes={'train_dataloader.dataset.wrong': 0.1} if wrong else {},
        config=results('hard_selection', f'{network}.py'))
    rates = run.best_rates(
        read_results(
            results('hard_selection', setting, 'learning-rates.jsonl')))
    arms = arms_resnet if network == 'resnet' else arms_hard
    return [(cell.arm, fingerprint(cell.cfg))
            for cell in run.all_cells('', {24: base}, rates, arms)]


def of_diffusion():
    cfg = Config.fromfile(
        osp.join(ROOT, diffusion.CONFIG), import_custom_modules=False)
    return [(arm, fingerprint(change(cfg)))
            for arm, change in diffusion.ARMS.items()]


def of_instruction_tuning(setting):
    config_of = instruction_tuning.config_of
    return [(arm, fingerprint(config_of(setting, arm)))
            for arm in ('full', 'short', 'random', 'neyman')]


def test_cells_are_of_their_arms(monkeypatch):
    """So that the commands go on with them."""
    monkeypatch.chdir(ROOT)
    follow_ups = on_camvid(results('camvid', 'arms_worth.py'))
    segformer = on_camvid(
        results('optimizers', 'arms.py'),
        results('optimizers', 'segformer_w16_1xb8-1k_camvid-72x96.py'))
    swin = on_cifar10('swin-w48', **{'evaluation.window': 5})
    for name, arms in {
            'camvid/camvid': on_camvid(ARMS),
            'camvid/camvid-worth': follow_ups,
            'camvid/camvid-redundant-50': follow_ups,
            'camvid/camvid-redundant-80': follow_ups,
            'optimizers/segformer': segformer,
            'optimizers/swin-w48': swin,
            'cifar10/passes-24': with_resnet(24),
            'cifar10/passes-72': with_resnet(72),
            'networks/swin-w48': on_cifar10('swin-w48'),
            'networks/mae-w64': on_cifar10('mae-w64'),
            'shares/passes-24': in_shares(),
            'shares/camvid': on_camvid(
                results('shares', 'arms_camvid.py'), PRETRAINED,
                **{'fast_backbone.bfloat16': False}),
            'hard_selection/camvid': on_camvid(
                results('hard_selection', 'arms_camvid.py'),
                results('hard_selection', 'camvid.py')),
            **{
                f'hard_selection/{name}/passes-24': with_hard_selection(name)
                for name in hard_selection.SETTINGS
            },
            'diffusion/arms': of_diffusion(),
            'instruction_tuning/lora': of_instruction_tuning('lora'),
            'instruction_tuning/scratch': of_instruction_tuning('scratch'),
    }.items():
        cells = [(cell['arm'], cell['config'])
                 for cell in read_results(results(f'{name}.jsonl'))
                 if cell['arm'] != 'official']
        assert {*cells} <= {*arms}, name
        if name == 'camvid/camvid' or name.startswith('networks'):
            assert sorted(cells) == sorted(arms)


@pytest.mark.parametrize('page, heading, count', [
    ('docs/results.md', '## What the choice of images was worth', 12),
    ('docs/results.md', '## CamVid', 11),
    ('docs/results.md', '## CIFAR-10', 13),
])
def test_figures_of_tables(page, heading, count):
    """Each is that of its arm in a table of research."""
    found = 0
    for row in rows_of(section(page, heading)):
        if heading.endswith('images was worth') and '[' in row[-1]:
            assert row[1:] in ROWS
        name = next((cell for cell in row if not re.match(r'\d', cell)), '')
        figures = [cell for cell in row if re.match(r'[-+\d]+\.\d', cell)]
        arms = [cell.split(':')[-1].split(',')[0].strip() for cell in row]
        others = [other for other in ROWS if {*arms} & {*other}]
        assert {*figures} <= {cell for other in others for cell in other}, name
        found += bool(figures)
    assert found == count


def test_what_is_said_of_the_law():
    text = law.sentence(law.law_table())
    for page in ('docs/method.md', 'research/shares/README.md'):
        assert text in ' '.join(read(page).split())


def test_differences_in_the_text():
    known = {
        difference
        for page in RESEARCH
        for difference in DIFFERENCE.findall(read(page))
    }
    figures = DIFFERENCE.findall(' '.join(read('docs/results.md').split()))
    assert len(figures) >= 40
    assert {*figures} <= known


def test_what_readme_tells_to_expect():
    """What plain trainings lose in fewer iterations."""

    def losses(panel):
        cells = picture.load(panel)
        first, last = (-compare(cells, (picture.PLAIN, share),
                                (picture.PLAIN, 1.))[0]
                       for share in (0.9, 0.4))
        return f'{first:.1f}', f'{(last - first) / 5:.1f}'

    (first, each), (camvid_first, camvid_each) = map(losses, picture.PANELS)
    longer = picture.Panel(
        '', 'accuracy', {
            '../cifar10/passes-72.jsonl': {
                'full': (picture.PLAIN, 1.),
                'short': (picture.PLAIN, 0.6)
            }
        })
    cells = picture.load(longer)
    lost = -compare(cells, *[(picture.PLAIN, share) for share in (0.6, 1.)])[0]
    text = ('With 90 % of them a plain training lost '
            f'{first} points on CIFAR-10 and {camvid_first} on CamVid, and '
            f'each tenth below {each} and {camvid_each} more, in three to '
            'eight seeds. Long trainings lose less: with 60 % of 72 passes '
            f'over CIFAR-10 it was {lost:.1f}.')
    assert text in ' '.join(read('README.md').split())


def test_what_readme_tells_of_reviews():
    """What looking at the highest scores brings back, and pruning."""
    lines = review.load('cifar10')
    found = review.found_table(lines).set_index('ranking', append=True)
    values = review.qualities(lines, 'accuracy').mean(axis=1)
    above = values - values['dirty_10']
    text = ('the images with the highest 20 % of the scores have '
            f'{found.loc[("10%", "score"), "first 20%"][:-1]} % of the wrong '
            'ones. Leaving out those that are wrong there brings back '
            f'{above["score_removed_10_20"]:.1f} of the '
            f'{above["dirty_00"]:.1f} points that they cost; pruning without '
            f'a review brings back {above["neyman_pruned_10_60"]:.1f}.')
    assert text in ' '.join(read('README.md').split())


@pytest.mark.parametrize('pruned, names, metric, scale', [
    ('neyman', ['camvid/camvid', 'camvid/camvid-worth'], 'mIoU', 1),
    ('neyman', ['camvid/camvid-pretrained'], 'mIoU', 1),
    ('neyman', ['cifar10/passes-24'], 'accuracy', 1),
    ('neyman', ['cifar10/passes-72'], 'accuracy', 1),
    ('neyman', ['networks/swin-w48'], 'accuracy', 1),
    ('neyman', ['networks/mae-w64'], 'loss', 1),
    ('pruned', ['diffusion/arms'], 'held_out_loss', 1000),
    ('neyman', ['instruction_tuning/lora'], 'exact', 1),
    ('neyman', ['instruction_tuning/scratch'], 'exact', 1),
])
def test_the_table_of_systems(pruned, names, metric, scale):
    files = [read_results(results(f'{name}.jsonl')) for name in names]

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
    assert row in read('docs/results.md')


def test_the_table_of_label_errors():
    names = {
        'at random': 'at random',
        'last score': 'last score',
        'moving average, the default': 'ema=0.8',
        '`--rank-by pixels`': 'mean of the highest 5% of the pixel losses',
        'cleanlab': 'cleanlab, softmin',
    }
    found = rows_of(read('research/label_errors/README.md'))
    _, _, *rows = rows_of(section('docs/report.md', '## Find label errors'))
    assert [row[0] for row in rows] == list(names)
    for name, *shares in rows:
        # In the tables of large and of small errors.
        tables = [row for row in found if row[1:2] == [names[name]]]
        assert [f'{100 * float(row[3].split()[0]):.0f} %'
                for row in tables] == shares


def test_the_api_has_all_public_names():
    documented = re.findall(r'^\.\. (?:autoclass|autofunction|data):: (\w+)$',
                            read('docs/api.rst'), re.M)
    assert {*documented, '__version__'} == set(mmib.__all__)


def commands_of(page):
    """The words of each command of a page, without those of ``cd``."""
    blocks = re.findall(r'```shell\n(.*?)```', read(page), re.S)
    inline = re.findall(r'`((?:mmib|python) [^`\n]+)`', read(page))
    lines = '\n'.join([*blocks, *inline]).replace('\\\n', ' ').split('\n')
    return [shlex.split(line, comments=True) for line in lines if line]


@pytest.mark.parametrize('page', [*PAGES, *RESEARCH, 'research/README.md'])
def test_commands_exist(page):
    """Commands of mmib, and modules and files of this project."""
    folder = osp.dirname(page) if page.startswith('examples') else ''
    for words in commands_of(page):
        if 'mmib' in words[:3] and words[0] != 'mim':
            command = words[words.index('mmib') + 1:][:1]
            assert command in ([], ['COMMAND'], *([name] for name in COMMANDS))
        for word in words:
            if re.match(r'(benchmarks|research|examples)\.', word):
                path = word.replace('.', '/')
                assert osp.exists(osp.join(ROOT, f'{path}.py')), words
            elif re.match(
                    r'(tests|tools|benchmarks|research|configs|examples)'
                    r'/.*\.(py|sh)$', word):
                assert osp.exists(osp.join(ROOT, word)), words
        if words[0] == 'python' and words[1].endswith('.py'):
            assert osp.exists(osp.join(ROOT, folder, words[1])) or osp.exists(
                osp.join(ROOT, words[1])), words


def anchors_of(page):
    text = re.sub(r'```.*?```', '', read(page), flags=re.S)
    headings = re.findall(r'^#+ (.*)$', text, re.M)
    return {
        re.sub(r'[^\w -]', '', heading.lower()).replace(' ', '-')
        for heading in headings
    }


@pytest.mark.parametrize('page', [*PAGES, *RESEARCH, 'research/README.md'])
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


def test_an_image_goes_through_two_plans():
    """The walk that docs/design.md begins with."""
    code, = re.findall(r'```python\n(.*?)```', read('docs/design.md'), re.S)
    exec(code, {})
