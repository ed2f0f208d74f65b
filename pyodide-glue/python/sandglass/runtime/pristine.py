"""Copies that are taken before any user code ran: a private copy of the builtins, and JSON.

A module that begins with `from sandglass.runtime.pristine import BUILTINS as __builtins__` gets it for all its
functions (a function takes its builtins from `__builtins__` of its globals when it is defined). So
`builtins.len = None` in a cell breaks the cell, and not the runtime, at no cost.
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
