"""A file of cases, and everything that can be wrong with it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from leasehold.service.cases.model import (
    Case,
    CaseEvent,
    CaseFile,
    cases_beside,
    load_cases,
    load_settings,
    parse_cases,
)
from leasehold.service.config.load import parse
from leasehold.service.config.settings import Settings
from leasehold.service.errors import ConfigurationError

ROOT = Path(__file__).parents[4]
ONE = "cases:\n  - name: one\n    events: [{body: a}]\n"
PIPELINES = """
pipelines:
  - {name: copy, feed: {type: files, path: in.csv}, sink: {type: log, path: out}}
  - {name: handle, feed: {type: files, path: in.csv}, sink: {type: python, handler: "module:factory"}}
"""


def cases(text: str) -> CaseFile:
    return parse_cases(text, Path("bank.cases.yaml"))


def problems(text: str) -> tuple[str, ...]:
    with pytest.raises(ConfigurationError) as caught:
        cases(text)
    return caught.value.problems


def settings() -> Settings:
    return parse(PIPELINES, {}, folder=Path("/etc/bank"))


def test_a_case_has_defaults() -> None:
    (case,) = cases(ONE).cases
    assert (case.rows, case.order, case.dead_letters, case.kill, case.batches) == (None, "any", (), True, "any")
    assert case.events == (CaseEvent(body="a"),)
    assert (case.events[0].partition, case.events[0].time) == ("0", datetime(2026, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize(
    ("body", "octets"),
    [
        ("text", b"text"),
        ("", None),
        ('""', b""),
        (
            "{a: 1.10, b: [x, null, true], c: 12345678901234.567}",
            b'{"a": 1.10, "b": ["x", null, true], "c": 12345678901234.567}',
        ),
        ("1e2", b"100"),
        ("7", b"7"),
        ("{é: ü}", '{"\\u00e9": "ü"}'.encode()),
    ],
)
def test_a_body_keeps_every_digit(body: str, octets: bytes | None) -> None:
    (case,) = cases(f"cases:\n  - name: one\n    events: [{{body: {body}}}]\n").cases
    assert case.events[0].octets == octets


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "line 1: this is not a mapping: begin with `cases:`"),
        ("- 1", "line 1: this is not a mapping: begin with `cases:`"),
        ("cases: []", "line 1: cases must not be empty"),
        ("cases:\n  - name: one\n    event: []", "line 3: cases[0].event is not a key of a case: did you mean `events`?"),
        ("cases:\n  - name: one\n    events: [{bdy: 1}]", "line 3: cases[0].events[0].bdy is not a key of a case: did you"),
        (ONE + "    zzz: 1", "line 4: cases[0].zzz is not a key of a case: known here are name, pipeline, events,"),
        (ONE + "    rows:", "line 2: cases[0] has `rows` without a value: write [] if none are expected"),
        (ONE + "    order: sorted", "line 4: cases[0].order must be 'any', 'partition' or 'exact'"),
        (ONE + "    dead_letters: [{event: 2}]", "line 2: cases[0] expects a dead letter of event 2, and has 1 events"),
        (ONE + "    state: a:b", "line 2: cases[0] `state` and `reset` go together"),
        (ONE + "  - name: one\n    events: [{}]", "line 4: 'one' is the name of cases[0] too: rename one of them"),
        ("cases:\n  - name: one\n    events: [{time: 2026-01-01T00:00:00}]", "must be a time with its offset from UTC"),
        (ONE.replace("a}", "123456789012345678901}"), "line 3: a number of more than 18 digits: shorten it, or put it in quotes"),
    ],
)  # fmt: skip
def test_a_problem_is_reported_with_its_line(text: str, problem: str) -> None:
    assert any(problem in found for found in problems(text)), problems(text)


def test_all_problems_are_reported_at_once_and_each_once() -> None:
    text = "cases:\n  - name: one\n    events: [{a: 1}]\n    x: 1\n  - events: [{}]\ny: 1"
    assert [found.partition(":")[0] for found in problems(text)] == ["line 3", "line 4", "line 5", "line 6"]


def test_rows_in_the_order_of_partitions_need_theirs() -> None:
    text = (
        "cases:\n  - name: one\n    order: partition\n    events: [{partition: a}, {partition: b}]\n    rows: [{x: 1}]"
    )
    assert "give each row its `partition`" in problems(text)[0]


def test_a_case_finds_its_pipeline() -> None:
    (placed,) = cases(ONE.replace("one", "one\n    pipeline: copy")).placed(settings())
    assert (placed.pipeline, placed.place) == ("copy", "bank.cases.yaml:2")


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        ("kill: true", "line 2: cases[0] needs `pipeline`: one of copy, handle"),
        ("pipeline: none", "line 4: cases[0].pipeline is 'none', and bank.yaml has copy, handle"),
        ("query: SELECT 1\n    pipeline: copy", "line 4: cases[0].query needs a sink `postgres`, and 'copy' has `log`"),
        ("state: a:b\n    reset: a:c\n    pipeline: copy", "line 4: cases[0].state needs a sink `python`"),
    ],
)
def test_what_does_not_fit_the_configuration_is_reported(key: str, problem: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        cases(f"{ONE}    {key}").placed(settings())
    assert problem in caught.value.problems[0]


def test_the_configuration_is_the_file_of_the_same_name_unless_the_file_names_another(tmp_path: Path) -> None:
    assert cases_beside(Path("etc/bank.yaml")) == Path("etc/bank.cases.yaml")
    assert cases(ONE).config == Path("bank.yaml")
    path = tmp_path / "other.cases.yaml"
    path.write_text(f"config: ../bank.yaml\n{ONE}")
    assert load_cases(path).config == tmp_path / "../bank.yaml"


@pytest.mark.parametrize("name", ["bank-cosmos.yaml", "bank-eventhubs.yaml"])
def test_no_secret_of_a_connection_has_to_be_set(name: str) -> None:
    found = load_settings(ROOT / "docs/examples" / name, {})
    assert found.leases.type == "sqlite"  # the section that needs a variable is left out
    assert [each.sink.type for each in found.pipelines][-1] == "postgres"


EVERYWHERE = """
leases: {type: blob, connection_string: "${A}", container: leases}
api: {port: 8080, readers: "${B}"}
pipelines:
  - name: one
    feed: {type: eventhubs, connection_string: "${C}"}
    sink: {type: cosmos, endpoint: "${D}", key: "${E}", database: "${F}", container: "${F}"}
    dead_letters: {type: postgres, dsn: "postgresql://u:${G}@host/x"}
  - name: two
    feed: {type: log, path: "${C}"}
    sink: {type: log, path: "${D}"}
  - name: three
    feed: {type: cosmos, connection_string: "${C}", database: x, container: y}
    sink: {type: http, url: "${D}", headers: {token: "${E}"}}
  - name: five
    feed: {type: files, path: "${DIR}/*.csv"}
    sink: {type: python, handler: "module:factory"}
  - name: six
    feed: {type: files, path: "${FILES}"}
    sink: {type: postgres, dsn: "${DSN}", table: t, mode: upsert, key: [a]}
  - name: four
    feed: {type: eventhubs, namespace: "${C}", identity: "${D}", event_hub: "${E}"}
    sink: {type: files, path: "${F}"}
"""


def test_variables_may_be_unset_in_every_connection(tmp_path: Path) -> None:
    path = tmp_path / "bank.yaml"
    path.write_text(EVERYWHERE)
    assert [each.name for each in load_settings(path, {}).pipelines] == ["one", "two", "three", "five", "six", "four"]


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("name: copy", 'sql: "${A}", name: copy', "line 3: pipelines[0].sql"),
        ("handler: \"module:factory\"", 'handler: "${A}"', "line 4: pipelines[1].sink.handler"),
        ("pipelines:", 'spark: {master: "${A}"}\npipelines:', "line 2: spark.master"),
    ],
)  # fmt: skip
def test_a_variable_that_decides_the_output_must_be_set(tmp_path: Path, old: str, new: str, line: str) -> None:
    path = tmp_path / "bank.yaml"
    path.write_text(PIPELINES.replace(old, new))
    with pytest.raises(ConfigurationError) as caught:
        load_settings(path, {})
    assert caught.value.problems == (f"{line} needs the environment variable A, which is not set: set it",)


def test_a_variable_whose_substitute_does_not_fit_must_be_set(tmp_path: Path) -> None:
    path = tmp_path / "bank.yaml"
    path.write_text(PIPELINES.replace("path: in.csv}", 'path: in.csv, start: "${WHEN}"}', 1))
    with pytest.raises(ConfigurationError, match="needs the environment variable WHEN"):
        load_settings(path, {})


def test_every_key_is_described() -> None:
    page = (ROOT / "docs/testing.md").read_text()
    keys = {*Case.model_fields, *CaseEvent.model_fields, "config"}
    assert {key for key in keys if f"`{key}" not in page} == set()
