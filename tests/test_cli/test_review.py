# Copyright (c) mmib contributors. All rights reserved.
"""From the file of a review to a training without the wrong images."""
import html
import io
import os
import re
import shlex
from functools import partial
from pathlib import Path

import cv2
import pandas as pd
import pytest
from mmengine.config import Config

from mmib.labels.verdicts import Judged, read_review, write_review
from tests.helpers.segmentors import read_log, write_images
from tests.helpers.work_dirs import files_config, rank_by_score
from tests.test_openmmlab.test_datasets import build

from .test_train import SHORT, text_of

HEADER = 'image,verdict,rank,score,date\n'


@pytest.fixture
def review(run):
    return partial(run, 'review')


def write(name, verdicts, first=1, header=HEADER):
    """A review of images in the order of their ranks."""
    Path(name).write_text(header + ''.join(
        f'{image},{verdict},{rank},0.5,2026-01-01\n'
        for rank, (image, verdict) in enumerate(verdicts, first)))
    return name


def numbered(letters, first=0):
    names = dict(w='wrong', h='hard', u='unsure')
    return [(f'{i}.jpg', names[letter])
            for i, letter in enumerate(letters, first)]


NEXT = r'Among the next 50 images expect \d to be wrong, with 95 % at most '


@pytest.mark.parametrize(
    'letters, texts',
    [
        ('wwwwwwhwhu' + 'h' * 20, [
            '^30 images were looked at: 7 wrong, 22 hard, 1 unsure.',
            r'1 to 10 +10 +7 +70%\n11 to 20 +10 +0 +0%\n21 to 50 +10 +0 +0%\n',
            NEXT + r'(\d|1[0-4])\.\n$'
        ]),
        # What looks as if by chance is told first.
        ('hhhhwhhhhh' * 5, [
            '^So far the ranking looks no better than chance: ',
            '\n50 images were looked at: 5 wrong, 45 hard, 0 unsure.\n', NEXT
        ]),
        # Nothing wrong was found: there is no ranking to judge.
        ('hhu' * 10,
         ['^30 images were looked at: 0 wrong, 20 hard, 10 unsure', NEXT]),
        ('uu', [r'1 to 10 .*%\n\n$']),
        ('', ['^0 images were looked at: 0 wrong, 0 hard, 0 unsure.\n$']),
    ])
def test_what_was_found_and_is_left(review, capsys, letters, texts):
    review(write('a.csv', numbered(letters)))
    told = capsys.readouterr().out
    for text in texts:
        assert re.search(text, told)


def test_several_reviewers(review, run, capsys):
    first, second = numbered('wwh'), numbered('whuw')
    review(
        write('a.csv', first), write('b.csv', second), '--out', 'merged.csv',
        '--list', 'wrong.txt')
    text = capsys.readouterr().out
    assert '4 images were looked at: 2 wrong, 0 hard, 2 unsure.' in text
    assert text.endswith(
        'Verdicts differ on 1.jpg: wrong in line 3 of a.csv, hard in line 3 '
        'of b.csv\n'
        'Verdicts differ on 2.jpg: hard in line 4 of a.csv, unsure in line 4 '
        'of b.csv\n')
    assert [row[:3]
            for row in read_review('merged.csv')] == [('0.jpg', 'wrong', 1),
                                                      ('1.jpg', 'unsure', 2),
                                                      ('2.jpg', 'unsure', 3),
                                                      ('3.jpg', 'wrong', 4)]
    assert Path('wrong.txt').read_text() == '0.jpg\n3.jpg\n'
    # What somebody wrote isn't lost.
    with pytest.raises(SystemExit, match="wrong.txt can't be written: File"):
        review('a.csv', '--list', 'wrong.txt')


def test_reviewers_who_give_different_labels(review, capsys):
    header = 'image,verdict,rank,label\n'
    for name, labels in (('a.csv', ('cat', 'cat')), ('b.csv', ('', 'dog'))):
        Path(name).write_text(header +
                              ''.join(f'{i}.jpg,wrong,{i},{label}\n'
                                      for i, label in enumerate(labels, 1)))
    review('a.csv', 'b.csv', '--out', 'merged.csv')
    text = capsys.readouterr().out
    assert '2 images were looked at: 2 wrong, 0 hard, 0 unsure.' in text
    assert text.endswith(
        'Verdicts differ on 2.jpg: wrong (cat) in line 3 of a.csv, wrong '
        '(dog) in line 3 of b.csv\n')
    assert [row.said
            for row in read_review('merged.csv')] == ['wrong (cat)', 'wrong']


def test_images_of_the_same_rank(review, capsys):
    other = Path(write('b.csv', numbered('hw', 2)))
    other.write_text(other.read_text().replace('0.5', '0.25'))
    review(write('a.csv', numbered('wh')), 'b.csv')
    text = capsys.readouterr().out
    assert text.startswith('4 images were looked at: 2 wrong, 2 hard, 0')
    # Ranks 1 and 2 are those of the other file, too.
    assert '0.jpg and 2.jpg have the same rank: ' in text
    assert 'expect ' not in text


def test_images_of_one_value_share_a_rank(review, capsys):
    Path('a.csv').write_text('image,verdict,rank,score,date\n' + ''.join(
        f'{i}.jpg,{"wrong" if i < 6 else "hard"},{min(i + 1, 10)},'
        f'{max(1 - i / 10, 0.1)}\n'.replace('\n', ',\n') for i in range(30)))
    review('a.csv')
    text = capsys.readouterr().out
    assert 'same rank' not in text and 'expect ' in text
    assert 'chance' not in text
    assert re.search(r'1 to 10 +30 +6 ', text)


def test_rankings_are_told_apart(review, capsys):
    """By pixels all wrong images come first. With those by score it looks as
    if by chance."""

    def write_ranked(name, verdicts, first=1):
        Path(name).write_text('image,verdict,rank,ranking,images\n' + ''.join(
            f'{image},{verdict},{rank},{name},60\n'
            for rank, (image, verdict) in enumerate(verdicts, first)))
        return name

    score = write_ranked('score', numbered('h' * 30))
    pixels = write_ranked('pixels', numbered('w' * 8 + 'h' * 12, 30))
    review(score, pixels)
    text = capsys.readouterr().out
    first, second = text.split('Ranked by score:')
    assert first.startswith('\nRanked by pixels:\n20 images were looked at: 8')
    assert 'chance' not in text and 'same rank' not in text
    assert 'Among the next 10 images expect ' in first
    assert '30 images were looked at: 0 wrong' in second
    # Nothing is left.
    review(score, pixels, write_ranked('more', numbered('u' * 10, 50)))
    text = capsys.readouterr().out
    assert text.count('All 60 images of the ranking were looked at.') == 3


@pytest.mark.parametrize('name', ['a\nb.jpg', ' c.jpg', 'a\r', 'a\u3000'])
def test_names_that_are_no_lines(review, name):
    """A list of them would be of other images."""
    write_review('review.csv', [Judged(name, 'wrong', 1)])
    with pytest.raises(SystemExit, match="can't stand on a line .* --out"):
        review('review.csv', '--list', 'wrong.txt')
    assert not Path('wrong.txt').exists()


def file_config(name):
    """A config of a training on 6 images, 0.jpg to 5.jpg, and one of them that
    begins as a formula."""
    root = Path.cwd() / 'data'
    if not root.exists():
        write_images(str(root), 7)
        for split, suffix in (('images', 'jpg'), ('annotations', 'png')):
            folder = root / split / 'training'
            (folder / f'6.{suffix}').rename(folder / f"'=6.{suffix}")
    text = text_of(files_config(root, 'unused', **SHORT))
    Path(f'{name}.py').write_text(text)
    return f'{name}.py'


def break_images(*names):
    """Whoever reads one of these stops."""
    for name in names:
        path = Path('data/images/training') / name
        path.write_bytes(b'broken')
        assert cv2.imread(str(path)) is None


@pytest.mark.parametrize('arguments, folder', [
    ('--infobatch', 'pruned-12k-infobatch_files_without_review'),
    ('', 'whole-20k_files_without_review'),
    ('--subset hard.txt', 'part-20k_files_hard_without_review'),
])
def test_images_that_were_judged_wrong_are_never_read(run, arguments, folder):
    name = folder.split('-')[0]
    config = file_config(f'{name}-20k_files')
    review = write('review.csv', [("''=6.jpg", 'wrong'), ('2.jpg', 'wrong'),
                                  ('0.jpg', 'hard'), ('1.jpg', 'unsure')])
    Path('hard.txt').write_text("0.jpg\n2.jpg\n4.jpg\n'=6.jpg\n5.jpg\n")
    break_images("'=6.jpg", '2.jpg')
    run('train', config, '--without', review, *arguments.split())
    log = read_log(f'work_dirs/{folder}')
    last = 12 if '12k' in folder else 20
    assert f'Iter(train) [{last}/{last}]' in log
    left = (3, ', those of hard.txt') if 'subset' in arguments else (5, '')
    text = f'the dataset has {left[0]} of 7 images{left[1]}; left out by '
    assert f'{text}review.csv: 2.' in log


def test_forecast_and_convert(run, capsys):
    config = file_config('other-20k_files')
    review = write('review.csv', [('2.jpg', 'wrong')])
    run('forecast', config, '--infobatch', '--without', review)
    assert 'A pass is 6 images' in capsys.readouterr().out
    run('convert', config, 'out.py', '--without', review)
    dataset = Config.fromfile('out.py').train_dataloader.dataset
    assert len(build(dataset)) == 6
    with pytest.raises(SystemExit, match='has `without` already'):
        run('train', 'out.py', '--without', review)
    with pytest.raises(SystemExit, match='line 2 of b.csv, `9.jpg`, is not'):
        run('forecast', config, '--infobatch', '--without',
            write('b.csv', [('9.jpg', 'wrong')]))


def shown(text):
    """Number and rank of each card of a page."""
    rows = re.findall(r'aria-label="image of image (\d+)".*?rank <b>(\d+)</b>',
                      text, re.DOTALL)
    return [(int(number), int(rank)) for number, rank in rows]


def commands(text):
    """What a page says to run."""
    return html.unescape(re.search('<pre>(.*?)</pre>', text,
                                   re.S)[1]).split('\n')


@pytest.fixture
def rank(run):
    """Ranks the images of a run by its scores, and returns the page."""

    def write_page(work_dir, *options, out=None):
        out = out or work_dir
        run(*rank_by_score(work_dir), '--out', out, *options)
        return Path(out, 'rank_train.html').read_text()

    return write_page


SAVED = '--cfg-options', 'default_hooks.checkpoint.interval=4'


def test_the_commands_of_a_page(run, rank):
    """As they can be copied."""
    run('train', file_config('page-20k_files'), '--score', *SAVED)
    work_dir, = Path('work_dirs').iterdir()
    text = rank(work_dir)
    command, = commands(text)
    assert 'data-file="review.csv"' in text and 'save review.csv' in text
    write('review.csv', [('2.jpg', 'wrong')])
    program, *arguments = shlex.split(command)
    assert program == 'mmib'
    run(*arguments)
    assert 'left out by review.csv: 1' in read_log(f'{work_dir}_review')
    # One round after the other.
    for given, name in (('review-2', 'review-3'), ('reviews-4', 'review-5')):
        write(f'{given}.csv', [('2.jpg', 'wrong')])
        text = rank(work_dir, '--review', f'{given}.csv')
        assert f'data-file="{name}.csv"' in text
        assert commands(text)[0] == (
            f'mmib review {given}.csv {name}.csv --out reviews{name[6:]}.csv')


def test_the_next_round(run, rank):
    """A ranking of a training without some images has numbers of the whole
    dataset, and shows what wasn't judged."""
    config = file_config('round-20k_files')
    images = Path.cwd() / 'data/images/training'
    review = write('review.csv', [(images / '2.jpg', 'wrong'),
                                  (images / '4.jpg', 'hard')])
    listed = write('listed.csv', [('2.jpg', 'wrong')])
    run('train', config, '--infobatch', '--without', listed, *SAVED)
    work_dir = 'work_dirs/round-12k-infobatch_files_without_listed'
    cards = shown(rank(work_dir))
    table = pd.read_csv(f'{work_dir}/rank_train_images.csv')
    by_rank = table.image
    table = table.sort_values('image', ignore_index=True)
    names = ["'=6.jpg", *(f'{i}.jpg' for i in range(6))]
    assert table.image.tolist() == [0, 1, 2, 4, 5, 6]
    assert [Path(path).name for path in table.path
            ] == [names[number] for number in table.image]
    assert sorted(
        cards, key=lambda card: card[1]) == [
            (number, rank) for rank, number in enumerate(by_rank, 1)
        ]
    # Those of the first round, and another one.
    second = write('second.csv', [(table.path[0], 'unsure')])
    text = rank(work_dir, '--review', review, second, out='next')
    assert shown(text) == [card for card in cards if card[0] not in (0, 5)]
    assert '2 of 3 judged images are in the ranking, and aren' in text
    # Nothing of the rounds before is lost. The config has a list already.
    assert 'data-file="review-3.csv"' in text
    merge, train = commands(text)
    assert merge == ('mmib review review.csv second.csv review-3.csv --out '
                     'reviews-3.csv')
    assert train.startswith(f'mmib train {work_dir}/') and train.endswith(
        f'.py --work-dir {work_dir}_reviews-3 --cfg-options '
        'train_dataloader.dataset.without=reviews-3.csv')


def test_scores_are_not_those_of_other_images(run, rank):
    """Of as many: of another list, or with another name."""
    config = file_config('others-20k_files')
    review = write('review.csv', [('1.jpg', 'wrong')])
    run('train', config, '--score', '--without', review, *SAVED)
    work_dir, = Path('work_dirs').iterdir()
    assert shown(rank(work_dir))
    refused = partial(
        pytest.raises, SystemExit, match='the dataset has other images here')
    write(review, [('4.jpg', 'wrong')])
    with refused():
        rank(work_dir)
    write(review, [('1.jpg', 'wrong')])
    for path in ('images/training/0.jpg', 'annotations/training/0.png'):
        path = Path('data', path)
        path.rename(path.with_stem('x'))
    with refused():
        rank(work_dir)


def test_names_that_are_no_text(run, monkeypatch):
    """They are told where a terminal takes UTF-8 alone."""
    name = os.fsdecode(b'\xff.jpg')
    for file, verdict in (('a.csv', 'wrong'), ('b.csv', 'hard')):
        Path(file).write_bytes(
            os.fsencode(f'{HEADER}{name},{verdict},1,0.5,\n'))
    terminal = io.TextIOWrapper(io.BytesIO(), encoding='utf-8')
    monkeypatch.setattr('sys.stdout', terminal)
    run('review', 'a.csv', 'b.csv', '--out', 'both.csv')
    terminal.flush()
    assert b'Verdicts differ on \\udcff.jpg: ' in terminal.buffer.getvalue()
    assert [row.image for row in read_review('both.csv')] == [name]
