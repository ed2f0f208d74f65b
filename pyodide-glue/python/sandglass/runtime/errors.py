"""Exceptions that user code can meet. The first two are in its namespace, so that code can catch them by name."""


class HostCallError(RuntimeError):
    """A host call failed. `kind` is "error", "timeout" or "limit"; the message is the host's."""

    def __init__(self, message: str, kind: str = "error") -> None:
        super().__init__(message)
        self.kind = kind

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return type(self), (str(self), self.kind)


class LimitError(HostCallError):
    """A host call was refused because the execution has used up its budget. Uncaught, it ends the cell as "limit"."""

    def __init__(self, message: str, kind: str = "limit") -> None:
        super().__init__(message, kind)


class CallLimitError(LimitError):
    """A LimitError that is a RuntimeError, as some prompts say. It pickles as a RuntimeError."""

    def __reduce__(self) -> tuple[type, tuple[str]]:  # type: ignore[override]
        return RuntimeError, (str(self),)


class NotSerializable(ValueError):
    """A value cannot cross to the host. The message says what is wrong, where in the value, and what to do."""


class Submitted(BaseException):
    """Ends the cell after SUBMIT. Not an Exception, so that `except Exception` in user code lets it pass."""


for _visible in (HostCallError, LimitError, NotSerializable):
    _visible.__module__ = "__main__"  # user code sees the class here: tracebacks say `HostCallError: …`
CallLimitError.__name__ = CallLimitError.__qualname__ = "RuntimeError"
CallLimitError.__module__ = "builtins"
