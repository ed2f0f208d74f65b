"""A guest in a Jupyter kernel: the native one, as a lodger in an interpreter that belongs to others as well.

The host has the kernel import this package under a name of its own and `attach`, which connects back to the host's
private socket. All of the protocol runs there. What needs the main thread runs in a `turn`, which the host has the
kernel execute like any front end's cell; so between turns the kernel is everybody's, and a turn gives back at its end
whatever it has taken over. Threads and processes that a cell leaves behind go on, as in any notebook.
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

#: Time that the host has to take a connection, and to send what it has the kernel run a turn for.
_CONNECT_SECONDS = 10
_REQUEST_SECONDS = 5
#: For how long code that runs when the host leaves is asked to stop.
_LEAVING_SECONDS = 5
_SIGNALS = (_signal.SIGINT, _signal.SIGVTALRM)
_set_handler, _get_handler = _signal.signal, _signal.getsignal
_BLOCK, _mask = _signal.SIG_BLOCK, _signal.pthread_sigmask
#: Names that IPython keeps among the user's: what was typed and shown.
_is_history = pattern(r"_i{0,3}|_{2,3}|_i?\d+|_[iod]h|_exit_code|In|Out").fullmatch
_MAX_TEXT_CHARS = 500
#: Of a list of variables; the host takes no more than twice as much, and in a message as hexadecimal digits.
_MAX_LIST_BYTES = 2 << 20
_CPU_TIMER, _set_timer = _signal.ITIMER_VIRTUAL, _signal.setitimer
_guests: dict[str, KernelGuest] = {}
_at_work: list[KernelGuest] = []
_current_frames = sys._current_frames


class Gone(Exception):
    """The host has left."""


class KernelBridge(NativeBridge):
    """Signals the main thread in a turn only: between turns it runs others' code."""

    def __init__(self, channel: Channel) -> None:
        super().__init__(channel)
        #: True when the main thread is in a turn.
        self.is_in = False

    def enter(self) -> bool:
        """The main thread begins the turn; whether it is to be stopped already."""
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
        """Another front end's, too, which is not repeated: in code of ours, such as a wait, it stops the turn."""
        with self._lock:
            if self.is_in and self.stopping is None and self._channel.exchange and not in_user_code(frame):
                self._stop("interrupt")
                return
        super()._on_interrupt(number, frame)


class Others:
    """The activity in the kernel besides the turn. In the place of `Leftovers`: nothing here is ours to end."""

    any_threads = False

    def __init__(self) -> None:
        self._before: set[int] = set()

    def begin(self) -> None:
        """A turn begins: threads that there are now are not its own."""
        self._before = set(_current_frames())

    def has_others(self) -> bool:
        """Returns true when there are threads that the turn has started."""
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
        self._is_gone = False  # the host
        self._is_left = False  # the kernel, by us
        self._saved: list[tuple[int, int]] = []
        self._handlers: list[Any] = []
        self._left: SimpleQueue[None] = SimpleQueue()
        bridge, runtime = self._bridge, self._runtime
        others = Others()
        self._leftovers: Any = others
        bridge.is_leftover, bridge.has_others = others.is_leftover, others.has_others
        runtime.end_leftovers = others.end
        runtime.sleep_in_thread = clock_sleep  # threads may be others'
        runtime.is_lodger = True
        if shell is not None:
            runtime.translate = shell.transform_cell

    def _make_bridge(self, channel: Channel) -> NativeBridge:
        return KernelBridge(channel)

    def begin(self) -> None:
        """Lets the host's requests in."""
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
        """Answers the next request. In the kernel's main thread."""
        # First: from now on, an interrupt is for the user's code, and nothing of ours is torn by one.
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
                            request["code"] = "raise KeyboardInterrupt"  # it was to stop before it began
                        with outer_loop_suspended():  # the kernel's own, which runs the turn
                            self._handle(request, bodies)
                    finally:
                        self._bridge.leave()
                        self._leave()
        finally:
            _set_timer(_CPU_TIMER, 0)  # whatever was raised: to others its signal may be the end
            if self._is_gone:
                self._runtime.namespace.withdraw()  # the end of a cell puts reserved names back
                self._left.put(None)
            # The interrupt last: others' may come at once, and tear what follows.
            for number, handler in reversed(list(zip(_SIGNALS, self._handlers, strict=True))):
                if handler is not None:  # what C code has set cannot be put back from here
                    _set_handler(number, handler)

    def _enter(self) -> None:
        self._leftovers.begin()
        for fd in (1, 2):
            with suppress(OSError):
                self._saved.append((fd, fcntl(fd, F_DUPFD_CLOEXEC, 100)))
        self._pipes.repair()
        self._runtime.enter()
        self._runtime.namespace.lodge()  # another lodger, or a front end, may have taken names of ours
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
        """The method that IPython's `display` calls, for one."""
        if isinstance(data, dict):
            self._runtime.show_bundle(data)

    def inspect(self) -> str:
        """The user's variables, as hexadecimal digits of JSON: from any thread, while a turn is under way or not."""
        namespace = self._runtime.namespace
        rows, size = [], 0
        for row in namespace.listing():
            value = namespace.globals.get(row["name"], MISSING)
            # The repr of anything else may run the user's code, or take for ever.
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
        try:
            super()._drain_pipes()
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
                self._is_gone = True  # the reader sees to the rest

    def _die(self, error: BaseException) -> None:
        self._detach()

    def _detach(self) -> None:
        """The host has left: what runs is to stop, and nothing of ours stays behind."""
        if self._is_left:
            return
        self._is_left = self._is_gone = True
        self._channel.give(1 << 62)  # nobody waits for room any more
        self._requests.put(None)  # the main thread may wait for one
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
    """Connects this kernel to the host that listens at `path`. In the main thread."""
    handler = _get_handler(_signal.SIGINT)
    _set_handler(_signal.SIGINT, _signal.SIG_IGN)  # others' would leave half of a guest
    try:
        if token not in _guests:  # interrupted when it was done, it is asked for again
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
    """Runs a turn. LookupError when the host has left."""
    _guests[token].turn()


def inspect(token: str) -> str:
    """See `KernelGuest.inspect`."""
    return _guests[token].inspect()


def _listen() -> None:
    """Hears of child processes, and of copies of this one. It cannot be undone, and so is done once."""
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
