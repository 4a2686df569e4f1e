# Copyright (c) mmib contributors. All rights reserved.
"""A signal that stops a run after a step, the same one on all ranks."""
import atexit
import itertools
import os
import signal
import threading
import time
from typing import Any, Callable, NoReturn, Optional

import torch
import torch.distributed as dist

from .ranks import World, all_gather, world_of_process

# What a cluster sends before it ends a job. Windows has no SIGUSR1.
SIGNALS = [
    getattr(signal, name) for name in ('SIGTERM', 'SIGUSR1')
    if hasattr(signal, name)
]
EXIT_CODE = 75
"""int: Exit code after a signal: the run is saved, and the same command goes
on with it. 75 is EX_TEMPFAIL of ``sysexits.h``."""

# Seconds in which two signals are one.
_MOMENT = 0.2
# Seconds between two looks for the signal of another rank.
_INTERVAL = 1.
# Seconds to wait for a rank that doesn't answer.
_PATIENCE = 60.
# Held while a thread is in the store. A worker of a DataLoader that is forked
# meanwhile would keep the lock of a store in a file for ever.
_in_store = threading.Lock()
if hasattr(os, 'register_at_fork'):
    os.register_at_fork(
        before=_in_store.acquire,
        after_in_parent=_in_store.release,
        after_in_child=_in_store.release)
# What hears the signals in this process.
_newest: Optional['StopSignal'] = None
# Each run of a process has names of its own in the store that ranks share.
_runs = itertools.count()


def _pass_over(number: int, frame: object) -> None:
    """Handle a signal that is the same as the one before. In the place of
    SIG_IGN, which programs that are started meanwhile would inherit."""


def _receive(number: int, frame: object) -> None:
    """Handle a signal. A second one ends the process."""
    # `timeout` of coreutils signals a process and then its group.
    signal.signal(number, _pass_over)
    try:
        time.sleep(_MOMENT)
    finally:
        signal.signal(number, signal.SIG_DFL)
        if _newest is not None:
            _newest.receive(signal.Signals(number).name)


def _set_handlers(before: tuple, after: Any) -> None:
    """Set the handler of the signals that have one of the handlers before."""
    # Python allows handlers in the main thread alone.
    if threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            if signal.getsignal(number) in before:
                signal.signal(number, after)


def begin_worker(init: Optional[Callable], number: int) -> None:
    """Begin a worker of a DataLoader, as its ``worker_init_fn``. A cluster
    signals a whole process group, in which workers would end before the step
    is over, so a worker leaves the group.

    Args:
        init (Callable, optional): The ``worker_init_fn`` of the user.
        number (int): Number of the worker.
    """
    if hasattr(os, 'setpgrp'):
        os.setpgrp()
    if init is not None:
        init(number)


if hasattr(os, 'register_at_fork'):
    # A child that doesn't train ends at the signals.
    os.register_at_fork(after_in_child=lambda: _set_handlers(
        (_receive, _pass_over), signal.SIG_DFL))


class StopSignal:
    """A signal of the cluster, which all ranks heed after the same step.

    A step makes no exchange between ranks. A thread of each rank looks for a
    signal, its own or that of another rank, in the store of the process group.
    From then on, a rank waits at the end of its step until all threads have
    said how many steps their rank has made. No rank can be more than one step
    further, so the run stops after the step that follows the furthest one.

    A handler that a program has set stays, and mmib then hears nothing of its
    signal. A second signal ends the process, as without mmib, unless both come
    at one moment.
    """

    def __init__(self) -> None:
        self.name: Optional[str] = None
        """str, optional: Name of the signal that a rank has received."""
        self._num_steps = 0
        self._is_requested = self._is_over = False
        self._last_step: Optional[int] = None
        self._is_agreed, self._wakes = threading.Event(), threading.Event()
        self._world = World()
        self._thread: Optional[threading.Thread] = None

    def listen(self) -> None:
        """Wait for a signal from now on. Call this method on all ranks."""
        global _newest
        self._world = world_of_process()
        # A run before may have ended in an error, and left its handlers.
        _newest = self
        _set_handlers((signal.SIG_DFL, _receive), _receive)
        if self._world.size == 1:
            self._last_step = 0
            self._is_agreed.set()
        else:
            # Numbered here, because one rank may make more objects.
            self._thread = threading.Thread(
                target=self._agree, args=[next(_runs)], daemon=True)
            self._thread.start()

    def receive(self, name: str) -> None:
        """Receive a signal."""
        self.name = name
        # Several ranks agree before they wait for each other.
        self._is_requested = self._world.size == 1

    def after_step(self) -> bool:
        """Return whether the run stops after this step. Call this method after
        each step, on all ranks."""
        self._num_steps += 1
        if not self._is_requested:
            return False
        self._is_agreed.wait(_PATIENCE)
        return self._last_step is not None and (self._num_steps
                                                >= self._last_step)

    @staticmethod
    def leave() -> NoReturn:
        """End the process. Call this method on all ranks after the run was
        saved. Where one rank ends, a launcher may kill a rank that still
        writes the file, so all ranks wait for each other."""
        all_gather(torch.zeros(()))
        # When a rank has ended, a launcher may signal the ranks that are still
        # ending. It would then report the signal instead of the code.
        atexit.register(_set_handlers, (signal.SIG_DFL, _receive),
                        signal.SIG_IGN)
        raise SystemExit(EXIT_CODE)

    def close(self) -> None:
        """Wait no more, because the last step is over."""
        global _newest
        if _newest is self:
            _set_handlers((_receive, ), signal.SIG_DFL)
            _newest = None
        self._is_over = True
        self._wakes.set()
        if self._thread is not None:
            # Another rank may wait for the number of steps of this one.
            self._thread.join()

    def _agree(self, number: int) -> None:
        """Agree with the threads of other ranks on the last step. Give up if a
        rank doesn't answer: the run then goes on."""
        try:
            store = dist.PrefixStore(
                f'mmib/stop/{number}',
                dist.distributed_c10d._get_default_store())
            while not (self.name or self._is_over or self._has(store, 'stop')):
                self._wakes.wait(_INTERVAL)
            with _in_store:
                if self.name:
                    store.set('stop', self.name)
                elif not self._is_over:
                    self.name = store.get('stop').decode()
                # The order counts: the rank makes at most one more step.
                self._is_requested = True
                store.set(str(self._world.rank), str(self._num_steps))
            if self._is_over:
                return
            ranks = [*map(str, range(self._world.size))]
            end = time.monotonic() + _PATIENCE
            while not self._has(store, *ranks):
                if self._is_over or time.monotonic() > end:
                    return
                time.sleep(_INTERVAL / 20)
            with _in_store:
                steps = [int(store.get(rank)) for rank in ranks]
            self._last_step = 1 + max(steps)
        except RuntimeError:
            # The process group is gone, and with it the run.
            pass
        finally:
            self._is_agreed.set()

    @staticmethod
    def _has(store: dist.Store, *keys: str) -> bool:
        with _in_store:
            return store.check([*keys])
