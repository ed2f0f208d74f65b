"""The alerts and the dashboard, against the metrics of a real server.

Decisions: `docs/internals/server.md`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PROGRAM = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "debug/sandglass-host"
KEY = "a-key-for-tests-0123456789"
#: Labels and metrics that Prometheus itself adds.
FROM_PROMETHEUS = {"job", "instance", "namespace", "pod"}


@pytest.fixture(scope="module")
def metrics() -> Iterator[str]:
    """The answer of `/metrics`, after requests that have each kind of label."""
    command = [str(PROGRAM), "serve", "--listen", "127.0.0.1:0", "--backend", "subprocess", "--allow-subprocess"]
    env = {**os.environ, "SANDGLASS_KEYS": f"tester {KEY}", "NO_COLOR": "1", "PRELOAD_MODULES": "json"}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout
        try:
            found = re.search(r"http://\S+", server.stdout.readline())
            assert found, "the server did not start"
            asked(found[0] + "/execute", b'{"code": "1"}')
            yield asked(found[0] + "/metrics")
        finally:
            server.terminate()


def asked(url: str, body: bytes | None = None) -> str:
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, body, headers)) as answer:
        return str(answer.read().decode())


def series(metrics: str) -> set[str]:
    """The names that can be asked for. A metric without labels yet has no samples, and still has a type."""
    ends = {"histogram": ["_bucket", "_sum", "_count"], "summary": ["_sum", "_count"]}
    types = re.findall(r"^# TYPE (\S+) (\S+)$", metrics, re.MULTILINE)
    return {name + end for name, kind in types for end in ends.get(kind, [""])}


def labels(metrics: str, name: str) -> set[str]:
    lines = re.findall(rf"^{name}{{(.*)}} ", metrics, re.MULTILINE)
    return {label for line in lines for label in re.findall(r'(\w+)="', line)}


def selectors(expression: str) -> list[promql_parser.VectorSelector]:
    """The parts of an expression that name metrics. The parser refuses what is no PromQL."""
    found: list[promql_parser.VectorSelector] = []

    def look(part: Any) -> None:
        if isinstance(part, promql_parser.VectorSelector):
            found.append(part)
        for name in ["expr", "lhs", "rhs", "vector_selector", "vs"]:
            if (inner := getattr(part, name, None)) is not None:
                look(inner)
        for inner in getattr(part, "args", None) or []:
            look(inner)

    look(promql_parser.parse(expression))
    return found


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load((DEPLOY / "prometheus/alerts.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    return list(json.loads((DEPLOY / "grafana/sandglass.json").read_text())["panels"])


def expressions() -> list[str]:
    of_panels = [target["expr"] for panel in panels() for target in panel["targets"]]
    # Grafana fills these in.
    of_panels = [text.replace("$__rate_interval", "5m").replace("$job", "sandglass") for text in of_panels]
    return [rule["expr"] for rule in alerts()] + of_panels


@pytest.mark.parametrize("expression", expressions())
def test_metrics_are_the_servers(metrics: str, expression: str) -> None:
    named = selectors(expression)
    assert named
    for selector in named:
        if selector.name == "up":
            continue
        assert selector.name in absent_until_used() | series(metrics)
        asked_for = {matcher.name for matcher in selector.matchers.matchers} - FROM_PROMETHEUS
        if there := labels(metrics, str(selector.name)):
            assert asked_for <= there


def absent_until_used() -> set[str]:
    """Metrics that `/metrics` leaves out until something is counted: their names are in the source."""
    text = (ROOT / "crates/server/src/metrics.rs").read_text()
    counters = re.findall(r'\("(\w+)", "[^"]*", &self\.\w+\),', text)
    histograms = re.findall(r'registry\.register\("(\w+_seconds)"', text)
    assert {"llm_calls", "suspensions", "refusals"} <= set(counters) and "wake_seconds" in histograms
    names = {f"sandglass_{name}_total" for name in counters}
    return names | {f"sandglass_{name}_{end}" for name in histograms for end in ["bucket", "sum", "count"]}


def test_a_wrong_name_is_found(metrics: str) -> None:
    [selector] = selectors("sum(rate(sandglass_request_total[5m]))")
    assert selector.name not in absent_until_used() | series(metrics)
    with pytest.raises(ValueError):
        promql_parser.parse("sum(rate(sandglass_requests_total[5m])")


def test_codes_of_refusals_are_documented() -> None:
    page = (ROOT / "docs/server/errors.md").read_text()
    codes = [
        code for text in expressions() for found in re.findall(r'code=~?"([^"]+)"', text) for code in found.split("|")
    ]
    assert codes
    assert all(f"`{code}`" in page for code in codes)


def test_every_alert_has_a_row_in_the_page() -> None:
    page = (ROOT / "docs/server/cluster-operations.md").read_text()
    names = [rule["alert"] for rule in alerts()]
    assert len(names) == len(set(names))
    assert all(f"`{name}`" in page for name in names)
    assert all(rule["labels"]["severity"] in ("warning", "critical") for rule in alerts())


def test_panels_do_not_overlap() -> None:
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels()]
    assert len(places) == len(set(places))
    assert len({panel["id"] for panel in panels()}) == len(places)
