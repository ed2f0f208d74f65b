"""Builtins and JSON as they were before any user code ran, for the runtime itself.

A module uses this copy when it begins with `from sandglass.runtime.pristine import BUILTINS as __builtins__`. A
function takes its builtins from `__builtins__` of its globals when it is defined. So `builtins.len = None` in a cell
breaks only the cell, and the protection costs nothing.
"""

from __future__ import annotations

import builtins
from _json import encode_basestring, make_encoder
from json import JSONDecoder, JSONEncoder
from typing import Any

BUILTINS = dict(vars(builtins))
_pieces = make_encoder(None, JSONEncoder().default, encode_basestring, None, ":", ",", False, False, True)
_scan = JSONDecoder().scan_once  # type: ignore[attr-defined]


def to_json(value: object) -> str:
    """Stands for `json.dumps`, without spaces and escapes. Cells may have changed what the original uses."""
    return "".join(_pieces(value, 0))


def from_json(text: str) -> Any:
    """Stands for `json.loads`, for text without space around it."""
    return _scan(text, 0)[0]
