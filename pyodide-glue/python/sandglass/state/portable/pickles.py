"""The last resort: a group of variables as a pickle, for the same Python, the same Sandglass and the same packages.

`by_value` writes it, so functions of cells keep their globals. Arrays, and exceptions with a cause, are written by
their codecs, because pickle would lose the memory that they share, or the cause. Only guests open it.

A cell's class with a `__reduce__` or `__getstate__` of its own is asked, because nothing else is left. The answer has
to make an object of this class, and a note tells that it was asked. Other answers are refused.
"""

# Decisions: docs/internals/saving-and-restoring.md.

from __future__ import annotations

import copyreg
import json
import sys
import types
import weakref
from importlib import import_module
from io import BytesIO
from typing import TYPE_CHECKING, Any

from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)
from sandglass.runtime.values import type_name
from sandglass.state import by_value
from sandglass.state.pickling import MRO, VARS, Loader, Lost, Saver, is_native, make_instance, reason_of
from sandglass.state.portable import classes
from sandglass.state.portable.codec import BY_NAME, BY_TYPE
from sandglass.state.portable.graph import Cannot
from sandglass.state.portable.layout import TooLarge, parse, refused
from sandglass.state.portable.libraries import register_loaded
from sandglass.state.portable.names import has_name

if TYPE_CHECKING:
    from sandglass.state.portable.codec import Codec, Scope

    Reasons = list[tuple[str, str]]

_HOOKS = ("__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__getnewargs__", "__getnewargs_ex__")
_copyreg: Any = copyreg
#: Functions that make an object of the class that is among their first two arguments.
_MAKERS = (_copyreg.__newobj__, _copyreg.__newobj_ex__, _copyreg._reconstructor, make_instance)
_PROTOCOL = 5
_PYTHON = sys.implementation.cache_tag or sys.implementation.name
_REFUSED: tuple[type, ...] = (weakref.ref, weakref.WeakSet, weakref.WeakKeyDictionary, weakref.WeakValueDictionary)


class _Refused(Exception):
    pass


class _Saver(Saver):
    """Notes the packages of what it writes, and refuses what a pickle would change."""

    def __init__(self, file: BytesIO, shared: list[Any], scope: Scope) -> None:
        super().__init__(file, shared)
        self.modules: set[str] = set()
        self._scope = scope
        #: Classes that were looked at, each with the name of a hook that a cell gave it.
        self._judged: dict[int, tuple[type, str | None]] = {}

    def reducer_override(self, value: Any) -> Any:
        kind = type(value)
        judged = self._judged.get(id(kind))
        if judged is None:
            judged = self._judged[id(kind)] = kind, self._judge(kind)
        codec = _codec_for(value, self._scope)
        if codec is not None:
            try:
                return _reduced_by(codec, value, self._scope)
            except Cannot as error:
                raise _Refused(str(error)) from None
        array = getattr(sys.modules.get("numpy"), "ndarray", None)
        if array is not None and issubclass(kind, array) and not value.flags.writeable:
            raise _Refused("a pickle of an array does not keep that it is read-only")
        if issubclass(kind, (type, types.FunctionType)):
            self.modules.add(str(getattr(value, "__module__", None)).partition(".")[0])
        hook = judged[1]
        if hook is not None:
            return self._asked(value, kind, hook)
        if array is not None and issubclass(kind, array) and kind.__reduce__ is array.__reduce__:
            return _reduced_array(value)
        return super().reducer_override(value)

    def _judge(self, kind: type) -> str | None:
        """Returns the name of a hook that a cell gave to a class; None without one."""
        if issubclass(kind, _REFUSED):
            raise _Refused("a weak reference cannot go")
        if (kind.__module__, kind.__name__) == ("numpy", "memmap"):
            raise _Refused("an array that is mapped from a file cannot go")
        self.modules.add(str(kind.__module__).partition(".")[0])
        for base in MRO(kind):
            if is_native(base) or has_name(base):
                continue
            hook = next((hook for hook in _HOOKS if hook in VARS(base)), None)
            if hook is not None and type(VARS(base)[hook]) is types.FunctionType and _is_of_cell(VARS(base)[hook]):
                return hook
        return None

    def _asked(self, value: Any, kind: type, hook: str) -> Any:
        """Returns what an object's class tells of it, if that makes an object of the same class."""
        reduced = super().reducer_override(value)
        if reduced is NotImplemented:
            reduced = value.__reduce_ex__(_PROTOCOL)
        make, args = reduced[:2] if type(reduced) is tuple and len(reduced) > 1 else (None, ())
        is_new = type(make) is types.BuiltinFunctionType and make.__name__ == "__new__"
        has_kind = type(args) is tuple and any(arg is kind for arg in args[:2])
        if make is not kind and not (has_kind and (is_new or any(make is maker for maker in _MAKERS))):
            raise _Refused(f"its class {type_name(value)} has a {hook} of its own, which makes something else of it")
        self._scope.note(value, f"what {hook} leaves out", f"its class {type_name(value)} has a {hook} of its own")
        return reduced


def _is_of_cell(function: types.FunctionType) -> bool:
    """Returns false for functions of libraries, also for those that no name leads to."""
    module = sys.modules.get(function.__module__)
    is_library = function.__module__ != "__main__" and getattr(module, "__dict__", None) is function.__globals__
    return not is_library and not has_name(function)


# --- Values whose codecs keep more than pickle ------------------------------------------------------------------------

#: The surroundings of the pickle that is being read.
_reading: list[Scope] = []


def _codec_for(value: Any, scope: Scope) -> Codec | None:
    kind = type(value)
    if issubclass(kind, BaseException) and (value.__cause__ is not None or value.__context__ is not None):
        if classes.is_builtin_exception(kind):
            return classes.EXCEPTION
        if not has_name(kind):
            return classes.INSTANCE
        scope.note(value, "its cause, context and traceback", "a pickle of an exception of a library lacks them")
    elif kind is getattr(sys.modules.get("numpy"), "ndarray", None):
        has_fields = value.dtype.names is not None and value.dtype.hasobject
        return None if has_fields else BY_TYPE.get(id(kind))
    return None


def _reduced_by(codec: Codec, value: Any, scope: Scope) -> Any:
    parts = codec.take(value, scope)
    made = _made_by, (codec.name, parts[: codec.needed(parts)])
    return made if codec.fill is None else (*made, (codec.name, parts), None, None, _fill_by)


def _made_by(name: str, parts: list[Any]) -> Any:
    return BY_NAME[name].make(parts, _reading[-1])


def _fill_by(value: Any, state: tuple[str, list[Any]]) -> None:
    name, parts = state
    fill = BY_NAME[name].fill
    if fill is not None:
        fill(value, parts, _reading[-1])


def _reduced_array(value: Any) -> Any:
    """Adds the attributes of an array of a subclass, which NumPy leaves out."""
    make, args, state = value.__reduce__()
    return make, args, (state, object.__getstate__(value)), None, None, _fill_subclass


def _fill_subclass(value: Any, state: tuple[Any, Any]) -> None:
    content, attributes = state
    value.__setstate__(content)
    attributes, slots = attributes if type(attributes) is tuple else (attributes, None)
    if attributes:
        vars(value).update(attributes)
    for name, part in (slots or {}).items():
        object.__setattr__(value, name, part)


class _Bounded(BytesIO):
    def __init__(self, max_bytes: int) -> None:
        super().__init__()
        self._left = max_bytes

    def write(self, data: Any, /) -> int:
        self._left -= memoryview(data).nbytes
        if self._left < 0:
            raise TooLarge("it takes too many bytes")
        return super().write(data)


def dump(
    variables: dict[str, Any], scope: Scope, max_bytes: int
) -> tuple[tuple[list[bytes], dict[str, Any]] | None, str]:
    """Returns the objects and the entry of a group, or the reason why there is no pickle."""
    seeds = by_value.seeds(scope.namespace)
    file = _Bounded(max_bytes)
    try:
        with by_value.without_collector():
            saver = _Saver(file, [value for _, value in seeds], scope)
            saver.dump(variables)
    except KeyboardInterrupt:
        raise
    except TooLarge:
        raise TooLarge(f"the variables take more than {max_bytes} bytes; keep large data in files") from None
    except _Refused as error:
        return None, str(error)
    except BaseException as error:
        return None, reason_of(error)
    keys = json.dumps([key for key, _ in seeds]).encode()
    entry = {"codec": "pickle", "python": _PYTHON, "packages": versions(saver.modules)}
    return ([file.getvalue(), keys], entry), ""


def versions(modules: set[str]) -> dict[str, str]:
    """Returns the versions of packages, and of Sandglass, by the names of their modules."""
    found = {}
    for name in sorted(modules | {"sandglass"}):
        version = getattr(sys.modules.get(name), "__version__", None)
        if name not in sys.stdlib_module_names and type(version) is str:
            found[name] = version
    return found


def check(group: dict[str, Any], objects: list[memoryview]) -> dict[str, Any]:
    """Checks the entry of a group without opening the pickle. Returns it."""
    packages = group.get("packages")
    keys = parse(objects[1]) if len(objects) == 2 else None
    if type(group.get("python")) is not str or type(packages) is not dict:
        raise refused("a pickle does not say for which Python and packages it is")
    if any(type(version) is not str for version in packages.values()):
        raise refused("a pickle names a package without a version")
    if type(keys) is not list or not all(
        type(key) is list and [type(part) for part in key] == [str, str] for key in keys
    ):
        raise refused("a pickle has no list of the sandbox's objects")
    return {**group, "keys": [(module, name) for module, name in keys]}


def load(
    group: dict[str, Any],
    objects: list[memoryview],
    names: list[str],
    scope: Scope,
    found: dict[str, Any],
    lost: Reasons,
) -> None:
    """Opens a pickle if it is for this Python and these packages."""
    reason = _against(group)
    if reason is None:
        shared = [by_value.find_seed(key, scope.namespace) for key in group["keys"]]
        gone = next((value.reason for value in shared if type(value) is Lost), None)
        _reading.append(scope)
        try:
            if gone is not None:
                raise ValueError(gone)
            register_loaded()
            with by_value.without_collector():
                loader = Loader(BytesIO(objects[0]), shared)
                loader.load()  # the shared objects
                values = loader.load()
            if type(values) is not dict or any(name not in values for name in names):
                raise ValueError("its pickle has other variables than the head says")
            found.update({name: values[name] for name in names})
            return
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            reason = reason_of(error)
        finally:
            _reading.pop()
    lost += [(name, reason) for name in names]


def _against(group: dict[str, Any]) -> str | None:
    if group["python"] != _PYTHON:
        return f"it is a pickle of {group['python'][:40]}, and this is {_PYTHON}"
    for name, version in group["packages"].items():
        try:
            here = getattr(import_module(name), "__version__", None)
        except ImportError:
            here = None
        if here != version:
            return f"it is a pickle for {name[:40]} {version[:40]}, and here is {here or 'none'}"
    return None
