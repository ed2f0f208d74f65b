"""The rules for code of a `JupyterREPL`: its builtins, and IPython's magics."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, Any

from sandglass.jupyter import kernel
from sandglass.runtime.compiling import compile_cell
from sandglass.runtime.output import no_input
from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType

#: Builtins that would run code outside of the REPL, or wait for somebody to type.
_BLOCKED = ("eval", "exec", "compile", "globals", "locals", "breakpoint", "exit", "quit")


def safe_builtins(allow_imports: bool) -> dict[str, Any]:
    """Returns the builtins of Python and IPython, without those that are out of place in a cell."""
    found = dict(vars(builtins))
    for name in _BLOCKED:
        found[name] = _blocked(name)
    found["input"] = no_input
    if not allow_imports:
        del found["__import__"]
    if kernel.find_shell() is not None:
        from IPython.core.getipython import get_ipython  # type: ignore[import-not-found]
        from IPython.display import display  # type: ignore[import-not-found]

        found.update(get_ipython=get_ipython, display=display)
    return found


def _blocked(name: str) -> Callable[..., Any]:
    def blocked(*_args: object, **_options: object) -> None:
        raise RuntimeError(f"{name}() is not available to code of a JupyterREPL: write what it would do as code")

    blocked.__name__ = blocked.__qualname__ = name
    return blocked


def compile_code(code: str, filename: str, shell: Any) -> tuple[list[CodeType], bool]:
    """Returns the cell's code, and whether it has magics. Text that is no Python may be IPython's syntax."""
    try:
        return compile_cell(code, filename), False
    except SyntaxError:
        if shell is None:
            raise
        try:
            plain = shell.transform_cell(code)
            if plain.strip() != code.strip():
                return compile_cell(plain, filename), True
        except SyntaxError:
            pass  # raise the first error, which is about the code as it was written
        raise
