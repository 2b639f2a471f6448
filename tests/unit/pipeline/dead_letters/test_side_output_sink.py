"""Dead letters beside a sink: every event is in the output or in a letter, whatever fails between the two."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from unit.pipeline.burials import NOW, Group, Trust, bodies

from leasehold.pipeline.batch import Batch
from leasehold.pipeline.connectors.log import sink as log_sink
from leasehold.pipeline.dead_letters import DeadLetters, side_output_sink
from leasehold.pipeline.dead_letters.dead_letter_transform import DeadLetterTransform, Sifted
from leasehold.pipeline.dead_letters.record import ERROR_CHARS_MAX
from leasehold.pipeline.dead_letters.side_output_sink import WriterBesideBox
from leasehold.pipeline.errors import NotTrusted, Poison, PoisonEvent, SinkUnavailable, TooMuchPoison
from leasehold.pipeline.pump import delivering
from leasehold.pipeline.sink import Output
from leasehold.pipeline.tracing import TraceContext


class Died(Exception):
    """Stands for SIGKILL: nothing behind it is done."""


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[Group]:
    made = Group(tmp_path)
    yield made
    await made.beside.close()


async def test_poison_goes_to_the_letters_and_all_the_rest_to_the_sink(group: Group) -> None:
    group.feed.append("a", bodies("a b! c d! e! f"), key="k", at=NOW)
    await group.run(6)
    assert group.delivered == bodies("a c f")
    assert await group.buried() == bodies("b! d! e!")


async def test_a_letter_holds_the_event_as_it_was_and_why_when_and_where_it_died(group: Group) -> None:
    group.feed.append("a", [b"a", b"!\x00\xff"], key="kläß", at=NOW)
    group.transform.apply = _refusing("no\x00thing")  # type: ignore[method-assign]
    await group.run(2)
    (kept,) = await group.letters()
    letter = kept.letter
    assert (letter.pipeline, letter.by, letter.partition, letter.sequence, letter.offset) == (
        "pipe",
        "pipe",
        "a",
        1,
        "1",
    )
    assert (letter.body, letter.key, letter.properties, letter.operation) == (b"!\x00\xff", "kläß", None, None)
    assert (letter.error, letter.attempts, letter.host) == ("no\x00thing", 3, "host-1")
    assert (letter.start, letter.to, letter.generation) == (None, "2", 0)
    assert datetime.fromisoformat(letter.failed_at) == datetime.fromisoformat(letter.enqueued_time) == NOW


def _refusing(reason: str) -> Any:
    async def apply(batch: Batch) -> pa.Table:
        for n, body in enumerate(batch.table["body"].to_pylist()):
            if body.startswith(b"!"):
                raise PoisonEvent("p", before=n, sequence=0, found=[Poison(index=n, reason=reason, attempts=3)])
        return batch.table

    return apply


@pytest.mark.parametrize("mended", [set(), {b"b!"}], ids=["fails again", "would pass now"])
async def test_a_host_that_dies_between_the_letters_and_the_output_loses_and_doubles_nothing(
    group: Group, mended: set[bytes]
) -> None:
    group.feed.append("a", bodies("a b! c d"))
    group.failures.append(SinkUnavailable("died"))
    with pytest.raises(SinkUnavailable):
        await group.run(4)
    assert (await group.buried(), group.delivered) == (bodies("b!"), [])
    group.transform.mended = mended
    await group.run(4)
    assert (await group.buried(), group.delivered) == (bodies("b!"), bodies("a c d"))


@pytest.mark.parametrize("events_max", [1, 2, 3, 100])
async def test_whatever_the_batches_of_the_next_owner_are_what_is_buried_stays_so(
    group: Group, events_max: int
) -> None:
    group.feed.append("a", bodies("a b! c d! e f!"))
    for _ in range(3):
        group.failures.append(SinkUnavailable("died"))
        with pytest.raises(SinkUnavailable):
            await group.run(6)
    group.events_max = events_max
    group.feed.append("a", bodies("g!"))
    await group.run(7)
    assert (await group.buried(), group.delivered) == (bodies("b! d! f! g!"), bodies("a c e"))


async def test_what_fails_only_now_is_buried_though_its_batch_was_tried_before(group: Group) -> None:
    group.feed.append("a", bodies("a b! c! d"))
    group.transform.mended = {b"c!"}
    group.failures.append(SinkUnavailable("died"))
    with pytest.raises(SinkUnavailable):
        await group.run(4)
    group.transform.mended = set()
    group.failures.append(SinkUnavailable("died again"))
    with pytest.raises(SinkUnavailable):
        await group.run(4)
    group.transform.mended = {b"b!", b"c!"}
    await group.run(4)
    assert (await group.buried(), group.delivered) == (bodies("b! c!"), bodies("a d"))


async def test_letters_that_wait_for_trust_with_their_output_are_put_once(group: Group) -> None:
    group.feed.append("a", bodies("a b! c"))
    group.failures.append(NotTrusted("the lease could not be renewed"))
    await group.run(3)
    assert (await group.buried(), group.delivered) == (bodies("b!"), bodies("a c"))


async def test_an_owner_of_an_earlier_epoch_adds_no_letters(group: Group) -> None:
    await group.beside.prepare()
    group.epoch, group.state = 1, group.beside.claimed("")
    old = await group.beside.open(group.claim(None))
    group.epoch, group.state = 2, group.beside.claimed(group.state)
    await group.beside.open(group.claim(None))
    group.feed.append("a", bodies("b!"))
    dead = await _dead(group)
    with pytest.raises(Exception, match="outrank"):
        await old.write(Output(table=dead.table, start=None, to="1", events=1, dead=dead.dead), Trust())
    assert await group.buried() == []


async def test_letters_are_closed_in_time_though_the_sink_takes_too_long_to_close(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []

    async def never(reason: str) -> None:
        await asyncio.Event().wait()

    async def noted(reason: str) -> None:
        closed.append(reason)
        await never(reason)

    await group.beside.prepare()
    group.epoch, group.state = 1, group.beside.claimed("")
    writer = await group.beside.open(group.claim(None))
    assert isinstance(writer, WriterBesideBox)
    monkeypatch.setattr(side_output_sink, "LATE_CLOSE_S", 0.01)
    writer._writer.close, writer._letters.close = never, noted  # type: ignore[method-assign, assignment]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await writer.close("lost")
    assert closed == ["lost"]


async def test_a_letter_bears_the_context_of_its_delivery_and_the_event_s_own_inside(group: Group) -> None:
    trace = TraceContext(f"00-{7:032x}-{1:016x}-01")
    group.feed.append("a", bodies("b!"))
    await group.beside.prepare()
    group.epoch, group.state = 1, group.beside.claimed("")
    writer = await group.beside.open(group.claim(None))
    dead = await _dead(group)
    output = Output(table=dead.table, start=None, to="1", events=1, dead=dead.dead, trace=trace)
    await writer.write(output, Trust())
    pages = group.box.feed.open("a", None)
    (pairs,) = (await anext(pages)).events["properties"].to_pylist()
    await pages.aclose()
    assert dict(pairs)["traceparent"] == trace.parent
    (kept,) = await group.letters()
    assert kept.letter.properties is None


async def _dead(group: Group) -> Sifted:
    page = await anext(group.feed.open("a", None))
    return await DeadLetterTransform(group.transform, group.policy, "a", ()).sift(Batch("a", None, (page,), 0.0))


async def test_a_reset_partition_is_processed_and_buried_again(group: Group) -> None:
    group.feed.append("a", bodies("a b!"))
    await group.run(2)
    group.generation, group.continuation = 1, None
    await group.run(2)
    assert (await group.buried(), group.delivered) == (bodies("b! b!"), bodies("a a"))


async def test_a_reason_that_is_no_text_or_a_book_keeps_no_letter_from_being_kept(group: Group) -> None:
    group.feed.append("a", bodies("! a"))
    group.transform.apply = _refusing("half a \ud800 character " + 1_000_000 * "x")  # type: ignore[method-assign]
    await group.run(2)
    (kept,) = await group.letters()
    assert kept.letter.error.startswith("half a ? character xxx")
    assert len(kept.letter.error) == ERROR_CHARS_MAX


async def test_events_that_fail_only_together_are_delivered_apart(group: Group) -> None:
    group.feed.append("a", bodies("a b c! d e"))
    group.transform.together = {b"a", b"e"}
    await group.run(5)
    assert (await group.buried(), group.delivered) == (bodies("c!"), bodies("a b d e"))


async def test_strict_bodies_stop_their_partition_and_what_precedes_is_delivered(group: Group) -> None:
    group.feed.append("a", bodies("a b c! d"))
    group.policy = DeadLetters(now=lambda: NOW, stops_at_misfits=True)
    group.transform.is_misfit = True
    with pytest.raises(PoisonEvent, match="partition 'a', sequence 2: no c!: correct the event or the schema"):
        await group.run(4)
    assert (await group.buried(), group.delivered) == ([], bodies("a b"))


async def test_a_partition_stops_before_its_feed_is_drained_into_the_letters_and_stays_so(group: Group) -> None:
    group.feed.append("a", bodies("a b! c d! e f! g! h"))
    group.policy = DeadLetters(now=lambda: NOW, share_max=0.2, share_events=10)
    for _ in range(3):
        with pytest.raises(
            TooMuchPoison, match=r"sequence 5: no f!: more than 2 of the last 10 events could not be"
        ) as caught:
            await group.run(8)
    assert caught.value.sequence == 5
    assert (await group.buried(), group.delivered) == (bodies("b! d!"), bodies("a c e"))
    group.transform.mended = {b"f!", b"g!"}
    await group.run(8)
    assert (await group.buried(), group.delivered) == (bodies("b! d!"), bodies("a c e f! g! h"))


async def test_known_poison_is_not_looked_for_again(group: Group) -> None:
    group.feed.append("a", bodies("a b! c d! e"))
    group.policy = DeadLetters(now=lambda: NOW, share_max=0.1, share_events=10)
    with suppress(TooMuchPoison):
        await group.run(5)
    heads = [each for each in group.transform.applied if each in (bodies("a c"), bodies("a b! c"))]
    assert heads == [bodies("a c")]


@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("point", ["before write", "before append", "appended", "after write"])
async def test_wherever_a_host_dies_letters_and_output_are_the_feed(
    point: str, times: int, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = [times]

    def crash_point(name: str) -> None:
        left[0] -= name == point
        if left[0] == 0 and name == point:
            raise Died(point)

    for module in (delivering, log_sink):
        monkeypatch.setattr(module, "crash_point", crash_point)
    group.events_max = 2
    group.feed.append("a", bodies("a! b c d! e f! g! h i"))
    with pytest.raises(Died):
        await group.run(9)
    group.transform.mended = {b"d!"}
    group.events_max = 3
    await group.run(9)
    buried, delivered = await group.buried(), group.delivered
    assert sorted([*buried, *delivered]) == sorted(bodies("a! b c d! e f! g! h i"))
    assert {b"a!", b"f!", b"g!"} <= set(buried) <= {b"a!", b"d!", b"f!", b"g!"}
