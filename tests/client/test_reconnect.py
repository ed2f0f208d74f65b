"""Connections that break at any moment: nothing is lost or doubled."""

from __future__ import annotations

import asyncio
import os
import random
import re
import subprocess
from collections.abc import Iterator
from contextlib import closing
from threading import Event, Thread, Timer

import pytest
from client_host import PROGRAM
from proxy import Proxy

from sandglass import AsyncSandbox, Sandbox, SandboxError
from sandglass.client import server
from sandglass.client.resumable import WINDOW, Resumable

KEY = "a-key-for-tests-0123456789"
#: The number of cuts: SANDGLASS_CUTS=1000 for the long form.
CUTS = int(os.environ.get("SANDGLASS_CUTS", "60"))
CODE = """
for number in range({begin}, {begin} + 20):
    print("line", number)
    assert effect(number) == 2 * number
    if number % 5 == 0:
        display({{"text/plain": str(number)}}, raw=True)
"x" * 100_000 + str(number)
"""


def serve(*options: str) -> Iterator[str]:
    """The address of a server."""
    command = [str(PROGRAM), "serve", "--listen", "127.0.0.1:0", "--backend", "subprocess", "--allow-subprocess"]
    env = {**os.environ, "SANDGLASS_KEYS": f"tester {KEY}", "NO_COLOR": "1", "RUST_LOG": "error"}
    with subprocess.Popen([*command, *options], env=env, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        for line in server.stdout:
            if found := re.search(r"http://127\.0\.0\.1:[1-9]\d*", line):
                yield found[0]
                break
        else:
            raise RuntimeError("the server did not start")
        server.terminate()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    yield from serve("--requests-per-second", "10000", "--max-sessions-per-key", "100")


@pytest.fixture
def proxy(url: str) -> Iterator[Proxy]:
    proxy = Proxy(url, seed=27)
    yield proxy
    proxy.close()


class Client:
    """A user of a sandbox, who counts all that comes."""

    def __init__(self) -> None:
        self.effects: list[int] = []
        self.lines = ""
        self.shown: list[str] = []
        self.begin = 0

    def effect(self, number: int) -> int:
        self.effects.append(number)
        return 2 * number

    @property
    def code(self) -> str:
        self.effects.clear()
        self.shown.clear()
        self.lines = ""
        return CODE.format(begin=self.begin)

    def hear(self, text: str) -> None:
        self.lines += text

    def show(self, display: object) -> None:
        self.shown.append(display.data)  # type: ignore[attr-defined]

    def check(self, run: object) -> None:
        numbers = range(self.begin, self.begin + 20)
        lines = "".join(f"line {number}\n" for number in numbers)
        assert run.outcome == "ok", run  # type: ignore[attr-defined]
        assert self.effects == list(numbers)
        assert self.lines == run.stdout == lines  # type: ignore[attr-defined]
        assert self.shown == [str(number) for number in numbers if number % 5 == 0]
        assert run.value == "x" * 100_000 + str(numbers[-1])  # type: ignore[attr-defined]
        self.begin += 20


def test_nothing_is_lost_or_doubled(proxy: Proxy) -> None:
    chance = random.Random(5)
    client = Client()
    with Sandbox(url=proxy.url, api_key=KEY, host_functions={"effect": client.effect}) as sandbox:
        sandbox.initialize(None)
        proxy.is_on = True
        while proxy.cuts < CUTS:
            client.check(sandbox.execute(client.code, on_stdout=client.hear, on_display=client.show))
            data = chance.randbytes(chance.choice((10, 100_000, 2_000_000)))
            sandbox.files["data"] = data
            assert sandbox.files["data"] == data
        proxy.is_on = False
        assert sandbox.execute("number + 1").value == client.begin


def test_nothing_is_lost_or_doubled_of_several_at_once(proxy: Proxy) -> None:
    async def use() -> None:
        client = Client()

        async def effect(number: int) -> int:
            await asyncio.sleep(0)
            return client.effect(number)

        async with AsyncSandbox(url=proxy.url, api_key=KEY, host_functions={"effect": effect}) as sandbox:
            await sandbox.initialize(None)
            proxy.is_on = True
            while proxy.cuts < CUTS:
                client.check(await sandbox.execute(client.code, on_stdout=client.hear, on_display=client.show))

    async def main() -> None:
        await asyncio.gather(*(use() for _ in range(4)))

    asyncio.run(main())


def test_what_runs_goes_on_without_a_connection(proxy: Proxy, url: str) -> None:
    """The code waits for the first answer of the client, which the cut must not hold up, and then runs on alone."""
    begun = Event()
    with Sandbox(url=proxy.url, api_key=KEY, host_functions={"begun": begun.set}) as sandbox:
        sandbox.initialize(None)
        runs: list[object] = []
        code = "begun()\nfor number in range(1000):\n    print(number)\nnumber"
        thread = Thread(target=lambda: runs.append(sandbox.execute(code)))
        thread.start()
        assert begun.wait(60)
        proxy.is_shut = True
        proxy.cut()
        with Sandbox(url=url, api_key=KEY) as other:
            assert other.execute("1").value == 1
        proxy.is_shut = False
        thread.join(60)
        assert runs[0].value == 999  # type: ignore[attr-defined]


@pytest.mark.parametrize("within", ["60", "0"])
def test_a_network_that_has_stopped_does_not_stop_an_event_loop(within: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_UNCONFIRMED_MS", 600_000)

    async def main(proxy: Proxy) -> None:
        stopped: list[bool] = []

        def go_on() -> None:
            stopped.append(True)
            proxy.flows.set()

        async with AsyncSandbox(url=proxy.url, api_key=KEY) as sandbox:
            await sandbox.execute("x = 1")
            proxy.flows.clear()
            late = Timer(60, go_on)
            late.start()
            try:
                for _ in range(3):
                    await sandbox.hint("#" * (15 << 20))  # together more than the system keeps
                run = asyncio.create_task(sandbox.execute("x"))
                await asyncio.sleep(0)
                assert not stopped
            finally:
                late.cancel()
                proxy.flows.set()
            assert (await run).value == 1

    for url in serve("--reconnect-within", within):
        with closing(Proxy(url, seed=1)) as proxy:
            asyncio.run(main(proxy))
            assert proxy.cuts == 0


def test_when_the_time_is_over_calls_say_so() -> None:
    for url in serve("--reconnect-within", "0.2"):
        with closing(Proxy(url, seed=1)) as proxy, Sandbox(url=proxy.url, api_key=KEY) as sandbox:
            sandbox.execute("x = 1")
            proxy.close()
            with pytest.raises(SandboxError) as error:
                sandbox.execute("x")
            assert error.value.code == "backend_unavailable"
            assert "could not be taken up again within 0.2 s" in str(error.value)
            assert "sandboxes are gone" in str(error.value)


def test_a_server_that_ends_is_not_awaited() -> None:
    servers = serve()
    url = next(servers)
    sandbox = Sandbox(url=url, api_key=KEY)
    sandbox.execute("x = 1")
    with pytest.raises(StopIteration):
        next(servers)
    with pytest.raises(SandboxError) as error:
        sandbox.execute("x")
    assert "the server is shutting down" in str(error.value)


def test_a_server_may_not_let_clients_reconnect() -> None:
    for url in serve("--reconnect-within", "0"):
        with closing(Proxy(url, seed=1)) as proxy, Sandbox(url=proxy.url, api_key=KEY) as sandbox:
            assert sandbox.execute("1").value == 1
            proxy.cut()
            with pytest.raises(SandboxError) as error:
                sandbox.execute("1")
            assert error.value.code == "backend_unavailable"


def test_a_message_that_the_server_does_not_take_is_refused() -> None:
    for url in serve("--max-body-mib", "1"):
        with Sandbox(url=url, api_key=KEY) as sandbox:
            with pytest.raises(SandboxError) as error:
                sandbox.execute("#" + "a" * (1 << 20))
            assert error.value.code == "invalid_option"
            assert sandbox.execute("1").value == 1


def test_the_clients_side_sends_again_what_was_not_taken() -> None:
    """Links that break anywhere; the server's side is a list. Rust's tests have both sides."""
    for seed in range(200):
        chance = random.Random(seed)
        side: Resumable[int] = Resumable()
        taken: list[int] = []
        said = 0
        side.open()
        side.link(0)
        way: list[int] = []
        for _ in range(300):
            step = chance.randrange(10)
            if step < 3 and side.has_room:
                side.push(said, chance.choice((10, WINDOW // 3, WINDOW * 2)))
                said += 1
            elif step < 6:
                message = side.next()
                way += [] if message is None else [message]
            elif step < 8 and way:
                taken.append(way.pop(0))
            elif step == 8:
                side.told(len(taken))
            elif step == 9:
                # The rest of the way is lost.
                way.clear()
                side.open()
                side.link(len(taken))
        way.clear()
        side.open()
        side.link(len(taken))
        while (message := side.next()) is not None:
            taken.append(message)
            side.told(len(taken))
        assert taken == list(range(said))
        for wrong in (said + 1, -1, "1"):
            with pytest.raises(ValueError, match="cannot be true"):
                side.told(wrong)  # type: ignore[arg-type]
