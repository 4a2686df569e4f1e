# Copyright (c) mmib contributors. All rights reserved.
"""The file of a review, ``review.csv``: what somebody said of images."""
import csv
import os
import re
from typing import IO, Any, Dict, Iterable, List, NamedTuple, Union

from ..errors import Refusal

WRONG, HARD, UNSURE = VERDICTS = ('wrong', 'hard', 'unsure')
# Files may lack the columns after the rank.
COLUMNS = ('image', 'verdict', 'rank', 'score', 'date', 'ranking', 'images',
           'label')
# A spreadsheet takes a cell that begins so for a formula, unless an apostrophe
# comes first. So a real apostrophe gets another one.
_ESCAPED = tuple("=+-@'\t\r")
Path = Union[str, os.PathLike]


class Judged(NamedTuple):
    """An image and what somebody said of it.

    Args:
        image (str): Its path, or its number in the dataset.
        verdict (str): One of :data:`VERDICTS`.
        rank (int): Its rank, from 1.
        score (str): Its score, as the file has it. Defaults to ''.
        date (str): When it was judged, as the file has it. Defaults to ''.
        ranking (str): Name of the ranking. Defaults to '': not known.
        images (int): How many images have a rank. Defaults to 0: not known.
        label (str): Name of the right class of a wrong image. Defaults to '':
            none was given.
        where (str): File and line, for errors. Defaults to ''.
    """

    image: str
    verdict: str
    rank: int
    score: str = ''
    date: str = ''
    ranking: str = ''
    images: int = 0
    label: str = ''
    where: str = ''

    @property
    def said(self) -> str:
        """str: The verdict, and the right class where one was given."""
        return self.verdict + f' ({self.label})' * bool(self.label)


def is_review(line: str) -> bool:
    """Return whether the first line of a file is that of a review."""
    return 'verdict' in re.split('[\r\n\t",;]+', line)


def open_text(path: Path, mode: str = 'r') -> IO[str]:
    """Open a table or a list to read it, or a new one with mode ``x``. Paths
    may be no text in UTF-8. Windows begins files with a byte-order mark."""
    try:
        return open(
            path,
            mode,
            encoding='utf-8-sig' if mode == 'r' else 'utf-8',
            errors='surrogateescape',
            newline='')
    except OSError as error:
        does = 'read' if mode == 'r' else 'written'
        raise Refusal(
            f'{path} can\'t be {does}: {error.strerror}; a relative path '
            'counts from the current folder.') from error


def read_review(path: Path) -> List[Judged]:
    """Read the file of a review, also one that a spreadsheet has saved.

    Raises:
        Refusal: If the file can't be used. The error names the line.
    """
    with open_text(path) as file:
        header = file.readline()
        file.seek(0)
        # Some languages' spreadsheets save semicolons.
        delimiter = next((each for each in ',;\t' if each in header), ',')
        lines = csv.reader(file, delimiter=delimiter, strict=True)
        try:
            names = next(lines, [])
            lacking = [name for name in COLUMNS[:3] if name not in names]
            if lacking:
                raise Refusal(
                    f'line 1 of {path} has no column `{lacking[0]}`, so this '
                    'is not a review: the file of a review begins with '
                    f'`{",".join(COLUMNS)}`.')
            rows = [
                _judged(f'line {lines.line_num} of {path}', names, cells)
                for cells in lines if cells
            ]
        except csv.Error as error:
            raise Refusal(
                f'line {lines.line_num} of {path} can\'t be read, {error}: '
                'correct the quotation marks up to there.') from error
    first: Dict[str, Judged] = {}
    for row in rows:
        # Another ranking may have the image too.
        other = first.setdefault(row.image, row)
        if other.said != row.said:
            raise Refusal(f'{row.where}, `{row.image}`, is the image of '
                          f'{other.where} again, first {other.said}, then '
                          f'{row.said}: keep one of the lines.')
    return rows


def _judged(where: str, names: List[str], cells: List[str]) -> Judged:
    if len(cells) != len(names):
        raise Refusal(
            f'{where} has {len(cells)} cells, and the first line '
            f'{len(names)}: put a cell that has a comma between quotation '
            'marks.')
    values: Dict[str, Any] = {
        name: cell[1:] if cell.startswith("'") else cell
        for name, cell in zip(names, cells) if name in COLUMNS
    }
    if not values['image']:
        raise Refusal(f'{where} names no image.')
    if values['verdict'] not in VERDICTS:
        raise Refusal(f'{where} has the verdict `{values["verdict"]}`: '
                      f'give one of {", ".join(VERDICTS)}.')
    if values.get('label') and values['verdict'] != WRONG:
        raise Refusal(
            f'{where} has the label `{values["label"]}` and the verdict '
            f'{values["verdict"]}: only a wrong image has a right label, so '
            f'remove the label, or make the verdict {WRONG}.')
    for name, lowest in (('rank', 1), ('images', 0)):
        number = values.get(name) or '0'
        if not re.fullmatch('[0-9]{1,16}', number) or int(number) < lowest:
            raise Refusal(
                f'{where} has `{values[name]}` in the column `{name}`: give a '
                f'whole number from {lowest}.')
        values[name] = int(number)
    return Judged(where=where, **values)


def write_review(path: Path, rows: Iterable[Judged]) -> None:
    """Write a new file of a review."""
    with open_text(path, 'x') as file:
        # A semicolon, too, may end a cell in a spreadsheet.
        lines = csv.writer(file, quoting=csv.QUOTE_ALL)
        lines.writerow(COLUMNS)
        for row in rows:
            lines.writerow(escaped(str(cell)) for cell in row[:len(COLUMNS)])


def escaped(cell: str) -> str:
    """Return a cell that a spreadsheet doesn't take for a formula."""
    return "'" * cell.startswith(_ESCAPED) + cell
