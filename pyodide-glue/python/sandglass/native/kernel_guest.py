"""A guest in a Jupyter kernel: the native guest, in an interpreter that it shares with others.

The host makes the kernel import this package under a name of its own and call `attach`, which connects back to the
host's private socket. The whole protocol runs there. Work for the main thread runs in a `turn`, which the host makes
the kernel execute like a front end's cell. Between turns, the kernel belongs to everybody, so a turn gives back at its
end everything that it has taken over. Threads and processes that a cell leaves behind go on, as in any notebook.
"""

# Decisions: docs/internals/jupyter.md.

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os
import sys
from _queue import Empty, SimpleQueue
from _socket import AF_UNIX, SOCK_STREAM
from _socket import socket as Socket
from _thread import start_new_thread
from contextlib import suppress
from fcntl import F_DUPFD_CLOEXEC, fcntl
from json import dumps as to_json
from os import close, dup2
from re import compile as pattern
from time import monotonic
from time import sleep as clock_sleep
from typing import TYPE_CHECKING, Any

from sandglass.native.bridge import REPEAT_SECONDS, NativeBridge
from sandglass.native.guest import _ALL_SIGNALS, _CHILD_EVENTS, Guest
from sandglass.runtime.loop import outer_loop_suspended
from sandglass.runtime.namespace import MISSING, Namespace
from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)
from sandglass.runtime.user_code import in_user_code
from sandglass.runtime.values import safe_repr, type_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import FrameType

    from sandglass.native.channel import Channel
    from sandglass.runtime.wire import StopReason

#: The longest times for the host to take a connection, and to send the request for a turn, in seconds.
_CONNECT_SECONDS = 10
_REQUEST_SECONDS = 5
#: The longest time for which running code is asked to stop when the host leaves, in seconds.
_LEAVING_SECONDS = 5
_SIGNALS = (_signal.SIGINT, _signal.SIGVTALRM)
_set_handler, _get_handler = _signal.signal, _signal.getsignal
_BLOCK, _mask = _signal.SIG_BLOCK, _signal.pthread_sigmask
#: IPython's own names among the user's variables: what was typed and shown.
_is_history = pattern(r"_i{0,3}|_{2,3}|_i?\d+|_[iod]h|_exit_code|In|Out").fullmatch
_MAX_TEXT_CHARS = 500
#: The most bytes of a list of variables. The host takes at most twice as much, in a message as hexadecimal digits.
_MAX_LIST_BYTES = 2 << 20
_CPU_TIMER, _set_timer = _signal.ITIMER_VIRTUAL, _signal.setitimer
_guests: dict[str, KernelGuest] = {}
_at_work: list[KernelGuest] = []
_current_frames = sys._current_frames


class Gone(Exception):
    """The host has left."""


class KernelBridge(NativeBridge):
    """Signals the main thread in a turn only. Between turns, the main thread runs others' code."""

    def __init__(self, channel: Channel) -> None:
        super().__init__(channel)
        #: True when the main thread is in a turn.
        self.is_in = False

    def enter(self) -> bool:
        """Begins a turn on the main thread. Returns true when the turn has to stop already."""
        with self._lock:
            self.is_in = True
            return self.stopping is not None

    def leave(self) -> None:
        with self._lock:
            self.is_in = False

    def _stop(self, reason: StopReason) -> None:
        if self.is_in:
            super()._stop(reason)
        else:
            self.stopping = self.stopping or reason
            self._next_look = monotonic() + REPEAT_SECONDS

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:
        """Handles an interrupt, also another front end's.

        If it came in code of ours, such as a wait, it stops the turn.
        """
        with self._lock:
            if self.is_in and self.stopping is None and self._channel.exchange and not in_user_code(frame):
                self._stop("interrupt")
                return
        super()._on_interrupt(number, frame)


class Others:
    """The threads of others in the kernel. Takes the place of `Leftovers`, since none of them is ours to end."""

    any_threads = False

    def __init__(self) -> None:
        self._before: set[int] = set()

    def begin(self) -> None:
        """Begins a turn. Threads that run now are not the turn's own."""
        self._before = set(_current_frames())

    def has_others(self) -> bool:
        """Returns true when the turn has started threads."""
        return not _current_frames().keys() <= self._before

    def is_leftover(self, _ident: int) -> bool:
        return False

    def end(self) -> Iterable[str]:
        return ()


class KernelGuest(Guest):
    """A guest whose turns are run by the kernel."""

    _bridge: KernelBridge

    def __init__(self, token: str, socket: Socket, epoch: int, shell: Any) -> None:
        hidden = shell.user_ns_hidden if shell is not None else {}

        def is_hidden(name: str) -> bool:
            return _is_history(name) is not None or name in hidden

        module = sys.modules["__main__"] if shell is None else shell.user_module
        super().__init__(socket.detach(), epoch, False, Namespace(module=module, hidden=is_hidden))
        self._token = token
        self._shell = shell
        self._is_gone = False  # whether the host is gone
        self._is_left = False  # whether we have left the kernel
        self._saved: list[tuple[int, int]] = []
        self._handlers: list[Any] = []
        self._left: SimpleQueue[None] = SimpleQueue()
        bridge, runtime = self._bridge, self._runtime
        others = Others()
        self._leftovers: Any = others
        bridge.is_leftover, bridge.has_others = others.is_leftover, others.has_others
        runtime.end_leftovers = others.end
        runtime.sleep_in_thread = clock_sleep  # the threads may be others'
        runtime.is_lodger = True
        if shell is not None:
            runtime.translate = shell.transform_cell

    def _make_bridge(self, channel: Channel) -> NativeBridge:
        return KernelBridge(channel)

    def begin(self) -> None:
        """Starts to take the host's requests."""
        self._pipes.open(take=False)
        self._own()
        publisher = getattr(self._shell, "display_pub", None)
        if publisher is not None:
            self._runtime.own(vars(publisher), "publish", self._publish)
        self._runtime.install()
        self._runtime.uninstall()
        for work in (self._read, self._drain_pipes):
            self._threads.add(start_new_thread(self._alone, (work,)))

    def turn(self) -> None:
        """Answers the next request, on the kernel's main thread."""
        # First: from now on, an interrupt reaches the user's code only, and none of our own.
        self._handlers = [_get_handler(number) for number in _SIGNALS]
        _set_handler(_signal.SIGINT, self._bridge._on_interrupt)
        try:
            with suppress(Empty):
                message = None if self._is_gone else self._requests.get(timeout=_REQUEST_SECONDS)
                if message is not None and not self._is_gone:
                    request, bodies = message
                    try:
                        self._enter()
                        if self._bridge.enter() and request["type"] == "execute":
                            request["code"] = "raise KeyboardInterrupt"  # it had to stop before it began
                        with outer_loop_suspended():  # suspends the kernel's own loop, which runs the turn
                            self._handle(request, bodies)
                    finally:
                        self._bridge.leave()
                        self._leave()
        finally:
            _set_timer(_CPU_TIMER, 0)  # whatever was raised: the timer's signal could end others' code
            if self._is_gone:
                self._runtime.namespace.withdraw()  # the end of a cell puts reserved names back
                self._left.put(None)
            # Interrupts come last: others' may come at once, and would break the steps that follow.
            for number, handler in reversed(list(zip(_SIGNALS, self._handlers, strict=True))):
                if handler is not None:  # a handler of C code cannot be put back from here
                    _set_handler(number, handler)

    def _enter(self) -> None:
        self._leftovers.begin()
        for fd in (1, 2):
            with suppress(OSError):
                self._saved.append((fd, fcntl(fd, F_DUPFD_CLOEXEC, 100)))
        self._pipes.repair()
        self._runtime.enter()
        self._runtime.namespace.lodge()  # another guest, or a front end, may have taken names of ours
        _at_work.append(self)

    def _leave(self) -> None:
        if self in _at_work:
            _at_work.remove(self)
        self._runtime.leave()
        self._output.catch_up = None
        saved, self._saved = self._saved, []
        for fd, kept in saved:
            dup2(kept, fd)
            close(kept)

    def _publish(self, data: Any = None, metadata: Any = None, **_options: Any) -> None:
        """Takes a display, such as of IPython's `display`."""
        if isinstance(data, dict):
            self._runtime.show_bundle(data)

    def inspect(self) -> str:
        """Returns the user's variables, as hexadecimal digits of JSON.

        Any thread may call this, during a turn or not.
        """
        namespace = self._runtime.namespace
        rows, size = [], 0
        for row in namespace.listing():
            value = namespace.globals.get(row["name"], MISSING)
            # The repr of any other value may run the user's code, or never end.
            is_plain = type(value) in (int, float, bool, str, bytes, type(None))
            row["text"] = safe_repr(value)[:_MAX_TEXT_CHARS] if is_plain else f"<{type_name(value)[:_MAX_TEXT_CHARS]}>"
            text = to_json(row)
            size += len(text) + 2
            if size > _MAX_LIST_BYTES:
                break
            rows.append(text)
        return f"[{', '.join(rows)}]".encode().hex()

    # ---- our threads ----

    def _alone(self, work: Callable[[], None]) -> None:
        try:
            _mask(_BLOCK, _ALL_SIGNALS)
            work()
        except Gone:
            pass
        except BaseException:
            self._detach()

    def _drain_pipes(self) -> None:
        channel = self._channel
        try:
            # `wake` does nothing while this thread is between two waits. So the thread looks at `_is_gone` before each.
            self._pipes.keep_draining(lambda: self._is_gone or channel.exchange != 0, self._flush_due)
        finally:
            self._pipes.abandon()

    def _flush_due(self) -> None:
        if self._is_gone:
            raise Gone
        super()._flush_due()

    def _send(self, frame: bytes) -> None:
        if os.getpid() == self._pid and not self._is_gone:
            try:
                self._socket.sendall(frame)
            except OSError:
                self._is_gone = True  # the reader does the rest

    def _die(self, error: BaseException) -> None:
        self._detach()

    def _detach(self) -> None:
        """Leaves the kernel after the host has left: stops the running code, and removes everything of ours."""
        if self._is_left:
            return
        self._is_left = self._is_gone = True
        self._channel.give(1 << 62)  # nobody waits for room any more
        self._requests.put(None)  # the main thread may wait for a request
        bridge = self._bridge
        deadline = monotonic() + _LEAVING_SECONDS
        while bridge.is_in and monotonic() < deadline:
            bridge.interrupt(self._channel.exchange, "interrupt")
            with suppress(Empty):
                self._left.get(timeout=REPEAT_SECONDS)
        self._socket.close()
        self._runtime.namespace.withdraw()
        self._pipes.wake()
        _guests.pop(self._token, None)


def attach(path: str, token: str, epoch: int) -> None:
    """Connects this kernel to the host that listens at `path`. Call it on the main thread."""
    handler = _get_handler(_signal.SIGINT)
    _set_handler(_signal.SIGINT, _signal.SIG_IGN)  # an interrupt of others would leave half a guest
    try:
        if token not in _guests:  # if it was interrupted at its very end, the host asks again
            _attach(path, token, epoch)
    finally:
        if handler is not None:
            _set_handler(_signal.SIGINT, handler)


def _attach(path: str, token: str, epoch: int) -> None:
    shell = None
    ipython = sys.modules.get("IPython")
    if ipython is not None:
        shell = ipython.get_ipython()
    socket = Socket(AF_UNIX, SOCK_STREAM)
    try:
        socket.settimeout(_CONNECT_SECONDS)
        socket.connect(path)
        socket.sendall(token.encode())
        socket.settimeout(None)
    except BaseException:
        socket.close()
        raise
    _guests[token] = guest = KernelGuest(token, socket, epoch, shell)
    _listen()
    guest.begin()


def turn(token: str) -> None:
    """Runs a turn. Raises LookupError when the host has left."""
    _guests[token].turn()


def inspect(token: str) -> str:
    """See `KernelGuest.inspect`."""
    return _guests[token].inspect()


def _listen() -> None:
    """Hears of child processes, and of copies of this process. Hooks cannot be removed, so this is done once."""
    if not _hooks:
        _hooks.append(True)
        os.register_at_fork(after_in_child=_become_copy)
        sys.addaudithook(_hear)


_hooks: list[bool] = []


def _hear(event: str, _args: object) -> None:
    if _at_work and event in _CHILD_EVENTS:
        for guest in _at_work:
            guest._output.catch_up = guest._pipes.drain


def _become_copy() -> None:
    for guest in _at_work:
        guest._become_copy()
    for guest in list(_guests.values()):
        if guest not in _at_work:
            guest._socket.close()
    _guests.clear()
