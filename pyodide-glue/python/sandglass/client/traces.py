"""The caller's span of OpenTelemetry, which the server's spans continue."""

# The wire: docs/rpc.md.

from __future__ import annotations

import sys
from contextlib import suppress

_NAMES = ("traceparent", "tracestate")


def current() -> dict[str, str]:
    """The names of the current span, as W3C Trace Context writes them. Empty without a span."""
    # Nobody has a span who has not imported OpenTelemetry, so this imports nothing for others.
    if "opentelemetry.trace" not in sys.modules:
        return {}
    carrier: dict[str, str] = {}
    with suppress(Exception):  # a call works without its trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        TraceContextTextMapPropagator().inject(carrier)
    return {name: carrier[name] for name in _NAMES if carrier.get(name)}
