# Copyright (c) mmib contributors. All rights reserved.
"""Say what a review has found, and what to expect of the next images.

A review.csv is what the page of `mmib report` saves. Those of several people
are merged. An image of which they say different things counts as unsure, and
one that they give different labels stays wrong without a label, until somebody
changes a file.
"""
import argparse
from typing import Iterator, List

from mmib.data.lists import as_line
from mmib.data.verdicts import (UNSURE, VERDICTS, WRONG, Judged, open_text,
                                read_review, write_review)
from mmib.labels.review import beats_chance, expected, merge

from .files import table

# Ranks at which rows of the table end.
_ENDS = (10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
# Of how many images it is told what to expect.
_NEXT = 50


def outlook(rows: List[Judged]) -> Iterator[str]:
    """Sentences and tables: what was found, and what to expect, of each
    ranking, from verdicts in the order of their ranks."""
    looked_at = len({row.image for row in rows})
    names = list(dict.fromkeys(row.ranking for row in rows)) or ['']
    for name in names:
        if len(names) > 1:
            yield f'\nRanked by {name or "what the files do not tell"}:'
        yield from _of_ranking([row for row in rows if row.ranking == name],
                               looked_at)


def _of_ranking(rows: List[Judged], looked_at: int) -> Iterator[str]:
    said = [row.verdict for row in rows]
    by_rank = {row.rank: row for row in rows}
    twice = [row for row in rows if by_rank[row.rank] is not row]
    if WRONG in said and not twice and not beats_chance(rows):
        other = 'score' if rows[0].ranking == 'pixels' else 'pixels'
        yield ('So far the ranking looks no better than chance: wrong images '
               'don\'t clearly become rarer from high ranks to low ones, and '
               'may even become more frequent. Look at more images, or try '
               f'`mmib report --rank-by {other}`.')
    counts = ', '.join(f'{said.count(name)} {name}' for name in VERDICTS)
    yield f'{len(rows)} images were looked at: {counts}.'
    if twice:
        same = by_rank[twice[0].rank].image
        yield (f'{twice[0].image} and {same} have the same rank. If they '
               'are one image, write its path alike in all files. Else give '
               'the files of one report to be told the share by rank, and '
               'what to expect.')
    elif rows:
        shares: List[tuple] = [('ranks', 'images', 'wrong', 'share')]
        for first, last in zip((0, *_ENDS), (*_ENDS, rows[-1].rank)):
            part = [row.verdict for row in rows if first < row.rank <= last]
            if part:
                count = part.count(WRONG)
                shares.append((f'{first + 1} to {last}', len(part), count,
                               f'{count / len(part):.0%}'))
        yield f'\n{table(shares)}\n'
        images = max(row.images for row in rows)
        left = min(_NEXT, images - looked_at) if images else _NEXT
        if left <= 0:
            yield f'All {images} images of the ranking were looked at.'
        elif {*said} != {UNSURE}:
            mean, most = expected(rows, left, looked_at - len(rows))
            yield (f'Among the next {left} images expect {mean:.0f} to be '
                   f'wrong, with 95 % at most {most}.')


def main(args: List[str]) -> None:
    parser = argparse.ArgumentParser(prog='mmib review', description=__doc__)
    parser.add_argument('files', nargs='+', help='review.csv of each reviewer')
    parser.add_argument('--out', help='write the merged review to this file')
    parser.add_argument(
        '--list',
        help='write the images that were judged wrong to this file, one a '
        'line')
    parsed = parser.parse_args(args)
    merged, conflicts = merge(map(read_review, parsed.files))
    if parsed.out is not None:
        write_review(parsed.out, merged)
    if parsed.list is not None:
        with open_text(parsed.list, 'x') as file:
            file.writelines(f'{as_line(image)}\n' for image in dict.fromkeys(
                row.image for row in merged if row.verdict == WRONG))
    print('\n'.join(outlook(merged)))
    for rows in conflicts:
        said = ', '.join(f'{row.said} in {row.where}' for row in rows)
        print(f'Verdicts differ on {rows[0].image}: {said}')
