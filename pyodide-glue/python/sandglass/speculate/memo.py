"""The memo: results of pure statements that took long, and when they may stand for running the code again.

A result is recorded only from a run that was looked after from before its beginning: the statement is known to be pure
(`purity`), and nothing else can run meanwhile: the garbage collector is off (it runs what objects do at their end),
there are no threads of the user's, no handlers of signals, nothing that watches. So the data after the run are those
that it had, and the memo never has to believe a clock or a guess. Since that has to be decided before the run, it is
done for statements with much data in their variables, and for those that have taken long before.

What is answered: `E` as a cell's last expression, `name = E`, and `print(E, …)`, with E pure as a whole, and calls in
such an E (`parts`). Parts of other statements are not: these would have to run as code that is not what was written,
which functions that they call can see in their frames.

A hit checks everything again: builtins, modules, the functions and constants that the expression uses, limits that
make code fail, and all data. Then it makes the result anew and does itself what is left: assigns it, prints it.
A fault in here ends the memo, not the cell.

What differs: the garbage collector counts fewer objects, so it runs at other times, and texts that an entry holds have
one more reference; code that asks for references to objects empties the memo.
"""

from __future__ import annotations

import ast
import sys
from _thread import _count as count_threads
from gc import disable as gc_off
from gc import enable as gc_on
from gc import isenabled as gc_is_on
from operator import is_
from time import perf_counter
from types import CodeType
from typing import TYPE_CHECKING, Any

from sandglass import execution as cells
from sandglass.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)
from sandglass.speculate import alone, intact
from sandglass.speculate.alone import has_no_handlers, state_of
from sandglass.speculate.entries import Entry, limits
from sandglass.speculate.parts import Part, key_of
from sandglass.speculate.results import Changed
from sandglass.speculate.rows import KNOWN_NAMES
from sandglass.speculate.statements import Plan, code_of
from sandglass.speculate.tags import Tag, are_plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from sandglass.output import TextStream

    #: A value, the options of `print` or None, and the variables that it is assigned to.
    _Served = tuple[Any, dict[str, Any] | None, Iterable[str]]

#: A statement that takes less is not recorded.
SLOW_SECONDS = 0.005
#: Characters of a text, and items of anything else, from which on code that uses it may take so long.
MUCH_TEXT, MANY_ITEMS = 100_000, 5_000
#: Items of data that are compared in a hit, and items of a result, per second that the run took.
ITEMS_PER_SECOND = 3_000_000
MOST_ITEMS, FEWEST_ITEMS = 300_000, 500
MOST_ENTRIES = 256
#: Names that a statement may be about to assign to for the first time.
_MOST_NEW_NAMES = 3
#: Statements that are remembered as not worth a second look.
_MOST_REFUSED = 1000
#: Characters of the constants of a statement.
_MOST_CONSTANTS = 10_000
#: What code has in it that may see which objects the memo holds.
_REVEALING = ("getrefcount", "get_referrers", "get_objects")
_MISSING = object()
_sys = vars(sys)


def _is_text(value: Any) -> bool:
    return type(value) is str or type(value) is bytes


class Memo:
    """The memo of one runtime. It is off until it may have some bytes."""

    def __init__(self, namespace: dict[str, Any], stdout: TextStream, is_watched: Callable[[], bool]) -> None:
        self._namespace = namespace
        self._stdout = stdout
        self._is_watched = is_watched
        self._most_bytes = 0
        self._bytes = 0
        self._entries: dict[CodeType, Entry] = {}
        self._slow: dict[CodeType, None] = {}
        self._refused: dict[CodeType, None] = {}
        #: The names in all of these statements, which tell most others apart.
        self._names: set[tuple[str, ...]] = set()
        self._filename = self._source = ""
        self._body: list[ast.stmt] | None = None
        self._threads = -1
        self._streams: Any = None
        self._started = 0.0
        self._plan: Plan | None = None
        self._key: CodeType | None = None
        self._old: dict[str, Any] = {}
        self._tags: dict[str, Tag] = {}
        self._collects = False
        self._records = False
        #: Whether statements are looked at in this cell.
        self.is_on = False
        #: What the last hit came to.
        self.value: Any = None
        #: Of this cell.
        self.hits, self.saved = 0, 0.0
        #: From when on a statement is worth it: in tests, all are.
        self.slow_seconds, self.much_text, self.many_items = SLOW_SECONDS, MUCH_TEXT, MANY_ITEMS
        self.most_refused = _MOST_REFUSED

    def configure(self, most_bytes: int) -> None:
        """Sets how many bytes all results may have, and forgets them; 0 turns it off."""
        self._most_bytes = most_bytes
        self.clear()
        if most_bytes:
            intact.note()
            alone.note()

    def clear(self) -> None:
        """Forgets everything."""
        self._entries, self._slow, self._refused, self._names = {}, {}, {}, set()
        self._bytes = 0

    def begin(self, filename: str, source: str, *, records: bool) -> None:
        """A cell, or more of it. `records`: it may look at the clock."""
        self.is_on = self._most_bytes > 0
        if not self.is_on:
            return
        if self._threads < 0:
            self._threads = count_threads()
            self._streams = state_of(self._stdout)
        self._filename, self._source, self._body = filename, source, None
        self._records = records
        if any(word in source for word in _REVEALING):
            self.clear()
            self.is_on = False

    def end(self) -> None:
        """The cell has ended: what its variables no longer hold is let go."""
        self.abandon()
        self.value = None
        self._source, self._body = "", None
        if self._entries:
            self._sweep()

    # ---- the statements of a cell ----

    def answers(self, code: CodeType) -> bool:
        """Whether a statement has been answered, with `value`; else it is about to run."""
        try:
            served = self._serve(code) if code.co_names in self._names else None
            if served is None:
                if not self._records:
                    return False
                if self._plan is None and self._has_much(code):
                    self._watch(code)
                if self._plan is not None:
                    served = self._take_value()
                if served is None:
                    self._started = perf_counter()
                    return False
        except Exception:
            self._fail()
            return False
        # What follows is the statement's own: a failure is none of the memo's.
        value, options, targets = served
        self.value = None
        if options is not None:
            print(*value, **options)
        elif targets:
            for name in targets:
                self._namespace[name] = value
        else:
            self.value = value
        return True

    def took(self, code: CodeType, value: Any) -> None:
        """A statement has run."""
        if not self._records:
            return
        seconds = perf_counter() - self._started
        if self._plan is None:
            if seconds >= self.slow_seconds:
                try:
                    self._remember(code)
                except Exception:
                    self._fail()
            return
        try:
            self._record(self._namespace[self._plan.targets[-1]] if self._plan.targets else value, seconds)
        except MemoryError:
            self.clear()
        except Exception:
            self._fail()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """A statement has failed, or is done with."""
        if self._plan is not None:
            self._plan = self._key = None
            self._old.clear()
            self._tags.clear()
            if self._collects:
                gc_on()

    def _fail(self) -> None:
        """Something in here is not as it should be: never again."""
        self._most_bytes = 0
        self.is_on = self._records = False
        self.clear()
        self.abandon()

    def _has_much(self, code: CodeType) -> bool:
        """Whether code may take long, by the data in the variables that it names."""
        get, much = self._namespace.get, not self.many_items
        for name in code.co_names:
            value: Any = get(name)
            kind = type(value)
            if kind is str or kind is bytes:
                much |= len(value) >= self.much_text
            elif kind is list or kind is dict or kind is tuple or kind is set or kind is frozenset:
                much |= len(value) >= self.many_items
        return much

    def _watch(self, code: CodeType) -> None:
        """Looks after a statement that is about to run, if it is pure."""
        names, namespace = code.co_names, self._namespace
        if sum(name not in namespace and name not in KNOWN_NAMES for name in names) > _MOST_NEW_NAMES:
            return
        if sum(map(len, filter(_is_text, code.co_consts))) > _MOST_CONSTANTS:
            return
        key = key_of(code)
        if key in self._refused or self._is_watched() or count_threads() != self._threads or not has_no_handlers():
            return
        if not intact.are_builtins(namespace):
            return
        plan = self._plan_of(code, key)
        if plan is None:
            self._refuse(key)
            return
        if not all(map(intact.is_intact, plan.expression.families)) or not intact.has_methods(plan.expression.methods):
            return
        if not self._is_ready(plan.options, plan.targets):
            return
        self._collects = gc_is_on()
        gc_off()
        self._plan, self._key = plan, key
        self._old = {name: namespace.get(name) for name in plan.expression.names}

    def _take_value(self) -> _Served | None:
        """Evaluates a statement that is looked after, part by part; None where it fails or has none: it runs itself."""
        plan = self._plan
        if plan is None or plan.whole is None:
            return None
        spared: list[float] = []
        try:
            value, seconds = self._value_of(plan.whole, spared)
        except Exception:
            self.abandon()
            return None
        except BaseException:
            self.abandon()
            raise
        try:
            self._record(value, seconds)
        except MemoryError:
            self.clear()
        finally:
            self.abandon()
        if spared:
            self.hits += 1
            self.saved += sum(spared)
        return value, plan.options, plan.targets

    def _value_of(self, part: Part, spared: list[float]) -> tuple[Any, float]:
        """The value of a part, and how many seconds it takes to run it; `spared` are those of what was not run."""
        entry = None if part.key is None else self._entries.get(part.key)
        if entry is not None and entry.is_part:
            value = self._remade(entry)
            if value is not _MISSING:
                spared.append(entry.seconds)
                return value, entry.seconds
        seconds, values = 0.0, {}
        for name, inner in part.parts.items():
            values[name], more = self._value_of(inner, spared)
            seconds += more
        started = perf_counter()
        value = eval(part.code, self._namespace, values)
        seconds += perf_counter() - started
        if part.key is not None and seconds >= self.slow_seconds:
            self._keep_part(part, part.key, value, seconds)
        return value, seconds

    def _keep_part(self, part: Part, key: CodeType, value: Any, seconds: float) -> None:
        try:
            if part.has_constant(value):
                return
            entry = self._entry(part, value, seconds)
        except MemoryError:
            self.clear()
            return
        except (ValueError, RecursionError, Changed):
            return
        entry.is_part = part.is_kept = True
        self._add(key, entry)

    def _is_ready(self, options: dict[str, Any] | None, targets: Iterable[str]) -> bool:
        """Whether what is left of a statement runs no code of the user's: `print`, or what ends by assignments."""
        if options is None:
            return are_plain(map(self._namespace.get, targets), MOST_ITEMS)
        return _sys.get("stdout") is self._stdout and all(map(is_, state_of(self._stdout), self._streams))

    def _plan_of(self, code: CodeType, key: CodeType) -> Plan | None:
        """The statement that code was made of, if it is pure."""
        if self._body is None:
            try:
                self._body = cells.statements(self._source, self._filename)
            except Exception:  # it was translated, or is no more than a part
                self._body = []
        lines = [line for _, _, line in code.co_lines() if line]
        if not lines:
            return None
        for statement in self._body:
            if not statement.lineno <= min(lines) <= (statement.end_lineno or 0):
                continue
            is_value = code_of(statement, code, is_value=True) == key
            if is_value or code_of(statement, code, is_value=False) == key:
                try:
                    return Plan(statement, code, self._namespace, is_value=is_value)
                except ValueError:
                    return None
        return None

    def _refuse(self, key: CodeType) -> None:
        if len(self._refused) >= self.most_refused:
            self._refused.clear()
        if self.most_refused:
            self._refused[key] = None

    def _remember(self, code: CodeType) -> None:
        """A statement has taken long that nobody looked after: the next time, somebody does."""
        names = code.co_names
        if self._is_watched() or not all(name in self._namespace or name in KNOWN_NAMES for name in names):
            return  # by now all of its names are there
        key = key_of(code)
        if key not in self._refused:
            if len(self._slow) >= MOST_ENTRIES:
                self._slow.clear()
            self._slow[key] = None
            self._names.add(names)

    def _record(self, value: Any, seconds: float) -> None:
        plan, key = self._plan, self._key
        if plan is None or key is None:
            return
        if seconds < self.slow_seconds:
            self._refuse(key)
            return
        if plan.whole is not None and plan.whole.is_kept and key == plan.whole.key:
            return
        began = perf_counter()
        try:
            entry = self._entry(plan, value, seconds)
        except (ValueError, RecursionError, Changed):
            self._refuse(key)
            return
        if perf_counter() - began > seconds and self.slow_seconds:  # and so would a hit take too long
            self._refuse(key)
            return
        self._add(key, entry)

    def _entry(self, of: Plan | Part, value: Any, seconds: float) -> Entry:
        """What is kept of a run. ValueError for what cannot be."""
        most = MOST_ITEMS
        if self.slow_seconds:
            most = min(MOST_ITEMS, FEWEST_ITEMS + int(seconds * ITEMS_PER_SECOND))
        for name in of.expression.names:
            if name not in self._tags:
                self._tags[name] = Tag(self._old[name], most)
        entry = Entry(
            of, [(name, self._old[name], self._tags[name]) for name in of.expression.names], value, limits(), most
        )
        entry.seconds = seconds
        return entry

    def _add(self, key: CodeType, entry: Entry) -> None:
        self._drop(key)
        self._slow.pop(key, None)
        if entry.size > self._most_bytes // 4:
            return
        self._entries[key] = entry
        self._names.add(key.co_names)
        self._bytes = sum(known.size for known in self._entries.values())  # an interrupt may have spoilt the sum
        while self._bytes > self._most_bytes or len(self._entries) > MOST_ENTRIES:
            self._drop(next(iter(self._entries)))

    def _drop(self, key: CodeType) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._bytes -= entry.size

    def _sweep(self) -> None:
        """Lets go of texts that no variable holds any more."""
        gone = [key for key, entry in self._entries.items() if not entry.is_held(self._namespace)]
        for key in gone:
            self._drop(key)
        if len(self._names) > 4 * MOST_ENTRIES or not self._entries:
            self._names = {key.co_names for known in (self._entries, self._slow) for key in known}

    # ---- hits ----

    def _serve(self, code: CodeType) -> _Served | None:
        """What a statement comes to, if all is as it was."""
        if self._is_watched() or count_threads() != self._threads:
            return None
        key = key_of(code)
        entry = self._entries.get(key)
        if entry is None:
            if key in self._slow and self._records:
                self._watch(code)
            return None
        collects = gc_is_on()
        gc_off()  # what objects do at their end must not change what was just looked at
        try:
            value = self._remade(entry)
            if value is not _MISSING:
                self._entries[key] = self._entries.pop(key)
        finally:
            if collects:
                gc_on()
        if value is _MISSING:
            if self._records:
                self._watch(code)
            return None
        self.hits += 1
        self.saved += entry.seconds
        return value, entry.options, entry.targets

    def _remade(self, entry: Entry) -> Any:
        """The result of an entry, if all is as it was; else `_MISSING`."""
        sources = entry.sources(self._namespace) if self._is_ready(entry.options, entry.targets) else None
        if sources is None:
            return _MISSING
        try:
            value = entry.recipe.make(sources)
        except (Changed, RecursionError):
            return _MISSING
        for source, tag in sources:
            tag.hold(source)
        return value
