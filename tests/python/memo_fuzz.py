"""Random sessions in two processes, one with the memo and one without: whatever a cell can tell has to be the same.

`python tests/python/memo_fuzz.py --hits 100000 --seed 1` runs until so many statements were answered by the memo.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

#: Cells in a session, statements that repeat in it, and expressions that those are made of.
CELLS, REPEATED, PURES = 60, 14, 12

SETUP = """import json, math, random, re, string, sys, gc, builtins, collections, operator, warnings, copy
from collections import Counter
random.seed(5)
t = "The quick brown fox, 12 jumps over 3 lazy dogs; the END.\\n" * 3
u = "stop words of the fox"
big = t * 200
l = t.split()
m = [3, 1.5, True, -0.0, 0.0, 1, 10**20, 7, 300, 300]
d = {"a": 1, "b": 2, "fox": 300, "the": 1.0}
rows = [{"n": i, "name": "x" * i, "tags": ["p", "q" * i]} for i in range(4)]
tup = ("one", 2, 3.0, ("in", "side"), b"x")
s = {"the", "fox", "dogs;", "12"}
fs = frozenset(["a", "b"])
p = re.compile(r"[a-z]+")
pt = r"\\w+"
k, q, by, none, flag = 2, 2.5, b"some bytes, some", None, True
j = json.dumps(rows)
def f(v): return v
class Txt(str): pass
class Lst(list): pass
class Boom:
    def __eq__(self, other): raise ValueError("eq")
    __hash__ = None
    def __repr__(self): return 'boom'
o = Boom()
keep = []
"""

PURE = """len(t)
len(l) + len(m)
t.upper()
t.split()
t.split(",")
u.strip()
t.replace("fox", "cat")
t.replace("absent", "cat")
big.count("fox")
big.lower()[:50]
big
big[:]
t[:5]
t[k:k + 3]
l[:k]
l[0]
l[-1].upper()
sorted(l)
sorted(l, key=len)
sorted(l, key=str.lower, reverse=True)
sorted(m)
sorted(d)
sorted(d.items())
sorted(d.items(), key=lambda kv: kv[1])
sorted(s)
max(l)
max(l, key=len)
min(m)
max(m)
max(d, key=d.get)
sum(m)
sum(len(w) for w in l)
[w for w in l if "o" in w]
[w for w in l if w in s]
[w.strip(".,;") for w in l]
[len(w) for w in l]
[x * 2 for x in m]
[(i, w) for i, w in enumerate(l)]
[[w, w] for w in l[:3]]
[r["name"] for r in rows]
[r["n"] * 100 for r in rows]
[r for r in rows if r["n"] > 1]
{w: len(w) for w in l}
{w: l.count(w) for w in l}
{w[0] for w in l}
set(l)
len(set(l))
sorted(set(l))
list(dict.fromkeys(l))
dict(zip(l, m))
list(zip(l, m))
list(d)
list(d.keys())
list(d.values())
list(d.items())
dict(d)
d.get("fox")
d.get("absent", k)
d["a"] + k
d.copy()
l.copy()
list(l)
tuple(l)
tuple(tup)
tup
tup[3]
tup[0:2]
l + l
l * 2
[t]
[t, t, u]
[u] * 3
(t, u)
{"t": t, "n": k * 1000}
",".join(l)
"".join([u])
"".join(reversed(u))
f"{k}-{q:.2f}-{u!r}"
"%s %d" % (u, k)
str(m)
repr(d)
str(u)
int("12") + k
float("1.5") * q
round(q, 1)
abs(-k)
divmod(k * 1000, 7)
k * 1000
k + 0
q + 0.0
k / 3
-q
none
flag
not flag
flag and u
str(flag)
f"{not flag}"
u or t
u if flag else t
any(x > 5 for x in m)
all(len(w) for w in l)
isinstance(u, str)
isinstance(k, (int, float))
by.split()
by.decode()
by[:4]
by.hex()
u.encode()
u.partition("of")
u.title()
u.center(40)
list(map(len, l))
list(map(str.upper, l))
list(filter(None, m))
list(range(k * 3))
list(reversed(l))
next((w for w in l if "z" in w), None)
re.findall(r"\\w+", t)
re.findall(pt, t)
re.findall(r"(\\w)(\\w)", u)
re.findall("quick.*", t)
re.sub("fox", "cat", t)
re.sub("absent", "cat", t)
re.sub(r"\\d+", "#", t, count=1)
re.split(r"\\s+", u)
re.split("absent", u)
re.search("fox", t).start()
re.search("stop.*", u).group()
re.findall("THE", t, re.I)
re.findall("the", t, flags=re.I | re.M)
[x.group() for x in re.finditer(r"\\d+", t)]
p.findall(u)
p.sub("-", u)
p.match(u).group(0)
p.search("123") is None
json.loads(j)
json.loads(j)[1]["name"]
json.dumps(rows)
json.dumps(d, indent=1)
json.dumps(d, sort_keys=True)
Counter(l).most_common(3)
Counter(l).most_common()
Counter(u)["o"]
len(Counter(l))
collections.Counter(t).most_common(2)
sorted(Counter(l).items(), key=operator.itemgetter(1))
math.sqrt(k)
math.floor(q) + math.pi
math.fsum(x for x in m)
json.loads('[NaN, 1.5, Infinity]')
json.dumps(-1e999)
[x.groupdict() for x in re.finditer("(?P<word>o.)", t)]
math.pi
t.splitlines()
t.splitlines()[0]
t == u
u in t
"fox" in l
1 in m
"the" in s
len(s)
len(fs)
list(s)
m.index(1)
m.count(1)
l.index("fox,")
t.find("fox")
rows[0]
rows[1]["tags"]
rows[-1]["tags"][-1]
len(rows)
str(rows)
[x for r in rows for x in r["tags"]]
{r["n"]: r["name"] for r in rows}
[x is None for x in m]
"A".lower()
[c.upper() for c in u]
[w[:1] for w in l]
["ab" + "c" for w in l]
["a b" for w in l]
[300 for w in l]
[w for w in l] + ["the end"]
[300, 300 + k, k]
[1.5, q]
()
[]
{}
""
[()]
([], {}, "", 0)
m[3]
m[7:]
[m[8], m[9]]
[l[0], l[0], l[1]]
chr(k + 100)
ord(u[0])
bin(k)
str(10**30 + k)
list(enumerate(s))
t.translate({102: "F"})
l[1:] == l[:-1]
sum(x for x in m if x) / len(m)
sorted(l + [u])
[u, *l]
{**d, "z": k}
max(len(w) for w in l)
undefined_name
l[k * 100]
d["absent"]
int(u)
1 / (k - k)""".splitlines()

#: Expressions with others in them, some of which are evaluated or answered by themselves.
COMPOSED = """[({a}), ({b})]
(({a}), ({b}), ({a}))
{{'one': ({a}), 'other': ({b})}}
len({a})
str({a})
sorted({a})
sorted({a}, key=str)[:2]
list({a})
tuple({a})
({a}) if flag else ({b})
({a}) or ({b})
max(({a}), ({b}))
min([({a}), k])
[x for x in ({a})]
[(x, max(1.5, x)) for x in m if x != ({a})]
({a}) + ({b})
({a})[:2]
({a})[0]
[({a})] * 2
({a}) == ({b})
({a}) < ({b}) < ({a})
[1.5, max(1.5, q), min(1.5, k), ({a})]
[300, max(300, k), ({a}), max((300, 0))]
(', ', max(', ', u), [', '.join(l)], max(u, ', '), ({a}))
[("a b", 1.5), tuple(("a b", 1.5)), max(("a b", 1.5), (u, q)), ({a})]
["ab cd".strip(), "ab cd", ({a})]
[sorted(("x y", ({b}), "x y"), key=len), "x y"]
(-1.5, max(-1.5, -q), ({a}))
(({a}), u.encode(), b"x y", max(b"x y", by))
sum([len({a}), len({b})])
str(({a})) + repr({b})
"{{}} and so on".replace("{{}}", str({a}))
list(zip(({a}), ({b})))
list(map(str, ({a})))
dict(enumerate({a}))
list(filter(lambda v: v != len({b}), ({a})))
next(iter([({a})]), ({b}))
(lambda v: v)({a})""".splitlines()

#: Kinds of changes: several of a kind are one kind. None leaves it to the garbage collector when something is told: that
#: counts objects, of which there are fewer when results are made again.
CHANGES: dict[str, list[str]] = {
    "append": ["l.append('fox')", "m.append(k)", "m.append(q)", "rows.append({'n': 9, 'name': 'x', 'tags': []})"],
    "equal value of another type": [
        "m[0] = 3.0",
        "m[5] = True",
        "m[2] = 1",
        "d['the'] = 1",
        "k = float(k)",
        "k = int(k)",
    ],
    "zeros": ["m[3] = 0.0", "m[3] = -0.0", "q = -q"],
    "NaN": ["m[1] = float('nan')", "m[1] = 1.5", "q = math.nan", "q = 2.5"],
    "an equal list": [
        "l = list(l)",
        "m = [*m]",
        "l = ' '.join(l).split()",
        "d = dict(d)",
        "l = json.loads(json.dumps(l))",
    ],
    "an equal text": [
        "u = ''.join(list(u))",
        "t = t + ''",
        "t = ''.join([t[:3], t[3:]])",
        "big = t * 200",
        "big = big[:-1] + big[-1]",
    ],
    "another text": [
        "t = t[1:]",
        "t += 'x'",
        "u = u.title()",
        "u = 'stop words of the fox'",
        "big = big[:-1]",
        "u = ' ' + u",
        "u = u.strip()",
    ],
    "another number": ["k += 1", "k = 2", "q *= 2", "q = 2.5", "k = 300"],
    "nested": [
        "rows[0]['tags'].append('new')",
        "rows[1]['n'] += 1",
        "rows[2]['name'] = rows[1]['name']",
        "del rows[0]['tags'][0]",
    ],
    "an alias": ["l2 = l\nl2.append('by alias')", "r = rows[0]\nr['n'] = 50", "keep.append(l)", "l = l2 = l"],
    "order": ["l.reverse()", "l.sort()", "d['a'] = d.pop('a')", "rows.reverse()", "m.sort(key=str)"],
    "shared items": ["l[0] = l[1]", "l[2] = l[0]", "m[8] = m[9]", "l[0] = ''.join(list(l[1]))", "rows[0] = rows[1]"],
    "del": ["del u\nu = 'stop words of the fox'", "del l[0]", "del m", "del d['a']", "del t"],
    "back": [
        "l = t.split()",
        "m = [3, 1.5, True, -0.0, 0.0, 1, 10**20, 7, 300, 300]",
        "d = {'a': 1, 'b': 2, 'fox': 300, 'the': 1.0}",
        SETUP.split("random.seed(5)")[1],
    ],
    "a set": ["s.add('x')", "s.discard('fox')", "s = set(sorted(s))", "s |= {'a', 'b'}", "fs = fs | {'c'}", "s = {*s}"],
    "a dict": ["d['new'] = len(d)", "d.update(a=1)", "d.pop('b', None)", "d.clear()"],
    "room": [
        "for i in range(40): d[i] = i\nfor i in range(40): del d[i]",
        "d = {**d}",
        "d['room'] = 1\ndel d['room']",
        "l.extend('abc' * 9)\ndel l[-27:]",
        "s |= set(range(60))\ns -= set(range(60))",
    ],
    "flags": [
        "re.I._value_ = 8",
        "re.I._value_ = 2",
        "json._default_encoder.indent = 2",
        "json._default_encoder.indent = None",
    ],
    "a subclass": [
        "u = Txt(u)",
        "l = Lst(l)",
        "l[0] = Txt(l[0])",
        "d = Counter(d)",
        "d = collections.OrderedDict(d)",
        "k = True",
    ],
    "other types": [
        "l = tuple(l)",
        "tup = list(tup)",
        "u = u.encode()",
        "m = dict.fromkeys(m)",
        "l = set(l)",
        "by = bytearray(by)",
        "l = 5",
    ],
    "an object": [
        "l.append(o)",
        "m.append(f)",
        "rows.append(o)",
        "u = o",
        "l.append(...)",
        "m.append(bytearray(b'x'))",
    ],
    "a shadowed builtin": [
        "len = lambda v: 99",
        "sorted = lambda *a, **k: ['mine']",
        "str = repr",
        "sum = max",
        "list = tuple",
    ],
    "an unshadowed builtin": ["del len", "del sorted", "del str", "del sum", "del list", "del print"],
    "print": ["print = lambda *a, **k: sys.stdout.write('mine\\n')", "builtins.print = lambda *a, **k: None"],
    "a patched builtin": [
        "builtins.len = lambda v: 98",
        "builtins.sorted = lambda *a, **k: []",
        "builtins.isinstance = lambda *a: True",
        "builtins.enumerate = zip",
    ],
    "a patched module": [
        "re.findall = lambda *a: ['patched']",
        "json.loads = lambda v: v",
        "math.sqrt = abs",
        "Counter.most_common = lambda *a: []",
        "re._compile = lambda *a: p",
        "json.decoder.scanner = 1",
        "collections.Counter.update = lambda *a: None",
        "operator.itemgetter = lambda v: len",
    ],
    "patched code": [
        "re.findall.__code__ = (lambda a, b, flags=0: ['code']).__code__",
        "json.dumps.__kwdefaults__['indent'] = 3",
        "json._default_decoder.scan_once = lambda v, i: (1, len(v))",
        "re.sub.__defaults__ = (1, 0)",
    ],
    "unpatched": ["_unpatch()"],
    "a poisoned cache": [
        "re._cache[str, 'fox', 0] = re.compile('o')",
        "re.purge()",
        "getattr(re, '_cache2', re._cache)[str, '\\\\w+', 0] = re.compile('.')",
    ],
    "a module by another name": [
        "re = math",
        "json = None",
        "import re, json, math",
        "math = copy",
        "import operator as re",
        "import re",
    ],
    "a function": [
        "def f(v): return v * 2",
        "p = re.compile('o')",
        "p = re.compile(r'[a-z]+')",
        "pt = '[aeiou]'",
        "pt = r'\\w+'",
        "p = pt",
    ],
    "random": ["r = random.random()", "random.shuffle(l)", "random.seed(5)", "l = random.sample(l, len(l))"],
    "an exception": ["1 / 0", "raise ValueError(u)", "l.index('absent')", "assert flag is None"],
    "limits": [
        "sys.setrecursionlimit(900)",
        "warnings.simplefilter('ignore')",
        "getattr(sys, 'set_int_max_str_digits', id)(700)",
        "getattr(sys, 'set_int_max_str_digits', id)(4300)",
    ],
    "in place": ["m[:] = [1, 2, 3]", "l *= 2", "l += ['z']", "m[0], m[1] = m[1], m[0]", "del l[10:]"],
    "a loop": ["for w in l[:3]: k += len(w)", "while k > 5: k -= 3", "for r in rows: r['n'] += 1"],
    "globals": [
        "globals()['u'] = 'set by globals'",
        "globals().pop('u', None)",
        "vars()['k'] = 4",
        "globals()['len'] = len",
        "exec('l = l[:-1]')",
    ],
    "the collector": ["_ = gc.collect()", "gc.disable()", "gc.set_threshold(5)", "gc.freeze()"],
    "an end": [
        "class End:\n    def __del__(self): l.append('ended'); print('ended')\nx = End()",
        "y = End() if 'End' in globals() else 0",
        "x = None",
        "if 'End' in globals(): e = End(); e.me = e; del e; gc.collect()",
    ],
    "streams": [
        "sys.stdout.write('direct\\n')",
        "print('err', file=sys.stderr)",
        "print(end='')",
        "sys.stdout = sys.stderr",
    ],
    "results": [
        "x.append('changed') if isinstance(x, list) else 0",
        "x = y",
        "l = x if type(x) is list else l",
        "keep.append(x)",
        "keep.clear()",
        "y = [x, x]",
        "x['new'] = 1 if type(x) is dict else 0",
    ],
    "a cycle": ["rows[0]['me'] = rows", "l.append(l)", "m = [m]"],
}
PATCHES = """
_saved = [(o_, n_, vars(o_)[n_]) for o_, n_ in ((re, 'findall'), (json, 'loads'), (math, 'sqrt'), (Counter, 'most_common'), (re, '_compile'), (json.decoder, 'scanner'), (Counter, 'update'), (operator, 'itemgetter'))]
_codes = [(fn, fn.__code__, fn.__defaults__, dict(fn.__kwdefaults__ or {})) for fn in (re.findall, json.dumps, re.sub)]
_scan = json._default_decoder.scan_once
def _unpatch(_saved=_saved, _codes=_codes, _scan=_scan, _set=setattr, json=json, re=re):
    for o_, n_, v_ in _saved: _set(o_, n_, v_)
    for fn, code, defaults, kw in _codes:
        fn.__code__, fn.__defaults__ = code, defaults
        if kw: fn.__kwdefaults__.update(kw)
    json._default_decoder.scan_once = _scan
    json._default_encoder.indent = None
    re.I._value_ = 2
    re.purge()
"""


# ---- a process with a runtime ----


def describe(variables: dict[str, Any]) -> list[Any]:
    """All that there is to tell of variables: values, exact types, room, and which objects are which."""
    pool: list[Any] = [*range(-5, 257), "", b"", (), True, False, None, frozenset(), *map(chr, range(256))]
    places = {id(item): index for index, item in enumerate(pool)}
    seen: list[Any] = []

    def look(value: Any, depth: int) -> Any:
        kind = type(value)
        known = id(value) in places
        place = places.setdefault(id(value), len(places))
        pool.append(value)
        if kind in (str, bytes, int, float, bool, type(None)):
            return [
                place,
                kind.__name__,
                repr(value)[:200],
                len(value) if kind in (str, bytes) else 0,
                value is not value,
            ]
        if kind not in (list, tuple, dict, set, frozenset, Counter) or known or depth > 4:
            return [place, kind.__name__]
        parts = [*value.keys(), *value.values()] if kind in (dict, Counter) else [*value]
        return [place, kind.__name__, sys.getsizeof(value), [look(part, depth + 1) for part in parts[:300]]]

    for name, value in variables.items():
        if not name.startswith("_") and name not in ("keep_alive",):
            seen.append([name, look(value, 0)])
    pool.clear()  # `look` knows itself, and so this would be kept
    variables.clear()
    return seen


def joined(messages: list[tuple[str, int, str]]) -> list[list[Any]]:
    """What was printed, without the bounds of messages, which depend on the time."""
    texts: list[list[Any]] = []
    for stream, skipped, text in messages:
        if texts and texts[-1][0] == stream and not skipped:
            texts[-1][2] += text
        else:
            texts.append([stream, skipped, text])
    # So does, of a long output, when its last part is told.
    return sorted(texts, key=lambda text: text[0]) if any(skipped for _, skipped, _ in texts) else texts


def count_parts(memo: Any) -> None:
    """`memo.partly` counts the statements in which a part was answered."""
    take, memo.partly = memo._take_value, 0

    def take_value() -> Any:
        before = memo.hits
        served = take()
        memo.partly += memo.hits - before
        return served

    memo._take_value = take_value


def serve(with_memo: bool) -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    from conftest import CONFIG, Guest

    # Not `json.dumps` and `json.loads`: cells change them.
    to_json, from_json = json.JSONEncoder().encode, json.JSONDecoder().decode
    out, given = os.fdopen(os.dup(1), "w"), os.fdopen(os.dup(0))
    guest: Any = None
    for line in given:
        request = from_json(line)
        if "new" in request:
            if guest is not None:
                guest.runtime._namespace.globals.clear()
                gc.collect()  # what ends only now belongs to no session
                guest.runtime.uninstall()
            guest = Guest()
            guest.runtime.configure({**CONFIG, "maxMemoBytes": 1_000_000 if with_memo else 0})
            memo = guest.runtime._memo
            memo.slow_seconds, memo.much_text, memo.many_items, memo.most_refused = 0, 0, 0, 0
            guest.runtime.install()
            count_parts(memo)
            continue
        bridge = guest.bridge
        bridge.messages, bridge.displays = [], []
        guest.count += 1
        header, *_ = guest.runtime.execute(guest.count, request["source"])
        report = from_json(header)
        hits = report.pop("memo", {"hits": 0})["hits"]
        report.pop("omittedDisplays", None)
        globals_ = guest.runtime._namespace.globals
        answer = {
            "header": report,
            "messages": joined(bridge.messages),
            "variables": describe(dict(globals_)),
            "random": random.getstate()[1][-5:],
            "collects": gc.isenabled(),
            "hits": hits,
            "partly": guest.runtime._memo.partly,
            "alive": guest.runtime._memo._most_bytes > 0,
        }
        out.write(to_json(answer) + "\n")
        out.flush()


class Process:
    def __init__(self, kind: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve", kind],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": "0"},
        )

    def ask(self, request: dict[str, Any]) -> None:
        assert self._process.stdin
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()

    def hear(self) -> Any:
        assert self._process.stdout
        return json.loads(re.sub(r" at 0x[0-9a-f]+", " at", self._process.stdout.readline()))

    def end(self) -> None:
        self._process.communicate()


# ---- sessions ----


def expression_of(rng: random.Random, simple: list[str], depth: int = 0) -> str:
    """One of some expressions, or what is made of them."""
    if rng.random() < (0.5 if depth else 0.4):
        return rng.choice(simple)
    parts = {name: expression_of(rng, simple, depth + 1) if depth < 3 else rng.choice(simple) for name in "ab"}
    return rng.choice(COMPOSED).format(**parts)


def statement(rng: random.Random, simple: list[str]) -> str:
    expression = expression_of(rng, simple)
    form = rng.random()
    if form < 0.4:
        return f"{rng.choice('xyz')} = {expression}"
    if form < 0.7:
        other = f", {expression_of(rng, simple)}" if rng.random() < 0.3 else ""
        option = rng.choice(["", "", "", ", sep='|'", ", end=';'", ", flush=True"])
        return f"print({expression}{other}{option})"
    if form < 0.8:
        return f"{rng.choice('xyz')} = {rng.choice('xyz')} = {expression}"
    return expression


def cell(rng: random.Random, repeated: list[str], kinds: Counter[str]) -> str:
    lines = []
    for _ in range(rng.randint(1, 6)):
        if rng.random() < 0.12:
            kind = rng.choice(list(CHANGES))
            kinds[kind] += 1
            lines.append(rng.choice(CHANGES[kind]))
        else:
            lines.append(rng.choice(repeated))
    return "\n".join(lines)


def run(hits: int, seed: int, *, verbose: bool = False) -> dict[str, Any]:
    """Runs sessions until so many statements were answered; raises AssertionError at the first difference."""
    began = time.monotonic()
    kinds: Counter[str] = Counter()
    answered = partly = cells = session = 0
    forced, served = Process("forced"), Process("served")
    try:
        while answered < hits:
            rng = random.Random(f"{seed}/{session}")
            session += 1
            simple = rng.sample(PURE, PURES)
            repeated = [statement(rng, simple) for _ in range(REPEATED)]
            done: list[str] = []
            for process in (forced, served):
                process.ask({"new": True})
            for number in range(CELLS):
                source = SETUP + PATCHES if number == 0 else cell(rng, repeated, kinds)
                if number == CELLS - 1:
                    source = "_unpatch()\ngc.enable()\ngc.unfreeze()\nwarnings.resetwarnings()\ngetattr(sys, 'set_int_max_str_digits', id)(4300)"
                done.append(source)
                for process in (forced, served):
                    process.ask({"source": source})
                real, found = forced.hear(), served.hear()
                answered += found.pop("hits")
                real.pop("hits")
                real.pop("partly")
                parts = found.pop("partly")  # of the session so far
                assert found.pop("alive"), f"seed {seed}, session {session - 1}: the memo has failed at\n{source}"
                real.pop("alive")
                if real != found:
                    differences = {key: (real[key], found[key]) for key in real if real[key] != found[key]}
                    pairs = zip(real["variables"], found["variables"], strict=False)
                    variables = [(a, b) for a, b in pairs if a != b][:3]
                    differences.pop("variables", None)
                    raise AssertionError(
                        f"seed {seed}, session {session - 1}, cell {number}:\n{source}\n{differences}\n{variables}\n\n"
                        + ("\n# ----\n".join(done) if verbose else "")
                    )
                cells += 1
            partly += parts
    finally:
        forced.end()
        served.end()
    return {
        "seed": seed,
        "hits": answered,
        "of which in part": partly,
        "cells": cells,
        "sessions": session,
        "kinds of changes": len(kinds),
        "changes": sum(kinds.values()),
        "seconds": round(time.monotonic() - began, 1),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hits", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--serve")
    parser.add_argument("--verbose", action="store_true")
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve == "served")
    else:
        print(json.dumps(run(arguments.hits, arguments.seed, verbose=arguments.verbose)))
