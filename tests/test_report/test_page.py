# Copyright (c) mmib contributors. All rights reserved.
"""The row of figures on top of a report."""
import pytest

from mmib.report.page import summary
from mmib.report.read import read_run

from .work_dirs import (CONFIG, train_line, val_line, write_finished,
                        write_start)

PLAIN = CONFIG[CONFIG.index('default_scope'):]


@pytest.fixture
def choice(tmp_path):
    """What is said of the choice of images, beside another training whose
    mIoU is known at its last iteration."""
    run = read_run(str(write_finished(tmp_path / 'run')))

    def said(iterations, miou, config=PLAIN, metric=val_line):
        folder = write_start(
            tmp_path / 'other',
            [train_line(1, 1.), metric(iterations, miou)],
            config=config)
        figures = summary(run, read_run(str(folder)))
        figure, = [x for x in figures if x.title == 'Choice of images']
        assert figure.value == 'V 0.90' and 'up to 10 %' in figure.note
        return figure.note.partition('random it is 1).')[-1]

    return said


def test_what_the_choice_can_have_brought(choice):
    """Twice the iterations bring 2 points: by -log(0.9) / log(2) of it."""
    assert choice(80, 42.) == (
        ' By what more iterations brought in other, that can have brought '
        '+0.30 mIoU (+0.15 to +0.47; the spread of seeds comes on top).')


def test_by_a_shorter_training(choice):
    """Half of the iterations cost as much."""
    assert 'brought +0.30 mIoU (+0.15' in choice(20, 38.)


def test_a_training_as_long_tells_nothing_of_more_steps(choice):
    assert 'plain training of another length' in choice(40, 38.)


@pytest.mark.parametrize('others', [
    dict(config=CONFIG),
    dict(metric=lambda step, value: dict(mAcc=value, step=step))
])
def test_trainings_that_cannot_be_compared(choice, others):
    assert choice(80, 42., **others) == ''
