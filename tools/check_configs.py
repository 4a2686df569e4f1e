# Copyright (c) mmib contributors. All rights reserved.
"""Convert every config of the installed MMSegmentation and check the result.

Each is converted, written as a child config, loaded again, and its schedule
is checked. One line of JSON is written for each config as it finishes. With
the same --out a second run goes on where the first stopped.
"""
import argparse
import json
import os.path as osp
import sys
import tempfile
from collections import Counter
from typing import Iterator, List, Tuple

from convert_config import load, write_child
from mmengine.config import Config
from mmengine.utils import mkdir_or_exist

from mmib import convert
from mmib.zoo import allow_scoped_bases, resolve_config, zoo_names


def numbers(node, name: str = '') -> Iterator[Tuple[str, int]]:
    """All integers in a config by their dotted name."""
    if isinstance(node, dict):
        items = node.items()
    elif isinstance(node, (list, tuple)):
        items = enumerate(node)
    else:
        if type(node) is int:
            yield name, node
        return
    for key, value in items:
        yield from numbers(value, f'{name}.{key}' if name else str(key))


def rounds(interval: int, length: int) -> int:
    """How often something is done every so many iterations and at the end."""
    return -(-length // interval)


def check_schedule(before: Config, after: Config) -> List[str]:
    """Check that a converted schedule is consistent in itself and with the
    original one.

    Args:
        before (Config): The original config.
        after (Config): The converted config.

    Returns:
        list[str]: What is wrong with it, in sentences.
    """
    old, new = before.train_cfg.max_iters, after.train_cfg.max_iters
    problems = []

    def check(ok: bool, problem: str) -> None:
        if not ok:
            problems.append(problem)

    pairs = list(zip(before.param_scheduler, after.param_scheduler))
    check(
        len(before.param_scheduler) == len(after.param_scheduler),
        'the number of schedulers changed')
    for (stock, short), (next_stock, next_short) in zip(pairs, pairs[1:]):
        check(
            (short.end == next_short.begin) == (stock.end == next_stock.begin),
            'schedulers follow each other in another way')
    for i, (stock, short) in enumerate(pairs):
        where = f'param_scheduler[{i}]'
        begin, end = short.get('begin', 0), short.get('end', new)
        stock_begin, stock_end = stock.get('begin', 0), stock.get('end', old)
        check(0 <= begin < end, f'{where} runs from {begin} to {end}')
        check(end <= new or stock_end > old,
              f'{where} ends after the training')
        check((end == new) == (stock_end == old),
              f'{where} ends at {end} of {new}, it was {stock_end} of {old}')
        times = [begin + step for step in short.get('milestones', [])]
        check(times == sorted(set(times)), f'{where}.milestones: {times}')
        check(
            all(begin < time < end for time in times)
            or not all(stock_begin < stock_begin + step < stock_end
                       for step in stock.get('milestones', [])),
            f'{where}.milestones are outside: {times}')
        if stock_begin == 0 and stock_end <= old / 4:
            check(short == stock, f'{where} is a warm-up that changed')

    interval = after.train_cfg.val_interval
    stock_rounds = rounds(before.train_cfg.val_interval, old)
    check(0 < interval <= new, f'train_cfg.val_interval={interval}')
    check(
        abs(rounds(interval, new) - stock_rounds) <= 1,
        f'{rounds(interval, new)} validations instead of {stock_rounds}')
    check(
        after.train_cfg.get('val_begin', 1) <= new,
        'validation begins after the training')
    interval = after.default_hooks.checkpoint.interval
    check(0 < interval <= new, f'default_hooks.checkpoint.interval={interval}')
    check(
        abs(
            rounds(interval, new) -
            rounds(before.default_hooks.checkpoint.interval, old)) <= 1,
        'the number of checkpoints changed')
    for hooks in ('default_hooks', 'custom_hooks'):
        for name, value in numbers(after.to_dict()[hooks], hooks):
            field = name.rpartition('.')[2]
            if field.endswith(('_iter', '_iters')) and field != 'full_iters':
                check(value <= new, f'{name}={value} is after the training')
    hook = after.custom_hooks[-1]
    check(hook.policy.full_iters == old, f'{hook.policy} is not for {old}')
    return problems


def first_cause(error: BaseException) -> BaseException:
    """The error that led to an error."""
    while error.__cause__ or error.__context__:
        error = error.__cause__ or error.__context__
    return error


def check_config(name: str, ratio: float, folder: str) -> str:
    """Convert a config, write it, load it and check it.

    Args:
        name (str): Name of a config of MMSegmentation.
        ratio (float): Share of the iterations to run.
        folder (str): Folder for the converted config.

    Returns:
        str: ``'ok'``, or what went wrong.
    """
    path = resolve_config(f'mmseg::{name}')
    try:
        before = load(path)
    except ImportError as error:
        return f'needs a package: {first_cause(error)}'
    try:
        after = convert(before, ratio)
        out = osp.join(folder, 'converted.py')
        # It compares the loaded file with the conversion.
        write_child(path, before, after, out)
        problems = check_schedule(before, Config.fromfile(out))
    except Exception as error:
        return f'{type(error).__name__}: {error}'
    return '; '.join(problems) or 'ok'


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        '--out',
        default='work_dirs/check_configs.jsonl',
        help='file of the results (default: %(default)s)')
    parser.add_argument(
        '--ratio',
        type=float,
        default=0.6,
        help='share of the iterations to run (default: %(default)s)')
    return parser.parse_args()


def main():
    args = parse_args()
    allow_scoped_bases()
    mkdir_or_exist(osp.dirname(osp.abspath(args.out)))
    results = {}
    if osp.exists(args.out):
        with open(args.out, encoding='utf-8') as file:
            for line in map(json.loads, file):
                if line['ratio'] == args.ratio:
                    results[line['config']] = line['status']
    with open(args.out, 'a', encoding='utf-8') as file, \
            tempfile.TemporaryDirectory() as folder:
        for name in zoo_names():
            if name in results:
                continue
            results[name] = check_config(name, args.ratio, folder)
            line = dict(config=name, ratio=args.ratio, status=results[name])
            file.write(json.dumps(line) + '\n')
            file.flush()
    for status, count in Counter(results.values()).most_common():
        print(f'{count:4d}  {status}')
    sys.exit(set(results.values()) != {'ok'})


if __name__ == '__main__':
    main()
