"""The trace that a client names: in the log of real servers, and in the spans that a collector gets from them.

Decisions: `docs/internals/server.md`.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

ROOT = Path(__file__).parents[2]
PROGRAM = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "debug/sandglass-host"
KEY = "a-key-for-tests-0123456789"
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PATIENCE_SECONDS = 90
SECRET = "a secret of the user"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        kind, answer = self.server.answered(self.path, dict(self.headers), body)  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def listening(answered: Callable[[str, dict[str, str], bytes], tuple[str, bytes]]) -> Iterator[str]:
    """An HTTP server, and its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.answered = answered  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


class Collector:
    """A collector of OTLP over HTTP, which decodes what it gets."""

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []

    def answered(self, path: str, headers: dict[str, str], body: bytes) -> tuple[str, bytes]:
        assert path == "/v1/traces"
        assert {name.lower(): value for name, value in headers.items()}["content-type"] == "application/x-protobuf"
        self.requests.append(ExportTraceServiceRequest.FromString(body))
        return "application/x-protobuf", ExportTraceServiceResponse().SerializeToString()

    def spans(self) -> list[Span]:
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def text(self) -> str:
        return "".join(str(request) for request in self.requests)

    def services(self) -> set[str]:
        resources = [one.resource for request in self.requests for one in request.resource_spans]
        return {pair.value.string_value for one in resources for pair in one.attributes if pair.key == "service.name"}


class Model:
    """An endpoint of a model."""

    def __init__(self, *replies: str) -> None:
        self.parents: list[str] = []
        self._replies = list(replies)

    def answered(self, _: str, headers: dict[str, str], __: bytes) -> tuple[str, bytes]:
        self.parents.append({name.lower(): value for name, value in headers.items()}.get("traceparent", ""))
        text = self._replies.pop(0) if self._replies else "a reply"
        reply = {
            "choices": [{"message": {"content": text}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 7, "completion_tokens": 3},
        }
        return "application/json", json.dumps(reply).encode()


class Server:
    """A server until the end of its `with` block, which ends it in good order."""

    def __init__(self, log: Path, *options: str, **variables: str) -> None:
        command = [str(PROGRAM), "serve", "--listen", "127.0.0.1:0", "--backend", "subprocess", "--allow-subprocess"]
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
        env = {**inherited, "SANDGLASS_KEYS": f"tester {KEY}", "REPL_ENABLED": "false", "RUST_LOG": "info", **variables}
        self._errors = log.open("w")
        self.log = log
        self.process = subprocess.Popen(
            [*command, "--max-spares", "0", "--log-format", "json", *options],
            env=env,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def __enter__(self) -> Server:
        assert self.process.stdout
        found = re.search(r"http://\S+", self.process.stdout.readline())
        assert found, self.log.read_text()
        self.address = found[0]
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        try:
            assert self.process.wait(PATIENCE_SECONDS) == 0, self.log.read_text()
        finally:
            self.process.kill()
            self.process.wait()
            assert self.process.stdout
            self.process.stdout.close()
            self._errors.close()

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        own = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json", **headers}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.address + path, data, own, method=method)
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
            text = answer.read()
            return json.loads(text) if text else None

    def lines(self) -> list[dict[str, Any]]:
        """The lines of the log about requests."""
        lines = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [line for line in lines if line.get("message") == "request"]


def attributes(span: Span) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, str(pair.value.WhichOneof("value"))) for pair in span.attributes}


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[str]:
    """The address of a server of NATS."""
    process = os.getpid()  # no other process has this address, so the port is free
    host = f"127.{192 + (process >> 16 & 31)}.{process >> 8 & 255}.{process & 255}"
    command = [str(ROOT / ".setup/nats/nats-server"), "--jetstream", "--addr", host, "--port", "4222"]
    with subprocess.Popen(
        [*command, "--store_dir", str(tmp_path / "nats")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as service:
        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                socket.create_connection((host, 4222)).close()
                break
            except ConnectionRefusedError:
                assert service.poll() is None
                assert time.monotonic() < until
                time.sleep(0.01)
        yield f"nats://{host}:4222"
        service.kill()


def test_the_log_has_the_trace_of_a_request(tmp_path: Path) -> None:
    with Server(tmp_path / "log") as server:
        for traceparent in [f"00-{TRACE}-{PARENT}-01", f"00-{TRACE}-{PARENT}-01-more", None]:
            server.ask("GET", "/v1/sessions", **({"traceparent": traceparent} if traceparent else {}))
    assert [line.get("trace_id") for line in server.lines()] == [TRACE, None, None]
    assert [line.get("span_id") for line in server.lines()] == [None, None, None]


def test_one_trace_leads_from_the_client_over_two_servers_to_the_model(nats: str, tmp_path: Path) -> None:
    collector, model = Collector(), Model()
    with listening(collector.answered) as to, listening(model.answered) as endpoint:
        options = ["--cluster", f"{nats}/test", "--llm-url", f"{endpoint}/v1", "--llm-model", "a-model"]
        variables = {"SANDGLASS_STATE_KEY": "5a" * 32, "OTEL_EXPORTER_OTLP_ENDPOINT": to}
        with (
            Server(tmp_path / "a", *options, OTEL_SERVICE_NAME="first", **variables) as first,
            Server(tmp_path / "b", *options, **variables) as second,
        ):
            session = second.ask("POST", "/v1/sessions", {})["id"]
            code = f"# {SECRET}\nprint({SECRET!r})\nllm_query({SECRET!r})"
            named = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=1"}
            run = first.ask("POST", f"/v1/sessions/{session}/execute", {"code": code}, **named)
            assert run["result"] == "'a reply'", run
    spans = {span.span_id.hex(): span for span in collector.spans() if span.trace_id.hex() == TRACE}
    chain, at = [], next(id for id, span in spans.items() if span.name == "chat a-model")
    innermost = at
    while at != PARENT:
        chain.append(spans[at])
        at = spans[at].parent_span_id.hex()
    route = "POST /v1/sessions/{id}/execute"
    names = [span.name for span in reversed(chain)]
    assert names == [route, "forward", route, "execute", "call llm_query", "chat a-model"]
    assert len(spans) == len(names)
    kinds = [span.kind for span in reversed(chain)]
    server, client, internal = Span.SPAN_KIND_SERVER, Span.SPAN_KIND_CLIENT, Span.SPAN_KIND_INTERNAL
    assert kinds == [server, client, server, internal, internal, client]
    assert {span.trace_state for span in chain} == {"vendor=1"}
    chat, call, execute, request, *_ = chain
    facts = attributes(chat)
    assert facts.pop("server.port") > 0
    assert facts == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "a-model",
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 3,
        "server.address": "127.0.0.1",
    }
    assert model.parents == [f"00-{TRACE}-{innermost}-01"]
    assert attributes(call) == {}
    facts = attributes(execute)
    assert facts["sandglass.session.id"] == session
    assert facts["sandglass.execution.id"] == 1
    assert facts["sandglass.execution.outcome"] == "ok"
    assert facts["sandglass.execution.host_calls"] == 1
    facts = attributes(request)
    assert facts["http.request.method"] == "POST"
    assert facts["http.route"] == "/v1/sessions/{id}/execute"
    assert facts["http.response.status_code"] == 200
    assert collector.services() == {"first", "sandglass"}
    # The spans have nothing of the user, and the key of the server neither.
    assert SECRET not in collector.text()
    assert KEY not in collector.text()
    # The log of each server leads to its own span.
    of_first, of_second = chain[5], chain[3]
    for one, span in [(first, of_first), (second, of_second)]:
        (line,) = [line for line in one.lines() if line.get("trace_id") == TRACE]
        assert line["span_id"] == span.span_id.hex()


def test_a_hostile_traceparent_begins_a_trace_of_its_own(tmp_path: Path) -> None:
    collector = Collector()
    hostile = [
        "",
        f"00-{TRACE}-{PARENT}-01-more",
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{PARENT}-01",
        "00-" + "a" * 8000,
        f"00-{'é' * 32}-{PARENT}-01",
    ]
    with (
        listening(collector.answered) as to,
        Server(tmp_path / "log", OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=f"{to}/v1/traces") as server,
    ):
        for traceparent in hostile:
            server.ask("GET", "/v1/sessions", traceparent=traceparent)
        server.ask("GET", "/v1/sessions", traceparent=f"00-{TRACE}-{PARENT}-00")
        server.ask("GET", "/v1/sessions", traceparent=f"00-{TRACE}-{PARENT}-01", tracestate="x=" + "y" * 8000)
        server.ask("GET", "/health")
    *own, of_client = collector.spans()
    # The caller decided against the last but one, and nobody asks about the health.
    assert len(own) == len(hostile)
    assert all(not span.parent_span_id and span.trace_id.hex() != TRACE for span in own)
    assert len({span.trace_id for span in own}) == len(hostile)
    assert (of_client.trace_id.hex(), of_client.parent_span_id.hex()) == (TRACE, PARENT)
    assert of_client.trace_state == ""


def test_a_failed_execution_says_so(tmp_path: Path) -> None:
    collector = Collector()
    with listening(collector.answered) as to, Server(tmp_path / "log", OTEL_EXPORTER_OTLP_ENDPOINT=to) as server:
        session = server.ask("POST", "/v1/sessions", {})["id"]
        server.ask("POST", f"/v1/sessions/{session}/execute", {"code": f"raise ValueError({SECRET!r})"})
        server.ask("POST", "/execute", {"code": "1 / 0"})
    spans = [span for span in collector.spans() if span.name == "execute"]
    for span in spans:
        assert attributes(span)["sandglass.execution.outcome"] == "error"
    assert len(spans) == 2
    assert spans[0].status.code == Status.STATUS_CODE_ERROR
    assert SECRET not in collector.text()


def test_a_collector_that_never_answers_delays_nobody(tmp_path: Path) -> None:
    # The system takes connections, and nobody reads from them.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        bounded = {
            "OTEL_BSP_MAX_QUEUE_SIZE": "4",
            "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "2",
            "OTEL_BSP_SCHEDULE_DELAY": "1",
        }
        variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}", **bounded}
        # An export gives up only after all of the test's patience.
        variables["OTEL_EXPORTER_OTLP_TIMEOUT"] = str(PATIENCE_SECONDS * 2000)
        with Server(tmp_path / "log", **variables) as server:
            for _ in range(50):
                server.ask("GET", "/v1/sessions")
    log = server.log.read_text()
    assert "the last spans could not be sent" in log, log
    assert "SpansDropped" in log, log


def test_a_run_of_the_controller_is_one_trace(tmp_path: Path) -> None:
    collector, model = Collector(), Model("```repl\nx = llm_query('a question')\nFINAL_VAR('x')\n```")
    (tmp_path / "data.txt").write_text(SECRET)
    with listening(collector.answered) as to, listening(model.answered) as endpoint:
        options = ["--url", f"{endpoint}/v1", "--model", "a-model", "--backend", "subprocess", "--task", SECRET]
        command = [str(PROGRAM), "rlm", *options, str(tmp_path / "data.txt")]
        env = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": to}
        ran = subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
        assert ran.returncode == 0, ran.stderr
    spans = collector.spans()
    (root,) = [span for span in spans if not span.parent_span_id]
    (call,) = [span for span in spans if span.name == "call llm_query"]
    chats = {span.parent_span_id for span in spans if span.name == "chat a-model"}
    assert root.name == "rlm"
    assert chats == {root.span_id, call.span_id}
    assert {span.trace_id for span in spans} == {root.trace_id}
    assert len(model.parents) == 2
    assert SECRET not in collector.text()


@pytest.mark.parametrize("off", [{"OTEL_SDK_DISABLED": "true"}, {"OTEL_TRACES_EXPORTER": "none"}])
def test_spans_can_be_turned_off(tmp_path: Path, off: dict[str, str]) -> None:
    collector = Collector()
    with listening(collector.answered) as to, Server(tmp_path / "log", OTEL_EXPORTER_OTLP_ENDPOINT=to, **off) as server:
        server.ask("GET", "/v1/sessions")
    assert collector.requests == []


def test_an_unknown_form_of_export_is_refused() -> None:
    env = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    command = [str(PROGRAM), "serve", "--listen", "127.0.0.1:0", "--backend", "subprocess"]
    ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert ended.returncode == 1
    assert "OTEL_EXPORTER_OTLP_PROTOCOL: grpc is not supported" in ended.stderr


#: A program of a user, who has a span while each client executes.
CLIENT = f"""
import asyncio
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span
from sandglass import AsyncSandbox, Sandbox

span = NonRecordingSpan(SpanContext(0x{TRACE}, 0x{PARENT}, True, TraceFlags(1)))

async def later(server):
    async with AsyncSandbox(**server) as sandbox:
        await sandbox.execute("1")
        with use_span(span):
            await sandbox.execute("2")

server = {{"url": %r, "api_key": {KEY!r}}}
with Sandbox(**server) as sandbox:
    sandbox.execute("1")
    with use_span(span):
        sandbox.execute("2")
asyncio.run(later(server))
"""


def test_the_client_for_python_names_its_span(tmp_path: Path) -> None:
    collector = Collector()
    with listening(collector.answered) as to, Server(tmp_path / "log", OTEL_EXPORTER_OTLP_ENDPOINT=to) as server:
        env = {**os.environ, "PYTHONPATH": str(ROOT / "pyodide-glue/python")}
        command = [sys.executable, "-c", CLIENT % server.address]
        subprocess.run(command, env=env, timeout=PATIENCE_SECONDS, check=True)
    executed = [span for span in collector.spans() if span.name == "execute"]
    parents = [span.parent_span_id.hex() for span in executed]
    assert parents == ["", PARENT, "", PARENT]
    assert [span.trace_id.hex() == TRACE for span in executed] == [False, True, False, True]
