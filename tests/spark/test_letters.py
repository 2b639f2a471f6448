"""Events that a real Spark cannot process: told all at once, isolated in few jobs, and left out of what the others become."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from math import log2
from typing import Any

import pyarrow as pa
import pytest
from connectors.eventhubs.clients import HUB
from connectors.eventhubs.feeds import feed, pages
from jobs import PER_KEY, MakeBatch, Prepare, Write, keyed
from plugins_bank import BALANCES, Make, Open, claim
from plugins_eventhubs import EventHubs
from plugins_pg import Postgres

from leasehold.common.clock import LoopClock
from leasehold.pipeline.batch import Batch
from leasehold.pipeline.connectors.memory import MemoryChangeFeed
from leasehold.pipeline.dead_letters import DeadLetters
from leasehold.pipeline.dead_letters.dead_letter_transform import DeadLetterTransform, Sifted
from leasehold.pipeline.errors import PoisonEvent
from leasehold.pipeline.limits import BatchLimits, Budget, Isolation
from leasehold.pipeline.poison import Prepared, Refused, Slice
from leasehold.pipeline.pump.progress import Progress
from leasehold.pipeline.pump.run_parts import DeliveredBatch, FailingEvents, ReadAhead, Reporting, Source
from leasehold.pipeline.pump.runner import Runner
from leasehold.pipeline.spark.transform import SparkTransform

pytestmark = pytest.mark.xdist_group("spark-1")

NOW = datetime(2026, 1, 31, tzinfo=UTC)
POLICY = DeadLetters(now=lambda: NOW, share_max=1.0)


def counted(transform: SparkTransform, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many events each job is given, from now on."""
    jobs: list[int] = []
    run = transform._job.run

    async def counting(slices: Sequence[Prepared]) -> list[pa.Table | Refused]:
        jobs.append(sum(len(each.slice.range) for each in slices))
        return await run(slices)

    monkeypatch.setattr(transform._job, "run", counting)
    return jobs


async def sifted(transform: SparkTransform, batch: Batch) -> Sifted:
    return await DeadLetterTransform(transform, POLICY, batch.partition, ()).sift(batch)


def dead(found: Sifted) -> list[Any]:
    return [] if found.dead is None else found.dead.select(["sequence", "error"]).to_pylist()


async def test_bodies_that_do_not_fit_cost_no_job_and_the_rest_is_processed_in_one(
    prepared: Prepare, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    sql = "SELECT partition, sum(amount) AS amount FROM events GROUP BY partition"
    transform = await prepared(schema="amount DECIMAL(10,2) NOT NULL", sql=sql, goes_on=True)
    jobs = counted(transform, monkeypatch)
    bodies = ['{"amount": 1.20}', "gibberish", '{"amount": 1.239}', '{"amount": "2"}', "{}", None]
    found = await sifted(transform, batch("0", bodies))
    assert [str(each) for each in found.table["amount"].to_pylist()] == ["3.20"]
    assert [(row["sequence"], row["error"]) for row in dead(found)] == [
        (1, "the body is not one JSON object: 'gibberish'"),
        (2, "column 'amount' does not fit DECIMAL(10,2): '1.239'"),
        (4, "column 'amount' is missing or null"),
        (5, "the body is null"),
    ]
    assert jobs == [6]
    nothing = await sifted(transform, batch("0", ["gibberish"] * 3))
    assert (nothing.table.num_rows, nothing.table.column_names, len(dead(nothing))) == (0, ["partition", "amount"], 3)


async def test_bodies_of_an_event_hub_that_are_no_json_are_told_by_number_and_the_rest_is_processed(
    prepared: Prepare, eventhubs: EventHubs
) -> None:
    bodies = ['{"a": 1}', "gibberish", "", "[1, 2]", '{"a": 2', "\0", '{"a": 3}']
    eventhubs.control.append(HUB, "0", bodies)
    async with feed(eventhubs) as hub:
        read = Batch("0", None, tuple(await pages(hub, len(bodies))), 0.0)
    spec = {"schema": "a INT NOT NULL", "sql": "SELECT partition, sequence, a FROM events"}
    found = await sifted(await prepared(**spec, goes_on=True), read)
    assert found.table.select(["sequence", "a"]).to_pylist() == [{"sequence": 0, "a": 1}, {"sequence": 6, "a": 3}]
    assert [row["sequence"] for row in dead(found)] == [1, 2, 3, 4, 5]
    assert {row["error"].partition(":")[0] for row in dead(found)} == {"the body is not one JSON object"}
    with pytest.raises(PoisonEvent, match=r"partition '0', sequence 1: the body is not one JSON object: 'gibberish'"):
        await DeadLetterTransform(await prepared(**spec), None, "0", ()).sift(read)


async def test_a_body_that_does_not_fit_costs_no_other_partition_its_place_in_the_job(
    prepared: Prepare, batch: MakeBatch
) -> None:
    transform = await prepared(schema="a INT NOT NULL", sql="SELECT partition, sequence, a FROM events")
    slices = [
        Slice(batch(name, bodies), range(2)) for name, bodies in (("0", ['{"a": 1}', "{}"]), ("1", ['{"a": 2}'] * 2))
    ]
    refused, output = await transform._job.run([await transform._job.prepare(each) for each in slices])
    assert isinstance(refused, Refused)
    assert ([each.index for each in refused.poison], refused.output) == ([1], None)
    assert not isinstance(output, Refused)
    assert output["a"].to_pylist() == [2, 2]


@pytest.mark.parametrize(
    ("body", "reason", "place"),
    [
        ("assert key != '!', 'mind the key'", "AssertionError: mind the key", 0),
        ("import os; key == '!' and os._exit(7)", "Python worker exited unexpectedly (crashed)", 9),
    ],
    ids=["raises", "kills its worker"],
)
async def test_a_poison_event_costs_few_jobs(
    body: str,
    reason: str,
    place: int,
    prepared: Prepare,
    batch: MakeBatch,
    function: Write,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    transform = await prepared(function=function(PER_KEY.format(body=body)), isolation=Isolation(most=10))
    jobs = counted(transform, monkeypatch)
    keys = "abcdefghijklmnop"
    found = await sifted(transform, batch("0", keyed(keys[:place] + "!" + keys[place + 1 :])))
    assert "".join(found.table["key"].to_pylist()) == keys[:place] + keys[place + 1 :]
    assert dead(found) == [{"sequence": place, "error": reason}]
    assert len(jobs[1:]) <= 2 * log2(16) + 1


async def test_without_dead_letters_the_first_event_stops_its_partition(prepared: Prepare, batch: MakeBatch) -> None:
    transform = await prepared(schema="a INT NOT NULL", sql="SELECT partition, a FROM events")
    with pytest.raises(PoisonEvent, match=r"partition '0', sequence 1 .* column 'a' is missing or null") as caught:
        await DeadLetterTransform(transform, None, "0", ()).sift(batch("0", ['{"a": 1}', "{}", "{}"]))
    assert caught.value.before == 1


async def test_letters_and_output_are_the_feed_with_spark_and_postgresql(
    prepared: Prepare, postgres: Postgres, sink_of: Make
) -> None:
    schema = "account STRING NOT NULL, amount DECIMAL(10,2) NOT NULL"
    sql = """SELECT partition, account, sum(CASE WHEN amount < 0 THEN raise_error('no debts') ELSE amount END) AS value
        FROM events GROUP BY partition, account"""
    merge = """INSERT INTO balances SELECT account, value FROM batch ORDER BY account
        ON CONFLICT (account) DO UPDATE SET value = balances.value + excluded.value"""
    sink = sink_of(setup=BALANCES.replace("CHECK (value < 1000)", ""), merge=merge, letters=True)
    await sink.prepare()
    transform = await prepared(schema=schema, sql=sql, goes_on=True, isolation=Isolation(most=100))
    feed = MemoryChangeFeed("0", page_events_max=70)
    wrong = {17: "gibberish", 170: '{"account": "a", "amount": 0.001}', 171: '{"account": "a"}'}
    wrong |= dict.fromkeys((3, 4, 150), '{"account": "a", "amount": -1}')
    good = '{"account": "%s", "amount": 1.10}'
    feed.append("0", [wrong.get(n, good % "ab"[n % 2]).encode() for n in range(200)], at=NOW)
    writer = await sink.open(claim())
    stopping = asyncio.Event()

    async def delivered(one: DeliveredBatch) -> None:
        if one.to == "200":
            stopping.set()

    runner = Runner(
        source=Source(feed, "0", 1),
        transform=transform,
        writer=writer,
        permit=Open(),
        read_ahead=ReadAhead(limits=BatchLimits(events_max=100), bytes_max=1 << 20, budget=Budget()),
        clock=LoopClock(),
        reporting=Reporting(progress=Progress()),
        delivered=delivered,
        failing=FailingEvents(letters=POLICY),
    )
    await runner.run(stopping)
    rows = postgres.fetch("SELECT sequence, error FROM leasehold_dead_letters ORDER BY id")
    assert {sequence for sequence, _ in rows} == set(wrong)
    assert len(rows) == len(wrong)
    assert dict(rows)[150].endswith("no debts")
    counts = {account: sum("ab"[n % 2] == account for n in range(200) if n not in wrong) for account in "ab"}
    found = dict(postgres.fetch("SELECT account, value FROM balances"))
    assert found == {account: Decimal("1.10") * count for account, count in counts.items()}
    assert postgres.fetch("SELECT position FROM leasehold_positions") == [("200",)]
