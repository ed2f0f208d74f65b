"""Tools to read a large text: chunks and searches. The profile `rlm-core` has more, over the variable `context`.

Lines end at `\\n` only and are counted from 1. Offsets are characters, counted from 0.
"""

from __future__ import annotations

from json import loads
from re import IGNORECASE, MULTILINE
from re import compile as compile_pattern
from re import error as PatternError
from typing import TYPE_CHECKING, Any

from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)
from sandglass.runtime.values import a_type, type_name

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from re import Pattern


MAX_PATTERN_CHARS = 500


def chunk_text(text: str, size: int = 10000, overlap: int = 500) -> list[str]:
    """Splits text into chunks of `size` characters. Each begins with the last `overlap` characters of the one before.

    Together the chunks cover the text; the last may be shorter. `chunk_text("abcdef", 4, 1)` is `["abcd", "def"]`.
    """
    return _chunks("chunk_text", text, "size", size, overlap)


def _chunks(helper: str, text: str, name: str, size: int, overlap: int) -> list[str]:
    """Returns chunks as `chunk_text` does, for a helper whose size has another name."""
    need(helper, "text", text, str)
    need(helper, name, size, int)
    need(helper, "overlap", overlap, int)
    if size <= 0:
        raise ValueError(f"{helper}() needs a {name} above 0, not {size}")
    if overlap < 0:
        raise ValueError(f"{helper}() needs an overlap of 0 or more, not {overlap}")
    if overlap >= size:
        raise ValueError(f"{helper}() needs an overlap smaller than {name}, and {overlap} >= {size}: pass overlap=")
    text = str.__str__(text)
    stops = max(len(text) - overlap, 1) if text else 0
    return [text[start : start + size] for start in range(0, stops, size - overlap)]


def search(pattern: str, window: int, max_results: int, text: Any) -> list[dict[str, Any]]:
    """Returns results as `search_context` does, from a text, or a list or dict of texts."""
    need("search_context", "window", window, int)
    need("search_context", "max_results", max_results, int)
    if window < 0:
        raise ValueError(f"search_context() needs a window of 0 or more, not {window}")
    if max_results < 0:
        raise ValueError(f"search_context() needs max_results of 0 or more, not {max_results}")
    finditer = _compiled("search_context", pattern, IGNORECASE).finditer
    results: list[dict[str, Any]] = []
    for extra, item in _texts(text):
        if len(results) >= max_results:
            break
        for found in finditer(item):
            if len(results) >= max_results:
                break
            start, end = found.span()
            around = item[max(0, start - window) : end + window]
            results.append({"match": found.group(), "start": start, "end": end, "context": around, **extra})
    return results


def extract_json(text: str) -> Any:
    """Finds the JSON object or array in a text, possibly among other words. Returns a dict or list; None without one.

    An object reaches from the first `{` to the last `}`, an array from the first `[` to the last `]`. If both can be
    read, the longer one counts.
    """
    need("extract_json", "text", text, str)
    text = str.__str__(text)
    found = [text[text.find(begin) : text.rfind(end) + 1] for begin, end in ("{}", "[]") if begin in text]
    for candidate in sorted(found, key=len, reverse=True):
        try:
            return loads(candidate)
        except (ValueError, RecursionError):
            continue
    return None


class Reading:
    """Helpers over the context that `get_context` returns. Each public method is one name."""

    def __init__(self, get_context: Callable[[], Any]) -> None:
        self._get_context = get_context

    def count_matches(self, pattern: str) -> int:
        """Counts the matches of a case-insensitive regular expression in the context."""
        text = self._text("count_matches")
        return sum(1 for _ in _compiled("count_matches", pattern, IGNORECASE).finditer(text))

    def extract_sections(self, header_pattern: str) -> list[dict[str, Any]]:
        """Splits the context into sections, each from one match of a regular expression to the next.

        Returns dicts with `header` (the match), `content` (the text after it, without white space around it) and
        `start`. `^` and `$` match at lines, and case counts. Text before the first match is in no section.
        """
        text = self._text("extract_sections")
        return _sections(text, _compiled("extract_sections", header_pattern, MULTILINE))

    def find_line(self, pattern: str) -> list[tuple[int, str]]:
        """Finds lines of the context that match a case-insensitive regular expression.

        Returns `(number, line)` for each.
        """
        search = _compiled("find_line", pattern, IGNORECASE).search
        return [(number, line) for number, line in enumerate(self._lines("find_line"), 1) if search(line)]

    def count_lines(self, pattern: str | None = None) -> int:
        """Counts the lines of the context, or the lines that match a case-insensitive regular expression."""
        lines = self._lines("count_lines")
        if pattern is None:
            return len(lines)
        search = _compiled("count_lines", pattern, IGNORECASE).search
        return sum(1 for line in lines if search(line))

    def get_line(self, n: int) -> str:
        """Returns the context's line of a number, from 1; `""` when there is none."""
        need("get_line", "n", n, int)
        lines = self._lines("get_line")
        return lines[n - 1] if 1 <= n <= len(lines) else ""

    def quote_match(self, pattern: str, max_length: int = 100) -> str | None:
        """Returns the first match of a case-insensitive regular expression in the context; None when there is none.

        A match of more than `max_length` characters is cut and ends with `...`.
        """
        need("quote_match", "max_length", max_length, int)
        if max_length < 0:
            raise ValueError(f"quote_match() needs a max_length of 0 or more, not {max_length}")
        found = _compiled("quote_match", pattern, IGNORECASE).search(self._text("quote_match"))
        if found is None:
            return None
        text = found.group()
        return text if len(text) <= max_length else text[:max_length] + "..."

    def chunk_by_headers(self, level: int = 2) -> list[dict[str, Any]]:
        """Returns the sections below Markdown headers of one level, as dicts with `header`, `content` and `start`."""
        need("chunk_by_headers", "level", level, int)
        if not 1 <= level <= 6:
            raise ValueError(f"chunk_by_headers() needs a level from 1 to 6, not {level}")
        text = self._text("chunk_by_headers")
        return _sections(text, _compiled("chunk_by_headers", f"^{'#' * level} .+$", MULTILINE))

    def chunk_by_size(self, chars: int = 50000, overlap: int = 0) -> list[str]:
        """Splits the context into chunks of `chars` characters.

        Each begins with the last `overlap` ones of the one before.
        """
        return _chunks("chunk_by_size", self._text("chunk_by_size"), "chars", chars, overlap)

    def _text(self, helper: str) -> str:
        context = self._get_context()
        if not isinstance(context, str):
            raise TypeError(f"{helper}() reads a `context` that is a str, and it is {a_type(context)}")
        return str.__str__(context)

    def _lines(self, helper: str) -> list[str]:
        return self._text(helper).split("\n")


def _sections(text: str, header: Pattern[str]) -> list[dict[str, Any]]:
    found = list(header.finditer(text))
    ends = [*(match.start() for match in found[1:]), len(text)]  # one too many when there is no header
    return [
        {"header": match.group(), "content": text[match.end() : end].strip(), "start": match.start()}
        for match, end in zip(found, ends, strict=False)
    ]


def _compiled(helper: str, pattern: str, flags: int) -> Pattern[str]:
    """Compiles a regular expression that was given to a helper. Raises ValueError when it is invalid or too long."""
    need(helper, "pattern", pattern, str)
    if len(pattern) > MAX_PATTERN_CHARS:
        raise ValueError(f"{helper}() takes a pattern of at most {MAX_PATTERN_CHARS} characters, not {len(pattern)}")
    try:
        return compile_pattern(pattern, flags)
    except (PatternError, OverflowError, RecursionError) as error:
        raise ValueError(f"{helper}() got an invalid pattern: {error}") from None


def _texts(text: Any) -> Generator[tuple[dict[str, Any], str], None, None]:
    if isinstance(text, str):
        yield {}, str.__str__(text)
    elif isinstance(text, (list, tuple, dict)):
        for index, item in text.items() if isinstance(text, dict) else enumerate(text):
            yield {"index": index}, item if isinstance(item, str) else str(item)
    else:
        hint = "`context` is not set: pass text=" if text is None else f"not {type_name(text)}"
        raise TypeError(f"search_context() searches a str, or a list or dict of texts; {hint}")


def need(helper: str, what: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"{helper}() needs {what} to be {kind.__name__}, not {type_name(value)}")
