"""`leasehold test`: which cases it runs, what it prints, and its exit codes. These pipelines need no Spark."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from leasehold.service.cases.model import PlacedCase, parse_cases
from leasehold.service.cli.main import main
from leasehold.service.cli.test import CaseVerdict, _write_junit

CONFIG = """
pipelines:
  - {name: copy, feed: {type: log, path: in}, sink: {type: log, path: "${DIRECTORY}"}}
  - {name: handle, feed: {type: log, path: in}, sink: {type: python, handler: "bank_handler:Handler", gets: table}}
"""
CASES = """
cases:
  - name: copies
    pipeline: copy
    events: [{body: a}]
    rows: [{body: a}]
  - name: differs
    pipeline: copy
    events: [{body: a}]
    rows: [{body: b}]
"""
HANDLED = """
cases:
  - name: handles
    pipeline: handle
    events: [{body: a}, {body: b}]
"""
HANDLER = """
from pathlib import Path
done = Path("done")
done.mkdir(exist_ok=True)
import leasehold

class Handler(leasehold.Handler):
    def process(self, table, context):
        for sequence in table["sequence"].to_pylist(): (done / str(sequence)).touch()
def state(): return sorted(path.name for path in done.iterdir())
def reset():
    for path in done.iterdir(): path.unlink()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in (("bank.yaml", CONFIG), ("bank.cases.yaml", CASES), ("bank_handler.py", HANDLER)):
        (tmp_path / name).write_text(text.lstrip())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.delitem(sys.modules, "bank_handler", raising=False)
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["test", *arguments])


def test_the_cases_beside_the_configuration_run_and_a_difference_is_shown(folder: Path) -> None:
    result = run("bank.yaml")
    assert result.exit_code == 1
    assert result.output.splitlines()[0].startswith("ok     copy: copies (")
    assert result.output.splitlines()[1:] == [
        "FAILED bank.cases.yaml:6: differs (pipeline copy)",
        "    1 row expected:",
        "      expected  | actual",
        "    ! {body: b} | {body: a}",
        "2 cases: 1 passed, 1 failed",
    ]


def test_cases_may_be_named_and_chosen_by_pipeline(folder: Path) -> None:
    (folder / "more.yaml").write_text(HANDLED)
    assert run("bank.yaml", "more.yaml").output.endswith("1 case: 1 passed, 0 failed\n")
    result = run("bank.yaml", "bank.cases.yaml", "more.yaml", "--pipeline", "handle")
    assert (result.exit_code, result.output.splitlines()[-1]) == (0, "1 case: 1 passed, 0 failed")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["none.yaml"], "none.yaml: 1 problem\n  cannot be read (no such file or directory)"),
        (["bank.yaml", "none.cases.yaml"], "none.cases.yaml: 1 problem\n  cannot be read"),
        (["other.yaml"], "other.yaml has no cases: write other.cases.yaml, or name a file with cases"),
        (["bank.cases.yaml"], "bank.cases.yaml has cases: name the configuration first"),
        (["bank.yaml", "--pipeline", "none"], "there is no pipeline 'none' in bank.yaml: it has copy, handle"),
        (["bank.yaml", "--pipeline", "handle"], "the pipeline 'handle' has no cases"),
        (["bank.yaml", "wrong.cases.yaml"], "line 3: cases[0].evnts is not a key of a case: did you mean `events`?"),
        (["bank.yaml", "moved.cases.yaml"], "`config` names other.yaml, and bank.yaml is tested: correct one of them"),
        (
            ["bank.yaml", "handled.cases.yaml", "--kill"],
            "handled.cases.yaml:3: to see what the handler of 'handle' has done",
        ),
    ],
    ids=str,
)
def test_wrong_usage_and_wrong_files_are_refused(folder: Path, arguments: list[str], problem: str) -> None:
    (folder / "other.yaml").write_text(CONFIG)
    (folder / "wrong.cases.yaml").write_text("cases:\n  - name: a\n    evnts: []\n")
    (folder / "moved.cases.yaml").write_text(f"config: other.yaml\n{CASES}")
    (folder / "handled.cases.yaml").write_text(HANDLED)
    result = run(*arguments)
    assert problem in result.output
    assert result.exit_code == 2


def test_results_are_written_for_a_build_server(folder: Path) -> None:
    assert run("bank.yaml", "--junit", "results.xml").exit_code == 1
    suite = ElementTree.parse(folder / "results.xml").getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    assert [(case.get("classname"), case.get("name"), case.get("line")) for case in suite] == [
        ("copy", "copies", "2"),
        ("copy", "differs", "6"),
    ]
    assert [failure.get("message") for failure in suite.iter("failure")] == ["1 row expected:"]
    result = run("bank.yaml", "--junit", "none/results.xml")
    assert "--junit: none/results.xml cannot be written (No such file or directory)" in result.output


def test_results_for_a_build_server_have_no_secret_and_can_be_read(tmp_path: Path) -> None:
    case = parse_cases('cases: [{name: "a\\x01", events: [{body: x}]}]', tmp_path / "x.cases.yaml").cases[0]
    placed = PlacedCase(case=case, pipeline="p", path=Path("x\udcff"), line=1)
    problem = "fails: postgresql://u:hunter2@db/x password=hunter2, value '\x01\ufffe\ud800'\n\tand more"
    _write_junit(tmp_path / "j.xml", [CaseVerdict(placed=placed, problems=[problem, "row 2 \x00"], took_s=1.0)])
    assert "hunter2" not in (tmp_path / "j.xml").read_text()
    [found] = ElementTree.parse(tmp_path / "j.xml").getroot()
    assert (found.get("name"), found.get("file")) == ("a\\u0001", "x\\udcff")
    shown = "fails: postgresql://u:***@db/x password=***, value '\\u0001\\ufffe\\ud800'\n\tand more"
    assert found[0].get("message") == shown
    assert found[0].text == f"{shown}\nrow 2 \\u0000"


def test_kills_are_reported_one_by_one(folder: Path) -> None:
    (folder / "bank.cases.yaml").write_text(f"{HANDLED}    state: bank_handler:state\n    reset: bank_handler:reset\n")
    result = run("bank.yaml", "--kill")
    assert result.exit_code == 0, result.output
    assert "  handles: killed at 'after write'" in result.output
    assert "ok     handle: handles (" in result.output


def test_a_handler_that_cannot_be_imported_fails_its_cases(folder: Path) -> None:
    (folder / "bank_handler.py").unlink()
    (folder / "bank.cases.yaml").write_text(HANDLED)
    result = run("bank.yaml")
    assert result.exit_code == 1
    assert "there is no module 'bank_handler'" in result.output
