"""What a batch meets on its way into a stream: a later claim, lost answers, retention, and streams unfit for it."""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from connectors.nats.streams import Made
from patience import until_async
from plugins_nats import nats_machine
from pydantic import SecretStr

from leasehold import (
    Ambiguous,
    Claim,
    Fenced,
    NotTrusted,
    Output,
    OutputTooLarge,
    SinkError,
    SinkRejected,
    SinkUnavailable,
)
from leasehold.pipeline.connectors.nats import JetStreamFeed, JetStreamSink
from leasehold.pipeline.connectors.nats.connection import Refused
from leasehold.pipeline.connectors.nats.sink import BATCH_MAX, batch_of
from leasehold.pipeline.connectors.nats.stream import SWITCHES
from leasehold.testing import event_table

PARTITION = "0"


class Open:
    """closes_after: so many looks."""

    def __init__(self, closes_after: int = 1000) -> None:
        self._left = closes_after

    def check(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise NotTrusted("the test closed the trust window")

    async def wait_until_granted(self) -> None: ...


def claim(epoch: int, state: str = "", **more: Any) -> Claim:
    known: dict[str, Any] = {"generation": 0, "continuation": None, **more}
    return Claim(
        pipeline="orders",
        partition=PARTITION,
        owner=f"host-{epoch}",
        epoch=epoch,
        state=state,
        compare=lambda a, b: int(a or 0) - int(b or 0),
        **known,
    )


def output(start: int, to: int) -> Output:
    table = event_table(PARTITION, range(start + 1, to + 1))
    return Output(table=table, start=str(start) if start else None, to=str(to), events=to - start)


@asynccontextmanager
async def sink_of(made: Made, **more: Any) -> AsyncIterator[JetStreamSink]:
    sink = JetStreamSink(**made.settings, **more)
    try:
        await sink.prepare()
        yield sink
    finally:
        await sink.close()


@pytest.fixture
async def sink(made: Made) -> AsyncIterator[JetStreamSink]:
    async with sink_of(made) as sink:
        yield sink


async def numbers(made: Made) -> list[int]:
    return [int(json.loads(message.body)["number"]) for message in await made.messages(PARTITION)]


async def test_a_batch_on_its_way_is_shut_out_by_a_later_claim_whole(made: Made, sink: JetStreamSink) -> None:
    older = await sink.open(claim(1))
    await older.write(output(0, 2), Open())
    *before, last = batch_of(made.stream.name, older._events(output(2, 5)), older._entry(older.entry.moved("5")))
    for message in before:
        await made.connection.send(message.subject, message.payload, headers=message.headers)
    newer = await sink.open(claim(2))
    with pytest.raises(Refused):
        await made.connection.told(last.subject, last.payload, last.headers, what="what was on its way")
    await newer.write(output(2, 4), Open())
    assert await numbers(made) == [1, 2, 3, 4]


async def test_trust_that_ends_while_a_batch_is_sent_leaves_nothing_of_it(made: Made, sink: JetStreamSink) -> None:
    writer = await sink.open(claim(1))
    with pytest.raises(NotTrusted):
        await writer.write(output(0, 3), Open(closes_after=1))
    assert (await numbers(made), writer.position) == ([], None)
    await writer.write(output(0, 2), Open())
    assert await numbers(made) == [1, 2]


async def test_a_batch_that_does_not_come_whole_is_not_there(made: Made, sink: JetStreamSink) -> None:
    writer = await sink.open(claim(1))
    *before, last = batch_of(made.stream.name, writer._events(output(0, 3)), writer._entry(writer.entry.moved("3")))
    for message in (before[0], before[2]):
        await made.connection.send(message.subject, message.payload, headers=message.headers)
    with pytest.raises(Refused):
        await made.connection.told(last.subject, last.payload, last.headers, what="a batch with a gap")
    await writer.write(output(0, 3), Open())
    assert await numbers(made) == [1, 2, 3]


async def test_an_answer_that_did_not_come_is_asked_for_under_a_higher_epoch() -> None:
    with nats_machine() as machine:
        made = Made(machine)
        async with sink_of(made, timeout_s=4) as sink:
            writer = await sink.open(claim(1))
            await writer.write(output(0, 2), Open())
            machine.send(signal.SIGSTOP)
            with pytest.raises(Ambiguous, match="no answer"):
                await writer.write(output(2, 4), Open())
            machine.send(signal.SIGCONT)
            again = await opened(sink, claim(2, writer.state))
            assert again.position in ("2", "4")
            await again.write(output(int(again.position), 6), Open())
            assert await numbers(made) == [1, 2, 3, 4, 5, 6]
        await made.connection.close()


async def opened(sink: JetStreamSink, claim: Claim) -> Any:
    """A host tries again, too."""
    found: list[Any] = []

    async def is_open() -> bool:
        with suppress(SinkUnavailable):
            found.append(await sink.open(claim))
        return bool(found)

    await until_async(is_open)
    return found[0]


async def test_a_server_that_dies_and_comes_back_has_what_it_had_acknowledged() -> None:
    with nats_machine() as machine:
        made = Made(machine)
        async with sink_of(made, timeout_s=5) as sink:
            writer = await sink.open(claim(1))
            await writer.write(output(0, 2), Open())
            machine.kill()
            with pytest.raises(SinkError):
                await writer.write(output(2, 4), Open())
            machine.start()
            again = await opened(sink, claim(2, writer.state))
            await again.write(output(int(again.position), 6), Open())
            assert await numbers(made) == [1, 2, 3, 4, 5, 6]
        await made.connection.close()


async def test_of_a_lease_s_positions_the_newest_alone_is_kept(made: Made, sink: JetStreamSink) -> None:
    writer = await sink.open(claim(1))
    for start in range(5):
        await writer.write(output(start, start + 1), Open())
    subject = made.stream.lease("orders", PARTITION)
    state = (await made.connection.api(f"STREAM.INFO.{made.stream.name}", subjects_filter=subject))["state"]
    assert state["subjects"] == {subject: 1}


async def test_a_position_outlives_the_events(made: Made, sink: JetStreamSink) -> None:
    writer = await sink.open(claim(1))
    await writer.write(output(0, 3), Open())
    soon = {"max_age": 200_000_000, "duplicate_window": 100_000_000}
    await made.connection.api(f"STREAM.UPDATE.{made.stream.name}", **await made.stream.configuration() | soon)
    await until_async(lambda: _is_empty(made))
    assert (await sink.open(claim(2))).position == "3"


async def _is_empty(made: Made) -> bool:
    return not await made.messages(PARTITION)


async def test_a_stream_that_was_made_again_stops_the_lease_until_it_is_reset(made: Made, sink: JetStreamSink) -> None:
    writer = await sink.open(claim(1))
    await writer.write(output(0, 3), Open())
    await made.connection.api(f"STREAM.DELETE.{made.stream.name}")
    await made.stream.made()
    with pytest.raises(SinkRejected, match="does not know any more where lease '0' of 'orders' stands"):
        await sink.open(claim(2, writer.state, continuation="3"))
    reset = await sink.open(claim(3, writer.state, continuation="1", generation=1))
    assert reset.position == "1"


async def test_an_earlier_generation_is_refused(sink: JetStreamSink) -> None:
    await sink.open(claim(1, generation=2))
    with pytest.raises(SinkRejected, match=r"is of generation 0, and stream .* holds output of its generation 2"):
        await sink.open(claim(2))


@pytest.mark.parametrize("rows", [BATCH_MAX - 1, BATCH_MAX])
async def test_a_batch_that_a_publication_cannot_hold_is_to_be_cut(made: Made, sink: JetStreamSink, rows: int) -> None:
    writer = await sink.open(claim(1))
    assert writer.parts(output(0, rows)) == (1 if rows < BATCH_MAX else 2)
    if rows < BATCH_MAX:
        await writer.write(output(0, rows), Open())
    else:
        with pytest.raises(OutputTooLarge):
            await writer.write(output(0, rows), Open())
    assert len(await numbers(made)) == (rows if rows < BATCH_MAX else 0)


async def test_an_event_that_the_server_does_not_take_is_refused_and_nothing_of_its_batch_is_there(
    made: Made, sink: JetStreamSink
) -> None:
    writer = await sink.open(claim(1))
    bodies = pa.table({"body": [b"small", b"x" * (1 << 20)]})
    with pytest.raises(SinkRejected, match=r"takes 1048\d+ bytes, and the server takes at most 1048576"):
        await writer.write(replace(output(0, 2), table=bodies), Open())
    await writer.write(output(0, 2), Open())
    assert await numbers(made) == [1, 2]


async def test_a_stream_that_lacks_what_is_needed_is_refused_with_all_that_it_lacks(made: Made) -> None:
    await made.connection.api(f"STREAM.DELETE.{made.stream.name}")
    lacking = {"name": made.stream.name, "subjects": [f"{made.stream.name}.>"], "max_msgs_per_subject": 3}
    await made.connection.api(f"STREAM.CREATE.{made.stream.name}", **lacking)
    with pytest.raises(SinkRejected) as refused:
        async with sink_of(made):
            pass
    assert all(f"`{switch}` has to be on" in str(refused.value) for switch in SWITCHES)
    assert "`max_msgs_per_subject` has to be off" in str(refused.value)


@pytest.mark.parametrize("written", [b"", b"[]", b"null", b'{"epoch": 1}', b"\xff"])
async def test_what_somebody_else_wrote_in_place_of_a_position_is_told(
    made: Made, sink: JetStreamSink, written: bytes
) -> None:
    await made.connection.told(made.stream.lease("orders", PARTITION), written, what="an intruder")
    with pytest.raises(SinkRejected, match="was written by somebody else"):
        await sink.open(claim(1))


async def test_a_server_that_is_not_there_is_unavailable_and_its_token_is_not_told() -> None:
    with nats_machine("--auth", "right") as machine:
        place: dict[str, Any] = {"servers": machine.url, "stream": "s", "subject": "s", "partitions": 1, "timeout_s": 5}
        wrong = JetStreamSink(**place, token=SecretStr("hunter2"))
        with pytest.raises(SinkUnavailable) as refused:
            await wrong.prepare()
        assert "hunter2" not in str(refused.value)
        right = JetStreamSink(**place, token=SecretStr("right"))
        await right.prepare()
        await right.close()
    with pytest.raises(SinkUnavailable, match="cannot be reached"):
        await right.prepare()


async def test_keys_operations_and_properties_come_back_as_they_were(made: Made, sink: JetStreamSink) -> None:
    writer = await sink.open(claim(1))
    odd = "a: b\r\n\x00 ü 🦊"
    table = pa.table(
        {
            "body": [b"1", None, b"3"],
            "key": [odd, None, ""],
            "operation": ["delete", None, "upsert"],
            "properties": pa.array([[(odd, odd), ("Nats-Msg-Id", "7")], None, []], pa.map_(pa.string(), pa.string())),
        }
    )
    await writer.write(replace(output(0, 3), table=table), Open())
    feed = JetStreamFeed(**made.settings)
    reader = feed.open(PARTITION, None)
    rows = (await anext(reader)).events.to_pylist()
    await reader.aclose()
    await feed.close()
    assert [(row["body"], row["key"], row["operation"], row["properties"]) for row in rows] == [
        (b"1", odd, "delete", [(odd, odd), ("Nats-Msg-Id", "7")]),
        (b"", None, None, None),
        (b"3", "", "upsert", []),
    ]


async def test_a_displaced_owner_is_told_so_at_its_next_write(sink: JetStreamSink) -> None:
    older = await sink.open(claim(1))
    await sink.open(claim(2))
    with pytest.raises(Fenced, match="was claimed by another owner since"):
        await older.write(output(0, 1), Open())
