"""`OpenAIAgentsSandboxClient`: sessions for a `SandboxAgent`. The SDK's own tests are in conformance.py."""

from __future__ import annotations

import asyncio
import io
import os
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from agents import Runner
from agents.run import RunConfig
from agents.sandbox import (
    Dir,
    ExecTimeoutError,
    ExecTransportError,
    ExposedPortUnavailableError,
    LocalSnapshotSpec,
    Manifest,
    SandboxAgent,
    SandboxPathGrant,
    SandboxRunConfig,
    User,
    WorkspaceArchiveReadError,
    WorkspaceArchiveWriteError,
    WorkspaceReadNotFoundError,
)
from agents.sandbox.entries import File, InContainerMountStrategy, RcloneMountPattern, S3Mount
from agents.sandbox.errors import InvalidManifestPathError, MountConfigError, WorkspaceStartError
from agents.sandbox.manifest import Environment
from agents.sandbox.session import SandboxSession
from agents.testing import ScriptedModel, assistant_message, function_call

from sandglass.adapters import OpenAIAgentsSandboxClient

CLIENT = OpenAIAgentsSandboxClient(timeout=20_000)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def session() -> AsyncIterator[SandboxSession]:
    manifest = Manifest(
        environment=Environment(value={"YEAR": "1987"}),
        entries={"letter.txt": File(content=b"sand"), "in": Dir(children={"a.txt": File(content=b"a")})},
        extra_path_grants=(SandboxPathGrant(path="/tmp/granted"),),
    )
    async with await CLIENT.create(manifest=manifest) as session:
        yield session
    await CLIENT.delete(session)


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def output(session: SandboxSession, command: str) -> str:
    done = await session.exec(command)
    assert done.exit_code == 0, done.stderr
    return done.stdout.decode()


async def content(session: SandboxSession, path: str) -> bytes:
    with await session.read(Path(path)) as file:
        return file.read()


async def test_an_agent_works_in_its_workspace() -> None:
    model = ScriptedModel(
        [
            [function_call("exec_command", {"cmd": "echo 'print(0)' > count.py; pwd"}, call_id="1")],
            [function_call("exec_command", {"cmd": "python3 count.py", "workdir": "."}, call_id="2")],
            [assistant_message("4")],
        ]
    )
    agent = SandboxAgent(
        name="clerk", model=model, default_manifest=Manifest(entries={"letter.txt": File(content=b"sand")})
    )
    config = RunConfig(sandbox=SandboxRunConfig(client=CLIENT), tracing_disabled=True)
    result = await Runner.run(agent, "How long is letter.txt?", run_config=config)
    assert result.final_output == "4"
    outputs = [item["output"] for item in model.last_call.input if item.get("type") == "function_call_output"]
    assert outputs[0].endswith("Output:\n/workspace\n") and outputs[1].endswith("exited with code 0\nOutput:\n0\n")
    names = {tool.name for tool in model.last_call.tools}
    assert "exec_command" in names and "write_stdin" not in names


async def test_a_command_has_its_exit_code_and_its_two_outputs(session: SandboxSession) -> None:
    done = await session.exec("pwd; echo $YEAR; cat; echo wrong >&2; exit 3")
    assert (done.stdout, done.stderr, done.exit_code) == (b"/workspace\n1987\n", b"wrong\n", 3)
    assert await output(session, "cat letter.txt in/a.txt; python -c 'print(1)'") == "sanda1\n"
    done = await session.exec("printf", "%s", "a 'b'", shell=False)
    assert done.stdout == b"a 'b'"
    done = await session.exec("nothing-of-this-name", shell=False)
    assert done.exit_code == 127 and b"nothing-of-this-name" in done.stderr
    done = await session.exec("head -c 5000000 /dev/zero")
    assert len(done.stdout) == 4 << 20 and b"beyond 4194304 bytes is left out" in done.stderr


async def test_commands_that_come_at_once_run_one_after_the_other(session: SandboxSession) -> None:
    dones = await asyncio.gather(*(session.exec(f"echo {n} >> order; tail -n 1 order") for n in range(8)))
    assert [done.stdout for done in dones] == [f"{n}\n".encode() for n in range(8)]


async def test_a_command_that_takes_too_long_ends_with_its_children(session: SandboxSession) -> None:
    with pytest.raises(ExecTimeoutError) as raised:
        await session.exec("echo $$ > /tmp/shell; sleep 1000 | cat", timeout=1)
    assert raised.value.timeout_s == 1
    assert (await session.exec("kill -0 -$(cat /tmp/shell)")).exit_code != 0
    assert await content(session, "letter.txt") == b"sand"


async def test_a_command_that_is_cancelled_ends(session: SandboxSession) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(session.exec("echo $$ > /tmp/cancelled; sleep 1000", timeout=900), 0.5)
    assert (await session.exec("[ ! -e /tmp/cancelled ] || ! kill -0 -$(cat /tmp/cancelled)")).exit_code == 0
    assert await content(session, "letter.txt") == b"sand"


async def test_files(session: SandboxSession) -> None:
    data = bytes(range(256)) * 5000
    await session.write(Path("new/folder/data"), io.BytesIO(data))
    assert await content(session, "/workspace/new/folder/data") == data
    assert await session.read_bounded(Path("new/folder/data"), max_bytes=3) == data[:3]
    assert [entry.path for entry in await session.ls("new")] == ["/workspace/new/folder"]
    await session.mv("new/folder/data", "moved")
    await session.rm("new", recursive=True)
    with pytest.raises(WorkspaceReadNotFoundError):
        await session.read(Path("new/folder/data"))
    with pytest.raises(WorkspaceArchiveReadError):
        await session.read(Path("in"))
    with pytest.raises(WorkspaceArchiveWriteError, match="is_directory"):
        await session.write(Path("in"), io.BytesIO(b""))


async def test_files_outside_of_the_workspace_need_a_grant(session: SandboxSession) -> None:
    await session.exec("ln -s /etc out; ln -s /etc/passwd users")
    for path in ("../etc/passwd", "/etc/passwd", "out/passwd", "users"):
        with pytest.raises(InvalidManifestPathError):
            await session.read(Path(path))
    with pytest.raises(InvalidManifestPathError):
        await session.write(Path("out/new"), io.BytesIO(b""))
    await session.write(Path("/tmp/granted/a"), io.BytesIO(b"1"))
    assert await content(session, "/tmp/granted/a") == b"1"


async def test_a_patch_and_an_archive(session: SandboxSession) -> None:
    await session.apply_patch({"type": "create_file", "path": "poem", "diff": "+sand\n+glass"})
    await session.apply_patch({"type": "update_file", "path": "poem", "diff": "@@\n sand\n-glass\n+grain"})
    assert await content(session, "poem") == b"sand\ngrain"
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.add(__file__, "deep/test.py")
    packed.seek(0)
    await session.extract("data.tar", packed)
    assert await content(session, "deep/test.py") == Path(__file__).read_bytes()


async def test_a_later_session_has_the_snapshot(tmp_path: Path) -> None:
    manifest = Manifest(entries={"kept": File(content=b"1"), "fleeting": File(content=b"2", ephemeral=True)})
    first = await CLIENT.create(manifest=manifest, snapshot=LocalSnapshotSpec(base_path=tmp_path))
    async with first:
        await first.exec(
            "echo changed > kept; ln kept same; ln -s kept near; ln -s /usr/bin/env far; mkfifo pipe; mkdir -m 700 own;"
            "echo x > own/x; chmod 750 own/x"
        )
        first.register_persist_workspace_skip_path("own/skipped")
        await first.write(Path("own/skipped/y"), io.BytesIO(b""))
        payload = CLIENT.serialize_session_state(first.state)
    await CLIENT.delete(first)
    assert not await first.running()
    packed = next(tmp_path.glob("*.tar"))
    with tarfile.open(packed) as archive:
        assert not any(member.islnk() for member in archive)
        assert not {"./fleeting", "./pipe", "./own/skipped"} & set(archive.getnames())

    async with await CLIENT.resume(CLIENT.deserialize_session_state(payload)) as second:
        assert await output(second, "ls -A | sort | xargs") == "far fleeting kept near own same\n"
        assert await output(second, "cat kept same near; readlink far; stat -c %a own own/x") == (
            "changed\nchanged\nchanged\n/usr/bin/env\n700\n750\n"
        )
    await CLIENT.delete(second)


async def test_a_hostile_archive_is_refused(session: SandboxSession) -> None:
    for name in ("../up", "/tmp/absolute"):
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            archive.addfile(tarfile.TarInfo(name))
        packed.seek(0)
        with pytest.raises(WorkspaceArchiveWriteError):
            await session.hydrate_workspace(packed)


async def test_a_sandbox_that_ends_leaves_its_last_snapshot(tmp_path: Path) -> None:
    session = await CLIENT.create(manifest=Manifest(), snapshot=LocalSnapshotSpec(base_path=tmp_path))
    await session.start()
    await session.write(Path("a"), io.BytesIO(b"1"))
    await session.stop()
    await session.write(Path("a"), io.BytesIO(b"2"))
    with pytest.raises(ExecTransportError, match="signal 9; the sandbox has ended, and its files since"):
        await session.exec("kill -9 $PPID; sleep 1000")
    assert not await session.running()
    with pytest.raises(ExecTransportError, match="the sandbox has ended: start"):
        await session.exec("true")
    with pytest.raises(WorkspaceArchiveReadError):
        await session.stop()  # the workspace is gone, and an empty one is no snapshot of it
    await session.start()
    assert await session.running() and await content(session, "a") == b"1"
    await CLIENT.delete(session)


async def test_python_that_is_harmed_is_noticed() -> None:
    async with await CLIENT.create() as session:
        inner: Any = session._inner
        await inner._sandbox.execute("def run_program(*_): return ['0', 1]")
        with pytest.raises(ExecTransportError, match="its Python is harmed"):
            await session.exec("true")


@pytest.mark.parametrize(
    ("manifest", "kind", "reason"),
    [
        (Manifest(users=[User(name="sam")]), ValueError, "one user"),
        (Manifest(extra_path_grants=(SandboxPathGrant(path="/data", host_path="/srv"),)), ValueError, "host_path"),
        (
            Manifest(
                entries={
                    "bucket": S3Mount(
                        bucket="b", mount_strategy=InContainerMountStrategy(pattern=RcloneMountPattern(mode="fuse"))
                    )
                }
            ),
            MountConfigError,
            "no network",
        ),
    ],
)
async def test_a_manifest_with_what_a_sandbox_cannot_have_is_refused(
    manifest: Manifest, kind: type[Exception], reason: str
) -> None:
    with pytest.raises(kind, match=reason):
        await CLIENT.create(manifest=manifest)


async def test_what_a_sandbox_cannot_do_is_refused(session: SandboxSession) -> None:
    for attempt in (
        session.exec("id", user="sam"),
        session.read(Path("letter.txt"), user="sam"),
        session.write(Path("letter.txt"), io.BytesIO(b""), user=User(name="sam")),
    ):
        with pytest.raises(ValueError, match="one user"):
            await attempt
    with pytest.raises(NotImplementedError):
        await session.pty_exec_start("sh", tty=True)
    with pytest.raises(ExposedPortUnavailableError):
        await session.resolve_exposed_port(80)
    with pytest.raises(TypeError, match="give the options to OpenAIAgentsSandboxClient"):
        await CLIENT.create(options={"exposed_ports": (80,)})
    with pytest.raises(TypeError, match="did you mean 'timeout'"):
        OpenAIAgentsSandboxClient(timeouts=1)  # type: ignore[call-arg]


async def test_the_workspace_may_be_another_folder() -> None:
    async with await CLIENT.create(manifest=Manifest(root="/tmp/project")) as session:
        assert await output(session, "pwd") == "/tmp/project\n"
    await CLIENT.delete(session)
    session = await CLIENT.create(manifest=Manifest(root="/usr/project"))
    with pytest.raises(
        WorkspaceStartError, match="/usr/project cannot be made .*: use /workspace, or a folder of /tmp"
    ):
        await session.start()
    assert not await session.running()


async def test_without_isolation_the_workspace_is_the_working_folder() -> None:
    client = OpenAIAgentsSandboxClient(backend="subprocess")
    async with await client.create() as session:
        root = session.state.manifest.root
        assert await output(session, "pwd") == f"{root}\n" and os.path.samefile(root, root) and root != "/workspace"
    await client.delete(session)
