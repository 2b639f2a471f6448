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
from leasehold.pipeline.connectors.nats.connection import NatsAccess, NatsConnection, RefusedRequest
from leasehold.pipeline.connectors.nats.sink import NatsOutputSink
from leasehold.pipeline.connectors.nats.stream import SWITCHES
from leasehold.pipeline.connectors.nats.writer import BATCH_MAX, NatsWriter, Outgoing, batch_of
from leasehold.pipeline.errors import OutputRefused
from leasehold.pipeline.tracing import TraceContext
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
async def sink_of(made: Made, **more: Any) -> AsyncIterator[NatsOutputSink]:
    sink = made.sink(**more)
    try:
        await sink.prepare()
        yield sink
    finally:
        await sink.close()


@pytest.fixture
async def sink(made: Made) -> AsyncIterator[NatsOutputSink]:
    async with sink_of(made) as sink:
        yield sink


def on_its_way(writer: NatsWriter, output: Output) -> tuple[list[Outgoing], Outgoing]:
    return writer._outgoing_of(output), writer._position_of(replace(writer._held, position=output.to))


async def numbers(made: Made) -> list[int]:
    return [int(json.loads(message.body)["number"]) for message in await made.messages(PARTITION)]


async def test_a_batch_on_its_way_is_shut_out_by_a_later_claim_whole(made: Made, sink: NatsOutputSink) -> None:
    older = await sink.open(claim(1))
    await older.write(output(0, 2), Open())
    *before, last = batch_of(made.stream.name, *on_its_way(older, output(2, 5)))
    for message in before:
        await made.connection.send(message.subject, message.payload, headers=message.headers)
    newer = await sink.open(claim(2))
    with pytest.raises(RefusedRequest):
        await made.connection.request(last.subject, last.payload, last.headers, what="what was on its way")
    await newer.write(output(2, 4), Open())
    assert await numbers(made) == [1, 2, 3, 4]


async def test_trust_that_ends_while_a_batch_is_sent_leaves_nothing_of_it(made: Made, sink: NatsOutputSink) -> None:
    writer = await sink.open(claim(1))
    with pytest.raises(NotTrusted):
        await writer.write(output(0, 3), Open(closes_after=1))
    assert (await numbers(made), writer.position) == ([], None)
    await writer.write(output(0, 2), Open())
    assert await numbers(made) == [1, 2]


async def test_a_batch_that_does_not_come_whole_is_not_there(made: Made, sink: NatsOutputSink) -> None:
    writer = await sink.open(claim(1))
    *before, last = batch_of(made.stream.name, *on_its_way(writer, output(0, 3)))
    for message in (before[0], before[2]):
        await made.connection.send(message.subject, message.payload, headers=message.headers)
    with pytest.raises(RefusedRequest):
        await made.connection.request(last.subject, last.payload, last.headers, what="a batch with a gap")
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


async def opened(sink: NatsOutputSink, claim: Claim) -> Any:
    """A host tries again, too."""
    found: list[Any] = []

    async def is_open() -> bool:
        with suppress(SinkUnavailable):
            found.append(await sink.open(claim))
        return bool(found)

    await until_async(is_open)
    return found[0]


@pytest.mark.parametrize("answer", [{}, {"seq": 1}, {"seq": 1, "stream": "another"}])
async def test_an_answer_of_another_client_shows_nothing(
    made: Made, sink: NatsOutputSink, monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any]
) -> None:
    writer, request = await sink.open(claim(1)), NatsConnection.request

    async def outrun(self: NatsConnection, *arguments: Any, **more: Any) -> dict[str, Any]:
        await request(self, *arguments, **more)
        return answer

    with monkeypatch.context() as patch:
        patch.setattr(NatsConnection, "request", outrun)
        with pytest.raises(Ambiguous, match="another client than stream"):
            await writer.write(output(0, 2), Open())
    assert (await sink.open(claim(2))).position == "2"


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
            machine.await_serving()
            again = await opened(sink, claim(2, writer.state))
            await again.write(output(int(again.position), 6), Open())
            assert await numbers(made) == [1, 2, 3, 4, 5, 6]
        await made.connection.close()


async def test_of_a_lease_s_positions_the_newest_alone_is_kept(made: Made, sink: NatsOutputSink) -> None:
    writer = await sink.open(claim(1))
    for start in range(5):
        await writer.write(output(start, start + 1), Open())
    subject = made.stream.lease("orders", PARTITION)
    state = (await made.connection.ask(f"STREAM.INFO.{made.stream.name}", subjects_filter=subject))["state"]
    assert state["subjects"] == {subject: 1}


async def test_a_position_outlives_the_events(made: Made, sink: NatsOutputSink) -> None:
    writer = await sink.open(claim(1))
    await writer.write(output(0, 3), Open())
    await made.forget_by_age()
    assert (await sink.open(claim(2))).position == "3"


async def test_a_stream_that_was_made_again_stops_the_lease_until_it_is_reset(made: Made, sink: NatsOutputSink) -> None:
    writer = await sink.open(claim(1))
    await writer.write(output(0, 3), Open())
    await made.remake()
    with pytest.raises(SinkRejected, match="no longer has the position of lease 'orders/0'"):
        await sink.open(claim(2, writer.state, continuation="3"))
    reset = await sink.open(claim(3, writer.state, continuation="1", generation=1))
    assert reset.position == "1"


async def test_an_earlier_generation_is_refused(sink: NatsOutputSink) -> None:
    await sink.open(claim(1, generation=2))
    with pytest.raises(SinkRejected, match=r"is of generation 0, and stream .* holds output of its generation 2"):
        await sink.open(claim(2))


@pytest.mark.parametrize("rows", [BATCH_MAX - 1, BATCH_MAX])
async def test_a_batch_that_a_publication_cannot_hold_is_to_be_cut(made: Made, sink: NatsOutputSink, rows: int) -> None:
    writer = await sink.open(claim(1))
    assert writer.parts(output(0, rows)) == (1 if rows < BATCH_MAX else 2)
    if rows < BATCH_MAX:
        await writer.write(output(0, rows), Open())
    else:
        with pytest.raises(OutputTooLarge):
            await writer.write(output(0, rows), Open())
    assert len(await numbers(made)) == (rows if rows < BATCH_MAX else 0)


async def test_an_event_that_the_server_does_not_take_is_refused_and_nothing_of_its_batch_is_there(
    made: Made, sink: NatsOutputSink
) -> None:
    writer = await sink.open(claim(1))
    bodies = pa.table({"body": [b"small", b"x" * (1 << 20)]})
    with pytest.raises(OutputRefused, match=r"row 2 of 2 takes 1048\d+ bytes, and stream '.*' takes at most 1048576"):
        await writer.write(replace(output(0, 2), table=bodies), Open())
    await writer.write(output(0, 2), Open())
    assert await numbers(made) == [1, 2]


async def test_a_stream_that_lacks_what_is_needed_is_refused_with_all_that_it_lacks(made: Made) -> None:
    await made.remake(subjects=[f"{made.stream.name}.*"], max_msgs_per_subject=3)
    with pytest.raises(SinkRejected) as refused:
        async with sink_of(made):
            pass
    assert f"{', '.join(f'`{switch}`' for switch in SWITCHES)} must be on" in str(refused.value)
    assert "`max_msgs_per_subject` must be off" in str(refused.value)
    assert f"and not '{made.stream.name}.leasehold.PIPELINE/PARTITION': add that" in str(refused.value)


@pytest.mark.parametrize("written", [b"", b"[]", b"null", b'{"epoch": 1}', b"\xff"])
async def test_what_somebody_else_wrote_in_place_of_a_position_is_told(
    made: Made, sink: NatsOutputSink, written: bytes
) -> None:
    await made.connection.request(made.stream.lease("orders", PARTITION), written, what="an intruder")
    with pytest.raises(SinkRejected, match="was written by another program"):
        await sink.open(claim(1))


async def test_keys_operations_and_properties_come_back_as_they_were(made: Made, sink: NatsOutputSink) -> None:
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
    feed = made.feed()
    reader = feed.open(PARTITION, None)
    rows = (await anext(reader)).events.to_pylist()
    await reader.aclose()
    await feed.close()
    assert [(row["body"], row["key"], row["operation"], row["properties"]) for row in rows] == [
        (b"1", odd, "delete", [(odd, odd), ("Nats-Msg-Id", "7")]),
        (None, None, None, None),
        (b"3", "", "upsert", []),
    ]


async def test_a_displaced_owner_is_told_so_at_its_next_write(sink: NatsOutputSink) -> None:
    older = await sink.open(claim(1))
    await sink.open(claim(2))
    with pytest.raises(Fenced, match="another owner has claimed the lease"):
        await older.write(output(0, 1), Open())


async def test_plain_properties_are_headers_that_every_client_reads(made: Made, sink: NatsOutputSink) -> None:
    writer = await sink.open(claim(1))
    pairs = [("traceparent", "00-ab-cd-01"), ("blank", " x"), ("Nats-Rollup", "all"), ("leasehold-event", "{}")]
    table = pa.table({"body": [b"1"], "properties": pa.array([pairs], pa.map_(pa.string(), pa.string()))})
    await writer.write(replace(output(0, 1), table=table), Open())
    [message] = await made.messages(PARTITION)
    assert message.headers["traceparent"] == "00-ab-cd-01"
    assert json.loads(message.headers["leasehold-event"]) == {"properties": {"blank": " x", "Nats-Rollup": "all"}}


async def test_a_trace_is_published_with_every_event(made: Made, sink: NatsOutputSink) -> None:
    writer = await sink.open(claim(1))
    trace = TraceContext("00-0123456789abcdef0123456789abcdef-0123456789abcdef-01")
    await writer.write(replace(output(0, 2), trace=trace), Open())
    found = [message.headers["traceparent"] for message in await made.messages(PARTITION)]
    assert found == [trace.parent] * 2


async def test_a_stream_that_is_missing_is_refused_unless_the_sink_may_create_it(made: Made) -> None:
    await made.connection.ask(f"STREAM.DELETE.{made.stream.name}")
    with pytest.raises(SinkRejected, match="create the stream, or set `replicas` of the sink"):
        async with sink_of(made, replicas=None):
            pass
    async with sink_of(made, replicas=1) as sink:
        await (await sink.open(claim(1))).write(output(0, 1), Open())
    assert await numbers(made) == [1]


async def test_a_limit_of_the_stream_refuses_an_event_as_that_of_the_server_does(made: Made) -> None:
    await made.update(max_msg_size=2000)
    async with sink_of(made) as sink:
        writer = await sink.open(claim(1))
        with pytest.raises(OutputRefused, match=r"row 1 of 1 takes \d+ bytes, .* takes at most 2000"):
            await writer.write(replace(output(0, 1), table=pa.table({"body": [b"x" * 1900]})), Open())
        await writer.write(output(0, 2), Open())
    assert await numbers(made) == [1, 2]


async def test_properties_that_jetstream_does_not_store_are_refused(made: Made, sink: NatsOutputSink) -> None:
    writer = await sink.open(claim(1))
    table = pa.table({"body": [b"1"], "key": ["k" * 70_000]})
    with pytest.raises(OutputRefused, match="JetStream stores at most 65535"):
        await writer.write(replace(output(0, 1), table=table), Open())


async def test_an_idle_lease_writes_its_position_again_before_retention_by_size_takes_it(made: Made) -> None:
    async with sink_of(made, refresh_s=0.001) as sink:
        writer = await sink.open(claim(1))
        await writer.write(output(0, 1), Open())
        before = writer.state
        await until_async(lambda: _has_followed(writer, before))
        await writer.write(output(1, 2), Open())
        assert (await sink.open(claim(2, before))).position == "2"
    async with sink_of(made) as sink:
        patient = await sink.open(claim(3))
        before = patient.state
        await patient.follow()
        assert patient.state == before


async def _has_followed(writer: Any, state: str) -> bool:
    await writer.follow()
    return bool(writer.state != state)


async def test_a_lease_keeps_its_partition_when_others_are_added(made: Made) -> None:
    async with sink_of(made, partitions=1) as sink:
        writer = await sink.open(replace(claim(1), partition="3"))
        assert writer.place == "0"
    async with sink_of(made, partitions=4) as sink:
        assert (await sink.open(replace(claim(2), partition="3"))).place == "0"


async def test_output_of_many_bytes_is_published_in_parts(sink: NatsOutputSink) -> None:
    writer = await sink.open(claim(1))
    large = pa.table({"body": [b"x" * (1 << 20)] * 20})
    assert [writer.parts(replace(output(0, 20), table=table)) for table in (large, large[:1])] == [3, 1]


async def test_a_host_that_does_not_answer_is_unavailable(made: Made) -> None:
    gone = NatsOutputSink(NatsAccess(servers="127.0.0.1:1"), "s", "s", partitions=1)
    with pytest.raises(SinkUnavailable, match="cannot be reached"):
        await gone.prepare()
    await gone.close()
