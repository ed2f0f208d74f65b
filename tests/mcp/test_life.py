"""Sessions and access over HTTP, and the life of the program on standard input and output."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from conftest import BACKEND, PATIENCE, PROGRAM, SPARELESS, listening, text

pytestmark = pytest.mark.anyio
COMMANDS: dict[str, tuple[str, ...]] = {"mcp": (), "serve": SPARELESS}
KEY, OTHER = "0123456789abcdef-1", "0123456789abcdef-2"


def begin(version: str = "2025-11-25") -> dict[str, Any]:
    params = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    return {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}


def call(code: str, number: int = 2) -> dict[str, Any]:
    params = {"name": "execute_python", "arguments": {"code": code}}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}


INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}


def ask(address: str, message: Any, method: str = "POST", **headers: str) -> tuple[int, dict[str, str], str]:
    """Sends a request of any form. Returns the status, the headers and the body."""
    url = urlsplit(address)
    connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=PATIENCE)
    all_headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    all_headers |= {name.replace("_", "-"): value for name, value in headers.items()}
    body = message if isinstance(message, bytes) else None if message is None else json.dumps(message).encode()
    try:
        connection.request(method, url.path, body, all_headers)
        response = connection.getresponse()
        told = {name.lower(): value for name, value in response.getheaders()}
        return response.status, told, response.read().decode()
    finally:
        connection.close()


def begin_request(stack: ExitStack, address: str, message: Any, **headers: str) -> http.client.HTTPResponse:
    """Sends a message, and waits for nothing but the status. The connection closes with the stack."""
    url = urlsplit(address)
    connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=PATIENCE)
    stack.callback(connection.close)
    accept = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    connection.request("POST", url.path, json.dumps(message), {**accept, **headers})
    return connection.getresponse()


def result(body: str) -> str:
    """The text of the result in the events of an answer; of an error, its message."""
    messages = [json.loads(line.removeprefix("data:")) for line in body.splitlines() if line.startswith("data: {")]
    [answer] = [message for message in messages if message.get("id") == 2]
    if "error" in answer:
        return str(answer["error"]["message"])
    return "\n".join(block["text"] for block in answer["result"]["content"])


def session(address: str, **headers: str) -> str:
    """Begins a session. Returns its id."""
    status, told, body = ask(address, begin(), **headers)
    assert status == 200, body
    identity = told["mcp-session-id"]
    assert ask(address, INITIALIZED, mcp_session_id=identity, **headers)[0] == 202
    return identity


@pytest.mark.parametrize("command", COMMANDS)
def test_pages_and_other_names_of_this_machine_are_refused(command: str) -> None:
    with listening(*COMMANDS[command], "--allow-origin", "https://app.example", command=command) as address:
        port = urlsplit(address).port
        for headers in [
            {"host": "evil.example"},
            {"host": f"evil.example:{port}"},
            {"host": f"127.0.0.1.evil.example:{port}"},
            {"origin": "https://evil.example"},
            {"origin": "null"},
            {"origin": f"http://127.0.0.1:{(port or 0) ^ 1}"},
        ]:
            assert ask(address, begin(), **headers)[0] == 403, headers
        status, told, _ = ask(address, begin(), origin="https://app.example")
        assert (status, told["access-control-allow-origin"]) == (200, "https://app.example")
        assert "Mcp-Session-Id" in told["access-control-expose-headers"]
        preflight = {"origin": "https://app.example", "access_control_request_method": "POST"}
        status, told, _ = ask(address, None, "OPTIONS", **preflight)
        assert (status, "Mcp-Session-Id" in told["access-control-allow-headers"]) == (204, True)
        assert ask(address, None, "OPTIONS", origin="https://evil.example")[0] == 403
        assert ask(address, begin(), host=f"localhost:{port}")[0] == 200


async def test_a_session_belongs_to_its_key(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"ann {KEY}\nbob {OTHER}\n")
    with listening("--keys-file", str(keys), "--max-sessions", "2") as address:
        ann, bob = f"Bearer {KEY}", f"Bearer {OTHER}"
        for wrong in [{}, {"authorization": "Bearer wrong-wrong-wrong"}, {"authorization": KEY}]:
            status, told, _ = ask(address, begin(), **wrong)
            assert (status, told.get("www-authenticate")) == (401, "Bearer"), wrong
        own = session(address, authorization=ann)
        status, _, body = ask(address, call("x = 'secret'"), authorization=ann, mcp_session_id=own)
        assert status == 200, body
        for method in ["POST", "GET", "DELETE"]:
            message = call("x") if method == "POST" else None
            status, _, body = ask(address, message, method, authorization=bob, mcp_session_id=own)
            assert (status, "secret" in body) in [(404, False), (202, False)], (method, status, body)
        _, _, body = ask(address, call("x"), authorization=ann, mcp_session_id=own)
        assert "secret" in body, "the session is still there"
        # Each key has its own places, and a session that ends gives its place back.
        second = session(address, authorization=ann)
        _, _, refused = ask(address, begin(), authorization=ann)
        assert "2 sessions of this key are open" in refused
        session(address, authorization=bob)
        assert ask(address, None, "DELETE", authorization=ann, mcp_session_id=second)[0] in (200, 202, 204)
        assert ask(address, call("1"), authorization=ann, mcp_session_id=second)[0] == 404
        for _ in range(int(PATIENCE * 50)):
            if "serverInfo" in ask(address, begin(), authorization=ann)[2]:
                break
            await anyio.sleep(0.02)
        else:
            pytest.fail("the place of an ended session is not given back")
        async with httpx2.AsyncClient(headers={"authorization": bob}) as connection:
            transport = streamable_http_client(address, http_client=connection)
            async with Client(transport) as client:
                assert text(await client.call_tool("execute_python", {"code": "1 + 1"})) == "2"


def test_a_session_on_a_server_is_one_of_its_key() -> None:
    """Its sandbox counts, and the model and the limits are the server's."""
    with listening(*SPARELESS, "--max-sessions-per-key", "1", command="serve") as address:

        def listed() -> list[str]:
            answer = json.loads(ask(address.replace("/mcp", "/v1/sessions"), None, "GET")[2])
            return [each["id"] for each in answer["sessions"]]

        one, two = session(address), session(address)
        assert listed() == [], "a session without code has no sandbox"
        assert result(ask(address, call("6 * 7"), mcp_session_id=one)[2]) == "42"
        assert len(listed()) == 1
        assert "this key has 1 sessions" in result(ask(address, call("6 * 7"), mcp_session_id=two)[2])
        params = {"name": "load_context", "arguments": {"path": "/etc/passwd"}}
        load = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params}
        assert "pass the text" in result(ask(address, load, mcp_session_id=one)[2])
        assert ask(address, None, "DELETE", mcp_session_id=one)[0] in (200, 202, 204)
        until = time.monotonic() + PATIENCE
        while (answer := result(ask(address, call("6 * 7"), mcp_session_id=two)[2])) != "42":
            assert "this key has 1 sessions" in answer
            assert time.monotonic() < until
            time.sleep(0.02)
        # The same sandbox by its other route: its end is told once, and the next call has a new one.
        [own] = listed()
        assert ask(f"{address.replace('/mcp', '/v1/sessions')}/{own}", None, "DELETE")[0] == 204
        assert "with all variables" in result(ask(address, call("6 * 7"), mcp_session_id=two)[2])
        assert result(ask(address, call("6 * 7"), mcp_session_id=two)[2]) == "42"


def test_messages_that_wait_count_in_the_quota_of_bodies() -> None:
    bounds = ("--max-body-mib", "1", "--max-body-mib-per-key", "3")
    with listening(*SPARELESS, *bounds, command="serve") as address, ExitStack() as stack:
        own = session(address)

        def post(message: dict[str, Any]) -> http.client.HTTPResponse:
            return begin_request(stack, address, message, **{"mcp-session-id": own})

        endless = call("print('begun')\nimport time\nwhile True: time.sleep(0.01)")
        endless["params"]["arguments"]["timeout_seconds"] = 3600
        endless["params"]["_meta"] = {"progressToken": 9}
        events = post(endless)
        while b"begun" not in (line := events.readline()):
            assert line, "the call has ended"
        # Three leave less room than the last one needs, which is small enough to be sent and read whole.
        large, small = (call("x = " + repr("a" * size)) for size in (1_030_000, 60_000))
        assert [post(message).status for message in (large, large, large, small)] == [200, 200, 200, 429]
        # What waits ends with its session, and gives its part back.
        assert ask(address, None, "DELETE", mcp_session_id=own)[0] in (200, 202, 204)
        other = session(address)
        until = time.monotonic() + PATIENCE
        while (status := ask(address, small, mcp_session_id=other)[0]) != 200:
            assert status == 429
            assert time.monotonic() < until
            time.sleep(0.02)


def test_a_cancelled_call_stops_nothing_but_itself() -> None:
    """Another client of the key uses the same sandbox, and the call waits for its code."""
    with listening(*SPARELESS, command="serve") as address, ExitStack() as stack:
        own = session(address)
        assert result(ask(address, call("x = 1\nx"), mcp_session_id=own)[2]) == "1"
        sessions = address.replace("/mcp", "/v1/sessions")
        [sandbox] = [each["id"] for each in json.loads(ask(sessions, None, "GET")[2])["sessions"]]

        code = "print('begun', flush=True)\nimport time\nfor _ in range(200): time.sleep(0.01)\n'done'"
        events = begin_request(stack, f"{sessions}/{sandbox}/execute", {"code": code}, accept="text/event-stream")
        while b"begun" not in (line := events.readline()):
            assert line, "the code has ended"
        assert begin_request(stack, address, call("x = 2", 7), **{"mcp-session-id": own}).status == 200
        cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}
        assert ask(address, cancelled, mcp_session_id=own)[0] == 202
        rest = events.read()
        assert b'"outcome":"ok"' in rest, rest
        assert result(ask(address, call("x"), mcp_session_id=own)[2]) in ("1", "2")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_session_begins_with_its_first_message(command: str) -> None:
    """A message that claims to need no session gets no sandbox, which nothing would count."""
    version = "2025-11-25"
    message = call("6 * 7")
    message["params"]["_meta"] = {
        "io.modelcontextprotocol/protocolVersion": version,
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
    }
    with listening(*COMMANDS[command], command=command) as address:
        _, _, body = ask(address, message, mcp_protocol_version=version)
        assert '"42"' not in body


def test_an_address_that_others_reach_needs_keys() -> None:
    command = [PROGRAM, "mcp", "--backend", BACKEND, "--listen", "0.0.0.0:0"]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert refused.returncode == 1
    assert "there are no keys" in refused.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_sessions_share_nothing(command: str) -> None:
    with listening(*COMMANDS[command], command=command) as address:
        one, two = session(address), session(address)
        _, _, body = ask(address, call("x = 'secret'\nx"), mcp_session_id=one)
        assert "secret" in body
        _, _, body = ask(address, call("'x' in globals()"), mcp_session_id=two)
        assert "False" in body


@pytest.mark.parametrize("command", COMMANDS)
async def test_sessions_end_when_idle(command: str) -> None:
    idle = 3
    with listening(*COMMANDS[command], "--session-idle-seconds", str(idle), command=command) as address:
        for _ in range(3):
            one = session(address)
            # Pings keep a session from looking unused while its code runs.
            status, _, body = ask(address, call("x = 'secret'\nimport time\ntime.sleep(1)\nx"), mcp_session_id=one)
            if status != 404:  # on a busy machine, a session is unused for too long before its code comes
                break
        assert "secret" in body
        assert '"method":"ping"' in body
        await anyio.sleep(idle + 0.5)
        for _ in range(10):
            if ask(address, call("1"), mcp_session_id=one)[0] == 404:
                break
            await anyio.sleep(idle + 0.5)
        else:
            pytest.fail("an idle session does not end")


@pytest.mark.parametrize("command", COMMANDS)
def test_malformed_requests_change_nothing(command: str) -> None:
    with listening(*COMMANDS[command], command=command) as address:
        own = session(address)
        for message, headers, expected in [
            (b"", {}, (400, 415)),
            (b"{", {}, (400, 415)),
            (b"\xff\xfe", {}, (400, 415)),
            ([], {}, (400, 415)),
            ([begin()] * 3, {}, (400, 415)),
            ({"jsonrpc": "2.0", "id": 1, "method": "nothing"}, {}, (400, 404, 422)),
            (begin(), {"content_type": "text/plain"}, (415,)),
            (begin(), {"accept": "text/html"}, (406,)),
            (call("1"), {}, (400,)),
            (call("1"), {"mcp_session_id": "nobody"}, (404,)),
            (call("1"), {"mcp_session_id": own, "mcp_protocol_version": "1999-01-01"}, (400,)),
            (b"[" * 100_000, {"mcp_session_id": own}, (400, 415)),
        ]:
            status, _, body = ask(address, message, **headers)
            assert status in expected, (message, headers, status, body)
        large = json.dumps(call("1" * (65 << 20))).encode()
        with pytest.raises((BrokenPipeError, ConnectionResetError, AssertionError)):
            assert ask(address, large, mcp_session_id=own)[0] == 200
        assert ask(address, None, "PATCH", mcp_session_id=own)[0] == 405
        # Nobody listens to the notifications of this file.
        _, _, body = ask(address, call("open('new', 'w').close()\n40 + 2"), mcp_session_id=own)
        assert "42" in body


def program(*arguments: str) -> subprocess.Popen[str]:
    command = [PROGRAM, "mcp", "--backend", BACKEND, *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)


def send(to: subprocess.Popen[str], message: Any) -> None:
    assert to.stdin
    to.stdin.write((message if isinstance(message, str) else json.dumps(message)) + "\n")
    to.stdin.flush()


def answer(to: subprocess.Popen[str], number: int) -> dict[str, Any]:
    assert to.stdout
    for line in to.stdout:
        message: dict[str, Any] = json.loads(line)
        if message.get("id") == number:
            return message
    raise AssertionError(f"no answer to {number}")


def guests(of: int) -> list[str]:
    """The processes that a program started, as far as they live."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text(errors="replace").rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[1]) == of:
                found.append(entry.name)
    return found


def test_the_program_ends_with_its_client_and_leaves_no_guest() -> None:
    for way in ["end of input", "signal while code runs"]:
        to = program("--timeout", "600")
        try:
            send(to, begin())
            assert answer(to, 1)["result"]["serverInfo"]["name"] == "sandglass"
            send(to, INITIALIZED)
            send(to, call("1"))
            assert not answer(to, 2)["result"]["isError"]
            children = guests(to.pid)
            assert children
            assert to.stdin
            assert to.stdout
            if way == "end of input":
                to.stdin.close()
            else:
                running = call("print('on')\nwhile True: pass", 3)
                running["params"]["_meta"] = {"progressToken": 9}
                send(to, running)
                assert "notifications/progress" in to.stdout.readline()
                to.send_signal(signal.SIGTERM)
            assert to.wait(PATIENCE) == 0
            assert [child for child in children if os.path.exists(f"/proc/{child}")] == [], way
        finally:
            to.kill()
            to.wait()
            for pipe in [to.stdin, to.stdout]:
                assert pipe
                pipe.close()


def test_lines_that_are_no_messages_do_not_end_the_program() -> None:
    to = program()
    try:
        send(to, begin())
        answer(to, 1)
        send(to, INITIALIZED)
        for line in ["", "{", "null", "[]", '{"jsonrpc": "2.0"}', "[" * 10_000, "x" * (65 << 20)]:
            send(to, line)
        send(to, call("6 * 7"))
        assert answer(to, 2)["result"]["content"][0]["text"] == "42"
        # A client of a newer protocol is told the versions that have sessions.
        meta = {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
            "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        }
        send(to, {"jsonrpc": "2.0", "id": 4, "method": "tools/list", "params": {"_meta": meta}})
        assert "2025-11-25" in answer(to, 4)["error"]["data"]["supported"]
    finally:
        to.kill()
        to.wait()
        for pipe in [to.stdin, to.stdout]:
            assert pipe
            pipe.close()
