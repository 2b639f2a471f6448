"""A namespace that is read from its journal is the namespace that wrote it: events, bounds and idempotent producers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from leasehold_emulators.eventhubs.messages import Event, Numbered, data_event
from leasehold_emulators.eventhubs.namespace import Namespace
from leasehold_emulators.eventhubs.partition import Partition
from leasehold_emulators.eventhubs.persistence import restore
from leasehold_emulators.eventhubs.producers import Asked, Attached
from leasehold_emulators.eventhubs.tokens import Keys
from leasehold_emulators.journal import Journal

ACTIONS = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 4)),
    st.tuples(st.just("publish"), st.integers(1, 4)),
    st.tuples(st.just("repeat"), st.just(0)),
    st.tuples(st.just("attach"), st.integers(0, 3)),
    st.tuples(st.just("trim"), st.integers(0, 12)),
    st.tuples(st.just("forget"), st.just(0)),
    st.tuples(st.just("grow"), st.integers(1, 4)),
)


def namespace(path: Path) -> Namespace:
    made = Namespace(keys=Keys(keys={"k": "v"}, jwt="t"), now_ms=lambda: 1000, journal=Journal(path))
    restore(made, made.journal.replay())
    return made


class Client:
    """A publisher to the first partition of a hub."""

    def __init__(self, to: Namespace) -> None:
        self.to = to
        self.producer: int | None = None
        self.level, self.last, self.now_ms = 0, 0, 2000
        self.sent: list[Event] = []

    @property
    def partition(self) -> Partition:
        return self.to.hubs["h"].partitions[0]

    def do(self, name: str, number: int) -> None:
        self.now_ms += 7
        match name:
            case "append":
                self.partition.append([data_event(b"plain %d" % n, "key") for n in range(number)], self.now_ms)
            case "attach":
                self._attach(number)
            case "publish" if self.producer is not None:
                numbers = range(self.last + 1, self.last + 1 + number)
                self.sent = [numbered(Numbered(self.producer, self.level, n)) for n in numbers]
                if self.partition.publish(self.sent, self.producer, self.now_ms) is None:
                    self.last = numbers[-1]
            case "repeat" if self.sent and self.producer is not None:
                self.partition.publish(self.sent, self.producer, self.now_ms)
            case "trim":
                self.partition.trim(number)
            case "forget":
                self.partition.forget_producers()
            case "grow":
                self.to.hubs["h"].grow(number)
        self.to.journal.commit()

    def _attach(self, level: int) -> None:
        outcome = self.to.attach_producer(self.partition, Asked(id=self.producer, level=level))
        if isinstance(outcome, Attached):
            self.producer, self.level, self.last = outcome.producer.id, level, outcome.replied


def numbered(numbers: Numbered) -> Event:
    return data_event(b"numbered", None)._replace(numbered=numbers)


def content(of: Namespace) -> Any:
    return {
        name: (hub.created_ms, hub.groups, hub.events_max, [vars_of(each) for each in hub.partitions])
        for name, hub in of.hubs.items()
    }


def vars_of(partition: Partition) -> Any:
    return (
        (partition.first, partition.end, partition.size_bytes, partition.last_offset, partition.last_time_ms),
        (partition.messages, list(partition.offsets), list(partition.times_ms)),
        (partition.producers, partition.runs),
    )


@given(actions=st.lists(ACTIONS, max_size=25), events_max=st.sampled_from([None, 5]))
def test_a_restart_changes_nothing(
    tmp_path_factory: Any, actions: list[tuple[str, int]], events_max: int | None
) -> None:
    path = tmp_path_factory.mktemp("namespace") / "eventhubs.db"
    first = namespace(path)
    first.make_hub("H", 2, {"sinks"}, events_max)
    client = Client(first)
    for action in actions:
        client.do(*action)
    first.journal.close()
    second = namespace(path)
    assert content(second) == content(first)
    assert next(second.producer_ids) == next(first.producer_ids)
    second.journal.close()


def test_a_hub_in_place_of_another_begins_without_its_events(tmp_path: Path) -> None:
    first = namespace(tmp_path / "a.db")
    first.make_hub("h", 2).partitions[1].append([data_event(b"old", None)], 1)
    first.make_hub("h", 1)
    first.journal.close()
    second = namespace(tmp_path / "a.db")
    assert [each.end for each in second.hubs["h"].partitions] == [0]
    second.journal.close()


def test_receivers_wake_when_events_are_on_disk(tmp_path: Path) -> None:
    first = namespace(tmp_path / "a.db")
    partition = first.make_hub("h", 1).partitions[0]
    pending: list[bool] = []
    partition.watchers.add(lambda: pending.append(first.journal._has_changes))
    partition.append([data_event(b"one", None)], 1)
    assert pending == [False]
    first.journal.close()
