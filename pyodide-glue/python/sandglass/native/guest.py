"""The guest on a host: a process that speaks crates/core/src/protocol.rs over a socket.

Exchanges run on the main thread. A reader thread takes the host's messages. It answers waits, and stops an exchange
that does not wait with SIGINT. A third thread, of `pipes.py`, takes the output of child processes, and sends output
that has waited long enough.

User code runs in this process and can reach all of it. It gains nothing by that, since the host trusts nothing that a
guest says. But damage that user code does by chance must not outlive a cell. So everything needed here is imported from
its module before any user code runs.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _thread
import os
import posix
import sys
import warnings
from _queue import SimpleQueue
from _socket import SHUT_RDWR
from _socket import socket as Socket
from _thread import RLock, allocate_lock, get_ident, start_new_thread
from functools import wraps
from gc import disable as gc_off
from gc import enable as gc_on
from gc import isenabled as gc_is_on
from json import JSONDecoder
from os import _exit, getcwd, getpid, getppid
from os.path import isdir
from select import POLLIN, poll
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from sandglass.ahead.survey import survey_of
from sandglass.native.bridge import NativeBridge
from sandglass.native.changed_files import ChangedFiles
from sandglass.native.channel import Channel
from sandglass.native.forks import Forks
from sandglass.native.frames import BodyParts, FrameError, FrameReader
from sandglass.native.leftovers import Leftovers, adopt_orphans
from sandglass.native.pipes import Pipes, move_up
from sandglass.native.user_forks import leave_copy, write_all
from sandglass.runtime.files import FileError
from sandglass.runtime.output import SharedEmitter, no_time, printable
from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)
from sandglass.runtime.runtime import Runtime
from sandglass.runtime.signals import reserve
from sandglass.runtime.tracebacks import message_of
from sandglass.runtime.wire import VERSION
from sandglass.state.portable import generators
from sandglass.state.state import State
from sandglass.state.stateless import join_state

if TYPE_CHECKING:
    from collections.abc import Callable

    from sandglass.ahead.syscall_gate import SyscallGate
    from sandglass.runtime.namespace import Namespace
    from sandglass.runtime.runtime import Ended
    from sandglass.runtime.wire import Encoding, ExecuteRequest, GuestInfo, InitRequest, Request

#: The time after which the third thread looks after an exchange.
QUICK_MS = 20
_WORKSPACE = "/workspace"
_CHILD_EVENTS = frozenset(
    ("os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "pty.spawn", "subprocess.Popen")
)
_MAX_MESSAGE_CHARS = 4000
_MAX_NAMES_BYTES = 512 << 10
#: The requests that a shadow gets before its code was asked for.
_AHEAD = frozenset(("init", "extend", "credit"))
_parse = JSONDecoder().scan_once  # type: ignore[attr-defined]
_mask, _BLOCK, _ALL_SIGNALS = _signal.pthread_sigmask, _signal.SIG_BLOCK, _signal.valid_signals()


class Guest:
    """Answers requests. To refuse is an answer; any other exception here ends the guest."""

    def __init__(
        self,
        fd: int,
        epoch: int,
        reap_all: bool,
        namespace: Namespace | None = None,
        control: tuple[int, int] | None = None,
    ) -> None:
        """`control`: the descriptor on which the host asks for copies, and one to report them to `stand_over`."""
        self._socket = Socket(fileno=move_up(fd))
        self._forks = Forks(control[0], self._socket.fileno(), control[1]) if control else None
        self._gate: SyscallGate | None = None  # the gate of a shadow until promotion
        self._standing: SyscallGate | None = None  # the same gate until it is removed
        self._rest: str | None = None  # the rest of the code that runs ahead, once all of it is there
        self._reader_rests = False  # true while the reader needs nothing of the interpreter
        self._is_revived = False  # true in a guest that was a checkpoint
        self._is_begun = False  # true once the host has sent a message
        self._collects = False  # whether the garbage collector is to be turned on again
        self._rest_known = allocate_lock()
        self._pid = getpid()
        self._channel = channel = Channel(self._send, epoch)
        self._reader = FrameReader(self._socket.recv_into, epoch)
        self._bridge = bridge = self._make_bridge(channel)
        self._output = output = SharedEmitter(bridge)
        output.send_now = self._channel.flush
        self._runtime = runtime = Runtime(bridge, output, bridge, namespace)
        self._state = State(runtime)
        self._pipes = Pipes(self._take_written)
        self._threads: set[int] = {get_ident()}
        self._working: list[None] = []  # one entry for each running thread of ours
        self._leftovers = Leftovers(self._threads, bridge.end_waits, reap_all)
        if self._forks is not None:
            self._leftovers.spared = getppid()
            self._leftovers.take_copies = self._forks.take_ends
            self._leftovers.paused = self._forks.paused
        self._changed_files = ChangedFiles(getcwd())
        #: The requests that the reader has taken; None says that the host wants a copy of the process.
        self._requests: SimpleQueue[tuple[Request, list[Any]] | None] = SimpleQueue()
        self._max_file_bytes = self._max_files = 0.0
        self._copy_error = ""
        mail = poll()
        mail.register(self._socket.fileno(), POLLIN)
        bridge.has_mail = lambda: bool(mail.poll(0))
        bridge.flush_due = self._flush_due
        bridge.is_leftover = self._leftovers.is_leftover
        bridge.has_others = self._leftovers.has_others
        runtime.sleep_in_thread = bridge.sleep
        runtime.end_leftovers = self._leftovers.end
        runtime.take_written = self._last_written
        runtime.take_rest = self._take_rest

    def _make_bridge(self, channel: Channel) -> NativeBridge:
        return NativeBridge(channel)

    def serve(self) -> None:
        """Serves until the host closes the channel. Does not return."""
        generators.begin()
        adopt_orphans()
        self._pipes.open()
        self._bridge.watch()
        self._own()
        self._runtime.install()
        os.register_at_fork(after_in_child=self._become_copy)
        sys.addaudithook(self._hear)
        self._runtime.execute(0, "pass")  # work that a first cell would wait for, such as memory after a fork
        self._start_threads()
        end = _exit  # user code may remove anything from this module
        try:
            while True:
                message = self._requests.get()
                if message is None:
                    self._fork()
                else:
                    self._handle(*message)
        except BaseException as error:
            if getpid() == self._pid:
                self._die(error)
        finally:
            end(1)

    def _start_threads(self) -> None:
        for work in (self._read, self._drain_pipes):
            self._working.append(None)
            self._threads.add(start_new_thread(self._alone, (work,)))

    def _own(self) -> None:
        """Declares the runtime's own objects of this backend in the interpreter."""
        for name in ("_exit", "abort"):
            end = self._with_last_words(getattr(os, name))
            self._runtime.own(vars(os), name, end)
            self._runtime.own(vars(posix), name, end)
        reserve(_signal.SIGVTALRM, self._runtime.own)
        self._runtime.own(vars(_thread), "start_new_thread", self._with_notice(start_new_thread))

    def _handle(self, request: Request, bodies: list[Any]) -> None:
        channel, runtime = self._channel, self._runtime
        match request["type"]:
            case "execute":
                self._execute(request, bodies)
            case "init":
                self._init(request)
            case "save":
                reason = "native guests make no checkpoints"
                channel.post({"type": "notSaved", "checkpoint": request["checkpoint"], "reason": reason})
            case "check":
                is_plain = self._forks is not None and runtime.is_plain(request["code"])
                channel.post({"type": "checked", "check": request["check"], "plain": is_plain})
            case "survey":
                variables = survey_of(runtime)
                channel.post({"type": "surveyed", "survey": request["survey"], "variables": variables})
            case "extend" | "promote":
                pass  # an interrupt for code that has ended
            case "restore" if self._is_revived:
                channel.end({"type": "restored", "exchange": request["exchange"], "lost": []})
            case "restore" | "install":
                what = "take over a checkpoint" if request["type"] == "restore" else "install packages"
                self._refuse(request["exchange"], f"a native guest cannot {what}; nothing was changed")
            case _:
                self._answer(request, bodies)

    def _init(self, request: InitRequest) -> None:
        if not self._is_begun and self._is_revived:
            generators.begin()  # guests that begin anew have random numbers of their own
        self._is_begun = True
        if request["version"] == VERSION and self._gate is None:  # a shadow is configured already
            try:
                self._config = config = request["config"]
                self._runtime.configure(config)
                self._max_file_bytes, self._max_files = config["maxFileBytes"], config["maxFiles"]
            except Exception as error:
                self._channel.post({"type": "bootFailed", "message": _describe(error)})
                return
        python = sys.version.split()[0]
        guest: GuestInfo = {"bridge": "native", "softInterrupt": True, "python": python, "pyodide": None}
        self._channel.post({"type": "ready", "version": VERSION, "guest": guest})

    def _execute(self, request: ExecuteRequest, _bodies: list[Any]) -> None:
        bridge, output, gate = self._bridge, self._output, None
        if request.get("ahead"):
            gate, self._standing = self._standing, None
        if self._forks is not None:
            self._forks.note(request["code"])
        bridge.watch(clock=gate is None)
        if gate is not None and self._gate is None:  # promoted just now
            bridge.watch()
        self._pipes.finish()  # output of earlier cells' leftovers belongs to no exchange
        output.is_silenced = self._leftovers.is_leftover if self._leftovers.any_threads else None
        self._changed_files.begin()
        report, encoding, body = self._run(request, gate)
        if getpid() != self._pid:
            leave_copy(report, self._copy_error)
        self._pipes.repair()
        output.catch_up = None
        report["files"], report["omittedFiles"] = self._changed_files.end()
        report["stopped"] = bridge.end()
        report["names"] = _shortened(report.get("names"))
        self._channel.end(
            {"type": "executed", "exchange": request["exchange"], "execution": report, "encoding": encoding},
            *([body] if report["final"] else []),
        )

    # ---- shadows ----

    def _fork(self) -> None:
        """Forks a shadow for the host. The reader has ended before, so that no thread is missing in the copy."""
        forks, pipes, reader = self._forks, self._pipes, self._socket.fileno()
        if forks is None:
            return
        self._bridge.rest()
        pipes.stop()
        while self._working:
            sleep(0.0002)
        # No code of the user's may run here, such as a finalizer: the copy has no gate yet.
        collects = gc_is_on()
        gc_off()
        copy = forks.fork([*pipes.descriptors(), reader], self._is_no_time_to)
        self._threads.clear()
        self._threads.add(get_ident())
        self._collects = self._collects or collects
        if copy is not None:
            self._become(*copy)
        if self._gate is None:
            self._collect()
        self._start_threads()
        if self._gate is None:
            forks.hot_pages.copy(self._requests.empty)

    def _become(self, epoch: int, gate: SyscallGate | None) -> None:
        """Takes up the life of a copy: one that runs ahead behind a gate, or the session's next guest."""
        self._gate = self._standing = gate
        if gate is not None:
            self._channel.now = no_time
            self._runtime.take_written = self._runtime.end_leftovers = tuple
            self._rest_known.acquire(False)
            self._rest = None
        self._is_revived = gate is None
        self._pid = getpid()
        self._leftovers.renew()
        self._channel.renew(epoch)
        self._reader = FrameReader(self._socket.recv_into, epoch)
        self._pipes.renew()

    def _is_no_time_to(self, pauses: bool) -> str:
        """Returns the reason why code could tell a copy from the guest, or nothing."""
        if not pauses and self._runtime.is_watched():
            return "code hears of all that is done, by a trace function or a hook"
        return "there are threads" if self._leftovers.has_others() else ""

    def _run(self, request: ExecuteRequest, gate: SyscallGate | None) -> Ended:
        """Runs code, of which only a part may be there. With a gate, the code may not have been asked for yet.

        One function for both cases, because code can see how deep the stack is.
        """
        runtime, execution, code = self._runtime, request["execution"], request["code"]
        if request.get("more"):
            runtime.extend(execution, code, False)
        while True:
            is_ahead = gate is not None and self._gate is not None
            if gate is not None and is_ahead:
                while not (self._reader_rests and self._pipes.rests) and self._gate is not None:
                    sleep(0.0001)  # ahead, this thread could not wait for the others
                gate.enclose()
                is_ahead = self._gate is not None  # promotion may come during the wait
            self._collect()
            ended = runtime.execute(execution, code, is_ahead)
            if gate is not None:
                if self._gate is not None:  # behind the gate, no code of the user's may run from here on
                    collects = gc_is_on()
                    gc_off()
                    self._collects = collects
                    if runtime.is_watched():
                        getppid()
                gate.pause()
                if self._gate is None:
                    self._collect()
            if ended is not None:
                if gate is not None:
                    gate.remove()
                return ended
            if self._rest is None:
                self._channel.post({"type": "waiting", "exchange": request["exchange"]})
            text, is_last = self._next_text()
            if self._forks is not None:
                self._forks.note(text)
            runtime.extend(execution, text, is_last)

    def _next_text(self) -> tuple[str, bool]:
        """Waits for more of the code that runs ahead. Returns it, and whether it is the last of it."""
        message = self._requests.get()
        if message is not None and message[0]["type"] == "extend":
            return message[0]["text"], message[0].get("last", False)
        return self._rest or "", True

    def _collect(self) -> None:
        """Turns garbage collection on again, if it was on before."""
        if self._collects:
            self._collects = False
            gc_on()

    def _asked_for(self) -> None:
        """Promotes the shadow to the guest. The reader calls this."""
        gate, self._gate = self._gate, None
        if gate is None:
            return
        self._channel.now = monotonic
        self._runtime.take_written = self._last_written
        self._runtime.end_leftovers = self._leftovers.end
        self._runtime.asked_for()
        self._bridge.asked_for()
        if self._forks is not None:
            self._forks.promoted()
        gate.release()
        self._collect()

    def _know_rest(self, rest: str | None) -> None:
        """Takes the whole rest of the code that runs ahead. The reader calls this."""
        self._rest = rest
        if rest is not None and self._rest_known.locked():
            self._rest_known.release()

    def _take_rest(self) -> str:
        """Waits for the rest of the code that runs ahead, for code that looks at its own source."""
        if self._gate is not None:
            getppid()
            with self._rest_known:
                pass
        return self._rest or ""

    def _answer(self, request: Request, bodies: list[Any]) -> None:
        """Answers a request about a variable or a file, or refuses it."""
        exchange = self._channel.exchange
        self._bridge.watch()
        try:
            answer = self._result(request, bodies)
        except BaseException as error:
            self._bridge.end()
            self._refuse(exchange, _describe(error))
            return
        self._bridge.end()
        if answer is None:
            self._channel.end({"type": "done", "exchange": exchange})
        else:
            self._channel.end({"type": "value", "exchange": exchange, "encoding": answer[0]}, answer[1])

    def _result(self, request: Request, bodies: list[Any]) -> tuple[Encoding, bytes] | None:
        runtime, body = self._runtime, bodies[0] if bodies else b""
        match request["type"]:
            case "getVariable":
                return runtime.get_variable(request["name"])
            case "listVariables":
                return runtime.list_variables()
            case "configure":
                changed: Any = {name: request[name] for name in ("hostFunctions", "outputFields")}
                runtime.configure(self._config | changed)
                self._config |= changed
            case "setVariable":
                runtime.set_variable(request["name"], request["encoding"], body)
            case "openState":
                lost = self._state.open(body, int(request["maxBytes"]))
                return ("bytes", join_state([], lost)) if lost else None
            case "captureState":
                return "bytes", self._state.capture(int(request["maxBytes"]), request["portable"], request["direct"])
            case "cellFile":
                return "bytes", self._state.cell_file(request["path"], b"".join(bodies))
            case "writeFile" | "readFile" | "listFiles" | "removeFile" | "look":
                if request["type"] == "writeFile":
                    self._need_room(request["path"], sum(map(len, bodies)))
                as_text = request["type"] == "readFile" and request["text"]
                encoding, pieces = runtime.file(request["type"], request["path"], bodies, as_text)
                return None if encoding == "none" else (encoding, b"".join(pieces))
        return None

    def _need_room(self, path: str, size: int) -> None:
        used, files = self._changed_files.usage(path)
        if used + size > self._max_file_bytes or files >= self._max_files:
            raise FileError(
                f"{path}: No space left on device; maxFileBytes bounds all files together, and their number is "
                "bounded, too"
            )

    def _refuse(self, exchange: int, why: str) -> None:
        self._channel.end({"type": "refused", "exchange": exchange, "message": why})

    # ---- the reader ----

    def _alone(self, work: Callable[[], None]) -> None:
        """Runs a thread of ours."""
        end, is_done = _exit, False
        try:
            _mask(_BLOCK, _ALL_SIGNALS)  # signals are for the main thread
            work()
            is_done = True
        except EOFError:
            end(0)
        except BaseException as error:
            self._die(error)
        finally:
            if not is_done:
                end(1)  # nobody else could do the thread's work
            self._working.pop()

    def _read(self) -> None:
        """Takes the host's messages. Ends when the host wants a copy of the process."""
        bridge, read, forks = self._bridge, self._reader.read, self._forks
        mail = poll()
        mail.register(self._socket.fileno(), POLLIN)
        if forks is not None and not forks.is_over:
            mail.register(forks.fileno(), POLLIN)
        parts = BodyParts()
        while True:
            if self._gate is None and self._channel.exchange and not mail.poll(QUICK_MS) and self._channel.exchange:
                self._pipes.wake()
            while self._gate is None and (left := bridge.tick()) >= 0:
                if mail.poll(max(left * 1000, 1) if left < 86_400 else None):
                    break
            if forks is not None:
                self._reader_rests = True
                found = dict(mail.poll())
                self._reader_rests = False
                if forks.fileno() in found and not self._channel.exchange and self._gate is None:
                    # Copies first, because they were asked for first: a request for one arrives before frames that were
                    # sent later. But a shadow that does not know of its promotion yet takes the frames first.
                    self._requests.put(None)
                    return
            header, bodies = read()
            request: Request = _parse(header, 0)[0]
            if self._gate is not None and request["type"] not in _AHEAD and not request.get("ahead"):
                self._asked_for()
            match request["type"]:
                case "part":
                    parts.add(bodies)
                case "ping":
                    pass  # only workers use this request
                case "hostReply":
                    body = parts.join(bodies)
                    bridge.reply(request, body[0] if body else b"")
                case "interrupt":
                    bridge.interrupt(request["exchange"], request["reason"])
                case "credit":
                    self._channel.give(int(request["bytes"]))
                case "promote":
                    self._know_rest(request.get("rest"))
                    if self._rest is not None:
                        self._requests.put((request, bodies))
                case "init" | "save" | "check" | "survey" | "extend":
                    self._requests.put((request, bodies))
                case _:
                    bridge.begin(request["exchange"], request["timeoutMs"])
                    self._requests.put((request, parts.join(bodies)))

    # ---- output that bypasses Python's streams ----

    def _drain_pipes(self) -> None:
        channel = self._channel
        self._pipes.keep_draining(lambda: channel.exchange != 0 and self._gate is None, self._flush_due)

    def _flush_due(self) -> None:
        self._output.flush_due()
        self._channel.flush_due()

    def _take_written(self, fd: int, text: str) -> None:
        self._output.write_caught_up(self._output.channels["stderr" if fd == 2 else "stdout"], text)

    def _last_written(self) -> tuple[()]:
        if not self._bridge.is_copy:
            self._pipes.finish()
        return ()

    def _with_last_words(self, end: Callable[..., object]) -> Callable[..., object]:
        """Wraps a function that ends the process at once, so that the output until then is sent."""

        @wraps(end)
        def ends(*args: Any, **options: Any) -> object:
            if getpid() == self._pid:
                self._pipes.drain()
                self._output.flush()
                self._channel.flush()
            return end(*args, **options)

        return ends

    def _with_notice(self, start: Callable[..., int]) -> Callable[..., int]:
        """Wraps `_thread.start_new_thread`, which, unlike `threading`, does not wait until the thread has begun."""

        @wraps(start)
        def starts(*args: Any) -> int:
            self._bridge.has_new_thread = True
            return start(*args)

        return starts

    def _hear(self, event: str, _args: object) -> None:
        """Hears audit events.

        Once there may be a child process, its output comes before output that Python prints later.
        """
        if event in _CHILD_EVENTS:
            self._output.catch_up = self._pipes.drain

    # ---- copies of this process by os.fork ----

    def _become_copy(self) -> None:
        """Cuts off a child that user code made: it has no part in the sandbox, and prints to its own descriptors."""
        self._bridge.become_copy()
        self._channel.lock = RLock()
        self._socket.close()
        self._pipes.abandon()
        self._output.lock = RLock()
        self._output.catch_up = None
        self._output.begin(0)  # with no limit left, all text goes by `write`
        self._output.write = self._write_copy  # type: ignore[method-assign]

    def _write_copy(self, channel: Any, text: str) -> None:
        if channel.name == "traceback":
            self._copy_error = text
        fd = {"stdout": 1, "stderr": 2}.get(channel.name)
        if fd is not None:
            write_all(fd, text)

    def _send(self, frame: bytes) -> None:
        if self._gate is None and getpid() != self._pid:
            return
        try:
            self._socket.sendall(frame)
        except OSError:  # the host is gone, or user code has closed the channel
            _exit(1)

    def _die(self, error: BaseException) -> None:
        """Sends the last output and the error, and ends the process."""
        try:
            self._output.flush()
            if not isinstance(error, FrameError):
                self._channel.post({"type": "fatal", "message": _describe(error)})
            self._socket.shutdown(SHUT_RDWR)
        finally:
            _exit(1)


def _shortened(names: list[str] | None) -> list[str] | None:
    """Returns the first names, as many as fit into a frame."""
    size = 0
    for index, name in enumerate(names or ()):
        size += len(name.encode("utf-8", "replace")) + 3
        if size > _MAX_NAMES_BYTES:
            return names and names[:index]
    return names


def _describe(error: BaseException) -> str:
    return printable(message_of(error)[:_MAX_MESSAGE_CHARS])


def serve(fd: int, epoch: int, reap_all: bool, control: tuple[int, int] | None = None, kind: Any = Guest) -> None:
    """Makes this process a guest on the socket `fd`; see `Guest` for `control`. Does not return."""
    if isdir(_WORKSPACE):
        os.chdir(_WORKSPACE)
    sys.path.insert(0, "")  # the working folder
    sys.argv[:], sys.orig_argv[:] = [""], [sys.executable]  # as in a REPL, and hides the host's own arguments
    # The threads are ours, and a copy of the process runs without them.
    warnings.filterwarnings("ignore", r".*multi-threaded, use of \w+\(\) may lead to deadlocks", DeprecationWarning)
    kind(fd, epoch, reap_all, control=control).serve()
