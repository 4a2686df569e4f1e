# Copyright (c) mmib contributors. All rights reserved.
"""The file of a review, and what its verdicts tell."""
import csv
import math
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mmib.errors import Refusal
from mmib.labels.lists import find_images
from mmib.labels.review import beats_chance, expected, merge
from mmib.labels.verdicts import (HARD, UNSURE, VERDICTS, WRONG, Judged,
                                  open_text, read_review, write_review)

HEADER = 'image,verdict,rank,score,date\n'
TEXT = st.text(
    st.characters(exclude_categories=['Cs'], exclude_characters='\0'))
# A score or a date.
SHORT = st.text(
    st.characters(exclude_categories=['Cs'], exclude_characters='\0;\r\n'))
ROWS = st.lists(
    st.builds(
        Judged,
        TEXT.filter(bool)
        | st.sampled_from(['=1', "'a", '-', ';=1', '\t=1']),
        st.sampled_from(VERDICTS), st.integers(1, 10**15), SHORT, SHORT, SHORT,
        st.integers(0, 10**15), SHORT,
        st.just('')).map(lambda row: row._replace(label=row.label *
                                                  (row.verdict == WRONG))),
    unique_by=lambda row: row.image)


@pytest.fixture
def review(tmp_path, monkeypatch):
    """Write a file in this folder."""
    monkeypatch.chdir(tmp_path)

    def write(text, header=HEADER, name='review.csv'):
        data = (header + text).encode(errors='surrogateescape')
        Path(name).write_bytes(data)
        return name

    return write


@given(rows=ROWS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_round_trip(rows, tmp_path):
    path = tmp_path / 'review.csv'
    path.unlink(missing_ok=True)
    write_review(path, rows)
    read = [row._replace(where='') for row in read_review(path)]
    assert read == rows
    # No cell is a formula for a spreadsheet.
    for delimiter in ',;':
        with open_text(path) as file:
            for cells in csv.reader(file, delimiter=delimiter):
                assert not any(
                    cell.startswith(tuple('=+-@\t\r')) for cell in cells)


@pytest.mark.parametrize('encoding', ['utf-8', 'utf-8-sig'])
@pytest.mark.parametrize('end', ['\n', '\r\n', '\r'])
@pytest.mark.parametrize('delimiter', [',', ';', '\t'])
def test_what_other_programs_save(review, encoding, end, delimiter):
    text = HEADER + '"a/""1"".jpg",wrong,2,0.5,\n\n\'=b.jpg,hard,1,,today\n'
    text = text.replace(',', delimiter).replace('\n', end)
    path = review('')
    Path(path).write_bytes(text.encode(encoding))
    assert read_review(path) == [
        Judged('a/"1".jpg', WRONG, 2, '0.5', where='line 2 of review.csv'),
        Judged('=b.jpg', HARD, 1, '', 'today', where='line 4 of review.csv')
    ]
    assert [*find(path, ['a/"1".jpg', '=b.jpg'])] == [0]


def test_other_columns_and_paths_that_are_no_text(review):
    name = os.fsdecode(b'\xff.jpg')
    path = review(
        f'1,who,{name},unsure\n', header='rank,reviewer,image,verdict\n')
    row, = read_review(path)
    assert row[:5] == (name, UNSURE, 1, '', '')
    write_review('again.csv', [row])
    assert read_review('again.csv')[0].image == name


@pytest.mark.parametrize('text, match', [
    ('a,wrong,1,,\nb,bad,2,,\n', 'line 3 of .* verdict `bad`: give one of'),
    ('a,wrong,1,,\nb,,2,,\n', 'line 3 of .* verdict ``'),
    *((f'a,wrong,{rank},,\n',
       f'line 2 of .* has `{rank}` in the column `rank`')
      for rank in ('first', '0', '1.5', '')),
    (',wrong,1,,\n', 'line 2 of .* names no image'),
    ('"a\nb",wrong,1,,\na,hard,2,,\nc\n', 'line 5 of .* has 1 cells'),
    ('a,b.jpg,wrong,1,,\n', 'line 2 of .* has 6 cells, .* quotation marks'),
    ('a,wrong,1,,\nb,hard,2,,\na,hard,3,,\n', 'line 4 of .*, `a`, is the '
     'image of line 2 of .* again, first wrong, then hard'),
    ('a,wrong,1,,\n"b,hard,2,,\nc', "line 4 of .* can't be read, .*quotation"),
    ('a,wrong,1,,\n"b"c,hard,2,,\n', "line 3 of .* can't be read, "),
])
def test_errors_name_the_line(review, text, match):
    with pytest.raises(Refusal, match=match):
        read_review(review(text))


def test_files_that_are_no_reviews(review):
    for header, lacking in (('image,rank,verdicts\n', 'verdict'),
                            ('', 'image'), ('verdict,image\n', 'rank')):
        with pytest.raises(Refusal, match=f'has no column `{lacking}`'):
            read_review(review('', header))
    with pytest.raises(Refusal, match="none.csv can't be read: No such"):
        read_review('none.csv')
    path = review('')
    with pytest.raises(Refusal, match="review.csv can't be written: File"):
        write_review(path, [])
    assert Path(path).read_text() == HEADER


PATHS = ["data/'x.jpg", 'data/a.jpg', 'data/b,c.jpg']


def find(path, paths=PATHS, option='without'):
    return sorted(find_images(path, paths, option))


def test_wrong_images_are_left_out(review):
    """Only these need be in the dataset."""
    path = review('"data/b,c.jpg",wrong,4,,\n\'\'x.jpg,wrong,1,,\n'
                  'gone.jpg,hard,2,,\ndata/a.jpg,unsure,3,,\n')
    with pytest.raises(Refusal, match="line 3 of .*, `'x.jpg`, is not an"):
        find(path, ['data/b,c.jpg'])
    assert find(path) == [0, 2]
    numbers = review("'0,wrong,1,,\n2,wrong,2,,\n")
    assert find(numbers, [None] * 3) == [0, 2]
    # As images to show the file is refused.
    with pytest.raises(Refusal, match='is a review, .* `without`'):
        find(path, option='images')


@pytest.mark.parametrize('text, match', [
    ('a.jpg,hard,1,,\n', 'has no images to leave out'),
    ('"a\n",hard,1,,\nd.jpg,wrong,2,,\n', 'line 4 of .*, `d.jpg`, is not '),
    ('a.jpg,wrong,1,,\ndata/a.jpg,wrong,2,,\n', 'line 3 of .* is the image '
     'of line 2 of .* again'),
    ('7,wrong,1,,\n', 'line 2 of .*, `7`, is not an image of the dataset'),
])
def test_reviews_of_other_data(review, text, match):
    with pytest.raises(Refusal, match=match):
        find(review(text))


def test_merge():
    first = [Judged('b', HARD, 2), Judged('a', WRONG, 1), Judged('c', HARD, 3)]
    second = [Judged('a', WRONG, 1), Judged('c', UNSURE, 3, where='there')]
    merged, conflicts = merge([first, second])
    assert [row[:3] for row in merged] == [('a', WRONG, 1), ('b', HARD, 2),
                                           ('c', UNSURE, 3)]
    assert conflicts == [[first[2], second[1]]]
    assert merge([]) == ([], [])


def test_merge_labels():
    """One label beside none is kept, and two are a conflict."""
    cat = Judged('a', WRONG, 1, ranking='score', label='cat')
    none, dog, hard = (cat._replace(label='', ranking='pixels'),
                       cat._replace(label='dog', where='there'),
                       cat._replace(label='', verdict=HARD))
    for reviews in ([[cat], [none]], [[none], [cat]], [[cat], [none], [cat]]):
        merged, conflicts = merge(reviews)
        assert merged == [none._replace(label='cat'), cat] and not conflicts
    merged, conflicts = merge([[cat], [none], [dog]])
    assert [row.said for row in merged] == [WRONG, WRONG]
    assert conflicts == [[cat, none, dog]]
    merged, conflicts = merge([[cat], [hard]])
    assert [row.said for row in merged] == [UNSURE]
    assert conflicts == [[cat, hard]]


def test_labels_are_of_wrong_images(review):
    header = 'image,verdict,rank,ranking,label\n'
    cat, none = read_review(
        review("a,wrong,1,score,'=cat\na,wrong,1,pixels,'=cat\n", header))
    assert (cat.label, cat.said) == ('=cat', 'wrong (=cat)')
    for text, match in (
        ('a,hard,1,score,cat\n',
         'line 2 of .* has the label `cat` and the verdict hard: only a'),
        ('a,wrong,1,score,cat\na,wrong,1,pixels,dog\n', 'line 3 of .*, '
         r'first wrong \(cat\), then wrong \(dog\): keep one')):
        with pytest.raises(ValueError, match=match):
            read_review(review(text, header))


def test_an_image_of_two_rankings(review):
    rows = [
        Judged('a', WRONG, 1, ranking='score', images=9),
        Judged('b', HARD, 2, ranking='score', images=9),
        Judged('a', WRONG, 7, ranking='pixels', images=8)
    ]
    merged, _ = merge([rows[:2], rows[2:]])
    assert merged == [rows[2], *rows[:2]]
    write_review('all.csv', merged)
    assert [row._replace(where='')
            for row in read_review('all.csv')] == [rows[2], rows[0], rows[1]]
    # It is left out once.
    assert find('all.csv', ['a', 'b']) == [0]
    conflicting = rows[2]._replace(verdict=HARD)
    merged, conflicts = merge([rows[:2], [conflicting]])
    assert [row.verdict for row in merged] == [UNSURE, UNSURE, HARD]
    assert conflicts == [[rows[0], conflicting]]
    Path('all.csv').unlink()
    write_review('all.csv', [rows[0], conflicting])
    with pytest.raises(Refusal, match='again, first wrong, then hard'):
        read_review('all.csv')


def test_files_without_a_ranking(review):
    row, = read_review(review('a,wrong,1,,\n'))
    assert (row.ranking, row.images) == ('', 0)
    with pytest.raises(Refusal, match='line 2 of .* has `many` in the col'):
        read_review(review('a,wrong,1,many\n', 'image,verdict,rank,images\n'))


class Estimate(NamedTuple):
    mean: float
    most: int


def rows_of(ranks, wrong):
    said = [UNSURE if math.isnan(w) else WRONG if w else HARD for w in wrong]
    return [Judged(str(r), v, int(r)) for r, v in zip(ranks, said)]


def estimate(ranks, wrong, n=50, others=0):
    return Estimate(*expected(rows_of(ranks, wrong), n, others))


def better(ranks, wrong):
    return beats_chance(rows_of(ranks, wrong))


def test_ties_say_nothing():
    """Whichever of the images of one rank is first in the file."""
    ranks = [*range(1, 5), *[5] * 20]
    wrong = [0.] * 24
    for first in ([5, 6, 7, 8], [20, 21, 22, 23]):
        tied = list(wrong)
        for n in first:
            tied[n] = 1.
        assert not better(ranks, tied)
    assert better(ranks, [1.] * 4 + [0.] * 20)


def ranking(rng, num_images, share, quality, above=0.):
    """Whether each image is wrong, in the order of noisy scores, of which
    those of right images that are hard lie above."""
    wrong = rng.random(num_images) < share
    # Some errors can't be seen in a score.
    seen = wrong & (rng.random(num_images) < rng.choice([0.7, 1]))
    hard = ~wrong & (rng.random(num_images) < rng.choice([0.05, 0.1, 0.2, .3]))
    scores = rng.choice([rng.normal, rng.exponential])(size=num_images)
    return wrong[np.argsort(-scores - quality * seen - above * hard)]


@pytest.mark.parametrize('kind', ['good', 'random', 'hard'])
def test_the_most_holds_the_truth(kind):
    """In 9 of 10 simulated reviews of 20 to 200 images, 2 to 20 % of which are
    wrong."""
    rng = np.random.default_rng(0)
    held, told = [], []
    for i in range(300):
        num_images, share = (240, 700, 2000)[i % 3], rng.uniform(0.02, 0.2)
        quality = rng.choice([1, 2, 3]) * (kind != 'random')
        above = rng.choice([2.5, 3, 4]) * (kind == 'hard')
        order = ranking(rng, num_images, share, quality, above)
        count = rng.integers(20, min(200, num_images - 51) + 1)
        found = estimate(np.arange(1, count + 1), order[:count])
        truth = order[count:count + 50].sum()
        held.append(truth <= found.most)
        told.append((found.most, found.mean - truth))
    most, error = np.mean(told, 0)
    assert np.mean(held) >= 0.9
    # It isn't held by telling too many.
    assert most < 28 and abs(error) < 5


def test_what_to_expect():
    ranks = np.arange(1, 61)
    few = estimate(ranks, ranks <= 10)
    assert 0 <= few.mean < 1 and few.most <= 3
    # As little is told by few images, and as hard ones may come first.
    none = estimate(ranks, ranks < 0)
    assert 4 < none.most < 10 and none == estimate(ranks[:20], ranks[:20] < 0)
    many = estimate(ranks, np.arange(60) % 3 == 0)
    assert 10 < many.mean < 20 < many.most < 35
    # Who isn't sure says nothing, and the image isn't looked at again.
    wrong = np.where(ranks % 4 == 0, math.nan, ranks % 3 == 0)
    unsure, alone = estimate(ranks, wrong), estimate(ranks[:2], [math.nan] * 2)
    assert 10 < unsure.mean < 20 and alone.most > 40
    # Fewer images, and those that were skipped come next.
    assert estimate(ranks, ranks <= 10, n=5).most <= 5
    skipped = np.setdiff1d(ranks, [3, 4])
    assert estimate(skipped, skipped <= 12, n=2).mean > 1
    # The order of the verdicts is nothing.
    assert estimate(ranks[::-1], ranks[::-1] <= 10) == few


def test_the_lowest_say_nothing_of_the_next():
    """But where ranks are missing that another ranking has shown."""
    ranks = np.r_[1:31, 371:401]
    first = estimate(ranks[:30], ranks[:30] % 2)
    assert estimate(ranks, ranks % 2 * (ranks < 99)) == first
    gaps = np.r_[1:31, 101:131]
    assert estimate(gaps, gaps < 31) == estimate(gaps[:30], gaps[:30] < 31)
    assert estimate(gaps, gaps < 31, others=70).most < 5


@pytest.mark.filterwarnings('error')
def test_ranks_of_a_large_data_set():
    assert estimate([1, 2, 3, 1_281_167], [1, 1, 0, 0]).most <= 50


def test_rankings_by_chance():
    """They are told from good ones, as often as the test says."""
    rng = np.random.default_rng(0)

    def share(quality):
        return np.mean([
            better(np.arange(1, 61),
                   ranking(rng, 700, 0.1, quality)[:60]) for _ in range(300)
        ])

    assert share(0) < 0.09 and share(3) > 0.9
    ranks = np.arange(1, 31)
    assert not better(ranks, ranks > 22)
    # Many, though not rarer.
    assert better(ranks, ranks % 3 == 0)
    assert better(ranks, ranks > 5)
    # By rank, whatever the order of the verdicts.
    assert better(ranks[::-1], ranks[::-1] <= 6)
