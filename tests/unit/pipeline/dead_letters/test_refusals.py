"""What a sink refuses for ever becomes a dead letter, and everything beside it is delivered."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from math import log2
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pytest
from patience import PATIENCE_S
from unit.pipeline.burials import NOW, Group, Picky, Renaming, bodies

from leasehold.pipeline.async_sink import AsyncSink, Converted, Destination, Entry, Limits, refused
from leasehold.pipeline.connectors.http_exchange import HttpAnswer, failed_of
from leasehold.pipeline.connectors.memory import MemoryChangeFeed, MemoryDestination, MemoryOutputSink, MemoryWriter
from leasehold.pipeline.connectors.postgres import refusal
from leasehold.pipeline.dead_letters import DeadLetters
from leasehold.pipeline.dead_letters.refusals import ATTEMPTS, Refusals
from leasehold.pipeline.errors import OutputRefused, SinkRejected, SinkUnavailable, TooMuchPoison
from leasehold.pipeline.event import Page
from leasehold.pipeline.sink import Claim, Output, Permit


class Choosy(MemoryOutputSink):
    """Refuses an output with a `?` in a body, as a table with a constraint does. kind: the error."""

    def __init__(self, destination: MemoryDestination) -> None:
        super().__init__(destination)
        self.kind: type[SinkRejected] = OutputRefused
        self.sizes: list[int] = []
        self.fails: list[Exception] = []
        self.refuses_all = False

    async def open(self, claim: Claim) -> MemoryWriter:
        writer = await super().open(claim)
        write = writer.write

        async def written(output: Output, permit: Permit) -> None:
            found = [body for body in output.table["body"].to_pylist() if b"?" in body]
            self.sizes.append(output.events)
            if found or self.refuses_all:
                raise self.kind(f"no {found[0].decode() if found else 'output'}")
            if self.fails:
                raise self.fails.pop()
            await write(output, permit)

        writer.write = written  # type: ignore[method-assign]
        return writer


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[Group]:
    destination = MemoryDestination()
    made = Group(tmp_path, destination=destination, sink=Choosy(destination))
    yield made
    await made.beside.close()


class Naming(MemoryOutputSink):
    """Refuses an output with a `?` in a body, and names the refused rows' `sequence`, as a Delta table does. most: of so many."""

    def __init__(self, destination: MemoryDestination, most: int) -> None:
        super().__init__(destination)
        self._most = most
        self.sizes: list[int] = []
        self.refused: list[int] = []

    async def open(self, claim: Claim) -> MemoryWriter:
        writer = await super().open(claim)
        write = writer.write

        async def written(output: Output, permit: Permit) -> None:
            found = [row for row in output.table.to_pylist() if b"?" in row["body"]]
            self.sizes.append(output.events)
            if found:
                self.refused.append(output.events)
                raise OutputRefused("no", sequences=[row["sequence"] for row in found[: self._most]])
            await write(output, permit)

        writer.write = written  # type: ignore[method-assign]
        return writer


def choosy(group: Group) -> Choosy:
    assert isinstance(group.sink, Choosy)
    return group.sink


async def test_what_the_sink_refuses_is_found_and_buried_and_the_rest_is_delivered(group: Group) -> None:
    text = "a b? c d! e f g? h i j k l m n o p"
    group.feed.append("a", bodies(text))
    await group.run_on(16)
    assert sorted(group.delivered) == sorted(set(bodies(text)) - set(bodies("b? d! g?")))
    letters = {kept.letter.body: kept.letter for kept in await group.letters()}
    assert letters.keys() == set(bodies("b? d! g?"))
    assert (letters[b"b?"].error, letters[b"b?"].attempts) == ("no b?", 2)


@pytest.mark.parametrize("place", [0, 1, 77, 126, 127])
async def test_one_refused_event_among_many_costs_few_runs(group: Group, place: int) -> None:
    group.feed.append("a", [b"bad?" if n == place else b"%d" % n for n in range(128)])
    runs = await group.run_on(128)
    assert runs <= log2(128) + 3
    assert (await group.buried(), len(group.delivered)) == ([b"bad?"], 127)


async def test_an_event_that_comes_alone_is_tried_as_often_as_any(group: Group) -> None:
    group.policy = DeadLetters(now=lambda: NOW, share_max=1.0, attempts=4)
    group.refusals._attempts = 4
    group.feed.append("a", bodies("a?"))
    assert await group.run_on(1) == 5
    (kept,) = await group.letters()
    assert kept.letter.attempts == 4


async def test_without_dead_letters_or_for_another_reason_a_refusal_stops_the_partition(group: Group) -> None:
    group.feed.append("a", bodies("a b?"))
    choosy(group).kind = SinkRejected
    with pytest.raises(SinkRejected, match="no b"):
        await group.run_on(2)
    choosy(group).kind = OutputRefused
    group.refusals = None
    with pytest.raises(OutputRefused, match="no b"):
        await group.run_on(2)
    assert await group.buried() == []


@pytest.mark.parametrize("kind", ["unnamed", "named"])
@pytest.mark.parametrize("yields_events", [True, False])
async def test_without_dead_letters_what_precedes_a_refused_event_is_delivered_and_the_error_names_it(
    group: Group, kind: str, yields_events: bool
) -> None:
    group.policy = None  # type: ignore[assignment]
    if kind == "named":
        group.sink = Naming(group.destination, most=3)
        group.beside = group.sink  # type: ignore[assignment]
    group.transform.yields_events = yields_events
    group.feed.append("a", bodies("a b c d e f? g h? i"))
    for _ in range(2):  # the next owner delivers nothing more
        with pytest.raises(OutputRefused, match="partition 'a', sequence 5: no"):
            await group.run_on(9)
        assert group.delivered == bodies("a b c d e")
        group.refusals = Refusals(ATTEMPTS, group.feed.compare)


async def test_a_sink_that_refuses_the_batch_of_a_dead_event_stops_the_partition(group: Group) -> None:
    """It may refuse the letter that it keeps beside its output, or a row of its history."""
    group.policy = DeadLetters(now=lambda: NOW, share_max=1.0)
    group.feed.append("a", bodies("a b"))
    choosy(group).refuses_all = True
    with pytest.raises(OutputRefused, match="no output"):
        async with asyncio.timeout(PATIENCE_S):
            await group.run_on(2)
    assert group.delivered == []


async def test_a_sink_that_refuses_everything_stops_at_the_guard(group: Group) -> None:
    group.policy = DeadLetters(now=lambda: NOW, share_max=0.2, share_events=10)
    group.feed.append("a", [b"%d?" % n for n in range(10)])
    with pytest.raises(TooMuchPoison, match="more than 2 of the last 10"):
        await group.run_on(10)
    assert (len(await group.buried()), group.delivered) == (2, [])


def with_cuts(feed: MemoryChangeFeed, monkeypatch: pytest.MonkeyPatch, can_end: Callable[[int], bool]) -> None:
    """can_end: whether the feed can be cut at a position, which is a number of events."""
    read = feed.open

    def cut_as_the_feed(page: Page) -> Page:
        after = page.position_after

        def position(n: int) -> str | None:
            at = after(n)
            return at if at is not None and can_end(int(at)) else None

        return Page(page.events, page.to, position)

    async def opened(partition: str, continuation: str | None) -> AsyncIterator[Page]:
        async for page in read(partition, continuation):
            yield cut_as_the_feed(page)

    monkeypatch.setattr(feed, "open", opened)


def without_cuts(feed: MemoryChangeFeed, monkeypatch: pytest.MonkeyPatch) -> None:
    with_cuts(feed, monkeypatch, lambda at: False)


async def test_where_the_feed_cannot_be_cut_a_refusal_stops_the_partition(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    group.feed.append("a", bodies("a b? c d"))
    without_cuts(group.feed, monkeypatch)
    with pytest.raises(OutputRefused, match="no b"):
        await group.run_on(4)


@pytest.mark.parametrize("named", [None, "the event's own", "at random"])
@pytest.mark.parametrize("place", [0, 1, 9, 40, 58, 59])
async def test_an_event_alone_in_its_transaction_is_found_wherever_halves_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: int, named: str | None
) -> None:
    destination = MemoryDestination()
    sink = Choosy(destination) if named is None else Naming(destination, 1)
    transform = Picky() if named is None else Renaming(OWN_COLUMNS[named])
    group = Group(tmp_path, destination=destination, sink=sink, transform=transform)
    group.feed.append("a", [b"bad?" if n == place else b"%d" % n for n in range(60)])
    ends = {n for n in range(60) if n % 3 == 0} | {place, place + 1}
    with_cuts(group.feed, monkeypatch, lambda n: n in ends)
    runs = await group.run_on(60)
    assert runs <= log2(60) + 4
    assert (await group.buried(), len(group.delivered)) == ([b"bad?"], 59)
    await group.beside.close()


@pytest.mark.parametrize("yields_events", [True, False])
async def test_where_the_feed_cannot_be_cut_only_the_name_of_an_output_of_events_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, yields_events: bool
) -> None:
    destination = MemoryDestination()
    group = Group(tmp_path, destination=destination, sink=Naming(destination, 1))
    group.transform.yields_events = yields_events
    group.feed.append("a", bodies("a b? c d"))
    without_cuts(group.feed, monkeypatch)
    if yields_events:
        assert await group.run_on(4) == 3
    else:
        with pytest.raises(OutputRefused, match="no"):
            await group.run_on(4)
    assert (await group.buried(), group.delivered) == ((bodies("b?"), bodies("a c d")) if yields_events else ([], []))
    await group.beside.close()


async def test_a_letter_that_was_put_before_a_crash_is_not_put_again_for_what_the_sink_refused(group: Group) -> None:
    group.feed.append("a", bodies("a b?"))
    choosy(group).fails = [SinkUnavailable("died")] * 3
    for _ in range(3):
        with pytest.raises(SinkUnavailable):
            await group.run_on(2)
    await group.run_on(2)
    assert (await group.buried(), group.delivered) == (bodies("b?"), bodies("a"))


class Items(Destination):
    """A destination that says which entries it refuses, or of a whole request only that it does."""

    def __init__(self, *, tells: bool) -> None:
        self.tells = tells
        self.taken: list[bytes] = []

    async def submit(self, entries: Sequence[Entry]) -> list[Entry]:
        bad = [entry for entry in entries if b"?" in entry.value]
        if bad and not self.tells:
            raise refused("no", *(entries if len(entries) == 1 else [None]))
        self.taken += [entry.value for entry in entries if entry not in bad]
        if bad:
            raise refused("no", *bad)
        return []


def converted(row: Mapping[str, Any], key: str) -> Converted:
    if row["body"].startswith(b"%"):
        raise ValueError("has no words")
    return Converted(value=row["body"], bytes=len(row["body"]))


@pytest.mark.parametrize(("tells", "runs_max"), [(True, 9), (False, 30)])
async def test_entries_that_a_destination_refuses_are_buried(tmp_path: Path, tells: bool, runs_max: int) -> None:
    destination = Items(tells=tells)
    limits = Limits(batch_entries_max=3, buffer_age_max_s=0.0, entry_bytes_max=10)
    sink = AsyncSink(destination, identity="items", limits=limits, convert=converted)
    group = Group(tmp_path, events_max=5, sink=sink)
    text = "a b c? d e f g h i! j k l? m n o p %q r " + "s" * 11 + " t"
    group.feed.append("a", bodies(text))
    runs = await group.run_on(20)
    assert Counter(await group.buried()) == Counter(bodies("c? i! l? %q " + "s" * 11))
    assert set(destination.taken) == set(bodies("a b d e f g h j k m n o p r t"))
    assert runs <= runs_max
    await group.beside.close()


_chance = Random(7)
OWN_COLUMNS: dict[str, Callable[[int, int], int]] = {
    "the event's own": lambda sequence, events: sequence,
    "from 1": lambda sequence, events: sequence + 1,
    "from -1": lambda sequence, events: sequence - 1,
    "backwards": lambda sequence, events: 59 - sequence,
    "one of other events": lambda sequence, events: 1000 + sequence,
    "one for all": lambda sequence, events: 3,
    "pairs": lambda sequence, events: sequence // 2,
    "by the batch": lambda sequence, events: events - 1,
    "at random": lambda sequence, events: _chance.randrange(60),
}


@pytest.mark.parametrize("most", [1, 60])
@pytest.mark.parametrize("number", OWN_COLUMNS.values(), ids=OWN_COLUMNS)
async def test_a_column_that_a_transform_calls_sequence_blames_no_other_event(
    tmp_path: Path, number: Callable[[int, int], int], most: int
) -> None:
    destination = MemoryDestination()
    group = Group(
        tmp_path, destination=destination, sink=Naming(destination, most), events_max=20, transform=Renaming(number)
    )
    bad = {4, 5, 17, 33, 58}
    group.feed.append("a", [b"%d?" % n if n in bad else b"%d" % n for n in range(60)])
    runs = await group.run_on(60)
    assert await group.buried() == [b"%d?" % n for n in sorted(bad)]
    assert group.delivered == [b"%d" % n for n in range(60) if n not in bad]
    assert {kept.letter.attempts for kept in await group.letters()} == {2}
    assert runs <= len(bad) * (log2(20) + 4)
    await group.beside.close()


@pytest.mark.parametrize("place", [0, 1, 77, 126, 127])
async def test_an_event_that_is_named_by_its_own_sequence_is_sent_alone_once(tmp_path: Path, place: int) -> None:
    destination = MemoryDestination()
    sink = Naming(destination, 1)
    renaming = Renaming(OWN_COLUMNS["the event's own"])
    group = Group(tmp_path, events_max=200, destination=destination, sink=sink, transform=renaming)
    group.feed.append("a", [b"bad?" if n == place else b"%d" % n for n in range(128)])
    assert await group.run_on(128) == 3
    assert (await group.buried(), len(group.delivered)) == ([b"bad?"], 127)
    assert sink.refused == [128, 1]
    assert len(sink.sizes) <= 6
    await group.beside.close()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (psycopg.errors.CheckViolation, OutputRefused),
        (psycopg.errors.NumericValueOutOfRange, OutputRefused),
        (psycopg.errors.CardinalityViolation, OutputRefused),
        (psycopg.errors.RaiseException, OutputRefused),
        (psycopg.errors.ProgramLimitExceeded, OutputRefused),
        (psycopg.errors.UndefinedColumn, SinkRejected),
        (psycopg.errors.InsufficientPrivilege, SinkRejected),
        (psycopg.errors.DiskFull, SinkUnavailable),
        (psycopg.errors.QueryCanceled, SinkUnavailable),
    ],
)
def test_postgresql_refuses_rows_for_what_is_in_them_or_all_alike(
    error: type[psycopg.Error], kind: type[Exception]
) -> None:
    assert type(refusal.refused(error(), "here", "`merge`", is_lost=False, is_sent=True)) is kind


def entries(count: int) -> list[Entry]:
    return [Entry(number=n, key=f"k{n}", value=b"1", bytes=1, sequence=10 + n) for n in range(count)]


@pytest.mark.parametrize(
    ("status", "count", "sequences"),
    [(400, 1, (10,)), (422, 3, ()), (409, 3, ()), (413, 1, (10,)), (413, 3, None), (401, 1, None), (404, 1, None)],
)
def test_an_endpoint_refuses_entries_or_everybody(status: int, count: int, sequences: tuple[int, ...] | None) -> None:
    with pytest.raises(SinkRejected) as caught:
        failed_of(HttpAnswer(status, {}), entries(count), "whole", "http://there")
    assert (caught.value.sequences if isinstance(caught.value, OutputRefused) else None) == sequences


@pytest.mark.parametrize(
    ("statuses", "sequences"),
    [([201, 422, 429, 400], (11, 13)), ([413, 201, 201, 201], (10,)), ([422, 403, 201, 201], None)],
)
def test_an_endpoint_tells_the_items_that_it_refuses(statuses: list[int], sequences: tuple[int, ...] | None) -> None:
    with pytest.raises(SinkRejected) as caught:
        failed_of(HttpAnswer(200, {}, json.dumps(statuses).encode()), entries(4), "items", "http://there")
    assert (caught.value.sequences if isinstance(caught.value, OutputRefused) else None) == sequences


def test_of_rows_without_sequences_nobody_says_whose_they_are() -> None:
    [one] = entries(1)
    assert refused("no", one, replace(one, sequence=None)).sequences == ()
    assert refused("no", one).sequences == (10,)
