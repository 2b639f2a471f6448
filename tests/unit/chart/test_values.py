"""The chart's values: each has a default, a schema and a place in the README; and what the package contains."""

import json
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helm_python
import yaml
from chart_readme import readme
from unit.chart.releases import CHART

VALUES = (CHART / "values.yaml").read_text()
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
OPEN = frozenset({"config", "resources", "sparkServer.resources", "podSecurityContext", "securityContext"})
"""Sections whose names are those of Kubernetes and of the settings."""


def described(schema: dict[str, Any], path: str = "") -> Iterator[str]:
    """The values in a schema, as paths. Each section is closed."""
    if "$ref" in schema:
        schema = SCHEMA["definitions"][schema["$ref"].rpartition("/")[2]]
    if path in OPEN or "properties" not in schema:
        yield path
        return
    assert schema["additionalProperties"] is False, path
    for name, each in schema["properties"].items():
        yield from described(each, f"{path}.{name}".lstrip("."))


def leaves(values: object, path: str = "", whole: frozenset[str] = OPEN) -> Iterator[str]:
    """The values that have a default, as paths."""
    if not isinstance(values, dict) or not values or path in whole:
        yield path
        return
    for name, each in values.items():
        yield from leaves(each, f"{path}.{name}".lstrip("."), whole)


def test_every_value_has_a_default_and_a_schema_that_is_closed() -> None:
    timings = {f"probes.{probe}.initialDelaySeconds" for probe in ("startup", "liveness", "readiness")}
    assert set(described(SCHEMA)) == set(leaves(yaml.safe_load(VALUES))) | timings | {"global"}


def test_the_readme_is_that_of_the_values() -> None:
    expected = readme(VALUES)
    assert (CHART / "README.md").read_text() == expected, "run .venv/bin/python tests/chart_readme.py"


def test_the_readme_has_a_row_for_every_value() -> None:
    text = readme(
        '# What it is.\n\n# Of a\n# section.\na:\n  b: 1  # one | two\n  # before\n  c: {d: e}\n  f:\n    g: "#h"\n\ni: []\n'
    )
    assert text.endswith(
        "What it is.\n\nOf a\nsection.\n\n| value | default | meaning |\n| --- | --- | --- |\n"
        '| `a.b` | `1` | one \\| two |\n| `a.c` | `{d: e}` | before |\n| `a.f.g` | `"#h"` |  |\n\n'
        "| value | default | meaning |\n| --- | --- | --- |\n| `i` | `[]` |  |\n"
    )
    rows = set(re.findall(r"^\| `([\w.]+)` \|", (CHART / "README.md").read_text(), re.MULTILINE))
    paths = leaves(yaml.safe_load(VALUES), whole=frozenset())
    assert [path for path in paths if not any(f"{path}.".startswith(f"{row}.") for row in rows)] == []


def test_the_package_has_no_files_of_editors(tmp_path: Path) -> None:
    copy = tmp_path / "leasehold"
    for file in (each for each in CHART.rglob("*") if each.is_file()):
        (copy / file.relative_to(CHART)).parent.mkdir(parents=True, exist_ok=True)
        (copy / file.relative_to(CHART)).write_bytes(file.read_bytes())
    (copy / "templates/workload.yaml~").write_text("not: {{ yaml")
    (copy / "values.yaml.orig").write_text("replicas: 7\n")
    packed = helm_python.package(copy, destination=tmp_path)
    with tarfile.open(packed) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"Chart.yaml", "README.md", "ready.py", "templates/tests/ready.yaml"} <= names
    assert not [name for name in names if name.endswith(("~", ".orig"))]


def test_the_chart_names_who_maintains_it() -> None:
    chart, project = yaml.safe_load((CHART / "Chart.yaml").read_text()), (CHART.parent / "pyproject.toml").read_text()
    (maintainer,) = chart["maintainers"]
    assert f'authors = [{{ name = "{maintainer["name"]}" }}]' in project
