"""The guest in a browser: the functions that `worker.js` calls.

Imported inside Pyodide only.
"""

from __future__ import annotations

import sys
import time
import zipimport
from codecs import getincrementaldecoder
from contextlib import suppress
from functools import partial
from importlib import invalidate_caches
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfoNotFoundError
from zoneinfo import _common as time_zones

from pyodide.ffi import to_js  # type: ignore[import-not-found]

from sandglass.ahead.survey import survey_of
from sandglass.browser.bridge import CLOCK, BrowserBridge
from sandglass.runtime import values
from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)
from sandglass.runtime.pristine import from_json, to_json
from sandglass.runtime.reserve import Reserve
from sandglass.runtime.runtime import Runtime
from sandglass.runtime.signals import reserve
from sandglass.runtime.tracebacks import message_of
from sandglass.runtime.values import BYTE_ORDER_MARK
from sandglass.runtime.wire import VERSION as VERSION
from sandglass.state.portable import generators
from sandglass.state.state import State
from sandglass.state.stateless import join_state

if TYPE_CHECKING:
    from codecs import IncrementalDecoder
    from collections.abc import Callable

    from sandglass.runtime.wire import Encoding, LostVariable

_FILE_PIECE_BYTES = 1 << 20
_Decoder = getincrementaldecoder("utf-8")
_PACKAGE_HINT = (
    "Python cannot install packages here; the page can, if there is one that has this module: "
    'createSandbox({{ packages: ["{name}"] }}), loadPackages(["{name}"]) or autoImport'
)
_MOST_NAMED = 10_000
_LIBRARY = f"/lib/python{sys.version_info.major}{sys.version_info.minor}.zip"
_load_tzdata = time_zones.load_tzdata
#: The runtime's own clock, `OWN_CLOCK` of `nondeterminism.js`: that of a thread. No look at it counts as the code's.
_OWN_CLOCK = time.CLOCK_THREAD_CPUTIME_ID
#: The clock that code gets. A guest has only one thread.
_PROCESS_CLOCK = time.CLOCK_PROCESS_CPUTIME_ID
#: Functions and names of clocks, and what code gets instead. Python's own `process_time` asks C's `clock`,
#: whose 32 bits cannot hold a page's seconds.
_CLOCKS = {
    "CLOCK_THREAD_CPUTIME_ID": _PROCESS_CLOCK,
    "process_time": partial(time.clock_gettime, _PROCESS_CLOCK),
    "process_time_ns": partial(time.clock_gettime_ns, _PROCESS_CLOCK),
    "thread_time": partial(time.clock_gettime, _PROCESS_CLOCK),
    "thread_time_ns": partial(time.clock_gettime_ns, _PROCESS_CLOCK),
}


class Guest:
    """Functions that `worker.js` calls. They return JavaScript values, also to refuse. Exceptions are fatal."""

    _js: Any

    def __init__(self) -> None:
        self._bridge = BrowserBridge()
        self.runtime = Runtime(self._bridge)
        self.runtime.clock = partial(time.clock_gettime, _OWN_CLOCK)
        for name, clock in _CLOCKS.items():
            self.runtime.own(vars(time), name, clock)
        self._state = State(self.runtime)
        self._pieces: list[Any] = []
        self._is_too_much = False  # true when a value needs more memory than there is; the rest of it is dropped
        self._decoder: IncrementalDecoder | None = None
        self._bridge.runtime = self.runtime
        self.runtime.take_written = self._take_written
        self.runtime.take_rest = self._take_rest
        self.runtime.package_hint = _PACKAGE_HINT
        self._reserve = self.runtime.reserve = Reserve()
        reserve(CLOCK, self.runtime.own)
        self.runtime.own(vars(time_zones), "load_tzdata", _load_time_zone)
        for reader in (zipimport._get_data, zipimport._read_directory):  # type: ignore[attr-defined]
            self.runtime.own(vars(zipimport), reader.__name__, self._after_library(reader))

    def connect(self, js_bridge: Any) -> None:
        self._js = js_bridge
        self._bridge.connect(js_bridge)
        self.runtime.install()

    def _after_library(self, read: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps a function that reads an archive. That of the standard library may come later than the guest starts."""
        wait = self._bridge.wait_for_library

        def reads(archive: str, *rest: Any) -> Any:
            if archive == _LIBRARY:
                wait()
            return read(archive, *rest)

        return reads

    def _take_written(self) -> list[tuple[int, bytes]]:
        js = self._js
        return [(fd, data.to_bytes()) for fd, data in js.takeWritten()] if js.hasWritten else []

    def configure(self, config: str) -> Any:
        return _answer(lambda: self.runtime.configure(from_json(config)))

    def execute(self, execution: int, source: str, ahead: bool) -> Any:
        """Runs a cell. Returns the report alone, or `[report, encoding, final]`; None when memory is too short to go
        on.

        The report is empty when the cell waits for more of its text. `extend` brings the text; then call this again.
        """
        if not self.runtime.is_unfinished:
            self._bridge.watch()
            self._reserve.is_spent = False  # a value that was set may have used it; only this cell's use counts
        try:
            ended = self.runtime.execute(execution, source, ahead)
            if self._reserve.is_spent:
                return None
            if ended is None:
                return ""
            report, encoding, body = ended
            header = to_json(report)
            return header if encoding == "none" else to_js([header, encoding, body])
        except MemoryError:
            return None

    def _take_rest(self) -> str:
        return str(self._js.rest())

    def get_variable(self, name: str) -> Any:
        return _answer(lambda: self.runtime.get_variable(name))

    def take_text(self, piece: Any) -> None:
        """Takes a piece of a text and decodes it while the rest is on its way. `set_variable` brings the last piece."""
        if self._is_too_much:
            return
        try:
            self._pieces.append(values.decode("text", piece.to_bytes()))
        except MemoryError:
            self._pieces.clear()
            self._is_too_much = True

    def take_file(self, piece: Any, last: bool) -> bool:
        """Takes a piece of a file. Returns false when it is no text; then all its pieces are forgotten."""
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

    def set_variable(self, name: str, encoding: Encoding, body: Any) -> Any:
        pieces, self._pieces = self._pieces, []
        is_too_much, self._is_too_much = self._is_too_much, False

        def assign() -> None:
            if is_too_much:
                raise MemoryError
            if not pieces:
                return self.runtime.set_variable(name, encoding, body.to_bytes())
            pieces.append(values.decode("text", body.to_bytes()))
            text = "".join(pieces)
            pieces.clear()
            return self.runtime.assign(name, text)

        return _answer(assign)

    def list_variables(self) -> Any:
        return _answer(self.runtime.list_variables)

    def survey(self) -> str:
        """Returns the facts for guesses about the next code, as JSON; see `survey_of`."""
        return to_json(survey_of(self.runtime))

    def file(self, kind: str, path: str, body: Any, as_text: bool) -> Any:
        """Returns `[encoding, piece, …]`, or `["refused", why]`; see `Runtime.file` and `State.cell_file`."""
        starts = range(0, body.length, _FILE_PIECE_BYTES)
        pieces = (body.subarray(start, start + _FILE_PIECE_BYTES).to_bytes() for start in starts)
        try:
            if kind == "cellFile":
                return to_js(["bytes", to_js(self._state.cell_file(path, b"".join(pieces)))])
            encoding, contents = self.runtime.file(kind, path, pieces, as_text)
            return to_js([encoding, *[to_js(piece) for piece in contents]])  # one by one: pieces may be large
        except BaseException as error:
            return to_js(["refused", _describe(error)])

    def find_foreign(self, gone: str) -> str:
        """Finds the variables that a copy of the memory does not hold. Returns a list of `{name, reason}` as JSON.

        `gone` is a list as JSON, too: the descriptors that cannot be opened again.
        """
        proxy = type(self._js).__mro__[-2]  # `pyodide.ffi` only has a stand-in for this class
        return _named(self._state.find_foreign(proxy, {*from_json(gone)}))

    def save_state(self) -> Any:
        """Returns `[state, lost]`: the variables by value, and those that could not be saved, as in `find_foreign`."""
        state, lost = self._state.save()
        return to_js([state, _named(lost)])

    def load_state(self, state: Any) -> str:
        """Loads variables that `save_state` saved. Returns those that could not be loaded, as in `find_foreign`."""
        return _named(self._state.load(state.to_bytes()))

    def capture_state(self, max_bytes: float, portable: bool, direct: bool) -> Any:
        """Returns `["bytes", body]`, or `["refused", why]`; see `State.capture`."""
        return _answer(lambda: ("bytes", self._state.capture(int(max_bytes), portable, direct)))

    def open_state(self, body: Any, max_bytes: float) -> Any:
        """Returns `["none", b""]`, `["bytes", lost]`, or `["refused", why]`; see `State.open`."""

        def open_it() -> tuple[str, bytes] | None:
            lost = self._state.open(body.to_bytes(), int(max_bytes))
            return ("bytes", join_state([], lost)) if lost else None

        return _answer(open_it)

    def forget_folders(self) -> None:
        """Makes imports look at the folders again, because files were put there."""
        with suppress(BaseException):  # this may call a finder of the user's
            invalidate_caches()


def _load_time_zone(key: str) -> Any:
    """Reads a zone for `zoneinfo`. The error of Pyodide's reader would name an internal function."""
    try:
        return _load_tzdata(key)
    except ZoneInfoNotFoundError:
        if find_spec("tzdata") is not None:
            raise ZoneInfoNotFoundError(f"No time zone found with key {key}") from None
        hint = _PACKAGE_HINT.format(name="tzdata")
        raise ZoneInfoNotFoundError(f"No time zone found with key {key}: there is no module tzdata. {hint}") from None


def _named(reasons: list[tuple[str, str]]) -> str:
    lost: list[LostVariable] = [{"name": name, "reason": reason[:300]} for name, reason in reasons[:_MOST_NAMED]]
    return to_json(lost)


def _answer(ask: Callable[[], tuple[str, bytes] | None]) -> Any:
    """Returns `[encoding, body]`, or `["refused", why]`."""
    try:
        return to_js(ask() or ("none", b""))
    except BaseException as error:
        return to_js(["refused", _describe(error)])


def _describe(error: BaseException) -> str:
    if type(error) is MemoryError:
        return "there is not enough memory for it (memoryLimit)"
    return message_of(error)


#: The guest's parts, which are in the snapshot that guests start from.
GUEST = Guest()
#: The functions that JavaScript calls, by name. They are in the snapshot, so that each has the same address in every
#: guest.
CALLS = {
    call.__name__: call
    for call in (
        GUEST.runtime.prepare,
        GUEST.runtime.extend,
        GUEST.runtime.is_plain,
        GUEST.runtime.flush,
        GUEST.configure,
        GUEST.execute,
        GUEST.survey,
        GUEST.get_variable,
        GUEST.set_variable,
        GUEST.list_variables,
        GUEST.take_text,
        GUEST.take_file,
        GUEST.file,
        GUEST.forget_folders,
        GUEST.find_foreign,
        GUEST.save_state,
        GUEST.load_state,
        GUEST.capture_state,
        GUEST.open_state,
    )
}


def set_time_zone() -> None:
    """Sets the constants of `time` as CPython does at its start. The snapshot may come from another time zone."""
    year = time.localtime().tm_year
    zones = [time.localtime(time.mktime((year, month, 1, 0, 0, 0, 0, 0, -1))) for month in (1, 7)]
    standard, summer = sorted(zones, key=lambda zone: zone.tm_gmtoff)
    # The stubs know these as constants.
    changed: Any = time
    changed.timezone, changed.altzone = -standard.tm_gmtoff, -summer.tm_gmtoff
    changed.daylight = int(standard.tm_gmtoff != summer.tm_gmtoff)
    changed.tzname = (standard.tm_zone, summer.tm_zone)


def connect(js_bridge: Any) -> None:
    """Makes this interpreter a guest. `runtime.js` calls it once; `worker.js` configures the guest."""
    set_time_zone()
    generators.begin()  # all guests of a snapshot begin with the same random state
    GUEST.connect(js_bridge)
