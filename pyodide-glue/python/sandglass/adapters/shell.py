"""The guest's part of `DeepAgentsBackend`: shell commands and files of any path.

It runs in the sandbox, where `deepagents.py` sends its source. So it imports nothing of this package.
"""

import os
import subprocess
import sys
import tempfile
from shutil import which


def run_command(command: str, most_bytes: int) -> tuple[int, bytes, bool]:
    """Runs a command. Returns its exit code, the beginning of its output, and true if that is not all of it."""
    with tempfile.TemporaryFile() as output:  # not a pipe: what stays in the background would keep it open
        shell = subprocess.Popen(
            [which("bash") or "sh", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PATH": search_path()},
            start_new_session=True,
        )
        try:
            code = shell.wait()
        except BaseException:  # the time is over
            os.killpg(shell.pid, 9)
            shell.wait()
            raise
        size = output.seek(0, os.SEEK_END)
        output.seek(0)
        return code, output.read(most_bytes), size > most_bytes


def search_path() -> str:
    """The folders of programs. Ends with one in which `python` and `python3` are this Python."""
    folder = os.path.join(tempfile.gettempdir(), "sandglass-python")
    os.makedirs(folder, exist_ok=True)
    for name in ("python", "python3"):
        link = os.path.join(folder, name)
        if not os.path.lexists(link):
            os.symlink(sys.executable, link)
    return f"{os.environ.get('PATH', os.defpath)}:{folder}"


def read_path(path: str) -> bytes | str:
    """The content of a file, or the code of an error."""
    try:
        with open(path, "rb") as file:
            return file.read()
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


def error_code(error: OSError) -> str:
    """The name of an error among deepagents' `FileOperationError`, or else a text."""
    if isinstance(error, FileNotFoundError):
        return "file_not_found"
    if isinstance(error, PermissionError):
        return "permission_denied"
    if isinstance(error, IsADirectoryError):
        return "is_directory"
    return "invalid_path" if isinstance(error, (NotADirectoryError, FileExistsError)) else str(error)
