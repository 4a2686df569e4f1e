# Copyright (c) mmib contributors. All rights reserved.
"""Compare ways to train: run arms x seeds of a config.

Each cell (an arm with a seed) is a process of its own, and appends a JSON
line to the results when it ends. What has a line isn't run again, so a run
that was stopped goes on with the next cell. A cell that was stopped begins
anew: MMEngine's checkpoints lack the random state of the pipeline, so going
on would give another result than the command does in one go.
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
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, closing
from threading import Lock

from arms.cell import environment
from arms.configs import add_arguments, fingerprint, load_arms, positive
from arms.results import ResultsFile, locked_folder
from mmengine.utils import mkdir_or_exist

FOLDER = osp.dirname(osp.abspath(__file__))
CELL = osp.join(FOLDER, 'arms', 'cell.py')
# These differ from one run to the next.
TIMES = ('train_seconds', 'train_cpu_seconds', 'val_seconds', 'step_seconds')


def check_configs(arms, results):
    """Refuse results of other configs.

    Args:
        arms (dict[str, Arm]): Arms by name.
        results (list[dict]): Finished cells.

    Raises:
        ValueError: If a finished cell of an arm had another config.
    """
    for result in results:
        if result['arm'] not in arms:
            continue
        now = fingerprint(arms[result['arm']].cfg)
        if result['config'] != now:
            raise ValueError(
                f'The results have cells of {result["arm"]} with the config '
                f'{result["config"]}, which now is {now}: give another '
                '--out, or undo what was changed in the config.')


def missing_cells(arms, results, num_seeds, here):
    """List what is still to run.

    Args:
        arms (dict[str, Arm]): Arms by name.
        results (list[dict]): Finished cells.
        num_seeds (int, optional): Upper limit of the number of seeds.
        here (dict): What the figures of new cells will depend on.

    Returns:
        list[tuple[str, int]]: Arm and seed. All arms have their first seed
        before any has its second one, so that the table is of use early.

    Raises:
        ValueError: If a finished cell was trained with other versions,
            threads or another device.
    """
    for result in results:
        for key, value in here.items():
            if result[key] != value:
                raise ValueError(
                    f'The results are of `{key}` {result[key]}, which here is '
                    f'{value}, and what differs is not compared: give another '
                    '--out, or the same.')
    done = {(result['arm'], result['seed']) for result in results}
    seeds = {
        name: min(arm.seeds, num_seeds or arm.seeds)
        for name, arm in arms.items()
    }
    return [(name, seed) for seed in range(max(seeds.values()))
            for name in arms
            if seed < seeds[name] and (name, seed) not in done]


class Trainer:
    """Trains cells in processes of their own.

    Args:
        arms (dict[str, Arm]): Arms by name.
        work_dir (str): Folder for a folder of each cell.
        threads (int, optional): Threads of each process. If None, as many as
            torch takes.
        locked (Sequence[int]): Files that stay locked as long as a process
            runs.
    """

    def __init__(self, arms, work_dir, threads, locked):
        self.arms = arms
        self.work_dir = work_dir
        self.locked = locked
        self.environment = dict(os.environ)
        if threads:
            for name in ('OMP_NUM_THREADS', 'MKL_NUM_THREADS'):
                self.environment[name] = str(threads)
        self._running = set()
        self._lock = Lock()
        self._stopped = False

    def __call__(self, arm, seed):
        """Train a cell.

        Args:
            arm (str): Name of the arm.
            seed (int): Seed of weights, data order and pipeline.

        Returns:
            dict: Its figures.

        Raises:
            RuntimeError: If it fails. It names the log.
        """
        if self._stopped:
            raise RuntimeError('stopped')
        folder = osp.join(self.work_dir, f'{arm}-{seed}')
        mkdir_or_exist(folder)
        config, figures, log = (
            osp.join(folder, name)
            for name in ('config.py', 'figures.json', 'log.txt'))
        cfg = copy.deepcopy(self.arms[arm].cfg)
        cfg.work_dir = folder
        cfg.randomness = dict(cfg.get('randomness') or {}, seed=seed)
        cfg.dump(config)
        with open(log, 'w', encoding='utf-8') as file:
            with self._lock:
                if self._stopped:
                    raise RuntimeError('stopped')
                process = subprocess.Popen(
                    [sys.executable, CELL, config, figures],
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    env=self.environment,
                    pass_fds=self.locked)
                self._running.add(process)
            code = process.wait()
        with self._lock:
            self._running.discard(process)
        if code:
            raise RuntimeError(f'exit status {code}, see {log}')
        with open(figures, encoding='utf-8') as file:
            return dict(
                arm=arm,
                seed=seed,
                config=fingerprint(self.arms[arm].cfg),
                **json.load(file))

    def stop(self):
        """End the processes that run, and start no more."""
        with self._lock:
            self._stopped = True
            for process in self._running:
                process.terminate()


def clock(seconds):
    hours, minutes = divmod(round(seconds / 60), 60)
    return f'{hours} h {minutes:02d} min'


def run(cells, trainer, jobs, on_result):
    """Train cells and say how long it will take.

    Args:
        cells (list[tuple[str, int]]): Arms and seeds.
        trainer (Trainer): Trains one of them.
        jobs (int): Cells that are trained side by side.
        on_result (Callable): Is given the figures of each.

    Returns:
        int: Cells that failed.
    """
    iters = {
        cell: trainer.arms[cell[0]].cfg.train_cfg.max_iters
        for cell in cells
    }
    seconds, done_iters, left_iters = 0., 0, sum(iters.values())
    failed = 0
    with ThreadPoolExecutor(jobs) as pool:
        try:
            tasks = {pool.submit(trainer, *cell): cell for cell in cells}
            for number, task in enumerate(as_completed(tasks), 1):
                cell = tasks[task]
                left_iters -= iters[cell]
                try:
                    result = task.result()
                except (OSError, RuntimeError, ValueError) as error:
                    failed += 1
                    said = f'FAILED: {error}'
                else:
                    on_result(result)
                    done_iters += iters[cell]
                    seconds += result['train_seconds'] + result['val_seconds']
                    said = (f'mIoU {result["evals"][-1]["mIoU"]:.2f} in '
                            f'{result["train_seconds"]:.0f} s of training '
                            f'and {result["val_seconds"]:.0f} s of evaluation')
                left = seconds / max(done_iters, 1) * left_iters / jobs
                print(
                    f'{cell[0]} {cell[1]}: {said}; {number} of {len(cells)} '
                    f'cells, about {clock(left)} left',
                    flush=True)
        except BaseException:
            # The pool waits for its tasks when it is left.
            trainer.stop()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return failed


def changed(first, second, keys):
    """List those of the keys by which two runs of a cell differ."""
    # As texts, in which NaN is equal to itself.
    return [
        key for key in keys
        if json.dumps(first[key]) != json.dumps(second.get(key))
    ]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument(
        '--out', required=True, help='results, a file of JSON lines')
    parser.add_argument(
        '--seeds', type=positive, help='at most so many seeds of each arm')
    parser.add_argument(
        '--jobs', type=positive, default=1, help='cells trained side by side')
    parser.add_argument(
        '--threads', type=positive, help='threads of each cell (default: all)')
    parser.add_argument(
        '--again',
        type=positive,
        metavar='N',
        help='train N finished cells, drawn at random, once more, and say '
        'whether their figures are equal; --out stays as it is')
    parser.add_argument(
        '--work-dir',
        help='folder of the logs (default: work_dirs/ and the name of --out)')
    args = parser.parse_args()

    try:
        arms = load_arms(args)
    except ValueError as error:
        parser.error(str(error))
    if any(arm.cfg.get('val_cfg') is None for arm in arms.values()):
        parser.error(f'{args.config} has no validation: give it `val_cfg`, '
                     '`val_dataloader` and `val_evaluator`')
    work_dir = args.work_dir or osp.join(
        'work_dirs',
        osp.splitext(osp.basename(args.out))[0])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit('stopped'))
    here = environment()
    here['threads'] = args.threads or here['threads']
    with ExitStack() as locks:
        try:
            results = locks.enter_context(closing(ResultsFile(args.out)))
            # Another --out may have the same name in another folder.
            folder = locks.enter_context(locked_folder(work_dir))
            check_configs(arms, results.cells)
        except (RuntimeError, ValueError) as error:
            parser.error(str(error))
        locked = [results.fileno(), folder]
        if args.again:
            finished = [cell for cell in results.cells if cell['arm'] in arms]
            if not finished:
                parser.error(f'{args.out} has no cell of {list(arms)}')
            trainer = Trainer(arms, osp.join(work_dir, 'again'), args.threads,
                              locked)
            failed = run_again(
                random.sample(finished, min(args.again, len(finished))),
                trainer, args.jobs, here)
        else:
            try:
                cells = missing_cells(arms, results.cells, args.seeds, here)
            except ValueError as error:
                parser.error(str(error))
            print(f'{len(cells)} cells to run', flush=True)
            trainer = Trainer(arms, work_dir, args.threads, locked)
            failed = run(cells, trainer, args.jobs, results.append)
    sys.exit(bool(failed))


def run_again(finished, trainer, jobs, here):
    """Train finished cells once more.

    Args:
        finished (list[dict]): Their figures.
        trainer (Trainer): Trains one of them.
        jobs (int): Cells that are trained side by side.
        here (dict): What the figures of this run depend on.

    Returns:
        int: Cells whose figures differ, or that failed.
    """
    first = {(cell['arm'], cell['seed']): cell for cell in finished}
    differ = []

    def compare(result):
        cell = result['arm'], result['seed']
        old = first[cell]
        keys = changed(old, result, old.keys() - {*TIMES, *here})
        said = 'all figures are equal'
        if keys:
            differ.append(cell)
            said = (f'{sorted(keys)} differ, the mIoU was '
                    f'{old["evals"][-1]["mIoU"]:.2f}')
        if others := changed(old, result, here):
            said += f' ({others} are others, with which rounding may change)'
        print(f'{cell[0]} {cell[1]}: {said}')

    return run(list(first), trainer, jobs, compare) + len(differ)


if __name__ == '__main__':
    main()
