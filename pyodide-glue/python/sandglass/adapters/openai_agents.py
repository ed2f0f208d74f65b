"""`OpenAIAgentsSandboxClient`: sandboxes for OpenAI's Agents SDK. Written for openai-agents 0.24."""

from __future__ import annotations

import asyncio
import io
import tarfile
from pathlib import Path
from typing import Any, Literal, Unpack, cast
from uuid import uuid4

from agents.sandbox import (
    ExecResult,
    ExecTimeoutError,
    ExecTransportError,
    Manifest,
    SnapshotSpec,
    User,
    WorkspaceArchiveReadError,
    WorkspaceArchiveWriteError,
    WorkspaceReadNotFoundError,
    resolve_snapshot,
)
from agents.sandbox.errors import MountConfigError, WorkspaceStartError
from agents.sandbox.session import (
    BaseSandboxClient,
    BaseSandboxSession,
    Dependencies,
    Instrumentation,
    SandboxSession,
    SandboxSessionState,
)
from agents.sandbox.session.runtime_helpers import RESOLVE_WORKSPACE_PATH_HELPER
from agents.sandbox.session.workspace_payloads import coerce_write_payload
from agents.sandbox.snapshot import SnapshotBase
from agents.sandbox.util.tar_utils import UnsafeTarMemberError, validate_tarfile
from agents.sandbox.workspace_paths import sandbox_path_str

from sandglass.client import AsyncSandbox, SandboxError, SandboxOptions

#: The most bytes of each output of a command.
_MOST_OUTPUT = 4 << 20
#: The most characters of the guest's reason for a failure.
_MOST_REASON = 200
#: The most bytes of an archive of a workspace, and the most files and folders in it.
_MOST_ARCHIVE = 1 << 30
_MOST_MEMBERS = 100_000
#: The most bytes of a header of such an archive, and of all. Parsed, they take up to 13 times as much memory.
_MOST_HEADER = 64 << 10
_MOST_HEADERS = 32 << 20
_HEADERS = frozenset(
    {tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK}
)
_SHELL = Path(__file__).with_name("shell.py")
_DEFAULT_ROOT = Manifest.model_fields["root"].default


class SandglassSessionState(SandboxSessionState):
    """The facts of a session that a later one starts with. The files are in its snapshot."""

    type: Literal["sandglass"] = "sandglass"


class OpenAIAgentsSandboxClient(BaseSandboxClient[None]):
    """Sandboxes for a `SandboxAgent`: its commands, and the files of its workspace.

        run_config = RunConfig(sandbox=SandboxRunConfig(client=OpenAIAgentsSandboxClient(timeout=60_000)))
        result = await Runner.run(agent, "Summarize the letters.", run_config=run_config)

    The options are those of `AsyncSandbox`, for each session. `timeout` is the time of a command that has none.
    """

    backend_id = "sandglass"
    supports_default_options = True

    def __init__(
        self,
        *,
        url: str | None = None,
        api_key: str | None = None,
        instrumentation: Instrumentation | None = None,
        dependencies: Dependencies | None = None,
        **options: Unpack[SandboxOptions],
    ) -> None:
        self._instrumentation = instrumentation or Instrumentation()
        self._dependencies = dependencies
        self._options: dict[str, Any] = {"url": url, "api_key": api_key, **options}
        AsyncSandbox(**self._options)  # raises for a mistake in the options

    async def create(
        self,
        *,
        snapshot: SnapshotSpec | SnapshotBase | None = None,
        manifest: Manifest | None = None,
        options: None = None,
    ) -> SandboxSession:
        """Makes a session. Its sandbox starts now, its workspace with the session's `start`."""
        if options is not None:
            raise TypeError(f"give the options to {type(self).__name__}, not a {type(options).__name__}")
        manifest = self._validate_manifest_for_create(manifest or Manifest())
        _check(manifest)
        session_id = uuid4()
        state = SandglassSessionState(
            session_id=session_id, manifest=manifest, snapshot=resolve_snapshot(snapshot, str(session_id))
        )
        session = SandglassSession(state, self._options)
        await session.open()
        return self._wrap_session(session, instrumentation=self._instrumentation)

    async def resume(self, state: SandboxSessionState) -> SandboxSession:
        """Makes a session from the state of another. The session's `start` restores its snapshot."""
        if not isinstance(state, SandglassSessionState):
            raise TypeError(f"{type(self).__name__} cannot resume a {type(state).__name__}")
        state.assert_path_grants_rebound()
        _check(state.manifest)
        state.workspace_root_ready = False
        session = SandglassSession(state, self._options)
        return self._wrap_session(session, instrumentation=self._instrumentation)

    async def delete(self, session: SandboxSession) -> SandboxSession:
        """Ends the session's sandbox. Its files are gone, but for the snapshot."""
        await session.shutdown()
        return session

    def deserialize_session_state(self, payload: dict[str, object]) -> SandboxSessionState:
        """Reads a session's state that was written as JSON."""
        return self._deserialize_session_state_payload(payload, SandglassSessionState)


class SandglassSession(BaseSandboxSession):
    """A session of an `OpenAIAgentsSandboxClient`. Its commands run one after the other."""

    state: SandglassSessionState

    def __init__(self, state: SandglassSessionState, options: dict[str, Any]) -> None:
        self.state = state
        self._options = options
        self._sandbox: AsyncSandbox | None = None
        self._turn = asyncio.Lock()

    async def open(self) -> None:
        """Starts the sandbox, if there is none. The workspace is its working folder, if the manifest names no other."""
        async with self._turn:
            if self._sandbox is not None:
                return
            sandbox = AsyncSandbox(**self._options)
            run = await sandbox.execute(f"{_SHELL.read_text(encoding='utf-8')}\nos.getcwd()")
            if not isinstance(run.value, str):
                raise WorkspaceStartError(path=self._root, message=f"the sandbox did not start: {run.error}")
            self._sandbox = sandbox
            if self.state.manifest.root == _DEFAULT_ROOT:
                self.state.manifest = self.state.manifest.model_copy(update={"root": run.value})

    # ---- the life of the session ----

    async def running(self) -> bool:
        """True from the start of the sandbox to its end."""
        return self._sandbox is not None

    async def _ensure_backend_started(self) -> None:
        await self.open()

    async def _prepare_backend_workspace(self) -> None:
        problem = await self._ask("make_folder", self._root.as_posix())
        if problem is not None:
            message = (
                f"the workspace {self._root} cannot be made ({_shown(problem)}): use /workspace, or a folder of /tmp"
            )
            raise WorkspaceStartError(path=self._root, message=message)

    async def _after_start_failed(self) -> None:
        await self._shutdown_backend()

    async def _shutdown_backend(self) -> None:
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            await sandbox.destroy()

    async def _validate_manifest_application(self, *, manifest: Manifest | None = None, **options: Any) -> None:
        await super()._validate_manifest_application(manifest=manifest, **options)
        _check(manifest or self.state.manifest)

    # ---- commands ----

    def _prepare_exec_command(
        self, *command: str | Path, shell: bool | list[str], user: str | User | None
    ) -> list[str]:
        _check_user(user)
        # A login shell would replace PATH, which has Python's folder.
        return cast(
            "list[str]",
            super()._prepare_exec_command(*command, shell=["sh", "-c"] if shell is True else shell, user=None),
        )

    async def _exec_internal(self, *command: str | Path, timeout: float | None = None) -> ExecResult:
        variables = await self.state.manifest.environment.resolve()
        argv = [str(part) for part in command]
        try:
            found = await self._ask(
                "run_program", argv, self._root.as_posix(), variables, _MOST_OUTPUT, timeout=timeout
            )
        except TimeoutError as error:
            raise ExecTimeoutError(command=command, timeout_s=timeout, context={"reason": str(error)}) from error
        except _Failed as error:
            raise ExecTransportError(command=command, message=str(error), cause=error) from error
        match found:  # commands can harm the Python that starts them, so anything may come
            case [int() as code, bytes() as stdout, bytes() as stderr, bool() as is_cut]:
                if is_cut:
                    stderr += f"\n[output beyond {_MOST_OUTPUT} bytes is left out]\n".encode()
                return ExecResult(stdout=stdout, stderr=stderr, exit_code=code)
        raise ExecTransportError(command=command, message="the sandbox gave no result: its Python is harmed")

    # ---- files ----

    async def _validate_path_access(self, path: Path | str, *, for_write: bool = False) -> Path:
        return Path(await self._validate_remote_path_access(path, for_write=for_write))

    def _runtime_helpers(self) -> Any:
        return (RESOLVE_WORKSPACE_PATH_HELPER,)

    async def read(self, path: Path, *, user: str | User | None = None) -> io.IOBase:
        """Reads a file."""
        _check_user(user)
        return io.BytesIO(await self._read(path, -1))

    async def _read_bounded(self, path: Path, *, max_bytes: int) -> bytes:
        return await self._read(path, max_bytes)

    async def write(self, path: Path, data: io.IOBase, *, user: str | User | None = None) -> None:
        """Writes a file, with the folders that it needs."""
        _check_user(user)
        content = coerce_write_payload(path=path, data=data).stream.read()
        inside = await self._validate_path_access(path, for_write=True)
        try:
            problem = await self._ask("write_path", sandbox_path_str(inside), data=content)
        except (TimeoutError, _Failed) as error:
            raise WorkspaceArchiveWriteError(path=inside, message=f"{inside}: {error}", cause=error) from error
        if problem is not None:
            raise WorkspaceArchiveWriteError(path=inside, message=f"{inside} cannot be written: {_shown(problem)}")

    async def persist_workspace(self) -> io.IOBase:
        """The workspace as a tar archive."""
        left_out = sorted(path.as_posix() for path in self._persist_workspace_skip_relpaths())
        packed = await self._bytes(self._root, "pack_folder", self._root.as_posix(), left_out)
        try:  # what is no archive must not replace the last snapshot
            await asyncio.to_thread(_check_archive, packed)
        except UnsafeTarMemberError as error:
            context = {"reason": _shown(error.reason), "member": _shown(error.member)}
            raise WorkspaceArchiveReadError(path=self._root, context=context, cause=error) from error
        return io.BytesIO(packed)

    async def hydrate_workspace(self, data: io.IOBase) -> None:
        """Writes the files of such an archive. It is unpacked in the sandbox, and cannot lead out of there."""
        packed = coerce_write_payload(path=self._root, data=data).stream.read(_MOST_ARCHIVE + 1)
        try:
            await asyncio.to_thread(_check_archive, packed)
            await self._ask("unpack_folder", self._root.as_posix(), data=packed)
        except UnsafeTarMemberError as error:
            context = {"reason": _shown(error.reason), "member": _shown(error.member)}
            message = f"the archive is refused: {_shown(error.reason)}"
            raise WorkspaceArchiveWriteError(path=self._root, message=message, context=context, cause=error) from error
        except (TimeoutError, _Failed) as error:
            raise WorkspaceArchiveWriteError(path=self._root, message=str(error), cause=error) from error

    def _should_compute_snapshot_fingerprint_on_persist(self) -> bool:
        return False  # no sandbox outlives its session, so there is nothing to compare with

    async def _read(self, path: Path, most_bytes: int) -> bytes:
        inside = await self._validate_path_access(path)
        return await self._bytes(path, "read_path", sandbox_path_str(inside), most_bytes)

    async def _bytes(self, path: Path, function: str, *arguments: Any) -> bytes:
        try:
            found = await self._ask(function, *arguments)
        except (TimeoutError, _Failed) as error:
            raise WorkspaceArchiveReadError(path=path, context={"reason": str(error)}, cause=error) from error
        if found == "file_not_found":
            raise WorkspaceReadNotFoundError(path=path)
        if not isinstance(found, bytes):
            raise WorkspaceArchiveReadError(path=path, context={"reason": _shown(found)})
        return found

    # ---- the sandbox ----

    @property
    def _root(self) -> Path:
        return Path(self._workspace_root_path())

    async def _ask(
        self, function: str, *arguments: Any, data: bytes | None = None, timeout: float | None = None
    ) -> Any:
        """Calls a function of the guest's part. Raises TimeoutError, or _Failed."""
        async with self._turn:
            if self._sandbox is None:
                raise _Failed("the sandbox has ended: start a session, from a snapshot to have the files again")
            try:
                await self._sandbox.set_variable("arguments", list(arguments))
                if data is not None:
                    await self._sandbox.set_variable("data", data)
                call = f"{function}(*arguments)" if data is None else f"{function}(*arguments, data)"
                run = await self._sandbox.execute(f"found = {call}", timeout=timeout and timeout * 1000)
                if run.error is None:
                    return await self._sandbox.get_variable("found")
            except SandboxError as error:
                raise _Failed(str(error)) from error
            if run.state.status == "kept":
                raise TimeoutError(run.error) if run.outcome == "timeout" else _Failed(run.error)
            await self._shutdown_backend()  # and not a new one without the files
            reason = run.error.partition(";")[0]
            raise _Failed(f"{reason}; the sandbox has ended, and its files since the last snapshot are gone")


class _Failed(Exception):
    """A call of the guest's part that has failed."""


def _check(manifest: Manifest) -> None:
    """Raises for the parts of a manifest that a sandbox cannot have."""
    if manifest.users or manifest.groups:
        raise ValueError("a sandbox has one user: leave out the manifest's users and groups")
    if any(grant.host_path is not None for grant in manifest.extra_path_grants):
        raise ValueError("a sandbox has no files of this machine: leave out host_path, and copy files by LocalDir")
    if any(manifest.mount_targets()):
        message = "a sandbox has no network, and can mount nothing: copy files by LocalDir"
        raise MountConfigError(message=message)


def _check_archive(packed: bytes) -> None:
    """Raises UnsafeTarMemberError unless this is a tar archive of a workspace. Unpacks nothing: a guest made it."""
    if len(packed) > _MOST_ARCHIVE:
        raise _unsafe(f"it has more than {_MOST_ARCHIVE} bytes")
    try:
        archive = tarfile.open(fileobj=io.BytesIO(packed), mode="r:", tarinfo=_bounded())  # noqa: SIM115
    except (tarfile.TarError, OSError) as error:
        raise _unsafe("it is compressed, or no tar archive: give an uncompressed one") from error
    try:
        count = size = 0
        while (member := archive.next()) is not None:
            count, size = count + 1, size + member.size
            if count > _MOST_MEMBERS:
                raise _unsafe(f"it has more than {_MOST_MEMBERS} files and folders")
            # Less than nothing would lead back in the archive; more than all is a file with holes.
            if not 0 <= member.size <= size <= len(packed):
                raise UnsafeTarMemberError(member=member.name, reason="its size cannot be true")
            if archive.pax_headers:  # each member would get a copy
                raise _unsafe("it has a header for all its files")
        validate_tarfile(archive)
    except UnsafeTarMemberError:
        raise
    except Exception as error:  # of any kind: a hostile header can bring tarfile to raise what it does not document
        raise _unsafe("it is damaged") from error


def _bounded() -> type[tarfile.TarInfo]:
    """Members of one archive, whose headers are refused before they are parsed if they are large."""
    total = 0

    class Bounded(tarfile.TarInfo):
        @classmethod
        def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Bounded:
            nonlocal total
            member = super().frombuf(buf, encoding, errors)
            if member.type in _HEADERS:
                total += member.size
                # Of less than nothing, tarfile reads all the rest.
                if not 0 <= member.size <= _MOST_HEADER or total > _MOST_HEADERS:
                    raise _unsafe("a header in it is too large")
            return member

        def _proc_gnusparse_10(self, *_: object) -> None:  # it would read as many numbers as the guest likes
            raise _unsafe("it has a file with holes")

    return Bounded


def _unsafe(reason: str) -> UnsafeTarMemberError:
    return UnsafeTarMemberError(member="<archive>", reason=reason)


def _shown(problem: object) -> str:
    return str(problem)[:_MOST_REASON]  # the guest's word


def _check_user(user: str | User | None) -> None:
    if user is not None:
        raise ValueError("a sandbox has one user: leave out user and run_as")
