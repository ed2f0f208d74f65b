"""Two servers that share states in object storage, over HTTP: sessions go from one to the other, and a server that was silent for
long is too late.

The storage is `tests/s3/server.py`, which `scripts/setup` makes possible.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
import urllib.error
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from client_host import PROGRAM
from http_server import ENVIRONMENT, KEY, PATIENCE_SECONDS, SharingServer

from sandglass.client import Sandbox, SandboxError

ROOT = Path(__file__).parents[2]
SECRET = "a-secret-of-tests"
STATE_KEY = "5a" * 32
#: The time that the lease of a server lasts that others shall take over, and of one that they shall not, however busy the machine is.
SHORT_LEASE, LONG_LEASE = 2, 3600
NUMBERS = count()


@pytest.fixture(scope="module")
def storage() -> Iterator[str]:
    """The address of object storage, which ends with the tests of this module."""
    command = [str(ROOT / ".setup/s3/bin/python"), str(ROOT / "tests/s3/server.py")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as service:
        assert service.stdin
        assert service.stdout
        yield service.stdout.readline().strip()
        service.stdin.close()


@pytest.fixture
def place(storage: str) -> tuple[str, str]:
    """The address of the storage, and the URL of a store that no other test uses."""
    return storage, f"s3://states/tests/{next(NUMBERS)}"


def command(url: str, suspend_after: float, lease: int = LONG_LEASE) -> list[str]:
    options = ["serve", "--listen", "127.0.0.1:0", "--backend", "subprocess", "--max-spares", "0", "--state-url", url]
    options += ["--state-lease-seconds", str(lease), "--suspend-after", str(suspend_after)]
    return [str(PROGRAM), *options]


def environment(storage: str, log: str = "error") -> dict[str, str]:
    return {
        **os.environ,
        **ENVIRONMENT,
        "AWS_ENDPOINT_URL": storage,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "a-test",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "SANDGLASS_STATE_KEY": STATE_KEY,
        "RUST_LOG": log,
    }


class Server(SharingServer):
    """A server with states in object storage. By default, sessions stay awake until it ends."""

    def __init__(self, place: tuple[str, str], suspend_after: float = 1000, lease: int = LONG_LEASE) -> None:
        storage, url = place
        super().__init__(command(url, suspend_after, lease), environment(storage))


def slept(place: tuple[str, str], value: int) -> str:
    """A session with `x`, stored by a server that has ended."""
    with Server(place) as server:
        session = server.session()
        server.runs(session, f"x = {value}")
        server.end()
    return session


def test_a_session_goes_on_at_another_server(place: tuple[str, str]) -> None:
    with Server(place, suspend_after=0.1) as first, Server(place) as second:
        session = first.session()
        first.runs(session, "x = 1")
        # The second server finds the session when the first one has stored it.
        until = time.monotonic() + PATIENCE_SECONDS
        while not first.ask("GET", f"/v1/sessions/{session}")[1].get("suspended"):
            assert time.monotonic() < until
            time.sleep(0.05)
        assert second.ask("GET", f"/v1/sessions/{session}")[1]["suspended"]
        run = second.runs(session, "x += 1\nx, context")
        assert (run["result"], run["state"]["status"], run["id"]) == ("(2, 'a text')", "kept", 2), run
        status, refused = first.execute(session, "x")
        assert (status, refused["error"]["code"]) == (503, "state_unavailable"), refused
        status, refused = first.ask("DELETE", f"/v1/sessions/{session}")
        assert (status, refused["error"]["code"]) == (503, "state_unavailable"), refused
        second.end()
        run = first.runs(session, "x")
        assert (run["result"], run["state"]["status"], run["id"]) == ("2", "kept", 3), run
        # What one server removes is gone at all.
        with Server(place) as third:
            assert first.ask("DELETE", f"/v1/sessions/{session}")[0] == 204
            assert third.execute(session, "x")[0] == 404
            assert first.execute(session, "x")[0] == 404


def test_a_kept_sandbox_goes_on_at_another_server_of_object_storage(place: tuple[str, str]) -> None:
    with Server(place, lease=5) as first, Server(place) as second:
        sandbox = Sandbox(url=first.address, api_key=KEY, persist="name")
        sandbox.execute("x = 1")
        with pytest.raises(SandboxError, match="another server") as raised:
            Sandbox(url=second.address, api_key=KEY, persist="name")
        assert raised.value.code == "persist_in_use"
        first.process.kill()
        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                again = Sandbox(url=second.address, api_key=KEY, persist="name")
                break
            except SandboxError as error:
                assert error.code == "persist_in_use", error
                assert time.monotonic() < until, error
                time.sleep(0.05)
        with again:
            assert again["x"] == 1


def test_the_sessions_of_a_killed_server_are_taken_over(place: tuple[str, str]) -> None:
    session = slept(place, 1)
    with Server(place, lease=SHORT_LEASE) as first, Server(place) as second:
        assert first.has_at_last(session, "x = 2\nx")["result"] == "2"
        first.process.kill()
        run = second.has_at_last(session, "x")
        # The state is that of the last sleep, and the client is told.
        assert (run["result"], run["state"]["status"], run["state"]["restoredTo"]) == ("1", "restored", 1), run


@pytest.mark.parametrize("ending", [False, True])
def test_a_server_that_was_paused_is_too_late(place: tuple[str, str], ending: bool) -> None:
    session = slept(place, 1)
    with Server(place, lease=SHORT_LEASE) as first, Server(place) as second:
        assert first.has_at_last(session, "x = 'what the paused server has'\nx")["id"] == 2
        first.process.send_signal(signal.SIGSTOP)
        try:
            assert second.has_at_last(session, "y = x + 10\ny")["result"] == "11"
        finally:
            if ending:
                first.process.terminate()  # it writes what it has as soon as it goes on
            first.process.send_signal(signal.SIGCONT)
        if ending:
            assert first.process.wait(PATIENCE_SECONDS) == 0
        else:
            status, refused = first.execute(session, "x")
            assert (status, refused["error"]["code"]) == (503, "state_unavailable"), refused
        assert second.runs(session, "y")["result"] == "11"
        second.end()
    with Server(place) as third:
        run = third.runs(session, "y")
        assert (run["result"], run["state"]["status"]) == ("11", "kept"), run


def test_sessions_that_nobody_took_over_go_on_when_their_server_is_back(place: tuple[str, str]) -> None:
    taken, left = slept(place, 1), slept(place, 2)
    with Server(place, lease=SHORT_LEASE) as first, Server(place) as second:
        for session in (taken, left):
            first.has_at_last(session, "x += 10")
        first.process.send_signal(signal.SIGSTOP)
        try:
            assert second.has_at_last(taken, "x")["result"] == "1"  # so the lease of the first one is over
        finally:
            first.process.send_signal(signal.SIGCONT)
        run = first.has_at_last(left, "x")
        assert (run["result"], run["state"]["status"], run["id"]) == ("12", "kept", 3), run
        for server, session in ((first, taken), (second, left)):
            status, refused = server.execute(session, "x")
            assert (status, refused["error"]["code"]) == (503, "state_unavailable"), refused
        first.end()
        run = second.runs(left, "x")
        assert (run["result"], run["state"]["status"]) == ("12", "kept"), run


#: Code that runs from before its server is stopped until it goes on.
WHILE_STOPPED = """
import time
def is_stopped():
    with open("/proc/{}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0] == "T"
print("begun", flush=True)
while not is_stopped(): time.sleep(0.02)
while is_stopped(): time.sleep(0.02)
x = "lost"
"""


def test_code_that_ran_while_its_session_was_taken_over_is_told_so(place: tuple[str, str]) -> None:
    session = slept(place, 1)
    with Server(place, lease=SHORT_LEASE) as first, Server(place) as second:
        first.has_at_last(session, "x")
        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            events = first.events(session, WHILE_STOPPED.format(first.process.pid))
            try:
                assert next(events) == ("stdout", {"text": "begun\n"})
                break
            except urllib.error.HTTPError as error:  # the lease had just run out, and nothing ran
                assert error.code == 503
                assert time.monotonic() < until
                time.sleep(0.05)
        first.process.send_signal(signal.SIGSTOP)
        try:
            assert second.has_at_last(session, "x += 1\nx")["result"] == "2"
        finally:
            first.process.send_signal(signal.SIGCONT)
        ((name, told),) = events
        assert (name, told["error"]["code"]) == ("error", "state_unavailable"), told
        assert "the code ran, but another server" in told["error"]["message"], told
        assert second.runs(session, "x")["result"] == "2"


def test_storage_out_of_reach_is_told_without_secrets(place: tuple[str, str]) -> None:
    _, url = place
    ended = subprocess.run(
        command(url, 1),
        env=environment("http://127.0.0.1:1", log="trace"),
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    told = ended.stdout + ended.stderr
    assert ended.returncode != 0
    assert "--state-url (SANDGLASS_STATE_URL): check cannot be read" in told, told
    assert SECRET not in told
    assert STATE_KEY not in told


def test_settings_that_contradict_each_other_are_refused(place: tuple[str, str], tmp_path: Path) -> None:
    storage, url = place
    full = environment(storage)
    without_key = {name: value for name, value in full.items() if name != "SANDGLASS_STATE_KEY"}
    with_login = {**full, "AWS_ENDPOINT_URL": storage.replace("://", "://user:password@")}
    for options, env, expected in [
        (command(url, 1), without_key, "needs a key of states"),
        (command(url, 1), with_login, "must not have a user name"),
        ([*command(url, 1), "--workspace-dir", str(tmp_path)], full, "give one of the two"),
        ([*command(url, 1), "--state-dir", str(tmp_path)], full, "cannot be used with"),
        (command("gs://bucket", 1), full, "must be s3://BUCKET/PREFIX"),
        (command("file://here", 1), full, "file:///DIR"),
    ]:
        ended = subprocess.run(options, env=env, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
        assert ended.returncode != 0
        assert expected in ended.stderr, ended.stderr
        assert "password" not in ended.stderr.replace("user name or password", "")


def test_a_folder_has_a_url_as_well(tmp_path: Path) -> None:
    place = ("http://127.0.0.1:1", f"file://{tmp_path}/states")
    session = slept(place, 7)
    with Server(place) as server:
        assert server.runs(session, "x")["result"] == "7"
    assert (tmp_path / "states" / "check").is_file()
