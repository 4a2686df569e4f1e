# Copyright (c) mmib contributors. All rights reserved.
"""The row of figures on top of a report."""
import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmib.report import page
from mmib.report.page import environment_of, quality_gain, summary, verdict
from mmib.report.read import read_run
from mmib.worth import VarianceRatio
from tests.helpers.work_dirs import (BEGINS, CONFIG, ENDS, PLANS, plan,
                                     train_line, val_line, write_finished,
                                     write_start)

PLAIN = CONFIG[CONFIG.index('default_scope'):]


@pytest.fixture
def choice(tmp_path):
    """What is said of the choice of images, beside another training whose
    mIoU is known at its last iteration."""
    run = read_run(str(write_finished(tmp_path / 'run')))

    def said(iterations, miou, metric=val_line, **others):
        folder = write_start(
            tmp_path / 'other',
            [train_line(1, 1.), metric(iterations, miou)],
            config=PLAIN,
            **others)
        figures = summary(run, [read_run(str(folder))])
        figure, = [x for x in figures if x.title == 'Choice of images']
        assert figure.value == 'V 0.90' and 'up to 10 %' in figure.note
        return figure.note.partition('random it is 1).')[-1]

    return said


NOTHING = 'More iterations brought no mIoU here, so what the choice brought '


@pytest.mark.parametrize('iterations, miou, text', [
    (80, 42., 'By what more iterations brought in other, that can have '
     'brought +0.36 mIoU (+0.16 to +0.61; the spread of seeds'),
    (20, 38., 'brought +0.26 mIoU (+0.14 to +0.38;'),
    (40, 42., 'plain run of another length'),
    (45, 42., 'plain run of another length'),
    (80, 39., NOTHING),
    (20, 41., NOTHING),
])
def test_what_the_choice_can_have_brought(choice, iterations, miou, text):
    """Twice the iterations bring 2 points more than the choice, which is worth
    1 / 0.9 times the iterations: by -log(0.9) / log(2 * 0.9) of it. Half of
    them without a choice cost as much. A training about as long tells nothing
    of more steps."""
    assert text in choice(iterations, miou)


def test_several_seeds(choice, tmp_path):
    """Their mean and spread, also in what the choice can have brought."""
    run = read_run(str(write_finished(tmp_path / 'pruned')))
    seeds = []
    for i, miou in enumerate((41., 42., 43.)):
        lines = [train_line(1, 1.), val_line(80, miou)]
        folder = write_start(tmp_path / f'seed{i}', lines, config=PLAIN)
        seeds.append(read_run(str(folder)))
    notes = {figure.title: figure.note for figure in summary(run, seeds)}
    assert notes['mIoU'] == (
        'at iteration 40; highest 40.00 at 40; seed0: 41.00 at 80; '
        'seed1: 42.00 at 80; seed2: 43.00 at 80; '
        'mean of seed0, seed1, seed2, which have one config: 42.00, '
        'standard deviation 1.00')
    assert 'brought in seed0, seed1, seed2, that can have brought +0.36' in (
        notes['Choice of images'])


def test_only_seeds_of_one_config_are_averaged(tmp_path):
    """As long, and in what tells of the gain too."""
    run = read_run(str(write_finished(tmp_path / 'pruned')))
    others = []
    for name, config, length, miou in (('a1', PLAIN, 80, 41.),
                                       ('b1', PLAIN + 'x = 1\n', 80, 50.),
                                       ('a2',
                                        PLAIN + 'randomness = dict(seed=2)\n',
                                        80, 43.),
                                       ('b2',
                                        PLAIN + "x = 1\nwork_dir = 'b'\n", 80,
                                        54.), ('short', PLAIN, 60, 60.),
                                       ('unknown1', None, 80,
                                        70.), ('unknown2', None, 80, 80.)):
        folder = write_start(
            tmp_path / name,
            [train_line(1, 1.), val_line(length, miou)],
            config=config)
        others.append(read_run(str(folder)))
    notes = {figure.title: figure.note for figure in summary(run, others)}
    assert [note for note in notes['mIoU'].split('; ') if 'mean' in note] == [
        f'mean of {names}, which have one config: {mean}, standard deviation '
        f'{spread}' for names, mean, spread in (('a1, a2', '42.00', '1.41'),
                                                ('b1, b2', '52.00', '2.83'))
    ]
    assert 'brought in a1, a2, that can have' in notes['Choice of images']


def test_the_verdict(tmp_path):
    """Of 40 iterations that stand for 50, in 135 seconds."""
    run = read_run(str(write_finished(tmp_path / 'run')))
    alone = verdict(run)
    for figure in '40 iterations', 'as 50 ', '20% saved', '0:00:34', '40.00':
        assert figure in alone
    assert '--shorten' in alone and 'So far' not in alone
    folder = write_start(
        tmp_path / 'control',
        [train_line(1, 1.), val_line(40, 39.)],
        config=PLAIN)
    control = read_run(str(folder))
    assert 'control 39.00' in verdict(run, [control])
    assert '--shorten' not in verdict(run, [control])
    assert verdict(control) == ''
    assert 'So far' in verdict(dataclasses.replace(run, max_iters=80))


def test_times_are_of_one_kind(tmp_path):
    """With validation, for a training without mmib too."""
    run = read_run(str(write_finished(tmp_path / 'run')))
    folder = write_start(tmp_path / 'plain', config=PLAIN)
    (folder / '20260101_000000' / '20260101_000000.log').write_text(
        '2026/01/01 00:00:00 - mmengine - INFO - Config:\n'
        '2026/01/01 00:01:00 - mmengine - INFO - Iter(train) [40/40]\n'
        '2026/01/01 00:03:00 - mmengine - INFO - Iter(val) [5/5]\n')
    figures = summary(run, [read_run(str(folder))])
    figure, = [figure for figure in figures if figure.title == 'Wall time']
    assert (figure.value, figure.note) == ('0:02:15', 'plain: 0:03:00')


@pytest.mark.parametrize('others', [
    dict(records=[{
        'begins': BEGINS
    }, *PLANS]),
    dict(metric=lambda step, value: dict(mAcc=value, step=step))
])
def test_trainings_that_cannot_be_compared(choice, others):
    assert choice(80, 42., **others) == ''


def test_a_training_that_only_scores(tmp_path):
    """It has no choice of images to speak of."""
    plans = [plan(iteration, iteration, 12) for iteration in (0, 4, 8)]
    records = [{'begins': BEGINS}, *plans, {'ends': dict(ENDS, pruned=0)}]
    run = read_run(str(write_start(tmp_path / 'run', records=records)))
    assert [figure.title
            for figure in summary(run)] == ['Iterations', 'Wall time', 'mIoU']


@given(
    st.floats(0.1, 3), st.floats(0.1, 1), st.floats(1, 2), st.floats(-10, 10),
    st.floats(0.1, 10))
def test_a_choice_gives_back_what_its_steps_would(value, low, high, slope,
                                                  length):
    """A run of 1 / V times the steps would gain as much, whatever plain
    training says what steps bring."""
    ratio = VarianceRatio(value, low * value, high * value, math.nan)
    curve = 50 + slope * np.log([1000, 1000 / value, 1000 * length])
    found = quality_gain(ratio, math.log(length), curve[2] - curve[1])
    if found is None:
        # The choice and the length are worth nearly the same.
        assert (abs(math.log(length)) < 0.05
                or max(-np.log(ratio[:3]) / math.log(length)) > 0.7)
        return
    brought, least, most = found
    assert brought == pytest.approx(curve[1] - curve[0], abs=1e-9)
    assert least - 1e-9 <= brought <= most + 1e-9
    # The interval of a mean V may reach below 0.
    assert quality_gain(ratio._replace(low=-0.1), 1., 1.) is None
    assert np.isfinite(quality_gain(ratio._replace(low=-0.1), -9., 1.)).all()


def test_no_template_comes_from_the_current_folder(tmp_path, monkeypatch):
    """A template is code."""
    monkeypatch.chdir(tmp_path)
    for name in ('run.html', 'shell.html'):
        (tmp_path / name).write_text('mine', 'utf-8')
        template = environment_of().get_template(name)
        assert Path(template.filename).parent == Path(page.__file__).parent
