"""Saves the user's variables by value, and puts them back in a fresh interpreter of the same build.

All variables are one pickle, so that shared objects stay shared. Plain pickle would write functions and classes of
cells as names; here they are written with their contents. A class is first created empty and then filled, so that it
may contain objects that refer to it. Loading calls no `__new__` and `__init__` of such classes for their instances, and
no `__init_subclass__` and `__set_name__` for the classes: they are copies, not new objects.

Objects of the interpreter (`globals()`, the helpers, `sys.stdout`, …) are written as numbers. Both sides put these
objects into the pickle's memo first, which costs nothing per object, unlike `persistent_id`.

An exception of user code costs only the variables that need it. When saving fails, each variable is tried alone. When
loading fails, `Salvager` goes on past the failure and notes the broken objects. Variables that lead to one are dropped.
"""

# Decisions: docs/internals/saving-and-restoring.md.

from __future__ import annotations

import sys
import types
from binascii import crc32
from contextlib import contextmanager
from gc import disable, enable, get_referents, isenabled
from importlib import import_module, invalidate_caches
from io import BytesIO
from marshal import dumps, loads
from os import chdir, getcwd
from struct import pack, unpack_from
from typing import TYPE_CHECKING, Any

from sandglass.runtime.namespace import MISSING
from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)
from sandglass.runtime.values import type_name
from sandglass.state.pickling import Loader, Lost, Salvager, Saver, bounded, is_importable, reason_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sandglass.runtime.namespace import Namespace
    from sandglass.runtime.sources import Sources

    Reasons = list[tuple[str, str]]

_MAGIC = b"sandglass-state\n"
_FORMAT = 2
_BUILD = f"{sys.implementation.cache_tag}, {sys.version}, format {_FORMAT}".encode()
_ESSENTIALS = {*vars(types.ModuleType("__main__")), "__builtins__"}
_GENERATORS = {"random": ("getstate", "setstate"), "numpy.random": ("get_state", "set_state")}
_SHARED = {  # objects of the interpreter that pickle would copy, or could not find
    "builtins": ("__dict__", "input"),
    "sys": ("modules", "path", "stdout", "stderr", "stdin"),
    "os": ("environ", "write"),
    "time": ("sleep",),
    "asyncio": ("run",),
    "asyncio.runners": ("run",),
    "random": ("_inst",),
    "numpy.random.mtrand": ("_rand",),
    "dataclasses": ("MISSING", "KW_ONLY", "_FIELD", "_FIELD_CLASSVAR", "_FIELD_INITVAR", "_HAS_DEFAULT_FACTORY"),
    "sandglass.runtime.errors": ("NotSerializable",),
    "sandglass.runtime.helpers": ("AwaitableStr", "AwaitableList"),
}


def save(namespace: Namespace, sources: Sources) -> tuple[bytes, Reasons]:
    """Returns the user's variables as bytes, and `(name, reason)` of each variable that could not be saved."""
    found = seeds(namespace)
    keys, shared = [key for key, _ in found], [value for _, value in found]
    variables, lost = _variables(namespace)
    parts = _dump_all(variables, shared, lost)
    parts.append(_dump_generators(shared, lost))
    try:
        folder = getcwd()
    except OSError:
        folder = None
    path = [entry for entry in sys.path if type(entry) is str] if type(sys.path) is list else []
    index = [(names, len(part)) for names, part in parts]
    head = dumps((keys, sources.kept(), folder, path, index))
    body = [pack("<II", len(_BUILD), len(head)), _BUILD, head, *(part for _, part in parts)]
    return b"".join([_MAGIC, pack("<I", _checksum(body)), *body]), [(bounded(name), reason) for name, reason in lost]


def load(data: bytes, namespace: Namespace, sources: Sources) -> Reasons:
    """Loads the variables. Returns `(name, reason)` of each that could not be loaded. Raises ValueError for unusable
    data.

    Only KeyboardInterrupt passes through, whatever user code does (such as a `__setstate__` that raises). Then no
    variable was set.
    """
    (keys, kept, folder, path, index), start = _open(data)
    lost: Reasons = []
    for filename, source in kept:
        sources.add(filename, source)
    try:
        if folder is not None:
            chdir(folder)
    except OSError as error:
        lost.append(("os.getcwd()", reason_of(error)))
    sys.path[:] = path + [entry for entry in sys.path if entry not in path]
    invalidate_caches()  # files may have been put there just now
    shared = [find_seed(key, namespace) for key in keys]
    found: dict[str, Any] = {}
    file = BytesIO(data)
    for names, size in index[:-1]:
        found.update(_load_part(file, start, names, shared, lost))
        start += size
    states = _load_part(file, start, index[-1][0], shared, lost)
    for name, value in found.items():
        _assign(namespace, name, value, lost)
    namespace.restore()
    for name, value in states.items():
        try:
            getattr(import_module(name), _GENERATORS[name][1])(value)
        except Exception as error:
            lost.append((f"{name}: its state", reason_of(error)))
    return [(bounded(name), reason) for name, reason in lost]


def _open(data: bytes) -> tuple[tuple[Any, ...], int]:
    """Returns the head, and the position of the first part."""
    start = len(_MAGIC) + 12
    if len(data) < start or not data.startswith(_MAGIC):
        raise ValueError("this is no saved state of Sandglass")
    checksum, build_size, head_size = unpack_from("<III", data, len(_MAGIC))
    if _checksum([memoryview(data)[len(_MAGIC) + 4 :]]) != checksum:
        raise ValueError("the saved state is damaged: its checksum is wrong")
    build, start = data[start : start + build_size], start + build_size
    if build != _BUILD:
        made, here = build.decode("utf-8", "replace"), _BUILD.decode()
        raise ValueError(f"the saved state is of another build of Python: it is of {made}; this is {here}")
    return loads(data[start : start + head_size]), start + head_size


def _checksum(parts: list[Any]) -> int:
    checksum = 0
    for part in parts:
        checksum = crc32(part, checksum)
    return checksum


def seeds(namespace: Namespace) -> list[tuple[tuple[str, str], Any]]:
    """Returns objects that stay in their interpreter, each once, with the key by which another finds its own."""
    return list({id(value): (key, value) for key, value in _seeds(namespace)}.values())


def _seeds(namespace: Namespace) -> Iterator[tuple[tuple[str, str], Any]]:
    yield ("", "__dict__"), namespace.globals
    yield ("", "module"), namespace.module
    for name, helper in (*namespace.aliases.items(), *namespace.helpers.items()):
        yield ("helper", name), helper
    for module, names in _SHARED.items():
        for name in names:
            value = getattr(sys.modules.get(module), name, MISSING)
            if value is not MISSING:
                yield (module, name), value


def find_seed(key: tuple[str, str], namespace: Namespace) -> Any:
    module, name = key
    if not module:
        return namespace.globals if name == "__dict__" else namespace.module
    if module == "helper":
        missing = Lost(f"there is no helper {name}() here")
        return namespace.helpers.get(name, namespace.aliases.get(name, missing))
    try:
        return getattr(import_module(module), name)
    except Exception as error:
        return Lost(reason_of(error))


def _variables(namespace: Namespace) -> tuple[dict[str, Any], Reasons]:
    variables, lost = {}, []
    for name, value in list(namespace.globals.items()):
        if type(name) is not str:
            lost.append((f"<{type_name(name)}>", "its name in globals() is not a str"))
        elif name not in _ESSENTIALS and not namespace.is_ours(name):
            variables[name] = value
    if namespace.has_answer:
        variables["answer"] = namespace.answer
    return variables, lost


def _assign(namespace: Namespace, name: str, value: Any, lost: Reasons) -> None:
    if name in namespace.helpers:
        lost.append((name, "a helper has this name here"))
    elif name != "answer" or not namespace.has_answer:
        namespace.globals[name] = value
    elif issubclass(type(value), dict):
        namespace.answer = value


def _dump_all(variables: dict[str, Any], shared: list[Any], lost: Reasons) -> list[tuple[list[str], bytes]]:
    """Pickles all variables together. Moves those that cannot be pickled from `variables` to `lost`."""
    whole = _dump(variables, shared)
    if type(whole) is bytes:
        return [(list(variables), whole)]
    for name in list(variables):
        alone = _dump({name: variables[name]}, shared, _Nowhere())
        if type(alone) is str:
            lost.append((name, alone))
            del variables[name]
    whole = _dump(variables, shared)
    if type(whole) is bytes:
        return [(list(variables), whole)]
    # A hook has changed its mind. The others are saved all the same, but do not share objects any more.
    parts = []
    for name, value in variables.items():
        alone = _dump({name: value}, shared)
        if type(alone) is bytes:
            parts.append(([name], alone))
        else:
            lost.append((name, str(alone)))
    return parts


def _dump_generators(shared: list[Any], lost: Reasons) -> tuple[list[str], bytes]:
    """Saves the states of the global random number generators."""
    states: dict[str, Any] = {}
    for name, (get, _) in _GENERATORS.items():
        if name in sys.modules:
            try:
                states[name] = getattr(sys.modules[name], get)()
            except Exception as error:
                lost.append((f"{name}: its state", reason_of(error)))
    dumped = _dump(states, shared)
    if type(dumped) is bytes:
        return list(states), dumped
    lost.append(("random: its state", str(dumped)))
    return [], _dump({}, shared)  # type: ignore[return-value]


def _dump(value: object, shared: list[Any], file: BytesIO | None = None) -> bytes | str:
    """Returns the pickle, or the reason why there is none."""
    file = file or BytesIO()
    try:
        with without_collector():
            Saver(file, shared).dump(value)
        return file.getvalue()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return reason_of(error)


@contextmanager
def without_collector() -> Iterator[None]:
    """Turns garbage collection off. New objects live until the end, and each collection would search them all."""
    enabled = isenabled()
    disable()
    try:
        yield
    finally:
        if enabled:
            enable()


class _Nowhere(BytesIO):
    def write(self, data: Any, /) -> int:
        return len(data)


def _load_part(file: BytesIO, start: int, names: list[str], shared: list[Any], lost: Reasons) -> dict[str, Any]:
    if not any(type(value) is Lost for value in shared):
        try:
            return _read(Loader(file, shared), file, start)
        except KeyboardInterrupt:
            raise
        except BaseException:
            pass  # load again, to learn the cause
    salvager = Salvager(file, shared)
    try:
        values = _read(salvager, file, start)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        reason = reason_of(error)
        lost += [(name, reason) for name in names]
        return {}
    for name in names if salvager.broken else ():
        reasons = _leads_to(values[name], salvager.broken, shared)
        if reasons is not None:
            lost.append((name, reasons))
            del values[name]
    return values


def _read(unpickler: Any, file: BytesIO, start: int) -> dict[str, Any]:
    file.seek(start)
    with without_collector():
        unpickler.load()  # the shared objects
        values: dict[str, Any] = unpickler.load()
        return values


def _leads_to(value: object, broken: dict[int, tuple[object, str]], shared: list[Any]) -> str | None:
    """Returns the reason of a broken object that a value refers to; None without one. Runs no user code."""
    seen = set(map(id, shared))
    seen.update(id(vars(module)) for module in list(sys.modules.values()) if issubclass(type(module), types.ModuleType))
    todo = [value]
    while todo:
        part = todo.pop()
        if id(part) in broken:
            return broken[id(part)][1]
        if id(part) in seen:
            continue
        seen.add(id(part))
        if issubclass(type(part), types.ModuleType):
            continue
        if issubclass(type(part), (type, types.FunctionType)) and is_importable(part):
            continue
        todo += get_referents(part)
    return None
