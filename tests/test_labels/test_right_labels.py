# Copyright (c) mmib contributors. All rights reserved.
"""From right labels that a person gives in a browser to a training with them,
of images with one class each."""
import os
import re
import shlex
from html import unescape

import cv2
import numpy as np
import pytest

pytest.importorskip('mmpretrain.models', exc_type=ImportError)

from mmengine.hooks import Hook  # noqa: E402
from mmengine.registry import HOOKS  # noqa: E402

import mmib_cli  # noqa: E402
from tests.helpers.work_dirs import rank_by_score  # noqa: E402
from tests.test_tasks.test_classification.small_classifier import \
    config  # noqa: E402

from . import test_page  # noqa: E402
from .test_page import current, rows_of, said, save, verdicts  # noqa: E402

browser = test_page.browser
# Their numbers are in the order of the alphabet.
CLASSES = ('<i>white', 'black', 'grey', 'greyish')
WHITE = CLASSES[0]
# Images of the first class that lie in the folder of the second one.
WRONG = ('black/0.png', 'black/1.png')


@HOOKS.register_module()
class NoteLabels(Hook):
    """Notes name and label of each image that is trained on."""

    seen: set = set()

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        for sample in data_batch['data_samples']:
            name = '/'.join(sample.img_path.split('/')[-2:])
            self.seen.add((name, int(sample.gt_label)))


def write_images(root):
    """A folder of 6 images for each class."""
    rng = np.random.default_rng(0)
    for label, name in enumerate(CLASSES):
        (root / name).mkdir(parents=True)
        for i in range(6):
            shade = 0 if f'{name}/{i}.png' in WRONG else label
            image = rng.integers(30, size=(16, 16, 3)) + 70 * (-shade % 4)
            cv2.imwrite(str(root / name / f'{i}.png'), image)


def write_config(path):
    """A baseline on these images, by epochs."""
    steps = [dict(type='LoadImageFromFile'), dict(type='PackInputs')]
    dataset = dict(type='CustomDataset', data_root='data', pipeline=steps)
    loader = dict(
        batch_size=4,
        num_workers=1,
        sampler=dict(type='DefaultSampler', shuffle=False),
        collate_fn=dict(type='default_collate'),
        dataset=dataset)
    cfg = config(
        'unused',
        model=dict(
            data_preprocessor=dict(
                num_classes=4, mean=[127.] * 3, std=[80.] * 3),
            head=dict(num_classes=4)),
        train_dataloader=dict(
            num_workers=2,
            dataset=dict(dataset, _delete_=True),
            sampler=dict(type='DefaultSampler', shuffle=True)),
        optim_wrapper=dict(optimizer=dict(lr=0.5)),
        train_cfg=dict(
            _delete_=True, by_epoch=True, max_epochs=12, val_interval=12),
        val_dataloader=loader,
        val_cfg=dict(),
        val_evaluator=dict(type='Accuracy'))
    cfg.custom_hooks = [dict(type='NoteLabels')]
    for key in ('work_dir', 'experiment_name'):
        cfg.pop(key)
    path.write_text(cfg.pretty_text)


@pytest.fixture(scope='module')
def base(tmp_path_factory):
    """The folder of a finished training with scores, and its ranking."""
    base = tmp_path_factory.mktemp('labels')
    write_images(base / 'data')
    write_config(base / 'small.py')
    here = os.getcwd()
    os.chdir(base)
    try:
        mmib_cli.main(['train', 'small.py', '--score', '--work-dir', 'run'])
        mmib_cli.main([*rank_by_score('run'), '--images', '12'])
    finally:
        os.chdir(here)
    return base


@pytest.fixture
def opened(browser, base):
    page = base / 'run' / 'rank_train.html'
    browser.errors.clear()
    browser.open(page)
    browser.run('localStorage.clear()')
    browser.open(page)
    yield browser
    assert not browser.errors


def given(browser):
    """What the inputs of the cards show, '' where they have none."""
    return browser.run('[...document.querySelectorAll(".card input")]'
                       '.map(input => input.hidden ? null : input.value)')


def predicted(browser):
    return browser.run('[...document.querySelectorAll(".card")]'
                       '.map(card => card.dataset.predicted)')


def test_labels_by_keys(opened, base):
    """1, Enter, and the next one."""
    proposed = predicted(opened)
    assert proposed[:2] == [WHITE] * 2
    # Where the network agrees with the label it proposes none.
    nothing = proposed.index('')
    opened.press('2', '1', 'Enter')
    assert current(opened) == 1
    # Letters find a class, whatever their case, and Escape gives none.
    opened.press('1', *'ITE', 'Enter', '1', *'grey', 'Enter', '1', 'Escape')
    assert current(opened) == 4
    assert said(opened) == '4 of 12 looked at, 4 wrong'
    assert given(opened)[:5] == [WHITE, WHITE, 'grey', '', None]
    # What several classes have, or none, isn't taken.
    for letters in ('gr', 'zebra'):
        opened.press('1', *letters, 'Enter')
        assert given(opened)[4] == letters and current(opened) == -1
        opened.press('Escape')
        assert given(opened)[4] == '' and current(opened) == 5
        opened.press('u')
    opened.press(*['3'] * (nothing - 4), '1', 'Enter')
    assert given(opened)[nothing] == '' and current(opened) == nothing + 1
    rows = rows_of(save(opened))
    assert [*rows[0]][-1] == 'label'
    assert [row['label'] for row in rows[:5]] == [WHITE, WHITE, 'grey', '', '']
    assert [row['verdict'] for row in rows[:4]] == ['wrong'] * 4
    opened.open(base / 'run' / 'rank_train.html')
    assert given(opened)[:4] == [WHITE, WHITE, 'grey', '']


def test_labels_are_taken_back(opened):
    opened.press('2', '1', 'Enter')
    opened.press('u')
    assert (verdicts(opened)[0], given(opened)[0]) == ('wrong', '')
    assert current(opened) == 0
    opened.press('u')
    assert (verdicts(opened)[0], given(opened)[0]) == ('', None)
    # Another verdict has no label.
    opened.press('1', 'Enter', 'ArrowLeft', '2')
    assert (verdicts(opened)[0], given(opened)[0]) == ('hard', None)
    opened.press('u')
    assert given(opened)[0] == WHITE
    # The same verdict keeps the label, which can be changed and removed.
    opened.press('1', *'grey', 'Enter')
    assert given(opened)[0] == 'grey'
    opened.press('ArrowLeft', '1', 'x', 'Escape')
    assert given(opened)[0] == 'grey'
    opened.press('Enter')
    assert opened.run('document.querySelector("#large").open')


def test_labels_by_clicks(opened):
    """A class that the mouse takes from the list stays, half a name
    doesn't."""
    card = '.card:nth-child({}) '.format
    for number, letters in ((1, 'grey'), (2, 'gr'), (3, '')):
        opened.click(card(number) + 'button[value=wrong]')
        assert opened.run('document.activeElement.matches('
                          f'"{card(number)}input")')
        opened.press(*letters)
    opened.click(card(4) + '.path')
    assert given(opened)[:4] == ['grey', '', '', None]
    opened.click('#bar [data-is=undo]')
    assert verdicts(opened)[:3] == ['wrong', 'wrong', '']
    # A click into the input of another card leads there.
    opened.click(card(2) + 'input')
    opened.press(*'black', 'Enter')
    assert given(opened)[:2] == ['grey', 'black'] and current(opened) == 2
    opened.click(card(1) + 'button[value=wrong]')
    assert given(opened)[:2] == [None, 'black']


def test_a_key_that_is_held_down_is_no_label(opened):
    opened.press('2', '1')
    typed = dict(type='keyDown', key='1', code='1', text='1')
    opened('Input.dispatchKeyEvent', autoRepeat=True, **typed)
    assert given(opened)[0] == ''
    opened('Input.dispatchKeyEvent', **typed)
    assert given(opened)[0] == '1'


def test_labels_below_the_large_picture(opened):
    opened.press('2', 'Enter', '1')
    place = opened.run('''(() => {
        const box = document.activeElement.getBoundingClientRect();
        return [document.activeElement.closest('#large') !== null,
                box.height > 0, box.bottom <= innerHeight];
    })()''')
    assert place == [True] * 3
    opened.press('Enter', '1', 'Escape')
    assert opened.run('document.querySelector("#large").open')
    opened.press('3', 'Escape')
    opened.wait('document.activeElement.matches(".card:nth-child(4)")')
    assert verdicts(opened)[:3] == ['wrong', 'wrong', 'unsure']
    assert given(opened)[:3] == [WHITE, '', None]


def test_the_list_can_be_read_aloud(opened):
    """It has a name, and all classes, as text."""
    opened.press('2', '1')
    assert opened.run('''(() => {
        const input = document.activeElement;
        return [input.ariaLabel, input.placeholder,
                [...input.list.options].map(option => option.value)];
    })()''') == ['right class', f'Enter: {WHITE}', [*CLASSES]]
    assert opened.run(
        'document.querySelectorAll("i:not(.legend i)").length') == 0


def labels_of(*arguments):
    """Label of each image that a training reads."""
    NoteLabels.seen.clear()
    mmib_cli.main(['train', *arguments])
    found = dict(NoteLabels.seen)
    assert len(found) == len(NoteLabels.seen)
    return {name: CLASSES[label] for name, label in found.items()}


def test_the_whole_way(opened, base, monkeypatch):
    """What the page saves is what the command that it shows trains with, also
    from the checkpoint of a stopped training."""
    opened.press('2', '1', 'Enter', '1', *'grey', 'Enter', '1', 'Escape')
    path = save(opened)
    monkeypatch.chdir(base)
    names = ['/'.join(row['image'].split('/')[-2:]) for row in rows_of(path)]
    path.rename(base / 'review.csv')
    expected = {f'{name}/{i}.png': name for name in CLASSES for i in range(6)}
    expected.update({names[0]: WHITE, names[1]: 'grey'})
    del expected[names[2]]
    text = (base / 'run' / 'rank_train.html').read_text('utf-8')
    command = unescape(re.search('<pre>(.*?)</pre>', text, re.S)[1])
    _, train, *arguments = shlex.split(command)
    assert train == 'train' and arguments[1:3] == ['--relabel', 'review.csv']
    length = '--cfg-options', 'train_cfg.max_epochs='
    assert labels_of(*arguments, length[0], f'{length[1]}2') == expected
    assert labels_of(*arguments, '--resume', length[0],
                     f'{length[1]}4') == expected
    log = next((base / 'run_review').glob('*/*.log')).read_text()
    assert 'the dataset has 23 of 24 images; with labels of review.csv: 2; ' \
        'left out by review.csv: 1' in log
    # Of the next round numbers are those of all images, and it goes on.
    mmib_cli.main([
        *rank_by_score('run_review'), '--images', '50', '--review',
        'review.csv'
    ])
    report = (base / 'run_review' / 'rank_train.html').read_text('utf-8')
    assert len(rows_of(base / 'run_review' / 'rank_train_images.csv')) == 23
    assert names[0] not in re.findall('class="path">(.*?)<', report)
    command = unescape(re.search('<pre>(.*?)</pre>', report, re.S)[1])
    assert ('--cfg-options train_dataloader.dataset.relabel=reviews-2.csv'
            in command)
