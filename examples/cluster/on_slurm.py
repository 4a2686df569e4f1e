# Copyright (c) mmib contributors. All rights reserved.
"""The run of job.py on slurm, by submitit: `pip install submitit`.

    python on_slurm.py FOLDER [CLUSTER]

When slurm stops the job, before its time is over or for another one, submitit
queues it again, and the run goes on. CLUSTER is `slurm` or, to try it in
processes on this machine, `local`.
"""
import os
import sys

import submitit
from submitit.helpers import DelayedSubmission
from torch import distributed as dist

CODE = os.path.dirname(os.path.abspath(__file__))


class Job:
    """A run that knows how to go on."""

    def __call__(self, folder):
        """Train in one of the tasks."""
        sys.path.append(CODE)
        import job
        environment = submitit.JobEnvironment()
        if environment.num_tasks > 1:
            submitit.helpers.TorchDistributedEnvironment().export()
            dist.init_process_group('gloo')
        job.train(folder)

    def checkpoint(self, folder):
        """Return what to queue when the job is stopped."""
        return DelayedSubmission(self, folder)


def submit(folder, cluster='slurm', tasks=1):
    """Queue the job, and return its handle."""
    executor = submitit.AutoExecutor(
        os.path.join(folder, 'submitit'), cluster=cluster)
    executor.update_parameters(
        name='mmib', tasks_per_node=tasks, timeout_min=60)
    return executor.submit(Job(), os.path.abspath(folder))


if __name__ == '__main__':
    submit(*sys.argv[1:3]).result()
