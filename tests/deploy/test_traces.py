"""The trace that a client names, in the log of a real server."""

from __future__ import annotations

import json
import os
import re
import subprocess
import urllib.request
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAM = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "debug/sandglass-host"
KEY = "a-key-for-tests-0123456789"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def test_the_log_has_the_trace_of_a_request(tmp_path: Path) -> None:
    command = [str(PROGRAM), "serve", "--listen", "127.0.0.1:0", "--backend", "subprocess", "--allow-subprocess"]
    env = {**os.environ, "SANDGLASS_KEYS": f"tester {KEY}", "REPL_ENABLED": "false", "RUST_LOG": "info"}
    log = tmp_path / "log"
    with (
        log.open("w") as errors,
        subprocess.Popen(
            [*command, "--log-format", "json"], env=env, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as server,
    ):
        assert server.stdout
        try:
            found = re.search(r"http://\S+", server.stdout.readline())
            assert found, "the server did not start"
            for traceparent in [f"00-{TRACE}-00f067aa0ba902b7-01", f"00-{TRACE}-00f067aa0ba902b7-01-more", None]:
                headers = {"Authorization": f"Bearer {KEY}", **({"traceparent": traceparent} if traceparent else {})}
                with urllib.request.urlopen(
                    urllib.request.Request(found[0] + "/v1/sessions", headers=headers)
                ) as answer:
                    assert answer.status == 200
        finally:
            server.terminate()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    requests = [line for line in lines if line.get("route") == "/v1/sessions"]
    assert [line.get("trace_id") for line in requests] == [TRACE, None, None]
