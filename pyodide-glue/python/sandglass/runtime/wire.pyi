# The wire between host and guest. Made of crates/core/src/protocol.rs by `cargo test -p sandglass-core --lib python`.

from typing import Literal, NotRequired, TypeAlias, TypedDict

VERSION: Literal[11]

Change: TypeAlias = Literal["created", "modified", "deleted"]

ColumnKind: TypeAlias = Literal["number", "text", "time", "bool", "other"]

class ColumnSample(TypedDict):
    distinct: int
    nulls: int
    rows: int
    texts: list[str]

Encoding: TypeAlias = Literal["none", "missing", "text", "bytes", "file", "marshal", "tagged"]

Ended: TypeAlias = Literal["ok", "error", "limit"]

class ExecutionReport(TypedDict):
    ended: Ended
    errorType: NotRequired[str | None]
    files: NotRequired[list[FileChange]]
    final: bool
    mark: NotRequired[int | None]
    names: NotRequired[list[str] | None]
    omittedDisplays: NotRequired[int]
    omittedFiles: NotRequired[int]
    stopped: NotRequired[StopReason | None]

class FileChange(TypedDict):
    change: Change
    path: str
    size: float

class GuestConfig(TypedDict):
    hostFunctions: list[str]
    maxDisplayBytes: float
    maxDisplays: int
    maxDisplaysBytes: float
    maxFileBytes: float
    maxFiles: int
    maxHostCalls: int
    maxMemoryBytes: float
    maxOutputChars: int
    maxResultBytes: float
    maxSourceCache: int
    maxValueBytes: float
    maxValueDepth: int
    outputFields: list[str]
    profile: Profile

class GuestInfo(TypedDict):
    bridge: str
    pyodide: NotRequired[str | None]
    python: str
    softInterrupt: bool

class LostVariable(TypedDict):
    name: str
    reason: str

Profile: TypeAlias = Literal["default", "rlm", "rlm-legacy", "rlm-core", "dspy"]

ReplyStatus: TypeAlias = Literal["ok", "error", "timeout", "limit"]

class Step(TypedDict):
    code: str
    execution: int
    mark: int

StopReason: TypeAlias = Literal["timeout", "wallTimeout", "budget", "interrupt"]

Stream: TypeAlias = Literal["stdout", "stderr", "result", "error", "traceback"]

class SurveyedColumn(TypedDict):
    kind: ColumnKind
    name: str
    sample: NotRequired[ColumnSample | None]

class SurveyedVariable(TypedDict):
    columns: list[SurveyedColumn]
    length: NotRequired[int | None]
    memory: NotRequired[int | None]
    name: str
    type: str

class WheelFile(TypedDict):
    fileName: str
    isLibrary: bool

class InitRequest(TypedDict):
    config: GuestConfig
    restores: bool
    type: Literal["init"]
    version: int

class ExecuteRequest(TypedDict):
    ahead: NotRequired[bool]
    code: str
    exchange: int
    execution: int
    explores: NotRequired[bool]
    more: NotRequired[bool]
    noted: NotRequired[bool]
    timeoutMs: float
    type: Literal["execute"]

class ExtendRequest(TypedDict):
    exchange: int
    last: NotRequired[bool]
    text: str
    type: Literal["extend"]

class CheckRequest(TypedDict):
    check: int
    code: str
    type: Literal["check"]

class SurveyRequest(TypedDict):
    survey: int
    type: Literal["survey"]

class PingRequest(TypedDict):
    ping: int
    type: Literal["ping"]

class GetVariableRequest(TypedDict):
    exchange: int
    name: str
    timeoutMs: float
    type: Literal["getVariable"]

class SetVariableRequest(TypedDict):
    encoding: Encoding
    exchange: int
    name: str
    timeoutMs: float
    type: Literal["setVariable"]

class ConfigureRequest(TypedDict):
    exchange: int
    hostFunctions: list[str]
    outputFields: list[str]
    timeoutMs: float
    type: Literal["configure"]

class ListVariablesRequest(TypedDict):
    exchange: int
    timeoutMs: float
    type: Literal["listVariables"]

class WriteFileRequest(TypedDict):
    exchange: int
    path: str
    timeoutMs: float
    type: Literal["writeFile"]

class ReadFileRequest(TypedDict):
    exchange: int
    path: str
    text: bool
    timeoutMs: float
    type: Literal["readFile"]

class ListFilesRequest(TypedDict):
    exchange: int
    path: str
    timeoutMs: float
    type: Literal["listFiles"]

class RemoveFileRequest(TypedDict):
    exchange: int
    path: str
    timeoutMs: float
    type: Literal["removeFile"]

class OpenStateRequest(TypedDict):
    exchange: int
    maxBytes: float
    timeoutMs: float
    type: Literal["openState"]

class CaptureStateRequest(TypedDict):
    direct: bool
    exchange: int
    maxBytes: float
    portable: bool
    timeoutMs: float
    type: Literal["captureState"]

class CellFileRequest(TypedDict):
    exchange: int
    path: str
    timeoutMs: float
    type: Literal["cellFile"]

class PromoteRequest(TypedDict):
    exchange: int
    rest: NotRequired[str | None]
    type: Literal["promote"]

class LookRequest(TypedDict):
    exchange: int
    path: str
    timeoutMs: float
    type: Literal["look"]

class HostReplyRequest(TypedDict):
    call: int
    encoding: Encoding
    message: NotRequired[str | None]
    status: ReplyStatus
    type: Literal["hostReply"]

class SaveRequest(TypedDict):
    checkpoint: int
    full: bool
    type: Literal["save"]

class RestoreRequest(TypedDict):
    checkpoint: int
    exchange: int
    steps: NotRequired[list[Step]]
    timeoutMs: float
    type: Literal["restore"]

class InstallRequest(TypedDict):
    exchange: int
    maxBytes: float
    timeoutMs: float
    type: Literal["install"]
    wheels: list[WheelFile]

class InterruptRequest(TypedDict):
    exchange: int
    reason: StopReason
    type: Literal["interrupt"]

class PartRequest(TypedDict):
    encoding: Encoding
    type: Literal["part"]

class CreditRequest(TypedDict):
    bytes: float
    type: Literal["credit"]

Request: TypeAlias = (
    InitRequest
    | ExecuteRequest
    | ExtendRequest
    | CheckRequest
    | SurveyRequest
    | PingRequest
    | GetVariableRequest
    | SetVariableRequest
    | ConfigureRequest
    | ListVariablesRequest
    | WriteFileRequest
    | ReadFileRequest
    | ListFilesRequest
    | RemoveFileRequest
    | OpenStateRequest
    | CaptureStateRequest
    | CellFileRequest
    | PromoteRequest
    | LookRequest
    | HostReplyRequest
    | SaveRequest
    | RestoreRequest
    | InstallRequest
    | InterruptRequest
    | PartRequest
    | CreditRequest
)

class ReadyEvent(TypedDict):
    guest: GuestInfo
    type: Literal["ready"]
    version: int

class BootFailedEvent(TypedDict):
    message: str
    type: Literal["bootFailed"]

class OutputEvent(TypedDict):
    exchange: int
    skipped: int
    stream: Stream
    text: str
    type: Literal["output"]

class DisplayEvent(TypedDict):
    exchange: int
    isResult: NotRequired[bool]
    mime: str
    type: Literal["display"]

class HostCallEvent(TypedDict):
    batch: int
    blocking: bool
    call: int
    encoding: Encoding
    exchange: int
    name: str
    type: Literal["hostCall"]

class NotedEvent(TypedDict):
    exchange: int
    type: Literal["noted"]

class UnnotedEvent(TypedDict):
    exchange: int
    type: Literal["unnoted"]
    why: str

class DiffersEvent(TypedDict):
    exchange: int
    type: Literal["differs"]
    what: str

class ExecutedEvent(TypedDict):
    encoding: Encoding
    exchange: int
    execution: ExecutionReport
    type: Literal["executed"]

class ValueEvent(TypedDict):
    encoding: Encoding
    exchange: int
    type: Literal["value"]

class DoneEvent(TypedDict):
    exchange: int
    type: Literal["done"]

class RestoredEvent(TypedDict):
    exchange: int
    lost: list[LostVariable]
    names: NotRequired[list[str] | None]
    type: Literal["restored"]

class RefusedEvent(TypedDict):
    exchange: int
    message: str
    type: Literal["refused"]

class ExternalEvent(TypedDict):
    exchange: int
    type: Literal["external"]

class PromotedEvent(TypedDict):
    exchange: int
    type: Literal["promoted"]

class WaitingEvent(TypedDict):
    exchange: int
    type: Literal["waiting"]

class CheckedEvent(TypedDict):
    check: int
    plain: bool
    type: Literal["checked"]

class SurveyedEvent(TypedDict):
    survey: int
    type: Literal["surveyed"]
    variables: list[SurveyedVariable]

class PongEvent(TypedDict):
    ping: int
    type: Literal["pong"]

class FatalEvent(TypedDict):
    message: str
    type: Literal["fatal"]

class PartEvent(TypedDict):
    encoding: Encoding
    type: Literal["part"]

class SavedEvent(TypedDict):
    checkpoint: int
    full: bool
    lost: list[LostVariable]
    spent: bool
    type: Literal["saved"]

class NotSavedEvent(TypedDict):
    checkpoint: int
    reason: NotRequired[str | None]
    type: Literal["notSaved"]

class SnapshotEvent(TypedDict):
    reason: NotRequired[str | None]
    type: Literal["snapshot"]

Event: TypeAlias = (
    ReadyEvent
    | BootFailedEvent
    | OutputEvent
    | DisplayEvent
    | HostCallEvent
    | NotedEvent
    | UnnotedEvent
    | DiffersEvent
    | ExecutedEvent
    | ValueEvent
    | DoneEvent
    | RestoredEvent
    | RefusedEvent
    | ExternalEvent
    | PromotedEvent
    | WaitingEvent
    | CheckedEvent
    | SurveyedEvent
    | PongEvent
    | FatalEvent
    | PartEvent
    | SavedEvent
    | NotSavedEvent
    | SnapshotEvent
)
