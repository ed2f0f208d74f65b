"""The rows of the allowlist: functions and methods that are pure, by exact type or identity; see `purity`."""

from __future__ import annotations

import ast
import collections
import json
import math
import operator
import re

from sandglass.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)

#: Kinds of values.
DATA, ITER, SET, PATTERN, MATCH, MATCHES, COUNTER = "data", "iter", "set", "pattern", "match", "matches", "counter"
ITERABLE = frozenset((DATA, ITER, SET, COUNTER))
TESTABLE = frozenset((DATA, MATCH, COUNTER, SET))
Kinds = frozenset[str]
PLAIN = frozenset((DATA,))

METHODS = frozenset(
    [
        "capitalize",
        "casefold",
        "center",
        "count",
        "encode",
        "decode",
        "endswith",
        "expandtabs",
        "find",
        "hex",
        "index",
        "isalnum",
        "isalpha",
        "isascii",
        "isdecimal",
        "isdigit",
        "isidentifier",
        "islower",
        "isnumeric",
        "isprintable",
        "isspace",
        "istitle",
        "isupper",
        "join",
        "ljust",
        "lower",
        "lstrip",
        "partition",
        "removeprefix",
        "removesuffix",
        "replace",
        "rfind",
        "rindex",
        "rjust",
        "rpartition",
        "rsplit",
        "rstrip",
        "split",
        "splitlines",
        "startswith",
        "strip",
        "swapcase",
        "title",
        "translate",
        "upper",
        "zfill",
        "bit_count",
        "bit_length",
        "is_integer",
        "as_integer_ratio",
        "copy",
        "get",
        "items",
        "keys",
        "values",
        "issubset",
        "issuperset",
        "isdisjoint",
    ]
)
VIEWS = frozenset(("items", "keys", "values"))
CODECS = frozenset(("utf-8", "utf8"))
COUNTER_METHODS = {"most_common": DATA, "items": ITER, "keys": ITER, "values": ITER, "get": DATA}
MATCH_METHODS = frozenset(("group", "groups", "start", "end", "span"))
PATTERN_METHODS = {
    "findall": DATA,
    "split": DATA,
    "sub": DATA,
    "finditer": MATCHES,
    "search": MATCH,
    "match": MATCH,
    "fullmatch": MATCH,
}
RE_FUNCTIONS = {vars(re)[name]: name for name in PATTERN_METHODS}
RE_FLAGS = {
    name: int(vars(re)[name])
    for name in ("A", "ASCII", "I", "IGNORECASE", "M", "MULTILINE", "S", "DOTALL", "X", "VERBOSE")
}

#: Builtin functions: the kinds of each argument (the last stands for all that follow), how many at least and at most,
#: and the kind of the result.
_D, _I = PLAIN, ITERABLE
BUILTINS: dict[str, tuple[tuple[Kinds, ...], int, int, str]] = {
    "len": ((_I,), 1, 1, DATA),
    "sum": ((_I - {COUNTER}, _D), 1, 2, DATA),
    "any": ((_I,), 1, 1, DATA),
    "all": ((_I,), 1, 1, DATA),
    "abs": ((_D,), 1, 1, DATA),
    "round": ((_D,), 1, 2, DATA),
    "divmod": ((_D,), 2, 2, DATA),
    "pow": ((_D,), 2, 3, DATA),
    "int": ((_D,), 0, 2, DATA),
    "float": ((_D,), 0, 1, DATA),
    "bool": ((TESTABLE,), 0, 1, DATA),
    "str": ((_D,), 0, 1, DATA),
    "repr": ((_D,), 1, 1, DATA),
    "ascii": ((_D,), 1, 1, DATA),
    "ord": ((_D,), 1, 1, DATA),
    "chr": ((_D,), 1, 1, DATA),
    "hex": ((_D,), 1, 1, DATA),
    "bin": ((_D,), 1, 1, DATA),
    "oct": ((_D,), 1, 1, DATA),
    "list": ((_I,), 0, 1, DATA),
    "tuple": ((_I,), 0, 1, DATA),
    "dict": ((frozenset((DATA, ITER)),), 0, 1, DATA),
    "set": ((frozenset((DATA, ITER)),), 0, 1, DATA),
    "frozenset": ((frozenset((DATA, ITER)),), 0, 1, DATA),
    "range": ((_D,), 1, 3, ITER),
    "enumerate": ((_I, _D), 1, 2, ITER),
    "zip": ((_I,), 1, 9, ITER),
    "reversed": ((frozenset((DATA, ITER)),), 1, 1, ITER),
    "next": ((frozenset((ITER,)), _D), 1, 2, DATA),
    "sorted": ((_I,), 1, 1, DATA),
    "min": ((_I,), 1, 9, DATA),
    "max": ((_I,), 1, 9, DATA),
}
KEYWORDS = {"sorted": ("key", "reverse"), "min": ("key", "default"), "max": ("key", "default"), "zip": ("strict",)}
KEYWORDS |= {"enumerate": ("start",), "sum": ("start",)}
#: Builtins that may be passed as a function of one item.
KEYS = frozenset(("len", "str", "int", "float", "abs", "ord", "repr", "sum", "max", "min", "bool", "tuple", "list"))
#: Types whose methods may be passed so.
TYPES = ("str", "bytes", "dict", "list", "tuple", "int", "float")
CLASSES = frozenset(("str", "bytes", "int", "float", "bool", "list", "tuple", "dict", "set", "frozenset"))
MATH = {
    vars(math)[name]
    for name in [
        "sqrt",
        "floor",
        "ceil",
        "log",
        "log2",
        "log10",
        "log1p",
        "exp",
        "pow",
        "sin",
        "cos",
        "tan",
        "atan",
        "atan2",
        "hypot",
        "gcd",
        "lcm",
        "comb",
        "factorial",
        "fabs",
        "fsum",
        "prod",
        "isnan",
        "isinf",
        "isfinite",
        "isclose",
        "isqrt",
        "trunc",
        "fmod",
        "copysign",
        "degrees",
        "radians",
        "dist",
    ]
}
JSON_KEYWORDS = frozenset(("indent", "ensure_ascii", "sort_keys"))
MODULES = {"math": math, "re": re, "json": json, "collections": collections, "operator": operator}
MODULE_NAMES = {id(module): name for name, module in MODULES.items()}
OPERATORS = (
    ast.Add,
    ast.Sub,
    ast.Mult,
    ast.Div,
    ast.FloorDiv,
    ast.Mod,
    ast.Pow,
    ast.BitAnd,
    ast.BitOr,
    ast.BitXor,
    ast.LShift,
    ast.RShift,
)
#: Attributes of `math` that are data.
CONSTANTS = (math.pi, math.e, math.inf)

#: All names of functions and attributes that pure code can have, for a first look at names that are no variables.
KNOWN_NAMES = frozenset(
    {*BUILTINS, *METHODS, *COUNTER_METHODS, *MATCH_METHODS, *PATTERN_METHODS, *RE_FLAGS, *CLASSES}
    | {"print", "map", "filter", "isinstance", "loads", "dumps", "Counter", "itemgetter", "fromkeys", "pi", "e", "inf"}
    | {function.__name__ for function in MATH}
)
