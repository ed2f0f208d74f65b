"""Tools and resources, over both transports."""

from __future__ import annotations

import base64
import struct
import warnings
import zlib
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp import MCPError

from conftest import PATIENCE, Messages, Model, connected, text

pytestmark = pytest.mark.anyio
TRANSPORTS = ["stdio", "http"]
WITH_SERVERS = [*TRANSPORTS, "server"]


def png() -> bytes:
    """A red pixel."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    data = zlib.compress(b"\0\xff\0\0")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_whole_question_over_ten_megabytes(transport: str, tmp_path: Path) -> None:
    lines = [f"{number:07d} an ordinary line of the log, with nothing to see in it" for number in range(160_000)]
    lines[123_456] = "0123456 ALARM: the reactor of plant 7 is too hot"
    log = "\n".join(lines)
    assert len(log) > 9_500_000
    (tmp_path / "plant.log").write_text(log)

    def script(messages: Messages) -> str:
        last = messages[-1]["content"]
        if len(messages) == 1:  # the prompt of `llm_query`
            return "plant 7" if "ALARM: the reactor of plant 7" in last else "none"
        if "found 1" in last:
            return "```repl\nFINAL(llm_query('Which plant? ' + found[0]['context']))\n```"
        return "```repl\nfound = search_context('alarm')\nprint('found', len(found), 'in', len(context))\n```"

    with Model(script) as model:
        async with connected(transport, "--allow-folder", str(tmp_path), *model.options) as client:
            loaded = await client.call_tool("load_context", {"path": "plant.log"})
            assert loaded.structured_content
            assert loaded.structured_content["length"] == len(log)
            found = await client.call_tool("search_context", {"pattern": "alarm: .*", "window": 30})
            assert found.structured_content
            (match,) = found.structured_content["matches"]
            part = await client.call_tool("read_context", {"start": match["start"], "length": 5})
            assert part.structured_content
            assert part.structured_content["text"] == "ALARM"
            steps: list[str] = []

            async def heard(_now: float, _total: float | None, message: str | None) -> None:
                steps.append(message or "")

            question = "Which plant has an alarm?"
            answered = await client.call_tool("ask", {"question": question}, progress_callback=heard)
            assert not answered.is_error, answered
            assert text(answered) == "plant 7"
            assert answered.structured_content
            assert answered.structured_content["outcome"] == "answered"
            assert answered.structured_content["calls"] == 3
            assert "asks the model, 1 of" in "".join(steps)
            told = {"type": "object", "properties": {"plant": {"type": "integer"}}, "required": ["plant"]}
            wrong = await client.call_tool("ask", {"question": "?", "variable": "nothing", "schema": told})
            assert wrong.is_error
            assert "no variable nothing" in text(wrong)
            # The code of the session is answered by the same endpoint.
            run = await client.call_tool("execute_python", {"code": "llm_query('ALARM: the reactor of plant 7')"})
            assert text(run) == "'plant 7'"
    # The data never went through the conversation, nor to the model.
    assert sum(len(message["content"]) for messages in model.asked for message in messages) < 200_000


async def test_an_answer_can_have_a_schema(tmp_path: Path) -> None:
    def script(messages: Messages) -> str:
        first = all(message["role"] != "assistant" for message in messages)
        return "```repl\nFINAL('seven')\n```" if first else "```repl\nFINAL({'plant': 7})\n```"

    schema = {"type": "object", "properties": {"plant": {"type": "integer"}}, "required": ["plant"]}
    with Model(script) as model:
        async with connected("stdio", *model.options) as client:
            await client.call_tool("load_context", {"text": "plant 7"})
            answered = await client.call_tool("ask", {"question": "Which?", "schema": schema})
            assert answered.structured_content
            assert answered.structured_content["answer"] == '{"plant":7}'


async def test_a_question_can_be_cancelled_and_has_a_budget() -> None:
    reached = anyio.Event()
    with Model(lambda _: "```repl\nwhile True: pass\n```") as model:
        async with connected("stdio", *model.options, "--timeout", "600", "--max-iterations", "2") as client:
            await client.call_tool("load_context", {"text": "data"})

            async def heard(_now: float, _total: float | None, message: str | None) -> None:
                if "runs" in (message or ""):
                    reached.set()

            with anyio.fail_after(PATIENCE):
                async with anyio.create_task_group() as group:
                    group.start_soon(lambda: client.call_tool("ask", {"question": "?"}, progress_callback=heard))
                    await reached.wait()
                    group.cancel_scope.cancel()
            again = await client.call_tool("execute_python", {"code": "context"})
            assert text(again) == "'data'"
    with Model(lambda _: "```repl\nprint('no answer')\n```") as model:
        async with connected("stdio", *model.options, "--budget-calls", "2") as client:
            await client.call_tool("load_context", {"text": "data"})
            ended = await client.call_tool("ask", {"question": "?"})
            assert ended.is_error
            assert ended.structured_content
            assert ended.structured_content["outcome"] == "limit"
            run = await client.call_tool("execute_python", {"code": "for n in range(3): print(n, llm_query('?'))"})
            assert run.is_error
            assert text(run).startswith("0 ```repl")
            assert "budget" in text(run).lower()
            assert len(model.asked) == 4


@pytest.mark.parametrize("transport", WITH_SERVERS)
async def test_output_comes_while_code_runs_and_cancelling_keeps_the_state(transport: str) -> None:
    reached = anyio.Event()

    async def heard(_now: float, _total: float | None, message: str | None) -> None:
        if "begun" in (message or ""):
            reached.set()

    code = "kept = 'kept'\nprint('begun')\nimport time\nwhile True: time.sleep(0.01)"
    async with connected(transport, "--timeout", "600") as client:
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as group:
                group.start_soon(lambda: client.call_tool("execute_python", {"code": code}, progress_callback=heard))
                await reached.wait()  # comes before the code ends: it never does
                group.cancel_scope.cancel()
            run = await client.call_tool("execute_python", {"code": "kept"})
        assert text(run) == "'kept'"


@pytest.mark.parametrize("transport", WITH_SERVERS)
async def test_the_clients_model_answers_llm_query(transport: str) -> None:
    async def sampling(_: Any, params: types.CreateMessageRequestParams) -> Any:
        content = params.messages[0].content
        assert isinstance(content, types.TextContent)
        if content.text == "fail":
            return types.ErrorData(code=-1, message="the user said no")
        hints = params.model_preferences.hints if params.model_preferences else None
        named = hints[0].name if hints else "default"
        answer = types.TextContent(type="text", text=f"{named}: {content.text.upper()}")
        return types.CreateMessageResult(role="assistant", content=answer, model="client's")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        async with connected(transport, sampling_callback=sampling) as client:
            code = (
                "print(llm_query('one'), llm_query('two', model='small'))\nllm_query_batched(['a', 'b', 'c'] * 20)[-3:]"
            )
            run = await client.call_tool("execute_python", {"code": code})
            assert text(run) == "default: ONE small: TWO\n['default: A', 'default: B', 'default: C']"
            run = await client.call_tool("execute_python", {"code": "llm_query('fail')"})
            assert run.is_error
            assert "HostCallError" in text(run)
            assert "the user said no" in text(run)
            run = await client.call_tool("execute_python", {"code": "rlm_query('deeper')"})
            assert "the tool `ask`" in text(run)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_the_clients_roots_allow_folders_on_standard_input(transport: str, tmp_path: Path) -> None:
    root, other = tmp_path / "a folder", tmp_path / "other"
    for folder in (root, other):
        folder.mkdir()
        (folder / "data.txt").write_text(f"in {folder.name}")
    (root / "link").symlink_to(other / "data.txt")
    offered = [f"file://{tmp_path}/a%20folder", "file:///nothing/here"]

    async def roots(_: Any) -> Any:
        return types.ListRootsResult(roots=[types.Root(uri=uri) for uri in offered])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        async with connected(transport, list_roots_callback=roots) as client:
            loaded = [
                await client.call_tool("load_context", {"path": path})
                for path in ("data.txt", str(root / "data.txt"), "link", str(other / "data.txt"), "../other/data.txt")
            ]
            if transport == "http":
                assert all("--allow-folder" in text(result) for result in loaded)
                return
            assert [result.is_error for result in loaded] == [False, False, True, True, True]
            assert "in a folder" in text(loaded[0])
            offered[0] = f"file://{other}"  # roots change
            changed = await client.call_tool("load_context", {"path": "data.txt"})
            assert "in other" in text(changed)
            refused = await client.call_tool("load_context", {"path": str(root / "data.txt")})
            assert refused.is_error
        async with connected(transport, "--allow-folder", str(other), list_roots_callback=roots) as client:
            assert "in other" in text(await client.call_tool("load_context", {"path": "data.txt"}))


async def test_without_a_model_llm_query_says_what_to_configure() -> None:
    async with connected("stdio") as client:
        run = await client.call_tool("execute_python", {"code": "llm_query('?')"})
        assert run.is_error
        assert "--model" in text(run)
        assert "sampling" in text(run)


async def test_pictures_are_images_and_tables_are_text() -> None:
    async with connected("stdio") as client:
        picture = base64.b64encode(png()).decode()
        code = f"""
import base64
class Figure:
    def _repr_png_(self): return base64.b64decode({picture!r})
class Table:
    def _repr_html_(self): return '<table><script>alert(1)</script></table>'
    def __repr__(self): return 'a  b\\n1  2'
display(Figure())
Table()"""
        run = await client.call_tool("execute_python", {"code": code})
        shown, image = run.content
        assert shown.type == "text"
        assert shown.text == "a  b\n1  2"
        assert image.type == "image"
        assert (image.mime_type, image.data) == ("image/png", picture)
        assert "script" not in run.model_dump_json()


@pytest.mark.parametrize("transport", WITH_SERVERS)
async def test_changes_of_files_are_told_to_those_who_subscribed(transport: str) -> None:
    told: list[str] = []
    new = anyio.Event()

    async def heard(message: Any) -> None:
        if isinstance(message, types.ResourceUpdatedNotification):
            told.append(str(message.params.uri))
            new.set()

    async with connected(transport, message_handler=heard) as client:
        await client.call_tool("write_file", {"path": "a.txt", "text": "1"})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            await client.subscribe_resource("workspace:///a.txt")
            await client.call_tool("execute_python", {"code": "open('b.txt', 'w').write('2')"})
            await client.call_tool("execute_python", {"code": "open('a.txt', 'w').write('2')"})
            with anyio.fail_after(PATIENCE):
                await new.wait()
            assert told == ["workspace:///a.txt"]
            read = await client.read_resource("workspace:///a.txt")
            assert read.contents[0].text == "2"  # type: ignore[union-attr]
            for wrong in ["file:///etc/passwd", "workspace:///"]:
                with pytest.raises(MCPError):
                    await client.subscribe_resource(wrong)
            templates = await client.list_resource_templates()
            assert templates.resource_templates[0].uri_template == "workspace:///{+path}"


async def test_a_long_list_of_files_comes_in_pages() -> None:
    async with connected("stdio") as client:
        await client.call_tool("execute_python", {"code": "for n in range(1203): open(f'f{n:04}', 'w').close()"})
        names: list[str] = []
        cursor = None
        while True:
            page = await client.list_resources(cursor=cursor)
            assert len(page.resources) <= 500
            names += [resource.name for resource in page.resources]
            if not (cursor := page.next_cursor):
                break
        assert sorted(names) == [f"f{number:04}" for number in range(1203)]
        with pytest.raises(MCPError):
            await client.list_resources(cursor="nonsense")
