"""A proxy on this machine that breaks connections."""

from __future__ import annotations

import random
import socket
import struct
from contextlib import suppress
from threading import Event, Lock, Thread
from urllib.parse import urlsplit

#: Bytes after which connections break, on average: in their greeting, or later.
_BYTES = (300, 3_000, 30_000, 300_000, 3_000_000)
_SHARES = (4, 8, 8, 8, 1)
#: Closing such a socket resets the connection at once.
_RESET = struct.pack("ii", 1, 0)


class Proxy:
    """Forwards TCP connections to a server, or each to a random one of several.

    Breaks each after a random number of bytes, as long as `is_on`.
    """

    def __init__(self, *urls: str, seed: int) -> None:
        self.lead_to(*urls)
        self._random = random.Random(seed)
        self._lock = Lock()
        self._open: set[_Pair] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.is_on = False
        self.is_shut = False
        #: While it is not set, the proxy reads nothing, as a network that has stopped.
        self.flows = Event()
        self.flows.set()
        self.cuts = 0
        Thread(target=self._accept, daemon=True).start()

    def lead_to(self, *urls: str) -> None:
        """Leads further connections to other servers."""
        self._targets = [(urlsplit(url).hostname, urlsplit(url).port) for url in urls]

    def cut(self) -> None:
        """Breaks all connections."""
        with self._lock:
            pairs = list(self._open)
        for pair in pairs:
            self._break(pair)

    def close(self) -> None:
        """Takes no further connections, and breaks the others."""
        # `close` alone does not wake the thread that accepts.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.flows.set()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.is_shut:
                client.close()
                continue
            try:
                server = socket.create_connection(self._random.choice(self._targets))
            except OSError:
                client.close()
                continue
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                left = int(self._random.expovariate(1 / self._random.choices(_BYTES, _SHARES)[0]))
                pair = _Pair(client, server, left)
                self._open.add(pair)
            for one, other in ((client, server), (server, client)):
                Thread(target=self._forward, args=(pair, one, other), daemon=True).start()

    def _forward(self, pair: _Pair, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(1 << 16):
                self.flows.wait()
                if self.is_on:
                    with self._lock:
                        keep, pair.left = pair.left, pair.left - len(data)
                    if keep < len(data):
                        other.sendall(data[: max(keep, 0)])
                        break
                other.sendall(data)
        self._break(pair)

    def _break(self, pair: _Pair) -> None:
        with self._lock:
            if pair not in self._open:
                return
            self._open.remove(pair)
            self.cuts += 1
            is_reset = self._random.random() < 0.5
        for end in (pair.client, pair.server):
            with suppress(OSError):
                if is_reset:
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                end.shutdown(socket.SHUT_RDWR)
            end.close()


class _Pair:
    """Two ends of a connection, and the bytes after which it breaks."""

    def __init__(self, client: socket.socket, server: socket.socket, left: int) -> None:
        self.client = client
        self.server = server
        self.left = left
