"""The guest of a sandbox that keeps journals: its executions are recorded, and run again by their notes."""

# Decisions: docs/internals/saving-and-restoring.md.

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

from sandglass.native.bridge import NativeBridge
from sandglass.native.guest import Guest
from sandglass.native.recorder import THREAD, Recorder
from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)

if TYPE_CHECKING:
    from collections.abc import Callable

    from sandglass.native.channel import Channel
    from sandglass.runtime.wire import ExecuteRequest


class RecordedGuest(Guest):
    """A guest that records executions when the host asks for it."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._runtime.end_leftovers = self._recorder.finish_before(self._leftovers.end)

    def _make_bridge(self, channel: Channel) -> NativeBridge:
        bridge = NativeBridge(channel)
        self._recorder = bridge.recorder = Recorder(channel)
        return bridge

    def _with_notice(self, start: Callable[..., int]) -> Callable[..., int]:
        return super()._with_notice(wraps(start)(self._recorder.ending(THREAD)(start)))

    def serve(self) -> None:
        self._recorder.install()
        super().serve()

    def _execute(self, request: ExecuteRequest, bodies: list[Any]) -> None:
        if request.get("noted"):
            self._recorder.begin(bodies, request.get("explores", False))
        super()._execute(request, bodies)
