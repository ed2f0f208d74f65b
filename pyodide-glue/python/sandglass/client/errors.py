"""`SandboxError`: a call that could not do its work."""

from __future__ import annotations


class SandboxError(Exception):
    """A call that could not do its work, and why. `code` is for programs, and stays the same in all releases.

    A mistake in the sandbox's Python code is no such error: `execute` returns, with an `outcome` that says so.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code

    def copy(self) -> SandboxError:
        """The same error for another call, which raises it with a traceback of its own."""
        return SandboxError(self.code, str(self))

    def __reduce__(self) -> tuple[type[SandboxError], tuple[str, str]]:
        return SandboxError, (self.code, str(self))


def a_type(value: object) -> str:
    """The name of a value's type, as a sentence has it: `a str`, `an int`."""
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"
