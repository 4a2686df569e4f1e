# Copyright (c) mmib contributors. All rights reserved.
"""Write one HTML file that shows a run."""
import argparse
import functools
import os
import os.path as osp
import sys
from contextlib import suppress
from importlib.util import find_spec
from typing import Callable, Optional, Sequence

from mmib.errors import Refusal

from .zoo import allow_scoped_bases

_NEEDED = ('jinja2', 'matplotlib', 'pandas')


def write_report(work_dir: str,
                 compare: Sequence[str] = (),
                 out: Optional[str] = None) -> str:
    """Write the report of a run.

    Args:
        work_dir (str): Folder of the run.
        compare (Sequence[str]): Folders of other runs. Defaults to ().
        out (str, optional): The page. Defaults to ``report.html`` in the
            folder.

    Returns:
        str: Path of the page.

    Raises:
        Refusal: If a folder has nothing of a run, or the page can't be
            written.
    """
    from mmib.report.checkpoint import read_newest
    from mmib.report.page import render, write_text
    from mmib.report.read import read_run

    # A config may inherit by a name such as mmseg::...
    allow_scoped_bases()
    run = read_run(work_dir)
    others = [read_run(folder) for folder in compare]
    out = osp.join(work_dir, 'report.html') if out is None else out
    check_writable(out)
    write_text(out, render(run, others, *read_newest(work_dir, run.start)))
    return out


def explain_image(work_dir: str, image: str) -> str:
    """Return why the newest plan of a run kept an image or left it out. If
    this plan is full, as in annealing, add the explanation of the newest plan
    that pruned in an older checkpoint.

    Args:
        work_dir (str): Folder of the run.
        image (str): Path of the image, the end of its path, or its number.

    Raises:
        Refusal: If the folder has no checkpoint with InfoBatch, or the
            dataset no such image.
    """
    from mmib.labels.images import CannotShow, DatasetImages
    from mmib.report.checkpoint import Checkpoint, read_all, read_newest
    from mmib.report.read import read_run
    from mmib.run.explain import Explanation, explain
    from mmib.run.record import PlanRecord
    allow_scoped_bases()
    run = read_run(work_dir)
    newest, notes = read_newest(work_dir, run.start)
    if newest is None:
        raise Refusal(' '.join(notes))
    if newest.state is None or not newest.state['records']:
        raise Refusal(f'{newest.path} has no plan of InfoBatch: give the '
                      'folder of a run with InfoBatch.')
    try:
        images = DatasetImages(run.config)
        images.check(newest)
    except CannotShow as error:
        raise Refusal(f'{image} can\'t be found, because {error}.') from error
    number, index = images.find(image)
    name = f'image {image}' if image.isdecimal() else image

    def explained(state: dict) -> Explanation:
        return explain(index, number,
                       PlanRecord.from_dict(state['records'][-1]),
                       state['schedule']['pass_length'],
                       state['reading']['scores'],
                       state['stream']['plans'][-1]['keeps'], state['tables'])

    explanation = explained(newest.state)
    text = f'{newest.name}: {explanation.describe(name)}'
    if not explanation.is_full:
        return text
    for older in read_all(work_dir, run.start):
        if (isinstance(older, Checkpoint) and older.state
                and older.state['records']):
            explanation = explained(older.state)
            if not explanation.is_full:
                return f'{text}\n{older.name}: {explanation.describe(name)}'
    return (f'{text} The folder has no plan that pruned: only a checkpoint '
            'from before annealing has one (raise `max_keep_ckpts`).')


def needs_report(main: Callable[[argparse.Namespace], None]) -> Callable:
    """Let a command say which packages it needs where one is missing."""

    @functools.wraps(main)
    def checked(parsed: argparse.Namespace) -> None:
        try:
            main(parsed)
        except ModuleNotFoundError as error:
            if error.name not in _NEEDED:
                raise
            missing = [name for name in _NEEDED if find_spec(name) is None]
            raise Refusal(
                'This command needs `jinja2`, `matplotlib` and `pandas`: run '
                f'`pip install {" ".join(missing or _NEEDED)}`.') from error

    return checked


def check_writable(path: str, reviews: Sequence[str] = ()) -> None:
    """Check that a page or a table can be written, and is not a review."""
    if osp.realpath(path) in map(osp.realpath, reviews):
        raise Refusal(f'{path} is a review: give another file with --out.')
    try:
        os.makedirs(osp.dirname(osp.abspath(path)), exist_ok=True)
        is_new = not osp.lexists(path)
        open(path, 'a').close()
        if is_new:  # So that a refusal leaves no empty file.
            with suppress(OSError):
                os.remove(path)
    except OSError as error:
        raise Refusal(
            f'{path} can\'t be written: {error.strerror}. Give another file '
            'with --out.') from error


@needs_report
def main(parsed: argparse.Namespace) -> None:
    if parsed.image is not None:
        print(explain_image(parsed.work_dir, parsed.image))
        return
    print(write_report(parsed.work_dir, parsed.compare, parsed.out))
    print('Open the page in a browser.', file=sys.stderr)
