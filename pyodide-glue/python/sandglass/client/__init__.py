"""`Sandbox`: programs in Python run untrusted Python in isolation, by the program `sandglass-host`.

- `sandbox.py`       `Sandbox`
- `asynchronous.py`  `AsyncSandbox`
- `notebook.py`      `Notebook` and `AsyncNotebook`
- `session.py`       what all ask the host for
- `options.py`       options, and how they are written in the wire
- `calls.py`         host functions, their approval, and the threads and context variables in which they run
- `execution.py`     results
- `connection.py`    requests of both sides, and blobs: JSON-RPC
- `transports.py`    the program of this machine, and the WebSocket of a server
- `program.py`       finds the program
- `values.py`        values as JSON
- `workers.py`       threads, and an event loop
- `errors.py`        `SandboxError`

Part of the wheel only. Guests start no sandboxes, so `crates/core/src/guest.rs` leaves this folder out.
"""

from sandglass.client.asynchronous import AsyncFiles, AsyncSandbox
from sandglass.client.calls import Answer, Approved, HostFunction, Tools, approve, call_id
from sandglass.client.errors import SandboxError
from sandglass.client.execution import (
    BudgetLeft,
    BudgetState,
    CapturedState,
    Cell,
    CodeExecution,
    CodeLine,
    Display,
    FileChange,
    FileInfo,
    HostCall,
    Lost,
    PendingCall,
    PendingExecution,
    PersistedSandbox,
    Replay,
    State,
    Truncated,
    Usage,
    Variable,
)
from sandglass.client.notebook import AsyncNotebook, Notebook
from sandglass.client.options import Budget, SandboxOptions
from sandglass.client.sandbox import Files, Sandbox
from sandglass.client.values import Array, Opaque, Table

__all__ = [
    "Answer",
    "Approved",
    "Array",
    "AsyncFiles",
    "AsyncNotebook",
    "AsyncSandbox",
    "Budget",
    "BudgetLeft",
    "BudgetState",
    "CapturedState",
    "Cell",
    "CodeExecution",
    "CodeLine",
    "Display",
    "FileChange",
    "FileInfo",
    "Files",
    "HostCall",
    "HostFunction",
    "Lost",
    "Notebook",
    "Opaque",
    "PendingCall",
    "PendingExecution",
    "PersistedSandbox",
    "Replay",
    "Sandbox",
    "SandboxError",
    "SandboxOptions",
    "State",
    "Table",
    "Tools",
    "Truncated",
    "Usage",
    "Variable",
    "approve",
    "call_id",
]
