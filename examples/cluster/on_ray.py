# Copyright (c) mmib contributors. All rights reserved.
"""The run of job.py in Ray Train, which needs `pip install 'ray[train]'`.

    python on_ray.py FOLDER [WORKERS]

Ray makes the process group before the function is called, and that is all a
Session needs. All workers must see the folder.
"""
import os
import sys

from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer


def work(config):
    """Train in a worker."""
    sys.path.append(config['code'])
    import job
    job.train(config['folder'])


def main(folder, workers=2):
    """Train, and go on after a worker has died."""
    folder = os.path.abspath(folder)
    code = os.path.dirname(os.path.abspath(__file__))
    return TorchTrainer(
        work,
        train_loop_config=dict(folder=folder, code=code),
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(
            storage_path=os.path.join(folder, 'ray'),
            failure_config=FailureConfig(max_failures=3))).fit()


if __name__ == '__main__':
    main(sys.argv[1], *map(int, sys.argv[2:3]))
