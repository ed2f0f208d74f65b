"""The files of deploy/ for Kubernetes, against the schemas of Kubernetes, of agent-sandbox, and by Helm's own library.

`python tests/deploy/test_kubernetes.py` writes deploy/kubernetes/ again, after a change of the chart.
Decisions: `docs/internals/server.md`.
"""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import helm_python
import jsonschema
import kubernetes_validate
import pytest
import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm/sandglass"
MANIFESTS = DEPLOY / "kubernetes/sandglass.yaml"
HEAD = (
    "# The chart in deploy/helm/sandglass with its default values. tests/deploy/test_kubernetes.py writes this file.\n"
)
#: The oldest version of Kubernetes that the chart names, and the newest that the package knows.
VERSIONS = ["1.33", "1.37"]
#: Other values than the defaults, so that each branch of the templates is rendered.
OTHER_VALUES: dict[str, Any] = {
    "replicas": 3,
    "settings": {"SANDGLASS_MAX_SESSIONS": 200},
    "egress": [{"to": [{"ipBlock": {"cidr": "192.0.2.0/24"}}], "ports": [{"port": 443, "protocol": "TCP"}]}],
    "nodeSelector": {"sandglass.dev/pool": "guests"},
    "tolerations": [{"key": "sandglass.dev/guests", "operator": "Exists"}],
}


def rendered(values: dict[str, Any] | None = None) -> str:
    """The chart's objects as one text. Helm renders without a cluster."""
    with helm_python.Chart.load(CHART) as chart:
        files = chart.render(values, name="sandglass", namespace="sandglass")
    texts = [files[name].strip() for name in sorted(files) if name.endswith(".yaml")]
    return HEAD + "".join(f"---\n{text}\n" for text in texts)


def objects(text: str) -> list[dict[str, Any]]:
    return [found for found in yaml.safe_load_all(text) if found]


def the(kind: str, found: list[dict[str, Any]]) -> dict[str, Any]:
    [only] = [one for one in found if one["kind"] == kind]
    return only


def closed(schema: Any) -> Any:
    """The schema with unknown fields refused, as `kubectl apply` refuses them."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: closed(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and "additionalProperties" not in schema:
        made["additionalProperties"] = False
    return made


def custom(name: str) -> tuple[str, str, Any]:
    """The version, the kind and the schema of a resource of agent-sandbox."""
    found = json.loads((ROOT / f"tests/deploy/agent-sandbox/{name}.json").read_text())
    schema = closed(found["schema"])
    schema["properties"]["metadata"] = {"type": "object", "required": ["name"]}
    return f"{found['group']}/{found['version']}", found["kind"], schema


CUSTOM = {
    kind: (version, schema)
    for version, kind, schema in map(custom, ["sandboxtemplates", "sandboxclaims", "sandboxwarmpools"])
}


def check_custom(found: dict[str, Any]) -> None:
    version, schema = CUSTOM[found["kind"]]
    assert found["apiVersion"] == version
    jsonschema.Draft202012Validator(schema).validate(found)


@pytest.mark.parametrize("values", [None, OTHER_VALUES], ids=["defaults", "other values"])
@pytest.mark.parametrize("version", VERSIONS)
def test_the_chart_is_valid_for_kubernetes(values: dict[str, Any] | None, version: str) -> None:
    found = objects(rendered(values))
    assert {one["kind"] for one in found} == {"Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy"}
    for one in found:
        kubernetes_validate.validate(one, version, strict=True)


def test_a_wrong_field_is_found() -> None:
    deployment = the("Deployment", objects(rendered()))
    deployment["spec"]["template"]["spec"]["containers"][0]["securityContext"]["procmount"] = "Unmasked"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(deployment, VERSIONS[0], strict=True)


@pytest.mark.parametrize("values", [None, OTHER_VALUES], ids=["defaults", "other values"])
def test_helm_finds_nothing_wrong(values: dict[str, Any] | None) -> None:
    report = helm_python.lint(CHART, values, strict=True)
    worse = [message for message in report["messages"] if message["severity"] in ("WARNING", "ERROR")]
    assert not worse


def test_an_unknown_value_is_refused() -> None:
    with helm_python.Chart.load(CHART) as chart:
        chart.validate_schema(OTHER_VALUES)
        with pytest.raises(helm_python.HelmValuesError):
            chart.validate_schema({"replica": 3})


def test_the_manifests_are_those_of_the_chart() -> None:
    assert MANIFESTS.read_text() == rendered()


def test_a_pod_has_the_time_that_a_server_takes_to_end() -> None:
    deployment = the("Deployment", objects(rendered({"leaveSeconds": 7, "shutdownSeconds": 90})))
    pod = deployment["spec"]["template"]["spec"]
    [server] = pod["containers"]
    leave = server["lifecycle"]["preStop"]["sleep"]["seconds"]
    shutdown = int(next(one["value"] for one in server["env"] if one["name"] == "SANDGLASS_SHUTDOWN_SECONDS"))
    text = (ROOT / "crates/server/src/lib.rs").read_text()
    more = re.findall(
        r"const (?:SPARES_END|LAST_SUSPENSIONS|LAST_WORDS): Duration = Duration::from_secs\((\d+)\)", text
    )
    assert len(more) == 3
    assert (leave, shutdown) == (7, 90)
    assert pod["terminationGracePeriodSeconds"] >= leave + shutdown + sum(map(int, more))


def servers() -> list[dict[str, Any]]:
    """The containers of all files that run a server."""
    template = the("SandboxTemplate", objects((DEPLOY / "agent-sandbox/sandbox.yaml").read_text()))
    pods = [the("Deployment", objects(rendered()))["spec"]["template"]["spec"], template["spec"]["podTemplate"]["spec"]]
    return [container for pod in pods for container in pod["containers"]]


def test_probes_ask_routes_that_need_no_key() -> None:
    middleware = (ROOT / "crates/server/src/middleware.rs").read_text()
    match = re.search(r"fn is_open\(.*?\n}", middleware, re.DOTALL)
    assert match
    is_open = set(re.findall(r'"(/[^"]*)"', match[0]))
    probes = [server[name] for server in servers() for name in server if name.endswith("Probe")]
    assert len(probes) == 4
    assert {probe["httpGet"]["path"] for probe in probes} <= is_open


def test_settings_are_the_servers() -> None:
    known = set()
    for path in ["crates/server/src/settings.rs", "host/src/args.rs", *map(str, (ROOT / "host/src/args").glob("*.rs"))]:
        known |= set(re.findall(r'"(SANDGLASS_[A-Z_]+)"', (ROOT / path).read_text()))
    given = {one["name"] for server in servers() for one in server["env"]}
    assert given - known <= {"POD_IP"}
    assert {"SANDGLASS_KEYS", "SANDGLASS_STATE_KEY", "SANDGLASS_CLUSTER"} <= given


@pytest.mark.parametrize("name", ["sandbox.yaml", "claim.yaml"])
def test_resources_of_agent_sandbox_are_valid(name: str) -> None:
    found = objects((DEPLOY / "agent-sandbox" / name).read_text())
    assert found
    for one in found:
        check_custom(one)


def test_the_pods_of_agent_sandbox_are_valid_for_kubernetes() -> None:
    template = the("SandboxTemplate", objects((DEPLOY / "agent-sandbox/sandbox.yaml").read_text()))
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "one"},
        "spec": template["spec"]["podTemplate"]["spec"],
    }
    kubernetes_validate.validate(pod, VERSIONS[-1], strict=True)


def test_names_of_agent_sandbox_lead_to_each_other() -> None:
    found = objects((DEPLOY / "agent-sandbox/sandbox.yaml").read_text())
    template, pool = the("SandboxTemplate", found), the("SandboxWarmPool", found)
    claim = the("SandboxClaim", objects((DEPLOY / "agent-sandbox/claim.yaml").read_text()))
    assert pool["spec"]["sandboxTemplateRef"]["name"] == template["metadata"]["name"]
    assert claim["spec"]["warmPoolRef"]["name"] == pool["metadata"]["name"]


def test_a_wrong_claim_is_found() -> None:
    claim = the("SandboxClaim", objects((DEPLOY / "agent-sandbox/claim.yaml").read_text()))
    check_custom(claim)
    for change in [
        {"sandboxTemplateRef": {"name": "sandglass"}},
        {"warmPoolRef": {}},
        {"lifecycle": {"shutdownPolicy": "Keep"}},
    ]:
        wrong = copy.deepcopy(claim)
        wrong["spec"] |= change
        with pytest.raises(jsonschema.ValidationError):
            check_custom(wrong)


if __name__ == "__main__":
    MANIFESTS.write_text(rendered())
