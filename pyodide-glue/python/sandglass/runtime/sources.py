"""The sources of cells, for tracebacks and `inspect.getsource`."""

from __future__ import annotations

import linecache
from collections import deque
from typing import TYPE_CHECKING, Any

from sandglass.runtime.compiling import lines_of
from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class _Unfinished(tuple[Any, ...]):
    """Linecache's entry for a cell whose text is still being written: what `look` says when somebody looks."""

    look: Callable[[], tuple[Any, ...]]

    def __getitem__(self, index: Any) -> Any:
        return self.look()[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.look())


class Sources:
    """Keeps the newest sources, at most `limit` characters, in linecache for tracebacks and `inspect.getsource`."""

    def __init__(self) -> None:
        self.limit = 0
        self._kept: deque[tuple[str, str]] = deque()
        self._chars = 0
        self._cache: dict[str, Any] = {}  # that of linecache when `begin` was called

    def add(self, filename: str, source: str, cache: dict[str, Any] | None = None) -> None:
        size = len(source)
        if size > self.limit:
            return
        cache = linecache.cache if cache is None else cache
        cache[filename] = (size, None, lines_of(source), filename)
        self._kept.append((filename, source))
        self._chars += size
        while self._chars > self.limit:
            oldest, dropped = self._kept.popleft()
            self._chars -= len(dropped)
            cache.pop(oldest, None)

    def begin(self, filename: str, look: Callable[[], str]) -> None:
        """The same for a cell whose text is still being written: `look` gives it to code that wants it.

        `finish` adds it.
        """

        def entry() -> tuple[Any, ...]:
            source = look()
            return len(source), None, lines_of(source), filename

        unfinished = _Unfinished((0, None, [], filename))
        unfinished.look = entry
        self._cache = linecache.cache
        self._cache[filename] = unfinished

    def finish(self, filename: str, source: str) -> None:
        """All of it is there."""
        cache, self._cache = self._cache, {}
        known = cache.get(filename)
        self.add(filename, source, cache)
        if known is None or len(source) > self.limit:
            cache.pop(filename, None)  # the cell has emptied it, or there is too much of it
        elif not isinstance(known, _Unfinished):
            cache[filename] = known  # the cell has put its own there

    def kept(self) -> list[tuple[str, str]]:
        """File names and sources, oldest first."""
        return list(self._kept)

    def clear(self) -> None:
        """Forgets them all."""
        for filename, _ in self._kept:
            linecache.cache.pop(filename, None)
        self._kept.clear()
        self._chars = 0
