# Copyright (c) mmib contributors. All rights reserved.
"""Take two training steps with a config of each algorithm family of
MMSegmentation, and compare them with stock and with weights by hand.

``python tools/check_families.py`` checks all configs in the stack of the
environment, ``python tools/check_families.py fcn unet`` two families. Each
config runs in a process of its own and adds one line to ``--out``. Configs
with a line there are not run again. ``--markdown`` prints the lines of one or
several such files as a table instead.

The models are those of the configs, without pretrained weights, and smaller:
see families/configs.py. Of each it checks (families/checks.py):

a. Two steps of stock training have finite losses.
b. With mmib and weight 1 for each image, losses and gradients are stock's, up
   to rounding (families/steps.py).
c. With other weights, they are those of the weights by hand, which know
   nothing of mmib (families/by_hand.py).
d. Scores are finite, differ between images, and don't know the weights.

Results are ``prunes`` (all of them hold), ``score only`` (all but c, for which
the weights by hand know no formula), ``clear error`` (mmib refuses the config
with a sentence), ``cannot run here`` (stock fails) and ``WRONG``.
"""
import argparse
import contextlib
import io
import json
import multiprocessing
import os
import os.path as osp
import resource
import time
from collections import Counter
from importlib import metadata

from families.configs import CONFIGS, NOTES

OUT = 'work_dirs/families.jsonl'
BEST_FIRST = ('prunes', 'score only', 'clear error', 'cannot run here',
              'WRONG')


def family_of(path):
    """The family of a config."""
    return path.split('/')[0]


def stack():
    """The stack of this environment and the version of its mmseg."""
    for name, package in (('OneDL', 'onedl-mmsegmentation'),
                          ('OpenMMLab', 'mmsegmentation')):
        with contextlib.suppress(metadata.PackageNotFoundError):
            return f'{name} {metadata.version(package)}'


def import_checks():
    """Import what all children need, before they are made."""
    # The stacks say much when they are imported.
    with contextlib.redirect_stdout(io.StringIO()), \
            contextlib.redirect_stderr(io.StringIO()):
        import families.checks  # noqa: F401


def check_and_send(path, connection, memory):
    """Body of a child process: check a config, and send the line."""
    from families.checks import check
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    with open(os.devnull, 'w') as null:
        os.dup2(null.fileno(), 1)
        os.dup2(null.fileno(), 2)
    line = check(path)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    connection.send(dict(line, peak_mib=usage.ru_maxrss // 1024))


def check_in_process(path, timeout, memory):
    """Check a config in a process of its own.

    Args:
        path (str): Name in :data:`CONFIGS`.
        timeout (float): Seconds after which it is ended.
        memory (float): GiB that it may have.

    Returns:
        dict: The line of the config.
    """
    start = time.time()
    # What is imported here is there in each child.
    context = multiprocessing.get_context('fork')
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(
        target=check_and_send, args=(path, sender, int(memory * 2**30)))
    process.start()
    sender.close()
    line = dict(result='cannot run here')
    try:
        if receiver.poll(timeout):
            line = receiver.recv()
        else:
            line['reason'] = f'not done in {timeout} s'
    except EOFError:
        process.join()
        line['reason'] = f'its process ended with {process.exitcode}'
    process.kill()
    process.join()
    line.update(('note', note) for name, note in NOTES.items()
                if path.startswith(name))
    return dict(
        family=family_of(path),
        config=path,
        stack=stack(),
        seconds=round(time.time() - start, 1),
        **line)


def read_lines(path):
    """The lines of a file of results."""
    if not osp.exists(path):
        return []
    with open(path) as file:
        return [json.loads(line) for line in file]


def table(lines):
    """The results as a Markdown table, one row for each config. Of several
    stacks it shows those with the best result.

    Args:
        lines (list[dict]): Results, also of several stacks.

    Returns:
        str: The table.
    """
    rows = [
        '| family | config | heads and losses | result | stack |',
        '|---|---|---|---|---|'
    ]
    counts = Counter()
    for path in sorted({line['config'] for line in lines}):
        group = [line for line in lines if line['config'] == path]
        best = min((line['result'] for line in group), key=BEST_FIRST.index)
        group = [line for line in group if line['result'] == best]
        counts[best] += 1
        family, name = path.split('/')
        heads = max((line.get('heads', []) for line in group), key=len)
        note = group[0].get('reason') or group[0].get('note')
        cells = (family, f'`{name}`', '; '.join(heads),
                 best + (f': {note}' if note else ''),
                 ', '.join(line['stack'].split()[0] for line in group))
        rows.append(f'| {" | ".join(cells)} |')
    families = {line['family'] for line in lines}
    prune = {line['family'] for line in lines if line['result'] == 'prunes'}
    summary = ', '.join(f'{counts[r]} {r}' for r in BEST_FIRST if counts[r])
    return '\n'.join(rows + [
        '', f'{len(prune)} of {len(families)} families prune. '
        f'Configs: {summary}.'
    ])


def main(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        'family',
        nargs='*',
        default=sorted(set(map(family_of, CONFIGS))),
        help='families, default all')
    parser.add_argument(
        '--out',
        nargs='+',
        default=[OUT],
        metavar='FILE.jsonl',
        help=f'results, default {OUT}; several only with --markdown')
    parser.add_argument(
        '--markdown',
        action='store_true',
        help='run nothing, print the table of the results')
    parser.add_argument(
        '--timeout', type=float, default=300, help='seconds of a config')
    parser.add_argument(
        '--memory', type=float, default=10, help='GiB of a config')
    args = parser.parse_args(argv)
    known = parser.get_default('family')
    unknown = sorted(set(args.family).difference(known))
    if unknown:
        parser.error(f'no family {", ".join(unknown)}: known are '
                     f'{", ".join(known)}')

    lines = sum(map(read_lines, args.out), [])
    if args.markdown:
        print(table([line for line in lines if line['family'] in args.family]))
        return
    if len(args.out) > 1:
        parser.error('`--out` is one file where configs are run')
    out, = args.out
    os.makedirs(osp.dirname(osp.abspath(out)), exist_ok=True)
    done = {line['config'] for line in lines}
    todo = [
        path for path in CONFIGS
        if path not in done and family_of(path) in args.family
    ]
    if todo:
        import_checks()
    for path in todo:
        line = check_in_process(path, args.timeout, args.memory)
        with open(out, 'a') as file:
            file.write(json.dumps(line) + '\n')
        print(
            f'{line["result"]:16}{line["seconds"]:6.1f} s  {path}  '
            f'{line.get("reason", "")}',
            flush=True)


if __name__ == '__main__':
    main()
