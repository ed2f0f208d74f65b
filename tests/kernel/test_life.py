"""The begin and end of kernels, and the clients that may talk to them."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from queue import Empty

import pytest
import zmq
from jupyter_client import KernelManager
from jupyter_client.session import Session

from conftest import BACKEND, PATIENCE, Kernel, Spec, family, host, processes, until

Start = Callable[..., Kernel]


def guests(kernel: Kernel) -> set[int]:
    """All processes of a kernel, without those of Docker's guests, which are the engine's."""
    found = family(kernel.pid)
    assert len(found) > 1 or BACKEND == "docker", "there is no guest"
    return found


def test_it_says_what_it_is(shared: Kernel) -> None:
    shared.client.kernel_info()
    info = shared.client.get_shell_msg(timeout=PATIENCE)["content"]
    assert info["protocol_version"] == "5.4" and info["implementation"] == "sandglass"
    assert info["language_info"]["name"] == "python" and info["language_info"]["version"].startswith("3.")
    assert BACKEND in info["banner"] and info["supported_features"] == [] and info["debugger"] is False


def test_shutdown_leaves_no_process(start: Start) -> None:
    kernel = start()
    kernel.ok("import subprocess\nchild = subprocess.Popen(['sleep', '1000'])")
    found = guests(kernel)
    kernel.client.shutdown()
    reply = kernel.client.get_control_msg(timeout=PATIENCE)["content"]
    assert reply == {"status": "ok", "restart": False}
    until(lambda: not found & set(processes()), "the kernel has not ended")


def test_a_shutdown_waits_for_a_guest_that_is_starting(spec: Spec, tmp_path: Path) -> None:
    # A Python that starts slowly and writes down its process id.
    python, pids = tmp_path / "python", tmp_path / "pids"
    python.write_text(f'#!/bin/sh\necho $$ >> {pids}\nsleep 2\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    manager = KernelManager(kernel_name=spec("--backend=subprocess", f"--python={python}"))
    manager.start_kernel()
    client = manager.client()
    client.start_channels(shell=False, iopub=False, stdin=False, hb=False)
    try:
        until(lambda: pids.exists() and pids.read_text(), "no guest is starting")
        client.shutdown()
        assert client.get_control_msg(timeout=PATIENCE)["content"]["status"] == "ok"
        # After the answer, no guest's process is left.
        assert not {int(pid) for pid in pids.read_text().split()} & set(processes())
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_a_cell_that_runs_does_not_hold_up_the_end(start: Start) -> None:
    kernel = start()
    kernel.begin("while True: pass")
    found = guests(kernel)
    kernel.manager.shutdown_kernel()
    until(lambda: not found & set(processes()), "something is left")


def test_killing_it_leaves_no_process(start: Start) -> None:
    if BACKEND == "docker":
        pytest.skip("containers are the engine's processes")
    kernel = start()
    kernel.ok("1")
    found = guests(kernel)
    os.kill(kernel.pid, signal.SIGKILL)
    until(lambda: not found & set(processes()), "something is left")


def test_a_restart_begins_anew(start: Start) -> None:
    kernel = start()
    kernel.ok("x = 1")
    kernel.client.stop_channels()
    kernel.manager.restart_kernel()
    kernel.client = kernel.manager.client()
    kernel.client.start_channels()
    kernel.client.wait_for_ready(timeout=PATIENCE)
    cell = kernel.run("x")
    assert cell.error["ename"] == "NameError" and cell.reply["execution_count"] == 1


def test_two_kernels_know_nothing_of_each_other(start: Start) -> None:
    one, two = start(), start()
    one.ok("x = 1")
    two.ok("x = 2")
    running = two.begin("import time; time.sleep(0.5); x")
    assert one.ok("x").data == {"text/plain": "1"}
    assert two.collect(running).data == {"text/plain": "2"}


def test_it_ends_with_the_process_that_has_started_it(spec: Spec) -> None:
    code = (
        "import os, sys\n"
        "from jupyter_client import KernelManager\n"
        "manager = KernelManager(kernel_name=sys.argv[1])\n"
        "manager.start_kernel()\n"
        "client = manager.client(); client.start_channels(); client.wait_for_ready(timeout=60)\n"
        "print(manager.provisioner.pid, flush=True)\n"
        "os._exit(0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, spec()], capture_output=True, text=True, timeout=PATIENCE)
    pid = int(done.stdout)
    until(lambda: pid not in processes(), "it is still there")


def test_signs_of_life_come_back_as_they_are(shared: Kernel) -> None:
    info = shared.manager.get_connection_info()
    with zmq.Context() as context, context.socket(zmq.REQ) as heart:
        heart.linger = 0
        heart.connect(f"tcp://{info['ip']}:{info['hb_port']}")
        for sign in (b"one", b"", b"three"):
            heart.send(sign)
            assert heart.poll(PATIENCE * 1000), "no echo"
            assert heart.recv() == sign


def test_who_subscribes_is_welcomed(shared: Kernel) -> None:
    info = shared.manager.get_connection_info()
    with zmq.Context() as context, context.socket(zmq.SUB) as subscriber:
        subscriber.linger = 0
        # This socket asks for heartbeats, too.
        subscriber.heartbeat_ivl = 5
        subscriber.heartbeat_timeout = int(PATIENCE * 1000)
        subscriber.connect(f"tcp://{info['ip']}:{info['iopub_port']}")
        for topic in (b"", b"status"):
            subscriber.subscribe(topic)
            assert subscriber.poll(PATIENCE * 1000), "no welcome"
            identities, parts = shared.client.session.feed_identities(subscriber.recv_multipart())
            message = shared.client.session.deserialize(parts)
            assert identities == [topic] and message["header"]["msg_type"] == "iopub_welcome"
            assert message["content"] == {"subscription": topic.decode()}


def test_sockets_may_be_files(spec: Spec, tmp_path: Path) -> None:
    kernel = Kernel(spec(), transport="ipc", ip=str(tmp_path / "kernel"))
    try:
        sockets = {f"kernel-{number}" for number in range(1, 6)}
        assert sockets <= {path.name for path in tmp_path.iterdir()}
        assert kernel.ok("6 * 7").data == {"text/plain": "42"}
        assert kernel.client.hb_channel.is_beating()
        kernel.client.shutdown()
        assert kernel.client.get_control_msg(timeout=PATIENCE)["content"]["status"] == "ok"
        until(lambda: not sockets & {path.name for path in tmp_path.iterdir()}, "sockets are left")
    finally:
        kernel.end()


def test_requests_that_say_nothing_are_told_so(shared: Kernel) -> None:
    client = shared.client
    for kind, content in (("execute_request", {"code": 7}), ("complete_request", {"cursor_pos": "x"})):
        message = client.session.msg(kind, content)
        client.shell_channel.send(message)
        cell = shared.collect(message["header"]["msg_id"])
        assert cell.reply["status"] == "error" and "cannot be read" in cell.reply["evalue"]
        assert [kind for kind, _ in cell.messages] == ["status"]
    # The kernel does not know this request, so it sends no answer and goes on.
    message = client.session.msg("dance_request", {})
    client.shell_channel.send(message)
    assert shared.ok("1").data == {"text/plain": "1"}


def test_wrong_signatures_are_dropped(shared: Kernel) -> None:
    other = shared.manager.client()
    other.session = Session(key=b"another key")
    other.start_channels(iopub=False, stdin=False, hb=False)
    try:
        request = other.execute("forged = 1")
        with pytest.raises(Empty):
            other.get_shell_msg(timeout=1)
        assert request and shared.run("forged").error["ename"] == "NameError"
    finally:
        other.stop_channels()


def connected(kernel: Kernel, channel: str) -> socket.socket:
    """A peer that has done ZMTP's handshake."""
    port = kernel.manager.get_connection_info()[f"{channel}_port"]
    peer = socket.create_connection(("127.0.0.1", port), PATIENCE)
    greeting = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"NULL".ljust(20, b"\0") + b"\0" + bytes(31)
    assert len(greeting) == 64
    peer.sendall(greeting)
    name = b"DEALER" if channel != "iopub" else b"SUB"
    body = b"\x05READY" + b"\x0bSocket-Type" + struct.pack(">I", len(name)) + name
    peer.sendall(bytes([4, len(body)]) + body)
    received = b""
    while len(received) < 66:
        piece = peer.recv(1_000)
        assert piece, "it does not say hello"
        received += piece
    return peer


def is_cut(peer: socket.socket) -> bool:
    try:
        return peer.recv(1_000) == b""
    except ConnectionError:
        return True


@pytest.mark.parametrize("channel", ["shell", "control", "stdin", "iopub"])
def test_messages_that_are_too_large_are_refused(shared: Kernel, channel: str) -> None:
    # The length alone has the peer cut, before any memory is set aside.
    with connected(shared, channel) as peer:
        peer.sendall(b"\x02" + struct.pack(">Q", 1 << 40))
        assert is_cut(peer)
    # A message of many frames, each of which is small enough.
    with connected(shared, channel) as peer:
        try:
            for _ in range(64):
                peer.sendall(b"\x03" + struct.pack(">Q", 1 << 20) + bytes(1 << 20))
        except ConnectionError:
            pass
        assert is_cut(peer)
    assert shared.ok("1").data == {"text/plain": "1"}


def test_a_command_does_not_hide_how_large_a_message_is(shared: Kernel) -> None:
    with connected(shared, "shell") as peer:
        try:
            for _ in range(32):
                peer.sendall(b"\x03" + struct.pack(">Q", 1 << 20) + bytes(1 << 20) + b"\x04\x06\x05READY")
        except ConnectionError:
            pass
        assert is_cut(peer)


def test_subscriptions_are_bounded(shared: Kernel) -> None:
    with connected(shared, "iopub") as peer:
        try:
            for number in range(1_000):
                peer.sendall(b"\x00\x05\x01" + b"%04d" % number)
        except ConnectionError:
            pass
        while not is_cut(peer):
            pass


def test_who_does_not_read_holds_nobody_up(start: Start) -> None:
    kernel = start()
    with connected(kernel, "iopub") as peer:
        # Subscribes to all messages, and reads not one byte of them.
        peer.sendall(b"\x00\x01\x01")
        kernel.ok("1")
        before = resident(kernel.pid)
        for _ in range(10):
            cell = kernel.ok("for i in range(9_000): print('x' * 999)")
            assert len(cell.stdout) == 9_000_000
        # The messages that wait for the peer are bounded: at 64 MiB the peer is cut.
        assert resident(kernel.pid) - before < 200 << 20
        while not is_cut(peer):
            pass


def resident(pid: int) -> int:
    """The resident memory of a process, in bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_who_speaks_no_protocol_is_not_listened_to(shared: Kernel) -> None:
    port = shared.manager.get_connection_info()["shell_port"]
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as peer:
        peer.sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(100))
        while not is_cut(peer):
            pass
    assert shared.ok("1").data == {"text/plain": "1"}


def test_a_large_cell_is_no_large_message(shared: Kernel) -> None:
    text = "x" * 900_000
    assert shared.ok(f"len('{text}')").data == {"text/plain": "900000"}
    cell = shared.run(f"len('{text * 2}')")
    assert cell.error["ename"] == "LimitError" and shared.ok("1").data == {"text/plain": "1"}


def test_without_a_guest_cells_say_why(start: Start) -> None:
    if BACKEND == "docker":
        kernel = start("--image=sandglass-there-is-no-such-image")
    else:
        kernel = start("--python=/nonexistent/python")
    cell = kernel.run("1")
    assert cell.error["ename"] == "SandboxError" and cell.reply["status"] == "error"
    assert "nonexistent" in cell.error["evalue"] or "no-such-image" in cell.error["evalue"]


def test_connection_files_are_checked(tmp_path: Path) -> None:
    file = tmp_path / "connection.json"
    info = {
        "ip": "127.0.0.1",
        "transport": "tcp",
        "key": "key",
        "signature_scheme": "hmac-sha256",
        **{f"{channel}_port": 0 for channel in ("shell", "iopub", "stdin", "control", "hb")},
    }
    for changes, why in (
        ({"key": ""}, "no key"),
        ({"signature_scheme": "hmac-md5"}, "hmac-md5"),
        ({"transport": "carrier pigeon"}, "carrier pigeon"),
        ({"ip": "203.0.113.1"}, "cannot be listened to"),
    ):
        file.write_text(json.dumps({**info, **changes}))
        with pytest.raises(RuntimeError, match=why):
            host("kernel", "run", "--connection-file", str(file), f"--backend={BACKEND}")


def test_install_and_uninstall(tmp_path: Path) -> None:
    environment = {"JUPYTER_DATA_DIR": str(tmp_path / "data")}
    options = ("--workspace=here", "--python=bin/python", "--timeout=5", "--trust-output")
    place = host("kernel", "install", "--user", *options, **environment)
    folder = tmp_path / "data" / "kernels" / "sandglass"
    assert place == f"{folder}\n"
    spec = json.loads((folder / "kernel.json").read_text())
    assert spec["argv"][1:5] == ["kernel", "run", "--connection-file", "{connection_file}"]
    assert f"--workspace={os.getcwd()}/here" in spec["argv"] and f"--python={os.getcwd()}/bin/python" in spec["argv"]
    assert "--timeout=5" in spec["argv"] and "--trust-output" in spec["argv"]
    assert os.path.isabs(spec["argv"][0])
    assert (spec["language"], spec["interrupt_mode"]) == ("python", "message")
    assert host("kernel", "uninstall", **environment) == f"{folder}\n" and not folder.exists()
    with pytest.raises(RuntimeError, match="no kernel in"):
        host("kernel", "uninstall", **environment)
    with pytest.raises(RuntimeError, match="llm-model"):
        host("kernel", "install", "--llm-url=http://127.0.0.1:1/v1", **environment)
    # Kernels of other programs are left alone.
    folder.mkdir(parents=True)
    (folder / "kernel.json").write_text(json.dumps({**spec, "argv": ["python", "-m", "ipykernel_launcher"]}))
    with pytest.raises(RuntimeError, match="no kernel of this program"):
        host("kernel", "uninstall", **environment)
