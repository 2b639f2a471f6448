"""`make scenarios`: every role of the bank killed, and frozen, at every crash point, and moved from a slow owner to another, and
over event hubs met by every fault of the wire, over NATS, Kafka and Pulsar left without a broker; its end compared with an
undisturbed one.

Prints a table. Exit code 1 where an end differs, where a host does not carry on, or where a point is never reached. A process
that is frozen at a point could keep others out of SQLite's files if one of its other threads were inside a transaction at that
moment; crash points see to it that none is (leasehold.pipeline.crash_point), and every freeze is looked at: such a one would be
told.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue

from lab.scenarios import moves
from lab.scenarios.bank import Bank, Result
from lab.scenarios.cases import displaced, exit_code, named, points_of_sink, table, told_to_end
from lab.scenarios.grounds import FEEDS, LEASES, ROLES, MakeGround, behind, grounds
from lab.scenarios.place import place, say
from patience import Failed

SINKS = {
    "log": {"generate": "log", "transform": "log", "balances": "postgres"},
    "eventhubs": {"generate": "eventhubs", "transform": "eventhubs", "balances": "postgres"},
    "nats": {"generate": "nats", "transform": "nats", "balances": "postgres"},
    "kafka": {"generate": "kafka", "transform": "kafka", "balances": "postgres"},
    "pulsar": {"generate": "pulsar", "transform": "pulsar", "balances": "postgres"},
}
"""What the logs are -> role -> type of its sink."""
TIMES = 2
"""The second time a point is reached: something has been delivered, and something else has not."""
BANKS = 2
"""Side by side; a case waits for half of its time."""
IDENTICAL = "identical"


def crash(bank: Bank, role: str, point: str) -> None:
    """The role dies at the point, and is started again. Raises Failed."""
    with bank.running("a", role, armed=f"{point}:{TIMES}") as host:
        if (code := host.ended()) != -signal.SIGKILL:
            raise Failed(f"the point was not reached: exit code {code}")
    bank.run("a", role, *behind(role))


def freeze(bank: Bank, role: str, point: str, *, beside: Sequence[str] | None = None) -> None:
    """The role freezes at the point until another host has taken all that it owned; then it goes on. Raises Failed.

    beside: the other's further roles, by default those behind this one.
    """
    displaced(bank, f"{point}:{TIMES}:SIGSTOP", role, *(behind(role) if beside is None else beside))


@dataclass(frozen=True, slots=True)
class Case:
    """point: where the fault strikes, or how a partition is moved."""

    scenario: str
    role: str
    point: str
    fault: Callable[[Bank], None]

    @property
    def name(self) -> str:
        return f"{self.scenario:24}{self.role:12}{self.point:22}"


CRASHES = (
    ("event-generator-crash", "generate"),
    ("stream-processor-crash", "transform"),
    ("view-generator-crash", "balances"),
)
MOVES = {"slow, handoff": moves.handoff, "slow, steal": moves.steal}


def cases(only: str = "", feed: str = "log") -> list[Case]:
    """feed: what the logs are."""
    crashes = [case_of(name, role, point, crash) for name, role in CRASHES for point in points_of(role, feed)]
    freezes = [case_of("duplicated-consumer", role, point, freeze) for role in ROLES for point in points_of(role, feed)]
    moved = [
        Case("duplicated-consumer", role, how, partial(move, role=role))
        for role in ROLES
        for how, move in MOVES.items()
    ]
    broken = broken_wires(feed)
    return [case for case in (*crashes, *freezes, *moved, *broken) if only in case.name]


def broken_wires(feed: str) -> list[Case]:
    if feed in ("nats", "kafka", "pulsar"):
        from lab.scenarios.brokers import BREAKAGES, survived

        return [
            Case("broken-wire", role, how, partial(survived, role=role, how=how)) for role in ROLES for how in BREAKAGES
        ]
    if feed != "eventhubs":
        return []
    from lab.scenarios.hub_faults import FAULTS, met  # the SDKs of Azure take a second to import

    return [Case("broken-wire", each.role, each.name, partial(met, fault=each)) for each in FAULTS]


def case_of(scenario: str, role: str, point: str, fault: Callable[[Bank, str, str], None]) -> Case:
    return Case(scenario, role, point, lambda bank: fault(bank, role, point))


def points_of(role: str, feed: str = "log") -> list[str]:
    return points_of_sink(SINKS[feed][role])


def undisturbed(bank: Bank) -> Result:
    bank.open()
    bank.run("calm", *ROLES)
    for role in ROLES:
        bank.keep(role)
    result = bank.result()
    bank.assert_expected(result)
    return result


def verdict(bank: Bank, calm: Result, case: Case) -> str:
    try:
        bank.put_back(case.role)
        case.fault(bank)
        found = bank.result()
    except Failed as failed:
        return str(failed)
    except Exception as error:
        return f"{type(error).__name__}: {error}"  # the other cases are still worth their time
    return IDENTICAL if found == calm else f"DIFFERS: {found.told}, and not {calm.told}"


@dataclass(frozen=True, slots=True)
class Banks:
    """Each with the result of its undisturbed run; cases take turns."""

    free: SimpleQueue[tuple[Bank, Result]]
    calm: Result

    def verdict(self, case: Case) -> str:
        bank, calm = self.free.get()
        try:
            return verdict(bank, calm, case)
        finally:
            self.free.put((bank, calm))


@contextmanager
def opened(count: int, stands_on: AbstractContextManager[MakeGround]) -> Iterator[Banks]:
    """Banks whose undisturbed runs came to the same."""
    with place("scenarios") as (directory, server), stands_on as make:
        banks = [Bank(directory / str(number), server, make, f"bank{number}") for number in range(count)]
        try:
            with ThreadPoolExecutor(count) as threads:
                results = list(threads.map(undisturbed, banks))
            if any(result != results[0] for result in results):
                raise Failed("undisturbed runs differ")
            free: SimpleQueue[tuple[Bank, Result]] = SimpleQueue()
            for each in zip(banks, results, strict=True):
                free.put(each)
            yield Banks(free, results[0])
        finally:
            for bank in banks:
                bank.close()


def main() -> int:
    parser = argparse.ArgumentParser(description="Every role of the bank, killed and frozen at every crash point.")
    parser.add_argument("--only", default="", help="part of a scenario's, a role's or a point's name")
    parser.add_argument("--banks", type=int, default=BANKS, help="how many cases at a time")
    parser.add_argument("--feed", choices=FEEDS, default="log", help="what the bank's logs are")
    parser.add_argument("--leases", choices=LEASES, default="sqlite", help="where leases are, with --feed log")
    parser.add_argument(
        "--plain", action="store_true", help="without Spark (not eventhubs): PostgreSQL reads the events as they are"
    )
    arguments = parser.parse_args()
    if arguments.plain and arguments.feed == "eventhubs":
        parser.error("--plain does not go with --feed eventhubs")
    if arguments.leases != "sqlite" and arguments.feed != "log":
        parser.error("--leases goes with --feed log")
    wanted = named(arguments.only, cases(feed=arguments.feed), parser)
    signal.signal(signal.SIGTERM, told_to_end)
    began = time.monotonic()
    with (
        suppress(KeyboardInterrupt),
        opened(
            arguments.banks, grounds(arguments.feed, leases=arguments.leases, with_spark=not arguments.plain)
        ) as banks,
    ):
        say(f"undisturbed: {banks.calm.told}\n")
        identical = table(banks.verdict, wanted, at_a_time=arguments.banks, good=IDENTICAL)
        say(f"\n{identical} of {len(wanted)} ends identical, in {(time.monotonic() - began) / 60:.0f} min")
        return exit_code(wanted, identical)
    return 1


if __name__ == "__main__":
    sys.exit(main())
