"""What a reader makes of what the client gives it: repetition after a new connection, gaps, pauses, and events unfit to read."""

from __future__ import annotations

from collections import deque
from typing import Any

import pulsar
import pytest
from unit.pipeline.connectors.pulsar.chunked import ChunkedId

from leasehold.pipeline.connectors.pulsar import reader as reader_module
from leasehold.pipeline.connectors.pulsar.broker import PlaceGone, PulsarAccess, PulsarBroker, TokenFile
from leasehold.pipeline.connectors.pulsar.position import INDEX_MAX, MessagePlace
from leasehold.pipeline.connectors.pulsar.reader import AT_END_S, LOOK_S, TopicLimits, TopicReader, is_gap
from leasehold.pipeline.errors import MalformedRecord


class Message:
    """An event whose body names its place. first: entry of its first chunk. Only readers that start there, or before, get it."""

    def __init__(self, ledger: int, entry: int, within: int = -1, *, size: int = 0, **more: Any) -> None:
        self._id = pulsar.MessageId(0, ledger, entry, within)
        self._body = f"{ledger}:{entry}:{within}".encode().ljust(size)
        self._more = {"publish_timestamp": 1_000, "encryption_context": None, "chunk": False, "first": entry, **more}

    @property
    def first(self) -> tuple[int, int]:
        return self._id.ledger_id(), self._more["first"]

    def message_id(self) -> Any:
        return ChunkedId(self._id) if self._more["chunk"] else self._id

    def data(self) -> bytes:
        return self._body

    def publish_timestamp(self) -> int:
        return int(self._more["publish_timestamp"])

    def encryption_context(self) -> object:
        return self._more["encryption_context"]

    def partition_key(self) -> str:
        return ""

    def properties(self) -> dict[str, str]:
        return {}

    def has_null_value(self) -> bool:
        return False


class Topic(PulsarBroker):
    """What the broker stores, and the clients of one reader. `given`: what the next reads get, in order, unless it is slow."""

    def __init__(self, *stored: Message) -> None:
        super().__init__(PulsarAccess(servers="127.0.0.1:6650"), "t", timeout_s=1.0)
        self.stored = list(stored)
        self.given: deque[Message] = deque()
        self.is_slow = False
        self._is_first = True

    def make_reader(self, topic: str, place: MessagePlace | None, **_: object) -> Any:
        """The first one gets `given`; later ones look at what is stored."""
        is_first, self._is_first = self._is_first, False
        if is_first:
            self.given.extend(self._from(place))
            return Client(self, self.given)
        return Client(self, deque(self._from(place)))

    def _from(self, place: MessagePlace | None) -> list[Message]:
        return [each for each in self.stored if place is None or each.first >= (place.ledger, place.entry)]


class Client:
    def __init__(self, topic: Topic, given: deque[Message]) -> None:
        self._topic = topic
        self._given = given

    def read_next(self, _: int) -> Message:
        if not self._given or self._topic.is_slow:
            raise pulsar.Timeout
        return self._given.popleft()

    def has_message_available(self) -> bool:
        return bool(self._given)

    def is_connected(self) -> bool:
        return True

    def close(self) -> None: ...


def reader_of(topic: Topic, place: MessagePlace | None = None, **limits: Any) -> TopicReader:
    return TopicReader(topic, "t", "0", place, TopicLimits(**limits))


def bodies(reader: TopicReader) -> list[str]:
    """Of the next page."""
    page = reader.read()
    return [] if page is None else [body.decode().strip() for body in page.events["body"].to_pylist()]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(reader_module.time, "monotonic", lambda: now[0])
    return now


def test_an_event_that_the_client_repeats_after_a_new_connection_is_read_once() -> None:
    first, second, third = (Message(1, entry, size=60) for entry in range(3))
    topic = Topic(first, second)
    reader = reader_of(topic, bytes_max=100)
    assert bodies(reader) == ["1:0:-1"]
    topic.given.extend((second, third))
    assert [*bodies(reader), *bodies(reader)] == ["1:1:-1", "1:2:-1"]


@pytest.mark.parametrize("allows_gaps", [False, True])
def test_a_gap_stops_the_reader_behind_what_precedes_it_however_often_it_starts(allows_gaps: bool) -> None:
    chunks = (Message(1, 0), Message(1, 1), Message(1, 3), Message(1, 4, chunk=True))
    reader = reader_of(Topic(*chunks), allows_gaps=allows_gaps)
    assert bodies(reader) == ["1:0:-1", "1:1:-1"]
    if allows_gaps:
        assert bodies(reader) == ["1:3:-1"]
        return
    for again in (reader, reader_of(Topic(*chunks), MessagePlace(1, 1))):
        with pytest.raises(
            MalformedRecord, match=r"before 1:3 cannot be read.*`allows_gaps`.*reset the lease to '1:2'$"
        ):
            again.read()
    assert bodies(reader_of(Topic(*chunks), MessagePlace(1, 2))) == ["1:3:-1"]


def test_a_page_ends_before_a_gap() -> None:
    reader = reader_of(Topic(Message(1, 0), Message(1, 2)))
    assert bodies(reader) == ["1:0:-1"]
    with pytest.raises(MalformedRecord, match="before 1:2 cannot be read"):
        reader.read()


def test_a_gap_is_between_places_and_before_a_ledgers_first_entry() -> None:
    place = MessagePlace
    assert not any(
        (is_gap(None, place(3, 0)), is_gap(place(3, 0), place(3, 1, 5)), is_gap(place(3, 1, 5), place(3, 1, 6)))
    )
    assert not any((is_gap(place(3, 7), place(4, 0)), is_gap(place(3, -1), place(3, 0))))
    assert all((is_gap(None, place(3, 1)), is_gap(place(3, 0), place(3, 2)), is_gap(place(3, 7), place(4, 1))))


def test_a_reader_at_its_end_that_was_frozen_does_not_pass_what_retention_took_meanwhile(clock: list[float]) -> None:
    topic = Topic(Message(1, 0))
    reader = reader_of(topic)
    assert bodies(reader) == ["1:0:-1"]
    assert reader.read() is None, "it is at the end"
    clock[0] += AT_END_S - 1
    topic.stored = [Message(2, 0)]
    topic.given.extend(topic.stored)
    assert bodies(reader) == ["2:0:-1"], "the broker answered a moment ago, so nothing can be missing"
    assert reader.read() is None
    clock[0] += 7200
    topic.stored = [Message(3, 5)]
    with pytest.raises(PlaceGone):
        reader.read()


def test_an_event_that_is_on_its_way_does_not_undo_that_nothing_was_missed(clock: list[float]) -> None:
    topic = Topic(Message(1, 0))
    reader = reader_of(topic)
    assert bodies(reader) == ["1:0:-1"]
    assert reader.read() is None
    clock[0] += LOOK_S
    topic.stored = [Message(2, 0)]
    topic.is_slow = True
    topic.given.extend(topic.stored)
    assert reader.read() is None, "the broker has an event, which has not arrived"
    topic.is_slow = False
    assert bodies(reader) == ["2:0:-1"]


def test_a_place_behind_which_there_is_only_a_chunk_waits_for_the_next_event() -> None:
    topic = Topic(Message(1, 1), Message(1, 2))
    topic.is_slow = True
    reader = reader_of(topic, MessagePlace(1, 1))
    assert reader.read() is None
    topic.is_slow = False
    assert bodies(reader) == ["1:2:-1"]


def test_a_place_that_is_the_last_chunk_of_a_message_is_not_lost() -> None:
    """The client gives a message in chunks only to a reader that starts at its first chunk."""
    chunks = Message(1, 4, chunk=True, first=2)
    topic = Topic(Message(1, 0), Message(1, 1), chunks, Message(2, 0))
    assert bodies(reader_of(topic, MessagePlace(1, 4))) == ["2:0:-1"]
    found = Topic(*topic.stored).find_first("t", MessagePlace(1, 4))
    assert found is not None
    assert found.data() == b"2:0:-1"


def test_a_place_whose_ledger_is_gone_is_lost() -> None:
    for place in (MessagePlace(1, 0), MessagePlace(1, 4)):
        with pytest.raises(PlaceGone) as gone:
            reader_of(Topic(Message(2, 0)), place).read()
        assert gone.value.first == MessagePlace(2, 0)
        with pytest.raises(PlaceGone):
            Topic(Message(2, 0)).find_first("t", place)
        with pytest.raises(PlaceGone):
            reader_of(Topic(), place).read()


@pytest.mark.parametrize(
    ("unfit", "why"),
    [
        (Message(1, 2, chunk=True), "is in chunks"),
        (Message(1, 2, encryption_context=object()), "is encrypted"),
        (Message(1, 2, INDEX_MAX + 1), "cannot be numbered"),
        (Message(1, 2, publish_timestamp=2**62), "has a time after the year 9999"),
    ],
    ids=["chunks", "encrypted", "number", "time"],
)
def test_an_event_that_cannot_be_read_stops_behind_what_precedes_it(unfit: Message, why: str) -> None:
    reader = reader_of(Topic(Message(1, 0), Message(1, 1), unfit, Message(1, 3)))
    found = bodies(reader)
    found += bodies(reader) if len(found) < 2 else []
    assert found == ["1:0:-1", "1:1:-1"]
    with pytest.raises(MalformedRecord, match=rf"event at 1:2\S* {why}.*reset the lease to '1:2\S*'$"):
        reader.read()


def test_a_token_file_that_cannot_be_read_leaves_the_last_token(tmp_path: Any) -> None:
    file = tmp_path / "token"
    token = TokenFile(file)
    assert token.read() == ""
    file.write_text("first\n")
    assert token.read() == "first"
    file.write_bytes(b"\xff")
    assert token.read() == "first"
    file.unlink()
    assert token.read() == "first"
