"""`.ci/matrix` on machines with other interpreters: stand-ins that say which version they are, and what their tests did."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
PYTHON = """#!/bin/sh
case "$*" in
  *json*) {probe};;
  *) echo {version};;
esac
"""
UV = """#!/bin/sh
[ "$UV_SYSTEM_CERTS" = 1 ] || exit 9
echo "$UV_PYTHON" >> "{log}"
case "$UV_PYTHON" in *{unfit}*) echo "pyarrow==1 has no wheel for cp399" >&2; exit 2;; esac
mkdir -p "$UV_PROJECT_ENVIRONMENT/bin"
printf '#!/bin/sh\\necho "$*" >> "{log}.tests"\\n'\
'for each; do case "$each" in --junitxml=*) report="${{each#*=}}";; esac; done\\n'\
'echo "<testsuites><testsuite tests=\\"9\\" failures=\\"{failures}\\" errors=\\"0\\" skipped=\\"2\\"/></testsuites>"'\
' > "$report"\\n'\
'{hangs}exit {code}\\n' > "$UV_PROJECT_ENVIRONMENT/bin/python"
chmod +x "$UV_PROJECT_ENVIRONMENT/bin/python"
"""


class Machine:
    """A clone of what the script needs, and folders of interpreters."""

    def __init__(self, folder: Path) -> None:
        self.clone, self.home, self.tools = folder / "clone", folder / "home", folder / "bin"
        for each in (self.clone / ".ci", self.clone / ".venv/bin", self.home, self.tools, folder / "usr"):
            each.mkdir(parents=True)
        shutil.copy(ROOT / ".ci/matrix", self.clone / ".ci/matrix")
        (self.clone / "pyproject.toml").touch()
        (self.clone / "uv.lock").write_text('[[package]]\nname = "pyarrow"\nwheels = [{ url = "x" }]\n')
        self.usr = folder / "usr"
        self.log = folder / "uv.log"
        self.uv_does()
        self.has(self.clone / ".venv/bin/python", "3.11.2")

    def script(self, path: Path, text: str) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
        return path

    def uv_does(self, *, failures: int = 0, code: int = 0, unfit: str = "none", hangs: bool = False) -> None:
        pause = "exec tail -f /dev/null\\n" if hangs else ""
        text = UV.format(log=self.log, failures=failures, code=code, unfit=unfit, hangs=pause)
        self.script(self.clone / ".venv/bin/uv", text)

    def has(self, path: Path, version: str, *, is_broken: bool = False, is_usual: bool = True) -> Path:
        numbers = [int(each) for each in version.split(".")]
        probe = f"echo '{json.dumps({'version': numbers, 'path': str(path), 'is_usual': is_usual})}'"
        if is_broken:
            probe = "echo \"ModuleNotFoundError: No module named '_lzma'\" >&2; exit 1"
        return self.script(path, PYTHON.format(probe=probe, version=version))

    def run(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        given = {"HOME": str(self.home), "SYSTEM_PYTHONS": str(self.usr), **env}
        given["PATH"] = f"{self.tools}:{shell_alone(self.home)}"
        return subprocess.run(
            [sys.executable, self.clone / ".ci/matrix", *arguments],
            env=given,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    def synced(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


def shell_alone(home: Path) -> Path:
    """A folder with what the stand-ins call, and no Python of this machine's."""
    folder = home / "shell"
    folder.mkdir(exist_ok=True)
    for tool in ("sh", "mkdir", "chmod", "tail"):
        found = shutil.which(tool)
        assert found, tool
        if not (folder / tool).exists():
            (folder / tool).symlink_to(found)
    return folder


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def rows(result: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """Of the table: what stands behind each version."""
    lines = result.stdout.rpartition("\nPython ")[2].splitlines()[1:]
    return {line.split()[0]: " ".join(line.split()[2:]) for line in lines}


def test_each_minor_version_that_is_new_enough_runs_once(machine: Machine) -> None:
    machine.has(machine.usr / "python3.11", "3.11.2")
    machine.has(machine.tools / "python3", "3.11.9")
    machine.has(machine.tools / "python3.10", "3.10.1")
    machine.has(machine.tools / "python3.15", "3.15.0", is_usual=False)
    machine.has(machine.home / ".pyenv/shims/python3.12", "3.12.7")
    own = machine.has(machine.home / ".pyenv/versions/3.12.1/bin/python3.12", "3.12.1")
    machine.has(machine.home / ".local/share/uv/python/cpython-3.14.0-linux/bin/python3.14", "3.14.0")
    result = machine.run()
    assert result.returncode == 0, result.stdout + result.stderr
    assert rows(result) == dict.fromkeys(("3.11.2", "3.12.1", "3.14.0"), "7 0 2")
    assert str(own) in result.stdout


def test_an_environment_is_kept_until_what_it_is_made_of_changes(machine: Machine) -> None:
    python = machine.has(machine.usr / "python3.12", "3.12.1")
    assert machine.run().returncode == machine.run().returncode == 0
    assert machine.synced() == [str(python)]
    (machine.clone / "uv.lock").write_text("package = []\n")
    assert machine.run().returncode == 0
    machine.has(machine.usr / "python3.12", "3.12.9")
    assert machine.run().returncode == 0
    assert machine.synced() == [str(python)] * 3


def test_a_failure_of_one_leaves_the_others_their_turn_and_is_the_result(machine: Machine) -> None:
    machine.has(machine.usr / "python3.11", "3.11.2")
    broken = machine.has(machine.usr / "python3.12", "3.12.1", is_broken=True)
    machine.has(machine.usr / "python3.13", "3.13.0")
    machine.has(machine.usr / "python3.14", "3.14.0")
    machine.uv_does(unfit="python3.13")
    result = machine.run()
    assert result.returncode == 1
    assert rows(result)["3.11.2"] == rows(result)["3.14.0"] == "7 0 2"
    assert f"error: {broken} is broken: ModuleNotFoundError: No module named '_lzma'" in rows(result)["3.12.1"]
    assert "uv could not install" in rows(result)["3.13.0"]
    assert "pyarrow==1 has no wheel for cp399" in rows(result)["3.13.0"]


@pytest.mark.parametrize(("failures", "code", "row"), [(3, 1, "4 3 2"), (0, 3, "error: pytest ended with exit code 3")])
def test_tests_that_fail_or_do_not_end_are_the_result(machine: Machine, failures: int, code: int, row: str) -> None:
    machine.has(machine.usr / "python3.12", "3.12.1")
    machine.uv_does(failures=failures, code=code)
    result = machine.run()
    assert (result.returncode, rows(result)) == (1, {"3.12.1": row})


def test_tests_that_do_not_end_in_time_fail(machine: Machine) -> None:
    machine.has(machine.usr / "python3.12", "3.12.1")
    machine.uv_does(hangs=True)
    result = machine.run(MATRIX_S="1")
    expected = "error: the tests did not end within 1 s (MATRIX_S sets this limit)"
    assert (result.returncode, rows(result)) == (1, {"3.12.1": expected})


def test_a_broken_one_counts_for_nothing_if_another_has_its_version(machine: Machine) -> None:
    machine.has(machine.usr / "python3.12", "3.12.1", is_broken=True)
    machine.has(machine.tools / "python3.12", "3.12.4")
    result = machine.run()
    assert (result.returncode, rows(result)) == (0, {"3.12.4": "7 0 2"})


def test_interpreters_that_are_named_run_instead_and_none_of_them_is_ignored(machine: Machine) -> None:
    machine.has(machine.usr / "python3.11", "3.11.2")
    good, old = machine.has(machine.home / "a", "3.14.1"), machine.has(machine.home / "b", "3.9.1")
    assert rows(machine.run(PYTHONS=str(good))) == {"3.14.1": "7 0 2"}
    result = machine.run(PYTHONS=f"{good} {old} {machine.home}/missing")
    assert result.returncode == 1
    assert rows(result)["3.14.1"] == "7 0 2"
    assert f"{old} is Python 3.9.1: 3.11 or newer is needed" in rows(result)["3.9.1"]
    assert f"{machine.home}/missing is broken: " in result.stdout


def test_a_machine_without_any_is_told_so(machine: Machine) -> None:
    result = machine.run()
    assert result.returncode == 1
    assert result.stdout == (
        "matrix: no Python 3.11 or newer is found: install one, or name it: make matrix PYTHONS=/path/to/python3\n"
    )


@pytest.mark.parametrize(
    ("own", "versions", "ran"),
    [
        ("3.11.2", ["3.11.2", "3.12.1", "3.13.0"], ["3.13.0"]),
        ("3.12.1", ["3.11.2", "3.12.1", "3.13.0"], ["3.11.2", "3.13.0"]),
        ("3.13.0", ["3.11.2", "3.12.1", "3.13.0"], ["3.11.2"]),
    ],
)
def test_the_ends_are_the_oldest_and_the_newest_without_the_one_of_make_test(
    machine: Machine, own: str, versions: list[str], ran: list[str]
) -> None:
    machine.has(machine.clone / ".venv/bin/python", own)
    for version in versions:
        machine.has(machine.usr / f"python{version.rpartition('.')[0]}", version)
    assert list(rows(machine.run("--ends"))) == ran


def test_the_ends_run_only_the_tests_that_can_differ(machine: Machine) -> None:
    machine.has(machine.usr / "python3.12", "3.12.1")
    machine.has(machine.clone / ".venv/bin/python", "3.11.2")
    machine.run()
    machine.run("--ends")
    every, ends = Path(f"{machine.log}.tests").read_text().splitlines()
    assert every.endswith(" tests/unit")
    assert " tests/unit/pipeline/parsing " in ends
    assert not ends.endswith(" tests/unit")


def test_a_machine_with_one_version_alone_says_so(machine: Machine) -> None:
    machine.has(machine.usr / "python3.11", "3.11.2")
    result = machine.run("--ends")
    assert result.returncode == 0
    assert "Python 3.11.2 is the only one here" in result.stdout
    assert machine.synced() == []
