"""Dead letters in PostgreSQL: with the output in one transaction, or in a database of their own; and the feed over them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from patience import PATIENCE_S
from plugins_bank import Make, Open, claim
from plugins_pg import Postgres

from leasehold.pipeline.connectors.postgres import PostgresLettersFeed, PostgresOutputSink, letters_merge, storable
from leasehold.pipeline.dead_letters import LetterBox
from leasehold.pipeline.dead_letters.box import read_kept, read_until_now
from leasehold.pipeline.dead_letters.record import dead_events, letters_of
from leasehold.pipeline.dead_letters.settled import Replayed, ReplayFeed, judge
from leasehold.pipeline.errors import Fenced, Poison
from leasehold.pipeline.event import EVENT_SCHEMA
from leasehold.pipeline.sink import Output

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
GOOD = pa.table({"n": [1]})
NASTY = {"key": "k\x00é", "body": b"\x00\xff'; DROP TABLE x; --", "properties": [("a\x00", "%s {}"), ("a\x00", "\\")]}


def events(*sequences: int) -> pa.Table:
    rows = [
        {"partition": "0", "sequence": n, "offset": f"o{n}\x00", "enqueued_time": NOW, "operation": None, **NASTY}
        for n in sequences
    ]
    return pa.Table.from_pylist(rows, schema=EVENT_SCHEMA)


def output(start: str | None, to: str, *dead: int) -> Output:
    poison = [Poison(index=n, reason="ba\x00d", attempts=2) for n in range(len(dead))]
    return Output(table=GOOD, start=start, to=to, events=1 + len(dead), dead=dead_events(events(*dead), poison, NOW))


@pytest.fixture
async def sink(sink_of: Make) -> PostgresOutputSink:
    made = sink_of(setup="CREATE TABLE IF NOT EXISTS numbers (n int)", table="numbers", letters=True)
    await made.prepare()
    return made


@pytest.fixture
async def letters(postgres: Postgres) -> AsyncIterator[PostgresLettersFeed]:
    feed = PostgresLettersFeed(postgres.dsn, "balances")
    yield feed
    await feed.close()


async def test_letters_and_output_and_position_move_together(
    postgres: Postgres, sink: PostgresOutputSink, letters: PostgresLettersFeed
) -> None:
    writer = await sink.open(claim())
    await writer.write(output(None, "3", 1, 2), Open())
    later = await sink.open(claim(2))
    with pytest.raises(Fenced):
        await writer.write(output("3", "5", 4), Open())
    assert later.position == "3"
    assert postgres.fetch("SELECT count(*) FROM numbers") == [(1,)]
    box = LetterBox(feed=letters)
    kept = [each async for each in read_kept(box, "balances", partition="0")]
    assert [each.letter.sequence for each in kept] == [1, 2]
    one = kept[0].letter
    assert (one.key, one.body, one.offset) == (NASTY["key"], NASTY["body"], "o1\x00")
    assert [tuple(pair) for pair in one.properties or ()] == NASTY["properties"]
    assert (one.error, one.attempts, one.host, one.to) == ("ba\x00d", 2, "host-1", "3")
    columns = "pipeline, partition, sequence, attempts, host, failed_at, error"
    assert postgres.fetch(f"SELECT {columns} FROM leasehold_dead_letters ORDER BY id LIMIT 1") == [
        ("balances", "0", 1, 2, "host-1", NOW, "ba\N{REPLACEMENT CHARACTER}d")
    ]


async def test_a_database_of_their_own_takes_letters_as_any_sink_takes_output(
    postgres: Postgres, sink_of: Make, letters: PostgresLettersFeed
) -> None:
    own = sink_of(merge=letters_merge("public"), letters=True)
    await own.prepare()
    writer = await own.open(claim())
    rows = storable(letters_of(claim(), output(None, "3", 1, 2)))
    await writer.write(Output(table=rows, start=None, to="3", events=2), Open())
    found = [each.letter.sequence async for each in read_kept(LetterBox(feed=letters), "balances")]
    assert found == [1, 2]


async def test_letters_are_numbered_in_the_order_in_which_they_become_visible(
    postgres: Postgres, sink: PostgresOutputSink, letters: PostgresLettersFeed
) -> None:
    """Two leases bury letters of one partition: the pipeline and its replay. No reader may pass over one that commits late."""
    writers = [await sink.open(replace(claim(), pipeline=name)) for name in ("balances", "balances.replay")]
    seen: list[int] = []

    async def write(which: int) -> None:
        for n in range(20):
            await writers[which].write(output(str(n) if n else None, str(n + 1), 100 * which + n), Open())

    async def read() -> None:
        async with asyncio.timeout(PATIENCE_S), aclosing(letters.open("0", None)) as pages:
            async for page in pages:
                seen.extend(page.events["sequence"].to_pylist())
                if len(seen) == 40:
                    return

    await asyncio.gather(write(0), write(1), read())
    assert seen == sorted(seen)


async def test_the_state_of_letters_follows_from_the_position_that_moved_with_the_replays_output(
    sink: PostgresOutputSink, letters: PostgresLettersFeed
) -> None:
    writer = await sink.open(claim())
    await writer.write(output(None, "3", 1, 2), Open())
    end = await letters.latest("0")
    again = replace(claim(), pipeline="balances.replay")
    replaying = await sink.open(again)
    box = LetterBox(feed=letters)

    async def states() -> list[tuple[str, bool]]:
        held = await sink.standing("balances.replay", "0")
        assert held is not None
        kept = [each async for each in read_kept(box, "balances")]
        found, problems = await judge(box, "balances", kept, Replayed({"0": held.position}))
        assert problems == []
        return [(one.state, one.again == kept[-1].number) for one in found]

    assert await states() == [("open", False), ("open", False)]
    await replaying.write(output(None, str(end), 2), Open())
    assert await states() == [("replayed", False), ("failed_again", True), ("open", False)]


async def test_discarded_letters_come_without_events_up_to_the_position_and_no_further(
    sink: PostgresOutputSink, letters: PostgresLettersFeed
) -> None:
    writer = await sink.open(claim())
    await writer.write(output(None, "3", 1, 2), Open())
    end = await letters.latest("0")
    await writer.write(output("3", "5", 4), Open())
    discarding = ReplayFeed(LetterBox(feed=letters), "balances", discarded_to={"0": end})
    assert await discarding.lag("0", None) == 2
    async with asyncio.timeout(PATIENCE_S), aclosing(discarding.open("0", None)) as pages:
        page = await anext(pages)
    assert (page.events.num_rows, page.to) == (0, end)
    assert await discarding.lag("0", page.to) == 0
    replaying = ReplayFeed(LetterBox(feed=letters), "balances")
    async with asyncio.timeout(PATIENCE_S), aclosing(replaying.open("0", page.to)) as pages:
        assert (await anext(pages)).events["sequence"].to_pylist() == [4]


async def test_nothing_is_there_before_the_first_letter(letters: PostgresLettersFeed) -> None:
    assert await letters.partitions() == []
    assert [each async for each in read_kept(LetterBox(feed=letters), "balances")] == []


async def test_pages_follow_each_other_to_the_end_within_their_limits(
    postgres: Postgres, sink: PostgresOutputSink, letters: PostgresLettersFeed
) -> None:
    writer = await sink.open(claim())
    await writer.write(output(None, "9", *range(2500)), Open())
    pages = [page async for page in read_until_now(letters, "0")]
    small = PostgresLettersFeed(postgres.dsn, "balances", page_bytes_max=2000)
    sizes = [page.events.num_rows async for page in read_until_now(small, "0")]
    await small.close()
    assert sum(sizes) == 2500
    assert 1 <= max(sizes) <= 5
    assert [page.events.num_rows for page in pages] == [1000, 1000, 500]
    assert await letters.lag("0", pages[0].to) == 1500
    assert pages[0].position_after(1) == str(pages[0].events["sequence"][0].as_py())
