"""asyncio for cells: a deterministic event loop that only waits by `Bridge.sleep`.

The same loop runs on every backend. No task runs while Python is blocked in a host call, and none outlives the cell:
`EventLoops.end_cell` treats leftover tasks as `asyncio.run` does.
"""

# Decisions: docs/internals/guest-in-a-browser.md.

from __future__ import annotations

import asyncio
import time
from asyncio import (
    Task,
    all_tasks,
    base_events,
    current_task,
    ensure_future,
    events,
    gather,
    iscoroutine,
    wait,
)
from asyncio.events import _get_running_loop, _set_running_loop
from asyncio.tasks import _enter_task, _leave_task
from contextlib import contextmanager
from functools import wraps
from sys import _getframe
from threading import get_ident
from time import monotonic
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from sandglass.runtime.errors import Submitted
from sandglass.runtime.helpers import AwaitableList, AwaitableStr
from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from contextvars import Context

    from sandglass.runtime.bridge import Threads

_RUN_ONCE = asyncio.BaseEventLoop._run_once.__code__  # type: ignore[attr-defined]
_CLOCK = time.get_clock_info("monotonic")
#: Replaces asyncio's module `time` while a loop is made: asking for the clock's resolution would look at the clock.
_TIME = SimpleNamespace(**(vars(time) | {"get_clock_info": lambda _name: _CLOCK}))
CANCEL_ROUNDS = 3  # cancelled tasks may start others; after this many rounds these are dropped
#: True while a cell runs that has not been asked for yet.
_ahead = False
_create_task = asyncio.create_task
_Policy: Any = getattr(events, "_AbstractEventLoopPolicy", None) or events.AbstractEventLoopPolicy


def run_ahead(ahead: bool) -> None:
    """Sets whether the running cell must not look at the clock without need."""
    global _ahead
    _ahead = ahead


class FinishedLoop(asyncio.BaseEventLoop):
    """An event loop that ends with its cell. It accepts a query's result as a coroutine, because models write that."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        #: Tasks that were made while the loop did not run.
        self._begun: WeakSet[Any] = WeakSet()
        #: Tasks that close generators which code has left unfinished.
        self._closers: WeakSet[Any] = WeakSet()

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """Stays silent about a task that SUBMIT has ended and nobody awaited."""
        if not isinstance(context.get("exception"), Submitted):
            super().default_exception_handler(context)

    def create_task(self, coro: Any, **kwargs: Any) -> Any:
        task = super().create_task(_coroutine(coro), **kwargs)
        if not self.is_running():
            self._begun.add(task)
        return task

    def _asyncgen_finalizer_hook(self, agen: Any) -> None:
        self._asyncgens.discard(agen)  # type: ignore[attr-defined]
        if not self.is_closed():
            self.call_soon_threadsafe(self._close_generator, agen)

    def _close_generator(self, agen: Any) -> None:
        self._closers.add(self.create_task(agen.aclose()))

    def run_begun(self) -> None:
        """Runs tasks to their end that were made while the loop did not run. Reports those that fail."""
        pending = [task for task in self._begun if not task.done()]
        if not pending:
            return
        waiter = self.create_task(wait(pending))
        self._closers.add(waiter)  # not a task of the code's
        try:
            self.run_until_complete(waiter)
        except RuntimeError:
            pass  # the tasks wait for something that nothing can complete
        finally:
            for task in pending:
                if getattr(task, "_log_traceback", False):  # nobody has looked at the exception
                    error = task.exception()
                    if isinstance(error, Exception):  # other exceptions end the cell
                        report = {"message": "Task exception was never retrieved", "exception": error, "task": task}
                        self.call_exception_handler(report)

    def finish(self, main: asyncio.Future[Any] | None = None) -> int:
        """Cancels leftover tasks, shuts down async generators, and closes.

        Returns the number of leftovers besides `main`.
        """
        if self.is_closed():
            return 0
        left: set[Any] = set()
        try:
            for _ in range(CANCEL_ROUNDS):
                pending = all_tasks(self)
                if not pending:
                    break
                for task in pending.difference(self._closers):
                    left.add(task)
                    task.cancel()
                self.run_until_complete(self.until_done(pending))
            self.run_until_complete(self.shutdown_asyncgens())
        except RuntimeError:
            pass  # a task refused to be cancelled and waits forever
        finally:
            for task in all_tasks(self):
                task._log_destroy_pending = False  # type: ignore[attr-defined]
            count = len(left.difference(self._closers, [main]))
            self.close()  # this ends idle threads of `run_in_executor`, and waits for none
        return count

    def until_done(self, tasks: set[Any]) -> Any:
        """Waits for tasks that `finish` has cancelled."""
        return gather(*tasks, return_exceptions=True)


class CellLoop(FinishedLoop):
    """An event loop that sleeps through the bridge."""

    def __init__(self, sleep: Callable[[float | None], None], threads: Threads | None, *args: Any) -> None:
        known, base_events.time = base_events.time, _TIME  # type: ignore[attr-defined]
        try:
            super().__init__(*args)
        finally:
            base_events.time = known  # type: ignore[attr-defined]
        self._sleep = sleep
        self._threads = threads
        self._selector: Any = self
        self._main: asyncio.Future[Any] | None = None

    def time(self) -> float:
        """Returns the time of the clock, whatever became of the module `time`.

        Code that runs ahead must not look at the clock, nor must code that may have to be repeated. asyncio needs no
        time while no timer is set, except to tell which callbacks are slow.
        """
        if _ahead and not self._scheduled and not self._debug and _getframe(1).f_code is _RUN_ONCE:  # type: ignore[attr-defined]
            return 0.0
        return monotonic()

    def select(self, timeout: float | None) -> list[Any]:
        """Waits for BaseEventLoop, which calls its selector: this loop is its own selector."""
        try:
            if timeout is None and not (self._threads and self._threads.may_wake()):
                if self._ready:  # type: ignore[attr-defined]  # by a thread that has ended since
                    return []
                raise RuntimeError(
                    "deadlock: the cell waits for something that nothing can complete: no task is ready, no timer set"
                )
            if timeout is None or timeout > 0:
                self._sleep(timeout)
        except (RuntimeError, KeyboardInterrupt) as error:
            self._fail_main(error)
        return []

    def _fail_main(self, error: BaseException) -> None:
        """Raises the error at the await of the main task, so that the traceback shows this line."""
        waiter: Any = self._main
        while isinstance(waiter, Task) or hasattr(waiter, "_fut_waiter"):  # Python's own tasks, or others'
            waiter = getattr(waiter, "_fut_waiter", None)
        if waiter is None or waiter.done():
            raise error
        waiter.set_exception(error.with_traceback(None))

    def run_until_complete(self, future: Any) -> Any:
        if self.is_running() and iscoroutine(future):
            return self._run_beside(future)
        main = ensure_future(future, loop=self)
        main.add_done_callback(_stop)
        self._main = main
        try:
            self.run_forever()
        except BaseException:
            if main.done() and not main.cancelled():
                main.exception()  # the error reaches the caller, so mark it as seen
            raise
        finally:
            main.remove_done_callback(_stop)
            self._main = None
        if not main.done():
            raise RuntimeError("Event loop stopped before Future completed.")
        return main.result()

    def _run_beside(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Runs another coroutine for `loop.run_until_complete()` inside of this loop, in a loop of its own."""
        other = type(self)(self._sleep, self._threads)
        try:
            return other.run_until_complete(coroutine)
        finally:
            other.finish()

    def run_forever(self) -> None:
        with outer_loop_suspended():
            super().run_forever()

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:  # type: ignore[override]
        """Without threads, runs the function here and now, and returns a finished future."""
        if self._threads:
            return super().run_in_executor(executor, func, *args)
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def _process_events(self, event_list: list[Any]) -> None:
        """Part of BaseEventLoop. There are no I/O events."""

    def _write_to_self(self) -> None:
        """Part of BaseEventLoop. Another thread has work for this loop."""
        if self._threads:
            self._threads.wake()


def _refusal(name: str) -> Any:
    what = {"_make_subprocess_transport": "processes"}.get(name, "pipes" if name.startswith("_") else name)

    def refuse(*_args: object, **_options: object) -> None:
        raise NotImplementedError(f"asyncio has no {what} in this sandbox, only tasks and timers")

    return refuse


#: An event loop's methods for sockets, pipes, processes and signals.
BEYOND_TASKS = (
    *("_make_subprocess_transport", "_make_read_pipe_transport", "_make_write_pipe_transport"),
    *("add_reader", "remove_reader", "add_writer", "remove_writer", "add_signal_handler", "remove_signal_handler"),
    *("create_connection", "create_server", "create_unix_connection", "create_unix_server", "create_datagram_endpoint"),
    *("sock_accept", "sock_connect", "sock_recv", "sock_recv_into", "sock_recvfrom", "sock_sendall", "sock_sendto"),
)
for _name in BEYOND_TASKS:
    setattr(CellLoop, _name, _refusal(_name))


def _coroutine(awaitable: Any) -> Any:
    """Returns a coroutine for a query's result, since models use it as one."""
    return _wait_for(awaitable) if isinstance(awaitable, (AwaitableStr, AwaitableList)) else awaitable


async def _wait_for(awaitable: Any) -> Any:
    return await awaitable


def _stop(future: asyncio.Future[Any]) -> None:
    if not future.cancelled() and isinstance(future.exception(), (SystemExit, KeyboardInterrupt)):
        return  # the exception already propagates out of run_forever
    future.get_loop().stop()


@contextmanager
def outer_loop_suspended() -> Iterator[None]:
    """Lets a loop run inside a callback of another one."""
    outer = _get_running_loop()
    if outer is None:
        yield
        return
    task = current_task(outer)
    if task is not None:
        _leave_task(outer, task)
    _set_running_loop(None)
    try:
        yield
    finally:
        _set_running_loop(outer)
        if task is not None:
            _enter_task(outer, task)


class Policy(_Policy):  # type: ignore[misc]
    """The asyncio policy for code. The runtime itself does not use it, so patches of it affect the code only."""

    _loops: EventLoops
    #: An attribute that libraries look for which patch the policy, such as nest_asyncio.
    _local: _Local

    def get_event_loop(self) -> asyncio.AbstractEventLoop:
        return self._loops.get_event_loop()

    def set_event_loop(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self._loops.set_event_loop(loop)

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        return self._loops.new_event_loop()

    def get_child_watcher(self) -> Any:
        return self._loops.child_watcher()


class _Local:
    """The attributes that Python's own policy keeps for a thread."""

    __slots__ = ("_loops",)

    def __init__(self, loops: EventLoops) -> None:
        self._loops = loops

    @property
    def _loop(self) -> asyncio.AbstractEventLoop | None:
        loop = self._loops._current
        return None if loop is None or loop.is_closed() else loop

    @_loop.setter
    def _loop(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self._loops.set_event_loop(loop)


class EventLoops:
    """Hands out `CellLoop`s, and ends them with the cell that made them."""

    def __init__(self, sleep: Callable[[float | None], None], threads: Threads | None = None) -> None:
        self._sleep = sleep
        self._threads = threads
        self._made: list[FinishedLoop] = []
        self._current: asyncio.AbstractEventLoop | None = None
        self._main: asyncio.Future[Any] | None = None
        self._thread = get_ident()
        self._watcher: Any = None
        #: The class of cells' loops.
        self.kind: type[CellLoop] = threads.loop if threads else CellLoop
        self.policy = Policy()
        self._local = _Local(self)
        self._renew_policy()
        self.create_task = self._make_create_task()

    @property
    def has_any(self) -> bool:
        """True when the cell has made a loop."""
        return bool(self._made)

    def _renew_policy(self) -> None:
        """Undoes changes that code made to the policy."""
        if type(self.policy) is not Policy:
            self.policy.__class__ = Policy
        names = vars(self.policy)
        if len(names) != 2 or names.get("_loops") is not self or names.get("_local") is not self._local:
            self.policy.__dict__ = {"_loops": self, "_local": self._local}

    def _make_create_task(self) -> Any:
        @wraps(_create_task)
        def create_task(coro: Any, **kwargs: Any) -> Any:
            if _get_running_loop() is None and get_ident() == self._thread:  # `run_begun` will run the task
                return self.get_event_loop().create_task(coro, **kwargs)
            return _create_task(coro, **kwargs)

        return create_task

    def get_event_loop(self) -> asyncio.AbstractEventLoop:
        if self._current is None or self._current.is_closed():
            self._current = self.new_event_loop()
        return self._current

    def set_event_loop(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self._current = loop

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        loop = self.make()
        self._made.append(loop)
        return loop

    def make(self) -> FinishedLoop:
        """Makes a loop."""
        return self.kind(self._sleep, self._threads)

    def child_watcher(self) -> Any:
        """Returns the watcher that waits for asyncio's processes, up to Python 3.13."""
        if self._watcher is None:
            self._watcher = asyncio.unix_events.ThreadedChildWatcher()
        return self._watcher

    def run(self, main: Any, *, debug: bool | None = None, loop_factory: Callable[[], Any] | None = None) -> Any:
        """Stands for asyncio.run(), and also works inside of a running loop.

        CPython's own would also take over SIGINT, so that an interrupt would not stop a busy coroutine.
        """
        main = _coroutine(main)
        if not iscoroutine(main):
            raise ValueError(f"a coroutine was expected, got {main!r}")
        loop = loop_factory() if loop_factory else self.make()
        if debug is not None:
            loop.set_debug(debug)
        try:
            return loop.run_until_complete(main)
        finally:
            if isinstance(loop, FinishedLoop):
                loop.finish()
            else:
                loop.close()

    def run_cell(self, coroutine: Coroutine[Any, Any, Any], context: Context | None = None) -> Any:
        """Runs a cell that awaits, in this context or in a copy of the current one."""
        loop = self.get_event_loop()
        self._main = loop.create_task(coroutine, context=context)
        return loop.run_until_complete(self._main)

    def run_begun(self) -> None:
        """Runs tasks that a cell without await has made. A notebook does the same after the cell."""
        if self._main is None and isinstance(self._current, FinishedLoop) and not self._current.is_closed():
            self._current.run_begun()

    def begin_cell(self) -> None:
        """Hides a loop of the backend from cells. Pyodide's counts as always running."""
        if _get_running_loop() is not None:
            _set_running_loop(None)

    def end_cell(self) -> int:
        """Ends every loop of the cell. Returns the number of background tasks that were cancelled."""
        self._renew_policy()
        made, self._made, self._current = self._made, [], None
        main, self._main = self._main, None
        try:
            return sum(loop.finish(main) for loop in made)
        finally:
            for loop in made:
                if not loop.is_closed() and not loop.is_running():
                    loop.close()
