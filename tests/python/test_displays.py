"""Rich outputs, on native Python. Cases of users' view are in tests/cases/displays.toml."""

from __future__ import annotations

import base64
import json
import sys
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import pytest
from conftest import CONFIG, Guest
from hypothesis import given
from hypothesis import strategies as st

from sandglass.runtime.displays import is_binary, is_display


def shown(guest: Guest, source: str) -> list[tuple[str, bytes]]:
    return guest.ok(source).displays


ANYTHING = """
class Anything:
    def __init__(self, **methods):
        for name, value in methods.items():
            setattr(type(self), name, lambda self, value=value: value)
def make(**methods): return type("Anything", (Anything,), {})(**methods)
"""


@pytest.mark.parametrize(
    ("methods", "expected"),
    [
        ("_repr_html_='<b>'", ("text/html", b"<b>")),
        ("_repr_html_=('<b>', {'isolated': True})", ("text/html", b"<b>")),
        ("_repr_html_='\\ud800'", ("text/html", b"\\ud800")),
        ("_repr_png_=bytearray(b'x')", ("image/png", b"x")),
        ("_repr_png_=memoryview(b'x')", ("image/png", b"x")),
        ("_repr_png_='eA=='", ("image/png", b"x")),
        ("_repr_json_={'a': None}", ("application/json", b'{"a": null}')),
        ("_repr_json_=([1], {'expanded': True})", ("application/json", b"[1]")),
        ("_repr_json_='[1]'", ("application/json", b"[1]")),
        ("_repr_pdf_=b'%PDF'", ("application/pdf", b"%PDF")),
        ("_repr_html_=None, _repr_latex_='$x$'", ("text/latex", b"$x$")),
        ("_repr_mimebundle_={}, _repr_svg_='<svg/>'", ("image/svg+xml", b"<svg/>")),
    ],
)
def test_methods(guest: Guest, methods: str, expected: tuple[str, bytes]) -> None:
    # `_repr_mimebundle_` is called with keywords.
    source = ANYTHING.replace("lambda self, value=value:", "lambda self, value=value, **_:")
    assert shown(guest, f"{source}\nmake({methods})") == [expected]


def test_plain_values_have_nothing_to_show(guest: Guest) -> None:
    for source in ("1", "'x'", "[1]", "print", "object()", "Exception", "type", "..."):
        assert shown(guest, source) == []


def test_display_returns_nothing_and_shows_each_object(guest: Guest) -> None:
    cell = guest.ok("print(display(1, 'a', None))")
    assert cell.displays == [("text/plain", b"1"), ("text/plain", b"'a'"), ("text/plain", b"None")]
    assert cell.stdout == "None\n"
    assert guest.bridge.events[-4:] == ["display", "display", "display", "stdout"]


def test_what_was_printed_before_comes_before(guest: Guest) -> None:
    guest.bridge.events.clear()
    guest.ok("print(1); display(2); print(3)")
    assert guest.bridge.events == ["stdout", "display", "stdout"]


def test_the_repr_that_exits_costs_no_result(guest: Guest) -> None:
    cell = guest.run("class X:\n def __repr__(self): return 'X'\n def _repr_html_(self): raise SystemExit\nX()")
    assert cell.result == "X"


def test_a_repr_may_not_catch_what_ends_the_cell(guest: Guest) -> None:
    cell = guest.run("class X:\n def __repr__(self): return 'X'\n def _repr_html_(self): raise KeyboardInterrupt\nX()")
    assert (cell.result, cell.error_type) == ("X", "KeyboardInterrupt")


def test_bounds(guest: Guest) -> None:
    cell = guest.ok("for n in range(15): display(n)")
    assert (len(cell.displays), cell.omitted_displays) == (10, 5)
    large = "type('X', (), {'_repr_html_': lambda self: 'x' * size})"
    cell = guest.ok(f"size = 100_001\nx = {large}()\nx")
    assert (cell.displays, cell.omitted_displays) == ([], 1)
    assert "object at" in cell.result
    cell = guest.ok("size = 90_000\ndisplay(x, x, x, 1)")
    assert ([len(data) for _, data in cell.displays], cell.omitted_displays) == ([90_000, 90_000, 1], 1)
    assert guest.ok("1").omitted_displays == 0


def test_a_display_after_the_end_of_its_cell_is_nobodys(guest: Guest) -> None:
    guest.ok("kept = display")
    guest.bridge.displays = []
    guest.get("kept")
    guest.runtime._displays.display(1)
    assert guest.bridge.displays == []


def test_a_host_function_may_be_called_display() -> None:
    guest = Guest()
    guest.runtime.configure({**CONFIG, "hostFunctions": ["display"]})
    assert guest.ok("display('x')").result == "'answer to x'"


@given(st.text(alphabet='abcXYZ019/+.-;"<> é\0', max_size=30))
def test_what_is_sent_has_a_mime_type_that_the_host_takes(mime: str) -> None:
    if is_display(mime):
        family, _, subtype = mime.partition("/")
        assert family.isascii() and subtype and not set(subtype) & set(';"<> /é\0X')
        assert is_binary(mime) or family == "text" or subtype.endswith("json")


_JUNK = st.one_of(st.none(), st.integers(), st.text(), st.binary(), st.lists(st.integers()), st.just(object))


@given(st.dictionaries(st.one_of(st.text(), st.sampled_from(["text/html", "image/png", "application/json"])), _JUNK))
def test_no_bundle_raises(bundle: dict[str, Any]) -> None:
    guest = Guest()
    guest.runtime.configure(CONFIG)
    guest.runtime.namespace.globals["bundle"] = bundle
    cell = guest.ok("display(bundle, raw=True)\ntype('X', (), {'_repr_mimebundle_': lambda *_, **__: bundle})()")
    for mime, data in cell.displays:
        assert is_display(mime)
        if not is_binary(mime):
            data.decode()


# ---- figures ----


@pytest.fixture
def pyplot(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A stand-in for the used part of `matplotlib.pyplot`."""
    module: Any = ModuleType("matplotlib.pyplot")
    figures: dict[int, Any] = {}

    class Figure:
        def __init__(self, number: int) -> None:
            self.number = number

        def savefig(self, target: Any, *, format: str) -> None:
            target.write(f"{format} {self.number}".encode())

    module.figures, module.Figure = figures, Figure
    module.get_fignums = lambda: sorted(figures)
    module.figure = lambda num=None: figures.setdefault(num or len(figures) + 1, Figure(num or len(figures) + 1))
    module.close = lambda fig=None: figures.clear()
    module.show = lambda **_: None
    parent = ModuleType("matplotlib")
    parent.pyplot = module  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "matplotlib", parent)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", module)
    return module


@pytest.mark.usefixtures("pyplot")
def test_figures_are_shown_once_and_closed(guest: Guest) -> None:
    source = "import matplotlib.pyplot as plt\nplt.figure(); plt.figure()\nplt.show()\nfigure = plt.figure(5)\nfigure"
    cell = guest.ok(source)
    assert [data for _, data in cell.displays] == [b"png 1", b"png 2", b"png 5"]
    assert guest.ok("plt.get_fignums()").result == "[]"


@pytest.mark.usefixtures("pyplot")
def test_figures_of_a_cell_that_was_interrupted_wait(guest: Guest) -> None:
    cell = guest.run("import matplotlib.pyplot as plt\nplt.figure()\nraise KeyboardInterrupt")
    assert cell.displays == []
    assert [data for _, data in guest.ok("1").displays] == [b"png 1"]


@pytest.mark.usefixtures("pyplot")
def test_too_many_figures_are_not_even_drawn(guest: Guest) -> None:
    cell = guest.ok(
        "import matplotlib.pyplot as plt\ndrawn = []\ndraw = plt.Figure.savefig\n"
        "plt.Figure.savefig = lambda *a, **k: (drawn.append(1), draw(*a, **k))\n"
        "for n in range(1, 14): plt.figure(n)"
    )
    assert (len(cell.displays), cell.omitted_displays) == (10, 3)
    assert guest.ok("len(drawn)").result == "10"


@pytest.mark.usefixtures("pyplot")
@pytest.mark.parametrize(
    "damage",
    [
        "plt.get_fignums = 5",
        "plt.get_fignums = lambda: [1, 'x', None]",
        "plt.close = lambda *a: 1 / 0",
        "plt.figure = None",
        "del plt.figure, plt.close",
        "plt.Figure.savefig = lambda *a, **k: 1 / 0",
        "plt.Figure.savefig = lambda self, target, **k: target.close()",
        "plt.Figure.savefig = lambda self, target, **k: target.write('text')",
        "plt.show = property(lambda self: 1 / 0)",
        "import sys; sys.modules['matplotlib.pyplot'] = 5",
    ],
)
def test_rubbish_in_place_of_pyplot(guest: Guest, damage: str) -> None:
    assert guest.ok(f"import matplotlib.pyplot as plt\nplt.figure()\n{damage}\n'result'").result == "'result'"
    assert guest.ok("'next'").result == "'next'"


def test_real_matplotlib(guest: Guest, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib", reason="it is no small dependency: install it to run this")
    monkeypatch.setenv("MPLBACKEND", "agg")
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    cell = guest.ok(
        "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()\nplt.plot([2, 1])\nplt.title('x')\n"
        "figure, _ = plt.subplots()\nfigure"
    )
    assert [(mime, data[:4]) for mime, data in cell.displays] == [("image/png", b"\x89PNG")] * 3, cell.stderr
    assert cell.stderr == ""
    assert guest.ok("plt.get_fignums()").result == "[]"
    assert guest.ok("display(figure)").displays[0][0] == "image/png"


# ---- IPython ----


@pytest.fixture
def _no_ipython(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "IPython"]:
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.usefixtures("_no_ipython")
@pytest.mark.skipif(find_spec("IPython") is not None, reason="the real one is installed, and comes first")
def test_ipython_stands_in(guest: Guest) -> None:
    cell = guest.ok(
        "import IPython\nfrom IPython.core.display import HTML as H\n"
        "from IPython.display import display as d, HTML, Image, Math, SVG, Pretty\n"
        "assert H is HTML and IPython.get_ipython() is None\n"
        "d(HTML('<b>'), Image(b'\\xff\\xd8'), Math('x'), SVG('<svg/>'), Pretty('p'))"
    )
    assert [mime for mime, _ in cell.displays] == [
        "text/html",
        "image/jpeg",
        "text/latex",
        "image/svg+xml",
        "text/plain",
    ]
    for call in ("HTML(url='http://x')", "Image('https://x/y.png')"):
        assert "no network" in guest.run(f"from IPython.display import *\n{call}").error
    assert guest.run("import IPython.nothing").error_type == "ModuleNotFoundError"


@pytest.mark.usefixtures("_no_ipython")
def test_an_image_from_a_file(guest: Guest, tmp_path: Any) -> None:
    (tmp_path / "x.png").write_bytes(b"\x89PNG")
    name = json.dumps(str(tmp_path / "x.png"))
    cell = guest.ok(f"from IPython.display import Image\nImage({name})")
    assert cell.displays == [("image/png", base64.b64decode("iVBORw=="))]
