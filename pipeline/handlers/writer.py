"""One lease's calls of a handler: side by side for different keys, in order for each key, and the position that results.

`CallScheduler` decides which call is due, and this module makes it. An event that fails too often becomes a dead letter if there
is a place for dead letters, and otherwise stops its partition.

A transform may make several rows from an event, or one row from several events. If the event of a failed row is unknown, the row
is refused, and the next runs of the partition search for the event (pipeline/dead_letters/refusals.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol
from zlib import crc32

import pyarrow as pa

from leasehold.common.cancellation import is_cancelled
from leasehold.common.clock import Clock, retry_after_s
from leasehold.pipeline.async_sink.request_entry import Entry
from leasehold.pipeline.async_sink.request_writer import RequestWriter
from leasehold.pipeline.crash_point import crash_point
from leasehold.pipeline.errors import NotTrusted, OutputRefused, Poison, SinkRejected, SinkUnavailable
from leasehold.pipeline.handlers.calls import BACKOFF_S_MAX, Call, CallScheduler
from leasehold.pipeline.handlers.events import Events
from leasehold.pipeline.handlers.stats import HandlerStats
from leasehold.pipeline.limits import ParallelLimits
from leasehold.pipeline.sink import Claim, CloseReason, Output, Park

_log = logging.getLogger(__name__)
PARKED = "an earlier event of its key became a dead letter"


class HandlerCaller(Protocol):
    """One lease's way to the handler."""

    async def call(self, argument: Any, check: Callable[[], None]) -> None:
        """Call the handler with one event, or with `Events`, and wait until it returns. check: to be called right before that."""
        ...

    def close(self) -> None:
        """No call follows. Calls that cannot be cancelled continue."""
        ...

    async def wait_until_idle(self) -> None:
        """Wait until calls that could not be cancelled have ended."""
        ...


@dataclass(frozen=True, slots=True)
class _TakenRow:
    """A row and its output."""

    row: Mapping[str, Any]
    output: Output


class HandlerWriter(RequestWriter[Call]):
    """key: the column whose values are the keys. close: awaited after the last call. report: logs the traceback of a failure."""

    parks = True

    def __init__(
        self,
        claim: Claim,
        caller: HandlerCaller,
        *,
        key: str,
        limits: ParallelLimits,
        clock: Clock,
        name: str,
        stats: HandlerStats,
        close: Callable[[CloseReason, str | None], Awaitable[None]],
        report: Callable[[str, BaseException | None], None],
    ) -> None:
        self._calls = CallScheduler(limits, claim.continuation)
        super().__init__(claim, self._calls, clock=clock, name=name)
        self._caller = caller
        self._key = key
        self._limits = limits
        self._stats = stats
        self._close, self._report = close, report
        self._park: Park | None = None
        stats.calls.append(self._calls)

    def park_with(self, park: Park) -> None:
        self._park = park

    async def close(self, reason: CloseReason) -> None:
        """Cancels the running calls, and waits for those that cannot be cancelled."""
        self._caller.close()
        if self._calls in self._stats.calls:
            self._stats.calls.remove(self._calls)
        if unsettled := self._calls.unsettled:
            text = "%s leaves %d events of partition '%s' unacknowledged (%s): the next owner processes them again"
            _log.info(text, self._name, unsettled, self._claim.partition, reason, extra=self._fields)
        await super().close(reason)
        await self._caller.wait_until_idle()
        await self._close(reason, self.position)

    def _begin(self, output: Output) -> None:
        check_columns(output.table.column_names, self._key, self._limits, self._name)

    def _take(self, row: Mapping[str, Any], bytes: int, output: Output, now: float) -> None:
        found, key = row.get("sequence"), row[self._key]
        sequence = found if isinstance(found, int) else None
        self._calls.take(_TakenRow(row, output), bytes, None if key is None else str(key), sequence, now)

    async def _request(self, call: Call) -> None:
        if call.is_parked:
            if _places(call.entries) is None:
                self._calls.unpark(call, self._clock.monotonic())
            else:
                await self._bury(call, PARKED, attempts=0)
            return
        crash_point("before call")
        began = self._clock.monotonic()
        self._claim.report_wait(self._limits.timeout_s or 0.0)
        assert self._permit is not None, "calls begin with the first write"
        try:
            async with asyncio.timeout(self._limits.timeout_s):
                await self._caller.call(self._argument(call), self._permit.check)
        except NotTrusted:
            self._calls.put_off(call, self._clock.monotonic())
            return
        except BaseException as error:
            if is_cancelled(error):
                raise
            took_s = self._clock.monotonic() - began
            self._stats.seconds.observe(took_s)
            await self._handle_failure(call, error, _failure_text(error, took_s, self._limits.timeout_s))
            return
        crash_point("called")
        self._stats.seconds.observe(self._clock.monotonic() - began)
        self._claim.report_wait(0.0)
        self._calls.finish(call, self._clock.monotonic())
        self._report_recovered()
        self._changed.set()

    def _argument(self, call: Call) -> Any:
        rows = [entry.value.row for entry in call.entries]
        if self._limits.events_max is None:
            return rows[0]
        output: Output = call.entries[-1].value.output
        return Events(
            rows,
            key=call.first.key if call.has_key else None,
            partition=self._claim.partition,
            attempt=self._calls.attempt(call),
            position=self._calls.position,
            trace=output.trace,
            receipt=output.receipt,
            acknowledge=partial(self._acknowledge, call),
            is_released=lambda: self._is_closed,
        )

    def _acknowledge(self, call: Call, count: int) -> bool:
        if self._is_closed:
            return False
        self._calls.acknowledge(call.entries[:count])
        self._changed.set()
        return True

    async def _handle_failure(self, call: Call, error: BaseException, what: str) -> None:
        """Raises SinkRejected if the partition has to stop, and OutputRefused if it is unknown which event's row has failed."""
        if isinstance(error, SinkRejected) and not isinstance(error, OutputRefused):
            raise error
        self._claim.report_wait(max(BACKOFF_S_MAX, self._limits.backoff_s, retry_after_s(error)))
        now, counts = self._clock.monotonic(), not isinstance(error, SinkUnavailable)
        is_final = isinstance(error, OutputRefused) and len(call.entries) == 1 and self._calls.is_open(call.first)
        if not is_final and self._calls.fail(
            call, now, jitter=self._jitter(call), at_least_s=retry_after_s(error), counts=counts
        ):
            self._stats.retries += 1
            self._report_failing(what)
            if any(not self._calls.is_open(entry) for entry in call.entries):
                self._changed.set()
            return
        self._report(f"{self._name} failed for partition '{self._claim.partition}', key {call.first.key!r}", error)
        await self._bury(call, what, attempts=max(1, self._calls.failures(call)))

    async def _bury(self, call: Call, what: str, *, attempts: int) -> None:
        """The call's events become dead letters, and it has ended. Raises as `_handle_failure`: SinkRejected if there is no place
        for dead letters."""
        left = [entry for entry in call.entries if self._calls.is_open(entry)]
        first, partition = call.first, self._claim.partition
        subject = f"{self._name} failed for partition '{partition}', key {first.key!r}, sequence {first.sequence}"
        if self._park is None:
            raise SinkRejected(
                f"{subject}, {attempts} times: {what}: correct the handler or the event, or keep such events as `dead_letters`"
            )
        places = _places(left)
        if places is None:
            named = [entry.sequence for entry in left if entry.sequence is not None]
            raise OutputRefused(f"{subject}, {attempts} times: {what}", sequences=named)
        assert self._permit is not None, "calls begin with the first write"
        for output, indices in places:
            found = [Poison(index=index, reason=what, attempts=attempts) for index in indices]
            while True:
                await self._permit.wait_until_granted()
                try:
                    await self._park(output, found, self._permit)
                    break
                except NotTrusted:
                    continue
        if not call.is_parked:
            _log.warning("%s: its key is parked: %s", subject, what, extra=self._fields)
        self._calls.park(call, self._clock.monotonic())
        self._changed.set()

    def _jitter(self, call: Call) -> float:
        """0 to 1, different for each lease and failure: computed without a random generator, so that a run can be repeated."""
        claim = self._claim
        drawn = f"{claim.partition} {claim.owner} {claim.epoch} {call.first.number} {self._calls.failures(call)}"
        return 1 - crc32(drawn.encode()) / 2**32


def check_columns(columns: Sequence[str], key: str, limits: ParallelLimits, name: str) -> None:
    """Check that an output with these columns can be handled. Raises SinkRejected."""
    if key not in columns:
        raise SinkRejected(
            f"{name}: the output has no column '{key}', which `parallel.key` names: select it, or name one of"
            f" {', '.join(columns)}"
        )
    if limits.manual_ack and "sequence" not in columns:
        raise SinkRejected(
            f"{name}: the output has no column 'sequence', by which events are acknowledged: select it, or"
            " remove `checkpoint_s: manual`"
        )


def _failure_text(error: BaseException, took_s: float, timeout_s: float | None) -> str:
    if isinstance(error, TimeoutError) and timeout_s is not None and took_s >= timeout_s:
        return f"it took longer than {timeout_s:g} s"
    return f"{type(error).__name__}: {error}"


def _by_output(entries: Sequence[Entry]) -> list[tuple[Output, list[Entry]]]:
    """The entries in groups, each of consecutive entries of one output."""
    found: list[tuple[Output, list[Entry]]] = []
    for entry in entries:
        if not found or found[-1][0] is not entry.value.output:
            found.append((entry.value.output, []))
        found[-1][1].append(entry)
    return found


def _places(entries: Sequence[Entry]) -> list[tuple[Output, list[int]]] | None:
    """For each output, the indices of the entries' events in its source; None if their events are unknown."""
    found = []
    for output, of_output in _by_output(entries):
        places = _places_in(output, of_output)
        if places is None:
            return None
        found.append((output, places))
    return found


def _places_in(output: Output, entries: Sequence[Entry]) -> list[int] | None:
    """The indices of the entries' events in the output's source; None if they are unknown.

    A row was made only from the event with its `sequence` if it is that event itself, or if each event has one row. No other row
    may have that `sequence`: an event is one dead letter, whatever was made from it.
    """
    events, rows = output.source, output.table
    assert events is not None, "the runner keeps the events for a writer that parks them"
    column = rows.schema.get_field_index("sequence")
    if column < 0 or not pa.types.is_integer(rows.schema.field(column).type):
        return None
    of_events, of_rows = _by_sequence(events), _by_sequence(rows)
    if len(of_events) < events.num_rows or len(of_rows) < rows.num_rows:
        return None
    if not of_rows.keys() <= of_events.keys():
        return None
    found = [entry.sequence for entry in entries if entry.sequence is not None]
    has_row_of_each = len(of_rows) == len(of_events)
    if has_row_of_each or all(_row(rows, of_rows[each]) == _row(events, of_events[each]) for each in found):
        return [of_events[each] for each in found]
    return None


def _by_sequence(table: pa.Table) -> dict[int | None, int]:
    """The places of rows, by their sequences."""
    return {sequence: place for place, sequence in enumerate(table["sequence"].to_pylist())}


def _row(table: pa.Table, place: int) -> dict[str, Any]:
    """The row as it was: a handler may have changed the dict that it was called with."""
    return table.slice(place, 1).to_pylist()[0]  # type: ignore[no-any-return]
