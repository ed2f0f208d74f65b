"""The bridge in a browser: adapts `bridge.js` to the protocol `Bridge`. Import it inside Pyodide only."""

# Decisions: docs/internals/guest-in-a-browser.md.

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
from asyncio.events import _get_running_loop, _set_running_loop
from sys import _getframe
from traceback import format_exception
from typing import TYPE_CHECKING, Any

from pyodide.ffi import can_run_sync, run_sync, to_js  # type: ignore[import-not-found]

from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)
from sandglass.runtime.reserve import need_room
from sandglass.runtime.user_code import in_user_code

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from sandglass.runtime.bridge import Answer
    from sandglass.runtime.runtime import Runtime
    from sandglass.runtime.wire import Encoding, Stream

#: The signal by which `bridge.js` asks for a breath.
CLOCK = 64
_CANNOT_WAIT = object()
_NOT_YET = (
    "Python's standard library is still on its way, and Python cannot wait here: a JavaScript function is on the "
    "stack. Import the module outside of JavaScript callbacks, or a moment later"
)
_TRACEBACKS = format_exception.__code__.co_filename
_set_handler = _signal.signal  # the module `signal` adds 20 µs of enums


class BrowserBridge:
    """Adapts `bridge.js`: turns its promises into blocking calls, and its interrupts into KeyboardInterrupt."""

    _js: Any
    _pyodide_loop: Any
    _can_block: bool
    output: Callable[[Stream, int, str], None]
    runtime: Runtime

    def connect(self, js: Any) -> None:
        self._js = js
        self._pyodide_loop = _get_running_loop()
        self._can_block = bool(js.canBlock)
        self.output = js.output
        # Pyodide keeps strings for good at the first call of JavaScript. A guest with other such strings cannot take
        # another's memory. The moment of the first call depends on time, so every guest makes one here.
        js.forget()

    def display(self, mime: str, data: bytes, is_result: bool) -> None:
        self._js.display(mime, to_js(data), is_result)

    def host_call(self, name: str, calls: list[tuple[Encoding, str | bytes]]) -> list[Answer]:
        js = self._js
        # One crossing into JavaScript for all calls.
        flat = to_js([part for call in calls for part in call])
        try:
            answers = iter(self._wait(js.ask, name, flat).to_py())
        except BaseException:
            js.forget()
            raise
        return list(zip(answers, answers, answers, strict=True))

    def sleep(self, seconds: float | None) -> None:
        self._wait(self._js.sleep, None if seconds is None else seconds * 1000)

    def _wait(self, start: Any, *args: Any) -> Any:
        """Waits by blocking or by suspending. Raises KeyboardInterrupt when Python has to stop."""
        result = _CANNOT_WAIT
        if self._can_block:
            result = start(*args)
        elif can_run_sync():
            try:
                result = self._suspend(start, *args)
            except RecursionError:
                raise
            except RuntimeError:
                pass  # a JavaScript frame is on the stack
        if result is _CANNOT_WAIT:
            raise RuntimeError(
                "Python cannot wait here: a JavaScript function is on the stack, or the browser lacks JSPI. Call it "
                "outside of JavaScript callbacks, or serve the page cross-origin isolated. Nothing was sent"
            )
        if result is None:
            raise KeyboardInterrupt
        return result

    def wait_for_library(self) -> None:
        """Returns when the archive of the standard library can be read. Raises ImportError when that cannot be."""
        js = self._js
        if js.hasLibrary:
            return
        try:
            if not self._can_block and _is_formatting(_getframe()):
                raise RuntimeError("a traceback is being formatted")
            self.runtime.flush()
            missing = self._wait(js.library)
        except RecursionError:
            raise  # the stack is full, which the code may hear of
        except RuntimeError:
            raise ImportError(_NOT_YET) from None
        if missing is not True:
            raise ImportError(f"Python's standard library is not there, so this cannot be imported now: {missing}")

    def _suspend(self, start: Any, *args: Any) -> Any:
        """Calls `run_sync`, which resumes only if Pyodide's own event loop counted as running when it began.

        Callbacks in Python wake it. They would fail without memory or stack, and nothing would ever wake Python then.
        """
        need_room()
        loop = _get_running_loop()
        paused = self.runtime.pause()
        _set_running_loop(self._pyodide_loop)
        try:
            return run_sync(start(*args))
        finally:
            _set_running_loop(loop)
            self.runtime.resume(paused)

    def watch(self) -> None:
        """Handles the signal by which `bridge.js` asks for a breath."""
        _set_handler(CLOCK, self._breathe)

    def _breathe(self, _signal: int, frame: FrameType | None) -> None:
        js = self._js
        if not in_user_code(frame) or js.isInside():
            js.lookAgain()
            return
        is_short = False  # of memory or stack: no fault of the code, which would take it for its own
        try:
            self.runtime.flush()  # output shows while Python computes, and survives the end of the guest
        except Exception:
            is_short = True
        try:
            overdue = js.overdue()
        except Exception:
            overdue, is_short = False, True
        if overdue:
            raise KeyboardInterrupt
        if is_short:
            js.lookAgain()
        elif not self._can_block and can_run_sync() and self.runtime.is_current and not _is_formatting(frame):
            try:
                if self._suspend(js.breathe) is None:
                    raise KeyboardInterrupt
            except (RuntimeError, MemoryError):
                pass  # a JavaScript frame is on the stack, or there is too little room; the deadline still holds


def _is_formatting(frame: FrameType | None) -> bool:
    """Returns true while a traceback is being formatted, as Pyodide does for an exception that leaves for JavaScript.

    A JavaScript function is on the stack then, and `can_run_sync` does not notice it: suspending would remove Python's
    frames.
    """
    while frame is not None and frame.f_code.co_filename != _TRACEBACKS:
        frame = frame.f_back
    return frame is not None
