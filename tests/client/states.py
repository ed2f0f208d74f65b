"""A user of a sandbox with checkpoints, who knows what every variable should be, at every execution.

The user does things at random: good code, code that ends its guest, undo, restores, copies. The user also leaves while
code runs. Somebody else kills the sandbox's processes meanwhile. Whatever becomes of the state, the results have to say
so.
"""

from __future__ import annotations

import ast
import asyncio
import random
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from http_sandbox import HttpSandbox

from sandglass import AsyncSandbox, SandboxError
from sandglass.client.execution import CodeExecution

State = dict[str, Any]
Change = Callable[[State], None]

NAMES = ("a", "b", "c", "d", "items", "same", "big")
#: What each execution ends with: all variables, as far as the model knows them. `big` has a length only.
_SHOW = f"""
print("state", {{
    **{{name: globals()[name] if name != "big" else len(big) for name in {NAMES!r} if name in globals()}},
    **({{"taken": taken.gi_frame.f_locals["number"]}} if "taken" in globals() else {{}}),
    **({{"count": count.__closure__[0].cell_contents}} if "count" in globals() else {{}}),
    **({{"seeded": seeded, "random": hash(random.getstate()[1])}} if "seeded" in globals() else {{}}),
    **({{"left": left}} if "left" in globals() else {{}}),
    **({{"is_same": items is same}} if "items" in globals() and "same" in globals() else {{}}),
}})"""
#: What is shown beside variables.
_NO_NAMES = frozenset(("is_same", "random"))
_COUNTER = "def counter():\n    number = 0\n    while True:\n        yield number\n        number += 1\n"
_CLOSURE = """
if "count" not in globals():
    def counting():
        number = 0
        def count():
            nonlocal number
            number += 1
            return number
        return count
    count = counting()
count()
pass"""
#: Code of which nobody hears the end.
_ENDLESS = "import time\nleft = 0\nwhile True:\n    left += 1\n    time.sleep(0.001)"
#: Errors that are said and change nothing, and the rest of a message that was cut off.
ALLOWED = ("no_checkpoint", "not_serializable", "boot_failed", "guest_lost")
MIB = 1 << 20
MEMORY_BYTES = 256 * MIB


class Wrong(Exception):
    """A sandbox was wrong, or has lost something in silence."""


class RpcSandbox(AsyncSandbox):
    """A sandbox over JSON-RPC whose user may leave."""

    async def leave(self, code: str, seconds: float) -> CodeExecution | None:
        """Has code run, and stops waiting for it. Returns the result if it came before."""
        running = asyncio.ensure_future(self.execute(code))
        done, _ = await asyncio.wait([running], timeout=seconds)
        if done:
            return running.result()
        running.cancel()
        await asyncio.wait([running])
        return None if running.cancelled() else running.result()


class _AnyNumber:
    """A number that nobody knows."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return type(other) is int or isinstance(other, _AnyNumber)

    def __repr__(self) -> str:
        return "any number"


class User:
    """One user with one sandbox."""

    def __init__(
        self, sandbox: RpcSandbox | HttpSandbox, chance: random.Random, counts: Counter[str], is_copy: bool = False
    ) -> None:
        self._sandbox = sandbox
        self._chance = chance
        self._counts = counts
        self._is_copy = is_copy
        #: The newest execution.
        self._newest = 0
        #: True if nobody heard of its end.
        self._has_left = False
        #: The states that may be there now: one, until a guest was lost.
        self._states: list[State] = [{}]
        #: The states that an execution may have left.
        self._history: dict[int, list[State]] = {0: self._states}
        #: Those of the execution whose state it is now. After a loss, it is the state of two: of the one that came back, and of the one
        #: that lost its own.
        self._record = self._states
        self._back_again = self._record
        #: The values of `a` that were set since the last execution. A guest may be lost before or after each.
        self._set_since: list[float] = []
        #: The variables that were there when a state was lost, and those of which the results have said so.
        self._before: set[str] = set()
        self._told: set[str] = set()
        self._done: list[str] = []

    async def act(self) -> None:
        """Does one thing, and checks what became of it."""
        acts = (
            *(self._assign, self._append, self._alias, self._take, self._count, self._draw) * 2,
            *(self._delete, self._grow) * 2,
            *(self._undo, self._restore, self._go_back_far, self._checkpoint, self._set),
            *(self._crash, self._hang, self._exhaust, self._hold, self._raise, self._leave),
            *(() if self._is_copy else (self._fork,) * 2),
        )
        act = self._chance.choice(acts)
        name = act.__name__.strip("_")
        self._done.append(name)
        del self._done[:-12]
        try:
            await act()
        except SandboxError as error:
            if error.code not in ALLOWED:
                raise Wrong(f"{name}: {error.code}: {error}") from None
            self._counts[error.code] += 1
        self._counts[name] += 1

    async def look(self) -> None:
        """Checks the state."""
        for _ in range(20):
            try:
                run = await self._run("pass", lambda state: None)
            except SandboxError as error:
                if error.code not in ALLOWED:
                    raise Wrong(f"look: {error.code}: {error}") from None
                continue
            if run.outcome == "ok":
                return
        raise Wrong(f"the sandbox does not work any more: {self._recent()}")

    # ---- executions ----

    async def _run(self, code: str, change: Change, timeout: float | None = None) -> CodeExecution:
        return self._check(await self._sandbox.execute(code + _SHOW, timeout=timeout), code, change)

    def _check(self, run: CodeExecution, code: str, change: Change) -> CodeExecution:
        self._newest = max(self._newest, run.id)
        self._counts[run.outcome] += 1
        self._counts[run.state.status] += 1
        self._told |= {lost.name for lost in run.state.lost}
        if run.state.status != "kept":
            self._before |= _certain(self._states)
            self._record = self._come_back_to(run)
            self._states = [*self._record]
        self._set_since, has_left, self._has_left = [], self._has_left, False
        if run.outcome != "ok":
            if run.outcome == "error" and run.error_type not in ("MemoryError", "ValueError"):
                raise Wrong(f"{code}: {run.error} {self._recent()}")
            # The state is that of the execution that is back, or this one's if it was lost before. Both may be saved once more.
            if run.state.status == "kept":
                self._record = self._back_again = [*self._states]
            self._history[run.id] = self._record
            return run
        shown = ast.literal_eval(run.stdout.partition("state ")[2])
        fitting = []
        # The answer that told of a loss may have come just when the user left.
        unheard = [state for record in self._history.values() for state in _may_have_left(record)] if has_left else []
        for state in [*unheard, *self._states]:
            after = dict(state)
            change(after)
            _complete(after)
            if after == shown:
                fitting.append(state)
        if not fitting:
            raise Wrong(f"{code}: it is {shown}, and should be one of {self._states} changed {self._recent()} {run}")
        silent = set() if has_left else self._before - set(fitting[-1]) - self._told - _NO_NAMES
        if silent:
            raise Wrong(f"{code}: {silent} got lost in silence {self._recent()} {run}")
        self._before, self._told = set(), set()
        self._states = [shown]
        self._history[run.id] = self._record = self._back_again = [shown]
        self._counts["compared"] += 1
        return run

    def _come_back_to(self, run: CodeExecution) -> list[State]:
        number = run.state.restored_to
        if run.state.status != "lost" and number not in self._history:
            raise Wrong(f"it says that execution {number} is back, which never was {self._recent()} {run}")
        record = self._back_again = self._history[0 if run.state.status == "lost" else number or 0]
        _may_have(record, self._set_since)
        return _may_have_left(record) if self._has_left else record

    def _recent(self) -> str:
        return f"(after {', '.join(self._done)})"

    async def _assign(self) -> None:
        name, value = self._chance.choice("abcd"), self._chance.choice((self._chance.random(), "text", [1], None))
        await self._run(f"{name} = {value!r}", lambda state: state.update({name: value}))

    async def _append(self) -> None:
        number = self._chance.randrange(1000)

        def change(state: State) -> None:
            # What is the same list stays so.
            items = [*state.get("items", ()), number]
            if state.get("is_same"):
                state["same"] = items
            state["items"] = items
            _compare(state, state.get("is_same", False))

        await self._run(f"items = globals().get('items', [])\nitems.append({number})", change)

    async def _alias(self) -> None:
        def change(state: State) -> None:
            items = state.setdefault("items", [])
            state["same"] = items
            _compare(state, True)

        await self._run("items = globals().get('items', [])\nsame = items", change)

    async def _take(self) -> None:
        def change(state: State) -> None:
            state["taken"] = state.get("taken", -1) + 1

        await self._run(
            f"if 'taken' not in globals():\n    exec({_COUNTER!r})\n    taken = counter()\nnext(taken)\npass", change
        )

    async def _count(self) -> None:
        await self._run(_CLOSURE, lambda state: state.update(count=state.get("count", 0) + 1))

    async def _draw(self) -> None:
        """Draws from the generator of `random`, which is seeded first."""
        seed = self._chance.randrange(1000)

        def change(state: State) -> None:
            first, drawn = state.get("seeded", (seed, 0))
            state["seeded"] = [first, drawn + 1]

        code = f"if 'seeded' not in globals():\n    seeded = [{seed}, 0]\n    random.seed({seed})\nseeded[1] += 1"
        await self._run(f"import random\n{code}\nrandom.random()\npass", change)

    async def _delete(self) -> None:
        name = self._chance.choice(NAMES)

        def change(state: State) -> None:
            state.pop(name, None)
            _compare(state, state.get("is_same", False))

        await self._run(f"globals().pop({name!r}, None)\npass", change)

    async def _grow(self) -> None:
        size = self._chance.choice((1, 10, 30)) * MIB
        await self._run(f"big = bytearray(b'x') * {size}", lambda state: state.update(big=size))

    async def _raise(self) -> None:
        await self._run("raise ValueError", lambda state: None)

    async def _crash(self) -> None:
        code = self._chance.choice(
            ("import os; os._exit(3)", "import os; os.kill(os.getpid(), 9)", "import os; os.abort()")
        )
        run = await self._run(code, lambda state: None)
        if run.outcome != "crashed":
            raise Wrong(f"{code}: {run}")

    async def _hang(self) -> None:
        code = self._chance.choice(("while True: pass", "sum(range(10**13))"))
        run = await self._run(code, lambda state: None, timeout=200)
        if run.outcome not in ("timeout", "crashed"):
            raise Wrong(f"{code}: {run}")

    async def _exhaust(self) -> None:
        code = "eaten = []\nwhile True: eaten.append(bytes(bytearray(b'x') * (4 << 20)))"
        await self._run(f"def eat():\n    {code.replace(chr(10), chr(10) + '    ')}\neat()", lambda state: None)

    async def _hold(self) -> None:
        """Holds a thing that no copy could have, for two executions."""
        await self._run("import socket\nheld = socket.socket()", lambda state: None)
        await self._assign()
        await self._run("held = globals().get('held')\nif held: held.close()\ndel held", lambda state: None)

    async def _leave(self) -> None:
        """Leaves while code runs, which is interrupted then. Nobody knows how far it came."""
        self._states = _may_have_left(self._states)
        # Its number, if it began.
        self._newest += 1
        self._history[self._newest] = self._record = self._back_again = [*self._states]
        self._set_since = []
        run = await self._sandbox.leave(_ENDLESS, self._chance.uniform(0, 0.1))
        if run is None:
            self._counts["left alone"] += 1
            # What the next execution says of the state may be of the time before this one ran.
            self._has_left = True
        else:
            self._check(run, _ENDLESS, lambda state: None)

    # ---- copies ----

    async def _fork(self) -> None:
        """Uses a copy, which has the variables by value. So it has no generator, and says so."""
        copy = await self._sandbox.fork()
        assert isinstance(copy, RpcSandbox | HttpSandbox)
        try:
            user = User(copy, self._chance, self._counts, is_copy=True)
            user._newest, user._has_left, user._done = self._newest, self._has_left, [*self._done]
            user._history = {number: _without_taken(record) for number, record in self._history.items()}
            user._states = _without_taken(self._states)
            user._record = user._back_again = [*user._states]
            user._before = _certain(self._states) | self._before
            user._told = set(self._told)
            await user.look()
            for _ in range(self._chance.randrange(4)):
                await user.act()
            await user.look()
        finally:
            await copy.destroy()

    # ---- going back ----

    async def _undo(self) -> None:
        self._back(await self._sandbox.undo())

    async def _restore(self) -> None:
        number = self._chance.choice([*self._history][-6:])
        said = await self._sandbox.restore(number)
        if said != number:
            raise Wrong(f"restore({number}) went back to {said} {self._recent()}")
        self._back(said)

    async def _go_back_far(self) -> None:
        if self._chance.random() < 0.5:
            self._back(await self._sandbox.restore())
        else:
            for _ in range(10):
                await self._undo()

    def _back(self, number: int) -> None:
        if number not in self._history:
            raise Wrong(f"it went back to execution {number}, which never was {self._recent()}")
        # A value that was set after the guest had been lost may be saved with the state that came back.
        self._record = self._back_again = self._history[number]
        _may_have(self._record, self._set_since)
        # What was there before may be gone now, as the user wanted.
        self._states = [*self._record]
        self._before, self._told, self._set_since = set(), set(), []

    async def _checkpoint(self) -> None:
        await self._sandbox.checkpoint()

    async def _set(self) -> None:
        """Sets a variable from outside. Until it is saved, it may get lost, and that is said."""
        value = self._chance.random()
        await self._sandbox.set_variable("a", value)
        for record in (self._record, self._back_again):
            _may_have(record, [value])  # the state of that execution, if it is saved once more
        self._states = [{**state, "a": value} for state in self._states]
        self._set_since.append(value)


def _may_have(record: list[State], values: list[float]) -> None:
    """Adds the states that differ by one of these values of `a`."""
    for value in values:
        known = [*record]
        record += [new for state in known if (new := {**state, "a": value}) not in record]


def _certain(states: list[State]) -> set[str]:
    """The variables that are there in any case."""
    return set.intersection(*map(set, states))


def _without_taken(record: list[State]) -> list[State]:
    without = [
        {name: value for name, value in state.items() if name != "taken"} for state in record if "taken" in state
    ]
    return [*without, *record]


def _may_have_left(record: list[State]) -> list[State]:
    """Adds the states after an execution of which nobody knows how far it came."""
    known = [state for state in record if not isinstance(state.get("left"), _AnyNumber)]
    return [*record, *({**state, "left": _AnyNumber()} for state in known)]


def _complete(state: State) -> None:
    """Adds what follows from the variables."""
    state.pop("random", None)
    if "seeded" in state:
        state["random"] = _state_of_random(*state["seeded"])


@lru_cache(10_000)
def _state_of_random(seed: int, drawn: int) -> int:
    generator = random.Random(seed)
    for _ in range(drawn):
        generator.random()
    return hash(generator.getstate()[1])


def _compare(state: State, is_same: bool) -> None:
    if "items" in state and "same" in state:
        state["is_same"] = is_same
    else:
        state.pop("is_same", None)
