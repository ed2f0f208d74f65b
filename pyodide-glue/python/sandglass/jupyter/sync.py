"""Shares variables between code and notebook. Values are shared, never copied.

Some names are never shared: names that begin with `_`, helpers and `answer`, and IPython's own (`In`, `Out`, …). Nor
are the values that the REPL was given (`context`, `history`, …).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sandglass.runtime.helpers import AwaitableStr
from sandglass.runtime.namespace import MISSING, Namespace
from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable


class Sync:
    """The notebook's side of a namespace. `find_shell` is called each time, because a kernel may replace its shell."""

    def __init__(self, namespace: Namespace, take: bool, give: bool, names: Collection[str] | None) -> None:
        self._namespace = namespace
        self._take, self._give, self._names = take, give, names
        #: Names of values that the REPL was given.
        self.given: set[str] = set()
        #: The values that both sides had under a name at the last sync.
        self._shared: dict[str, Any] = {}
        self._before: dict[str, Any] = {}

    def give(self, names: Iterable[str]) -> None:
        """Gives these names to the REPL. They are not shared with the notebook any more."""
        for name in names:
            self.given.add(name)
            self._shared.pop(name, None)

    def begin(self, shell: Any) -> None:
        """Before code runs: takes the notebook's variables, and drops those that the notebook has deleted."""
        variables = self._namespace.globals
        if self._take and shell is not None:
            notebook = shell.user_ns
            for name, value in list(self._shared.items()):
                if name not in notebook:
                    del self._shared[name]
                    if variables.get(name) is value:
                        del variables[name]
            for name, value in list(notebook.items()):
                if self._may_take(name, value, shell):
                    variables[name] = self._shared[name] = value
        self._before = dict(self._namespace.items())

    def end(self, shell: Any) -> None:
        """After code ran: gives the notebook its new assignments, and deletes there the variables that it deleted."""
        before, self._before = self._before, {}
        if not self._give or shell is None:
            return
        variables, notebook = self._namespace.globals, shell.user_ns
        for name, value in self._namespace.items():
            if before.get(name, MISSING) is not value and self._may_give(name, shell):
                if type(value) is AwaitableStr:
                    value = variables[name] = str.__str__(value)
                notebook[name] = self._shared[name] = value
        for name in before.keys() - set(self._namespace.names()):
            if self._shared.pop(name, MISSING) is notebook.get(name, self):
                del notebook[name]

    def _may_take(self, name: Any, value: object, shell: Any) -> bool:
        if type(name) is not str or (self._names is not None and name not in self._names):
            return False
        if getattr(type(value), "is_jupyter_repl", False) is True:  # code has no use for the REPL that runs it
            return False
        return self._is_common(name) and shell.user_ns_hidden.get(name, MISSING) is not value

    def _may_give(self, name: str, shell: Any) -> bool:
        if not self._is_common(name) or name in shell.user_ns_hidden:
            return False
        # With an allowlist, the notebook's other variables stay hidden from code.
        unlisted = self._names is not None and name not in self._names and name in shell.user_ns
        return not unlisted or shell.user_ns[name] is self._shared.get(name, MISSING)

    def _is_common(self, name: str) -> bool:
        namespace = self._namespace
        is_helper = name in namespace.helpers or (name == "answer" and namespace.has_answer)  # aliases may be taken
        return not (name.startswith("_") or name in self.given or is_helper) and name.isidentifier()
