"""The state between two stateless runs: an LZ4 frame of a cloudpickle of a dict of variables.

In base64, this is the format of known stateless REPL servers, so that their clients' states work here. Where the
packages `cloudpickle` and `lz4` are not installed, a copy of the first and `lz4_frame.py` take their places, so guests
need nothing but Python. A state holds code objects, and so works within one minor version of Python only. Opening a
state runs code, so only guests open it.

As in cloudpickle, functions see the variables that they use as they were when the state was written.
"""

# Decisions: docs/internals/server.md.

from __future__ import annotations

import io
import json
import sys
import types
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from itertools import islice
from os.path import dirname, join
from struct import Struct
from typing import TYPE_CHECKING, Any

from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)
from sandglass.runtime.tracebacks import message_of
from sandglass.state import lz4_frame
from sandglass.state.lz4_frame import TooLarge

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sandglass.runtime.namespace import Namespace

_PIECE_BYTES = 1 << 20
_REASON_CHARS = 500
#: Objects that no other guest can continue, and what the caller is told of them.
_LEFT_OUT: dict[type, str] = {
    types.ModuleType: "a module: import it again",
    types.GeneratorType: "a generator, which only its own guest can continue",
    types.CoroutineType: "a coroutine, which only its own guest can continue",
    types.AsyncGeneratorType: "a generator, which only its own guest can continue",
    io.IOBase: "an open file: open it again",
}
_PRIVATE = "a private name, which states do not hold"
#: The most variables that are named as left out.
_MOST_NAMED = 1000
_NAME_CHARS = 200
_MOST_HEAD_BYTES = 2 << 20
_HEAD = Struct("<I")
_COPY = join(dirname(dirname(__file__)), "vendored", "cloudpickle")


def open_state(data: bytes | memoryview, max_bytes: int, namespace: Namespace) -> None:
    """Assigns the variables of a state.

    Raises ValueError for anything but such a state, or above `max_bytes` unpacked. Then no variable is set.
    """
    cloudpickle = _cloudpickle()
    pickled = _unpack(data, max_bytes)
    try:
        variables = cloudpickle.loads(pickled)
    except BaseException as error:
        raise ValueError(f"the state cannot be opened: {_reason(error)}; nothing was run") from None
    if type(variables) is not dict or not all(type(name) is str for name in variables):
        raise ValueError("the state is no dict of variables; nothing was run")
    for name, value in variables.items():
        if _is_public(name) and not namespace.is_ours(name):
            namespace.globals[name] = value


def capture_state(max_bytes: int, namespace: Namespace) -> tuple[bytes, list[tuple[str, str]]]:
    """Returns the user's variables, and `(name, reason)` of each that is left out.

    Raises ValueError when one of them cannot be written, or all take more than `max_bytes`.
    """
    variables: dict[str, Any] = {}
    left_out: list[tuple[str, str]] = []
    for name, value in namespace.items():
        reason = _reason_against(name, type(value))
        if reason is None:
            variables[name] = value
        elif len(left_out) < _MOST_NAMED:
            left_out.append((name[:_NAME_CHARS], reason))
    file = _Bounded(max_bytes)
    try:
        _pickler(_cloudpickle(), file, namespace).dump(variables)
    except TooLarge:
        raise ValueError(f"the variables take more than {max_bytes} bytes; keep large data in files") from None
    except BaseException as error:
        raise ValueError(_reason(error)) from None
    lz4 = _lz4()
    packed: bytes = lz4.compress(file.getbuffer()) if lz4 else lz4_frame.pack(file.getbuffer())
    return packed, left_out


def _reason_against(name: str, kind: type) -> str | None:
    """Returns the reason for which a variable is left out, if there is one."""
    if not _is_public(name):
        return _PRIVATE
    return next((reason for left_out, reason in _LEFT_OUT.items() if issubclass(kind, left_out)), None)


def join_state(pieces: Iterable[bytes], left_out: Iterable[Sequence[str]]) -> bytes:
    """Joins the pieces of a state, after each `(name, reason)` of a variable that it lacks: JSON, after its length."""
    named = [(name[:_NAME_CHARS], reason) for name, reason in islice(left_out, _MOST_NAMED)]
    head = json.dumps(named, ensure_ascii=False).encode("utf-8", "replace")
    return b"".join([_HEAD.pack(len(head)), head, *pieces])


def split_state(body: bytes) -> tuple[bytes, list[tuple[str, str]]]:
    """The parts of `join_state`. Raises ValueError for anything else, since a guest may have written it."""
    if len(body) < _HEAD.size:
        raise ValueError("the state is too short")
    end = _HEAD.size + _HEAD.unpack_from(body)[0]
    if end > min(len(body), _MOST_HEAD_BYTES):
        raise ValueError("the names before the state are too long")
    left_out = json.loads(body[_HEAD.size : end])
    if not (type(left_out) is list and len(left_out) <= _MOST_NAMED and all(map(_is_pair, left_out))):
        raise ValueError("the names before the state are malformed")
    return body[end:], [(name, reason) for name, reason in left_out]


def _is_pair(item: Any) -> bool:
    return type(item) is list and [type(part) for part in item] == [str, str]


def _pickler(cloudpickle: Any, file: io.BytesIO, namespace: Namespace) -> Any:
    """Writes helpers as their names, because the next guest has its own."""
    names = {id(value): name for name, value in (namespace.aliases | namespace.helpers).items()}

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, value: Any) -> Any:
            name = names.get(id(value))
            return super().reducer_override(value) if name is None else (helper, (name,))

    return Pickler(file)


def helper(name: str) -> Any:
    """Returns the helper of this name, in the guest that opens a state."""
    return getattr(sys.modules["__main__"], name)


class _Bounded(io.BytesIO):
    """Takes a bounded number of bytes, so that a state that is too large is never put together."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__()
        self._left = max_bytes

    def write(self, data: Any, /) -> int:
        self._left -= memoryview(data).nbytes
        if self._left < 0:
            raise TooLarge
        return super().write(data)


def _unpack(packed: bytes | memoryview, max_bytes: int) -> bytes:
    """Unpacks an LZ4 frame. Refuses a frame of more than `max_bytes` before it is unpacked."""
    lz4 = _lz4()
    try:
        return _unpack_with(lz4, packed, max_bytes) if lz4 else lz4_frame.unpack(packed, max_bytes)
    except TooLarge:
        raise ValueError(f"the state unpacks to more than {max_bytes} bytes; nothing was run") from None
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"the state is no LZ4 frame: {_reason(error)}; nothing was run") from None


def _unpack_with(lz4: Any, packed: bytes | memoryview, max_bytes: int) -> bytes:
    unpacker = lz4.LZ4FrameDecompressor()
    pieces = []
    left = max_bytes
    # The size in the frame may be wrong, so each piece is bounded.
    size = min(max(lz4.get_frame_info(packed)["content_size"], _PIECE_BYTES), max_bytes + 1)
    while not unpacker.eof:
        piece = unpacker.decompress(packed, max_length=size)
        if not piece and unpacker.needs_input:
            raise ValueError("it ends too early")
        packed, size = b"", _PIECE_BYTES
        left -= len(piece)
        if left < 0:
            raise TooLarge
        pieces.append(piece)
    return b"".join(pieces)


def _is_public(name: str) -> bool:
    return name.isidentifier() and not name.startswith("_")


def _lz4() -> Any:
    """The module `lz4.frame`; None where the package is not installed."""
    try:
        return import_module("lz4.frame")
    except ImportError:
        return None


def _cloudpickle() -> Any:
    """The installed cloudpickle, else our copy. Pickles name its functions, so the copy has the same name."""
    name = "cloudpickle"
    try:
        return import_module(name)
    except ImportError:
        spec = spec_from_file_location(name, join(_COPY, "__init__.py"), submodule_search_locations=[_COPY])
    if spec is None or spec.loader is None:
        raise ValueError(f"states need the package {name}, and its copy is missing")
    module = sys.modules[name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _reason(error: BaseException) -> str:
    return message_of(error)[:_REASON_CHARS]
