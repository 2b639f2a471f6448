"""What a lease has published, as the end of its partition shows it. It blocks, and belongs to one thread.

A batch is one entry, which brokers store whole. Its first event carries the batch's marker, and the number by which brokers
recognize the entry. The last number that a broker knows gives no position, but it shows whether entries are missing from what
was read.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import NamedTuple

import pulsar

from leasehold.pipeline.connectors.pulsar.broker import PulsarBroker, is_in_chunks, place_in
from leasehold.pipeline.connectors.pulsar.position import MessagePlace
from leasehold.pipeline.errors import Fenced, SinkRejected, SinkUnavailable
from leasehold.pipeline.markers import PREFIX, Compare, Marker, Search, marker_in
from leasehold.pipeline.publishing_writer import generation_lost
from leasehold.pipeline.sink import Claim, to_write_again

NUMBER = PREFIX + "number"
INDEX = PREFIX + "index"
PAUSE_S = 0.05
REPORT_EVENTS = 1000
FRESH_S = 60.0
"""Brokers remember a producer for at least this long."""
_STATE = re.compile(r"(\d{1,18}):(-1|\d{1,18}):(\d{1,18}):(-1|\d{1,18}):(\d{1,9})", re.ASCII)
BEGINNING = MessagePlace(0, -1)
"""The place of a settled entry if the topic was empty."""


class SettledEntry(NamedTuple):
    """The last entry that was settled together with the lease's position. New markers follow it. It is the sink state.

    number: -1 if nothing of the lease was there when this generation began. target: the partition that takes the lease's output.
    """

    generation: int
    number: int
    place: MessagePlace
    target: str

    def encoded(self) -> str:
        return f"{self.generation}:{self.number}:{self.place.ledger}:{self.place.entry}:{self.target}"


def tail_of(state: str) -> SettledEntry | None:
    if (found := _STATE.fullmatch(state)) is None:
        return None
    generation, number, ledger, entry = map(int, found.groups()[:4])
    return SettledEntry(generation, number, MessagePlace(ledger, entry), found[5])


def marker_properties(marker: Marker, number: int) -> dict[str, str]:
    """The properties of the event that carries a batch's marker."""
    return {**marker.properties(), INDEX: "0", NUMBER: str(number)}


class TailSearch:
    """generation: None for the latest. number: the highest of the lease that was seen, -1 for none. end: the last whole entry."""

    def __init__(
        self,
        broker: PulsarBroker,
        topic: str,
        lease: str,
        tail: SettledEntry | None,
        *,
        generation: int | None,
        compare: Compare = lambda a, b: 1,
        report_progress: Callable[[], object] = lambda: None,
    ) -> None:
        self.markers = Search(lease, generation, compare)
        self.number = -1
        self.end: MessagePlace | None = None
        self._where = f"topic '{topic}'"
        self._patience_s = broker.timeout_s
        self._lease = lease
        self._tail = tail
        self._other: str | None = None
        self._time_ms = 0
        self._has_tail = tail is None or tail.number < 0
        self._report_progress = report_progress
        start = None if tail is None or tail.place == BEGINNING else tail.place
        self._reader = broker.make_reader(topic, start)

    def close(self) -> None:
        self._reader.close()

    def read(self) -> None:
        """Read to the present end. Raises PulsarException."""
        seen = 0
        while self._reader.has_message_available():
            self._see(self._reader.read_next(int(self._patience_s * 1000)))
            seen += 1
            if seen % REPORT_EVENTS == 0:
                self._report_progress()

    def _see(self, message: pulsar.Message) -> None:
        place = place_in(message)
        if not is_in_chunks(message):  # the next search begins there, and the client would wait for the first chunk
            self.end = MessagePlace(place.ledger, place.entry)
        if self._tail is not None and place.ledger == self._tail.place.ledger:
            self._has_tail = True
        try:
            properties = message.properties()
        except UnicodeDecodeError:  # ours are ASCII
            return
        if (marker := marker_in(properties)) is None:
            return
        if marker.lease != self._lease:
            self._other = marker.lease
            return
        self.markers.see(properties)
        number = properties.get(NUMBER, "")
        if number.isascii() and number.isdecimal() and len(number) < 19:
            self.number, self._time_ms = max(self.number, int(number)), message.publish_timestamp()

    def admit(self, claim: Claim) -> None:
        """Raises Fenced, SinkRejected."""
        if self._other is not None:
            raise SinkRejected(
                f"{self._where} holds output of lease '{self._other}', and a partition takes that of one lease alone."
                " Give each pipeline a topic of its own, with as many partitions as its source has"
            )
        if self.markers.later > claim.generation:
            raise generation_lost(claim, self._where, self.markers.later)
        newest = self.markers.newest
        if newest is not None and newest.level > claim.epoch:
            raise Fenced(f"{self._where} knows epoch {newest.level}: not {claim.epoch}", epoch=newest.level)

    def read_up_to(self, known: int, claim: Claim) -> int:
        """Read what was published before the claim made its producer. known: the last number that the broker knows, or -1.

        Returns the lease's last number. Raises Fenced, SinkRejected, SinkUnavailable, PulsarException.

        The first claim of a generation trusts the position of the reset, whatever the topic has lost. It has published nothing:
        the worker writes the state of a claim into the lease before anything is sent.
        """
        is_reset = claim.generation > (0 if self._tail is None else self._tail.generation)
        deadline = time.monotonic() + self._patience_s
        settled = -1 if self._tail is None or is_reset else self._tail.number
        self.read()
        while known > max(self.number, settled) and self._has_tail and time.monotonic() < deadline:
            time.sleep(PAUSE_S)
            self.read()
        is_missing = not is_reset and known > max(self.number, settled)
        is_cut = not is_reset and known != settled and not self._has_tail and self.number <= settled
        if is_missing and self._has_tail and settled >= 0:
            raise SinkUnavailable(f"{self._where}: the broker has not stored batch {known} yet")
        if is_missing or is_cut:
            raise _unknown(claim, self._where)
        self.admit(claim)
        if known < 0 <= self.number and time.time() - self._time_ms / 1000 < FRESH_S:
            raise unnumbered(self._where)
        return max(known, self.number, settled)


def unnumbered(where: str) -> SinkRejected:
    return SinkRejected(
        f"{where}: the broker does not remember what was published a moment ago, so it would store a repeated batch twice:"
        " enable deduplication for the namespace (`pulsar-admin namespaces set-deduplication --enable`)"
    )


def _unknown(claim: Claim, where: str) -> SinkRejected:
    same = (
        "If all hosts were stopped in order, the lease's position is right: reset the lease to it. "
        if claim.continuation is not None
        else ""
    )
    return SinkRejected(
        f"{where} no longer has what lease '{claim.partition}' published last, so its progress is unknown. Either retention"
        f" deleted it, or the topic was deleted, and created again. {same}Otherwise look at what arrived, or"
        f" {to_write_again(claim)}"
    )
