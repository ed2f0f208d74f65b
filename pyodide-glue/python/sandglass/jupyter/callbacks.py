"""Answers `llm_query` and `rlm_query` of a `JupyterREPL` by functions of the notebook, in the same process."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import nullcontext, suppress
from contextvars import ContextVar, copy_context
from functools import partial
from inspect import isawaitable
from itertools import count
from threading import Event, Lock, Thread, current_thread
from typing import TYPE_CHECKING, Any
from weakref import finalize

from sandglass.jupyter.kernel import HAS_THREADS, Turn, in_notebook, serving
from sandglass.runtime.errors import HostCallError
from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)
from sandglass.runtime.values import a_type, as_text, type_name

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

#: The fewest arguments of each function, even if the last of them are None.
_FEWEST = {"llm_query": 1, "rlm_query": 2}

#: The number of the call that is being answered. Calls of a batch are numbered in the order of its prompts.
calling: ContextVar[int] = ContextVar("calling", default=0)

#: The longest time for which `close` waits for the thread of asynchronous callbacks, in seconds.
_END_SECONDS = 2.0
#: The pause between two looks. An interrupt just before a thread begins to wait is heard at the next look.
_LISTEN_SECONDS = 0.25

Reply = tuple[bool, Any]


class Callbacks:
    """Calls the function of a name once for each list of arguments, several at the same time."""

    def __init__(self, functions: dict[str, Callable[..., Any]], most_at_once: int) -> None:
        self.functions = functions
        self._most_at_once = most_at_once
        self._numbers = count(1)
        #: The current execution.
        self.turn: Turn | None = None
        self._lock = Lock()
        self._loop: _Loop | None = None

    def call(self, name: str, calls: list[list[Any]]) -> list[Reply]:
        """Returns `(True, text)` or `(False, error)` for each call."""
        function, turn = self.functions.get(name), self.turn
        if function is None:
            return [(False, HostCallError(f"nobody answers {name}(): give JupyterREPL on_{name}=…"))] * len(calls)
        if turn is None:
            raise RuntimeError(f"this code is part of no execution that is under way: it cannot call {name}()")
        turn.need()
        token = serving.set(turn)  # a callback prints into the notebook
        try:
            with nullcontext() if turn.limit is None else turn.limit.paused(), in_notebook(turn):
                return self._call(name, function, calls)
        finally:
            serving.reset(token)

    def close(self) -> None:
        """Ends the loop of asynchronous callbacks. The next asynchronous call begins another."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None:
            loop.close()

    def _call(self, name: str, function: Callable[..., Any], calls: list[list[Any]]) -> list[Reply]:
        work = [partial(self._answer, name, function, next(self._numbers), arguments) for arguments in calls]
        if len(calls) == 1 or not HAS_THREADS:
            return [item() for item in work]  # on this thread, where an interrupt reaches it
        return _in_threads(min(len(calls), self._most_at_once), work)

    def _answer(self, name: str, function: Callable[..., Any], number: int, arguments: list[Any]) -> Reply:
        arguments = list(arguments)
        while len(arguments) > _FEWEST[name] and arguments[-1] is None:
            arguments.pop()
        token = calling.set(number)
        try:
            value = function(*arguments)
            if isawaitable(value):
                value = self._wait_for(value)
        except Exception as error:
            return False, HostCallError(as_text(error) or type_name(error))
        finally:
            calling.reset(token)
        if not isinstance(value, str):
            return False, HostCallError(f"on_{name} returned {a_type(value)}, not a str")
        return True, str.__str__(value)

    def _wait_for(self, awaitable: Awaitable[Any]) -> Any:
        """Returns the result of an asynchronous callback. The kernel's loop waits for the cell and cannot run it."""
        if not HAS_THREADS:
            from pyodide.ffi import run_sync  # type: ignore[import-not-found]

            return run_sync(awaitable)
        with self._lock:
            if self._loop is None:
                self._loop = _Loop()
                finalize(self, self._loop.stop)
            loop = self._loop.loop

        tasks: list[Any] = []
        given_up = Event()

        async def main() -> Any:
            tasks.append(asyncio.current_task())
            return None if given_up.is_set() else await awaitable

        def give_up() -> None:
            given_up.set()
            for task in tasks:
                task.cancel()

        try:
            return _result(asyncio.run_coroutine_threadsafe(main(), loop))
        except BaseException:  # an interrupt may come before there is a future to cancel
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(give_up)
            raise


class _Loop:
    """An event loop in a thread of its own, one for all calls: clients and locks of asyncio belong to one loop."""

    def __init__(self) -> None:
        started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
        self._thread = Thread(target=_serve, args=(started,), name="sandglass-async", daemon=True)
        self._thread.start()
        self.loop, self._end = started.result()

    def stop(self) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(self._end.set)

    def close(self) -> None:
        self.stop()
        if self._thread is not current_thread():
            self._thread.join(_END_SECONDS)


def _serve(started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]]) -> None:
    async def main() -> None:
        end = asyncio.Event()
        started.set_result((asyncio.get_running_loop(), end))
        await end.wait()

    with asyncio.Runner() as runner:  # cancels the tasks that are left
        runner.run(main())


def _result(future: Future[Any]) -> Any:
    while not future.done():
        wait([future], _LISTEN_SECONDS)
    return future.result()


def _in_threads(most: int, work: Iterable[Callable[[], Any]]) -> list[Any]:
    """Returns results in order. An interrupt ends the wait, and work that has not begun is dropped."""
    pool = ThreadPoolExecutor(most, thread_name_prefix="sandglass")
    try:
        futures = [pool.submit(copy_context().run, item) for item in work]
        results = [_result(future) for future in futures]
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()
    return results
