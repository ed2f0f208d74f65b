"""Bounds kernel resources of a process that no control group counts."""

from __future__ import annotations

import resource

#: The most pending signals of all processes of a guest. A timer needs one.
_PENDING_SIGNALS = 4096


def bound_files(most: int) -> None:
    """Bounds open files, and so descriptors in flight, which the kernel bounds by the same number.

    A guest gets half of this process's limit at most: guests of the same user can never keep it from sending
    descriptors.
    """
    _bound(resource.RLIMIT_NOFILE, most, 2)


def bound_signals() -> None:
    """Bounds pending signals. The system's own limit is made for a user who has the whole machine."""
    _bound(resource.RLIMIT_SIGPENDING, _PENDING_SIGNALS, 1)


def _bound(what: int, most: int, part: int) -> None:
    """Sets both limits, at most to that part of the current ones."""
    _, limit = resource.getrlimit(what)
    if limit != resource.RLIM_INFINITY:
        most = min(most, limit // part)
    resource.setrlimit(what, (most, most))
