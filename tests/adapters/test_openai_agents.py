"""`OpenAIAgentsSandboxClient`: sessions for a `SandboxAgent`. The SDK's own tests are in conformance.py."""

from __future__ import annotations

import asyncio
import bz2
import gzip
import io
import lzma
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

from sandglass.adapters import OpenAIAgentsSandboxClient, openai_agents

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


def tar(*members: tarfile.TarInfo, **options: Any) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", **options) as archive:
        for member in members:
            archive.addfile(member, io.BytesIO(bytes(member.size)))
    return packed.getvalue()


def named(name: str, size: int = 0) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size = size
    return member


def with_size(size: bytes) -> bytes:
    """An archive of one file, whose header says that it has another size."""
    header = bytearray(tar(named("a")))
    header[124:136] = size
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header[:512])
    return bytes(header)


def with_header_of(size: bytes) -> bytes:
    """An archive with an extended header, which says that it has another size."""
    packed = bytearray(tar(named("b" * 200), format=tarfile.PAX_FORMAT))
    assert packed[156:157] == tarfile.XHDTYPE
    packed[124:136] = size
    packed[148:156] = b" " * 8
    packed[148:156] = b"%06o\0 " % sum(packed[:512])
    return bytes(packed)


def with_headers(headers: dict[str, str]) -> tarfile.TarInfo:
    member = named("a", 1)
    member.pax_headers = headers
    return member


def tar_and_gzip(bomb: bytes) -> bytes:
    """Bytes that are a tar archive for whoever looks for one, and a bomb for whoever looks for gzip first."""
    # The header of tar is in a field of gzip's header that unpackers skip.
    extra = 1024 - 12
    header = bytearray(named("x").tobuf().ljust(1024, b"\0"))
    header[:12] = b"\x1f\x8b\x08\x04" + bytes(6) + extra.to_bytes(2, "little")
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header[:512])
    return bytes(header) + gzip.compress(bomb)[10:]


@pytest.mark.parametrize(
    ("packed", "reason"),
    [
        (gzip.compress(tar(named("zeros", 50 << 20))), "it is compressed"),
        (bz2.compress(tar(named("zeros", 5 << 20))), "it is compressed"),
        (lzma.compress(tar(named("zeros", 5 << 20))), "it is compressed"),
        (b"no archive" * 100, "it is compressed, or no tar archive"),
        (with_size(b"\xff" * 12), "its size cannot be true"),  # -1: it leads back to itself
        (with_size(b"77777777777\0"), "its size cannot be true"),
        (tar(named("a"), named("b" * 200))[:1536], "it is damaged"),
        (tar(named("a"), pax_headers={"comment": "x" * 10_000}), "a header for all its files"),
        (tar(with_headers({f"{number}": "" for number in range(10_000)})), "a header in it is too large"),
        (with_header_of(b"\xff" * 11 + b"\x00"), "a header in it is too large"),  # less than 0: all the rest is read
        (tar(named("b" * 70_000), format=tarfile.GNU_FORMAT), "a header in it is too large"),
        (tar(*(with_headers({"a": "x" * 60_000}) for _ in range(5))), "a header in it is too large"),
        (tar(with_headers({"GNU.sparse.major": "1", "GNU.sparse.minor": "0"})), "a file with holes"),
        (tar(*(named(f"{number}") for number in range(12))), "more than 10 files"),
        (tar(named("big", 60_000)), "more than 50000 bytes"),
    ],
    ids=[
        "gzip",
        "bzip2",
        "xz",
        "text",
        "negative size",
        "holes",
        "cut",
        "global header",
        "header",
        "header below 0",
        "long name",
        "headers",
        "sparse",
        "many",
        "large",
    ],
)
async def test_an_archive_that_could_harm_this_process_is_refused(
    session: SandboxSession, packed: bytes, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openai_agents, "_MOST_MEMBERS", 10)
    monkeypatch.setattr(openai_agents, "_MOST_HEADERS", 200_000)
    if "bytes" in reason:
        monkeypatch.setattr(openai_agents, "_MOST_ARCHIVE", 50_000)
    with pytest.raises(WorkspaceArchiveWriteError, match=reason):
        await session.hydrate_workspace(io.BytesIO(packed))
    assert await content(session, "letter.txt") == b"sand"


async def test_an_archive_is_never_unpacked_in_this_process(
    session: SandboxSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    bomb = tar_and_gzip(b"no tar archive" * 100)
    with tarfile.open(fileobj=io.BytesIO(bomb), mode="r:") as archive:
        assert len(archive.getnames()) == 1
    assert gzip.decompress(bomb).startswith(b"no tar")

    def unpack(*_: Any, **__: Any) -> None:
        raise AssertionError("unpacked")

    monkeypatch.setattr(gzip.GzipFile, "read", unpack)
    await session.hydrate_workspace(io.BytesIO(bomb))


async def test_no_archive_of_a_harmed_guest_replaces_a_snapshot(tmp_path: Path) -> None:
    session = await CLIENT.create(manifest=Manifest(), snapshot=LocalSnapshotSpec(base_path=tmp_path))
    await session.start()
    await session.write(Path("a"), io.BytesIO(b"1"))
    await session.stop()
    (snapshot,) = tmp_path.glob("*.tar")
    good = snapshot.read_bytes()
    inner: Any = session._inner
    for code in ("b'' + b'x' * 1000", "__import__('gzip').compress(bytes(10_000))"):
        await inner._sandbox.execute(f"def pack_folder(*_): return {code}")
        with pytest.raises(WorkspaceArchiveReadError):
            await session.stop()
        assert snapshot.read_bytes() == good
    await CLIENT.delete(session)


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
