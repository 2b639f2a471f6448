"""The pytest plug-in: each case is a test, and a session without cases imports nothing of Leasehold."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from patience import PATIENCE_S

CONFIG = """
pipelines:
  - {name: copy, feed: {type: log, path: in}, sink: {type: log, path: "${UNSET}"}}
"""
CASES = """
cases:
  - name: copies
    events: [{body: a}]
    rows: [{body: a}]
  - name: differs
    events: [{body: a}]
    rows: [{body: b}]
"""
HEAVY = ("pyarrow", "pyspark", "pydantic", "yaml", "click", "service", "pipeline", "leases")
SEES = f"""
import sys
def test_imports():
    assert "leasehold.pytest_plugin" in sys.modules
    assert [name for name in {HEAVY!r} if name in sys.modules] == []
"""


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    others = [
        f"-pno:{name}" for name in ("schemathesis", "xdist", "asyncio", "hypothesispytest", "timeout", "cacheprovider")
    ]
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *others, *arguments],
        cwd=folder,
        env={**os.environ, "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "bank.yaml").write_text(CONFIG)
    (tmp_path / "bank.cases.yaml").write_text(CASES.lstrip())
    return tmp_path


def test_each_case_is_a_test_and_a_failure_shows_the_difference(folder: Path) -> None:
    result = run(folder)
    assert result.returncode == 1
    assert "1 failed, 1 passed" in result.stdout
    assert (
        "bank.cases.yaml:5: pipeline copy\n1 row expected:\n  expected  | actual\n! {body: b} | {body: a}"
        in result.stdout
    )
    assert "FAILED bank.cases.yaml::differs" in result.stdout
    assert "Traceback" not in result.stdout


def test_one_case_can_be_chosen(folder: Path) -> None:
    result = run(folder, "bank.cases.yaml::copies")
    assert (result.returncode, "1 passed" in result.stdout) == (0, True), result.stdout


def test_hosts_are_killed_if_that_is_wanted(folder: Path) -> None:
    path = folder / "bank.yaml"
    path.write_text(path.read_text().replace('{type: log, path: "${UNSET}"}', '{type: python, handler: "none:none"}'))
    result = run(folder, "--leasehold-kill", "-k", "copies")
    assert "to see what the handler of 'copy' has done, `--kill` needs `state` and `reset`" in result.stdout
    path.write_text(CONFIG)
    assert "1 passed" in run(folder, "--leasehold-kill", "-k", "copies").stdout


def test_a_wrong_file_is_an_error_of_the_collection_with_its_line(folder: Path) -> None:
    (folder / "bank.cases.yaml").write_text("cases:\n  - name: a\n    evnts: []\n")
    result = run(folder)
    assert result.returncode == 2
    assert "line 3: cases[0].evnts is not a key of a case: did you mean `events`?" in result.stdout


def test_nothing_is_imported_without_cases(tmp_path: Path) -> None:
    (tmp_path / "test_imports.py").write_text(SEES)
    result = run(tmp_path)
    assert result.returncode == 0, result.stdout


HANDLED = """
pipelines:
  - {name: copy, feed: {type: log, path: in}, sink: {type: python, handler: "handlers_m:Handler", gets: table}}
"""
STATE = """
cases:
  - {name: keeps, events: [{body: a}], state: "helpers_m:state", reset: "helpers_m:reset"}
"""
HANDLER = """
import helpers_m
import leasehold

class Handler(leasehold.Handler):
    def process(self, table, context): helpers_m.rows += table["body"].to_pylist()
"""
HELPERS = """
rows = []
def state(): return rows
def reset(): rows.clear()
"""


def test_a_case_is_not_run_with_another_folders_module_of_the_same_name(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        files = {"bank.yaml": HANDLED, "bank.cases.yaml": STATE, "helpers_m.py": HELPERS}
        for file, text in files.items():
            (tmp_path / name / file).write_text(text)
    (tmp_path / "a/handlers_m.py").write_text(HANDLER)
    (tmp_path / "b/handlers_m.py").write_text(
        HANDLER.replace("class Handler", "class Other")
    )  # `leasehold test` finds that
    result = run(tmp_path)
    assert "1 failed, 1 passed" in result.stdout, result.stdout
    own, loaded = tmp_path / "b/handlers_m.py", tmp_path / "a/handlers_m.py"
    assert (
        f"the module 'handlers_m' of this case is {own}, but an earlier case or test has imported {loaded}"
        in result.stdout
    )
    assert f"rename one of them, or run pytest for {tmp_path / 'b'} alone" in result.stdout
    alone = run(tmp_path, "b")
    assert "module 'handlers_m' has no 'Handler'" in alone.stdout
