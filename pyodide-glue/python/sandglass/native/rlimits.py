"""Bounds on what a process has of the kernel that no control group counts."""

from __future__ import annotations

import resource

#: Signals that wait, of all processes of a guest. A timer needs one.
_PENDING_SIGNALS = 4096


def bound_files(most: int) -> None:
    """Bounds open files, and so descriptors on their way, which the kernel bounds by the same number.

    Of what this process may have they are half at most: guests that are the same user never keep it from sending any.
    """
    _bound(resource.RLIMIT_NOFILE, most, 2)


def bound_signals() -> None:
    """Bounds pending signals: the system's own bound is for a user who has the whole machine."""
    _bound(resource.RLIMIT_SIGPENDING, _PENDING_SIGNALS, 1)


def _bound(what: int, most: int, part: int) -> None:
    """Sets both limits, to no more than that part of the present one."""
    _, limit = resource.getrlimit(what)
    if limit != resource.RLIM_INFINITY:
        most = min(most, limit // part)
    resource.setrlimit(what, (most, most))
