"""`make test` and `make connectors`, with a fake pytest: which runs there are, and what the last line says."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTEST = """#!/bin/sh
for argument; do
  case "$argument" in --total=*) file=${argument#--total=};; esac
done
[ -n "$file" ] || exit 0
name=${file##*/}
echo "$name" >> runs.log
echo "$UV_SYSTEM_CERTS $NODE_USE_SYSTEM_CA" > certificates.log
if [ -e stubborn ]; then
  trap 'echo $$ > "$name.cleanup"' TERM
  echo $$ > "$name.pid"
  while :; do tail --pid=$$ -f /dev/null & wait; done
fi
if [ -e hang ]; then echo $$ > "$name.pid"; exec tail -f /dev/null; fi
[ -e "$name.json" ] || exit 3
cat "$name.json" > "$file"
grep -q '"failed": 0' "$name.json"
"""


class Clone:
    """The Makefile in a folder where each run of pytest writes the counts that a test gave it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copy(ROOT / "Makefile", folder)
        (folder / "uv.lock").touch()
        python = f'#!/bin/sh\nexec {sys.executable} "$@"\n'
        for name, script in ((".ci/setup", "#!/bin/sh\n"), (".venv/bin/pytest", PYTEST), (".venv/bin/python", python)):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(script)
            (folder / name).chmod(0o755)
        (folder / "tests").mkdir()
        shutil.copy(ROOT / "tests/plugins_total.py", folder / "tests")
        (folder / "tests/java_archive.py").touch()

    def counts(self, run: str, passed: int, failed: int = 0, skipped: int = 0) -> None:
        (self.folder / f"{run}.json").write_text(json.dumps({"passed": passed, "failed": failed, "skipped": skipped}))

    @property
    def environment(self) -> dict[str, str]:
        return {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}

    def make(self, *arguments: str) -> tuple[int, str]:
        """The exit code, and the last line."""
        done = subprocess.run(
            ["make", *arguments],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return done.returncode, done.stdout.splitlines()[-1]

    @property
    def runs(self) -> set[str]:
        return set((self.folder / "runs.log").read_text().split())


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path)


def test_all_runs_count_in_one_last_line(clone: Clone) -> None:
    clone.counts("unit", 4900, skipped=40)
    clone.counts("alone", 11)
    clone.counts("rest", 341, skipped=1)
    assert clone.make("test") == (0, "5252 passed, 0 failed, 41 skipped")


@pytest.mark.parametrize("failing", ["unit", "alone", "rest"])
def test_all_runs_take_place_even_if_one_fails(clone: Clone, failing: str) -> None:
    for run in ("unit", "alone", "rest"):
        clone.counts(run, 5, failed=2 if run == failing else 0)
    assert clone.make("test") == (2, "15 passed, 2 failed, 0 skipped")
    assert clone.runs == {"unit", "alone", "rest"}


@pytest.mark.parametrize("crashing", ["unit", "alone", "rest"])
def test_a_run_that_crashes_is_a_failure(clone: Clone, crashing: str) -> None:
    for run in {"unit", "alone", "rest"} - {crashing}:
        clone.counts(run, 5)
    assert clone.make("test") == (2, "10 passed, 1 failed, 0 skipped")


def test_counts_of_an_earlier_run_do_not_count_again(clone: Clone) -> None:
    for run in ("unit", "alone", "rest"):
        clone.counts(run, 5)
    assert clone.make("test")[0] == 0
    (clone.folder / "alone.json").unlink()
    assert clone.make("test") == (2, "10 passed, 1 failed, 0 skipped")


def test_what_tests_download_trusts_the_systems_certificates_unless_the_user_says_otherwise(
    clone: Clone, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("UV_SYSTEM_CERTS", "NODE_USE_SYSTEM_CA"):
        monkeypatch.delenv(name, raising=False)
    clone.make("connectors")
    assert (clone.folder / "certificates.log").read_text() == "1 1\n"
    monkeypatch.setenv("UV_SYSTEM_CERTS", "0")
    clone.make("connectors")
    assert (clone.folder / "certificates.log").read_text() == "0 1\n"


def test_on_a_machine_without_certificates_downloads_use_those_of_uv(
    clone: Clone, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("UV_SYSTEM_CERTS", "NODE_USE_SYSTEM_CA"):
        monkeypatch.delenv(name, raising=False)
    clone.make("connectors", "CERTIFICATES=")
    assert (clone.folder / "certificates.log").read_text() == " \n"


def test_connectors_end_with_their_total(clone: Clone) -> None:
    clone.counts("alone", 3)
    clone.counts("rest", 200, failed=1)
    assert clone.make("connectors") == (2, "203 passed, 1 failed, 0 skipped")
    clone.counts("rest", 201)
    assert clone.make("connectors") == (0, "204 passed, 0 failed, 0 skipped")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_all_runs(clone: Clone, number: signal.Signals) -> None:
    (clone.folder / "hang").touch()
    make = start_connectors(clone)
    try:
        pids = [wait_for_pid(clone.folder / f"{run}.pid") for run in ("alone", "rest")]
        os.killpg(make.pid, number) if number == signal.SIGINT else make.send_signal(number)
        assert make.wait(timeout=60) != 0
        assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    finally:
        with suppress(ProcessLookupError):
            os.killpg(make.pid, signal.SIGKILL)
        make.wait()


def test_a_second_interrupt_ends_runs_that_do_not_finish_their_cleanup(clone: Clone) -> None:
    (clone.folder / "stubborn").touch()
    make = start_connectors(clone)
    try:
        pids = [wait_for_pid(clone.folder / f"{run}.pid") for run in ("alone", "rest")]
        os.killpg(make.pid, signal.SIGINT)
        for run in ("alone", "rest"):
            wait_for_pid(clone.folder / f"{run}.cleanup")
        assert all(Path(f"/proc/{pid}").exists() for pid in pids)
        os.killpg(make.pid, signal.SIGINT)
        assert make.wait(timeout=60) != 0
        assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    finally:
        with suppress(ProcessLookupError):
            os.killpg(make.pid, signal.SIGKILL)
        make.wait()


def start_connectors(clone: Clone) -> subprocess.Popen[bytes]:
    """In a process group of its own that heeds SIGINT: a shell's background, where these tests may run, ignores it."""
    command = ["env", "--default-signal", "make", "connectors"]
    return subprocess.Popen(command, cwd=clone.folder, env=clone.environment, start_new_session=True)


def wait_for_pid(file: Path) -> int:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if file.exists() and (text := file.read_text().strip()):
            return int(text)
        time.sleep(0.05)
    raise TimeoutError(file)
