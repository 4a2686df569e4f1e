# Copyright (c) mmib contributors. All rights reserved.
"""Say what a review has found, and what to expect of the next images.

A review.csv is what the page of `mmib report` saves. Those of several people
are merged. An image of which they say different things counts as unsure, until
somebody changes a file.
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


def outlook(rows: List[Judged]) -> Iterator[str]:
    """Sentences and a table: what was found, and what to expect, from verdicts
    in the order of their ranks."""
    said = [row.verdict for row in rows]
    by_rank = {row.rank: row for row in rows}
    twice = [row for row in rows if by_rank[row.rank] is not row]
    if WRONG in said and not twice and not beats_chance(rows):
        yield ('So far the ranking looks no better than chance: wrong images '
               'don\'t clearly become rarer from high ranks to low ones, and '
               'may even become more frequent. Look at more images, or try '
               '`mmib report --rank-by pixels`.')
    counts = ', '.join(f'{said.count(name)} {name}' for name in VERDICTS)
    yield f'{len(rows)} images were looked at: {counts}.'
    if twice:
        other = by_rank[twice[0].rank].image
        yield (f'{twice[0].image} and {other} have the same rank. If they '
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
        if {*said} != {UNSURE}:
            mean, low, high = expected(rows, 50)
            yield (f'Among the next 50 images expect {mean:.0f} to be wrong '
                   f'({low} to {high} with 95 %).')


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
        said = ', '.join(f'{row.verdict} in {row.where}' for row in rows)
        print(f'Verdicts differ on {rows[0].image}: {said}')
