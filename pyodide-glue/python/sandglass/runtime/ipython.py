"""Names that notebook code imports from IPython: `display`, `HTML`, `Markdown`, … For when IPython itself is not
installed. `get_ipython()` returns None, as outside of a notebook.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING, Any

from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType


class _Shown:
    """Data with their own mime type."""

    _mime = ""

    def __init__(self, data: Any = None, url: str | None = None, filename: str | None = None, **_options: Any) -> None:
        if url is not None or (isinstance(data, str) and data.startswith(("http://", "https://"))):
            raise ValueError("url: the sandbox has no network; pass the data, or a filename")
        if filename is not None:
            with open(filename, "rb") as file:
                data = file.read() if self._is_binary else file.read().decode()
        self.data = data

    _is_binary = False

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return {self._mime: self.data}


class HTML(_Shown):
    _mime = "text/html"


class Markdown(_Shown):
    _mime = "text/markdown"


class Latex(_Shown):
    _mime = "text/latex"


class Math(Latex):
    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return {self._mime: f"$\\displaystyle {str(self.data).strip('$')}$"}


class SVG(_Shown):
    _mime = "image/svg+xml"


class JSON(_Shown):
    _mime = "application/json"


class Pretty(_Shown):
    _mime = "text/plain"


class Image(_Shown):
    _is_binary = True

    def __init__(self, data: Any = None, url: str | None = None, filename: str | None = None, **options: Any) -> None:
        if isinstance(data, str) and not data.startswith(("http://", "https://")):
            data, filename = None, data
        super().__init__(data, url, filename)
        kind = options.get("format") or ("jpeg" if bytes(self.data or b"")[:2] == b"\xff\xd8" else "png")
        self._mime = f"image/{str(kind).lower().replace('jpg', 'jpeg')}"


def clear_output(wait: bool = False) -> None:
    """Has no effect: displayed outputs stay."""


def get_ipython() -> None:
    """Returns None: there is no IPython shell."""


_SHOWN = (HTML, Markdown, Latex, Math, SVG, JSON, Pretty, Image)
for _class in _SHOWN:
    _class.__module__ = "IPython.display"


class Finder:
    """Finds these modules of IPython after all other finders have found none."""

    def __init__(self, display: Callable[..., None]) -> None:
        names: dict[str, Any] = {shown.__name__: shown for shown in _SHOWN}
        names |= {"display": display, "clear_output": clear_output}
        self._modules: dict[str, dict[str, Any]] = {
            "IPython": {"get_ipython": get_ipython, "version_info": (0, 0, 0), "__version__": "0", "display": display},
            "IPython.display": names,
            "IPython.core": {},
            "IPython.core.display": names,
        }

    def install(self) -> None:
        sys.meta_path.append(self)

    def uninstall(self) -> None:
        """Undoes `install`."""
        with suppress(ValueError):  # a cell may have removed the finder
            sys.meta_path.remove(self)

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> ModuleSpec | None:
        if name not in self._modules:
            return None
        return ModuleSpec(name, self, is_package=name in ("IPython", "IPython.core"))  # type: ignore[arg-type]

    def create_module(self, _spec: ModuleSpec) -> None:
        """Makes an ordinary module."""

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update(self._modules[module.__name__])
