"""The current exchange of a native guest: its clock, its waits and its end, as a `Bridge`.

The reader thread begins an exchange, ends its waits, and stops it. The waiting thread, or the main thread, then hears
of it.

C code may hold the interpreter's lock for long, so that no other thread of Python can run. But some C code checks for
signals, such as regular expressions. So while the process computes, a timer of the system interrupts the main thread
every `BREATH_SECONDS`. The main thread then does the work of the threads that could not run.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
from _thread import RLock, allocate_lock, get_ident
from os import getppid
from time import monotonic
from time import sleep as clock_sleep
from typing import TYPE_CHECKING, Any

from sandglass.native.host_loop import HostLoop
from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)
from sandglass.runtime.user_code import in_user_code

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from types import FrameType

    from sandglass.native.channel import Channel
    from sandglass.native.recorder import Recorder
    from sandglass.runtime.bridge import Answer
    from sandglass.runtime.wire import Encoding, HostReplyRequest, StopReason

#: The pause between two interrupts. Python may swallow one, so they repeat until the host's grace period is over.
REPEAT_SECONDS = 0.2
#: The time after which all waits end, although the main thread has not heard of the stop.
DEAF_SECONDS = 0.6
#: The time after which a signal is repeated that came while code of the runtime's ran, and so had no effect.
RETRY_SECONDS = 0.002
BREATH_SECONDS = 0.05
#: The interval at which an idle event loop checks whether a thread is left that could wake it.
LOOK_SECONDS = 0.25
#: The time for which the main thread lets the reader run, to take what has arrived.
_BREATH_LENGTH_SECONDS = 0.002
_FOREVER = float("inf")
#: The answer to a thread that waits when the exchange is stopped.
STOPPING = "the execution is being stopped"
_SIGINT, _SIGVTALRM = _signal.SIGINT, _signal.SIGVTALRM
_CPU_TIMER, _set_timer = _signal.ITIMER_VIRTUAL, _signal.setitimer
_signal_thread, _set_handler, _mask = _signal.pthread_kill, _signal.signal, _signal.pthread_sigmask
_alarm, _UNBLOCK, _raise_interrupt = _signal.alarm, _signal.SIG_UNBLOCK, _signal.default_int_handler


class Wait:
    """A thread that waits for answers of host calls, or for time to pass."""

    __slots__ = ("answers", "left", "lock", "thread")

    def __init__(self, calls: int) -> None:
        self.left = calls
        self.answers: list[Answer] = [("error", "none", "")] * calls
        self.thread = get_ident()
        self.lock = allocate_lock()
        self.lock.acquire()

    def end(self) -> None:
        """Lets the thread go on."""
        if self.lock.locked():
            self.lock.release()


class NativeBridge:
    """The current exchange: its clock, its waits and its end."""

    loop = HostLoop

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._main = get_ident()
        self._lock = RLock()  # held for a moment only
        self._waits: set[Wait] = set()
        self._calls: dict[int, tuple[Wait, int]] = {}
        self._last_call = 0
        self._deadline = _FOREVER
        self._timeout = _FOREVER
        self._paused_at: float | None = None
        self._next_look = _FOREVER
        self.output = channel.output
        #: Returns true when the host has sent something that the reader has not taken.
        self.has_mail: Callable[[], bool] = bool
        #: Sends output that has waited for long enough.
        self.flush_due: Callable[[], None] = lambda: None
        #: The reason why the exchange has to stop; None while it need not.
        self.stopping: StopReason | None = None
        self._stopping_since = 0.0
        self._unheard = False
        self._wakes = 0  # the number of calls of `wake`, and below the number that each thread has seen
        self._seen_wakes: dict[int, int] = {}
        self._loop_waits: set[Wait] = set()
        #: Returns true when a thread is a leftover of an earlier execution, which has no part in this one.
        self.is_leftover: Callable[[int], bool] = _nobody
        #: Returns true when there are threads of user code.
        self.has_others: Callable[[], bool] = bool
        #: True when user code has made a thread that may not run yet. `has_others` would miss this thread.
        self.has_new_thread = False
        #: True when this process is a copy that user code made (`os.fork`).
        self.is_copy = False
        #: The recorder of executions, in a sandbox that keeps journals.
        self.recorder: Recorder | None = None

    # ---- Bridge ----

    def display(self, mime: str, data: bytes, is_result: bool) -> None:
        if not self.is_leftover(get_ident()):
            self._channel.display(mime, data, is_result)

    def host_call(self, name: str, calls: list[tuple[Encoding, str | bytes]]) -> list[Answer]:
        channel, wait, recorder = self._channel, Wait(len(calls)), self.recorder
        try:
            with channel.lock:  # call numbers have to arrive in order
                with self._lock:
                    exchange = self._begin_wait(wait)
                    first = self._last_call + 1
                    self._last_call += len(calls)
                    if not self._calls:
                        self._paused_at = self._channel.now()
                    self._calls.update((first + index, (wait, index)) for index in range(len(calls)))
                if recorder is not None:  # a call that may not be made has no notes
                    recorder.calls(len(calls))
                    notes = recorder.take()
                    if notes:
                        channel.noted(exchange, notes)
                channel.calls(exchange, first, name, calls)
            wait.lock.acquire()
        finally:
            with self._lock:
                self._waits.discard(wait)
                self._forget(wait)
        self._check(wait)
        return wait.answers

    def sleep(self, seconds: float | None) -> None:
        if self.is_copy:
            return clock_sleep(_FOREVER if seconds is None else seconds)
        if self._channel.now is not monotonic:  # ahead: waits at the gate, so that the sleep begins at promotion
            getppid()
        recorder = self.recorder
        if recorder is not None and get_ident() == self._main:
            if recorder.has_slept():
                return None
            self._sleep(seconds, False)
            recorder.slept()
            return None
        self._sleep(seconds, False)
        return None

    def _sleep(self, seconds: float | None, can_be_woken: bool) -> None:
        wait = Wait(1)
        try:
            with self._lock:
                self._begin_wait(wait)
                if can_be_woken:
                    self._loop_waits.add(wait)
                    if self._seen_wakes.get(wait.thread, 0) != self._wakes:
                        wait.end()
            self._channel.flush()
            wait.lock.acquire(True, -1 if seconds is None else seconds)
        finally:
            with self._lock:
                self._waits.discard(wait)
                if can_be_woken:
                    self._loop_waits.discard(wait)
                    self._seen_wakes[wait.thread] = self._wakes
        self._check(wait)

    def wake(self) -> None:
        """Lets an event loop look for new work."""
        with self._lock:
            self._wakes += 1
            for wait in self._loop_waits:
                wait.end()

    def may_wake(self) -> bool:
        """Returns true when user code has threads, or had one that called `wake`."""
        is_new, self.has_new_thread = self.has_new_thread, False  # the thread begins during the loop's next wait
        return is_new or self.has_others() or self._seen_wakes.get(get_ident(), 0) != self._wakes

    def wait(self, seconds: float | None) -> None:
        """Sleeps until `wake`, or for `seconds`."""
        if self.is_copy:
            return clock_sleep(_FOREVER if seconds is None else seconds)
        if self.recorder is not None:
            self.recorder.waits()
        self._sleep(LOOK_SECONDS if seconds is None else seconds, True)  # the thread that would wake it may have ended
        return None

    def end_waits(self, threads: Collection[int]) -> None:
        """Ends the waits of these threads."""
        with self._lock:
            for wait in self._waits:
                if wait.thread in threads:
                    wait.end()

    def _begin_wait(self, wait: Wait) -> int:
        exchange = self._channel.exchange
        if not exchange or self.is_copy or self.is_leftover(wait.thread):
            raise RuntimeError(
                "this process is a copy (os.fork) of the sandbox's: it cannot call the host"
                if self.is_copy
                else "this thread is a leftover of an earlier execution: it cannot wait, or call the host"
            )
        if self.stopping:
            raise self._interrupted()
        self._waits.add(wait)
        return exchange

    def _check(self, wait: Wait) -> None:
        if self.is_leftover(wait.thread):
            raise SystemExit
        if self.stopping:
            raise self._interrupted()

    def _interrupted(self) -> BaseException:
        if get_ident() != self._main:
            return SystemExit(STOPPING)
        self._next_look = monotonic() + REPEAT_SECONDS  # leaves time to clean up
        return KeyboardInterrupt()

    def _forget(self, wait: Wait) -> None:
        for number in [number for number, (called, _) in self._calls.items() if called is wait]:
            del self._calls[number]
        if not self._calls:
            self._resume()

    def _resume(self) -> None:
        """Lets the clock go on, since no call is pending."""
        if self._paused_at is not None:
            self._deadline += monotonic() - self._paused_at
            self._paused_at = None

    # ---- for the reader ----

    def begin(self, exchange: int, timeout_ms: float) -> None:
        """Begins an exchange."""
        with self._lock:
            self.stopping = None
            self.has_new_thread = False
            self._calls.clear()
            self._seen_wakes.clear()
            self._wakes = 0
            self._paused_at = None
            self._timeout = timeout_ms / 1000
            self._next_look = self._deadline = monotonic() + self._timeout
            self._channel.begin(exchange)

    def reply(self, reply: HostReplyRequest, body: Any) -> None:
        """Takes the host's answer to a call."""
        with self._lock:
            wait, index = self._calls.pop(reply["call"], (None, 0))
            if wait is None:
                return
            status = reply["status"]
            wait.answers[index] = (status, reply["encoding"], body if status == "ok" else reply.get("message") or "")
            wait.left -= 1
            if not self._calls:
                self._resume()
            if not wait.left:
                wait.end()

    def interrupt(self, exchange: int, reason: StopReason) -> None:
        """Stops the exchange for the host."""
        with self._lock:
            if exchange == self._channel.exchange:
                self._stop(reason)

    def tick(self) -> float:
        """Does the work that is due. Returns the seconds until more may be due; -1 when nothing will be."""
        with self._lock:
            if not self._channel.exchange:
                return -1
            now = monotonic()
            if self.stopping:
                if now >= self._next_look:
                    self._stop(self.stopping)
                return max(self._next_look - now, RETRY_SECONDS)
            if self._paused_at is not None:
                return -1  # the host's answer wakes the reader
            if now >= self._deadline:
                self._stop("timeout")
                return RETRY_SECONDS
            return self._deadline - now

    def _stop(self, reason: StopReason) -> None:
        now = monotonic()
        if not self.stopping:
            self.stopping, self._stopping_since = reason, now
        # The main thread hears of it first. Otherwise the SystemExit of a thread that it waits for would end the cell.
        if any(wait.thread == self._main for wait in self._waits):
            return self._end_all_waits()
        if now >= self._stopping_since + DEAF_SECONDS:
            self._end_all_waits()
        self._next_look = now + RETRY_SECONDS
        _signal_thread(self._main, _SIGINT)
        return None

    def _end_all_waits(self) -> None:
        with self._lock:  # a signal's handler comes without it, and a wait cannot be ended by two threads at once
            for wait in self._waits:
                wait.end()

    def asked_for(self) -> None:
        """Promotes the running code: the host waits for it now, and its time limit begins."""
        with self._lock:
            if not self._channel.exchange:
                return
            now = monotonic()
            self._next_look = self._deadline = now + self._timeout
            if self._paused_at is not None:
                self._paused_at = now
            _set_timer(_CPU_TIMER, BREATH_SECONDS, BREATH_SECONDS)

    def become_copy(self) -> None:
        """Notes that this process is a copy made by user code."""
        self.is_copy = True
        self._lock = RLock()
        _set_handler(_SIGINT, _raise_interrupt)

    # ---- for the main thread ----

    def rest(self) -> None:
        """Stops the timer, so that no signal comes between two exchanges."""
        _set_timer(_CPU_TIMER, 0)

    def end(self) -> StopReason | None:
        """Ends the waits before the exchange's end. Returns the reason why it had to stop, if any."""
        _set_timer(_CPU_TIMER, 0)
        _alarm(0)  # an alarm that a cell has set would end a later one
        with self._lock:
            reason, self.stopping = self.stopping, None
            self._unheard = False
            self._deadline = self._next_look = _FOREVER
            self._end_all_waits()
            return reason

    def watch(self, clock: bool = True) -> None:
        """Handles the signals, whatever user code did to them. Without `clock`, the timer stays off."""
        _set_handler(_SIGINT, self._on_interrupt)
        _set_handler(_SIGVTALRM, self._breathe)
        _mask(_UNBLOCK, (_SIGINT, _SIGVTALRM))
        _set_timer(_CPU_TIMER, *(BREATH_SECONDS if clock else 0.0,) * 2)

    def _breathe(self, _number: int, frame: FrameType | None) -> None:
        if not self._channel.exchange or self.is_copy or not in_user_code(frame):
            return
        self.flush_due()
        if self.has_mail():
            clock_sleep(_BREATH_LENGTH_SECONDS)
        now = monotonic()
        due = self._next_look if self.stopping else self._deadline
        if (now >= due and (self.stopping or self._paused_at is None)) or (self.stopping and self._unheard):
            self._unheard = False
            self.stopping = self.stopping or "timeout"
            self._next_look = now + REPEAT_SECONDS
            self._end_all_waits()
            raise KeyboardInterrupt

    def _on_interrupt(self, _number: int, frame: FrameType | None) -> None:
        if self._channel.exchange and in_user_code(frame):
            self._next_look = monotonic() + REPEAT_SECONDS
            self._end_all_waits()
            raise KeyboardInterrupt
        # For instance inside of `_breathe`: where C holds the GIL, the reader can send it nowhere else.
        self._unheard = True


def _nobody(_ident: int) -> bool:
    return False
