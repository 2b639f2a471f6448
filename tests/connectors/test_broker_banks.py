"""A slice of `make scenarios FEED=kafka`, `FEED=nats` and `FEED=pulsar`, without Spark: the bank over logs of a real broker.

It goes through all four scenarios by which platforms are compared, and is exact in the end. Hosts take their time to start, so
all of it happens to one bank, and every test looks at one side of what came of it.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from lab.scenarios import pulsar_topics, streams, topics
from lab.scenarios.bank import TRANSACTIONS, Bank, Result
from lab.scenarios.brokers import bereaved
from lab.scenarios.faults import freeze
from lab.scenarios.grounds import LOGS, MakeGround


@dataclass(frozen=True, slots=True)
class Points:
    """Crash points of a sink. times: how often the claims of all partitions pass them, and once more for a batch."""

    before: str
    stored: str
    times: int


POINTS = {
    "kafka": Points("transaction filled", "put", 6),
    "nats": Points("before put", "put", 2),
    "pulsar": Points("before entry", "entry stored", 2),
}


@dataclass(frozen=True, slots=True)
class Ended:
    """crashed: role -> how its first host ended."""

    bank: Bank
    result: Result
    crashed: dict[str, int]


@pytest.fixture(scope="module", params=POINTS)
def ended(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, postgres_server: Any
) -> Iterator[Ended]:
    served = {"kafka": topics.served, "nats": streams.served, "pulsar": pulsar_topics.served}[request.param]
    with served(with_spark=False) as make:
        yield from _ended(make, tmp_path_factory.mktemp("bank"), postgres_server, POINTS[request.param])


def _ended(make: MakeGround, directory: Path, postgres_server: Any, points: Points) -> Iterator[Ended]:
    bank = Bank(directory, postgres_server, make, "bank")
    try:
        bank.open()
        crashed = {"generate": _crashed(bank, "generate", points.before, points.times)}
        with bank.running("a", "generate", slow=True) as host:
            bereaved(bank, "generate", "broker killed")
            bank.see_end(host)
        crashed["transform"] = _crashed(bank, "transform", points.stored, points.times)
        freeze(bank, "transform", points.before, beside=())
        crashed["balances"] = _crashed(bank, "balances", "committed", 2)
        bank.run("a", "balances")
        yield Ended(bank, bank.result(), crashed)
    finally:
        bank.close()


def _crashed(bank: Bank, role: str, point: str, times: int) -> int:
    with bank.running("a", role, armed=f"{point}:{times}") as host:
        return host.ended()


def test_all_of_it_has_happened(ended: Ended) -> None:
    assert ended.crashed == dict.fromkeys(("generate", "transform", "balances"), -signal.SIGKILL)


def test_balances_are_exact_to_the_cent(ended: Ended) -> None:
    ended.bank.assert_expected(ended.result)


def test_every_transaction_is_in_both_logs_once_in_the_order_of_its_file(ended: Ended) -> None:
    assert sum(map(len, ended.result.logs["raw-event"].values())) == TRANSACTIONS
    assert all(ended.result.logs[log] == ended.bank.transactions() for log in LOGS)
