"""One partition of a topic, read in pages. It blocks, and belongs to one thread.

Retention deletes whole ledgers, the oldest first. So nothing after a position is lost while the position's ledger exists. If
that ledger is gone, events may be lost, unless the reader had reached the end before the ledger was deleted.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

import pulsar

from leasehold.pipeline.connectors.pulsar.broker import PlaceGone, PulsarBroker, place_in
from leasehold.pipeline.connectors.pulsar.message import ChunkedMessage, table_of
from leasehold.pipeline.connectors.pulsar.position import MessagePlace
from leasehold.pipeline.errors import FeedUnavailable, MalformedRecord
from leasehold.pipeline.event import Page

WAIT_S = 0.25
"""The longest time that one call takes, and so the longest time from a reader's end to its thread's end."""
AT_END_S = 5.0
"""A reader that has seen the end has missed nothing if it last heard from its broker so recently. Retention takes longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLimits:
    """trusts_headers: whether hidden.EVENT is read. events_max: in a page, and in flight to the reader."""

    events_max: int = 1000
    bytes_max: int = 4 * 1024 * 1024
    trusts_headers: bool = False


class TopicReader:
    """place: of the last event that was read; None is the beginning. All methods raise PulsarException."""

    def __init__(
        self, broker: PulsarBroker, topic: str, partition: str, place: MessagePlace | None, limits: TopicLimits
    ) -> None:
        self._broker = broker
        self._topic = topic
        self._partition = partition
        self._limits = limits
        self._place = place
        self._held: deque[pulsar.Message] = deque()
        self._is_found = place is None
        self._is_at_end = False
        self._heard_at = time.monotonic()
        self._reader = broker.make_reader(topic, place, events_max=limits.events_max)

    def _find(self, place: MessagePlace) -> None:
        """Raises PlaceGone."""
        first = self._reader.read_next(self._broker.patience_ms) if self._reader.has_message_available() else None
        if first is None or place_in(first).ledger != place.ledger:
            raise PlaceGone(place, None if first is None else place_in(first))
        self._is_found = True
        if place_in(first).order > place.order:
            self._held.append(first)

    def read(self) -> Page | None:
        """The next page; None if nothing arrived within WAIT_S. Raises PlaceGone, FeedError."""
        if self._place is not None and not self._is_found:
            self._find(self._place)
        if not self._held and not self._await():
            return None
        self._check_place(place_in(self._held[0]))
        messages = [self._held.popleft()]
        size = len(messages[0].data())
        while len(messages) < self._limits.events_max and (self._held or self._fetch(0)):
            if place_in(self._held[0]).ledger != place_in(messages[0]).ledger:
                break
            size += len(self._held[0].data())
            if size > self._limits.bytes_max:
                break
            messages.append(self._held.popleft())
        return self._page(messages)

    def close(self) -> None:
        self._held.clear()
        self._reader.close()

    def _await(self) -> bool:
        """Wait for the next event, and note whether all events were read."""
        if self._fetch(int(WAIT_S * 1000)):
            return True
        if self._reader.is_connected():
            self._heard_at = time.monotonic()
            self._is_at_end = self._is_at_end or not self._reader.has_message_available()
        elif time.monotonic() - self._heard_at > self._broker.timeout_s:
            raise FeedUnavailable(f"topic '{self._topic}': no connection for {self._broker.timeout_s:g} s")
        return False

    def _fetch(self, wait_ms: int) -> bool:
        """Put an event after the position into `_held`. False if none arrives."""
        while True:
            try:
                message = self._reader.read_next(wait_ms)
            except pulsar.Timeout:
                return False
            if self._place is None or place_in(message).order > self._place.order:
                self._held.append(message)
                return True

    def _check_place(self, following: MessagePlace) -> None:
        """Raises PlaceGone if retention has overtaken this reader."""
        is_at_end = self._is_at_end and time.monotonic() - self._heard_at < AT_END_S
        if self._place is None or is_at_end or following.ledger == self._place.ledger:
            return
        onlooker = self._broker.make_reader(self._topic, self._place, events_max=1)
        try:
            first = place_in(onlooker.read_next(self._broker.patience_ms))
        finally:
            onlooker.close()
        if first.ledger != self._place.ledger:
            raise PlaceGone(self._place, first)

    def _page(self, messages: list[pulsar.Message]) -> Page:
        try:
            table = table_of(self._partition, messages, trusts_headers=self._limits.trusts_headers)
        except (UnicodeDecodeError, ChunkedMessage) as error:
            if len(messages) > 1:  # what precedes the event is read first
                half = len(messages) // 2
                self._held.extendleft(reversed(messages[half:]))
                return self._page(messages[:half])
            place = place_in(messages[0])
            why = str(error)
            if isinstance(error, UnicodeDecodeError):
                why = f"has a key or a property that is not UTF-8 text ({error.reason})"
            raise MalformedRecord(
                f"topic '{self._topic}': the event at {place} {why}: to continue without it, reset the lease to '{place}'"
            ) from None
        places = [place_in(message) for message in messages]
        self._place, self._is_at_end = places[-1], False
        return Page(table, str(places[-1]), lambda n: str(places[n - 1]))
