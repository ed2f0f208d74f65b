"""The codecs of libraries: registered when a library is loaded, or when a state has values of it."""

# Decisions: docs/internals/saving-and-restoring.md.

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Modules with codecs, by the library's name. The names of their codecs begin with the library's.
_CODECS = {"numpy": "sandglass.state.portable.arrays", "pandas": "sandglass.state.portable.frames"}


def register_loaded() -> None:
    """Registers the codecs of libraries that the user's code has loaded."""
    for name, module in _CODECS.items():
        if hasattr(sys.modules.get(name), "__version__"):
            import_module(module)


def register_for(codecs: Iterable[str]) -> None:
    """Registers the codecs that a state needs, as far as their libraries are here."""
    for name, module in _CODECS.items():
        if any(codec.startswith(f"{name}.") for codec in codecs):
            try:
                import_module(module)
            except ImportError:
                continue  # the values are lost, and `reading` says of which kind they are
