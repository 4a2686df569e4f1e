# Copyright (c) mmib contributors. All rights reserved.
"""The page of a ranking, and the tables of images and boxes."""
import base64
import hashlib
import os.path as osp
import re
import shlex
from pathlib import Path
from typing import Any, List, Optional, Sequence

import pandas as pd
from markupsafe import Markup
from mmengine.config import Config

from ..report.page import environment_of
from ..version import __version__
from .boxes import KINDS
from .cards import BOX_COLOURS
from .config import listed_images, listed_name
from .gallery import Gallery
from .rankings import RANKINGS
from .verdicts import escaped

# The first columns of the table of all images.
_COLUMNS = ('rank', 'path', *RANKINGS, 'last_score', 'visits', 'pruned',
            'last_visit')


def _columns_of(images: pd.DataFrame) -> List[str]:
    """Return the columns of the table, after the number of the image."""
    known = [name for name in _COLUMNS if name in images or name == 'path']
    return [*dict.fromkeys([*known, *images])]


def write_table(path: str, images: pd.DataFrame) -> None:
    """Write the table of all images."""
    _write(
        path, images.reindex(columns=_columns_of(images)), index_label='image')


def write_boxes(path: str, boxes: pd.DataFrame, images: pd.DataFrame) -> None:
    """Write the table of the boxes that may be wrong, by rank of the image."""
    boxes = boxes.sort_values(
        'image',
        key=lambda numbers: numbers.map(images['rank']),
        kind='stable')
    _write(path, boxes, index=False, float_format='%.6g')


def _write(path: str, table: pd.DataFrame, **options: Any) -> None:
    """Write a table that has paths."""
    table['path'] = table['path'].map(escaped, na_action='ignore')
    # A path may not be valid UTF-8. A path with a line break is quoted because
    # lines end in that break.
    table.to_csv(
        path,
        lineterminator='\r\n',
        encoding='utf-8',
        errors='backslashreplace',
        **options)


def render(gallery: Gallery,
           key: str,
           config: Config,
           reviews: Sequence[str],
           table: str,
           boxes: Optional[str] = None) -> str:
    """Return the page that shows a gallery and takes verdicts.

    Args:
        gallery (Gallery): The images.
        key (str): The key under which the browser keeps the verdicts.
        config (Config): Config of the dataset.
        reviews (Sequence[str]): Files of earlier reviews.
        table (str): Name of the table of all images, beside the page.
        boxes (str, optional): Name of the table of boxes, beside the page.
            Defaults to None.
    """
    environment = environment_of(osp.dirname(__file__))
    environment.filters['digest'] = _digest
    number = _round(reviews)
    file = 'review.csv' if number == 1 else f'review-{number}.csv'
    script, commands = '', []
    if gallery.highest:
        script = Path(__file__).with_name('review.js').read_text('utf-8')
        if gallery.split == 'train':
            commands = _commands(config, reviews, file,
                                 f'reviews-{number}.csv',
                                 'relabel' if gallery.labels else 'without')
    return environment.get_template('gallery.html').render(
        version=__version__,
        title=osp.splitext(osp.basename(config.filename or ''))[0],
        notes=gallery.notes,
        gallery=gallery,
        config=config.filename,
        is_detector=config.get('default_scope') == 'mmdet',
        boxes=boxes,
        box_colours=[*zip(('label', 'prediction'), BOX_COLOURS)]
        if gallery.rank_by in KINDS else [],
        key=key,
        table=table,
        columns=['image', *_columns_of(gallery.images)],
        file=file,
        commands=commands,
        script=Markup(script))


def _digest(script: str) -> str:
    """Return the digest by which the page allows its script."""
    digest = hashlib.sha256(script.encode()).digest()
    return base64.b64encode(digest).decode()


def _round(reviews: Sequence[str]) -> int:
    """Return the number of the next review, from 1. Its files have other names
    than the files of the reviews before."""
    ends = (re.search(r'-(\d{1,3})\.csv$', path) for path in reviews)
    return 1 + max(len(reviews), *(int(end[1]) for end in ends if end), 0)


def _commands(config: Config, reviews: Sequence[str], file: str, merged: str,
              option: str) -> List[str]:
    """Return the commands that train without the images that were judged wrong
    in all rounds, or with their right labels."""
    commands = []
    if reviews:
        commands.append(['mmib', 'review', *reviews, file, '--out', merged])
        file = merged
    train, options = ['mmib', 'train', config.filename], []
    if option in listed_images(config):
        # The list of the round before.
        options.append(f'{listed_name(config)}.{option}={file}')
    else:
        train += [f'--{option}', file]
    if config.get('work_dir'):
        work_dir = osp.normpath(config.work_dir)
        train += ['--work-dir', f'{work_dir}_{osp.splitext(file)[0]}']
    if osp.isfile(config.filename or '') and Config.fromfile(
            config.filename, import_custom_modules=False).get(
                'load_from') != config.get('load_from'):
        # A test has written its checkpoint into the file, from which a run
        # must not begin.
        options.append(f'load_from={config.get("load_from")}')
    if options:
        train += ['--cfg-options', *options]
    return [shlex.join(each) for each in [*commands, train]]
