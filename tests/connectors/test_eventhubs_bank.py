"""A slice of `make scenarios FEED=eventhubs`: the bank over event hubs, through a crash and lost answers, is exact in the end.

Starting a Spark takes its time, so all of it happens to one bank, and every test looks at one side of what came of it.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from lab.scenarios.bank import TRANSACTIONS, Bank, Result
from lab.scenarios.grounds import LOGS, ROLES
from lab.scenarios.hubs import FEED_GROUP, LINK_STOLEN, Hubs
from plugins_eventhubs import EventHubs

FAULTS: tuple[dict[str, Any], ...] = (
    {"do": "cut_after", "of": "send", "hub": "raw-event", "after": 1, "times": 1},
    {"do": "lose_ack", "of": "send", "hub": "transformed-event", "after": 2, "times": 1},
    {"do": "detach", "of": "receive", "hub": "raw-event", "group": FEED_GROUP, "condition": LINK_STOLEN, "after": 99},
)


@dataclass(frozen=True, slots=True)
class Ended:
    """files: name -> its transactions. crashed: how the generator's first host ended. taken: calls, by each of FAULTS."""

    bank: Bank
    result: Result
    files: dict[str, list[dict[str, str]]]
    crashed: int
    taken: list[int]


@pytest.fixture(scope="module")
def ended(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: Any, eventhubs_server: EventHubs, azurite: str
) -> Iterator[Ended]:
    def made(directory: Path, name: str) -> Hubs:
        return Hubs(directory, name, eventhubs_server, azurite, None)

    bank = Bank(tmp_path_factory.mktemp("bank"), postgres_server, made, "hubs")
    hubs = bank.ground
    assert isinstance(hubs, Hubs)
    try:
        bank.open()
        with bank.running("a", "generate", armed="published:2") as host:
            crashed = host.ended()
        with ExitStack() as orders:
            broken = [
                orders.enter_context(hubs.faulty(**{"times": 2, **fault, "hub": hubs.hub(fault["hub"])}))
                for fault in FAULTS
            ]
            bank.run("a", *ROLES)
            yield Ended(bank, bank.result(), bank.transactions(), crashed, [taken() for taken in broken])
    finally:
        bank.close()


def test_all_of_it_has_happened(ended: Ended) -> None:
    assert ended.crashed == -signal.SIGKILL
    assert ended.taken == [1, 1, 2]


def test_balances_are_exact_to_the_cent(ended: Ended) -> None:
    ended.bank.assert_expected(ended.result)


def test_every_transaction_is_in_both_hubs_once_in_the_order_of_its_file(ended: Ended) -> None:
    raw, transformed = (ended.result.logs[log] for log in LOGS)
    assert sum(map(len, raw.values())) == TRANSACTIONS
    assert raw == ended.files
    for name, rows in ended.files.items():
        values = [(body["account"], abs(Decimal(str(body["value"])))) for body in transformed[name]]
        assert values == [(row["account"], Decimal(row["amount"])) for row in rows]


def test_the_view_knows_every_event_of_the_last_hub(ended: Ended) -> None:
    assert ended.bank.counted() == TRANSACTIONS


def test_a_case_reads_what_the_undisturbed_run_has_made_and_makes_new_hubs(
    tmp_path: Path, eventhubs_server: EventHubs
) -> None:
    hubs = Hubs(tmp_path, "cases", eventhubs_server, "", None)
    hubs.open()
    raw, transformed = map(hubs.hub, LOGS)
    hubs.put_back(ROLES)
    assert not {raw, transformed} & set(map(hubs.hub, LOGS))
    hubs.put_back(ROLES[1:])
    assert hubs.hub("raw-event") == raw
    assert hubs.hub("transformed-event") != transformed
    hubs.put_back(ROLES[2:])
    assert list(map(hubs.hub, LOGS)) == [raw, transformed]
