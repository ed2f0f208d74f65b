"""The rules for every kernel, by Jupyter's own tests of kernels."""

from __future__ import annotations

import jupyter_kernel_test as jkt
import pytest

from conftest import Spec


class TestKernel(jkt.KernelTests):  # type: ignore[misc]
    language_name = "python"
    file_extension = ".py"
    code_hello_world = "print('hello, world')"
    code_stderr = "import sys; print('test', file=sys.stderr)"
    code_generate_error = "raise ValueError('no')"
    code_display_data = [
        {
            "code": "class A:\n    def _repr_html_(self): return '<b>1</b>'\ndisplay(A())",
            "mime": "text/html",
        },
    ]
    code_execute_result = [{"code": "6 * 7", "result": "42"}, {"code": "'é' * 3", "result": "'ééé'"}]
    completion_samples = [
        {"text": "zi", "matches": {"zip"}},
        {"text": "import jso", "matches": {"json"}},
    ]
    complete_code_samples = ["1", "print('hello, world')", "def f(x):\n    return x * 2\n\n\n"]
    incomplete_code_samples = ["print('''hello", "def f(x):\n    x * 2", "f(1,"]
    invalid_code_samples = ["import = (7q')", "print('"]
    code_inspect_sample = "zip"
    code_history_pattern = "6?? 7*"
    supported_history_operations = ("tail", "range", "search")
    code_page_something = ""
    code_clear_output = ""


@pytest.fixture(autouse=True, scope="module")
def _installed(spec: Spec) -> None:
    TestKernel.kernel_name = spec()
