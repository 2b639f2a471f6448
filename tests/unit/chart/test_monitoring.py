"""Alerts and dashboard name only metrics that exist, with labels that these have; and each alert is explained."""

import json
import re
from collections.abc import Iterator
from typing import Any

import promql_parser
import pytest
import yaml
from unit.chart.releases import CHART, SCRAPED

DOCS = CHART.parent / "docs"
OF_TARGETS = {"namespace", "job", "instance"}
"""Labels that Prometheus adds where it scrapes."""
OTHERS = {"process_resident_memory_bytes": set[str]()}
VARIABLES = {"$__rate_interval": "5m", "$namespace": ".*", "$job": ".*"}
RULES: dict[str, dict[str, Any]] = {
    rule["alert"]: rule for group in yaml.safe_load((CHART / "alerts.yaml").read_text())["groups"] for rule in group["rules"]
}  # fmt: skip
PANELS: dict[str, dict[str, Any]] = {
    panel["title"]: panel for panel in json.loads((CHART / "dashboard.json").read_text())["panels"]
}


def documented() -> dict[str, set[str]]:
    """Every series of docs/metrics.md, which another test holds against the code, with its labels."""
    found = dict(OTHERS)
    rows = re.findall(r"^\| `(leasehold_\w+)` \| (\w+) \|([^|]*)\|", (DOCS / "metrics.md").read_text(), re.MULTILINE)
    for name, kind, labels in rows:
        own = set(re.findall(r"`(\w+)`", labels))
        histogram = {f"{name}_bucket": own | {"le"}, f"{name}_sum": own, f"{name}_count": own}
        found |= histogram if kind == "histogram" else {name: own}
    return found


def nodes(expression: Any) -> Iterator[Any]:
    yield expression
    for part in ("expr", "lhs", "rhs", "param", "vector_selector"):
        if (child := getattr(expression, part, None)) is not None:
            yield from nodes(child)
    for child in getattr(expression, "args", ()):
        yield from nodes(child)


def problems(text: str) -> Iterator[str]:
    """What a query names that is not there."""
    for variable, value in VARIABLES.items():
        text = text.replace(variable, value)
    known = documented()
    labels, grouped = set[str](), set[str]()
    for node in nodes(promql_parser.parse(text)):
        if isinstance(node, promql_parser.VectorSelector):
            if node.name not in known:
                yield f"{node.name} is no metric"
            own = known.get(node.name, set()) | OF_TARGETS
            labels |= own
            yield from (
                f"{node.name} has no label {each.name}" for each in node.matchers.matchers if each.name not in own
            )
        elif isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None:
            grouped |= set(node.modifier.labels)
    yield from (f"nothing has the label {each}" for each in sorted(grouped - labels))


@pytest.mark.parametrize("alert", RULES)
def test_an_alert_names_only_what_exists(alert: str) -> None:
    assert list(problems(RULES[alert]["expr"])) == []


@pytest.mark.parametrize("title", PANELS)
def test_a_panel_names_only_what_exists(title: str) -> None:
    targets = PANELS[title]["targets"]
    assert targets
    for target in targets:
        assert list(problems(target["expr"])) == []
        shown = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
        assert all(label in target["expr"] or label in OF_TARGETS for label in shown)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("leasehold_lag > 0", ["leasehold_lag is no metric"]),
        ('rate(leasehold_lease_moves_total{moved="stolen"}[5m])', ["leasehold_lease_moves_total has no label moved"]),
        ("sum by (host) (leasehold_ready)", ["nothing has the label host"]),
        ("leasehold_batch_seconds", ["leasehold_batch_seconds is no metric"]),
    ],
)
def test_a_name_that_is_wrong_would_be_found(text: str, expected: list[str]) -> None:
    assert list(problems(text)) == expected


def test_values_of_labels_are_those_that_are_told() -> None:
    words = set(re.findall(r"`([a-z]+)`", (DOCS / "metrics.md").read_text()))
    for rule in RULES.values():
        for value in re.findall(r'(?:move|outcome|operation|stage)=~?"([^"]+)"', rule["expr"]):
            assert set(value.split("|")) <= words


@pytest.mark.parametrize("alert", RULES)
def test_an_alert_says_how_grave_it_is_and_what_to_do_stands_in_the_docs(alert: str) -> None:
    rule, operations = RULES[alert], (DOCS / "operations.md").read_text()
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert rule["annotations"]["summary"]
    assert f"### {alert}\n" in operations


def test_the_docs_explain_no_alert_that_is_gone() -> None:
    assert set(re.findall(r"^### (Leasehold\w+)$", (DOCS / "operations.md").read_text(), re.MULTILINE)) == RULES.keys()


def test_helm_changes_neither_alerts_nor_dashboard(render) -> None:
    objects = render({"monitoring": {"serviceMonitor": True, "alerts": True, "dashboard": True}, **SCRAPED})
    rules = [rule for group in objects["PrometheusRule"]["spec"]["groups"] for rule in group["rules"]]
    assert rules == list(RULES.values())
    shown = json.loads(objects["ConfigMap-dashboard"]["data"]["leasehold.json"])
    assert shown == json.loads((CHART / "dashboard.json").read_text())
    assert objects["ConfigMap-dashboard"]["metadata"]["labels"]["grafana_dashboard"] == "1"


def test_prometheus_sends_a_token(render) -> None:
    objects = render({"monitoring": {"serviceMonitor": True}, "api": {"clientKey": "prometheus"}, **SCRAPED})
    (endpoint,) = objects["ServiceMonitor"]["spec"]["endpoints"]
    assert endpoint["authorization"]["type"] == "Bearer"
    assert endpoint["authorization"]["credentials"] == {"name": "leasehold-api", "key": "prometheus"}


def test_panels_do_not_overlap() -> None:
    taken = [
        (x, y)
        for panel in PANELS.values()
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(taken) == len(set(taken))
    assert max(x for x, _ in taken) < 24
