"""`python -m sandglass --framing delimiter`: stateless runs over stdin and stdout, for clients attached to a container.

A request is JSON between the lines `>>> REQUEST_START <<<` and `>>> REQUEST_END <<<`. A response is JSON between `>>>
RESPONSE_START <<<` and `>>> RESPONSE_END <<<`. `>>> READY <<<` follows the preloaded imports.

A request has `code`, and optionally `state` (from an earlier response), `capture_state` (asks for the state in the
response) and `timeout` (seconds). A response has `stdout`, `stderr`, `exit_code`, `state`, `files`, `error`,
`state_error` and `state_lost`, as those of `POST /execute`.

Each request is run by a guest of its own, forked from this process. The guest has ended, with everything that it
started, before the response is written. A guest cannot forge a response: it lacks the client's descriptors, cannot open
them through this process, and a marker that it prints is text within a response's JSON. The container isolates the
guest from the machine.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import select
import signal
import socket
import sys
import time
from base64 import b64decode, b64encode
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

from sandglass.native import zygote
from sandglass.native.frames import FrameReader, pack_frame
from sandglass.native.guest import serve as serve_guest
from sandglass.runtime.output import STREAMS, KeptText
from sandglass.runtime.wire import VERSION
from sandglass.state.stateless import split_state

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sandglass.runtime.wire import (
        CaptureStateRequest,
        Event,
        ExecuteRequest,
        ExecutionReport,
        GuestConfig,
        OpenStateRequest,
        Request,
        Stream,
    )

READY = b">>> READY <<<\n"
_REQUEST_START, _REQUEST_END = b">>> REQUEST_START <<<", b">>> REQUEST_END <<<"
_RESPONSE_START, _RESPONSE_END = b">>> RESPONSE_START <<<\n", b"\n>>> RESPONSE_END <<<\n"
_MAX_REQUEST_BYTES = 256 << 20
_MAX_OUTPUT_CHARS = 50_000
_BOOT_SECONDS = 60.0
_GRACE_SECONDS = 1.0
_PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 4, 36
_TIMED_OUT = 124  # as in the command timeout(1)
_NO_VARIABLES = "the guest was ended, or nothing was run: error says why"
_NO_BASE64 = "StateError: the state is no base64; nothing was run"
_CONFIG: GuestConfig = {
    "maxOutputChars": _MAX_OUTPUT_CHARS,
    "maxValueBytes": 512 << 20,
    "maxMemoryBytes": 1 << 62,  # the container bounds memory
    "maxValueDepth": 200,
    "maxSourceCache": 8_000_000,
    "maxDisplays": 0,
    "maxDisplayBytes": 0,
    "maxDisplaysBytes": 0,
    "maxFileBytes": 1 << 40,
    "maxFiles": 100_000,
    "hostFunctions": [],
    "maxHostCalls": 0,
    "profile": "default",
    "outputFields": [],
    "maxResultBytes": 0,
}


class _Failed(Exception):
    """A request without a result. The message says why, and `code` is the exit code."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code


def serve(preload: str | None, timeout_s: float) -> NoReturn:
    """Answers requests until standard input ends.

    `PRELOAD_MODULES` names the imports if `preload` does not. `STATE_MAX_SIZE_MB` bounds states. With
    `REPL_ENABLED=false`, each guest is a new process that imports for itself, with the same answers.
    """
    fork = os.environ.get("REPL_ENABLED", "true").lower() not in ("false", "0", "no")
    max_state_bytes = int(float(os.environ.get("STATE_MAX_SIZE_MB", "50")) * (1 << 20))
    names = (os.environ.get("PRELOAD_MODULES", "") if preload is None else preload).split(",")
    requests, responses = _take_client()
    if fork:
        absent = []
        for name, why in zygote.preload([name.strip() for name in names if name.strip()]).items():
            if why.startswith("ModuleNotFoundError: "):
                absent.append(name)
            else:
                print(f"sandglass: {name} was not preloaded: {why}", file=sys.stderr)
        if absent:
            print(f"sandglass: not installed, and so not imported ahead: {', '.join(absent)}", file=sys.stderr)
        if left := zygote.threads():
            print(f"sandglass: guests lack threads that modules have started: {', '.join(left)}", file=sys.stderr)
    libc = ctypes.CDLL(None)
    # Keeps processes of the same user from opening this process's descriptors, and adopts a guest's orphans, to end
    # them.
    libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    zygote.become_quiet()
    responses.write(READY)
    responses.flush()
    for text in _frames(requests):
        try:
            response = _answer(text, timeout_s, max_state_bytes, fork, [requests.fileno(), responses.fileno()])
        except _Failed as failure:
            response = _failure(failure)
        responses.write(_RESPONSE_START + json.dumps(response).encode() + _RESPONSE_END)
        responses.flush()
    os._exit(0)


def _take_client() -> tuple[BinaryIO, BinaryIO]:
    """Moves the client's descriptors to numbers that nobody inherits. 0 and 1 lead nowhere from now on."""
    requests = os.fdopen(os.dup(0), "rb")
    responses = os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    return requests, responses


def _frames(file: BinaryIO) -> Iterator[bytes | None]:
    """Yields the texts of requests; None for one that is too long."""
    lines: list[bytes] | None = None
    size = 0
    while line := file.readline(_MAX_REQUEST_BYTES):
        mark = line.strip()
        if mark == _REQUEST_START:
            lines, size = [], 0
        elif mark == _REQUEST_END and lines is not None:
            yield b"".join(lines) if size <= _MAX_REQUEST_BYTES else None
            lines = None
        elif lines is not None:
            size += len(line)
            if size <= _MAX_REQUEST_BYTES:
                lines.append(line)


def _answer(
    text: bytes | None, timeout_s: float, max_state_bytes: int, fork: bool, client: list[int]
) -> dict[str, Any]:
    if text is None:
        raise _Failed(f"RequestError: a request may have {_MAX_REQUEST_BYTES} bytes; nothing was run")
    try:
        request = json.loads(text)
    except ValueError as error:
        raise _Failed(f"RequestError: the request is no JSON ({error}); nothing was run") from None
    if type(request) is not dict or type(request.get("code")) is not str:
        raise _Failed("RequestError: a request is an object with code, a string; nothing was run")
    state, timeout = request.get("state"), request.get("timeout", timeout_s)
    if not (state is None or type(state) is str):
        raise _Failed("RequestError: state is a string that an earlier response held; nothing was run")
    if type(timeout) not in (int, float) or not 0 < timeout <= 86_400:
        raise _Failed("RequestError: timeout is a number of seconds, up to 86400; nothing was run")
    capture = request.get("capture_state") is True
    guest = _Guest(fork, client)
    try:
        response = guest.run(request["code"], state, capture, float(timeout), max_state_bytes)
    except _Failed as failure:
        response = _failure(failure)
    finally:
        guest.end()
    if capture and response["state"] is None:
        response["state_error"] = response["state_error"] or _NO_VARIABLES
    return response


class _Guest:
    """A guest process for one request."""

    def __init__(self, fork: bool, client: list[int]) -> None:
        self._epoch = int.from_bytes(os.urandom(4), "little")
        self._socket, theirs = socket.socketpair()
        if fork:
            self._process = os.fork()
            if self._process == 0:
                try:
                    for fd in (*client, self._socket.detach()):
                        os.close(fd)
                    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)
                    os.setsid()
                    zygote.reseed()
                    serve_guest(theirs.detach(), self._epoch, False)
                finally:
                    os._exit(1)
        else:
            arguments = [sys.executable, "-c", "from sandglass.__main__ import main; main()"]
            arguments += ["--fd", str(theirs.fileno()), "--epoch", str(self._epoch)]
            theirs.set_inheritable(True)
            folder = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
            environment = os.environ | {"PYTHONPATH": folder}
            self._process = os.posix_spawn(sys.executable, arguments, environment, setsid=True)
        theirs.close()
        self._reader = FrameReader(self._receive, self._epoch)
        self._deadline = 0.0

    def run(
        self, code: str, state: str | None, capture: bool, timeout_s: float, max_state_bytes: int
    ) -> dict[str, Any]:
        timeout_ms = timeout_s * 1000
        self._deadline = time.monotonic() + _BOOT_SECONDS
        self._send({"type": "init", "version": VERSION, "config": _CONFIG, "restores": False})
        (ready, _), *_ = self._events()
        if ready["type"] != "ready":
            raise _Failed(f"GuestError: the guest did not start: {ready.get('message')}; nothing was run")
        if state:
            try:
                packed = b64decode(state, validate=True)
            except ValueError:
                raise _Failed(_NO_BASE64) from None
            ended, _ = self._ask(
                {"type": "openState", "exchange": 1, "maxBytes": max_state_bytes, "timeoutMs": timeout_ms}, packed
            )
            if ended["type"] != "done":
                raise _Failed(f"StateError: {ended.get('message', 'the state could not be opened')}")
        texts = {name: KeptText(_MAX_OUTPUT_CHARS) for name in STREAMS}
        try:
            ended, _ = self._ask(
                {"type": "execute", "exchange": 2, "execution": 1, "code": code, "timeoutMs": timeout_ms}, texts=texts
            )
        except _Failed as failure:
            return _failure(failure, texts["stdout"].text(), texts["stderr"].text())
        if ended["type"] != "executed":
            raise _Failed("GuestCrashed: the guest told no end of the code")
        response = _report(ended["execution"], {name: text.text() for name, text in texts.items()}, timeout_s)
        if capture:
            try:
                kept, body = self._ask(
                    {
                        "type": "captureState",
                        "exchange": 3,
                        "maxBytes": max_state_bytes,
                        "portable": False,
                        "direct": False,
                        "timeoutMs": timeout_ms,
                    }
                )
                why = None if kept["type"] == "value" else str(kept.get("message"))
                packed, left_out = split_state(body) if why is None else (b"", [])
            except (_Failed, ValueError) as failure:
                why = str(failure)
            if why is None:
                response["state"] = b64encode(packed).decode("ascii")
                response["state_lost"] = [{"name": name, "reason": reason} for name, reason in left_out]
            else:
                response["error"] = response["error"] or f"State serialization failed: {why}"
                response["state_error"] = why
        return response

    def end(self) -> None:
        """Ends the guest and all that it started. Its orphans are children of this process by now."""
        self._socket.close()
        os.kill(self._process, signal.SIGKILL)
        try:
            while os.waitpid(-1, 0)[0]:
                for child in _children():
                    os.kill(child, signal.SIGKILL)
        except ChildProcessError:
            return

    def _ask(
        self,
        request: OpenStateRequest | ExecuteRequest | CaptureStateRequest,
        *bodies: bytes,
        texts: dict[Stream, KeptText] | None = None,
    ) -> tuple[Event, bytes]:
        """Sends a request to the guest.

        Returns the event that ends the exchange. Raises `_Failed` when it comes too late.
        """
        timeout_s = request["timeoutMs"] / 1000
        self._deadline = time.monotonic() + timeout_s + _GRACE_SECONDS
        self._send(request, *bodies)
        while True:
            for event, body in self._events(timeout_s):
                if event["type"] == "output" and texts is not None:
                    texts[event["stream"]].add(event["skipped"], event["text"])
                    size = len(event["text"].encode("utf-8", "surrogatepass")) + 512
                    self._send({"type": "credit", "bytes": size})
                elif event["type"] in ("executed", "value", "done", "refused"):
                    return event, body
                elif event["type"] == "fatal":
                    raise _Failed(f"GuestCrashed: {event.get('message')}")

    def _send(self, request: Request, *bodies: bytes) -> None:
        try:
            self._socket.sendall(pack_frame(self._epoch, json.dumps(request).encode(), bodies))
        except OSError:
            raise _Failed("GuestCrashed: the guest ended") from None

    def _events(self, timeout_s: float = _BOOT_SECONDS) -> list[tuple[Event, bytes]]:
        try:
            header, bodies = self._reader.read()
            events = json.loads(header)
        except TimeoutError:
            raise _Failed(f"TimeoutError: stopped after {timeout_s:g} s", _TIMED_OUT) from None
        except Exception as error:
            raise _Failed(f"GuestCrashed: the guest ended ({error})") from None
        pieces = iter(bodies)
        return [(event, bytes(next(pieces, b"")) if event["type"] in ("value", "display") else b"") for event in events]

    def _receive(self, view: memoryview) -> int:
        left = self._deadline - time.monotonic()
        if left <= 0 or not select.select([self._socket], [], [], left)[0]:
            raise TimeoutError
        return self._socket.recv_into(view)


def _report(execution: ExecutionReport, texts: dict[Stream, str], timeout_s: float) -> dict[str, Any]:
    """Returns the response for a finished execution. `host/src/stateless.rs` has the same rules."""
    files = [file["path"] for file in execution.get("files", ()) if file.get("change") != "deleted"]
    if execution["stopped"] == "timeout":
        error = f"TimeoutError: stopped after {timeout_s:g} s"
        return _response(texts["stdout"], f"{texts['stderr']}{error}\n", _TIMED_OUT, error, files)
    if execution["ended"] == "ok":
        return _response(texts["stdout"], texts["stderr"], 0, None, files)
    error = texts["error"] or execution["errorType"] or ""
    traceback = texts["traceback"].replace('File "<cell 1>"', 'File "<string>"')
    lines = re.findall(r'File "<string>", line (\d+)', traceback)
    if execution["errorType"] in ("SyntaxError", "IndentationError", "TabError"):
        error = re.sub(r" \(<cell 1>, line \d+\)$", "", error)
        traceback = f"{error} (line {lines[-1]})" if lines else error
    return _response(texts["stdout"], texts["stderr"] + traceback.rstrip("\n"), 1, error, files)


def _failure(failure: _Failed, stdout: str = "", stderr: str = "") -> dict[str, Any]:
    return _response(stdout, f"{stderr}{failure}\n", failure.code, str(failure))


def _response(
    stdout: str, stderr: str, exit_code: int, error: str | None = None, files: list[str] | None = None
) -> dict[str, Any]:
    return {
        "stdout": stdout,
        "stderr": stderr,
        "exit_code": exit_code,
        "state": None,
        "files": files or [],
        "error": error,
        "state_error": None,
        "state_lost": [],
    }


def _children() -> list[int]:
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return [int(child) for child in file.read().split()]
