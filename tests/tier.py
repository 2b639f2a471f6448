"""Runs one tier of the tests, and says what it cost: python tests/tier.py TIER [--load N] [options of pytest]

Or runs a command that is a tier without pytest: python tests/tier.py NAME --command COMMAND ...

A test that fails runs once more at the end, alone. If it passes then, it is flaky: the run passes and names it, unless four are
flaky or one of them is in tests/flaky.txt already. Each run is a row of build/tiers/runs.tsv.

--load N: beside N processes that use the processor and the disk, as on a machine that has more to do.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import IO

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build/tiers"
KNOWN = ROOT / "tests/flaky.txt"
FLAKY_MAX = 3
AGAIN_MAX = 12
"""If more tests fail, something is broken, and none of them runs again."""
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
LOAD = """
import hashlib, os, sys
block = os.urandom(1 << 20)
while True:
    for _ in range(64):
        block = hashlib.sha512(block).digest() * (1 << 14)
    with open(sys.argv[1], "wb") as file:
        file.write(block)
        os.fsync(file.fileno())
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """processes: that run tests side by side; 1: the tests run one after the other.

    beside: tests that a pytest of its own runs at the same time. Each process collects all tests of its pytest, so few processes
    should collect many tests.
    """

    paths: tuple[str, ...]
    processes: int
    options: tuple[str, ...] = ()
    beside: Tier | None = None

    @property
    def parts(self) -> tuple[Tier, ...]:
        return (self, *(self.beside.parts if self.beside else ()))

    @property
    def arguments(self) -> list[str]:
        spread = ["-n", str(self.processes), "--dist", "loadgroup", "--no-loadscope-reorder"]
        return [*(spread if self.processes > 1 else ["-p", "no:xdist"]), *self.options, *self.paths]


ON_SPARK = (
    *(f"tests/integration/test_spark_{name}.py" for name in ("jobs", "parse")),
    *(f"tests/spark/test_{name}.py" for name in ("cli", "dead_letters", "letters", "ranges", "sharing")),
    "tests/acceptance/test_hosts.py",
)
"""What hosts and transforms do on their own Spark, and again on a cluster and on a Connect server."""
NOT_OVER_CONNECT = "nests_as_deep or beyond_the_cap or restarts_under_its_name"
"""What differs there: the protocol nests less deeply, the server limits outputs, and a start is a part of one bound."""
UNIT = Tier(paths=("tests/unit",), processes=2, options=("--durations=10", "-q"))
TIERS = {
    "test": Tier(
        paths=("tests/acceptance", "tests/integration"), processes=3, options=("--durations=30", "-q"), beside=UNIT
    ),
    "unit": UNIT,
    "spark": Tier(paths=("tests/spark",), processes=3),
    "examples": Tier(paths=("tests/examples",), processes=3),
    "contracts": Tier(
        paths=("tests/connectors",), processes=4, options=("-k", "contract and not kafka and not pulsar")
    ),  # which needs Maven
    "connectors": Tier(paths=("tests/connectors",), processes=5),
    "cluster": Tier(paths=("tests/cluster",), processes=1),
    "on-cluster": Tier(paths=ON_SPARK, processes=1, options=("--spark=cluster",)),
    "over-connect": Tier(paths=ON_SPARK, processes=1, options=("--spark=connect", "-k", f"not ({NOT_OVER_CONNECT})")),
    "timing": Tier(paths=("tests/timing",), processes=1),
    "lab": Tier(paths=("tests/lab",), processes=3),
    "interop": Tier(paths=("tests/interop",), processes=1, options=("--timeout=3600",)),
    "image": Tier(paths=("tests/image",), processes=1, options=("--ignore=tests/image/test_thin.py",)),
    "thin": Tier(paths=("tests/image/test_thin.py",), processes=1),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one run of pytest reported. failures: ids of tests, or of files that could not be collected."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    failures: tuple[str, ...] = ()
    exitstatus: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether it ran to its end, and every failure is known by its name."""
        return self.exitstatus in (0, 1) and (self.exitstatus == 0) == (not self.failures)


def joined(runs: Sequence[Run]) -> Run:
    """What all of them reported. It is not whole if one of them is not."""
    broken = next((each for each in runs if not each.is_whole), None)
    return Run(
        passed=sum(each.passed for each in runs),
        failed=sum(each.failed for each in runs),
        skipped=sum(each.skipped for each in runs),
        failures=() if broken else tuple(name for each in runs for name in each.failures),
        exitstatus=(broken.exitstatus or 1) if broken else max(each.exitstatus for each in runs),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """complaints: why the run fails although no test failed twice."""

    passed: int
    failed: int
    skipped: int
    flaky: tuple[str, ...] = ()
    complaints: tuple[str, ...] = ()

    @property
    def is_good(self) -> bool:
        return self.failed == 0 and not self.complaints

    @property
    def counts(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


def judged(first: Run, again: Run | None, known: Collection[str]) -> Verdict:
    """again: the failures of the first run, alone; None if they did not run again."""
    if not first.is_whole:
        complaint = f"pytest did not finish: exit code {first.exitstatus}"
        return Verdict(passed=first.passed, failed=max(first.failed, 1), skipped=first.skipped, complaints=(complaint,))
    if again is None:
        return Verdict(passed=first.passed, failed=first.failed, skipped=first.skipped)
    if not again.is_whole:
        return Verdict(passed=first.passed, failed=first.failed, skipped=first.skipped)
    flaky = tuple(each for each in first.failures if each not in again.failures)
    return Verdict(
        passed=first.passed + len(flaky),
        failed=len(again.failures),
        skipped=first.skipped,
        flaky=flaky,
        complaints=tuple(_complaints(flaky, known)),
    )


def _complaints(flaky: Sequence[str], known: Collection[str]) -> Iterator[str]:
    if len(flaky) > FLAKY_MAX:
        yield f"{len(flaky)} tests are flaky, and {FLAKY_MAX} may be"
    for each in flaky:
        if each in known:
            yield f"{each} was flaky before (tests/flaky.txt): correct it, or move it to another tier"


def known_flakes(text: str) -> frozenset[str]:
    """The tests in the lines of tests/flaky.txt: DATE TEST."""
    lines = (line.split(maxsplit=1) for line in text.splitlines() if line.strip() and not line.startswith("#"))
    return frozenset(name for _, name in lines)


def runs_again(first: Run) -> bool:
    return first.is_whole and 0 < len(first.failures) <= AGAIN_MAX


# Processes


def run_pytests(runs: Sequence[Sequence[str]]) -> Run:
    """Run pytest once with each of these arguments, all at the same time. The output of the first is shown at once, that of the
    others at the end. Raises KeyboardInterrupt after an interrupt, as soon as pytest has cleaned up."""
    reports = [BUILD / f"report-{number}.json" for number in range(len(runs))]
    with tempfile.TemporaryFile() as later:
        processes = [
            _start(arguments, report, later if number else None)
            for number, (arguments, report) in enumerate(zip(runs, reports, strict=True))
        ]
        with _interrupts_passed_on(processes):
            _wait(processes)
        later.seek(0)
        sys.stdout.buffer.write(later.read())
    return joined([_read(report, each.returncode) for report, each in zip(reports, processes, strict=True)])


def _start(arguments: Sequence[str], report: Path, output: IO[bytes] | None) -> subprocess.Popen[bytes]:
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", f"--report={report}", *arguments]
    return subprocess.Popen(
        command, cwd=ROOT, stdout=output, stderr=output, start_new_session=True, preexec_fn=_die_with_parent
    )


def _read(report: Path, code: int) -> Run:
    try:
        found = json.loads(report.read_text())
    except (OSError, ValueError):
        return Run(failed=1, exitstatus=code or 1)
    return Run(**{**found, "failures": tuple(found["failures"]), "exitstatus": code})


@contextmanager
def _interrupts_passed_on(processes: Sequence[subprocess.Popen[bytes]]) -> Iterator[None]:
    """The first one ends pytest with the clean-up of its fixtures, the second at once. Raises KeyboardInterrupt at the end."""
    seen: list[int] = []

    def interrupt(number: int, _: FrameType | None) -> None:
        seen.append(number)
        for each in processes:
            with suppress(ProcessLookupError):
                os.killpg(each.pid, signal.SIGKILL) if len(seen) > 1 else each.send_signal(signal.SIGTERM)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    yield
    if seen:
        raise KeyboardInterrupt


def _wait(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Until all of them have ended. Orphans of their tests are children of this process, and are waited for as they end."""
    left = {each.pid: each for each in processes}
    while left:
        pid, status = os.waitpid(-1, 0)
        if ended := left.pop(pid, None):
            ended.returncode = os.waitstatus_to_exitcode(status)


def adopt_orphans() -> None:
    """Make their CPU time count (Linux; elsewhere they are left out)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


@contextmanager
def loaded(processes: int) -> Iterator[None]:
    """Beside processes that compute and write without end."""
    with tempfile.TemporaryDirectory(prefix="leasehold-load-") as folder:
        busy = [
            subprocess.Popen([sys.executable, "-c", LOAD, f"{folder}/{number}"], preexec_fn=_die_with_parent)
            for number in range(processes)
        ]
        try:
            yield
        finally:
            for each in busy:
                each.kill()
            for each in busy:
                each.wait()


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


# Output


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def report(name: str, verdict: Verdict, seconds: float, cpu: float, load: int) -> None:
    for each in verdict.complaints:
        say(f"{name}: {each}")
    say(f"flaky: {len(verdict.flaky)}" + "".join(f"\n  {each}" for each in verdict.flaky))
    today = datetime.now(UTC).date().isoformat()
    new = [f"  {today} {each}" for each in verdict.flaky]
    if new and verdict.is_good:
        say("\n".join(["add to tests/flaky.txt, and find out why:", *new]))
    beside = f", beside {load} busy processes" if load else ""
    say(f"{name}: {seconds:.0f} s, {cpu:.0f} s of CPU time{beside}")
    say(verdict.counts)


def note(name: str, counts: Sequence[object], seconds: float, cpu: float, load: int) -> None:
    """Append a row: date, commit, tier, load, counts (passed, failed, skipped, flaky), seconds, CPU seconds."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    row = (
        datetime.now(UTC).isoformat(timespec="minutes"),
        commit.strip() or "-",
        name,
        load,
        *counts,
        round(seconds),
        round(cpu),
    )
    with (BUILD / "runs.tsv").open("a") as file:
        file.write("\t".join(map(str, row)) + "\n")


def try_tier(tier: Tier, run: Callable[[Sequence[Sequence[str]]], Run], known: Collection[str]) -> Verdict:
    """run: pytest, once with each of these arguments at the same time."""
    first = run([part.arguments for part in tier.parts])
    again = None
    if runs_again(first):
        say(f"once more, alone: {len(first.failures)}")
        again = run([["-p", "no:xdist", *first.failures]])
    return judged(first, again, known)


def run_command(name: str, command: Sequence[str]) -> int:
    """Its exit code. It is one row, which counts no tests."""
    began = time.monotonic()
    with subprocess.Popen(command, cwd=ROOT, preexec_fn=_die_with_parent) as process:
        _wait([process])
    note(name, ("", int(process.returncode != 0), "", 0), time.monotonic() - began, cpu_s(), 0)
    return process.returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tier", help=", ".join(TIERS))
    parser.add_argument("--command", nargs=argparse.REMAINDER)
    parser.add_argument("--load", type=int, default=0, metavar="N")
    options, more = parser.parse_known_args()
    BUILD.mkdir(parents=True, exist_ok=True)
    adopt_orphans()
    if not options.command and options.tier not in TIERS:
        parser.error(f"{options.tier} is none of {', '.join(TIERS)}")
    try:
        if options.command:
            return run_command(options.tier, options.command)
        tier, began = TIERS[options.tier], time.monotonic()
        with loaded(options.load):
            verdict = try_tier(
                tier,
                lambda runs: run_pytests([[*arguments, *more] for arguments in runs]),
                known_flakes(KNOWN.read_text() if KNOWN.exists() else ""),
            )
            seconds, cpu = time.monotonic() - began, cpu_s()
    except KeyboardInterrupt:
        return 130
    report(options.tier, verdict, seconds, cpu, options.load)
    counts = (verdict.passed, verdict.failed, verdict.skipped, len(verdict.flaky))
    note(options.tier, counts, seconds, cpu, options.load)
    return 0 if verdict.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
