# Copyright (c) mmib contributors. All rights reserved.
"""Compare ways to train: run arms x seeds of a config.

Each cell (an arm with a seed) is a process of its own, and appends a JSON
line to the results when it ends. What has a line isn't run again, so a run
that was stopped goes on with the next cell. A cell that was stopped begins
anew: MMEngine's checkpoints lack the random state of the pipeline, so going
on would give another result than the command does in one go.

To train cells side by side, start this in several shells, each with other
arms (--only) and the same --out.
"""
import argparse
import copy
import json
import os
import os.path as osp
import random
import signal
import subprocess
import sys
from typing import Any, Dict, Iterable, List, Optional, Tuple

from arm_configs import Arm, add_arguments, fingerprint, load_arms
from cell import environment
from mmengine.config import Config
from results import append_result, read_results

CELL = osp.join(osp.dirname(osp.abspath(__file__)), 'cell.py')
# These differ from one run to the next.
TIMES = ('train_seconds', 'train_cpu_seconds', 'val_seconds', 'step_seconds')

Cell = Tuple[str, int]


def check_finished(finished: List[dict], arms: Dict[str, Arm],
                   here: dict) -> None:
    """Refuse results that new cells can't be compared with, as they had
    another config, or differ in what figures depend on besides."""
    configs = {name: fingerprint(arm.cfg) for name, arm in arms.items()}
    for cell in finished:
        wanted = dict(here, config=configs.get(cell['arm'], cell['config']))
        for key, value in wanted.items():
            if cell[key] != value:
                raise ValueError(
                    f'The results have cells of {cell["arm"]} with the `{key}`'
                    f' {cell[key]}, which here is {value}, and what differs '
                    'is not compared: give another --out, or the same.')


def wanted_cells(arms: Dict[str, Arm], num_seeds: Optional[int]) -> List[Cell]:
    """Arms and seeds, with at most so many seeds of each arm. All arms have
    their first seed before any has its second one: an early table is of use.
    """
    most = max(arm.seeds for arm in arms.values())
    return [(name, seed) for seed in range(most)[:num_seeds]
            for name, arm in arms.items() if seed < arm.seeds]


def train(cfg: Config, name: str, seed: int, work_dir: str,
          threads: Optional[int]) -> dict:
    """Train a cell of an arm in a process of its own and in its folder of the
    work folder, and return its line of the results. Where it fails, a
    RuntimeError names the log."""
    folder = osp.join(work_dir, f'{name}-{seed}')
    os.makedirs(folder, exist_ok=True)
    config, figures, log = (
        osp.join(folder, file)
        for file in ('config.py', 'figures.json', 'log.txt'))
    of_seed = copy.deepcopy(cfg)
    of_seed.work_dir = folder
    of_seed.randomness = dict(cfg.get('randomness') or {}, seed=seed)
    of_seed.dump(config)
    env = dict(os.environ)
    if threads:
        env.update(OMP_NUM_THREADS=str(threads), MKL_NUM_THREADS=str(threads))
    with open(log, 'w', encoding='utf-8') as file:
        # It ends the process if this one is stopped.
        code = subprocess.run([sys.executable, CELL, config, figures],
                              stdout=file,
                              stderr=subprocess.STDOUT,
                              env=env).returncode
    if code:
        raise RuntimeError(f'exit status {code}, see {log}')
    with open(figures, encoding='utf-8') as file:
        return dict(
            arm=name, seed=seed, config=fingerprint(cfg), **json.load(file))


def compare(old: dict, new: dict, here: Iterable[str]) -> Tuple[bool, str]:
    """Whether two runs of a cell are equal, but for their times and the keys
    of what they depend on, and a sentence that says so."""

    def text(value: Any) -> str:
        # NaN is equal to itself, and the order of sums doesn't matter.
        return str(
            json.loads(
                json.dumps(value), parse_float=lambda x: f'{float(x):.6g}'))

    changed = sorted(key for key in old.keys() - {*TIMES}
                     if text(old[key]) != text(new.get(key)))
    figures = [key for key in changed if key not in here]
    others = [key for key in changed if key in here]
    said = 'all figures are equal'
    if figures:
        said = (f'{figures} differ, the mIoU was '
                f'{old["evals"][-1]["mIoU"]:.2f}')
    if others:
        said += f' ({others} are others, with which rounding may change)'
    return not figures, said


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument(
        '--out', required=True, help='results, a file of JSON lines')
    parser.add_argument(
        '--seeds', type=int, help='at most so many seeds of each arm')
    parser.add_argument(
        '--threads', type=int, help='threads of each cell (default: all)')
    parser.add_argument(
        '--again',
        type=int,
        metavar='N',
        help='train N finished cells, drawn at random, once more, and say '
        'whether their figures are equal; --out stays as it is')
    args = parser.parse_args()
    again = args.again is not None
    # For the logs.
    work_dir = osp.join('work_dirs', osp.splitext(osp.basename(args.out))[0])
    here = environment()
    here['threads'] = args.threads or here['threads']
    try:
        arms = load_arms(args)
        if any(arm.cfg.get('val_cfg') is None for arm in arms.values()):
            raise ValueError(f'{args.config} has no validation: give it '
                             '`val_cfg`, `val_dataloader` and `val_evaluator`')
        if not again:
            os.makedirs(osp.dirname(osp.abspath(args.out)), exist_ok=True)
            open(args.out, 'a').close()
        finished = read_results(args.out)
        check_finished(finished, arms, {} if again else here)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    first = {(cell['arm'], cell['seed']): cell for cell in finished}
    if again:
        work_dir = osp.join(work_dir, 'again')
        cells = [cell for cell in first if cell[0] in arms]
        if not cells:
            parser.error(f'{args.out} has no cell of {list(arms)}')
        cells = random.sample(cells, min(args.again, len(cells)))
    else:
        cells = [c for c in wanted_cells(arms, args.seeds) if c not in first]
    print(f'{len(cells)} cells to run', flush=True)

    # So that the cell in training ends with this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit('stopped'))
    failed = 0
    for number, (name, seed) in enumerate(cells, 1):
        try:
            cell = train(arms[name].cfg, name, seed, work_dir, args.threads)
        except RuntimeError as error:
            failed += 1
            said = f'FAILED: {error}'
        else:
            if again:
                is_equal, said = compare(first[name, seed], cell, here)
                failed += not is_equal
            else:
                append_result(args.out, cell)
                said = (f'mIoU {cell["evals"][-1]["mIoU"]:.2f} in '
                        f'{cell["train_seconds"]:.0f} s of training and '
                        f'{cell["val_seconds"]:.0f} s of evaluation')
        print(f'{name} {seed}: {said}; {number} of {len(cells)}', flush=True)
    sys.exit(bool(failed))


if __name__ == '__main__':
    main()
