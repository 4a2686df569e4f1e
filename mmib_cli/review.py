# Copyright (c) mmib contributors. All rights reserved.
"""Say what a review has found, and what to expect of the next images."""
import argparse
import os.path as osp
from typing import Iterator, List, Sequence

from mmengine.device import get_device

from mmib.errors import Refusal
from mmib.labels.config import listed_images
from mmib.labels.images import CannotShow, DatasetImages
from mmib.labels.predictions import Predictor
from mmib.labels.repair import export_ignored, export_tasks, numbers_of
from mmib.labels.review import beats_chance, expected, merge
from mmib.labels.verdicts import (UNSURE, VERDICTS, WRONG, Judged, open_text,
                                  read_review, write_review)

from .files import find_config, read, table

# Ranks at which rows of the table end.
_ENDS = (10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
# For how many images the command says what to expect.
_NEXT = 50


def outlook(rows: List[Judged]) -> Iterator[str]:
    """Sentences and tables that say what was found in each ranking, and what
    to expect, from verdicts in the order of their ranks."""
    looked_at = len({row.image for row in rows})
    names = list(dict.fromkeys(row.ranking for row in rows)) or ['']
    for name in names:
        if len(names) > 1:
            yield f'\nRanked by {name or "what the files do not name"}:'
        yield from _of_ranking([row for row in rows if row.ranking == name],
                               looked_at)


def _of_ranking(rows: List[Judged], looked_at: int) -> Iterator[str]:
    said = [row.verdict for row in rows]
    by_rank = {row.rank: row for row in rows}
    # Images of one score share a rank.
    twice = next((row for row in rows if by_rank[row.rank] is not row and (
        not row.score or by_rank[row.rank].score != row.score)), None)
    if WRONG in said and not twice and not beats_chance(rows):
        yield ('So far the ranking looks no better than chance: wrong images '
               'don\'t clearly become rarer from high ranks to low ones, and '
               'may even become more frequent. Look at more images, or try '
               'another --rank-by.')
    counts = ', '.join(f'{said.count(name)} {name}' for name in VERDICTS)
    yield f'{len(rows)} images were looked at: {counts}.'
    if twice:
        yield (f'{twice.image} and {by_rank[twice.rank].image} have the same '
               'rank: give the files of one report, with the path of an image '
               'alike in all, to see the share by rank and what to expect.')
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


def export(wrong: Sequence[str], args: argparse.Namespace) -> str:
    """Write the masks of images that were judged wrong to a folder. Return
    what to do with the folder."""
    if args.config is None:
        raise Refusal('--export needs --config CONFIG, of the run.')
    if args.ignore and args.checkpoint is None:
        raise Refusal('--ignore needs --checkpoint FILE, whose network finds '
                      'suspect regions.')
    if not wrong:
        raise Refusal('No image was judged wrong: there is nothing to export.')
    if osp.lexists(args.export):
        raise Refusal(f'{args.export} is there already: give --export a new '
                      'folder.')
    config, predict = read(find_config(args.config)), None
    config.merge_from_dict(args.cfg_options)
    if 'repaired' in listed_images(config):
        raise Refusal(f'{args.config} has repaired masks already: take the '
                      'config without `repaired` in ListedImages.')
    try:
        reader = DatasetImages(config, args.data)
        numbers = numbers_of(reader, wrong)
        if args.checkpoint is not None:
            # It needs pandas, which --checkpoint alone asks for.
            from mmib.report.checkpoint import read_checkpoint
            checkpoint = read_checkpoint(args.checkpoint)
            predict = Predictor(config, checkpoint.weights, get_device())
            reader.number_as(checkpoint.classes)
        if not args.ignore:
            export_tasks(reader, numbers, args.export, predict)
            return (f'{args.export} has {len(numbers)} images. README.txt '
                    'there says how to repair their masks.')
        assert predict is not None
        count = export_ignored(reader, numbers, args.export, predict)
    except CannotShow as error:
        raise Refusal(f'Nothing was exported of {args.config}, because '
                      f'{error}.') from error
    return (f'{args.export} has masks of {count} images, with the suspect '
            f'region ignored. The other {len(wrong) - count} have none. Train '
            f'with: mmib train {args.config} --repaired {args.export}')


def main(parsed: argparse.Namespace) -> None:
    given = (parsed.config, parsed.checkpoint, parsed.ignore,
             parsed.cfg_options)
    if parsed.export is None and any(given):
        raise Refusal(
            '--config, --checkpoint, --ignore and --cfg-options are for '
            '--export.')
    merged, conflicts = merge(map(read_review, parsed.files))
    wrong = list(
        dict.fromkeys(row.image for row in merged if row.verdict == WRONG))
    for name in wrong if parsed.list is not None else ():
        if name.strip().splitlines() != [name]:
            raise Refusal(f'{name!r} can\'t stand on a line of a list: write '
                          'a review by --out, which --without takes too.')
    if parsed.out is not None:
        write_review(parsed.out, merged)
    if parsed.list is not None:
        with open_text(parsed.list, 'x') as file:
            file.writelines(f'{name}\n' for name in wrong)
    print('\n'.join(outlook(merged)))
    for rows in conflicts:
        said = ', '.join(f'{row.said} in {row.where}' for row in rows)
        print(f'Verdicts differ on {rows[0].image}: {said}')
    if parsed.export is not None:
        print(export(wrong, parsed))
