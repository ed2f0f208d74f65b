"""Notes what clocks and chance answer to an execution, and gives the noted answers to a later run of it.

The notes have the form of `recorder.js`, with kinds of their own: each is its kind (one byte), the length of its
content (four bytes), and its content. A run gets the notes of earlier runs first, in their order. Code that asks for
something else than the next note has takes another way than the earlier run. From the end of the notes on, the world
itself answers, and the answers are noted.

Code sees the world through functions of Python, which `Recorder.install` replaces before any user code runs. What
cannot be noted, such as a process or a socket, ends the record: Python's audit events tell of it.
"""

# Decisions: docs/internals/saving-and-restoring.md.

from __future__ import annotations

import _posixsubprocess
import _thread
import _uuid  # type: ignore[import-not-found]
import datetime
import os
import posix
import random
import signal
import sys
import time
from _thread import get_ident
from functools import update_wrapper, wraps
from gc import get_referents
from importlib import import_module
from os import environ, getcwd
from struct import Struct
from typing import TYPE_CHECKING, Any

from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)

try:
    import _ssl
except ImportError:  # a Python may be built without OpenSSL
    _ssl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from sandglass.native.channel import Channel

#: The most bytes of notes of an execution.
MAX_NOTED = 1 << 20
_HEAD = Struct("<BI")
_NUMBER, _COUNT = Struct("<q"), Struct("<I")
_FLOAT = Struct("<d")
#: The state of a generator: 624 words and a place, whether it holds a number of a normal distribution, and that number.
_GENERATOR = Struct("<625I?d")
#: The kinds of notes, and what code does then. The numbers are those of `recorder.js` where the meaning is the same.
_KINDS = {
    "clock": (3, "reads a clock"),
    "random": (4, "draws random bytes"),
    "slept": (6, "sleeps"),
    "calls": (7, "calls the host"),
    "generator": (8, "begins with random numbers"),
    "process": (9, "asks for the number of a process"),
    "modules": (10, "begins with other modules"),
}
_NAMES = dict(_KINDS.values())
#: Functions of `time` without arguments. Each returns a float, or an int.
_FLOAT_CLOCKS = ("time", "monotonic", "perf_counter", "process_time", "thread_time")
#: Functions of `time` whose last argument is a time, by default the present one, and the number of arguments with it.
_OF_NOW = {"localtime": 1, "gmtime": 1, "ctime": 1, "asctime": 1, "strftime": 2}
_PROCESSES = frozenset(
    ("os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "pty.spawn", "subprocess.Popen")
)
#: The reason for which an execution with threads cannot be repeated.
THREAD = "it started a thread"
_PROCESS = "it started a process"
_NETWORK = frozenset(
    f"socket.{what}"
    for what in (
        "bind",
        "connect",
        "getaddrinfo",
        "gethostbyaddr",
        "gethostbyname",
        "gethostname",
        "getnameinfo",
        "sendmsg",
        "sendto",
    )
)
_CHANCE = ("/dev/random", "/dev/urandom")
_OUTSIDE = ("/dev/", "/proc/", "/sys/")
#: Bytes that seed a generator of random numbers.
_SEED_BYTES = 32
_clock_ns, _draw, _pause = time.time_ns, os.urandom, time.sleep


class _Replacement:
    """A function in the place of one of C. Like that one, it binds no object as an attribute of a class."""

    __module__: str
    __qualname__: str
    __wrapped__: Callable[..., Any]

    def __init__(self, original: Callable[..., Any], by: Callable[..., Any]) -> None:
        update_wrapper(self, original)
        self._by = by

    def __call__(self, /, *args: Any, **options: Any) -> Any:
        return self._by(*args, **options)

    def __repr__(self) -> str:
        return repr(self.__wrapped__)

    def __reduce__(self) -> str:
        return self.__qualname__


class Recorder:
    """The record of the execution that runs, if there is one. One per guest."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._main = get_ident()
        self._noted: memoryview = memoryview(b"")
        self._at = self._total = 0
        self._fresh = bytearray()
        self._is_on = self._explores = False
        self._cwd, self._environ = "", {}  # type: str, dict[str, str]
        self._own_modules: frozenset[str] = frozenset()

    # ---- one execution ----

    def begin(self, bodies: Sequence[bytes], explores: bool = False) -> None:
        """Begins to record an execution. `bodies`: the notes of earlier runs, if there are any.

        `explores`: the code goes on when it takes another way than the notes.
        """
        self._explores = explores
        noted = bytes(bodies[0]) if bodies else b""
        self._noted, self._at, self._total = memoryview(noted), 0, len(noted)
        self._fresh.clear()
        self._is_on = True
        try:
            self._begin()
        except Exception as error:  # code may have removed the working folder, or replaced anything of Python's
            self.end(f"the record could not begin: {type(error).__name__[:100]}")

    def _begin(self) -> None:
        if getcwd() != self._cwd:
            self.end("it began in another folder than the working folder, which no state holds")
        elif dict(environ) != self._environ:
            self.end("environment variables were changed before it, which no state holds")
        elif sys.modules.get("random") is not random:
            self.end("the module random was replaced before it")
        self._import_others()
        self._generator(random.getstate, random.setstate)
        is_noted = self._at < len(self._noted)
        if self._noted[self._at] == _KINDS["generator"][0] if is_noted else "numpy.random" in sys.modules:
            self._numpy_generator(sys.modules.get("numpy.random"))

    def end(self, why: str) -> None:
        """Notes that the execution cannot be repeated."""
        if not self._is_on:
            return
        if self._at < len(self._noted):
            self._differ(why)
            return
        self._is_on = False
        self._fresh.clear()
        self._channel.post({"type": "unnoted", "exchange": self._channel.exchange, "why": why})

    def take(self) -> bytes:
        """Takes the notes since the last time."""
        taken = bytes(self._fresh)
        self._fresh.clear()
        return taken

    def finish(self) -> None:
        """Ends the run, and sends its last notes. Code that has not used all earlier ones has taken another way."""
        if self._is_on and self._at < len(self._noted):
            does = _NAMES.get(self._noted[self._at], "goes on")
            self._differ(f"the code ended where it {does} in the journal")
        self._is_on = False
        notes = self.take()
        if notes:
            self._channel.noted(self._channel.exchange, notes)

    def finish_before(self, work: Callable[[], Iterable[str]]) -> Callable[[], Iterable[str]]:
        """Returns a function that ends the run, and then does other work of the runtime's."""

        def finish() -> Iterable[str]:
            self.finish()
            return work()

        return finish

    def calls(self, count: int) -> None:
        """Notes that Python makes so many calls."""
        if not self._is_on:
            return
        content = self._next("calls")
        if content is None:
            self._add("calls", _COUNT.pack(count))
        elif content != _COUNT.pack(count):
            its = _COUNT.unpack(content)[0] if len(content) == _COUNT.size else 0
            self._differ(f"the code makes {count} calls at once where the journal has {its}")

    def has_slept(self) -> bool:
        """Returns true if the code has slept in the earlier run."""
        return self._is_on and self._next("slept") is not None

    def slept(self) -> None:
        """Notes the end of a sleep."""
        if self._is_on:
            self._add("slept", b"")

    def waits(self) -> None:
        """Hears that an event loop waits."""
        if self._is_on:
            self.end("it waited in an event loop, whose order no journal holds")

    def _hear(self, event: str, args: Any) -> None:
        """Hears an audit event."""
        if not self._is_on:
            return
        if event == "open":
            path = args[0]
            if isinstance(path, bytes):
                path = os.fsdecode(path)
            if isinstance(path, str) and path.startswith(_OUTSIDE) and path != os.devnull:
                self.end("it read a random device" if path in _CHANCE else f"it opened {path[:100]}")
        elif event in _PROCESSES:
            self.end(_PROCESS)
        elif event in _NETWORK:
            self.end("it used the network")
        elif event == "ctypes.dlopen" and args and args[0] is not None:
            self.end("it loaded code with ctypes")

    def _differ(self, what: str) -> None:
        """Tells of another way than the journal's. Returns only if the code may go on. Else the host ends the guest."""
        self._is_on = False
        self._channel.post({"type": "differs", "exchange": self._channel.exchange, "what": what})
        while not self._explores:
            _pause(1)

    def _add(self, kind: str, content: bytes) -> None:
        if not self._is_on:
            return
        self._total += _HEAD.size + len(content)
        if self._total > MAX_NOTED:
            self.end("it asked for the time, or for random numbers, too often")
            return
        self._fresh += _HEAD.pack(_KINDS[kind][0], len(content))
        self._fresh += content

    def _next(self, kind: str, length: int | None = None) -> bytes | None:
        """Takes the next note's content; None where the notes end."""
        noted, at = self._noted, self._at
        if not self._is_on or at >= len(noted):
            return None
        number, does = _KINDS[kind]
        its, size = _HEAD.unpack_from(noted, at) if at + _HEAD.size <= len(noted) else (0, 0)
        end = at + _HEAD.size + size
        if its not in _NAMES or end > len(noted):
            what = "the journal is damaged"
        elif its != number:
            what = f"the code {does} where it {_NAMES[its]} in the journal"
        elif length is not None and size != length:
            what = f"the code {does} ({length}) where the journal has {size}"
        else:
            self._at = end
            return bytes(noted[end - size : end])
        self._differ(what)
        return None

    def _answer(self, kind: str, form: Struct, ask: Callable[[], Any]) -> Any:
        """Returns the noted number, or notes the one that `ask` returns."""
        content = self._next(kind, form.size)
        if content is not None:
            return form.unpack(content)[0]
        value = ask()
        self._add(kind, form.pack(value))
        return value

    def _bytes(self, size: int) -> bytes:
        """Returns noted random bytes, or notes those that are drawn now."""
        content = self._next("random", size)
        if content is not None:
            return content
        drawn = _draw(size)
        self._add("random", drawn)
        return drawn

    def _import_others(self) -> None:
        """Imports what was imported when the execution first began: an import may draw random bytes.

        A state has only the modules that variables name. Those of the working folder are left out: they are user code.
        """
        content = self._next("modules")
        if content is None:
            self._add("modules", "\n".join(filter(self._is_other, list(sys.modules))).encode())
            return
        self._is_on = False  # the imports are no part of the execution
        for name in content.decode(errors="replace").split("\n"):
            if name and name not in sys.modules:
                try:
                    import_module(name)
                except Exception:  # code has made it, or its import depends on something else
                    continue
        self._is_on = True

    def _is_other(self, name: str) -> bool:
        if name in self._own_modules or name.partition(".")[0] == "sandglass":
            return False
        origin = getattr(getattr(sys.modules.get(name), "__spec__", None), "origin", None)
        return isinstance(origin, str) and not origin.startswith(f"{self._cwd}/")

    def _generator(self, get: Callable[[], Any], put: Callable[[Any], None]) -> None:
        """Gives the module `random` the state that it had when the execution first began.

        A portable state has it only if it was used.
        """
        content = self._next("generator", _GENERATOR.size)
        if content is not None:
            *words, has_next, number = _GENERATOR.unpack(content)
            put((3, tuple(words), number if has_next else None))
        elif self._is_on:
            _version, words, number = get()
            self._add("generator", _GENERATOR.pack(*words, number is not None, number or 0.0))

    def _numpy_generator(self, numbers: Any) -> None:
        """The same for the generator of `numpy.random`, if it is the common one."""

        def get() -> Any:
            name, words, at, has_next, number = numbers.get_state()
            if name != "MT19937":
                self.end("numpy.random has another generator")
            return 3, [*map(int, words), at], number if has_next else None

        def put(state: Any) -> None:
            _version, words, number = state
            numbers.set_state(("MT19937", words[:-1], words[-1], int(number is not None), number or 0.0))

        try:
            self._generator(get, put)
        except Exception:  # code may have replaced anything of it
            self.end("the state of numpy.random cannot be read")

    # ---- the functions by which code sees the world ----

    def install(self) -> None:
        """Replaces the functions by which code asks for times and chance, in all modules, and hears audit events.

        Call before any user code.
        """
        self._cwd, self._environ = getcwd(), dict(environ)
        self._own_modules = frozenset(sys.modules)
        replaced: dict[int, tuple[Any, Any]] = {}

        def replace(module: Any, name: str, by: Callable[[Any], Any]) -> None:
            original = getattr(module, name, None)
            if original is not None:
                replaced[id(original)] = original, _Replacement(original, by(original))

        for name in _FLOAT_CLOCKS:
            replace(time, name, self._clock(_FLOAT))
            replace(time, f"{name}_ns", self._clock(_NUMBER))
        replace(time, "clock_gettime", self._clock(_FLOAT))
        replace(time, "clock_gettime_ns", self._clock(_NUMBER))
        for name, arguments in _OF_NOW.items():
            replace(time, name, self._of_now(arguments))
        replace(posix, "urandom", self._urandom)
        replace(posix, "getrandom", self._getrandom)
        replace(_ssl, "RAND_bytes", self._urandom)
        replace(_ssl, "RAND_pseudo_bytes", self.ending("it asked OpenSSL for pseudo-random bytes"))
        for name in ("getpid", "getppid"):
            replace(posix, name, self._process)
        for name in ("start_new_thread", "start_joinable_thread"):
            replace(_thread, name, self.ending(THREAD))
        replace(
            _posixsubprocess, "fork_exec", self.ending(_PROCESS)
        )  # `multiprocessing` calls it without an audit event
        replace(posix, "times", self.ending("it asked for the times of the process"))
        replace(_uuid, "generate_time_safe", self.ending("it asked the system for a UUID"))
        for name in ("alarm", "setitimer"):
            replace(signal, name, self.ending("it set an alarm"))
        for module in list(sys.modules.values()):
            if getattr(module, "__name__", "sandglass").partition(".")[0] == "sandglass":
                continue  # the runtime's own looks at the clock are no part of an execution
            for name, value in list(getattr(module, "__dict__", {}).items()):
                found = replaced.get(id(value))
                if found is not None and found[0] is value:
                    module.__dict__[name] = found[1]
        self._replace_seed()
        self._replace_now()
        sys.addaudithook(self._hear)

    def _is_asked(self) -> bool:
        """Returns true if the code of the recorded execution asks. Its threads end the record when they begin."""
        return self._is_on and get_ident() == self._main

    def _clock(self, form: Struct) -> Callable[[Any], Any]:
        def by(original: Any) -> Any:
            def ask(*args: Any) -> Any:
                if not self._is_asked():
                    return original(*args)
                return self._answer("clock", form, lambda: original(*args))

            return ask

        return by

    def _of_now(self, arguments: int) -> Callable[[Any], Any]:
        def by(original: Any) -> Any:
            def ask(*args: Any) -> Any:
                if self._is_asked() and args[arguments - 1 : arguments] in ((), (None,)) and len(args) >= arguments - 1:
                    now = self._answer("clock", _NUMBER, _clock_ns) // 1_000_000_000
                    if original in (_asctime, _strftime):
                        now = _localtime(now)
                    args = (*args[: arguments - 1], now)
                return original(*args)

            return ask

        return by

    def _urandom(self, original: Any) -> Any:
        def urandom(size: int, /) -> bytes:
            return self._bytes(size) if self._is_asked() and size >= 0 else original(size)

        return urandom

    def _getrandom(self, original: Any) -> Any:
        def getrandom(size: int, flags: int = 0) -> bytes:
            return self._bytes(size) if self._is_asked() and size >= 0 else original(size, flags)

        return getrandom

    def _process(self, original: Any) -> Any:
        def ask() -> Any:
            return self._answer("process", _NUMBER, original) if self._is_asked() else original()

        return ask

    def ending(self, why: str) -> Callable[[Any], Any]:
        """Returns what makes of a function one that also ends the record."""

        def by(original: Any) -> Any:
            def end(*args: Any, **options: Any) -> Any:
                if self._is_asked():
                    self.end(why)
                return original(*args, **options)

            return end

        return by

    def _replace_seed(self) -> None:
        """Seeds generators with noted bytes where C would ask the system for a seed."""
        seed = random.Random.seed

        @wraps(seed)
        def seed_noted(generator: random.Random, a: Any = None, version: int = 2) -> None:
            if a is None and self._is_asked():
                a = int.from_bytes(self._bytes(_SEED_BYTES), "little")
            seed(generator, a, version)

        random.Random.seed = seed_noted  # type: ignore[method-assign, assignment]
        random.seed = random._inst.seed

    def _replace_now(self) -> None:
        """Replaces `datetime.now` and `utcnow`, in the class itself: code may hold the class since long before.

        `today` and `date.today` ask `time.time`.
        """
        from ctypes import py_object, pythonapi

        kind = datetime.datetime
        own = get_referents(kind.__dict__)[0]
        now, utcnow, utc = own["now"], own["utcnow"], datetime.UTC

        def moment() -> int:
            return int(self._answer("clock", _NUMBER, _clock_ns)) // 1000

        def at(cls: Any, micros: int, zone: Any) -> Any:
            seconds, rest = divmod(micros, 1_000_000)
            return cls.fromtimestamp(seconds, zone).replace(microsecond=rest)

        @wraps(kind.now)
        def now_noted(cls: Any, tz: Any = None) -> Any:
            return at(cls, moment(), tz) if self._is_asked() else now.__get__(None, cls)(tz)

        @wraps(kind.utcnow)
        def utcnow_noted(cls: Any) -> Any:
            if self._is_asked():
                return at(cls, moment(), utc).replace(tzinfo=None)
            return utcnow.__get__(None, cls)()

        own["now"], own["utcnow"] = classmethod(now_noted), classmethod(utcnow_noted)
        pythonapi.PyType_Modified(py_object(kind))


_asctime, _strftime, _localtime = time.asctime, time.strftime, time.localtime
