"""Clusters in network namespaces: the one that operators try, and the links that the soak breaks."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import IO, Any

import pytest
from client_host import ROOT
from http_server import PATIENCE_SECONDS
from namespaces import missing

WHY = missing()
pytestmark = pytest.mark.skipif(WHY is not None, reason=str(WHY))
#: Two nodes send each other datagrams. A line for each way that is cut: what then arrives at the first, and at the second.
LINKS = """
from namespaces import Network, enter
enter()
import socket, subprocess, sys
network = Network()
one, two = network.node("one"), network.node("two")
HEAR = "import socket; s = socket.socket(type=socket.SOCK_DGRAM); s.bind(('', 7)); print(flush=True)\\n"
HEAR += "while True: print(s.recv(9).decode(), flush=True)"
SAY = "import socket, sys; socket.socket(type=socket.SOCK_DGRAM).sendto(sys.argv[2].encode(), (sys.argv[1], 7))"
ears = [subprocess.Popen(node.command(sys.executable, "-c", HEAR), stdout=-1, text=True) for node in (one, two)]
for ear in ears:
    ear.stdout.readline()
for way in ("none", "in", "out", "both"):
    if way != "none":
        one.cut_off([two], way)
    for node, other in ((two, one), (one, two)):
        # A datagram that is dropped on its way out is an error.
        subprocess.run(node.command(sys.executable, "-c", SAY, other.address, way), stderr=-3)
    one.rejoin()
    for node, other in ((two, one), (one, two)):
        subprocess.run(node.command(sys.executable, "-c", SAY, other.address, "end"), check=True)
    told = [[], []]
    for ear, words in zip(ears, told):
        while (word := ear.stdout.readline().strip()) != "end":
            words.append(word)
    print(way, *(len(words) for words in told), flush=True)
"""


def test_links_are_cut_in_one_direction_or_both(tmp_path: Path) -> None:
    script = tmp_path / "links.py"
    script.write_text(LINKS)
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run(
        [sys.executable, str(script)], env=env, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    assert done.stdout.split("\n") == ["none 1 1", "in 0 1", "out 1 0", "both 0 0", ""], done


def test_operators_can_try_a_cluster_and_nothing_of_it_is_left(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "deploy/namespaces/cluster.py"), "--workers", "2", "--port", "0"]
    command += ["--servers", "1", "--backend", "subprocess", "--more", "max-spares=0"]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        try:
            assert program.stdin
            assert program.stdout
            address, key = told_by(program.stdout)
            session = ask(address, key, "", {"context": "a text"})["id"]
            assert ask(address, key, f"/{session}/execute", {"code": "x = len(context)\nx"})["result"] == "6"
            # Either worker may have the session. When one after the other has ended, another process has it.
            for number, worker in enumerate(("worker-1", "worker-2")):
                for verb in ("end", "start"):
                    print(verb, worker, file=program.stdin, flush=True)
                    assert program.stdout.readline() == f"{worker}: done\n"
                told = ask(address, key, f"/{session}/execute", {"code": "x += 1\nx"})
                assert told["result"] == str(7 + number), told
        finally:
            program.kill()
    until = time.monotonic() + PATIENCE_SECONDS
    while left := [line for line in commands() if str(tmp_path) in line]:
        assert time.monotonic() < until, left
        time.sleep(0.05)


def told_by(output: IO[str]) -> tuple[str, str]:
    """The address and the key that the program prints. Its text ends with the list of commands."""
    text = ""
    while "quit" not in text or not text.endswith("\n\n"):
        line = output.readline()
        assert line, text
        text += line
    found = re.search(r"curl -s (http://[\d.:]+).*Bearer (\S+)'", text)
    assert found, text
    return found[1], found[2]


def ask(address: str, key: str, path: str, body: Any) -> Any:
    """Returns an answer. Repeats what did nothing, as docs/server/many-servers.md says, and looks for a ready worker."""
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        request = urllib.request.Request(f"{address}/v1/sessions{path}", json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            told = error.read().decode()
            assert error.code == 503, told
            assert "nothing was done" in told
        except (ConnectionError, urllib.error.URLError) as error:
            # The load balancer knew of no ready worker, and closed the connection before it carried anything.
            told = repr(error)
        assert time.monotonic() < until, told
        time.sleep(0.05)


def commands() -> list[str]:
    """The commands of all processes."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            found.append((process / "cmdline").read_bytes().decode(errors="replace").replace("\0", " "))
        except OSError:
            continue
    return found
