"""Results, output and displays of a notebook's cells."""

from __future__ import annotations

import base64
import json
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbformat
import pytest
from jupyter_client.session import Session
from nbclient import NotebookClient

from conftest import BACKEND, PATIENCE, Kernel, Spec

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)

Start = Callable[..., Kernel]


def test_what_is_printed_and_what_comes_out(shared: Kernel) -> None:
    cell = shared.ok("import sys\nprint('out')\nprint('err', file=sys.stderr)\n1 + 1")
    assert (cell.stdout, cell.stderr, cell.data) == ("out\n", "err\n", {"text/plain": "2"})
    assert [kind for kind, _ in cell.messages if kind != "stream"] == ["status", "execute_input", "execute_result"]
    again = shared.ok("_x = 3")
    assert again.reply["execution_count"] == cell.reply["execution_count"] + 1
    assert shared.ok("").reply["execution_count"] == again.reply["execution_count"]


def test_output_comes_while_the_cell_runs(shared: Kernel) -> None:
    # Only an interrupt ends the cell, and only its output brings the interrupt.
    def on(kind: str, content: dict[str, Any]) -> None:
        if kind == "stream" and "begun" in content["text"]:
            shared.manager.interrupt_kernel()

    cell = shared.collect(shared.begin("import time\nprint('begun')\ntime.sleep(1000)"), on)
    assert (cell.stdout, cell.error["ename"]) == ("begun\n", "KeyboardInterrupt")


def test_errors_have_name_value_and_traceback(shared: Kernel) -> None:
    cell = shared.run("def f(): raise KeyError('k')\nf()")
    assert (cell.error["ename"], cell.error["evalue"]) == ("KeyError", "'k'")
    assert cell.error["traceback"][-1] == "KeyError: 'k'" and "line 1, in f" in "\n".join(cell.error["traceback"])
    assert cell.reply["status"] == "error" and cell.reply["ename"] == "KeyError"
    assert cell.stderr == ""


def test_results_are_shown_in_one_output_and_figures_in_another(shared: Kernel) -> None:
    shared.ok(
        f"png = {PNG!r}\n"
        "class Html:\n    def _repr_html_(self): return '<b>1</b>'\n    def __repr__(self): return 'Html()'\n"
        "class Png:\n    def _repr_png_(self): return png\n    def __repr__(self): return 'Png()'\n"
        "class Chart:\n    def _repr_mimebundle_(self, include=None, exclude=None):\n"
        "        return {'application/vnd.vegalite.v5+json': {'mark': 'bar'}}\n"
    )
    image = base64.b64encode(PNG).decode()
    cell = shared.ok("print(1)\nHtml()")
    assert cell.data == {"text/plain": "Html()", "text/html": framed("<b>1</b>")} and cell.of("display_data") == []
    assert shared.ok("Png()").data == {"text/plain": "Png()", "image/png": image}
    cell = shared.ok("display(Png())\ndisplay(Chart(), Html())\n5")
    assert [content["data"] for content in cell.of("display_data")] == [
        {"image/png": image},
        {"text/plain": "[application/vnd.vegalite.v5+json, which is shown by a kernel with --trust-output only]"},
        {"text/html": framed("<b>1</b>")},
    ]
    assert cell.data == {"text/plain": "5"}


def framed(html: str) -> str:
    """The HTML that the notebook gets for `html`: in a frame that runs no script and loads nothing."""
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; font-src data:; media-src data:"
    page = f'<meta http-equiv="Content-Security-Policy" content="{policy}">{html}'
    page = page.replace("&", "&amp;").replace('"', "&quot;")
    style = "width:100%;height:20em;border:0;background:#fff;resize:vertical"
    return f'<iframe sandbox="" style="{style}" srcdoc="{page}"></iframe>'


OUTPUTS = (
    "class Raw:\n"
    "    def __init__(self, mime, data): self.bundle = {mime: data}\n"
    "    def _repr_mimebundle_(self, include=None, exclude=None): return self.bundle\n"
    "    def __repr__(self): return 'Raw()'\n"
)


def test_what_code_shows_cannot_reach_the_notebook(shared: Kernel) -> None:
    script = '<script>fetch("/api/terminals", {method: "POST"})</script>&quot;><img src=x onerror="alert(1)">'
    shared.ok(f"{OUTPUTS}script = {script!r}")
    assert shared.ok("Raw('text/html', script)").data == {"text/plain": "Raw()", "text/html": framed('"&gt;<img>')}
    # Elements that connect without a script are removed, and styles stay.
    link = (
        '<link rel="preconnect" href="//example.com"><style>b{color:red;background:url(//example.com)}</style><b>1</b>'
    )
    shown = framed("<style>b{color:red;background: blocked }</style><b>1</b>")
    assert shared.ok(f"Raw('text/html', {link!r})").data == {"text/plain": "Raw()", "text/html": shown}
    cell = shared.ok("for mime in 'text/markdown', 'text/latex', 'image/svg+xml': display(Raw(mime, script))")
    image = f'<img src="data:image/svg+xml;base64,{base64.b64encode(script.encode()).decode()}">'
    assert [content["data"] for content in cell.of("display_data")] == [
        {"text/plain": script},
        {"text/plain": script},
        {"text/html": image},
    ]
    assert shared.ok("Raw('text/markdown', script)").data == {"text/plain": "Raw()"}


def test_outputs_come_as_they_are_where_they_are_trusted(start: Start) -> None:
    kernel = start("--trust-output")
    outputs = {
        "text/html": "<b>1</b>",
        "text/markdown": "*1*",
        "text/latex": "$1$",
        "image/svg+xml": "<svg/>",
        "application/vnd.vegalite.v5+json": {"mark": "bar"},
    }
    cell = kernel.ok(f"{OUTPUTS}for mime, data in {outputs!r}.items(): display(Raw(mime, data))")
    assert [content["data"] for content in cell.of("display_data")] == [{mime: data} for mime, data in outputs.items()]


def test_an_open_figure_is_no_part_of_the_result(start: Start) -> None:
    # This Python is sure to have matplotlib. Only its user may be able to read it, so the guest is a subprocess.
    cell = start("--backend=subprocess", f"--python={sys.executable}").ok(
        "import matplotlib.pyplot as plt\nplt.plot([1, 2])\n7"
    )
    assert cell.data == {"text/plain": "7"}
    assert [list(content["data"]) for content in cell.of("display_data")] == [["image/png"]]
    kinds = [kind for kind, _ in cell.messages]
    assert kinds.index("execute_result") < kinds.index("display_data")


def test_ten_megabytes_come_whole(shared: Kernel) -> None:
    cell = shared.ok("for i in range(10_000): print(str(i % 10) * 999)")
    assert len(cell.stdout) == 10_000_000
    assert cell.stdout.endswith("8" * 999 + "\n" + "9" * 999 + "\n")


def test_more_output_than_is_allowed_says_what_is_missing(start: Start) -> None:
    cell = start("--max-output=1000").ok("print('x' * 10_000_000)")
    assert "left out" in cell.stdout or "omitted" in cell.stdout or "truncated" in cell.stdout, cell.stdout[:300]
    assert len(cell.stdout) < 200_000


@pytest.mark.parametrize("code", ["while True: pass", "import time; time.sleep(1000)"])
def test_an_interrupt_stops_a_cell_and_keeps_its_variables(shared: Kernel, code: str) -> None:
    request = shared.begin(f"kept = 5\nprint('runs')\n{code}")

    def on(kind: str, content: dict[str, Any]) -> None:
        if kind == "stream" and "runs" in content["text"]:
            shared.manager.interrupt_kernel()

    cell = shared.collect(request, on)
    assert cell.error["ename"] == "KeyboardInterrupt" and "variables are kept" in cell.error["evalue"]
    assert shared.ok("kept").data == {"text/plain": "5"}


def test_an_interrupt_of_nothing_does_nothing(shared: Kernel) -> None:
    client = shared.client
    client.control_channel.send(client.session.msg("interrupt_request"))
    # The next cell starts after the answer, or the interrupt might stop that cell.
    assert client.get_control_msg(timeout=PATIENCE)["content"]["status"] == "ok"
    assert shared.ok("1").data == {"text/plain": "1"}


def test_a_cell_that_runs_out_of_time_says_so(start: Start) -> None:
    kernel = start("--timeout=1")
    cell = kernel.run("x = 1\nprint('before')\nwhile True: pass")
    assert cell.stdout == "before\n" and cell.error["ename"] == "TimeoutError"
    assert "variables are kept" in cell.error["evalue"] and cell.reply["status"] == "error"
    assert kernel.ok("x").data == {"text/plain": "1"}


def test_a_crash_shows_that_the_state_is_lost(start: Start) -> None:
    kernel = start()
    kernel.ok("gone = 1")
    cell = kernel.run("print('last words', flush=True)\nimport os\nos.kill(os.getpid(), 9)")
    assert cell.stdout == "last words\n" and cell.reply["status"] == "error"
    assert "lost" in cell.error["evalue"] and cell.error["ename"] and cell.error["traceback"]
    assert "sandglass: the state is lost" in cell.stderr and "gone" in cell.stderr
    assert kernel.run("gone").error["ename"] == "NameError"
    assert kernel.ok("1 + 1").data == {"text/plain": "2"}


def test_cells_that_wait_are_not_run_after_one_that_failed(shared: Kernel) -> None:
    requests = [
        shared.begin("input(); 1 / 0", allow_stdin=True),
        *(shared.begin(code) for code in ("print('not run')", "print('nor this')")),
    ]
    # The first ends when the others have been sent.
    shared.client.get_stdin_msg(timeout=PATIENCE)
    shared.client.input("")
    first = shared.collect(requests[0])
    assert first.error["ename"] == "ZeroDivisionError"
    for request in requests[1:]:
        cell = shared.collect(request)
        assert cell.reply["status"] == "aborted" and cell.stdout == ""
    requests = [shared.begin("1 / 0", stop_on_error=False), shared.begin("print('run')")]
    shared.collect(requests[0])
    assert shared.collect(requests[1]).stdout == "run\n"


def test_silent_cells_show_nothing_and_do_not_count(shared: Kernel) -> None:
    count = shared.ok("1").reply["execution_count"]
    cell = shared.run("print(1)\nquiet = 1\n2", silent=True)
    assert [kind for kind, _ in cell.messages] == ["status"] and cell.reply["execution_count"] == count
    assert shared.ok("quiet", store_history=False).reply["execution_count"] == count
    cell = shared.ok("y = 6", user_expressions={"a": "y * 7", "b": "1 / 0", "c": "None"})
    found = cell.reply["user_expressions"]
    assert found["a"]["data"] == {"text/plain": "42"} and found["c"]["data"] == {"text/plain": "None"}
    assert found["b"]["status"] == "error" and found["b"]["ename"] == "ZeroDivisionError"


def test_a_state_that_is_lost_unseen_is_told_nevertheless(start: Start) -> None:
    kernel = start()
    kernel.ok("gone = 1")
    crash = "__import__('os').kill(__import__('os').getpid(), 9)"
    cell = kernel.ok("2", user_expressions={"a": crash})
    assert cell.reply["user_expressions"]["a"]["status"] == "error"
    assert "sandglass: the state is lost" in cell.stderr and "gone" in cell.stderr
    # The loss in a silent cell is told with the next cell, once.
    kernel.ok("gone = 2")
    cell = kernel.run(crash, silent=True)
    assert cell.reply["status"] == "error" and cell.of("stream") == []
    cell = kernel.ok("3")
    assert "sandglass: the state is lost" in cell.stderr and "gone" in cell.stderr
    assert kernel.ok("4").stderr == ""


class Answers:
    """Answers a cell's requests for input."""

    def __init__(self, kernel: Kernel, *answers: str) -> None:
        self.kernel = kernel
        self.prompts: list[str] = []
        self.answers = list(answers)
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        for answer in self.answers:
            message = self.kernel.client.get_stdin_msg(timeout=PATIENCE)
            assert message["header"]["msg_type"] == "input_request"
            self.prompts.append(message["content"]["prompt"])
            self.kernel.client.input(answer)


def test_input_is_asked_of_the_front_end(shared: Kernel) -> None:
    answers = Answers(shared, "Ann", "42")
    cell = shared.ok("name = input('name? ')\nage = int(input())\nname, age, input", allow_stdin=True)
    assert cell.data["text/plain"].startswith("('Ann', 42, <function input") and answers.prompts == ["name? ", ""]
    # `input` stays a name that code can assign.
    shared.ok("input = 3")
    assert shared.ok("input").data == {"text/plain": "3"}
    shared.ok("del input")
    cell = shared.run("input('?')")
    assert cell.error["ename"] == "EOFError" and "nobody to ask" in cell.error["evalue"]


def test_a_front_end_that_does_not_listen_is_not_waited_for(shared: Kernel) -> None:
    client = shared.manager.client()
    # A client of another session: the kernel would ask one of the same session on its stdin channel.
    client.session = Session(key=shared.manager.session.key)
    client.start_channels(stdin=False, hb=False)
    try:
        client.wait_for_ready(timeout=PATIENCE)
        client.execute("input('?')", allow_stdin=True)
        reply = client.get_shell_msg(timeout=PATIENCE)["content"]
        assert reply["ename"] == "EOFError" and "nobody to ask" in reply["evalue"]
    finally:
        client.stop_channels()


def test_a_question_can_be_interrupted_and_its_answer_comes_too_late(shared: Kernel) -> None:
    request = shared.begin("input('never? ')", allow_stdin=True)
    shared.client.get_stdin_msg(timeout=PATIENCE)
    shared.manager.interrupt_kernel()
    assert shared.collect(request).error["ename"] == "KeyboardInterrupt"
    shared.client.input("too late")
    Answers(shared, "in time")
    assert shared.ok("input('now? ')", allow_stdin=True).data == {"text/plain": "'in time'"}


def ask(kernel: Kernel, request: str) -> dict[str, Any]:
    cell = kernel.collect(request)
    return cell.reply


def test_completion_and_inspection(shared: Kernel) -> None:
    client = shared.client
    shared.ok(
        'def greet(name, loud=False):\n    """Says hello."""\n    return name\nclass Box: pass\nbox = Box()\nbox.inside = 1'
    )
    reply = ask(shared, client.complete("x = gree", 8))
    assert (reply["matches"], reply["cursor_start"], reply["cursor_end"]) == (["greet"], 4, 8)
    assert ask(shared, client.complete("é = box.ins\n1", 11))["matches"] == ["inside"]
    assert ask(shared, client.complete("nothing.at", 10))["matches"] == []
    reply = ask(shared, client.inspect("greet(", 6))
    assert reply["found"] and "Signature: greet(name, loud=False)" in reply["data"]["text/plain"]
    assert "Says hello." in reply["data"]["text/plain"]
    assert "return name" in ask(shared, client.inspect("greet", 5, 1))["data"]["text/plain"]
    assert ask(shared, client.inspect("unheard", 3)) == {"status": "ok", "found": False, "data": {}, "metadata": {}}
    # Completion counts as no execution.
    before = shared.ok("1").reply["execution_count"]
    ask(shared, client.complete("gr", 2))
    assert shared.ok("1").reply["execution_count"] == before + 1


def test_a_completion_that_hangs_ends_and_keeps_the_variables(shared: Kernel) -> None:
    shared.ok("class Slow:\n    def __dir__(self):\n        while True: pass\nslow = Slow()")
    assert ask(shared, shared.client.complete("slow.x", 6))["matches"] == []
    assert shared.ok("type(slow).__name__").data == {"text/plain": "'Slow'"}


def test_history(shared: Kernel) -> None:
    count = shared.ok("'remembered'").reply["execution_count"]
    reply = ask(shared, shared.client.history(hist_access_type="tail", n=1, output=True, raw=True))
    assert reply["history"] == [[1, count, ["'remembered'", "'remembered'"]]]


class Endpoint(BaseHTTPRequestHandler):
    """OpenAI's protocol, as far as a model needs it."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        text = f"{asked['model']} heard {asked['messages'][-1]['content']} by {self.headers['authorization']}"
        body = json.dumps({"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}]})
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body.encode())))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: Any) -> None:
        pass


def test_models_answer_where_there_is_an_endpoint(start: Start, shared: Kernel) -> None:
    assert shared.run("llm_query('x')").error["ename"] == "HostCallError"
    server = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        url = f"http://127.0.0.1:{server.server_port}/v1"
        kernel = start(f"--llm-url={url}", "--llm-model=small,large", SANDGLASS_LLM_KEY="secret-key")
        cell = kernel.ok(
            "print(llm_query('hi'))\nprint(llm_query('hi', model='large'))\nimport os; 'SANDGLASS_LLM_KEY' in os.environ"
        )
        # The key is removed from a reply that quotes it.
        assert cell.stdout == "small heard hi by Bearer [key]\nlarge heard hi by Bearer [key]\n"
        assert cell.data == {"text/plain": "False"}
    finally:
        server.shutdown()


def test_files_and_a_context_can_be_given(start: Start) -> None:
    # The guest is another user, which cannot reach pytest's own folders.
    with TemporaryDirectory() as place:
        path = Path(place)
        path.chmod(0o755)
        (path / "data.json").write_text('{"a": [1, 2]}')
        folder = path / "work"
        folder.mkdir()
        folder.chmod(0o777)
        (folder / "in.txt").write_text("in")
        kernel = start(f"--context={path / 'data.json'}", f"--workspace={folder}")
        assert kernel.ok("context['a'], open('in.txt').read()").data == {"text/plain": "([1, 2], 'in')"}


def test_a_notebook_runs_from_end_to_end(spec: Spec) -> None:
    notebook = nbformat.v4.new_notebook(  # type: ignore[no-untyped-call]
        cells=[
            nbformat.v4.new_code_cell(source)  # type: ignore[no-untyped-call]
            for source in ("x = 20", "print(x)\nx + 1", "1 / 0", "import asyncio\nawait asyncio.sleep(0.01)\nx * 2")
        ]
    )
    client = NotebookClient(notebook, timeout=PATIENCE, kernel_name=spec(), allow_errors=True)
    client.execute()
    outputs = [[dict(output) for output in cell.outputs] for cell in notebook.cells]
    assert outputs[0] == []
    assert [output["output_type"] for output in outputs[1]] == ["stream", "execute_result"]
    assert outputs[1][0]["text"] == "20\n" and outputs[1][1]["data"] == {"text/plain": "21"}
    assert outputs[2][0]["ename"] == "ZeroDivisionError"
    assert outputs[3][0]["data"] == {"text/plain": "40"} and outputs[3][0]["execution_count"] == 4
    assert notebook.metadata.language_info["name"] == "python"


def test_cells_are_in_the_sandbox(shared: Kernel) -> None:
    if BACKEND == "subprocess":
        pytest.skip("which isolates nothing")
    code = "import os, socket\nprint(os.getcwd())\ntry:\n    socket.create_connection(('127.0.0.1', {port}), 1)\n    print('reached')\nexcept OSError:\n    print('not reached')"
    port = shared.manager.get_connection_info()["shell_port"]
    assert shared.ok(code.replace("{port}", str(port))).stdout == "/workspace\nnot reached\n"
