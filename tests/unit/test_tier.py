"""How a run of a tier ends (tests/tier.py): what failed runs once more, and what passes then is flaky."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import plugins_report
import pytest
import tier

A_TIER = tier.Tier(paths=("tests/unit",), processes=3)


class Pytest:
    """Runs that end as a test says, one after the other."""

    def __init__(self, *runs: tier.Run) -> None:
        self.runs = list(runs)
        self.arguments: list[Sequence[Sequence[str]]] = []

    def __call__(self, arguments: Sequence[Sequence[str]]) -> tier.Run:
        self.arguments.append(arguments)
        return self.runs.pop(0)


def run(*failures: str, passed: int = 10, exitstatus: int | None = None) -> tier.Run:
    status = int(bool(failures)) if exitstatus is None else exitstatus
    return tier.Run(passed=passed, failed=len(failures), skipped=2, failures=failures, exitstatus=status)


def test_a_run_without_failures_is_good_and_runs_once() -> None:
    pytest_ = Pytest(run())
    verdict = tier.try_tier(A_TIER, pytest_, ())
    assert (verdict.is_good, verdict.counts, verdict.flaky) == (True, "10 passed, 0 failed, 2 skipped", ())
    assert len(pytest_.arguments) == 1


def test_a_test_that_passes_alone_is_flaky_and_counts_as_passed() -> None:
    pytest_ = Pytest(run("a::b"), run())
    verdict = tier.try_tier(A_TIER, pytest_, ())
    assert (verdict.is_good, verdict.counts, verdict.flaky) == (True, "11 passed, 0 failed, 2 skipped", ("a::b",))
    assert pytest_.arguments[1] == [["-p", "no:xdist", "a::b"]]


def test_a_test_that_fails_twice_fails_the_run_beside_one_that_is_flaky() -> None:
    verdict = tier.try_tier(A_TIER, Pytest(run("a", "b"), run("b")), ())
    assert (verdict.is_good, verdict.failed, verdict.flaky) == (False, 1, ("a",))


def test_the_fourth_flaky_test_fails_the_run() -> None:
    assert tier.try_tier(A_TIER, Pytest(run("a", "b", "c"), run()), ()).is_good
    verdict = tier.try_tier(A_TIER, Pytest(run("a", "b", "c", "d"), run()), ())
    assert (verdict.is_good, verdict.complaints) == (False, ("4 tests are flaky, and 3 may be",))


def test_a_test_that_was_flaky_before_fails_the_run() -> None:
    known = tier.known_flakes("# DATE TEST\n\n2026-11-28 a::b[x y]\n")
    assert known == {"a::b[x y]"}
    verdict = tier.try_tier(A_TIER, Pytest(run("a::b[x y]"), run()), known)
    assert not verdict.is_good
    assert "a::b[x y] was flaky before" in verdict.complaints[0]


def test_if_many_tests_fail_none_runs_again() -> None:
    pytest_ = Pytest(run(*map(str, range(tier.AGAIN_MAX + 1))))
    assert tier.try_tier(A_TIER, pytest_, ()).failed == tier.AGAIN_MAX + 1
    assert len(pytest_.arguments) == 1


@pytest.mark.parametrize(
    "broken",
    [run(exitstatus=3), run(exitstatus=1), run(exitstatus=5, passed=0), run("a", exitstatus=2), run(exitstatus=-9)],
    ids=["internal error", "no name", "no tests", "interrupted", "killed"],
)
def test_a_run_that_did_not_finish_fails_and_runs_no_test_again(broken: tier.Run) -> None:
    verdict = tier.try_tier(A_TIER, Pytest(broken), ())
    assert not verdict.is_good
    assert verdict.failed >= 1


def test_a_second_run_that_breaks_leaves_all_failures() -> None:
    assert tier.try_tier(A_TIER, Pytest(run("a", "b"), run(exitstatus=4, passed=0)), ()).failed == 2


def test_runs_side_by_side_count_together() -> None:
    both = tier.joined([run("a"), run("b", "c", passed=5)])
    assert both == tier.Run(passed=15, failed=3, skipped=4, failures=("a", "b", "c"), exitstatus=1)
    assert tier.joined([run(), run()]).is_whole


@pytest.mark.parametrize("broken", [run(exitstatus=1), run(exitstatus=-9), run("a", exitstatus=0), run(exitstatus=5)])
def test_runs_side_by_side_are_broken_if_one_is(broken: tier.Run) -> None:
    for both in ([broken, run("b")], [run("b"), broken], [run(), broken]):
        assert not tier.joined(both).is_whole


BARE = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
"""Without the plugins that are installed: to import all of them takes seconds."""
PROGRAM = """
import tier
from pathlib import Path

def part(name, **more):
    return tier.Tier(paths=(f"test_{name}.py",), processes=1, options=("-p", "no:cacheprovider", "-v"), **more)

tier.BUILD = tier.ROOT = Path.cwd()
verdict = tier.try_tier(part("a", beside=part("b")), tier.run_pytests, ())
print(verdict.counts)
"""


def test_a_tier_may_have_a_second_pytest_at_the_same_time(tmp_path: Path) -> None:
    """Each waits for the other, and the output of the second comes last."""
    for name, other in (("a", "b"), ("b", "a")):
        (tmp_path / f"test_{name}.py").write_text(
            "from pathlib import Path\nfrom patience import until\n"
            f"def test_waits():\n    Path({name!r}).touch()\n    until(Path({other!r}).exists)\n"
        )
    (tmp_path / "conftest.py").write_text("pytest_plugins = ['plugins_report']\n")
    environment = {**BARE, "PYTHONPATH": str(tier.ROOT / "tests")}
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, env=environment, check=True, stdout=subprocess.PIPE, text=True
    )
    assert "2 passed, 0 failed, 0 skipped" in ran.stdout
    assert ran.stdout.index("test_a.py::") < ran.stdout.index("1 passed") < ran.stdout.index("test_b.py::")


def test_the_report_counts_and_names_failures_and_errors_once_and_without_groups() -> None:
    def report(nodeid: str) -> SimpleNamespace:
        return SimpleNamespace(nodeid=nodeid)

    stats = {
        "passed": [report("x")] * 3,
        "xfailed": [report("y")],
        "skipped": [report("z")],
        "failed": [report("tests/a.py::b[c@d]@tests/a.py")],
        "error": [report("tests/a.py::b[c@d]@tests/a.py")],
        "deselected": [report("w")],
    }
    assert plugins_report.counted(stats, is_grouped=True) == {
        "passed": 3,
        "failed": 2,
        "skipped": 2,
        "failures": ["tests/a.py::b[c@d]"],
    }
    assert plugins_report.counted({"failed": [report("a[b@c]")]}, is_grouped=False)["failures"] == ["a[b@c]"]


def test_one_process_runs_all_tests_of_a_group(tmp_path: Path) -> None:
    (tmp_path / "test_group.py").write_text(
        "import os, pytest\n@pytest.mark.xdist_group('g')\n@pytest.mark.parametrize('n', range(4))\n"
        f"def test_notes(n):\n    open({str(tmp_path / 'pids')!r}, 'a').write(f'{{os.getpid()}}\\n')\n"
    )
    options = ("-p", "xdist", "-p", "no:cacheprovider", "-q", "-n", "2", "--dist", "loadgroup")
    subprocess.run([sys.executable, "-m", "pytest", *options, str(tmp_path)], cwd=tmp_path, env=BARE, check=True)
    pids = (tmp_path / "pids").read_text().split()
    assert (len(pids), len(set(pids))) == (4, 1)


def test_a_tier_without_pytest_is_a_row_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tier, "BUILD", tmp_path)
    codes = [tier.run_command("dist", [sys.executable, "-c", f"raise SystemExit({code})"]) for code in (0, 3)]
    rows = [row.split("\t") for row in (tmp_path / "runs.tsv").read_text().splitlines()]
    assert codes == [0, 3]
    assert [row[2:8] for row in rows] == [["dist", "0", "", "0", "", "0"], ["dist", "0", "", "1", "", "0"]]


OF_ORPHANS = """
import sys
import tier
from pathlib import Path

tier.BUILD = tier.ROOT = Path.cwd()
tier.adopt_orphans()
command = f"(true & echo $! > orphan) && exec '{sys.executable}' command.py"
raise SystemExit(tier.run_command("dist", ["sh", "-c", command]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no process adopts orphans")
def test_orphans_of_a_command_are_waited_for_as_they_end(tmp_path: Path) -> None:
    """Or their CPU time is left out, and the command may wait for their end forever."""
    (tmp_path / "command.py").write_text(
        "from pathlib import Path\nfrom patience import until\n"
        "until(lambda: not Path('/proc', Path('orphan').read_text().strip()).exists())\n"
    )
    environment = {**BARE, "PYTHONPATH": str(tier.ROOT / "tests")}
    assert subprocess.run([sys.executable, "-c", OF_ORPHANS], cwd=tmp_path, env=environment).returncode == 0


def test_each_tier_of_the_makefile_leaves_a_row() -> None:
    made = (tier.ROOT / "Makefile").read_text()
    run = set(re.findall(r"\$\(call TIER,(\w[\w-]*)", made))
    assert {"connectors", "interop", "dist", "matrix"} <= run
    assert "$(call TIER,$(or $(TARGET),image))" in made
    assert re.search(r"RELEASE\),\$\(call TIER,", made)


@pytest.mark.parametrize("name", tier.TIERS)
def test_every_tier_has_its_files(name: str) -> None:
    paths = [path for part in tier.TIERS[name].parts for path in part.paths]
    assert [path for path in paths if not (tier.ROOT / path).exists()] == []
