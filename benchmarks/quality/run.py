# Copyright (c) mmib contributors. All rights reserved.
"""Train the cells of a comparison: arms x passes x ratios x learning rates x
seeds, on a dataset.

Each cell appends a JSON line to the file of results when it ends. What has a
line isn't trained again, so a run that was stopped goes on. A training
that was on its way goes on from its last checkpoint.
"""
import argparse
import itertools
import json
import multiprocessing
import os
import os.path as osp
import re
import sys
import threading
import time
import traceback
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any, List, Optional, Sequence, Tuple

from mmengine.config import Config, DictAction

from mmib_cli.zoo import allow_scoped_bases

from .arms import ARMS, load_arms, load_data_set, make_config, with_passes
from .train import environment, train


def read_results(path: str) -> List[dict]:
    """Read the lines of a file, if there is one."""
    if not osp.exists(path):
        return []
    with open(path, encoding='utf-8') as file:
        return [json.loads(line) for line in file]


def append_result(path: str, line: dict) -> None:
    """Add a line, in one write: other runs may add to the same file."""
    os.makedirs(osp.dirname(osp.abspath(path)), exist_ok=True)
    with open(path, 'ab', buffering=0) as file:
        file.write(json.dumps(line).encode() + b'\n')


def make_cells(args: argparse.Namespace) -> List[Tuple[dict, Config]]:
    """What names each cell in the results, and its config. Each arm has its
    first seed before any has its second one: an early table is of use."""
    data_set, arms = load_data_set(args.data_set), load_arms(args.arms_file)
    if unknown := set(args.arms).difference(arms):
        raise ValueError(f'There is no arm {sorted(unknown)}, but {[*arms]}.')
    allow_scoped_bases()
    base = data_set.full_training(args.data or data_set.DATA)
    base.merge_from_dict(args.cfg_options)
    cells: List[Tuple[dict, Config]] = []
    for seed, passes, ratio, arm in itertools.product(
            args.seeds, args.passes or [data_set.PASSES], args.ratio,
            args.arms):
        for lr in rates_of(arm, args.lr) or [base.optim_wrapper.optimizer.lr]:
            full = with_passes(base, passes / data_set.PASSES)
            full.optim_wrapper.optimizer.lr = lr
            cfg = make_config(full, ratio, passes, **arms[arm])
            key = dict(
                data_set=args.data_set,
                arm=arm,
                passes=round(passes, 2),
                ratio=ratio,
                lr=lr,
                seed=seed,
                options=args.cfg_options)
            if cfg.train_cfg.max_iters == full.train_cfg.max_iters:
                key['ratio'] = 1.
            # Of all ratios, what runs all iterations is one.
            if key not in [key for key, _ in cells]:
                cells.append((key, cfg))
    return cells


def rates_of(arm: str, told: Sequence[str]) -> List[float]:
    """The learning rates of an arm, from ``RATE`` and ``ARM=RATE``."""
    own = [text.split('=')[1] for text in told if text.startswith(f'{arm}=')]
    return [float(x) for x in own or told if '=' not in x]


def run(args: argparse.Namespace) -> int:
    """Train the cells that have no line yet, side by side, and return how many
    have failed."""
    cells = make_cells(args)
    lines = read_results(args.out)
    done = [{name: line[name] for name in cells[0][0]} for line in lines]
    missing = [(key, cfg) for key, cfg in cells if key not in done]
    left, failed = len(missing), 0
    print(f'{left} of {len(cells)} cells to train', flush=True)
    metric = load_data_set(args.data_set).METRIC
    deadline = time.time() + 60 * args.minutes
    spawn = multiprocessing.get_context('spawn')
    with ProcessPoolExecutor(args.jobs, spawn, end_with_parent) as pool:
        running = {}
        for key, cfg in missing:
            name = re.sub(r'[^\w.]+', '-', ' '.join(map(str, key.values())))
            future = pool.submit(train_cell, cfg, metric, key['seed'],
                                 osp.join(f'{args.out}.cells', name), deadline)
            running[future] = key
        for future in as_completed(running):
            said = json.dumps(running[future])
            if error := future.exception():
                failed += 1
                traceback.print_exception(type(error), error, None)
                print(f'FAILED: {said}: {error!r}', flush=True)
            elif figures := future.result():
                append_result(args.out, dict(running[future], **figures))
                left -= 1
                print(
                    f'{figures["quality"]:.2f} {said}, {left} left',
                    flush=True)
    return failed


def end_with_parent() -> None:
    """Let this process end when the one that has started it ends."""

    def watch() -> None:
        multiprocessing.parent_process().join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def train_cell(*args: Any) -> Optional[dict]:
    """Train a cell in a process, and return its figures."""
    warnings.simplefilter('ignore')
    figures = train(*args)
    return figures and dict(environment(['mmcv', 'mmseg']), **figures)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add('data_set', help='camvid, pet, cifar10, or a module')
    add('--out', required=True, help='file of results')
    add('--data',
        help='prepared images (default: where the dataset puts them)')
    add('--arms', nargs='+', default=[*ARMS], help='default: %(default)s')
    add('--arms-file', help='with more arms, in a dict `arms`')
    add('--passes', nargs='+', type=float, help='of the full training')
    add('--ratio',
        nargs='+',
        type=float,
        default=[0.6],
        help='shares of its iterations that other arms run (default: 0.6)')
    add('--lr',
        nargs='+',
        default=[],
        help='RATE, or of one arm ARM=RATE (default: that of the config)')
    add('--seeds', nargs='+', type=int, default=[0, 1, 2])
    add('--jobs', type=int, default=1, help='cells side by side')
    add('--minutes',
        type=float,
        default=float('inf'),
        help='stop after so many; the same command goes on')
    add('--cfg-options', nargs='+', action=DictAction, default={})
    args = parser.parse_args()
    # Of the processes that train.
    os.environ.setdefault('OMP_NUM_THREADS', '1')
    try:
        failed = run(args)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    sys.exit(bool(failed))


if __name__ == '__main__':
    main()
