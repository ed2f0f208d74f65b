"""Kinds of values for the tests of portable states.

Each kind has the code that makes `v`, the way in which it goes (`any`, `python`, or `lost`), and a check in the reader.
Without a check, `v` must equal the value of the last line in a fresh interpreter, and have the same type.
"""

from __future__ import annotations

ANY, PYTHON, LOST = "any", "python", "lost"

_PLAIN = {
    "None": "None",
    "True": "True",
    "small int": "-7",
    "int of 53 bits": "2**53 - 1",
    "int above 53 bits": "-(2**53)",
    "huge int": "-(7**5000)",
    "float": "0.1",
    "negative zero": "-0.0",
    "tiny float": "5e-324",
    "large float": "1e308",
    "whole float": "1e22",
    "infinity": "float('-inf')",
    "complex": "complex(-0.0, 1.5)",
    "str": "'é𝄞\\n'",
    "empty str": "''",
    "lone surrogates": "'a\\ud83d\\ude00\\udfff'",
    "long str": "'äx' * 5000",
    "long str with surrogates": "'\\ud800x' * 5000",
    "null character": "'a\\x00b'",
    "bytes": "b'\\x00\\xff'",
    "long bytes": "bytes(range(256)) * 50",
    "bytearray": "bytearray(b'abc')",
    "empty bytearray": "bytearray()",
    "list": "[1, 'a', [2.5]]",
    "tuple": "(1, (2,), ())",
    "dict in order": "{'z': 1, 'a': 2, (1, 2): 3, None: 4, 1.5: 5, b'k': 6}",
    "set": "{1, 'a', (2,), None}",
    "empty set": "set()",
    "frozenset": "frozenset({'x', frozenset({1})})",
    "range": "range(5, -3, -2)",
    "slice": "slice(1, None, 'x')",
    "Ellipsis": "...",
    "NotImplemented": "NotImplemented",
    "date": "__import__('datetime').date(2024, 2, 29)",
    "time": "__import__('datetime').time(23, 59, 59, 999999, fold=1)",
    "timedelta": "__import__('datetime').timedelta(days=-3, microseconds=7)",
    "naive datetime": "__import__('datetime').datetime(1, 1, 1, 0, 0, 0, 5)",
    "utc datetime": "__import__('datetime').datetime(2024, 1, 2, tzinfo=__import__('datetime').timezone.utc)",
    "fixed zone": "__import__('datetime').timezone(__import__('datetime').timedelta(minutes=-90), 'odd')",
    "zoned datetime": "__import__('datetime').datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=__import__('zoneinfo').ZoneInfo('Europe/Berlin'))",
    "ZoneInfo": "__import__('zoneinfo').ZoneInfo('Asia/Kathmandu')",
    "Decimal": "__import__('decimal').Decimal('-1.2300E+400')",
    "infinite Decimal": "__import__('decimal').Decimal('-Infinity')",
    "long Decimal": "__import__('decimal').Decimal('1.' + '3' * 200)",
    "Fraction": "__import__('fractions').Fraction(-22, 7)",
    "UUID": "__import__('uuid').UUID('12345678123456781234567812345678')",
    "PurePosixPath": "__import__('pathlib').PurePosixPath('/a/../b')",
    "PureWindowsPath": "__import__('pathlib').PureWindowsPath('C:\\\\x')",
    "Path": "__import__('pathlib').Path('a/b')",
    "OrderedDict": "__import__('collections').OrderedDict([('b', 1), ('a', 2)])",
    "Counter": "__import__('collections').Counter('abca')",
    "UserDict": "__import__('collections').UserDict(a=1)",
    "UserList": "__import__('collections').UserList([1])",
    "UserString": "__import__('collections').UserString('ab')",
    "ChainMap": "__import__('collections').ChainMap({'a': 1}, {'b': 2})",
    "SimpleNamespace": "__import__('types').SimpleNamespace(b=1, a=[2])",
    "array of doubles": "__import__('array').array('d', [1.5, -0.0])",
    "array of longs": "__import__('array').array('l', [1, -2])",
    "array of bytes": "__import__('array').array('B', b'abc')",
    "array of characters": "__import__('array').array('u', 'aé𝄞')",
    "IPv4Address": "__import__('ipaddress').ip_address('10.0.0.1')",
    "IPv6Address with scope": "__import__('ipaddress').ip_address('fe80::1%eth0')",
    "IPv4Network": "__import__('ipaddress').ip_network('10.0.0.0/8')",
    "IPv6Interface": "__import__('ipaddress').ip_interface('2001:db8::1/64')",
    "module": "__import__('json')",
    "submodule": "__import__('os.path', fromlist=['x'])",
    "builtin function": "len",
    "builtin type": "dict",
    "exception type": "KeyError",
    "function of a module": "__import__('json').dumps",
    "class of a module": "__import__('decimal').Decimal",
    "class method of a type": "dict.fromkeys",
    "method of a type": "str.upper",
    "member of http": "__import__('http').HTTPStatus.NOT_FOUND",
    "combined flags": "__import__('re').I | __import__('re').M",
    "signal": "__import__('signal').SIGINT",
    "generic alias": "list[int]",
    "nested alias": "dict[str, list[tuple[int, ...]]]",
    "union": "int | None",
    "Optional": "__import__('typing').Optional[str]",
    "List": "__import__('typing').List[int]",
    "Literal": "__import__('typing').Literal['a', 1]",
    "Callable": "__import__('typing').Callable[[int], str]",
    "Any": "__import__('typing').Any",
    "helper": "llm_query",
    "NoneType": "type(None)",
    "UTC": "__import__('datetime').timezone.utc",
}

_NUMPY = {
    "float64 array": "np.arange(6.0).reshape(2, 3)",
    "big-endian array": "np.array([1, 2], '>i4')",
    "bool array": "np.array([True, False])",
    "complex64 array": "np.array([1 + 2j], 'c8')",
    "float16 array": "np.array([1.5, np.nan], 'f2')",
    "empty array": "np.empty((0, 3), 'u2')",
    "array of no dimensions": "np.array(5)",
    "str array": "np.array(['a', 'é𝄞'])",
    "bytes array": "np.array([b'a', b'bc'])",
    "datetime64 array": "np.array(['2024-01-01', 'NaT'], 'M8[ns]')",
    "timedelta64 array": "np.array([5, -1], 'm8[25us]')",
    "structured array": "np.array([(1, 2.5, b'x')], [('a', '<i4'), ('b', '>f8'), ('c', 'S3')])",
    "aligned structured array": "np.zeros(2, np.dtype([('a', 'i1'), ('b', 'f8')], align=True))",
    "array with subarrays": "np.zeros(2, [('m', 'f4', (2, 2))])",
    "array of objects": "np.array([1, 'a', None, [2]], dtype=object)",
    "Fortran order": "np.asfortranarray(np.arange(6).reshape(2, 3))",
    "array with steps": "np.arange(20)[::3]",
    "int64 scalar": "np.int64(-3)",
    "float32 scalar": "np.float32(0.1)",
    "bool scalar": "np.bool_(True)",
    "str scalar": "np.str_('é')",
    "datetime64 scalar": "np.datetime64('2024-01-01T00:00', 's')",
    "timedelta64 scalar": "np.timedelta64(5, 'D')",
    "structured scalar": "np.array([(1, 2.0)], 'i4,f8')[0]",
    "dtype": "np.dtype('>f8')",
    "structured dtype": "np.dtype([('a', 'i4'), ('b', 'f8', (3,))])",
    "ufunc": "np.add",
    "numpy function": "np.sum",
    "scalar type": "np.float32",
}

_PANDAS = {
    "Series": "pd.Series([1.5, None], index=['a', 'b'], name='n')",
    "Series of str": "pd.Series(['x', None, 'é'])",
    "Series of objects": "pd.Series(['x', 1, None], dtype=object)",
    "Series of str as objects": "pd.Series(['x', 'y'], dtype=object)",
    "Series of Int64": "pd.Series([1, None], dtype='Int64')",
    "Series of Float32": "pd.Series([1.5, None], dtype='Float32')",
    "Series of boolean": "pd.Series([True, None], dtype='boolean')",
    "Series of string": "pd.Series(['a', None], dtype='string')",
    "Series of categories": "pd.Series(pd.Categorical(['b', 'a', None], categories=['b', 'a', 'c'], ordered=True))",
    "Series of datetimes": "pd.Series(pd.to_datetime(['2024-01-01', None]))",
    "Series of zoned datetimes": "pd.Series(pd.date_range('2024-10-27', periods=3, freq='h', tz='Europe/Berlin'))",
    "Series of timedeltas": "pd.Series(pd.to_timedelta(['1D', None]))",
    "Series of periods": "pd.Series(pd.period_range('2024-01', periods=2, freq='M'))",
    "Series of intervals": "pd.Series(pd.interval_range(0, 2))",
    "empty Series": "pd.Series([], dtype='f4')",
    "DataFrame": "pd.DataFrame({'a': [1, 2], 'b': ['x', None], 'c': [1.5, np.nan]}, index=pd.Index([5, 7], name='i'))",
    "DataFrame of categories": "pd.DataFrame({'a': pd.Categorical(['u', 'v'])})",
    "empty DataFrame": "pd.DataFrame()",
    "DataFrame without columns": "pd.DataFrame(index=[1, 2])",
    "DataFrame with columns of one name": "pd.DataFrame([[1, 'x']], columns=['a', 'a'])",
    "DataFrame with MultiIndex": "pd.DataFrame({'v': [1, 2]}, index=pd.MultiIndex.from_tuples([('a', 1), ('b', 2)], names=['k', 'n']))",
    "DataFrame with MultiIndex columns": "pd.DataFrame([[1, 2.5]], columns=pd.MultiIndex.from_product([['a'], ['x', 'y']]))",
    "DataFrame with column axis name": "pd.DataFrame([[1]], columns=pd.Index(['a'], name='cols'))",
    "RangeIndex": "pd.RangeIndex(2, 20, 3, name='r')",
    "DatetimeIndex with freq": "pd.date_range('2024-01-01', periods=3, freq='D', name='t')",
    "zoned DatetimeIndex": "pd.date_range('2024-01-01', periods=3, freq='h', tz='UTC')",
    "TimedeltaIndex": "pd.timedelta_range('1D', periods=2)",
    "PeriodIndex": "pd.period_range('2024Q1', periods=2, freq='Q')",
    "IntervalIndex": "pd.IntervalIndex.from_tuples([(0, 1), (2, 3)], closed='left')",
    "CategoricalIndex": "pd.CategoricalIndex(['a', 'b', 'a'])",
    "Index of objects": "pd.Index(['a', 1], dtype=object)",
    "Timestamp": "pd.Timestamp('2024-10-27 01:30', tz='UTC').tz_convert('Europe/Berlin')",
    "naive Timestamp": "pd.Timestamp('2024-01-01 00:00:00.000000001')",
    "Timedelta": "pd.Timedelta('1D 3ns')",
    "Period": "pd.Period('2024-03', 'M')",
    "Interval": "pd.Interval(0, 1.5, closed='both')",
    "CategoricalDtype": "pd.CategoricalDtype(['a', 'b'], ordered=True)",
    "DatetimeTZDtype": "pd.DatetimeTZDtype('ns', 'UTC')",
    "Int64Dtype": "pd.Int64Dtype()",
    "dtypes of a frame": "pd.DataFrame({'a': [1], 'b': ['x']}).dtypes",
    "Categorical": "pd.Categorical(['a', None])",
    "array of Int8": "pd.array([1, None], dtype='Int8')",
}

_SETUP = "import numpy as np, pandas as pd\n"
_SAME = "assert type(v) is type(w) and v == w"
_REPR = "assert type(v) is type(w) and repr(v) == repr(w)"
_ARRAYS = (
    "assert type(v) is type(w) and v.dtype == w.dtype and v.shape == w.shape and v.tobytes() == w.tobytes()"
    " if v.dtype != object else v.tolist() == w.tolist()\n"
    "if type(v) is np.ndarray: assert v.flags.f_contiguous == w.flags.f_contiguous or w.base is not None\nif type(v) is np.ndarray: assert v.flags.writeable == w.flags.writeable"
)
_FRAMES = (
    "import pandas.testing as t\n"
    "assert type(v) is type(w)\n"
    "if isinstance(v, pd.DataFrame): t.assert_frame_equal(v, w, check_freq=True); assert v.attrs == w.attrs\n"
    "elif isinstance(v, pd.Series): t.assert_series_equal(v, w)\n"
    "elif isinstance(v, pd.Index): t.assert_index_equal(v, w, exact=True); assert getattr(v, 'freq', 0) == getattr(w, 'freq', 0)\n"
    "elif isinstance(v, pd.api.extensions.ExtensionArray): t.assert_extension_array_equal(v, w)\n"
    "else: assert v == w and repr(v) == repr(w)"
)

#: name → (code that makes `v`, the way, the check)
KINDS: dict[str, tuple[str, str, str]] = {
    **{name: (f"v = {text}", ANY, f"w = {text}\n{_SAME}") for name, text in _PLAIN.items()},
    **{
        name: (
            f"{_SETUP}v = {text}",
            ANY,
            f"{_SETUP}w = {text}\n{_ARRAYS if 'rray' in name or ('scalar' in name and 'type' not in name) or 'order' in name else _SAME}",
        )
        for name, text in _NUMPY.items()
    },
    **{
        f"pandas: {name}": (f"{_SETUP}v = {text}", ANY, f"{_SETUP}w = {text}\n{_FRAMES}")
        for name, text in _PANDAS.items()
    },
    # --- exact bits
    "nan with a payload": (
        "import struct\nv = struct.unpack('<d', b'\\x01\\x00\\x00\\x00\\x00\\x00\\xf8\\xff')[0]",
        ANY,
        "import struct\nassert struct.pack('<d', v) == b'\\x01\\x00\\x00\\x00\\x00\\x00\\xf8\\xff'",
    ),
    "negative zero keeps its sign": ("v = [-0.0]", ANY, "import math\nassert math.copysign(1, v[0]) == -1"),
    "signaling Decimal": ("from decimal import Decimal\nv = Decimal('sNaN12')", ANY, "assert str(v) == 'sNaN12'"),
    "Decimal with zeros": ("from decimal import Decimal\nv = Decimal('1.500')", ANY, "assert str(v) == '1.500'"),
    "int and float keys": ("v = {1: 'a', 2.0: 'b'}", ANY, "assert [type(k) for k in v] == [int, float]"),
    "deque with maxlen": (
        "from collections import deque\nv = deque([1, 2], 3)",
        ANY,
        "assert list(v) == [1, 2] and v.maxlen == 3",
    ),
    "defaultdict": (
        "from collections import defaultdict\nv = defaultdict(list, a=[1])",
        ANY,
        "assert v == {'a': [1]} and v['new'] == [] and v.default_factory is list",
    ),
    "defaultdict of a lambda": (
        "from collections import defaultdict\nv = defaultdict(lambda: 7)\nv['a'] = v",
        ANY,
        "assert v['x'] == 7 and v['a'] is v",
    ),
    "re.Pattern": (
        "import re\nv = re.compile(r'(?i)a+b', re.M)",
        ANY,
        "import re\nassert v == re.compile(r'(?i)a+b', re.M) and v.match('AAb')",
    ),
    "bytes pattern": ("import re\nv = re.compile(rb'\\x00+')", ANY, "assert v.match(b'\\x00')"),
    "memoryview of a bytearray": (
        "b = bytearray(b'abc')\nv = memoryview(b)",
        ANY,
        "v[0] = 122\nassert b == b'zbc' and v.obj is b",
    ),
    "mappingproxy": (
        "import types\nd = {'a': 1}\nv = types.MappingProxyType(d)",
        ANY,
        "d['b'] = 2\nassert v['b'] == 2",
    ),
    "partial": (
        "import functools\ndef f(a, b, c=0): return a, b, c\nv = functools.partial(f, 1, c=3)\nv.mark = 5",
        ANY,
        "assert v(2) == (1, 2, 3) and v.func is f and v.mark == 5",
    ),
    "itemgetter of two": ("import operator\nv = operator.itemgetter(1, 0)", ANY, "assert v('ab') == ('b', 'a')"),
    "methodcaller": ("import operator\nv = operator.methodcaller('split', ',')", ANY, "assert v('a,b') == ['a', 'b']"),
    "method of a list": ("items = []\nv = items.append", ANY, "v(1)\nassert items == [1]"),
    "Random": (
        "import random\nv = random.Random(7)\nv.gauss(0, 1)\nimport copy\nexpected = copy.copy(v).random()",
        ANY,
        "assert v.random() == expected",
    ),
    "exception": (
        "v = ValueError('bad', [1])\nv.note = 1\nv.__cause__ = KeyError('k')\nv.add_note('n')",
        ANY,
        "assert v.args == ('bad', [1]) and v.note == 1 and v.__cause__.args == ('k',) and v.__notes__ == ['n'] and v.__suppress_context__",
    ),
    "OSError": (
        "v = FileNotFoundError(2, 'gone', 'name.txt')",
        ANY,
        "assert (v.errno, v.strerror, v.filename) == (2, 'gone', 'name.txt') and type(v) is FileNotFoundError",
    ),
    "SystemExit": ("v = SystemExit(3)", ANY, "assert v.code == 3"),
    "UnicodeDecodeError": (
        "v = UnicodeDecodeError('utf-8', b'\\xff', 0, 1, 'why')",
        ANY,
        "assert (v.encoding, v.object, v.start, v.end, v.reason) == ('utf-8', b'\\xff', 0, 1, 'why') and 'why' in str(v)",
    ),
    "SyntaxError": (
        "v = SyntaxError('m', ('f', 1, 2, 'text', 1, 3))",
        ANY,
        "assert (v.msg, v.lineno, v.text) == ('m', 1, 'text')",
    ),
    "StopIteration": ("v = StopIteration(5)", ANY, "assert v.value == 5"),
    "ExceptionGroup": (
        "v = ExceptionGroup('g', [ValueError(1), TypeError(2)])",
        ANY,
        "assert v.message == 'g' and [e.args for e in v.exceptions] == [(1,), (2,)] and type(v.args[1]) is list",
    ),
    "exception of a cell": (
        "class Bad(ValueError):\n    def __init__(self, a, b): super().__init__(a); self.b = b\nv = Bad(1, 2)",
        ANY,
        "assert type(v) is Bad and v.args == (1,) and v.b == 2",
    ),
    "caught exception without its traceback": (
        "try: 1 / 0\nexcept Exception as error: v = error",
        ANY,
        "assert type(v) is ZeroDivisionError and v.__traceback__ is None",
    ),
    # --- cycles and sharing
    "list in itself": ("v = [1]\nv.append(v)", ANY, "assert v[1] is v"),
    "dict in itself": ("v = {}\nv['v'] = v", ANY, "assert v['v'] is v"),
    "tuple around a list around it": ("l = []\nv = (l,)\nl.append(v)", ANY, "assert v[0][0] is v and v[0] is l"),
    "two tuples in a cycle": ("l = []\nt = (l,)\nu = (t,)\nl.append(u)\nv = t", ANY, "assert v[0][0][0] is v"),
    "shared list": ("a = []\nv = [a, a]", ANY, "v[0].append(1)\nassert v[1] == [1] and a is v[0]"),
    "deep list": (
        "v = []\nfor _ in range(20000): v = [v]",
        ANY,
        "n = 0\nwhile v: v, n = v[0], n + 1\nassert n == 20000",
    ),
    "deep tuple": (
        "v = ()\nfor _ in range(20000): v = (v,)",
        ANY,
        "n = 0\nwhile v: v, n = v[0], n + 1\nassert n == 20000",
    ),
    # --- functions
    "function": (
        "k = 3\ndef v(a, b=2, *c, d=4, **e):\n    'doc'\n    return a, b, c, d, e, k",
        ANY,
        "k = 9\nassert v(1) == (1, 2, (), 4, {}, 9) and v.__doc__ == 'doc' and v.__name__ == 'v'",
    ),
    "lambda": ("v = lambda x, y=[1]: x + y[0]", ANY, "assert v(1) == 2"),
    "two lambdas of a line": ("v = [lambda x: x + 1, lambda x: x + 2]", ANY, "assert [f(0) for f in v] == [1, 2]"),
    "nested lambdas": ("v = (lambda a: lambda b: lambda c: (a, b, c))(1)(2)", ANY, "assert v(3) == (1, 2, 3)"),
    "closures that share a cell": (
        "def counter():\n    n = 0\n    def up():\n        nonlocal n\n        n += 1\n        return n\n    return up, lambda: n\nv = counter()\nv[0]()",
        ANY,
        "assert v[0]() == 2 and v[1]() == 2",
    ),
    "recursive closure": (
        "def make():\n    def f(n): return 1 if n < 2 else n * f(n - 1)\n    return f\nv = make()",
        ANY,
        "assert v(5) == 120",
    ),
    "recursive function": (
        "import functools\ndef v(n): return 1 if n < 2 else n * v(n - 1)\n@functools.lru_cache\ndef w(n): return n if n < 2 else w(n - 1) + w(n - 2)",
        ANY,
        "assert v(5) == 120 and w(9) == 34",
    ),
    "functions that call each other": (
        "def v(n): return n == 0 or odd(n - 1)\ndef odd(n): return n != 0 and v(n - 1)",
        ANY,
        "assert v(10) and not v(7)",
    ),
    "empty cell": (
        "def make():\n    def f(): return late\n    return f\n    late = 1\nv = make()",
        ANY,
        "try: v()\nexcept NameError: pass\nelse: assert 0",
    ),
    "generator function": ("def v():\n    yield from range(3)", ANY, "assert list(v()) == [0, 1, 2]"),
    "coroutine function": ("async def v(): return 5", ANY, "assert (await v()) == 5"),
    "decorated function": (
        "import functools\ndef mark(f):\n    @functools.wraps(f)\n    def inner(*a): return 'in', f(*a)\n    return inner\n@mark\ndef v(x):\n    'd'\n    return x",
        ANY,
        "assert v(1) == ('in', 1) and v.__wrapped__(2) == 2 and v.__name__ == 'v' and v.__doc__ == 'd'",
    ),
    "annotated function": (
        "def v(a: int, b: 'Later' = 1) -> list[str]: ...",
        ANY,
        "assert v.__annotations__ == {'a': int, 'b': 'Later', 'return': list[str]}",
    ),
    "function with attributes": ("def v(): pass\nv.cache = {1: v}", ANY, "assert v.cache[1] is v"),
    "function with a nested class": (
        "def v():\n    class K:\n        x = 1\n        def m(self): return self.x\n    return K().m()",
        ANY,
        "assert v() == 1",
    ),
    "function with comprehensions": (
        "z = 2\ndef v(n): return [i * z for i in range(n) if (lambda q: q)(i)]",
        ANY,
        "assert v(3) == [2, 4]",
    ),
    "function with future annotations": (
        "from __future__ import annotations\ndef v():\n    def g(a: missing): return a\n    return g",
        ANY,
        "assert v().__annotations__ == {'a': 'missing'}",
    ),
    "lru_cache": (
        "import functools\n@functools.lru_cache(maxsize=5)\ndef v(n): return n * 2",
        ANY,
        "assert v(3) == 6 and v.cache_parameters()['maxsize'] == 5",
    ),
    "bound method": (
        "class K:\n    def m(self): return self\nk = K()\nv = k.m",
        ANY,
        "assert v() is k and v.__self__ is k",
    ),
    "function of exec": ("d = {}\nexec('def f(): return 1', globals(), d)\nv = d['f']", PYTHON, "assert v() == 1"),
    "function with other globals": (
        "d = {'q': 5}\nexec('def f(): return q', d)\nv = d['f']",
        PYTHON,
        "assert v() == 5",
    ),
    # --- classes
    "class": (
        "class v:\n    'doc'\n    x = [1]\n    def m(self): return self.x\n    @staticmethod\n    def s(): return 1\n    @classmethod\n    def c(cls): return cls\n    @property\n    def p(self): 'pdoc'; return 5",
        ANY,
        "assert v().m() == [1] and v.s() == 1 and v.c() is v and v().p == 5 and v.__doc__ == 'doc' and v.__module__ == '__main__'",
    ),
    "class that names itself": (
        "class v:\n    made = 0\n    def __init__(self): v.made += 1\n    def other(self): return v()\n    class In:\n        def both(self): return v, v.In\nv()",
        ANY,
        "assert v().other().__class__ is v and v.made == 3 and v.In().both() == (v, v.In)",
    ),
    "method with the name of a function": (
        "def area(): return 5\nclass v:\n    def area(self): return area()\n    def __make(self): return __make\n    m = lambda self: m\nm = 7",
        ANY,
        "assert v().area() == 5 and v().m() == 7",
    ),
    "class with super": (
        "class A:\n    def m(self): return 'a'\nclass v(A):\n    def m(self): return super().m() + __class__.__name__",
        ANY,
        "assert v().m() == 'av'",
    ),
    "private names": (
        "class v:\n    def __init__(self): self.__x = 1\n    def __get(self): return self.__x\n    def m(self): return self.__get()",
        ANY,
        "assert v().m() == 1",
    ),
    "class that was changed later": (
        "class v:\n    n = 0\nv.n = 7\nv.f = lambda self: self.n",
        ANY,
        "assert v.n == 7 and v().f() == 7",
    ),
    "class that refers to itself": (
        "class v: pass\nv.me = v\nv.one = v()",
        ANY,
        "assert v.me is v and type(v.one) is v",
    ),
    "class within a class": (
        "class v:\n    class Inner:\n        def m(self): return 1",
        ANY,
        "assert v.Inner().m() == 1 and v.Inner.__qualname__ == 'v.Inner'",
    ),
    "class within a function": (
        "def make(n):\n    class K:\n        def m(self): return n\n    return K\nv = make(4)",
        ANY,
        "assert v().m() == 4 and v.__qualname__ == 'make.<locals>.K'",
    ),
    "class with __init_subclass__": (
        "seen = []\nclass A:\n    def __init_subclass__(cls, **kw): seen.append(cls)\nclass v(A): pass",
        ANY,
        "assert seen == [v]",
    ),
    "abstract class": (
        "import abc\nclass A(abc.ABC):\n    @abc.abstractmethod\n    def m(self): ...\nclass v(A):\n    def m(self): return 1",
        ANY,
        "assert v().m() == 1\ntry: A()\nexcept TypeError: pass\nelse: assert 0",
    ),
    "class with a base of a module": (
        "from collections.abc import Mapping\nclass v(Mapping):\n    def __getitem__(self, k): return k\n    def __iter__(self): return iter('ab')\n    def __len__(self): return 2",
        ANY,
        "assert dict(v()) == {'a': 'a', 'b': 'b'}",
    ),
    "cached_property": (
        "import functools\nclass K:\n    @functools.cached_property\n    def p(self): return [1]\nv = K()\nv.p.append(2)",
        ANY,
        "assert v.p == [1, 2] and K().p == [1]",
    ),
    "instance": (
        "class K:\n    def __init__(self): self.a = 1; self.me = self\nv = K()",
        ANY,
        "assert v.a == 1 and v.me is v and type(v) is K",
    ),
    "instance without __init__ of its own": (
        "class K:\n    def __init__(self, x): raise RuntimeError\nv = object.__new__(K)\nv.x = 1",
        ANY,
        "assert v.x == 1",
    ),
    "instance with slots": (
        "class A:\n    __slots__ = ('a', '__p')\nclass K(A):\n    __slots__ = ('b', 'c')\nv = K()\nv.a, v.c = 1, [2]",
        ANY,
        "assert v.a == 1 and v.c == [2] and not hasattr(v, 'b') and not hasattr(v, '__dict__')",
    ),
    "instance with slots and __dict__": (
        "class A:\n    __slots__ = ('a',)\nclass K(A): pass\nv = K()\nv.a, v.z = 1, 2",
        ANY,
        "assert v.a == 1 and vars(v) == {'z': 2}",
    ),
    "shared __dict__": ("class K: pass\nv = K()\nd = vars(v)", ANY, "d['x'] = 1\nassert v.x == 1"),
    "instance in a set by its hash": (
        "class K:\n    def __init__(self, n): self.n = n\n    def __hash__(self): return hash(self.n)\n    def __eq__(self, o): return self.n == o.n\nv = {K(1), K('a')}, frozenset({K(3)}), {K(4): 5}",
        ANY,
        "assert K(1) in v[0] and K('a') in v[0] and K(3) in v[1] and v[2][K(4)] == 5",
    ),
    "list of a cell": (
        "class L(list):\n    def __iter__(self): return iter(())\nv = L([1, 2])\nv.x = v",
        ANY,
        "assert list.copy(v) == [1, 2] and v.x is v and type(v) is L",
    ),
    "dict of a cell": (
        "class D(dict):\n    def __setitem__(self, k, x): raise RuntimeError\nv = D(a=1)\nv.x = 2",
        ANY,
        "assert dict.copy(v) == {'a': 1} and v.x == 2",
    ),
    "int of a cell": (
        "class I(int):\n    def __int__(self): return 99\n    def __index__(self): return 98\nv = I(5)\nv.x = 1",
        ANY,
        "assert v + 0 == 5 and v.x == 1 and type(v) is I",
    ),
    "str of a cell": (
        "class S(str):\n    def __str__(self): return 'lie'\nv = S('truth')",
        ANY,
        "assert v + '' == 'truth' and type(v) is S",
    ),
    "tuple of a cell": (
        "class T(tuple):\n    def __iter__(self): return iter('lie')\nv = T([1, 2])",
        ANY,
        "assert tuple.__getitem__(v, slice(None)) == (1, 2)",
    ),
    "set of a cell": ("class S(set): pass\nv = S([1, 2])", ANY, "assert v == {1, 2} and type(v) is S"),
    "float of a cell": ("class F(float): pass\nv = F(1.5)", ANY, "assert v == 1.5 and type(v) is F"),
    "OrderedDict of a cell": (
        "from collections import OrderedDict\nclass O(OrderedDict): pass\nv = O([('b', 1), ('a', 2)])",
        ANY,
        "assert list(v.items()) == [('b', 1), ('a', 2)]",
    ),
    "defaultdict of a cell": (
        "from collections import defaultdict\nclass O(defaultdict): pass\nv = O(list, a=1)",
        ANY,
        "assert v['b'] == [] and v['a'] == 1",
    ),
    "dataclass": (
        "from dataclasses import dataclass, field\n@dataclass(order=True)\nclass K:\n    'doc'\n    a: int\n    b: list = field(default_factory=list, compare=False)\n    c: str = 'q'\nv = K(1)",
        ANY,
        "from dataclasses import fields\nassert v == K(1) and v.b == [] and K(1) < K(2) and repr(v) == \"K(a=1, b=[], c='q')\" and [f.name for f in fields(K)] == ['a', 'b', 'c'] and K.c == 'q' and K.__doc__ == 'doc' and not hasattr(K, 'b')",
    ),
    "frozen dataclass with slots": (
        "from dataclasses import dataclass\n@dataclass(frozen=True, slots=True)\nclass K:\n    a: int\n    b: str = 'z'\nv = K(3)",
        ANY,
        "assert repr(v) == \"K(a=3, b='z')\" and hash(v) == hash(K(3)) and not hasattr(v, '__dict__')\ntry: v.a = 1\nexcept AttributeError: pass\nelse: assert 0",
    ),
    "dataclass that inherits": (
        "from dataclasses import dataclass, KW_ONLY, InitVar\nfrom typing import ClassVar\n@dataclass\nclass A:\n    a: int\n@dataclass\nclass K(A):\n    n: ClassVar[int] = 5\n    i: InitVar[int]\n    _: KW_ONLY\n    b: int = 2\n    def __post_init__(self, i): self.total = self.a + self.b + i\nv = K(1, 7)",
        ANY,
        "assert v.total == 10 and K(1, 0, b=5).total == 6 and K.n == 5 and repr(v) == 'K(a=1, b=2)'",
    ),
    "dataclass with methods of its own": (
        "from dataclasses import dataclass\n@dataclass\nclass K:\n    a: int\n    def __repr__(self): return 'mine'\n    def __eq__(self, o): return True\nv = K(1)",
        ANY,
        "assert repr(v) == 'mine' and v == 5",
    ),
    "dataclass with a replaced method": (
        "from dataclasses import dataclass\n@dataclass\nclass K:\n    a: int\nK.__repr__ = lambda self: 'later'\nv = K(1)",
        ANY,
        "assert repr(v) == 'later' and K(2).a == 2",
    ),
    "dataclass whose method comes from exec": (
        "from dataclasses import dataclass\n@dataclass\nclass K:\n    a: int\nns = {}\nexec('def __init__(self, a): self.a = a * 2', globals(), ns)\nK.__init__ = ns['__init__']\nv = K(1)",
        PYTHON,
        "assert v.a == 2 and K(2).a == 4",
    ),
    "enumeration": (
        "import enum\nclass K(enum.Enum):\n    A = 1\n    B = 'x'\n    C = 1\n    def hi(self): return self.name\nv = [K.A, K.B]",
        ANY,
        "assert v[0] is K.A is K.C and v[1].hi() == 'B' and K('x') is K.B and list(K) == v",
    ),
    "IntEnum": (
        "import enum\nclass K(enum.IntEnum):\n    A = 1\n    B = 2\nv = K.B",
        ANY,
        "assert v == 2 and v is K.B and isinstance(v, int) and str(v) == '2'",
    ),
    "StrEnum": (
        "import enum\nclass K(enum.StrEnum):\n    A = enum.auto()\nv = K.A",
        ANY,
        "assert v == 'a' and v is K.A",
    ),
    "Flag": (
        "import enum\nclass K(enum.Flag):\n    A = enum.auto()\n    B = enum.auto()\n    AB = A | B\nv = [K.A | K.B, K.A, K(0), ~K.A]",
        ANY,
        "assert v == [K.AB, K.A, K(0), K.B] and K.A in v[0]",
    ),
    "enumeration with __init__": (
        "import enum\nclass K(enum.Enum):\n    A = (1, 2)\n    def __init__(self, a, b): self.a = a\nv = K.A",
        PYTHON,
        "assert v is K.A and v.a == 1",
    ),
    "enumeration of a base with __init_subclass__": (
        "import enum\nran = []\nclass B(enum.Enum):\n    def __init_subclass__(cls, **kw): ran.append(cls)\nclass K(B):\n    A = 1\nv = [K.A, ran]",
        PYTHON,
        "assert v[0] is K.A and v[1] == [K]",
    ),
    "namedtuple": (
        "from collections import namedtuple\nK = namedtuple('K', 'a b', defaults=[5])\nv = K(1)",
        ANY,
        "assert v == (1, 5) and v.b == 5 and repr(v) == 'K(a=1, b=5)' and v._replace(a=2) == K(2)",
    ),
    "NamedTuple": (
        "from typing import NamedTuple\nclass K(NamedTuple):\n    'doc'\n    a: int\n    b: list = []\n    def total(self): return self.a + 1\nv = K(1)",
        ANY,
        "assert v.total() == 2 and v.b == [] and K.__annotations__ == {'a': int, 'b': list} and K.__doc__ == 'doc'",
    ),
    "class with a metaclass": (
        "class M(type):\n    def __call__(cls): return 5\nclass K(metaclass=M): pass\nv = K",
        PYTHON,
        "assert K() == 5 and type(v) is M",
    ),
    "generic class": (
        "from typing import Generic, TypeVar\nT = TypeVar('T')\nclass K(Generic[T]): pass\nv = K()",
        PYTHON,
        "assert K[int] and type(v) is K",
    ),
    # --- values that lie, or whose state is hidden
    "instance whose __reduce__ lies": (
        "class K:\n    def __reduce__(self): return int, (5,)\nv = K()\nv.x = 1",
        ANY,
        "assert type(v) is K and v.x == 1",
    ),
    "instance whose __getstate__ lies": (
        "class K:\n    def __getstate__(self): return {'x': 'lie'}\nv = K()\nv.x = 'truth'",
        ANY,
        "assert v.x == 'truth'",
    ),
    "instance whose __class__ lies": (
        "class K:\n    @property\n    def __class__(self): return int\nv = K()\nv.x = 1",
        LOST,
        "",
    ),
    "__reduce__ that lies, beside a lock": (
        "import threading\nclass K:\n    def __reduce__(self): return int, (5,)\nv = K()\nv.lock = threading.Lock()",
        LOST,
        "",
    ),
    "__reduce__ that lies, beside an iterator": (
        "class K:\n    def __reduce__(self): return int, (5,)\nv = [K(), iter([1])]",
        LOST,
        "",
    ),
    "OrderedDict with attributes": (
        "from collections import OrderedDict\nv = OrderedDict(a=1)\nv.x = 1",
        PYTHON,
        "assert v == {'a': 1} and v.x == 1",
    ),
    "bool that lies about equality": (
        "class K:\n    def __eq__(self, o): raise RuntimeError\n    __hash__ = None\nv = [K(), {'k': K()}]",
        ANY,
        "assert type(v[0]) is K",
    ),
    "metaclass that lies about hashes": (
        "class M(type):\n    def __hash__(cls): raise RuntimeError\n    def __eq__(cls, o): raise RuntimeError\nclass K(metaclass=M): pass\nv = K()",
        LOST,
        "",
    ),
    "class whose methods name it": (
        "class K:\n    def __init__(self, n): self.n = n\n    def more(self): return K(self.n + 1)\nv = K(1)",
        ANY,
        "assert v.more().n == 2 and type(v.more()) is K",
    ),
    # --- by pickle
    "__getstate__ beside a lock": (
        "import threading\nclass K:\n    def __init__(self): self.x, self.lock = 1, threading.Lock()\n    def __getstate__(self): return {'x': self.x}\nv = K()",
        PYTHON,
        "assert v.x == 1 and type(v) is K",
    ),
    "views beside an iterator": (
        "import numpy as np\na = np.arange(6)\nv = [a[1:], a[2:], iter([1])]",
        PYTHON,
        "v[0][1] = 9\nassert v[1][0] == 9",
    ),
    "read-only array beside an iterator": (
        "import numpy as np\na = np.arange(3)\na.flags.writeable = False\nv = [a, iter([1])]",
        PYTHON,
        "assert v[0] is a and not a.flags.writeable",
    ),
    "array of objects in itself beside an iterator": (
        "import numpy as np\na = np.empty(1, object)\na[0] = a\nv = [a, iter([1])]",
        PYTHON,
        "assert v[0][0] is v[0]",
    ),
    "exceptions beside an iterator": (
        "class Bad(ValueError): pass\nv = [KeyError(1), Bad(2), iter([1])]\nv[0].__cause__, v[1].__context__ = v[1], v[0]",
        PYTHON,
        "assert v[0].__cause__ is v[1] and v[1].__context__ is v[0] and v[1].args == (2,)",
    ),
    "result of urlparse": (
        "from urllib.parse import urlparse\nv = urlparse('http://a/b')",
        PYTHON,
        "assert v.netloc == 'a'",
    ),
    "iterator of a list": ("v = iter([1, 2, 3])\nnext(v)", PYTHON, "assert list(v) == [2, 3]"),
    "itertools.count": (
        "import itertools\nv = itertools.count(5)",
        PYTHON if __import__("sys").version_info < (3, 14) else LOST,
        "assert next(v) == 5",
    ),
    "masked array": (
        "import numpy as np\nv = np.ma.array([1, 2], mask=[0, 1])",
        PYTHON,
        "assert v.mask.tolist() == [False, True]",
    ),
    "matrix": ("import numpy as np\nv = np.matrix([[1, 2]])", PYTHON, "assert type(v) is np.matrix and v[0, 1] == 2"),
    "array of a cell's class": (
        "import numpy as np\nclass K(np.ndarray): __slots__ = 'x', '__dict__'\nv = np.arange(3).view(K)\nv.x, v.y = 1, [v]",
        PYTHON,
        "assert type(v) is K and v.tolist() == [0, 1, 2] and v.x == 1 and v.y[0] is v",
    ),
    "sparse array": ("import pandas as pd\nv = pd.arrays.SparseArray([0, 0, 1])", PYTHON, "assert v.sum() == 1"),
    "StringIO": ("import io\nv = io.StringIO('abc')\nv.read(1)", PYTHON, "assert v.read() == 'bc'"),
    "TypeVar": ("from typing import TypeVar\nv = TypeVar('v', bound=int)", PYTHON, "assert v.__bound__ is int"),
    "long double": ("import numpy as np\nv = np.longdouble(1.5)", PYTHON, "assert v == 1.5"),
    "dtype with metadata": (
        "import numpy as np\nv = np.dtype('f8', metadata={'a': 1})",
        PYTHON,
        "assert v.metadata['a'] == 1",
    ),
    "struct.Struct": ("import struct\nv = struct.Struct('<I')", LOST, ""),
    # --- lost
    "generator": ("v = (i for i in 'ab')", LOST, ""),
    "coroutine": ("async def f(): pass\nv = f()", LOST, ""),
    "lock": ("import threading\nv = threading.Lock()", LOST, ""),
    "file": ("import os\nv = open(os.devnull)", LOST, ""),
    "socket": ("import socket\nv = socket.socket()", LOST, ""),
    "thread": ("import threading\nv = threading.Thread(target=print)", LOST, ""),
    "weak reference": ("class K: pass\nk = K()\nimport weakref\nv = weakref.ref(k)", LOST, ""),
    "weak dictionary": ("import weakref\nclass K: pass\nk = K()\nv = weakref.WeakKeyDictionary({k: 1})", LOST, ""),
    "frame": ("import sys\nv = sys._getframe()", LOST, ""),
    "traceback": ("try: 1 / 0\nexcept Exception as e: v = e.__traceback__", LOST, ""),
    "module that was made here": ("import types\nv = types.ModuleType('mine')", LOST, ""),
    "memory of a part": ("v = memoryview(bytearray(5))[1:3]", LOST, ""),
    "object of ctypes": ("import ctypes\nv = ctypes.c_char_p(b'x')", LOST, ""),
    "array in a file": (
        "import numpy as np, tempfile\nv = np.memmap(tempfile.TemporaryFile(), 'u1', 'w+', shape=4)",
        LOST,
        "",
    ),
    "context variable": ("import contextvars\nv = contextvars.ContextVar('x')", LOST, ""),
    "part of the sandbox": (
        "import sys\nv = [type(sys.stdout), iter(())]",
        PYTHON,
        "import sys\nassert v[0] is type(sys.stdout)",
    ),
    "global generator of random": (
        "import random\nrandom.seed(5)\nrandom.gauss(0, 1)\nv = random.Random()\nv.setstate(random.getstate())",
        ANY,
        "import random\nassert [random.gauss(0, 1), random.random()] == [v.gauss(0, 1), v.random()]",
    ),
    # --- NumPy and pandas, other than by equality
    "NumPy Generator": (
        "import numpy as np\nv = np.random.default_rng(5)\nv.random()\nimport copy\nexpected = copy.deepcopy(v).random(3).tolist()",
        ANY,
        "assert v.random(3).tolist() == expected",
    ),
    "NumPy RandomState": (
        "import numpy as np\nv = np.random.RandomState(5)\nv.normal()\nimport copy\nexpected = copy.deepcopy(v).normal(size=3).tolist()",
        ANY,
        "assert v.normal(size=3).tolist() == expected",
    ),
    "NumPy Philox": (
        "import numpy as np\nv = np.random.Generator(np.random.Philox(3))\nimport copy\nexpected = copy.deepcopy(v).random()",
        ANY,
        "assert v.random() == expected",
    ),
    "view of an array": (
        "import numpy as np\na = np.arange(12).reshape(3, 4)\nv = a[1:, ::-2]",
        ANY,
        "a[1, 3] = 99\nassert v[0, 0] == 99 and v.tolist() == [[99, 5], [11, 9]]",
    ),
    "read-only array": (
        "import numpy as np\nv = np.arange(3)\nv.flags.writeable = False",
        ANY,
        "assert not v.flags.writeable and v.tolist() == [0, 1, 2]",
    ),
    "array over a bytearray": ("import numpy as np\nb = bytearray(4)\nv = np.frombuffer(b, 'u1')", LOST, ""),
    "array of objects in itself": ("import numpy as np\nv = np.empty(1, object)\nv[0] = v", ANY, "assert v[0] is v"),
    "DataFrame with attrs": (
        "import pandas as pd\nv = pd.DataFrame({'a': [1]})\nv.attrs['k'] = [1]",
        ANY,
        "assert v.attrs == {'k': [1]} and v['a'].tolist() == [1]",
    ),
    "DataFrame of lists": (
        "import pandas as pd\nv = pd.DataFrame({'a': [[1], None]})",
        ANY,
        "assert v['a'].tolist() == [[1], None] and v['a'].dtype == object",
    ),
    "NaT and NA": (
        "import pandas as pd\nv = [pd.NaT, pd.NA]",
        ANY,
        "import pandas as pd\nassert v[0] is pd.NaT and v[1] is pd.NA",
    ),
}
for _name in ("Ellipsis", "NotImplemented", "infinity"):
    KINDS[_name] = (KINDS[_name][0], ANY, KINDS[_name][2].replace(_SAME, _REPR))
