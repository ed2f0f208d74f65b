"""`DeepAgentsBackend`: a sandbox for LangChain's deepagents. Written for deepagents 0.7."""

from __future__ import annotations

from pathlib import Path
from threading import RLock
from typing import Any, Unpack, cast
from uuid import uuid4

from deepagents.backends.protocol import ExecuteResponse, FileDownloadResponse, FileUploadResponse
from deepagents.backends.sandbox import BaseSandbox

from sandglass.client import CodeExecution, Sandbox, SandboxError, SandboxOptions

#: The most bytes of a command's output.
_MOST_OUTPUT = 4 << 20
_TIMED_OUT = 124


class DeepAgentsBackend(BaseSandbox):
    """Shell commands and files of an agent, in a sandbox.

        agent = create_deep_agent(model=model, backend=DeepAgentsBackend(timeout=60_000))

    The options are those of `Sandbox`. `timeout` is the time of a command that names none. Commands begin in the
    working folder, `/workspace`. Besides, `/tmp` can be written.
    """

    def __init__(
        self, *, url: str | None = None, api_key: str | None = None, **options: Unpack[SandboxOptions]
    ) -> None:
        own: SandboxOptions = {"max_result_size": 2 * _MOST_OUTPUT}
        self.sandbox = Sandbox(url=url, api_key=api_key, **cast("SandboxOptions", {**own, **options}))
        self._id = f"sandglass-{uuid4().hex}"
        self._is_prepared = False
        #: An agent's tools run at the same time, and share the variables of the guest's part.
        self._turn = RLock()

    @property
    def id(self) -> str:
        """An identifier of its own."""
        return self._id

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Runs a shell command. `timeout` is in seconds. A command that takes longer ends with the exit code 124."""
        run = self._run(
            f"run_command(command, {_MOST_OUTPUT})", timeout=timeout * 1000 if timeout else None, command=command
        )
        match run.value:  # commands can harm the Python that starts them, so anything may come
            case [int() as code, bytes() as output, bool() as is_cut]:
                return ExecuteResponse(output.decode(errors="replace"), code, is_cut)
        said = run.error or "the sandbox gave no result"
        if run.state.status != "kept":
            said += "; the sandbox was started anew, and its files may be gone"
        return ExecuteResponse(f"Error: {said}", _TIMED_OUT if run.outcome == "timeout" else None)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Writes files, with the folders that they need."""
        return [FileUploadResponse(path, self._upload(path, data)) for path, data in files]

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Reads files."""
        return [self._download(path) for path in paths]

    def close(self) -> None:
        """Ends the sandbox. Its files are gone."""
        self.sandbox.destroy()

    def __enter__(self) -> DeepAgentsBackend:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _upload(self, path: str, data: bytes) -> str | None:
        if not path.startswith("/"):
            return "invalid_path"
        run = self._run("write_path(path, data)", path=path, data=bytes(data))
        error = run.error or run.value
        return None if error is None else str(error)

    def _download(self, path: str) -> FileDownloadResponse:
        if not path.startswith("/"):
            return FileDownloadResponse(path, error="invalid_path")
        with self._turn:
            run = self._run("data = read_path(path)", path=path)
            try:
                data = self.sandbox.get_variable("data") if run.error is None else run.error
            except SandboxError as error:  # it is too large
                data = str(error)
        if isinstance(data, bytes):
            return FileDownloadResponse(path, data)
        return FileDownloadResponse(path, error=str(data))

    def _run(self, code: str, timeout: float | None = None, **variables: Any) -> CodeExecution:
        with self._turn:
            if not self._is_prepared:
                self.sandbox.execute(Path(__file__).with_name("shell.py").read_text(encoding="utf-8"))
                self._is_prepared = True
            for name, value in variables.items():
                self.sandbox[name] = value
            run = self.sandbox.execute(code, timeout=timeout)
            self._is_prepared = run.state.status == "kept"
            return run
