"""Threads that run host functions and write large messages, and the event loop of asynchronous functions."""

# Decisions: docs/internals/python-client.md.

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Event, Lock, Thread

_IDLE_SECONDS = 10.0


class Workers:
    """Threads that are started when they are needed, and kept for a while.

    They are daemons, unlike those of `ThreadPoolExecutor`: a host function that waits for a model must not hold up the
    end of the program. Their number is bounded by the hosts, which bound the calls of each sandbox.
    """

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._lock = Lock()
        self._count = 0
        #: Threads that wait for work; below 0, work that waits for a thread.
        self._idle = 0

    def begin(self, work: Callable[[], object]) -> None:
        """Runs work in a thread. It must not raise."""
        with self._lock:
            if self._idle <= 0:
                try:
                    Thread(target=self._serve, name="sandglass-worker", daemon=True).start()
                except RuntimeError:  # the system has no thread left: the next that ends its work takes this
                    if self._count == 0:
                        raise
                else:
                    self._count += 1
                    self._idle += 1
            self._idle -= 1
        self._work.put(work)

    def run(self, work: Callable[[], None]) -> None:
        """Runs work in a thread, and waits for it. A second exception of this thread ends the waiting only."""
        done = Event()
        errors: list[BaseException] = []

        def guarded() -> None:
            try:
                work()
            except BaseException as error:
                errors.append(error)
            done.set()

        self.begin(guarded)
        try:
            done.wait()
        except BaseException:
            done.wait()  # whatever the caller does about the interrupt comes after the work
            raise
        if errors:
            raise errors[0]

    def _serve(self) -> None:
        while True:
            try:
                work = self._work.get(timeout=_IDLE_SECONDS)
            except Empty:
                with self._lock:
                    if self._idle > 0:
                        self._idle -= 1
                        self._count -= 1
                        return
                continue  # this thread has been chosen for work that is about to come
            work()
            del work
            with self._lock:
                self._idle += 1


class Loop:
    """An event loop in a thread of its own, begun when it is needed."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def get(self) -> asyncio.AbstractEventLoop:
        """The loop, which runs."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                Thread(target=self._loop.run_forever, name="sandglass-loop", daemon=True).start()
            return self._loop


_workers = Workers()
_loop = Loop()


def begin(work: Callable[[], object]) -> None:
    """Runs work in a thread. It must not raise."""
    _workers.begin(work)


def run(work: Callable[[], None]) -> None:
    """Runs work in a thread, and waits for it. A second exception of this thread ends the waiting only."""
    _workers.run(work)


def own_loop() -> asyncio.AbstractEventLoop:
    """The event loop of this package's own thread."""
    return _loop.get()


def _after_fork() -> None:
    # A forked process has none of the threads, and locks as they were at that moment.
    global _workers, _loop
    _workers, _loop = Workers(), Loop()


if hasattr(os, "register_at_fork"):  # not on Windows, where sandboxes of servers work
    os.register_at_fork(after_in_child=_after_fork)
