"""What the end of a partition shows of a lease's output."""

from __future__ import annotations

from dataclasses import replace

import pulsar
import pytest
from connectors.pulsar.topics import claim
from unit.pipeline.connectors.pulsar.chunked import ChunkedId

from leasehold import SinkRejected
from leasehold.pipeline.connectors.pulsar.position import MessagePlace
from leasehold.pipeline.connectors.pulsar.tail import SettledEntry, TailSearch, marker_properties
from leasehold.pipeline.markers import Marker

LEASE = "bank/0"
SETTLED = SettledEntry(0, 5, MessagePlace(1, 4), "0")
"""Its ledger is gone."""
NEWEST = Marker(lease=LEASE, generation=0, level=1, start="80", to="90", count=1)


class Stored:
    """One entry in another ledger, whose first event carries a marker."""

    def __init__(self, marker: Marker, number: int) -> None:
        self._properties = marker_properties(marker, number)
        self._left = 1

    timeout_s = 0.1

    def make_reader(self, *_: object) -> Stored:
        return self

    def has_message_available(self) -> bool:
        return self._left > 0

    def read_next(self, _: int) -> Stored:
        self._left -= 1
        return self

    def message_id(self) -> object:
        return pulsar.MessageId(0, 2, 0, -1)

    def properties(self) -> dict[str, str]:
        return self._properties

    def publish_timestamp(self) -> int:
        return 0


class InChunks(Stored):
    """A message in chunks of another publisher, after a whole entry."""

    def __init__(self) -> None:
        super().__init__(NEWEST, 9)
        self._left = 2

    def message_id(self) -> object:
        whole, last = (pulsar.MessageId(0, 2, entry, -1) for entry in (0, 3))
        return whole if self._left else ChunkedId(last)


def search(stored: Stored) -> TailSearch:
    return TailSearch(stored, "t", LEASE, SETTLED, generation=0)  # type: ignore[arg-type]


@pytest.mark.parametrize("known", [9, -1], ids=["known to the broker", "forgotten"])
def test_a_marker_after_the_settled_one_shows_the_progress_though_its_ledger_is_gone(known: int) -> None:
    assert search(Stored(NEWEST, 9)).read_up_to(known, claim(2, continuation="50")) == 9


def test_an_older_marker_does_not() -> None:
    with pytest.raises(SinkRejected, match="progress is unknown"):
        search(Stored(replace(NEWEST, to="40", start="30"), 4)).read_up_to(9, claim(2, continuation="50"))


def test_the_next_search_does_not_begin_at_the_last_chunk_of_a_message() -> None:
    """The client would wait for it in vain, and so would every later claim."""
    found = search(InChunks())
    found.read()
    assert found.end == MessagePlace(2, 0)
