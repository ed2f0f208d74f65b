"""A network of nodes on this machine. Each node is a network namespace with an address, and can be cut off from the others.

`enter` runs the program again as the first process of namespaces of its own (processes, mounts, network). When that process ends, also
by SIGKILL, the kernel ends all others in them and removes the networks. So nothing is left behind, and no address of the machine is used.

Decisions: `docs/internals/server.md`.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from typing import Literal

INSIDE = "SANDGLASS_IN_NAMESPACES"
TOOLS = ("unshare", "setpriv", "nsenter", "ip", "iptables", "mount")
#: Of which packets a node is cut off: those that come, those that go, or all.
Way = Literal["in", "out", "both"]
_CHAINS: dict[Way, tuple[tuple[str, str], ...]] = {
    "in": (("INPUT", "--source"),),
    "out": (("OUTPUT", "--destination"),),
    "both": (("INPUT", "--source"), ("OUTPUT", "--destination")),
}
_UNSHARE = (
    *("setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--net", "--pid", "--fork"),
    *("--kill-child", "--mount-proc"),
)


def missing() -> str | None:
    """Says why this process cannot make namespaces, or returns None if it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if absent := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"programs of util-linux, iproute2, iptables or mount are missing: {', '.join(absent)}"
    script = "mount -t tmpfs tmpfs /run && ip link add bridge0 type bridge && iptables -w -L -n"
    tried = subprocess.run([*_UNSHARE, "sh", "-c", script], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        return f"the system refuses namespaces, a bridge or iptables to this process: {tried.stderr.strip()}"
    return None


def enter(keep: Iterable[int] = ()) -> None:
    """Returns in namespaces. Outside of them, runs this program in new ones, and ends with its status. `keep` are files left open."""
    if INSIDE in os.environ:
        del os.environ[INSIDE]
        # Names of network namespaces are files here. In a file system of these namespaces, they end with them.
        os.makedirs("/run/netns", exist_ok=True)
        _run("mount", "-t", "tmpfs", "tmpfs", "/run/netns")
        _run("ip", "link", "set", "lo", "up")
        return
    if why := missing():
        sys.exit(f"no namespaces: {why}")
    command = [*_UNSHARE, sys.executable, *sys.argv]
    process = subprocess.Popen(command, env={**os.environ, INSIDE: "1"}, pass_fds=tuple(keep))
    # Ctrl+C reaches the program itself, which then ends in good order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: process.kill())
    sys.exit(abs(process.wait()))


class Network:
    """A switch to which nodes are connected. This process is connected to it as well, and cannot be cut off."""

    ADDRESS = "10.77.0.254"

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        _run("ip", "link", "add", "switch", "type", "bridge")
        _run("ip", "address", "add", f"{self.ADDRESS}/24", "dev", "switch")
        _run("ip", "link", "set", "switch", "up")

    def node(self, name: str) -> Node:
        """Makes a node."""
        number = len(self.nodes) + 1
        node = self.nodes[name] = Node(name, f"10.77.0.{number}")
        port = f"port{number}"
        _run("ip", "netns", "add", name)
        _run("ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
        _run("ip", "link", "set", port, "master", "switch", "up")
        _run("ip", "-n", name, "address", "add", f"{node.address}/24", "dev", "eth0")
        for link in ("lo", "eth0"):
            _run("ip", "-n", name, "link", "set", link, "up")
        return node


class Node:
    """A network namespace with one address."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.address = address

    def command(self, *command: str, clock_ahead: int = 0) -> list[str]:
        """A command that runs here. Its monotonic clock and its time since boot are ahead of the machine's by so many seconds."""
        full = ["nsenter", f"--net=/run/netns/{self.name}", *command]
        if clock_ahead:
            full[2:2] = ["unshare", "--time", "--monotonic", str(clock_ahead), "--boottime", str(clock_ahead)]
        return full

    def cut_off(self, others: Iterable[Node], way: Way = "both") -> None:
        """Drops packets of and to other nodes, until `rejoin`."""
        for other in others:
            for chain, side in _CHAINS[way]:
                _run(*self.command("iptables", "-w", "-A", chain, side, other.address, "-j", "DROP"))

    def rejoin(self) -> None:
        """Ends `cut_off` and `unplug`."""
        _run(*self.command("iptables", "-w", "-F"))
        _run("ip", "-n", self.name, "link", "set", "eth0", "up")

    def unplug(self) -> None:
        """Cuts the node off from everything, as a cable that is pulled out."""
        _run("ip", "-n", self.name, "link", "set", "eth0", "down")


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
