"""Receives one partition: the events of its link, in pages, as soon as they arrive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from leasehold.common.cancellation import heeding
from leasehold.pipeline.connectors.eventhubs.amqp.connection import Hub
from leasehold.pipeline.connectors.eventhubs.amqp.decode import ReceivedEvent
from leasehold.pipeline.connectors.eventhubs.amqp.frames import Columns, Frames, Numbers, Read
from leasehold.pipeline.connectors.eventhubs.amqp.link import ReceiverLink
from leasehold.pipeline.connectors.eventhubs.amqp.values import Malformed
from leasehold.pipeline.connectors.eventhubs.position import LATEST, EventPosition
from leasehold.pipeline.connectors.eventhubs.refusal import ended, refusal
from leasehold.pipeline.event import EVENT_SCHEMA, Page

# Events -> pages of the event table, within the limits. Pure.
#
# Columns are made from their buffers: pyarrow's conversion of a list or a scalar imports pandas first, which takes a second. The
# first event, or any command that loads this connector, would wait for that.


_TIME = EVENT_SCHEMA.field("enqueued_time").type


def pages_of(
    partition: str, runs: Sequence[Sequence[ReceivedEvent] | Columns], *, events_max: int, bytes_max: int
) -> list[Page]:
    """As few pages as the limits allow; an event that is larger than a page has a page of its own."""
    if not runs:
        return []
    tables = [_table(partition, run) for run in runs]
    table = tables[0] if len(tables) == 1 else pa.concat_tables(tables).combine_chunks()
    return [_page(table.slice(begin, end - begin)) for begin, end in _cuts(table, events_max, bytes_max)]


def _cuts(events: pa.Table, events_max: int, bytes_max: int) -> Iterator[tuple[int, int]]:
    begin, count = 0, events.num_rows
    ends = np.frombuffer(events["body"].chunk(0).buffers()[1], np.int32, count + 1)
    while begin < count:
        fits = int(np.searchsorted(ends, int(ends[begin]) + bytes_max, side="right")) - 1
        end = min(max(fits, begin + 1), begin + events_max, count)
        yield begin, end
        begin = end


def _page(events: pa.Table) -> Page:
    sequences, offsets = events["sequence"], events["offset"]

    def position_after(n: int) -> str:
        return str(EventPosition(sequences[n - 1].as_py(), offsets[n - 1].as_py()))

    return Page(events, position_after(events.num_rows), position_after)


def _table(partition: str, events: Sequence[ReceivedEvent] | Columns) -> pa.Table:
    columns = _of_columns(events) if isinstance(events, Columns) else _of_events(events)
    columns["partition"] = repeated(partition, len(columns["sequence"]))
    return pa.table([columns[field.name] for field in EVENT_SCHEMA], EVENT_SCHEMA)


def _of_columns(events: Columns) -> dict[str, pa.Array]:
    count, digits = events.offsets.shape
    return {
        "sequence": whole_numbers(events.sequences),
        "offset": _in_a_row(pa.string(), digits, count, events.offsets.tobytes()),
        "enqueued_time": whole_numbers(events.times_ms * 1000).view(_TIME),
        "key": pa.nulls(count, pa.string()) if events.keys is None else texts(_texts_at(events.data, events.keys)),
        "body": parts(events.data, events.bodies),
        "properties": no_maps(count),
        "operation": pa.nulls(count, pa.string()),
    }


def _texts_at(data: bytes, places: Numbers) -> list[str | None]:
    return [data[begin:end].decode("utf-8", "replace") if end else None for begin, end in places.tolist()]


def _of_events(events: Sequence[ReceivedEvent]) -> dict[str, pa.Array]:
    sequences, offsets, times_ms, keys, bodies, properties, operations = zip(*events, strict=True)
    return {
        "sequence": whole_numbers(sequences),
        "offset": octets(offsets).view(pa.string()),
        "enqueued_time": whole_numbers([time_ms * 1000 for time_ms in times_ms]).view(_TIME),
        "key": texts(keys),
        "body": octets(bodies),
        "properties": maps(properties),
        "operation": texts(operations),
    }


def repeated(text: str, count: int) -> pa.Array:
    encoded = text.encode()
    return _in_a_row(pa.string(), len(encoded), count, encoded * count)


def _in_a_row(kind: pa.DataType, size: int, count: int, joined: bytes) -> pa.Array:
    """A column of equally long values, from their joined octets."""
    ends = np.arange(count + 1, dtype=np.int32) * np.int32(size)
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(ends), pa.py_buffer(joined)])


def whole_numbers(values: Sequence[int] | Numbers) -> pa.Array:
    """A column of 64-bit integers. Raises OverflowError."""
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(np.asarray(values, np.int64))])


def parts(data: bytes, places: Numbers) -> pa.Array:
    """A column of octets: parts of the data, each from its start to its end."""
    ends, which = places.astype(np.int32).ravel(), np.arange(0, places.size, 2, dtype=np.int32)
    with_gaps = pa.Array.from_buffers(pa.binary(), len(ends) - 1, [None, pa.py_buffer(ends), pa.py_buffer(data)])
    return with_gaps.take(pa.Array.from_buffers(pa.int32(), len(which), [None, pa.py_buffer(which)]))


def octets(values: Sequence[bytes | None]) -> pa.Array:
    try:
        joined = b"".join(values)  # type: ignore[arg-type]  # the error reports a null
    except TypeError:
        return _with_nulls(pa.binary(), values, b"", octets)
    return _joined(pa.binary(), map(len, values), len(values), joined)  # type: ignore[arg-type]


def texts(values: Sequence[str | None]) -> pa.Array:
    try:
        joined = "".join(values)  # type: ignore[arg-type]  # the error reports a null
    except TypeError:
        return _with_nulls(pa.string(), values, "", texts)
    whole: Sequence[str] = values  # type: ignore[assignment]  # or it could not be joined
    lengths = map(len, whole) if joined.isascii() else (len(text.encode()) for text in whole)
    return _joined(pa.string(), lengths, len(whole), joined.encode())


def maps(values: Sequence[Sequence[tuple[str, str | None]]]) -> pa.Array:
    """A column of maps from texts to texts."""
    pairs = list(chain.from_iterable(values))
    names, items = zip(*pairs, strict=True) if pairs else ((), ())
    ends = pa.Array.from_buffers(pa.int32(), len(values) + 1, [None, _ends(map(len, values), len(values))])
    return pa.MapArray.from_arrays(ends, texts(names), texts(items))


def no_maps(count: int) -> pa.Array:
    ends = pa.Array.from_buffers(pa.int32(), count + 1, [None, pa.py_buffer(bytes(4 * (count + 1)))])
    return pa.MapArray.from_arrays(ends, texts(()), texts(()))


def _joined(kind: pa.DataType, lengths: Iterable[int], count: int, joined: bytes) -> pa.Array:
    return pa.Array.from_buffers(kind, count, [None, _ends(lengths, count), pa.py_buffer(joined)])


def _with_nulls(
    kind: pa.DataType, values: Sequence[Any], empty: Any, of: Callable[[Sequence[Any]], pa.Array]
) -> pa.Array:
    if values.count(None) == len(values):
        return pa.nulls(len(values), kind)
    is_there = np.fromiter((value is not None for value in values), np.bool_, len(values))
    filled = of([empty if value is None else value for value in values])
    validity = pa.py_buffer(np.packbits(is_there, bitorder="little"))
    return pa.Array.from_buffers(kind, len(values), [validity, *filled.buffers()[1:]])


def _ends(lengths: Iterable[int], count: int) -> pa.Buffer:
    """The offset of each, and the end of the last one."""
    ends = np.zeros(count + 1, np.int32)
    np.cumsum(np.fromiter(lengths, np.int32, count), out=ends[1:])
    return pa.py_buffer(ends)


# The buffer between a link and its reader: octets, bounded, taken all at once.
#
# A full buffer does not end its link: heartbeats continue and the token is renewed, while the connection holds back what does not
# fit here.


BYTES_MAX = 1024 * 1024
BEAT_S = 5.0
SILENCE_S = 90.0
"""After this silence the peer counts as gone: it should have sent something every `link.SIGN_OF_LIFE_S`."""


class ReceiveBuffer:
    """Reads one link from its creation on. `close` ends the reading, and leaves the link open for the caller."""

    def __init__(self, link: ReceiverLink, what: str, *, bytes_max: int = BYTES_MAX) -> None:
        self._link = link
        self._bytes_max = bytes_max
        self._chunks: list[bytes] = []
        self._bytes = 0
        self._error: Exception | None = None
        self._filled = asyncio.Event()
        self._emptied = asyncio.Event()
        self._tasks = [
            asyncio.create_task(self._keep_reading(), name=f"receive {what}"),
            asyncio.create_task(self._keep_beating(), name=f"keep {what} alive"),
        ]

    async def take(self) -> bytes:
        """All octets since the last call, as soon as there are some. When nothing is left, raises what ended the link."""
        while not self._chunks:
            if self._error is not None:
                raise self._error
            self._filled.clear()
            await self._filled.wait()
        taken = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        self._bytes = 0
        self._emptied.set()
        return taken

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)

    async def _keep_reading(self) -> None:
        try:
            self._put(self._link.read_already())
            while True:
                self._put(await self._hear())
                while self._bytes >= self._bytes_max:
                    self._emptied.clear()
                    await self._emptied.wait()
        except Exception as error:
            self._end(error)

    async def _hear(self) -> bytes:
        try:
            async with asyncio.timeout(SILENCE_S):
                return await self._link.read()
        except TimeoutError:
            raise ConnectionError(f"no data or heartbeat from the service for {SILENCE_S:g} s") from None

    async def _keep_beating(self) -> None:
        try:
            while True:
                await asyncio.sleep(BEAT_S)
                await heeding(self._link.beat())
        except Exception as error:
            self._end(error)

    def _put(self, chunk: bytes) -> None:
        if chunk:
            self._chunks.append(chunk)
            self._bytes += len(chunk)
            self._filled.set()

    def _end(self, error: Exception) -> None:
        self._error = self._error or error
        self._filled.set()


SMALL_BYTES, QUICK_BYTES = 16 * 1024, 512 * 1024
"""Less than this is decoded without a thread: a thread would take longer. The larger limit is for events in columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverLimits:
    """prefetch: how many events the service may send ahead. page_events, page_bytes: limits of a page. timeout_s: of one answer.

    trusts_properties: whether `leasehold-key` and `leasehold-operation` in an event's properties are its key and operation. Any
    publisher can set them, and a forwarder that copies properties would turn events into deletes.
    """

    prefetch: int = 4000
    page_events: int = 10_000
    page_bytes: int = 4 * 1024 * 1024
    timeout_s: float = 20.0
    trusts_properties: bool = False


@dataclass(slots=True)
class Received:
    """Some pages. first: sequence of their first event, or None. malformed: why the next message is not an event, or None."""

    pages: list[Page]
    first: int | None
    malformed: Malformed | None
    end: int | None = None
    """The sequence of the partition's last event when the service sent these, if the source `reports_end`."""


Decoded = tuple[Read, list[Page]]
Threaded = Callable[[Callable[[], Decoded]], Awaitable[Decoded]]
"""Runs a call on another thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverSource:
    """Where to receive: a partition in a consumer group, the selector of events, and the epoch of the reader.

    reports_end: whether the service reports the partition's end with each event.
    """

    partition: str
    group: str
    selector: str
    epoch: int | None = None
    reports_end: bool = False

    @property
    def path(self) -> str:
        return f"ConsumerGroups/{self.group}/Partitions/{self.partition}"


async def receive(
    hub: Hub,
    place: ReceiverSource,
    limits: ReceiverLimits,
    threaded: Threaded,
    *,
    attached: Callable[[], None] = lambda: None,
) -> AsyncGenerator[Received, None]:
    """Attach, call `attached`, and yield events until the link ends. Raises FeedUnavailable, FeedError, PositionLost, Fenced."""
    async with open_receiver(hub, place, limits, threaded) as receiver:
        attached()
        while True:
            yield await receiver.take_next()


@asynccontextmanager
async def open_receiver(
    hub: Hub, place: ReceiverSource, limits: ReceiverLimits, threaded: Threaded
) -> AsyncIterator[Receiver]:
    """A receiver that is attached, and closed at the end. Raises as `receive` does."""
    what = _named(hub, place)
    try:
        link = await ReceiverLink.attach(
            hub,
            place.path,
            place.selector,
            epoch=place.epoch,
            credit=limits.prefetch,
            timeout_s=limits.timeout_s,
            reports_end=place.reports_end,
        )
    except Exception as error:
        raise refusal(error, what) from error
    receiver = Receiver(link, place.partition, limits, threaded, what)
    try:
        yield receiver
    finally:
        await receiver.close()


async def try_attach(hub: Hub, partition: str, group: str, timeout_s: float) -> None:
    """Attach without an epoch, and detach. Raises as `receive` does: Fenced if a receiver with an epoch reads there."""
    place = ReceiverSource(partition=partition, group=group, selector=LATEST)
    try:
        link = await ReceiverLink.attach(hub, place.path, LATEST, epoch=None, credit=1, timeout_s=timeout_s)
    except Exception as error:
        raise refusal(error, _named(hub, place)) from error
    await link.close()


def _named(hub: Hub, place: ReceiverSource) -> str:
    return f"event hub {hub.name}, partition '{place.partition}', consumer group '{place.group}'"


class Receiver:
    """Made by `open_receiver`."""

    def __init__(
        self, link: ReceiverLink, partition: str, limits: ReceiverLimits, threaded: Threaded, what: str
    ) -> None:
        self._link = link
        self._partition = partition
        self._limits = limits
        self._threaded = threaded
        self._what = what
        self._intake = ReceiveBuffer(link, what)
        self._frames = Frames(link.channel, link.handle, trusts_properties=limits.trusts_properties)
        self._ended: Exception | None = None
        self._small_bytes = SMALL_BYTES

    async def take_next(self) -> Received:
        """The next events, as soon as there are some. What ended the link is raised after the events that arrived with it."""
        while True:
            if self._ended is not None:
                raise ended(self._ended, self._what) from self._ended
            try:
                read, pages = await self._decode_in_turn(await self._intake.take())
                await self._settle(read)
            except Exception as error:
                raise ended(error, self._what) from error
            if pages or read.malformed:
                first = pages[0].events["sequence"][0].as_py() if pages else None
                return Received(pages, first, read.malformed, self._frames.end)

    async def close(self) -> None:
        await self._intake.close()
        await self._link.close()

    async def _decode_in_turn(self, octets: bytes) -> Decoded:
        if len(octets) < self._small_bytes:
            return self._decode(octets)
        return await self._threaded(partial(self._decode, octets))

    def _decode(self, octets: bytes) -> Decoded:
        read = self._frames.read(octets)
        limits = self._limits
        self._small_bytes = QUICK_BYTES if all(isinstance(run, Columns) for run in read.runs) else SMALL_BYTES
        return read, pages_of(self._partition, read.runs, events_max=limits.page_events, bytes_max=limits.page_bytes)

    async def _settle(self, read: Read) -> None:
        try:
            await self._link.hand_over(read.others)
            await self._link.replenish(read.transfers, read.deliveries)
        except Exception as error:
            self._ended = error
