"""`Runtime`: the object that a backend drives."""

# Decisions: docs/internals/guest-in-a-browser.md.

from __future__ import annotations

import sys
import time
from _tracemalloc import is_tracing as is_tracing_memory
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from gc import callbacks as gc_callbacks
from gc import disable, enable, isenabled
from operator import index
from sys import getprofile, getrecursionlimit, gettrace, setrecursionlimit, stdlib_module_names
from threading import TIMEOUT_MAX, get_ident
from time import monotonic
from typing import TYPE_CHECKING, Any

from sandglass.runtime import compiling, running, values
from sandglass.runtime.collector import CollectorOff
from sandglass.runtime.completion import Completion
from sandglass.runtime.displays import Displays
from sandglass.runtime.errors import HostCallError, LimitError, Submitted
from sandglass.runtime.figures import Figures
from sandglass.runtime.files import Files
from sandglass.runtime.guards import Guards
from sandglass.runtime.helpers import Helpers
from sandglass.runtime.ipython import Finder
from sandglass.runtime.loop import EventLoops, run_ahead
from sandglass.runtime.namespace import MISSING, LastResult, Namespace
from sandglass.runtime.output import Emitter, TextStream, no_time
from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)
from sandglass.runtime.profiles import PROFILES
from sandglass.runtime.recursion import RecursionLimit
from sandglass.runtime.sources import Sources
from sandglass.runtime.substitutes import own_interpreter
from sandglass.runtime.tracebacks import describe
from sandglass.runtime.warning_origin import WarningOrigin

if sys.version_info >= (3, 12):
    from sys import monitoring

    tool_of = monitoring.get_tool
else:

    def tool_of(_tool: int) -> str | None:
        return None


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import CodeType

    from sandglass.runtime.bridge import Bridge, Threads
    from sandglass.runtime.reserve import Reserve
    from sandglass.runtime.wire import Encoding, ExecutionReport, GuestConfig, Stream

    # The report of an execution, and the encoded final answer at the end of the cell; ("none", b"") without one.
    Ended = tuple[ExecutionReport, Encoding, bytes]

_NAME_LIMIT = 200
#: The frames that the compiler and the calls that lead to it may need.
_COMPILER_FRAMES = 1000
#: Text in code that may install a hook which hears of the compiler for good.
_HOOKS = "addaudithook"
#: The number of tools of `sys.monitoring`.
_MONITORING_TOOLS = 6
_clock_sleep = time.sleep
_MEMORY_FULL = (
    "sandglass: memory is full (memoryLimit): delete variables that are large and not needed any more (del), "
    "or later cells may fail with MemoryError\n"
)


class Runtime:
    """Runs cells in one namespace and reports through `bridge`. One per interpreter; not thread-safe.

    Order of calls: `install` once, `configure`, then the others in any order. Only `execute` runs user code on purpose
    (`get_variable` may call a `__repr__`).
    """

    def __init__(
        self,
        bridge: Bridge,
        emitter: Emitter | None = None,
        threads: Threads | None = None,
        namespace: Namespace | None = None,
    ) -> None:
        self._bridge = bridge
        self._threads = threads
        self._max_output_chars = 0
        self._max_value_bytes = 0
        self._max_result_bytes = 0
        self._encode = partial(values.encode, max_bytes=0, max_depth=0)
        self._show: Callable[[object], str] | None = None
        self.sources = Sources()
        self._output = emitter or Emitter(bridge)
        self.namespace = namespace or Namespace()
        self._helpers = Helpers(self.namespace, self._call_host)
        self._loops = EventLoops(self._sleep_in_loop, threads)
        self._stdout = TextStream(self._output, "stdout")
        self._stderr = TextStream(self._output, "stderr")
        self._streams = tuple((stream, stream.parts()) for stream in (self._stdout, self._stderr))
        self._displays = Displays(self._display, self._stderr.write)
        self._figures = Figures(self._displays)
        self._ipython = Finder(self._displays.display)
        self._files = Files()
        self._completion = Completion(self.namespace.globals)
        self._has_input = False
        #: The context variables of the user's code. They also last where each cell has a thread state of its own.
        self._context = copy_context()
        self._recursion = RecursionLimit()
        self._warnings = WarningOrigin()
        self._guards = Guards()
        own_interpreter(
            self._guards,
            streams=(self._stdout, self._stderr),
            main=self.namespace.module,
            sleep=self._time_sleep,
            write_fd=self.write_fd,
            has_input=lambda: self._has_input,
            ask=self._input,
            show_warning=self._warnings.show,
            loops=self._loops,
            recursion=self._recursion,
        )
        self._clock_sleep_thread = get_ident()
        #: The runtime's own clock. If it is not that of the code, the runtime leaves the code's clock alone.
        self.clock: Callable[[], float] = monotonic
        self._prepared: tuple[str, list[CodeType] | BaseException] | None = None
        self._growing: compiling.Growing | None = None  # the cell whose text is still being written
        self._value: object = None  # the value of the expression that the cell ends with so far
        self._paused: tuple[int | None, Any] | None = None  # the state of a paused cell, to go on with
        self._collects = True  # whether a paused cell had Python collect garbage
        self._error: BaseException | None = None
        self._described = False
        self._last = LastResult()
        self._shown: object = None  # the last expression's value, if it was shown as more than its repr
        self._open: int | None = None  # the execution that has begun and not ended
        self._current: int | None = None  # the execution whose code runs now
        #: A hint below the traceback of a missing module `{name}`. A backend that has packages sets it.
        self.package_hint = ""
        #: Takes bytes that went to file descriptors 1 and 2 past `os.write`. A backend that sees them sets this.
        self.take_written: Callable[[], Iterable[tuple[int, bytes]]] = tuple
        #: `time.sleep` for threads other than the main one.
        self.sleep_in_thread: Callable[[float], None] = time.sleep
        #: The reserve, for a backend that bounds memory by refusing more.
        self.reserve: Reserve | None = None
        #: Ends leftovers of a cell. Returns a line for each that would not end. A backend with threads sets this.
        self.end_leftovers: Callable[[], Iterable[str]] = tuple
        #: Translates source that is no Python, such as IPython's magics. Returns other source unchanged.
        self.translate: Callable[[str], str] | None = None
        #: Returns the rest of the text that is being written, for code that looks at its own source; "" before it is
        #: there.
        self.take_rest: Callable[[], str] = str
        self._has_hooks = False
        #: True when the interpreter belongs to others between turns (`enter`, `leave`).
        self.is_lodger = False

    def install(self) -> None:
        """Takes over sys.stdout, `__main__`, time.sleep, asyncio, … of this interpreter."""
        self.enter()
        self._files.install()

    def uninstall(self) -> None:
        """Undoes `install`."""
        self._loops.end_cell()
        self.leave()

    def enter(self) -> None:
        """Takes over the same as `install`, for one turn in an interpreter that others use as well."""
        self._recursion.enter()
        if not self.is_lodger:  # in an interpreter of others, they may patch the classes too
            for kind in self._loops.kind.__mro__[:-1]:
                self._guards.own_class(kind)
        self._guards.install()
        if not self.is_lodger:  # in an interpreter of others, `_` is IPython's
            self._last.enter()
        self._figures.install()
        self._ipython.install()

    def leave(self) -> None:
        """Undoes `enter`."""
        self._ipython.uninstall()
        self._figures.uninstall()
        self._last.leave()
        self._guards.uninstall()

    def configure(self, config: GuestConfig) -> None:
        """Sets limits and host functions.

        Keys: `maxOutputChars`, `maxValueBytes`, `maxValueDepth`, `maxSourceCache` (characters of source kept for
        tracebacks), `maxDisplays`, `maxDisplayBytes`, `maxDisplaysBytes`, `maxFiles` (in a listing), `hostFunctions`
        (names that the host answers), `maxHostCalls` (of a cell), `profile` (a name of `PROFILES`), `outputFields`
        (names of the values that `SUBMIT` takes), `maxResultBytes` (of a last expression's value). Unknown keys are for
        other parts of the guest. Raises KeyError or ValueError, and then changes nothing.
        """
        profile = PROFILES.get(config.get("profile", "default"))
        if profile is None:
            raise ValueError(f"there is no profile {config['profile']!r}, but {', '.join(PROFILES)}")
        limits = [int(config[key]) for key in ("maxOutputChars", "maxValueBytes", "maxValueDepth", "maxSourceCache")]
        displays = [int(config[key]) for key in ("maxDisplays", "maxDisplayBytes", "maxDisplaysBytes")]
        max_files = int(config["maxFiles"])
        answered, fields = list(config.get("hostFunctions", ())), list(config.get("outputFields", ()))
        most_calls = int(config.get("maxHostCalls", sys.maxsize))
        helpers, aliases = self._helpers.table(profile, answered, fields)
        if profile.aliases:  # the other profiles have exactly the names of their projects
            helpers.setdefault("display", self._displays.display)
        self._max_output_chars, self._max_value_bytes, depth, self.sources.limit = limits
        self._max_result_bytes = int(config.get("maxResultBytes", 0))
        self._encode = partial(values.encode, max_bytes=self._max_value_bytes, max_depth=depth)
        self._show = profile.show
        self._helpers.configure(profile, answered, most_calls)
        self.namespace.configure(profile, helpers, aliases)
        self._has_input = "input" in answered
        self._displays.limit(*displays)
        self._files.limit(max_files)

    def prepare(self, execution: int, source: str) -> None:
        """Compiles a cell before its `execute`, which reports any error.

        For a backend that gives each cell a stack of its own. There, the compiler, which needs a deep stack, is slow.
        """
        filename = f"<cell {execution}>"
        with compiling.Warnings("error"):
            try:
                self._prepared = filename, self._compile(source, filename)
                return
            except BaseException:
                pass
        with compiling.Warnings("ignore"):
            try:
                self._compile(source, filename)
                self._prepared = None  # the cell has warnings, which are part of its output
            except BaseException as error:
                self._prepared = filename, error

    def extend(self, execution: int, text: str, is_last: bool) -> None:
        """Compiles more of a cell that is being written, for the next `execute`.

        The text ends at the end of a line. The newline comes with the next text, if there is more.
        """
        self._has_hooks = self._has_hooks or _HOOKS in text
        if self._growing is None:
            self._growing = compiling.Growing(f"<cell {execution}>")
        limit = getrecursionlimit()
        setrecursionlimit(max(limit, _COMPILER_FRAMES))  # a statement may have set a low limit
        with CollectorOff():
            try:
                self._prepared = self._growing.filename, self._growing.add(text, is_last)
            except BaseException as error:
                self._prepared = self._growing.filename, error
            finally:
                setrecursionlimit(limit)

    @property
    def is_unfinished(self) -> bool:
        """Returns true when a cell waits for more of its text."""
        return self._paused is not None

    def execute(self, execution: int, source: str, ahead: bool = False) -> Ended | None:
        """Runs a cell to its end. Never raises, whatever the cell does.

        With `ahead`, the cell was not asked for yet, and the runtime does not look at the clock by itself. Text that
        was given to `extend` before is a part of the cell. This call runs the part, and returns None when more is to
        come. Code that looks at the stack sees no difference. In the report, `names` are None when they are the same as
        in the last report, and fields that only a backend knows are missing.
        """
        filename = f"<cell {execution}>"
        self._has_hooks = self._has_hooks or _HOOKS in source
        growing = self._growing
        ends = growing is None or growing.is_whole
        try:
            try:
                if self._paused is None:
                    self._begin(execution, filename, source, ahead)
                else:
                    self._go_on(filename, ahead)
            except BaseException as error:
                self._error = error
            if self._error is None:
                try:
                    self._run(filename, source, ends)
                except BaseException as error:
                    self._error = error
            elif ends and growing is not None:
                self._end_run()  # an earlier statement has ended the cell
            if not ends:
                if self.is_watched():
                    self.take_rest()  # the watching code would see the work in between
                self._output.flush()
                self._collects = isenabled()
                disable()  # a finalizer would print to nobody until the next part
                self._paused = self.pause()
                return None
            if isinstance(self._error, Submitted):
                self._error = None
            if not isinstance(self._error, KeyboardInterrupt):  # an interrupted cell has to stop now
                self._context.run(self._figures.show_open, self._shown)
            return self._context.run(self._finish)
        except BaseException as late:  # an interrupt that came at the end, or a fault of ours
            ends = True
            return self._finish_after(late)
        finally:
            if ends:
                self._open = self._current = self._shown = self._value = self._growing = self._paused = None

    def _go_on(self, filename: str, ahead: bool) -> None:
        paused, self._paused = self._paused, None
        try:
            if paused is not None:
                self.resume(paused)
        finally:
            if self._collects:
                enable()
        self._loops.begin_cell()
        growing = self._growing
        if not ahead:
            self._is_ahead(False)
        if growing is not None and growing.is_whole:
            with suppress(Exception):  # the cell may have put any object into linecache
                self.sources.finish(filename, growing.source)

    def is_watched(self) -> bool:
        """Returns true when code has set a hook that hears of other code."""
        return bool(self.is_traced() or gc_callbacks or is_tracing_memory())

    def is_traced(self) -> bool:
        """Returns true when code of the user's runs at every step, even while no garbage is collected."""
        tools = any(tool_of(tool) is not None for tool in range(_MONITORING_TOOLS))
        return bool(gettrace() or getprofile() or tools or self._has_hooks)

    def asked_for(self) -> None:
        """Hears that the code which ran ahead was asked for."""
        self._is_ahead(False)

    def _is_ahead(self, ahead: bool) -> None:
        self._output.now = no_time if ahead else self.clock
        run_ahead(ahead or self.clock is not monotonic)

    def get_variable(self, name: str) -> tuple[Encoding, bytes]:
        """Returns a variable as `(encoding, body)`; `("missing", b"")` when there is none. Raises NotSerializable."""
        value = self.namespace.find(name)
        if value is MISSING:
            return "missing", b""
        return self._context.run(self._encode, value, name=name)

    def set_variable(self, name: str, encoding: Encoding, body: bytes) -> None:
        """Sets a variable. Raises ValueError for an invalid or reserved name, or a malformed value."""
        self.assign(name, values.decode(encoding, body))

    def assign(self, name: str, value: object) -> None:
        """Sets a variable to a decoded value."""
        self.namespace.assign(name, value)
        if self.reserve is not None:
            self.reserve.ease()

    def list_variables(self) -> tuple[Encoding, bytes]:
        """Returns the user variables, encoded: a list of `{name, type, length}`, at most 10,000."""
        return self._encode(self.namespace.listing(), name="the list of variables")

    def is_plain(self, source: str) -> bool:
        """Returns true when a cell compiles without a warning and awaits nothing, so that statements may run early."""
        if self._has_hooks or _HOOKS in source:
            return False  # the compiler may call a hook of the user's
        with CollectorOff():
            return compiling.is_plain(source, "<cell>")

    def file(
        self, kind: str, path: str, pieces: Iterable[bytes], as_text: bool = False
    ) -> tuple[Encoding, Iterable[bytes]]:
        """Answers a request about a file: `writeFile` (of `pieces`), `readFile`, `listFiles` or `removeFile`.

        Raises FileError, also while the pieces are taken. Returns the encoding of the answer and its pieces;
        `("missing", [])` when the file does not exist. `look` answers an editor, with "complete" or "inspect" as
        `path`; see `Completion.answer`.
        """
        files = self._files
        if kind == "look":
            try:
                return "bytes", [self._completion.answer(path, b"".join(pieces))]
            finally:
                self.put_in_order()
        if kind == "writeFile":
            files.write(path, pieces)
            return "none", []
        if kind == "removeFile":
            return "none" if files.remove(path) else "missing", []
        if kind == "listFiles":
            rows = files.list(path)
            if rows is None:
                return "missing", []
            encoding, body = self._encode(rows, name="the list of files")
            return encoding, [body]
        contents = files.read(path, as_text, self._max_value_bytes)
        return ("missing", []) if contents is None else ("text" if as_text else "bytes", contents)

    def put_in_order(self) -> None:
        """Undoes changes to the interpreter by user code that ran outside of a cell."""
        self._guards.repair()
        self.namespace.restore()

    def write_fd(self, fd: int, data: bytes) -> None:
        """Takes bytes that user code itself wrote to file descriptor 1 or 2 (`os.write(1, …)`)."""
        (self._stderr if fd == 2 else self._stdout).buffer.write(data)

    def flush(self) -> None:
        """Sends the output so far."""
        self._output.flush()

    @property
    def is_current(self) -> bool:
        """Returns true when the running code belongs to the current execution, and is no leftover of an earlier one."""
        return self._current == self._open

    def pause(self) -> tuple[int | None, Any]:
        """Pauses the execution, so that other Python code can run, such as callbacks, while a backend suspends Python.

        Until `resume`, output belongs to no execution, and no final answer counts.
        """
        current, self._current = self._current, None
        self._output.active = False
        return current, self.namespace.final

    def resume(self, paused: tuple[int | None, Any]) -> None:
        """Resumes with the value that `pause` returned."""
        self._current, final = paused
        if self._current is not None and self._current == self._open:
            self._output.active = True
            self.namespace.final = final

    def _require_execution(self) -> None:
        if self._open is None or self._current != self._open:
            raise RuntimeError("this code is part of no execution that is under way: it cannot wait, or call the host")

    def _compile(self, source: str, filename: str) -> list[CodeType]:
        try:
            return compiling.compile_cell(source, filename)
        except (MemoryError, SystemError):  # CPython raises some SystemErrors for want of memory
            if self.reserve is None or not self.reserve.release():
                raise
        except SyntaxError:
            if self.translate is None:
                raise
            with suppress(Exception):  # the original text is reported then
                return compiling.compile_cell(self.translate(source), filename)
            raise
        return compiling.compile_cell(source, filename)

    def show_bundle(self, bundle: dict[str, Any]) -> None:
        """Shows data by mime type that another library would have shown elsewhere."""
        if self._open is not None and self._current == self._open:
            self._displays.display(bundle, raw=True)

    def _begin(self, execution: int, filename: str, source: str, ahead: bool) -> None:
        self._error = None
        self._described = False
        self._is_ahead(ahead)
        self._open = self._current = execution
        for stream, parts in self._streams:
            TextStream.renew(stream, parts)
            stream.buffer.finish()  # drops half a character that was written between executions
        self._output.begin(self._max_output_chars)
        self.namespace.final = MISSING
        self._displays.begin()
        self._figures.begin_cell()
        self._helpers.begin_cell()
        self._warnings.begin(self.namespace.globals)
        self._loops.begin_cell()
        if self._growing is None:
            self.sources.add(filename, source)
        else:
            self.sources.begin(filename, self._look_at_source)

    def _look_at_source(self) -> str:
        """Returns the source of the current cell for code that looks at it.

        A rest that is not there yet comes from outside.
        """
        growing = self._growing
        if growing is None:
            return ""
        return growing.source if growing.is_whole else growing.source + self.take_rest()

    def _run(self, filename: str, source: str, ends: bool) -> None:
        prepared, self._prepared = self._prepared, None
        if prepared is None or prepared[0] != filename:
            codes = self._compile(source, filename)
        elif isinstance(prepared[1], BaseException):
            raise prepared[1]
        else:
            codes = prepared[1]
        if codes:
            self._warnings.end_with(codes[-1])
        if self.reserve is not None:
            self.reserve.hold()
        try:
            if codes:
                self._value = None
            self._recursion.begin(codes)
            names = self.namespace.globals
            if not codes:
                value = self._value
            elif running.awaits(codes):  # the cell's task enters the context at each step
                value = self._loops.run_cell(running.run_async(codes, names), self._context)
            else:
                value = self._context.run(running.run, codes, names)
            self._value = None if ends else value
            if ends and value is not None and self._show is not None:
                self._context.run(self._show_result, self._show, value)
            if ends:
                self._loops.run_begun()
        finally:
            try:
                self._recursion.end()
            except MemoryError:  # it needs a number
                if self.reserve is None or not self.reserve.ease():
                    raise
                self._recursion.end()
                self._stderr.write(_MEMORY_FULL)
            if ends:
                self._end_run()

    def _show_result(self, show: Callable[[object], str], value: object) -> None:
        self._write("result", show(value))
        if self._displays.show(value, is_result=True):
            self._shown = value
        if self._max_result_bytes:
            self._send_value(value)
        if not self.is_lodger:
            self._last.set(value)

    def _send_value(self, value: object) -> None:
        try:
            encoding, body = self._encode(value, max_bytes=self._max_result_bytes)
        except Exception:
            return  # too large or too deep: its text tells about it
        self._display(values.VALUE_MIME + encoding, body, True)

    def _end_run(self) -> None:
        if self.reserve is not None and self.reserve.ease():
            self._last.forget()
            self._stderr.write(_MEMORY_FULL)
        if self._loops.has_any:
            self._guards.repair_classes()
        cancelled = self._loops.end_cell()
        if cancelled:
            tasks = "1 background task was" if cancelled == 1 else f"{cancelled} background tasks were"
            self._stderr.write(f"sandglass: {tasks} cancelled at the end of the cell\n")

    def _finish(self) -> Ended:
        namespace = self.namespace
        for stream, parts in self._streams:
            TextStream.renew(stream, parts)
        namespace.take_answer()  # may run user code
        self._guards.repair()
        self._loops.begin_cell()
        namespace.restore()
        encoding: Encoding = "none"
        body = b""
        final = namespace.final is not MISSING
        if final:
            try:
                encoding, body = self._encode(namespace.final, name="the final value")
            except Exception as error:
                final = False
                self._error = self._error or error
            namespace.final = MISSING
        if type(self._error) is MemoryError:
            self._last.forget()
        error, names = self._error, namespace.changed_names()  # type: ignore[misc]
        if error is not None:
            self._describe(error)
        for line in self.end_leftovers():
            self._stderr.write(f"sandglass: {line}\n")
        for fd, data in self.take_written():
            self.write_fd(fd, data)
        self._stdout.buffer.finish()
        self._stderr.buffer.finish()
        self._output.end()
        self._error = None
        report: ExecutionReport = {
            "ended": "ok" if error is None else "limit" if issubclass(type(error), LimitError) else "error",
            "errorType": None if error is None else values.type_name(error),
            "final": final,
            "names": names,
            "omittedDisplays": self._displays.omitted,
        }
        return report, encoding, body

    def _finish_after(self, late: BaseException) -> Ended:
        error = self._error = self._error or late
        if self.reserve is not None:
            self.reserve.release()
        try:
            return self._finish()
        except BaseException:
            return {"ended": "error", "errorType": values.type_name(error), "final": False}, "none", b""

    def _describe(self, error: BaseException) -> None:
        if self._described:
            return
        self._described = True
        text, full = describe(error)
        full += self._hint(error)
        self._write("error", text)
        self._write("traceback", full)

    def _hint(self, error: BaseException) -> str:
        """Returns a hint about a missing module."""
        name = error.name if type(error) is ModuleNotFoundError else None
        if not self.package_hint or type(name) is not str or len(name) > _NAME_LIMIT:
            return ""
        top = name.partition(".")[0]
        return "" if top in stdlib_module_names else self.package_hint.format(name=top) + "\n"

    def _write(self, stream: Stream, text: str) -> None:
        self._output.write(self._output.channels[stream], text)

    def _display(self, mime: str, data: bytes, is_result: bool) -> None:
        if self._open is not None and self._current == self._open:
            self._output.flush()  # output that was printed before a display comes before it
            self._bridge.display(mime, data, is_result)

    def _call_host(self, name: str, calls: list[Any]) -> list[tuple[bool, Any]]:
        self._require_execution()
        encoded = [self._encode_arguments(name, arguments) for arguments in calls]
        self._output.flush()
        answers = self._bridge.host_call(name, encoded)
        if self._output.now is no_time:  # nobody answers calls that run ahead, so the cell was asked for by now
            self._output.now = self.clock
            self._output.flush()
        replies: list[tuple[bool, Any]] = []
        for status, encoding, body in answers:
            value = body if isinstance(body, str) else values.decode(encoding, body)
            if status != "ok":
                value = LimitError(value) if status == "limit" else HostCallError(value, status)
            replies.append((status == "ok", value))
        return replies

    def _encode_arguments(self, name: str, arguments: Any) -> tuple[Encoding, str | bytes]:
        """Encodes arguments. A single str crosses as text."""
        argument: Any = arguments[0] if len(arguments) == 1 and type(arguments[0]) is str else arguments
        if argument is not arguments and argument.isascii() and len(argument) <= self._max_value_bytes:
            return "text", argument
        return self._encode(argument, name=f"{name}() arguments")

    def _input(self, prompt: object) -> str:
        ok, value = self._call_host("input", [[str(prompt)]])[0]
        if not ok:
            raise EOFError(str(value)) if type(value) is HostCallError else value
        return str(value)

    def _sleep(self, seconds: float | None) -> None:
        self._require_execution()
        self._output.flush()
        self._bridge.sleep(seconds)

    def _sleep_in_loop(self, seconds: float | None) -> None:
        self._require_execution()
        self._output.flush()
        (self._threads.wait if self._threads else self._bridge.sleep)(seconds)

    def _time_sleep(self, seconds: float, /) -> None:
        """Delays execution for a number of seconds. The host can interrupt it. Checks its argument as CPython does."""
        duration = seconds if isinstance(seconds, float) else index(seconds)
        if duration != duration:
            raise ValueError("Invalid value NaN (not a number)")
        if duration < 0:
            raise ValueError("sleep length must be non-negative")
        if duration > TIMEOUT_MAX:
            raise OverflowError("timestamp too large to convert to C PyTime_t")
        if get_ident() != self._clock_sleep_thread:
            self.sleep_in_thread(duration)
        elif self.is_lodger and self._open is None:  # a variable keeps this function, and others call it in their turn
            _clock_sleep(duration)
        else:
            self._sleep(float(duration))

    def own(self, namespace: dict[str, Any], name: str, value: object) -> None:
        """Declares an object that a backend puts into the interpreter and that cells cannot replace for good.

        Call before `install`.
        """
        self._guards.own(namespace, name, value)
