"""The guest's part of `DeepAgentsBackend` and `OpenAIAgentsSandboxClient`: programs, and files of any path.

It runs in the sandbox, where the adapters send its source. So it imports nothing of this package.
"""

import io
import os
import subprocess
import sys
import tarfile
import tempfile
from shutil import which
from typing import IO


def run_command(command: str, most_bytes: int) -> tuple[int, bytes, bool]:
    """Runs a shell command. Returns its exit code, the beginning of its output, and true if that is not all of it."""
    with tempfile.TemporaryFile() as output:
        code = ended([which("bash") or "sh", "-c", command], output, output)
        return code, *beginning(output, most_bytes)


def run_program(
    command: list[str], folder: str, variables: dict[str, str], most_bytes: int
) -> tuple[int, bytes, bytes, bool]:
    """Runs a program. Returns its exit code, the beginnings of its two outputs, and true if they are not all."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        try:
            code = ended(command, output, errors, folder, variables)
        except OSError as error:  # as shells do
            code = 127 if isinstance(error, FileNotFoundError) else 126
            errors.write(f"{error}\n".encode())
        (told, is_cut), (wrong, is_wrong_cut) = beginning(output, most_bytes), beginning(errors, most_bytes)
        return code, told, wrong, is_cut or is_wrong_cut


def ended(
    command: list[str],
    output: IO[bytes],
    errors: IO[bytes],
    folder: str | None = None,
    variables: dict[str, str] | None = None,
) -> int:
    """Runs a program to its end. Returns its exit code. The outputs are files: children would keep pipes open."""
    program = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=errors,
        cwd=folder,
        env={**os.environ, "PATH": search_path(), **(variables or {})},
        start_new_session=True,
    )
    try:
        return program.wait()
    except BaseException:  # the time is over
        os.killpg(program.pid, 9)
        program.wait()
        raise


def beginning(output: IO[bytes], most_bytes: int) -> tuple[bytes, bool]:
    """The beginning of a file, and true if that is not all of it."""
    size = output.seek(0, os.SEEK_END)
    output.seek(0)
    return output.read(most_bytes), size > most_bytes


def search_path() -> str:
    """The folders of programs. Ends with one in which `python` and `python3` are this Python."""
    folder = os.path.join(tempfile.gettempdir(), "sandglass-python")
    os.makedirs(folder, exist_ok=True)
    for name in ("python", "python3"):
        link = os.path.join(folder, name)
        if not os.path.lexists(link):
            os.symlink(sys.executable, link)
    return f"{os.environ.get('PATH', os.defpath)}:{folder}"


def read_path(path: str, most_bytes: int = -1) -> bytes | str:
    """The content of a file, or its beginning, or the code of an error."""
    try:
        with open(path, "rb") as file:
            return file.read(most_bytes)
    except OSError as error:
        return error_code(error)


def write_path(path: str, data: bytes) -> str | None:
    """Writes a file and makes its folders. Returns the code of an error."""
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)
    except OSError as error:
        return error_code(error)
    return None


def make_folder(path: str) -> str | None:
    """Makes a folder and those that it needs. Returns the code of an error."""
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        return error_code(error)
    return None


def pack_folder(folder: str, left_out: list[str]) -> bytes:
    """A tar archive of a folder. `left_out` are paths in it. A file with two names is there twice, not as a link."""

    def kept(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        path = os.path.normpath(member.name)
        if any(path == other or path.startswith(f"{other}/") for other in left_out):
            return None
        if member.islnk():
            member.type, member.linkname = tarfile.REGTYPE, ""
            member.size = os.lstat(os.path.join(folder, path)).st_size
        return member if member.isreg() or member.isdir() or member.issym() else None

    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.add(folder, arcname=".", filter=kept)
    return packed.getvalue()


def unpack_folder(folder: str, packed: bytes) -> None:
    """Writes the files of a tar archive, which the adapter has checked, into a folder."""
    with tarfile.open(fileobj=io.BytesIO(packed), mode="r:") as archive:
        archive.extraction_filter = lambda member, _: member
        archive.extractall(folder)


def error_code(error: OSError) -> str:
    """The name of an error among deepagents' `FileOperationError`, or else a text."""
    if isinstance(error, FileNotFoundError):
        return "file_not_found"
    if isinstance(error, PermissionError):
        return "permission_denied"
    if isinstance(error, IsADirectoryError):
        return "is_directory"
    return "invalid_path" if isinstance(error, (NotADirectoryError, FileExistsError)) else str(error)
