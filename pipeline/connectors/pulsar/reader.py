"""One partition of a topic, read in pages. It blocks, and belongs to one thread.

Retention deletes whole ledgers, the oldest first. So nothing after a position is lost while the position's ledger exists. If
that ledger is gone, events may be lost, unless the reader had reached the end before the ledger was deleted.

Entries that no reader sees are marks of transactions, parts of messages in chunks, or entries that the client discarded. A
reader that starts between two chunks never gets their message, so it stops at such a gap. The end of a ledger shows no gap.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

import pulsar

from leasehold.pipeline.connectors.pulsar.broker import PlaceGone, PulsarBroker, is_in_chunks, place_in
from leasehold.pipeline.connectors.pulsar.message import UnreadableMessage, table_of
from leasehold.pipeline.connectors.pulsar.position import MessagePlace
from leasehold.pipeline.errors import FeedError, FeedUnavailable, MalformedRecord
from leasehold.pipeline.event import Page

WAIT_S = 0.25
"""How long one call waits for an event. It takes longer only while the broker does not answer."""
AT_END_S = 5.0
"""A reader has missed nothing if its broker had nothing more so recently. Retention takes longer."""
LOOK_S = 1.0
"""How often a reader without events asks its broker whether there are any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLimits:
    """trusts_headers: whether hidden.EVENT is read. events_max: in a page, and in flight to the reader.

    allows_gaps: whether entries that no reader sees are passed.
    """

    events_max: int = 1000
    bytes_max: int = 4 * 1024 * 1024
    trusts_headers: bool = False
    allows_gaps: bool = False


class TopicReader:
    """place: of the last event that was read; None is the beginning. All methods raise PulsarException."""

    def __init__(
        self, broker: PulsarBroker, topic: str, partition: str, place: MessagePlace | None, limits: TopicLimits
    ) -> None:
        self._broker = broker
        self._topic = topic
        self._partition = partition
        self._limits = limits
        self._place = self._fetched = place
        self._held: deque[pulsar.Message] = deque()
        self._is_found = place is None
        self._at_end_at: float | None = None
        self._heard_at = time.monotonic()
        self._reader = broker.make_reader(topic, place, events_max=limits.events_max)

    def _find(self, place: MessagePlace) -> None:
        """Raises PlaceGone."""
        try:
            first = self._reader.read_next(self._broker.patience_ms) if self._reader.has_message_available() else None
        except pulsar.Timeout:
            if not self._reader.is_connected():
                raise
            self._is_found = True  # the last chunk of a message is all that there is, and is not given
            return
        if first is None:
            raise PlaceGone(place, None)
        self._is_found = True
        self._take(first)

    def read(self) -> Page | None:
        """The next page; None if nothing arrived within WAIT_S. Raises PlaceGone, FeedError."""
        if self._place is not None and not self._is_found:
            self._find(self._place)
        if self._at_end_at is not None and not self._is_at_end():
            self._at_end_at = None
            if self._place is not None:
                self._broker.check_ledger(self._topic, self._place)
        if not self._held and not self._await():
            return None
        self._check_place(place_in(self._held[0]))
        messages = [self._held.popleft()]
        self._check_gap(self._place, messages[0])
        size = len(messages[0].data())
        while len(messages) < self._limits.events_max and (self._held or self._fetch(0)):
            before, following = place_in(messages[-1]), place_in(self._held[0])
            if following.ledger != before.ledger or is_gap(before, following):
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
        silent_s = time.monotonic() - self._heard_at
        if not self._reader.is_connected():
            if silent_s > self._broker.timeout_s:
                raise FeedUnavailable(f"topic '{self._topic}': no connection for {self._broker.timeout_s:g} s")
        elif silent_s >= LOOK_S or self._at_end_at is None:
            is_at_end = not self._reader.has_message_available()
            self._heard_at = time.monotonic()
            if is_at_end:  # an event that is on its way now does not undo what was known a moment ago
                self._at_end_at = self._heard_at
        return False

    def _is_at_end(self) -> bool:
        """Whether nothing can have been missed since the last event."""
        return self._at_end_at is not None and time.monotonic() - self._at_end_at < AT_END_S

    def _fetch(self, wait_ms: int) -> bool:
        """Put a new event into `_held`. False if none arrives."""
        while True:
            try:
                message = self._reader.read_next(wait_ms)
            except pulsar.Timeout:
                return False
            if self._take(message):
                return True

    def _take(self, message: pulsar.Message) -> bool:
        """After a new connection, the client repeats the last event that it gave."""
        place = place_in(message)
        if self._fetched is not None and place.order <= self._fetched.order:
            return False
        self._fetched, self._heard_at = place, time.monotonic()
        self._held.append(message)
        return True

    def _check_place(self, following: MessagePlace) -> None:
        """Raises PlaceGone if retention has overtaken this reader."""
        if self._place is not None and not self._is_at_end() and following.ledger != self._place.ledger:
            self._broker.check_ledger(self._topic, self._place)

    def _check_gap(self, before: MessagePlace | None, message: pulsar.Message) -> None:
        """Raises MalformedRecord for entries between a place and a message that no reader sees."""
        place = place_in(message)
        if self._limits.allows_gaps or is_in_chunks(message) or not is_gap(before, place):
            return
        raise MalformedRecord(
            f"topic '{self._topic}': entries before {place} cannot be read. They may be damaged, parts of a message in chunks,"
            " marks of transactions or of replicated subscriptions, or what the broker filters. If nothing publishes in chunks"
            f" here, set `allows_gaps` of the feed. To pass only this gap, reset the lease to '{place.before}'"
        )

    def _page(self, messages: list[pulsar.Message]) -> Page:
        try:
            table = table_of(self._partition, messages, trusts_headers=self._limits.trusts_headers)
        except (UnreadableMessage, FeedError) as error:
            if len(messages) > 1:  # what precedes the event is read first
                half = len(messages) // 2
                self._held.extendleft(reversed(messages[half:]))
                return self._page(messages[:half])
            place = place_in(messages[0])
            raise MalformedRecord(
                f"topic '{self._topic}': {error}. To continue without this event, reset the lease to '{place}'"
            ) from None
        places = [place_in(message) for message in messages]
        self._place, self._at_end_at = places[-1], None
        return Page(table, str(places[-1]), lambda n: str(places[n - 1]))


def is_gap(before: MessagePlace | None, following: MessagePlace) -> bool:
    """Whether entries lie between two places that are read one after the other. before: None is the beginning. Pure."""
    if before is None or before.ledger != following.ledger:
        return following.entry > 0
    return following.entry > before.entry + 1
