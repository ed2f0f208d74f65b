"""Rich outputs: objects given to `display`, the value of a cell's last expression, and figures.

An object is shown as the richest of its representations, by the methods that Jupyter calls: `_repr_mimebundle_`,
`_repr_html_`, … or, for figures, `savefig`. The methods are looked up on the object's class and are user code: an
exception goes to stderr as one line, and a result is checked.
"""

from __future__ import annotations

from binascii import a2b_base64
from io import BytesIO
from json import dumps
from typing import TYPE_CHECKING, Any

from sandglass.runtime.output import printable
from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)
from sandglass.runtime.values import as_text, safe_repr, type_name

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

_MAX_NOTE_CHARS = 500
_PLAIN = "text/plain"
#: Mime types by method, from the richest down.
_METHODS = {
    "text/html": "_repr_html_",
    "text/markdown": "_repr_markdown_",
    "text/latex": "_repr_latex_",
    "image/svg+xml": "_repr_svg_",
    "image/png": "_repr_png_",
    "image/jpeg": "_repr_jpeg_",
    "application/pdf": "_repr_pdf_",
    "application/json": "_repr_json_",
}
_RANKS = {mime: rank for rank, mime in enumerate(_METHODS)}
#: Types that have no representation but their repr.
_NEVER_RICH = frozenset({int, float, complex, bool, str, bytes, list, tuple, dict, set, frozenset, range})


class Displays:
    """The rich outputs of one runtime, bounded per execution.

    `send` takes a mime type, data, and whether it is the last expression's value. `complain` takes a line.
    """

    def __init__(self, send: Callable[[str, bytes, bool], None], complain: Callable[[str], object]) -> None:
        self._send = send
        self._complain = complain
        self._most = 0
        self._most_bytes = self._most_bytes_of_all = 0.0
        self._count = self._bytes = 0
        #: The number of outputs of this execution that were too many or too large to send.
        self.omitted = 0

    def limit(self, most: int, most_bytes: float, most_bytes_of_all: float) -> None:
        """Sets the limits of an execution: the number of outputs, the size of one, and the size of all."""
        self._most, self._most_bytes, self._most_bytes_of_all = most, most_bytes, most_bytes_of_all

    def begin(self) -> None:
        """Resets the counts for a new execution."""
        self._count = self._bytes = self.omitted = 0

    @property
    def is_full(self) -> bool:
        """Returns true when this execution's limits are used up."""
        return self._count >= self._most

    def display(
        self,
        *objects: object,
        include: Collection[str] | None = None,
        exclude: Collection[str] | None = None,
        raw: bool = False,
        **_options: object,
    ) -> None:
        """Shows objects as rich outputs of the cell: HTML, images, Markdown, … as each of them supports.

        `include` and `exclude` are mime types. With `raw`, an object is a dict of mime types and data. Other options of
        IPython's function have no effect.
        """
        for value in objects:
            if self.is_full:
                self.omitted += 1
                continue
            found = (
                self._from_bundle(value, value, "display", include, exclude)
                if raw
                else self._represent(value, include, exclude)
            )
            if found is None and not raw and _wanted(_PLAIN, include, exclude):
                found = _PLAIN, printable(safe_repr(value)).encode()
            if found is not None:
                self._emit(*found)

    def show(self, value: object, *, is_result: bool = False) -> bool:
        """Shows a value that has a richer form than its repr.

        Returns true if it did. `is_result`: the repr is sent too.
        """
        if type(value) in _NEVER_RICH:
            return False
        found = self._represent(value)
        if found is None or found[0] == _PLAIN:
            return False
        self._emit(*found, is_result=is_result)
        return True

    def _emit(self, mime: str, data: bytes, *, is_result: bool = False) -> None:
        size = len(data)
        if self.is_full or size > self._most_bytes or self._bytes + size > self._most_bytes_of_all:
            self.omitted += 1
            return
        self._count += 1
        self._bytes += size
        self._send(mime, data, is_result)

    def _represent(
        self, value: object, include: Collection[str] | None = None, exclude: Collection[str] | None = None
    ) -> tuple[str, bytes] | None:
        """Returns the richest representation of an object as mime type and data; None when there is only its repr."""
        name = "_repr_mimebundle_"
        bundle = self._call(value, name, include=include, exclude=exclude)
        found = None if bundle is None else self._from_bundle(bundle, value, name, include, exclude)
        if found is not None and found[0] != _PLAIN:
            return found
        for mime, name in _METHODS.items():
            if _wanted(mime, include, exclude):
                data = self._call(value, name)
                checked = None if data is None else self._check(mime, data, value, name)
                if checked is not None:
                    return mime, checked
        if _wanted("image/png", include, exclude):
            image = BytesIO()
            self._call(value, "savefig", image, format="png")
            if not image.closed and image.tell():
                return "image/png", image.getvalue()
        return found

    def _call(self, value: object, name: str, *args: Any, **options: Any) -> Any:
        """Calls a method of an object. Returns None when its class lacks the method, or the method fails."""
        try:
            # On the class: an instance may answer to every name, and a class is no instance of itself.
            method = getattr(type(value), name, None)
            return method(value, *args, **options) if callable(method) else None
        except NotImplementedError:
            return None
        except Exception as error:
            self.note(f"{name} of {type_name(value)} raised {type_name(error)}: {as_text(error)}")
            return None

    def _from_bundle(
        self,
        bundle: Any,
        value: object,
        name: str,
        include: Collection[str] | None,
        exclude: Collection[str] | None,
    ) -> tuple[str, bytes] | None:
        bundle = _without_metadata(bundle)
        if not issubclass(type(bundle), dict):  # `isinstance` believes an object's own `__class__`
            self.note(f"{name} of {type_name(value)}: {type_name(bundle)} is no dict of mime types")
            return None
        mimes = [mime for mime in dict.keys(bundle) if type(mime) is str and _wanted(mime, include, exclude)]
        mimes = [mime for mime in mimes if is_display(mime)]
        for mime in sorted(mimes, key=_rank):
            checked = self._check(mime, dict.get(bundle, mime), value, name)
            if checked is not None:
                return mime, checked
        return None

    def _check(self, mime: str, data: Any, value: object, name: str) -> bytes | None:
        """Returns the data in the form in which they are sent; None when there are none, or they are no valid data."""
        try:
            data = _without_metadata(data)
            if data is None:
                return None
            if is_binary(mime):
                # Jupyter's own convention: binary data as text is base64.
                return a2b_base64(data) if isinstance(data, str) else memoryview(data).tobytes()
            if not isinstance(data, str) and mime.endswith("json"):
                data = dumps(data)
            if isinstance(data, str):
                return printable(str.__str__(data)).encode()
            problem = f"{type_name(data)} is no text"
        except Exception as error:
            problem = f"{type_name(error)}: {as_text(error)}"
        self.note(f"{name} of {type_name(value)} returned no {mime}: {problem}")
        return None

    def note(self, what: str) -> None:
        """Tells the user on stderr why an output is not shown."""
        self._complain(f"sandglass: {printable(what[:_MAX_NOTE_CHARS])}\n")


def is_binary(mime: str) -> bool:
    """Returns true when data of a mime type are bytes, not text. The host has the same rule (`display.rs`)."""
    family = mime.partition("/")[0]
    return mime == "application/pdf" or (family in ("image", "audio", "video") and mime != "image/svg+xml")


def is_display(mime: str) -> bool:
    """Returns true when the host accepts this mime type: it is one, and no script."""
    family, _, subtype = mime.partition("/")
    if not subtype or "script" in subtype or len(mime) > 200:
        return False
    if not all("a" <= char <= "z" or "0" <= char <= "9" or char in "!#$&^_.+-" for char in subtype):
        return False
    return family == "text" or is_binary(mime) or mime == "image/svg+xml" or _is_json(family, subtype)


def _is_json(family: str, subtype: str) -> bool:
    return family == "application" and (subtype == "json" or subtype.endswith("+json"))


def _rank(mime: str) -> tuple[int, str]:
    return (len(_RANKS) + (mime == _PLAIN) if mime not in _RANKS else _RANKS[mime], mime)


def _wanted(mime: str, include: Collection[str] | None, exclude: Collection[str] | None) -> bool:
    return (include is None or mime in include) and (exclude is None or mime not in exclude)


def _without_metadata(data: Any) -> Any:
    if type(data) is tuple and len(data) == 2 and type(data[1]) is dict:
        return data[0]
    return data
