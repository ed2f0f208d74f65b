"""Sessions of the Model Context Protocol on servers that share states in NATS: each server answers for those of all."""

from __future__ import annotations

import http.client
import json
import re
import time
import urllib.request
from typing import Any
from urllib.parse import urlsplit

from http_server import KEY, PATIENCE_SECONDS
from test_cluster import SHORT_LEASE, Server, eventually, knows_loads, metric

OTHER_KEY = "another-key-for-tests-0123456789"
BEGIN = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}


def ask(server: Server, message: Any, session: str = "", key: str = KEY, method: str = "POST") -> tuple[int, str, str]:
    """Sends a request. Returns the status, the id of the session that it names, and the body."""
    url = urlsplit(server.address)
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    headers |= {"accept": "application/json, text/event-stream"}
    if session:
        headers["mcp-session-id"] = session
    connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=PATIENCE_SECONDS)
    try:
        connection.request(method, "/mcp", None if message is None else json.dumps(message), headers)
        answer = connection.getresponse()
        return answer.status, answer.getheader("mcp-session-id", ""), answer.read().decode()
    finally:
        connection.close()


def begin(server: Server) -> str:
    """Begins a session. Returns its id."""
    status, session, body = ask(server, BEGIN)
    assert status == 200, body
    assert session, body
    initialized = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    assert ask(server, initialized, session)[0] == 202
    return session


def call(code: str) -> dict[str, Any]:
    params = {"name": "execute_python", "arguments": {"code": code}}
    return {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params}


def result(server: Server, session: str, code: str) -> str:
    """Runs code. Returns the text of its result."""
    status, _, body = ask(server, call(code), session)
    assert status == 200, body
    messages = [json.loads(line.removeprefix("data:")) for line in body.splitlines() if line.startswith("data: {")]
    [answer] = [message["result"] for message in messages if "result" in message]
    return "\n".join(block["text"] for block in answer["content"])


def forwards(server: Server) -> int:
    """The requests that a server has sent on, whatever came of them."""
    request = urllib.request.Request(f"{server.address}/metrics", headers={"Authorization": f"Bearer {KEY}"})
    with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
        text = answer.read().decode()
    return sum(int(number) for number in re.findall(r"^sandglass_forwards_total\{.*\} (\d+)$", text, re.MULTILINE))


def test_a_session_goes_on_through_any_server(bucket: str) -> None:
    with Server(bucket) as first, Server(bucket) as second, Server(bucket) as third:
        session = begin(first)
        result(first, session, "x = 1")
        for server in (second, third, first, second):
            result(server, session, "x += 1")
        assert result(third, session, "x") == "5"
        # A larger message passes as well. Its sandbox is a session of the key.
        assert result(second, session, f"len({'a' * 100_000!r})") == "100000"
        assert [metric(server, "sessions") for server in (first, second, third)] == [1, 0, 0]
        assert ask(third, None, session, method="DELETE")[0] in (200, 202, 204)
        for server in (first, second, third):
            assert ask(server, call("x"), session)[0] == 404
        eventually("its sandbox ends", lambda: metric(first, "sessions") == 0)


def test_a_session_leads_only_its_own_key(bucket: str) -> None:
    keys = {"SANDGLASS_KEYS": f"tester {KEY}\nother {OTHER_KEY}"}
    with Server(bucket, more_environment=keys) as first, Server(bucket, more_environment=keys) as second:
        session = begin(first)
        assert result(second, session, "x = 'secret'\nx") == "'secret'"
        before = forwards(second)
        for made_up in (session, session[:-1] + ("A" if session[-1] != "A" else "B"), "A" * len(session), "nothing"):
            for method in ("POST", "DELETE"):
                for key in (KEY, OTHER_KEY):
                    if (made_up, key) != (session, KEY):
                        for server in (first, second):
                            status, _, body = ask(server, call("x"), made_up, key, method)
                            assert (status, "secret" in body) in [(404, False), (202, False)], (made_up, key, body)
        assert forwards(second) == before
        assert result(second, session, "x") == "'secret'"


def test_a_session_of_a_server_that_is_gone_is_not_found(bucket: str) -> None:
    """The client is told to begin another one, as the protocol has it."""
    with Server(bucket, lease=SHORT_LEASE) as killed, Server(bucket) as ended, Server(bucket) as third:
        sessions = {killed: begin(killed), ended: begin(ended)}
        for server, session in sessions.items():
            # On a busy machine, a lease that short may seem to be over to others while its server lives.
            assert result(server if server is killed else third, session, "1 + 1") == "2"
            if server is killed:
                server.kill()
            else:
                server.end()
            until = time.monotonic() + PATIENCE_SECONDS
            while (status := ask(third, call("1"), session)[0]) != 404:
                assert status == 503, status
                assert time.monotonic() < until
                time.sleep(0.1)


def test_a_full_server_has_others_begin_sessions(bucket: str) -> None:
    with Server(bucket, more=("--max-sessions", "1")) as full, Server(bucket) as second:
        knows_loads(full, 1)
        full.session()
        session = begin(full)
        assert result(full, session, "6 * 7") == "42"
        assert [metric(server, "sessions") for server in (full, second)] == [1, 1]


def test_streams_that_last_do_not_keep_a_server_from_ending(bucket: str) -> None:
    """One server has the session, and another one carries its stream."""
    endless = ("--shutdown-seconds", "3600")
    with Server(bucket) as third, Server(bucket, more=endless) as first, Server(bucket, more=endless) as second:
        of_first, of_third = begin(first), begin(third)
        streams = []
        for server, session in [(second, of_first), (second, of_third), (first, of_first)]:
            url = urlsplit(server.address)
            connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=PATIENCE_SECONDS)
            headers = {"authorization": f"Bearer {KEY}", "accept": "text/event-stream", "mcp-session-id": session}
            connection.request("GET", "/mcp", None, headers)
            streams.append((connection, connection.getresponse()))
        assert [answer.status for _, answer in streams] == [200, 200, 200]
        second.end()
        first.end()
        for connection, _ in streams:
            connection.close()
