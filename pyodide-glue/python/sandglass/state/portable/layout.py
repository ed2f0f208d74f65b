"""The bytes of a portable state: magic, format, the head as JSON with its SHA-256, and the objects.

A *direct* state goes straight to another guest, and nobody keeps it. Its objects have a CRC-32 instead of a SHA-256,
which would take most of a move's time in wasm. Both only find damage.
"""

# Decisions: docs/internals/saving-and-restoring.md.

from __future__ import annotations

import json
from binascii import crc32
from hashlib import sha256
from struct import Struct
from typing import Any

from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)

MAGIC = b"sandglass-portable\n"
FORMAT = 1
MAX_HEAD_BYTES = 16 << 20
MAX_VARIABLES = 10_000
MAX_NAME_CHARS = 200
MAX_REASON_CHARS = 200
_DIGEST_BYTES = 32
_PREFIX = Struct(f"<II{_DIGEST_BYTES}s")
#: The keys of the head and of its entries, with the types of their values. No key may be missing.
_HEAD = {
    "format": int,
    "python": str,
    "packages": dict,
    "variables": list,
    "groups": list,
    "lost": list,
    "objects": list,
}
_VARIABLE = {"name": str, "type": str, "codec": str, "portability": str, "group": int, "reason": str}
_GROUP = {"codec": str, "objects": list}
_OBJECT = {"bytes": int}
#: The optional key `generators` has the objects of the states of global generators of random numbers.
_GENERATORS = {"objects": list}


class TooLarge(ValueError):
    """The state takes more than the bytes that are allowed."""


def lay_out(head: dict[str, Any], objects: list[bytes], max_bytes: int, is_direct: bool = False) -> list[bytes]:
    """Returns the pieces of a state, which follow each other. `objects` of the head is added here."""
    if is_direct:
        head["objects"] = [{"bytes": len(data), "crc32": crc32(data)} for data in objects]
    else:
        head["objects"] = [{"bytes": len(data), "sha256": sha256(data).hexdigest()} for data in objects]
    packed = json.dumps(head, ensure_ascii=True, separators=(",", ":")).encode()
    total = len(MAGIC) + _PREFIX.size + len(packed) + sum(map(len, objects))
    if total > max_bytes or len(packed) > MAX_HEAD_BYTES:
        raise TooLarge(f"the variables take {total} bytes, more than {max_bytes}; keep large data in files")
    return [MAGIC, _PREFIX.pack(FORMAT, len(packed), sha256(packed).digest()), packed, *objects]


def describe(data: bytes | memoryview) -> dict[str, Any]:
    """Returns the head of a state. Opens none of its objects, so hosts may call it. Raises ValueError."""
    return _head(memoryview(data).cast("B"))[0]


def split(data: bytes | memoryview, max_bytes: int) -> tuple[dict[str, Any], list[memoryview]]:
    """Returns the head and the objects. Raises ValueError unless every length and checksum is right."""
    view = memoryview(data).cast("B")
    if len(view) > max_bytes:
        raise refused(f"it has {len(view)} bytes, more than {max_bytes}")
    head, start = _head(view)
    objects = []
    for entry in head["objects"]:
        end = start + entry["bytes"]
        if not start <= end <= len(view):
            raise refused("it ends too early")
        piece = view[start:end]
        if not _is_intact(piece, entry):
            raise refused("an object has another checksum than the head says")
        objects.append(piece)
        start = end
    if start != len(view):
        raise refused(f"{len(view) - start} bytes follow its last object")
    return head, objects


def _is_intact(piece: memoryview, entry: dict[str, Any]) -> bool:
    if "sha256" in entry:
        return bool(sha256(piece).hexdigest() == entry["sha256"])
    return bool(crc32(piece) == entry["crc32"])


def _head(view: memoryview) -> tuple[dict[str, Any], int]:
    start = len(MAGIC) + _PREFIX.size
    if len(view) < start or view[: len(MAGIC)] != MAGIC:
        raise ValueError("this is no portable state of Sandglass; no variable was set")
    version, size, digest = _PREFIX.unpack_from(view, len(MAGIC))
    if version != FORMAT:
        raise refused(f"it has format {version}, and this Sandglass reads format {FORMAT}")
    if size > min(MAX_HEAD_BYTES, len(view) - start):
        raise refused("its head is too long, or cut off")
    packed = bytes(view[start : start + size])
    if sha256(packed).digest() != digest:
        raise refused("its head has another checksum than it says")
    head = parse(packed)
    _check(head, _HEAD, "the head")
    shapes: tuple[tuple[str, dict[str, Any]], ...] = (
        ("variables", _VARIABLE),
        ("groups", _GROUP),
        ("objects", _OBJECT),
    )
    for kind, shape in shapes:
        for entry in head[kind]:
            _check(entry, shape, f"an entry of `{kind}`")
    for pair in head["lost"]:
        if type(pair) is not list or [type(part) for part in pair] != [str, str]:
            raise refused("an entry of `lost` is no pair of texts")
    generators = [head["generators"]] if "generators" in head else []
    for entry in generators:
        _check(entry, _GENERATORS, "`generators`")
    for group in [*head["groups"], *generators]:
        if not all(_is_index(number, head["objects"]) for number in group["objects"]) or not group["objects"]:
            raise refused("a group names an object that does not exist")
    if len(head["variables"]) > MAX_VARIABLES or len(head["lost"]) > 2 * MAX_VARIABLES:
        raise refused("it has too many variables")
    names = [entry["name"] for entry in head["variables"]]
    if len(set(names)) != len(names):
        raise refused("it has two variables of the same name")
    if not all(_is_index(entry["group"], head["groups"]) for entry in head["variables"]):
        raise refused("a variable names a group that does not exist")
    if any(entry["bytes"] < 0 for entry in head["objects"]):
        raise refused("an object has a negative length")
    if not all("sha256" in entry or "crc32" in entry for entry in head["objects"]):
        raise refused("an object has no checksum")
    return head, start + size


def parse(data: bytes | memoryview) -> Any:
    """Reads JSON. Raises ValueError for everything that the JSON of states does not have."""
    try:
        return json.loads(str(data, "utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise refused(f"its JSON is not valid: {error}") from None


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is no number of JSON")


def _check(entry: Any, shape: dict[str, Any], what: str) -> None:
    if type(entry) is not dict or any(type(entry.get(key)) is not kind for key, kind in shape.items()):
        raise refused(f"{what} is malformed")


def _is_index(number: Any, items: list[Any]) -> bool:
    return type(number) is int and 0 <= number < len(items)


def refused(why: str) -> ValueError:
    return ValueError(f"the portable state is refused: {why}; no variable was set")
