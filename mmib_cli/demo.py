# Copyright (c) mmib contributors. All rights reserved.
"""Draw a dataset, train a small UperNet with InfoBatch on it, say what that
saved, and write a page that shows it."""
import argparse
import os.path as osp
import runpy
import subprocess
import sys
import time
from importlib import import_module

from mmib.report.read import Run, read_run

from .report import needs_report, write_report
from .zoo import mim_folder, shipped_folder

CONFIG = 'mmib::upernet/upernet_r18_1xb8-300-infobatch_demo-64x64'
WORK_DIR = 'work_dirs/demo'
DATA_ROOT = osp.join(WORK_DIR, 'data')
# What to show of the log; the rest is in the work folder.
SHOWN = (' - Iter(train)', ' - InfoBatch', ' mIoU: ', ' - Saving checkpoint',
         'Error')


def train(log_path: str) -> None:
    """Train in a process of its own, as a user would."""
    command = [
        sys.executable, '-m', 'mmib', 'train', CONFIG, '--work-dir', WORK_DIR,
        '--cfg-options'
    ]
    command += [
        f'{split}_dataloader.dataset.data_root={DATA_ROOT}'
        for split in ('train', 'val', 'test')
    ]
    print(
        ' '.join(command) + '\nThe first lines come in about 10 s, the whole '
        f'log is {log_path}',
        flush=True)
    with open(log_path, 'w') as log, subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            log.write(line)
            if any(part in line for part in SHOWN):
                print(line.rstrip(), flush=True)
    if process.returncode:
        sys.exit(f'The training failed, see {osp.abspath(log_path)}')


def summarize(run: Run, seconds: float) -> str:
    """Put in a few lines what a training saved, and its wall time."""
    iters, saved = run.last_iter, run.saved_iters
    full, num_images = iters + saved, run.pass_length
    pruned = ' '.join(str(num_images - plan.kept) for plan in run.plans)
    minutes, seconds = divmod(round(seconds), 60)
    return '\n'.join([
        'InfoBatch demo: UperNet R-18 on synthetic images',
        f'  iterations   {iters}, where the baseline needs {full:.0f} for '
        f'as many passes: {saved / full:.0%} saved',
        f'  pruned       of {num_images} images in each virtual epoch (pass): '
        f'{pruned}',
        f'  mIoU         {run.metrics["mIoU"].values[-1]:.2f}',
        f'  wall time    {minutes} min {seconds} s with validation',
    ])


def draw(folder: str) -> None:
    """Draw the dataset, by a script of mmib."""
    script = osp.join(shipped_folder('mmib', 'tools'), 'make_demo_data.py')
    runpy.run_path(script)['make_demo_data'](folder)


@needs_report
def main(parsed: argparse.Namespace) -> None:
    # What is missing is noticed before the training.
    import_module('mmib.report.page')
    mim_folder('mmseg')
    draw(DATA_ROOT)
    output = osp.join(WORK_DIR, 'output.log')
    start = time.time()
    train(output)
    seconds = time.time() - start
    print('\n' + summarize(read_run(WORK_DIR), seconds))
    print(f'  log          {output}')
    page = write_report(WORK_DIR)
    print(f'  report       {osp.abspath(page)}: open it in a browser')
