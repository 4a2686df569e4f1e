# Copyright (c) mmib contributors. All rights reserved.
"""Real processes for tests, also over gloo."""
import contextlib
import os
import pickle
import signal
import socket
import sys
import tempfile
import time
import traceback
from datetime import timedelta
from unittest import mock

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import mmib.stop

# Processes are forked from one that has all imports and no threads.
CONTEXT = mp.get_context('forkserver')
# A training of them takes a second, with what the Runner imports late.
CONTEXT.set_forkserver_preload([
    'pytest', 'mmib', 'mmengine.runner', 'mmseg.models', 'matplotlib.pyplot',
    'torch._dynamo'
])
# Seconds until a process counts as one that hangs, on a busy machine too.
TIME_LIMIT = 300


def free_port():
    with socket.socket() as server:
        server.bind(('localhost', 0))
        return server.getsockname()[1]


def environment_of(rank, world_size, port):
    """Let frameworks find their rank in the environment, as with torchrun."""
    return mock.patch.dict(
        os.environ, {
            'RANK': str(rank),
            'LOCAL_RANK': str(rank),
            'GROUP_RANK': '0',
            'WORLD_SIZE': str(world_size),
            'LOCAL_WORLD_SIZE': str(world_size),
            'MASTER_ADDR': 'localhost',
            'MASTER_PORT': str(port),
            'TORCHELASTIC_RUN_ID': 'test',
        })


def wait_for_thread_of_stop():
    """Wait until mmib's thread knows of the signal to this process. On a busy
    machine a small network may make all its steps first."""
    while not mmib.stop._newest._is_requested:
        time.sleep(0.001)


def _start_rank(rank, function, world_size, prefix, args):
    status = 1
    try:
        os.setpgid(0, 0)  # with its workers
        # The workers are forked, as in a user's program. By default each
        # process would start a server for its workers, with all imports.
        mp.set_start_method('fork', force=True)
        with open(f'{prefix}_rank{rank}.log', 'w') as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        torch.set_num_threads(1)
        if world_size > 1 or function is _save_result:
            dist.init_process_group(
                'gloo',
                init_method=f'file://{prefix}.store',
                rank=rank,
                world_size=world_size,
                timeout=timedelta(seconds=TIME_LIMIT))
        function(rank, *args)
        status = 0
    except SystemExit as error:
        status = error.code
    except BaseException as error:
        # torch raises once more when another worker of a loader ends.
        with contextlib.suppress(RuntimeError):
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        traceback.print_exc()
        with open(f'{prefix}_rank{rank}.error', 'w') as file:
            file.write(f'{type(error).__name__}: {error}')
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # Without waiting for workers, or for ranks that are gone.
        os._exit(status)


@contextlib.contextmanager
def start_ranks(function, world_size, prefix, *args):
    """Start ``function(rank, *args)`` in real processes, over gloo where
    there are several, and leave none of them behind. What each prints is in
    ``{prefix}_rank{rank}.log``."""
    processes = [
        CONTEXT.Process(
            target=_start_rank,
            args=(rank, function, world_size, prefix, args))
        for rank in range(world_size)
    ]
    try:
        for process in processes:
            process.start()
        yield processes
    finally:
        for process in processes:
            if process.pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.kill()
                process.join()


def wait_for_end(processes):
    """Wait until all have ended, and say whether they did so in time."""
    end = time.monotonic() + TIME_LIMIT
    while any(process.exitcode is None for process in processes):
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


def log_of(prefix, rank):
    with open(f'{prefix}_rank{rank}.log', errors='replace') as file:
        return file.read()


def _save_result(rank, function, prefix):
    results = {}
    function(rank, results)
    with open(f'{prefix}_rank{rank}.pkl', 'wb') as file:
        pickle.dump(results[rank], file)
    dist.barrier()


def run_ranks(function, world_size):
    """Run ``function(rank, results)`` in real processes, each of which writes
    ``results[rank]``, and return these in order."""
    results = []
    with tempfile.TemporaryDirectory() as folder:
        prefix = os.path.join(folder, 'run')
        with start_ranks(_save_result, world_size, prefix, function,
                         prefix) as processes:
            wait_for_end(processes)
            for rank, process in enumerate(processes):
                assert process.exitcode == 0, log_of(prefix, rank)[-3000:]
                with open(f'{prefix}_rank{rank}.pkl', 'rb') as file:
                    results.append(pickle.load(file))
    return results
