"""The backend in the browser: `bridge.js` as a `Bridge`, and what `worker.js` calls.

Imported inside Pyodide only.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os.path
import random
from asyncio.events import _get_running_loop, _set_running_loop
from codecs import getincrementaldecoder
from contextlib import suppress
from importlib import invalidate_caches
from importlib.util import find_spec
from traceback import format_exception
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfoNotFoundError
from zoneinfo import _common as time_zones

from pyodide.ffi import can_run_sync, run_sync, to_js  # type: ignore[import-not-found]

from sandglass import values
from sandglass.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)
from sandglass.pristine import from_json, to_json
from sandglass.reserve import Reserve
from sandglass.runtime import Runtime
from sandglass.signals import reserve
from sandglass.values import BYTE_ORDER_MARK, type_name

if TYPE_CHECKING:
    from codecs import IncrementalDecoder
    from collections.abc import Callable
    from types import FrameType

_PACKAGE = os.path.dirname(__file__)
#: Code of ours that calls the user's, and can be interrupted anywhere.
_OPEN = tuple(os.path.join(_PACKAGE, name) for name in ("helpers.py", "displays.py", "figures.py", "looks.py"))
_FILE_PIECE_BYTES = 1 << 20
_TRACEBACKS = format_exception.__code__.co_filename
_Decoder = getincrementaldecoder("utf-8")
_CANNOT_WAIT = object()
_PACKAGE_HINT = (
    "Python cannot install packages here; the page can, if there is one that has this module: "
    'createSandbox({{ packages: ["{name}"] }}), loadPackages(["{name}"]) or autoImport'
)
_MOST_NAMED = 10_000
#: The signal that `bridge.js` asks for a breath by.
_CLOCK = 64
_set_handler = _signal.signal  # the module `signal` adds 20 µs of enums
_load_tzdata = time_zones.load_tzdata


class BrowserBridge:
    """Adapts `bridge.js`: its promises become blocking calls, and its interruptions KeyboardInterrupt."""

    _js: Any
    _pyodide_loop: Any
    _can_block: bool
    output: Callable[[str, int, str], None]
    runtime: Runtime

    def connect(self, js: Any) -> None:
        self._js = js
        self._pyodide_loop = _get_running_loop()
        self._can_block = bool(js.canBlock)
        self.output = js.output

    def display(self, mime: str, data: bytes, is_result: bool) -> None:
        self._js.display(mime, to_js(data), is_result)

    def host_call(self, name: str, calls: list[tuple[str, bytes]]) -> list[tuple[bool, str, bytes]]:
        js = self._js
        # One crossing for all of them. A short text is cheaper as a string.
        flat = [
            part
            for encoding, body in calls
            for part in (encoding, body.decode() if encoding == "text" and body.isascii() else body)
        ]
        if len(flat) == 2 and type(flat[1]) is str:
            js.call(name, *flat)
        else:
            js.callAll(name, to_js(flat))
        try:
            answers = self._wait(js.answered, js.answeredBlocking)
        except BaseException:
            js.forget()
            raise
        flat = iter(answers.to_py())
        return [(ok, kind, _bytes(body)) for ok, kind, body in zip(flat, flat, flat, strict=True)]

    def sleep(self, seconds: float | None) -> None:
        ms = None if seconds is None else seconds * 1000
        self._wait(self._js.sleep, self._js.sleepBlocking, ms)

    def _wait(self, start: Any, block: Any, *args: Any) -> Any:
        """Waits one way or the other. Nothing comes back when Python is to stop."""
        result = _CANNOT_WAIT
        if self._can_block:
            result = block(*args)
        elif can_run_sync():
            with suppress(RuntimeError):  # a JavaScript frame may be in the way
                result = self._suspend(start, *args)
        if result is _CANNOT_WAIT:
            raise RuntimeError(
                "Python cannot wait here: a JavaScript function is on the stack, or the browser lacks JSPI. Call it "
                "outside of JavaScript callbacks, or serve the page cross-origin isolated. Nothing was sent"
            )
        if result is None:
            raise KeyboardInterrupt
        return result

    def _suspend(self, start: Any, *args: Any) -> Any:
        """`run_sync`. It resumes only if the promise was made while Pyodide's own event loop counted as running."""
        loop = _get_running_loop()
        paused = self.runtime.pause()
        _set_running_loop(self._pyodide_loop)
        try:
            return run_sync(start(*args))
        finally:
            _set_running_loop(loop)
            self.runtime.resume(paused)

    def watch(self) -> None:
        """Listens for the signal by which `bridge.js` asks for a breath."""
        _set_handler(_CLOCK, self._breathe)

    def _breathe(self, _signal: int, frame: FrameType | None) -> None:
        js = self._js
        if not _in_user_code(frame):
            js.lookAgain()
            return
        self.runtime.flush()  # so that it shows while Python computes, and is not lost should it have to be killed
        if js.overdue():
            raise KeyboardInterrupt
        if not self._can_block and can_run_sync() and self.runtime.is_current and not _is_formatting(frame):
            try:
                if self._suspend(js.breathe) is None:
                    raise KeyboardInterrupt
            except RuntimeError:
                pass  # a JavaScript frame is in the way; the deadline still holds


class Guest:
    """What `worker.js` calls. Results are JavaScript values, refusals too: whatever is raised here is fatal."""

    _js: Any

    def __init__(self) -> None:
        self._bridge = BrowserBridge()
        self._runtime = Runtime(self._bridge)
        self._pieces: list[Any] = []
        self._is_too_much = False  # for the memory that there is: the rest of it is not taken either
        self._decoder: IncrementalDecoder | None = None
        self._bridge.runtime = self._runtime
        self._runtime.take_written = self._take_written
        self._runtime.take_rest = self._take_rest
        self._runtime.package_hint = _PACKAGE_HINT
        self._reserve = self._runtime.reserve = Reserve()
        reserve(_CLOCK, self._runtime.own)
        self._runtime.own(vars(time_zones), "load_tzdata", _load_time_zone)

    def connect(self, js_bridge: Any) -> None:
        self._js = js_bridge
        self._bridge.connect(js_bridge)
        self._runtime.install()

    def _take_written(self) -> list[tuple[int, bytes]]:
        js = self._js
        return [(fd, data.to_bytes()) for fd, data in js.takeWritten()] if js.hasWritten else []

    def configure(self, config: str) -> Any:
        return _answer(lambda: self._runtime.configure(from_json(config)))

    def prepare(self, execution: int, source: str) -> None:
        self._runtime.prepare(execution, source)

    def execute(self, execution: int, source: str, ahead: bool) -> Any:
        """The header alone, or `[header, encoding, final]`. None when there is not enough memory to go on.

        The header is empty when the cell waits for more of its text: `extend` brings it, and this is called again.
        """
        if not self._runtime.is_unfinished:
            self._bridge.watch()
            self._reserve.is_spent = False  # a value that was set may have said so; this cell tells by itself
        try:
            header, encoding, body = self._runtime.execute(execution, source, ahead)
        except MemoryError:
            return None
        if self._reserve.is_spent:
            return None
        return header if encoding == "none" else to_js([header, encoding, body])

    def extend(self, execution: int, text: str, is_last: bool) -> None:
        """What `execute` runs next of a cell whose text is still being written."""
        self._runtime.extend(execution, text, is_last)

    def is_plain(self, source: str) -> bool:
        """See `Runtime.is_plain`."""
        return self._runtime.is_plain(source)

    def _take_rest(self) -> str:
        return str(self._js.rest())

    def get_variable(self, name: str) -> Any:
        return _answer(lambda: self._runtime.get_variable(name))

    def take_text(self, piece: Any) -> None:
        """A piece of the text that `set_variable` will bring the end of, decoded while the rest is on its way."""
        if self._is_too_much:
            return
        try:
            self._pieces.append(values.decode("text", piece.to_bytes()))
        except MemoryError:
            self._pieces.clear()
            self._is_too_much = True

    def take_file(self, piece: Any, last: bool) -> bool:
        """The same for a file that may be no text: then it is False, and what was taken is forgotten."""
        if self._is_too_much:
            return True
        decoder = self._decoder = self._decoder or _Decoder()
        try:
            text = decoder.decode(piece.to_bytes(), last)
        except UnicodeDecodeError:
            self._decoder = None
            self._pieces.clear()
            return False
        except MemoryError:
            self._decoder = None
            self._pieces.clear()
            self._is_too_much = True
            return True
        self._pieces.append(text if self._pieces else text.removeprefix(BYTE_ORDER_MARK))
        if last:
            self._decoder = None
        return True

    def set_variable(self, name: str, encoding: str, body: Any) -> Any:
        pieces, self._pieces = self._pieces, []
        is_too_much, self._is_too_much = self._is_too_much, False

        def assign() -> None:
            if is_too_much:
                raise MemoryError
            if not pieces:
                return self._runtime.set_variable(name, encoding, body.to_bytes())
            pieces.append(values.decode("text", body.to_bytes()))
            text = "".join(pieces)
            pieces.clear()
            return self._runtime.assign(name, text)

        return _answer(assign)

    def list_variables(self) -> Any:
        return _answer(self._runtime.list_variables)

    def survey(self) -> str:
        """What the next code may be about, as JSON; see `Runtime.survey`."""
        return to_json(self._runtime.survey())

    def file(self, action: str, path: str, body: Any) -> Any:
        """`[encoding, piece, …]`, or `["refused", why]`; see `Runtime.file`."""
        starts = range(0, body.length, _FILE_PIECE_BYTES)
        pieces = (body.subarray(start, start + _FILE_PIECE_BYTES).to_bytes() for start in starts)
        try:
            encoding, contents = self._runtime.file(action, path, pieces)
            return to_js([encoding, *[to_js(piece) for piece in contents]])  # one after the other: they may be large
        except BaseException as error:
            return to_js(["refused", _describe(error)])

    def flush(self) -> None:
        """Sends what was printed so far."""
        self._runtime.flush()

    def find_foreign(self, gone: str) -> str:
        """Variables that a copy of the memory does not hold: a list of `{name, reason}` as JSON.

        `gone` is a list as JSON, too: the descriptors that cannot be opened again.
        """
        proxy = type(self._js).__mro__[-2]  # pyodide.ffi has a stand-in for it only
        return _named(self._runtime.find_foreign(proxy, {*from_json(gone)}))

    def save_state(self) -> Any:
        """`[state, lost]`: the variables by value, and those that it does not hold, as `find_foreign` does."""
        state, lost = self._runtime.save_state()
        return to_js([state, _named(lost)])

    def load_state(self, state: Any) -> str:
        """Puts variables back that `save_state` saved; those that it could not, as `find_foreign` does."""
        return _named(self._runtime.load_state(state.to_bytes()))

    def forget_folders(self) -> None:
        """Has imports look again what there is: files were put there."""
        with suppress(BaseException):  # a finder of the user's may be asked
            invalidate_caches()


def _load_time_zone(key: str) -> Any:
    """Reads a zone for `zoneinfo`. Pyodide's reader names a function of its own, below a long chain of exceptions."""
    try:
        return _load_tzdata(key)
    except ZoneInfoNotFoundError:
        if find_spec("tzdata") is not None:
            raise ZoneInfoNotFoundError(f"No time zone found with key {key}") from None
        hint = _PACKAGE_HINT.format(name="tzdata")
        raise ZoneInfoNotFoundError(f"No time zone found with key {key}: there is no module tzdata. {hint}") from None


def _named(reasons: list[tuple[str, str]]) -> str:
    return to_json([{"name": name, "reason": reason[:300]} for name, reason in reasons[:_MOST_NAMED]])


def _bytes(body: Any) -> bytes:
    return body.encode() if isinstance(body, str) else bytes(body)


def _answer(ask: Callable[[], tuple[str, bytes] | None]) -> Any:
    """`[encoding, body]`, or `["refused", why]`."""
    try:
        return to_js(ask() or ("none", b""))
    except BaseException as error:
        return to_js(["refused", _describe(error)])


def _describe(error: BaseException) -> str:
    if type(error) is MemoryError:
        return "there is not enough memory for it (memoryLimit)"
    try:
        return str.__str__(str(error)) or type_name(error)
    except BaseException:
        return type_name(error)


def _in_user_code(frame: FrameType | None) -> bool:
    """Whether an exception raised here goes through the user's code, and not through ours at an awkward moment."""
    while frame is not None:
        filename = frame.f_code.co_filename
        if filename.startswith("<cell ") or filename in _OPEN:
            return True
        if filename.startswith(_PACKAGE):
            return False
        frame = frame.f_back
    return False


def _is_formatting(frame: FrameType | None) -> bool:
    """Whether a traceback is being formatted. Pyodide formats that of an exception which leaves Python for JavaScript.

    Then a JavaScript function is on the stack, and `can_run_sync` does not know it: to suspend would take Python's
    frames off.
    """
    while frame is not None and frame.f_code.co_filename != _TRACEBACKS:
        frame = frame.f_back
    return frame is not None


#: Part of the snapshot that guests start from.
GUEST = Guest()
#: What JavaScript calls. Part of the snapshot as well, so that it is at the same address in every guest.
CALLS = (
    GUEST.configure,
    GUEST.prepare,
    GUEST.execute,
    GUEST.get_variable,
    GUEST.take_text,
    GUEST.set_variable,
    GUEST.list_variables,
    GUEST.flush,
    GUEST.find_foreign,
    GUEST.save_state,
    GUEST.load_state,
    GUEST.take_file,
    GUEST.file,
    GUEST.forget_folders,
    GUEST.extend,
    GUEST.is_plain,
    GUEST.survey,
)


def connect(js_bridge: Any) -> None:
    """Makes this interpreter a guest. Called once by `runtime.js`; `worker.js` configures it."""
    random.seed()  # guests of one snapshot begin with the same state
    GUEST.connect(js_bridge)
