"""The runtime's own signal. User code can handle it as little as SIGKILL."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
from errno import EINVAL
from typing import TYPE_CHECKING, Any

from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)

if TYPE_CHECKING:
    from collections.abc import Callable

_set_handler, _valid_signals = _signal.signal, _signal.valid_signals


def reserve(number: int, own: Callable[[dict[str, Any], str, object], None]) -> None:
    """Keeps user code from handling the signal of this number. `own` is the method of `Runtime`."""

    def signal(signalnum: int, handler: Any, /) -> Any:
        """Set the action for the given signal, and return the previous one."""
        if signalnum == number:
            raise OSError(EINVAL, "Invalid argument")
        return _set_handler(signalnum, handler)

    def valid_signals() -> set[int]:
        """Return a set of the numbers of the signals that there are."""
        return _valid_signals() - {number}  # type: ignore[no-any-return]

    own(vars(_signal), "signal", signal)
    own(vars(_signal), "valid_signals", valid_signals)
