"""`AsyncSandbox`: where it differs from `Sandbox`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any

import pytest
from client_host import PLAIN

from sandglass import AsyncSandbox, SandboxError
from sandglass.client import asynchronous
from sandglass.client.connection import Answer, Asked, Message

WHO: ContextVar[str] = ContextVar("who", default="nobody")


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 60))


def test_every_method() -> None:
    async def main() -> None:
        async with AsyncSandbox(**PLAIN) as sandbox:
            assert sandbox.backend == "subprocess"
            assert sandbox.capabilities
            await sandbox.start()
            await sandbox.initialize("a text" * 100_000)
            assert await sandbox.add_context("b") == "context_1"
            assert (await sandbox.execute("len(context)")).value == 600_000
            assert (await sandbox.execute("context")).value == "a text" * 100_000
            await sandbox.set_variable("x", {"a": 1})
            assert await sandbox.get_variable("x") == {"a": 1}
            assert await sandbox.get_variable("y", 2) == 2
            assert "x" in [variable.name for variable in await sandbox.list_variables()]
            await sandbox.files.write("a", b"b" * 100_000)
            assert await sandbox.files.read("a") == b"b" * 100_000
            assert [file.path for file in await sandbox.files.list()] == ["a"]
            await sandbox.files.remove("a")
            with pytest.raises(SandboxError) as missing:
                await sandbox.files.read("a")
            assert missing.value.code == "file_not_found"
            await sandbox.open_state(await sandbox.capture_state())
            assert await sandbox.open_state(await sandbox.capture_state(portable=True)) == []
            await sandbox.hint("1")
            await sandbox.update_conversation("text")
            sandbox.tools["f"] = lambda: 1
            sandbox.output_fields = ["a"]
            assert (await sandbox.execute("f()")).value == 1
            assert (await sandbox.stats())["executions"]["ok"] >= 3
            assert (await sandbox.budget()).spent.calls == 0
        with pytest.raises(SandboxError):
            await sandbox.execute("1")

    run(main())


def test_callbacks_run_on_the_callers_loop_in_the_callers_context() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        both = asyncio.Barrier(2)

        async def ask(prompt: str) -> str:
            assert asyncio.get_running_loop() is loop
            await both.wait()
            return f"{WHO.get()} read {prompt}"

        def plain() -> str:
            assert threading.current_thread() is not threading.main_thread()
            return WHO.get()

        async with AsyncSandbox(on_llm_query=ask, host_functions={"plain": plain}, **PLAIN) as sandbox:
            WHO.set("Ada")
            result = await sandbox.execute("llm_query_batched(['a', 'b']) + [plain()]")
            assert result.value == ["Ada read a", "Ada read b", "Ada"]

    run(main())


def test_sandboxes_run_side_by_side() -> None:
    async def main() -> None:
        both = asyncio.Barrier(2)

        async def meet() -> None:
            await both.wait()

        async with (
            AsyncSandbox(host_functions={"meet": meet}, **PLAIN) as one,
            AsyncSandbox(host_functions={"meet": meet}, **PLAIN) as other,
        ):
            results = await asyncio.gather(one.execute("meet()\n1"), other.execute("meet()\n2"))
            assert [result.value for result in results] == [1, 2]

    run(main())


def test_cancelling_a_task_interrupts_its_code_and_its_host_functions() -> None:
    async def main() -> None:
        asked, ended = asyncio.Event(), asyncio.Event()

        async def ask(prompt: str) -> str:
            asked.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()
            return ""

        async with AsyncSandbox(on_llm_query=ask, **PLAIN) as sandbox:
            task = asyncio.create_task(sandbox.execute("x = 1\nllm_query('a')"))
            await asked.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await ended.wait()
            assert await sandbox.get_variable("x") == 1

    run(main())


def test_listeners_may_be_asynchronous() -> None:
    async def main() -> None:
        heard: list[str] = []

        async def hear(text: str) -> None:
            await asyncio.sleep(0)
            heard.append(text)

        async with AsyncSandbox(on_stdout=hear, **PLAIN) as sandbox:
            result = await sandbox.execute("print('a')\nprint('b')")
            assert "".join(heard) == result.stdout == "a\nb\n"

    run(main())


def test_streams() -> None:
    async def main() -> None:
        async def pieces() -> AsyncIterator[str]:
            yield "a = 1\n"
            yield "print(a)"

        async with AsyncSandbox(**PLAIN) as sandbox:
            assert (await sandbox.execute_stream(pieces())).stdout == "1\n"
            assert (await sandbox.execute_stream(["print(", "a + 1)"])).stdout == "2\n"

    run(main())


def test_the_end_of_a_sandbox_that_is_being_made() -> None:
    async def main() -> None:
        async with AsyncSandbox(**PLAIN) as other:
            sandbox = AsyncSandbox(**PLAIN)
            start = asyncio.create_task(sandbox.start())
            connection = other._session._connection
            assert connection
            while not connection._asked and not sandbox._session.is_open:  # until the host has been asked for it
                await asyncio.sleep(0)
            await sandbox.destroy()
            with pytest.raises(SandboxError) as ended:
                await start
            assert ended.value.code == "destroyed"
            own, other._session._id = other._session._id, sandbox._session._id
            with pytest.raises(SandboxError) as gone:
                await other.execute("1")
            assert gone.value.code == "no_sandbox"
            other._session._id = own

    run(main())


def test_an_answer_that_comes_when_the_loop_is_closed_is_not_lost() -> None:
    """A sandbox that was made for a cancelled task ends at the next request of another."""
    requests: list[Asked] = []
    dropped: list[Answer] = []

    def begin(asked: Asked) -> Any:
        requests.append(asked)
        return SimpleNamespace(cancel=lambda _: None), 1

    async def main(is_cancelled: bool) -> None:
        task = asyncio.create_task(asynchronous._answer(begin, dropped=dropped.append))
        await asyncio.sleep(0)
        if is_cancelled:
            task.cancel()

    answer = Answer(Message({}, {}, 0))
    for is_cancelled in (True, False):  # asyncio.run cancels what is left
        asyncio.run(main(is_cancelled))
        requests.pop().answered(answer)
        assert dropped.pop() is answer


def test_without_a_context_manager_the_first_call_makes_the_sandbox() -> None:
    async def main() -> None:
        sandbox = AsyncSandbox(**PLAIN)
        results = await asyncio.gather(sandbox.execute("1"), sandbox.execute("2"))
        assert [result.value for result in results] == [1, 2]
        await sandbox.destroy()
        never = AsyncSandbox(**PLAIN)
        await never.destroy()
        with pytest.raises(SandboxError):
            await never.execute("1")

    run(main())


def test_going_back() -> None:
    async def use() -> None:
        async with AsyncSandbox(checkpoints=2, **PLAIN) as sandbox:
            await sandbox.execute("x = 1")
            await sandbox.execute("x = 2")
            assert await sandbox.undo() == 1
            assert await sandbox.get_variable("x") == 1
            assert await sandbox.checkpoint() == 1
            assert await sandbox.restore(1) == 1

    run(use())
