"""The user's namespace: the dictionary of the module `__main__`, so that pickle, dataclasses and inspect work.

User variables are identifiers that are neither dunder names nor reserved. Reserved are the helpers and, in profiles
that have it, `answer`. `context` is a user variable. A cell may overwrite reserved names; they are restored when the
cell ends. Aliases are helpers whose names the user may take.
"""

from __future__ import annotations

import builtins
from itertools import islice
from keyword import iskeyword
from types import CoroutineType, ModuleType
from typing import TYPE_CHECKING, Any

from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)
from sandglass.runtime.values import as_text, type_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sandglass.runtime.profiles import Profile

MAX_NAMES = 10_000
MAX_NAME_CHARS = 200
_LENGTH_TYPES = (str, bytes, list, tuple, dict, set)
_LISTS = {"session_context": "context_history", "history": "session_history"}
MISSING = object()
#: Variables of a module that Python itself needs.
_ESSENTIALS = frozenset((*vars(ModuleType("__main__")), "__builtins__"))
#: The namespaces in a module of others. Each finds the values that were there before all of them.
_lodging: list[Namespace] = []


class Namespace:
    """The globals of user code, and the final answer that the code declares."""

    def __init__(
        self,
        visible_builtins: object = builtins,
        module: ModuleType | None = None,
        hidden: Callable[[str], bool] | None = None,
    ) -> None:
        """With a `module`, uses its variables, except `hidden` names, which belong to somebody else."""
        self.module = ModuleType("__main__") if module is None else module
        self.globals: dict[str, Any] = vars(self.module)
        if module is None:
            self.globals["__builtins__"] = visible_builtins
        self._hidden = hidden
        self._is_lodger = module is not None
        #: The values of others under names that are reserved here.
        self._theirs: dict[str, Any] = {}
        self._essentials = {name: value for name, value in self.globals.items() if name in _ESSENTIALS}
        self.helpers: dict[str, Any] = {}
        self.aliases: dict[str, Any] = {}
        self.has_answer = True
        self.answer: dict[Any, Any] = {"content": "", "ready": False}
        self.final: Any = MISSING
        self._final_is_text = False
        self._originals: Mapping[str, str] = {}
        self._reported: set[Any] = set()
        self._taken: list[str] = []

    def configure(self, profile: Profile, helpers: dict[str, Any], aliases: dict[str, Any]) -> None:
        if self._is_lodger:
            self.withdraw()
            self._theirs = {}
            _lodging.append(self)
        else:
            for name in (*self.helpers, *self.aliases, "answer"):
                self.globals.pop(name, None)
        self.helpers, self.aliases, self.has_answer = helpers, aliases, profile.has_answer
        self._final_is_text, self._originals = profile.final_is_text, profile.originals
        if self._is_lodger:
            self.lodge()
        else:
            self.restore()
        self._reported = set() if self._hidden else set(self.globals)
        self._taken = []

    def withdraw(self) -> None:
        """Removes the names of `configure` that still have its values. Values of others come back."""
        for name in (*self.helpers, *self.aliases, "answer"):
            if self.globals.get(name, MISSING) is not self._given(name):
                continue
            theirs = self._theirs.get(name, MISSING)
            if theirs is MISSING:
                self.globals.pop(name, None)
            else:
                self.globals[name] = theirs
        if self in _lodging:
            _lodging.remove(self)

    def lodge(self) -> None:
        """Takes the reserved names, and remembers others' values under these names."""
        for name in (*self.helpers, "answer") if self.has_answer else self.helpers:
            value = self.globals.get(name, MISSING)
            if value is self._given(name):
                continue
            for other in list(_lodging):
                if other is not self and other.globals is self.globals and value is other._given(name):
                    value = other._theirs.get(name, MISSING)
                    break
            self._theirs[name] = value
        self.restore()

    def _given(self, name: str) -> Any:
        """Returns the object of a reserved name or an alias; else this namespace, which is nobody's value."""
        if name == "answer":
            return self.answer
        return self.helpers.get(name, self.aliases.get(name, self))

    def restore(self) -> None:
        """Restores the reserved names."""
        variables = self.globals
        variables.update(self._essentials)
        variables.update(self.helpers)
        if self.has_answer:
            variables["answer"] = self.answer
        for name, alias in self.aliases.items():
            variables.setdefault(name, alias)
        for name, original in self._originals.items():
            if original in variables:
                variables[name] = variables[original]

    def take_answer(self) -> None:
        """Reads `answer` at the end of a cell. If `ready` is true, `content` is the final answer.

        A cell may assign a dict of its own to `answer`, which is used from then on. Any other assigned value becomes
        the content, so that `answer = "42"` is not lost when the dict is restored.
        """
        if not self.has_answer:
            return
        answer = self.globals.get("answer", self.answer)
        if not issubclass(type(answer), dict):
            self.answer = {"content": answer, "ready": False}
            return
        self.answer = answer
        ready = dict.get(answer, "ready", False)
        if ready is False:
            return
        dict.__setitem__(answer, "ready", False)
        try:
            if not ready:
                return
        except Exception:  # for instance an array: its truth is undefined, but it was set
            pass
        if self.final is MISSING:
            content = dict.get(answer, "content", "")
            self.final = as_text(content) if self._final_is_text else content

    def names(self) -> list[str]:
        """The names of user variables in order of creation."""
        return [name for name in list(self.globals) if self._is_user_name(name)]

    def items(self) -> list[tuple[str, Any]]:
        """Returns user variables and their values in order of creation, at one moment: threads may change them."""
        return [(name, value) for name, value in list(self.globals.items()) if self._is_user_name(name)]

    def newest_names(self, most: int) -> list[str]:
        """The newest user variables, the newest first. Only the newest names are searched, so some may be missing."""
        newest = list(islice(reversed(self.globals), 4 * most))  # at once, since threads may change them
        return [name for name in newest if self._is_user_name(name)][:most]

    def changed_names(self) -> list[str] | None:
        """The names of user variables, bounded for the host; None when they are the same as in the last report."""
        taken = [name for name, alias in self.aliases.items() if self.globals.get(name) is not alias]
        if taken == self._taken and self.globals.keys() == self._reported:
            return None
        self._reported, self._taken = set(self.globals), taken
        return [name for name in self.names() if len(name) <= MAX_NAME_CHARS][:MAX_NAMES]

    def find(self, name: str) -> Any:
        """Finds a variable for FINAL_VAR or the host; MISSING when there is none. Helpers count only if overwritten."""
        value = self.globals.get(name, MISSING)
        if value is MISSING or name[:2] == name[-2:] == "__":
            return MISSING
        return MISSING if value is self.helpers.get(name, self) or value is self.aliases.get(name, self) else value

    def assign(self, name: str, value: Any) -> None:
        """Sets a variable for the host. Raises ValueError for a name that no user variable can have."""
        if not name.isidentifier() or iskeyword(name):
            raise ValueError(f"{name[:MAX_NAME_CHARS]!r} is not a valid Python variable name")
        if name in self.helpers or name[:2] == name[-2:] == "__":
            raise ValueError(f"{name[:MAX_NAME_CHARS]!r} is reserved and cannot be set")
        for alias, original in self._originals.items():
            if name in (alias, original):
                self.globals[original] = self.globals[alias] = value
        self.globals[name] = value
        self._assign_alias(name)
        if name == "answer":
            self.take_answer()
            self.restore()

    def _assign_alias(self, name: str) -> None:
        """Returns other names of a numbered context or history, and the lists of all of them."""
        series, _, number = name.rpartition("_")
        if name == "context":
            if "context_0" in self.globals:
                self.globals["context_0"] = self.globals["context"]
        elif series == "context" and number.isdecimal() and "context" in self.globals:
            self.globals.setdefault("context_0", self.globals["context"])
        elif series in _LISTS and number.isdecimal() and len(number) < 6:
            known = list(self.globals.items())  # at once, since threads may change them
            numbered = [(int(key[len(series) + 1 :]), value) for key, value in known if _is_numbered(key, series)]
            self.globals[_LISTS[series]] = [value for _, value in sorted(numbered, key=lambda item: item[0])]
            if name == "history_0":
                self.globals["history"] = self.globals[name]

    def listing(self) -> list[dict[str, Any]]:
        """Lists user variables as `[{name, type, length}]`; length of str, bytes and built-in containers, else None."""
        rows = []
        for name, value in self.items()[:MAX_NAMES]:
            # A subclass's own `__len__` is user code, and is not called.
            base = next((base for base in _LENGTH_TYPES if issubclass(type(value), base)), None)
            length = None if base is None else base.__len__(value)
            rows.append({"name": name[:MAX_NAME_CHARS], "type": type_name(value), "length": length})
        return rows

    def is_ours(self, name: str) -> bool:
        """Returns true for a reserved name, or an alias that the user has not taken."""
        if name in self.helpers or (name == "answer" and self.has_answer):
            return True
        return name in self.aliases and self.globals.get(name) is self.aliases[name]

    def _is_user_name(self, name: Any) -> bool:
        if type(name) is not str or self.is_ours(name):
            return False
        if self._hidden and self._hidden(name):
            return False
        return name.isidentifier() and not name[:2] == name[-2:] == "__"


class LastResult:
    """`_`, the last value that was shown, as in every REPL.

    It is a builtin, as in Python's own: a variable of this name wins, and `_` is neither listed nor saved. Another `_`
    among the builtins, such as the one of `gettext.install`, is left alone.
    """

    def __init__(self) -> None:
        self._builtins: dict[str, Any] = vars(builtins)
        self._value: Any = MISSING

    def enter(self) -> None:
        """Puts `_` back after `leave`."""
        if self._value is not MISSING:
            self._builtins.setdefault("_", self._value)

    def leave(self) -> None:
        """Takes `_` out of the interpreter."""
        if self._value is not MISSING and self._builtins.get("_") is self._value:
            del self._builtins["_"]

    def set(self, value: Any) -> None:
        """Takes a value that was shown.

        Coroutines are not kept, so that Python reports in time that they were not awaited.
        """
        if type(value) is CoroutineType or self._builtins.get("_", self._value) is not self._value:
            return
        self._builtins["_"] = self._value = value

    def forget(self) -> None:
        """Drops the value, to make room."""
        self.leave()
        self._value = MISSING


def _is_numbered(name: Any, series: str) -> bool:
    """Returns true for `history_0`, `history_1`, … with the number as it is usually written: not `history_01`."""
    number = name[len(series) + 1 :] if type(name) is str and name.startswith(f"{series}_") else ""
    return number.isascii() and number.isdecimal() and len(number) < 6 and number == str(int(number))
