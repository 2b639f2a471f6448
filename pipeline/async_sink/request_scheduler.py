"""What to send now, and what an answer means: combines buffer, limiter and prefix. Pure; `now` is the time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from leasehold.pipeline.async_sink.buffer import EntryBuffer
from leasehold.pipeline.async_sink.rate_limiter import RateLimiter, RateLimiting
from leasehold.pipeline.async_sink.request_entry import Converted, Entry, Failed, refused
from leasehold.pipeline.async_sink.scheduler import Scheduler
from leasehold.pipeline.errors import SinkRejected
from leasehold.pipeline.limits import AsyncLimits
from leasehold.pipeline.tracing import TraceContext


@dataclass(frozen=True, slots=True)
class Request:
    entries: tuple[Entry, ...]
    sent_at: float


class RequestScheduler(Scheduler[Request]):
    """limiter, takes_whole: see AsyncSink.

    throttled: requests after which the rate was lowered. queued_again: entries that failed.
    """

    def __init__(
        self,
        limits: AsyncLimits,
        position: str | None,
        *,
        limiter: RateLimiting | None = None,
        takes_whole: bool = False,
    ) -> None:
        super().__init__(position)
        most = limits.in_flight_entries_max
        # the settings are right until the destination proves otherwise
        self.limiter = limiter or RateLimiter(entries_max=most, entries=most)
        self.throttled = self.queued_again = 0
        self.requests = self.in_flight = 0
        self._limits = limits
        self._takes_whole = takes_whole
        self._buffer = EntryBuffer(shares_requests=takes_whole)

    @property
    def limit(self) -> int:
        """How many entries may be in flight now; at least one, because only an answer can raise it."""
        return max(1, self.limiter.entries)

    @property
    def has_room(self) -> bool:
        """Whether another entry may be taken."""
        limits = self._limits
        return self.unsettled < limits.buffered_entries_max and self._buffer.bytes < limits.buffered_bytes_max

    def take(
        self,
        converted: Converted,
        key: str,
        now: float,
        sequence: int | None = None,
        trace: TraceContext | None = None,
    ) -> None:
        """Raises OutputRefused if it is too large."""
        if converted.bytes > self._limits.entry_bytes_max:
            raise refused(
                f"entry {key} has {converted.bytes} bytes, and entry_bytes_max is {self._limits.entry_bytes_max}:"
                " raise it if the destination takes as much, or make the row smaller",
                sequence,
            )
        entry = Entry(
            number=self._prefix.take(),
            key=key,
            value=converted.value,
            bytes=converted.bytes,
            order=converted.order,
            sequence=sequence,
            trace=trace,
        )
        self._buffer.add(entry, now)

    def due_in_s(self, now: float) -> float | None:
        """Seconds until a request is due; None if only an answer or an entry can make one due."""
        size = self._size
        self._buffer.rouse(now)
        rest = self._buffer.rests_until
        if self.requests >= self._limits.in_flight_max:
            return None
        if not self._buffer.ready:
            return None if rest is None else rest - now
        if self.in_flight + min(size, self._buffer.ready) > self.limit:
            return None
        pause = max(0.0, self.limiter.paused_until - now)
        is_full = self._buffer.ready >= size or self._buffer.ready_bytes >= self._limits.batch_bytes_max
        if is_full or self.is_hurried or not self.has_room:
            return pause
        since = self._buffer.oldest_since
        assert since is not None, "something is ready"
        due_at = since + self._limits.buffer_age_max_s
        return max(pause, (due_at if rest is None else min(due_at, rest)) - now)

    def next(self, now: float) -> Request:
        """The request that is due. It counts as sent."""
        entries = self._buffer.cut(self._size, self._limits.batch_bytes_max)
        self.requests += 1
        self.in_flight += len(entries)
        return Request(entries, now)

    def answered(self, request: Request, answer: Failed, now: float, *, jitter: float) -> None:
        """Raises SinkRejected if an entry that failed was not in the request, or if only a part failed despite `takes_whole`."""
        failed = answer.entries
        numbers = {entry.number for entry in failed}
        sent = {entry.number for entry in request.entries}
        if len(numbers) != len(failed) or not numbers <= sent:
            raise SinkRejected(
                "the destination returned entries that it was not given, or one of them twice: it has to return those of its"
                " argument, or copies made by dataclasses.replace"
            )
        if self._takes_whole and 0 < len(failed) < len(sent):
            raise SinkRejected(
                f"the destination returned {len(failed)} of {len(sent)} entries, and its sink was made with takes_whole: leave"
                " that out, or let it return all of them or none"
            )
        self._count_out(request)
        self.queued_again += len(failed)
        self._put_back(failed, self._late_until(now, answer.may_land))
        for entry in request.entries:
            if entry.number not in numbers:
                self._buffer.acknowledged(entry, now)
        self._prefix.acknowledge(sent - numbers)
        if len(failed) == len(sent):
            self._back_off(request, now, answer.retry_after_s, jitter)
        elif failed and answer.is_throttled:
            self.throttled += 1
            self.limiter = self.limiter.throttled(now=now, sent_at=request.sent_at, retry_after_s=answer.retry_after_s)
        else:
            self.limiter = self.limiter.succeeded()

    def failed(
        self, request: Request, now: float, *, retry_after_s: float | None, jitter: float, may_land: bool = False
    ) -> None:
        """The whole request failed. may_land: its outcome is unknown, and the destination may carry it out later."""
        self._count_out(request)
        self.queued_again += len(request.entries)
        self._buffer.put_back(request.entries, late_until=self._late_until(now, may_land))
        self._back_off(request, now, retry_after_s, jitter)

    def _back_off(self, request: Request, now: float, retry_after_s: float | None, jitter: float) -> None:
        self.throttled += 1
        self.limiter = self.limiter.failed(now=now, sent_at=request.sent_at, retry_after_s=retry_after_s, jitter=jitter)

    def _late_until(self, now: float, may_land: bool) -> float | None:
        """One request timeout from now: by then, a destination has carried out or dropped a late request."""
        return now + self._limits.request_timeout_s if may_land else None

    def _put_back(self, failed: Sequence[Entry], late_until: float | None) -> None:
        try:
            self._buffer.put_back(failed, late_until=late_until)
        except KeyError as error:
            raise SinkRejected("the destination returned an entry with a changed order key") from error

    def _count_out(self, request: Request) -> None:
        self.requests -= 1
        self.in_flight -= len(request.entries)

    @property
    def _size(self) -> int:
        """The most entries of a request. A low limit makes requests smaller instead of delaying them."""
        return min(self._limits.batch_entries_max, self.limit)
