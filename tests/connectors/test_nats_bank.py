"""A slice of `make scenarios FEED=nats`, without Spark: the bank over streams of a real server.

It goes through all four scenarios by which platforms are compared, and is exact in the end.

Hosts take their time to start, so all of it happens to one bank, and every test looks at one side of what came of it.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from lab.scenarios.bank import TRANSACTIONS, Bank, Result
from lab.scenarios.faults import freeze
from lab.scenarios.grounds import LOGS
from lab.scenarios.streams import bereaved, served


@dataclass(frozen=True, slots=True)
class Ended:
    """crashed: role -> how its first host ended."""

    bank: Bank
    result: Result
    crashed: dict[str, int]


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory, postgres_server: Any) -> Iterator[Ended]:
    with served(with_spark=False) as make:
        bank = Bank(tmp_path_factory.mktemp("bank"), postgres_server, make, "streams")
        try:
            bank.open()
            crashed = {"generate": _crashed(bank, "generate", "atomic batch stored")}
            with bank.running("a", "generate", slow=True) as host:
                bereaved(bank, "generate", "broker killed")
                bank.see_end(host)
            crashed["transform"] = _crashed(bank, "transform", "atomic batch stored")
            freeze(bank, "transform", "before atomic batch", beside=())
            crashed["balances"] = _crashed(bank, "balances", "committed")
            bank.run("a", "balances")
            yield Ended(bank, bank.result(), crashed)
        finally:
            bank.close()


def _crashed(bank: Bank, role: str, point: str) -> int:
    with bank.running("a", role, armed=f"{point}:2") as host:
        return host.ended()


def test_all_of_it_has_happened(ended: Ended) -> None:
    assert ended.crashed == dict.fromkeys(("generate", "transform", "balances"), -signal.SIGKILL)


def test_balances_are_exact_to_the_cent(ended: Ended) -> None:
    ended.bank.assert_expected(ended.result)


def test_every_transaction_is_in_both_streams_once_in_the_order_of_its_file(ended: Ended) -> None:
    assert sum(map(len, ended.result.logs["raw-event"].values())) == TRANSACTIONS
    assert all(ended.result.logs[log] == ended.bank.transactions() for log in LOGS)
