"""The bank over Apache Pulsar: both logs are topics of a real broker, the rest is as embedded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from connectors.pulsar.topics import Topics
from lab.scenarios.brokers import TARGETS, TIMEOUT_S, OverBroker, Stored
from lab.scenarios.grounds import PARTITIONS, MakeGround
from plugins_pulsar import PulsarMachine, pulsar_machine

from leasehold.pipeline.connectors.pulsar.broker import place_in
from leasehold.pipeline.connectors.pulsar.position import place_of


class OverPulsar(OverBroker):
    begins_nowhere = False

    def __init__(self, directory: Path, name: str, machine: PulsarMachine, *, with_spark: bool = True) -> None:
        super().__init__(directory, name, machine, with_spark=with_spark)
        self._machine = machine
        self.environment = {"BANK_PULSAR": machine.servers}

    def make_log(self, name: str) -> None:
        self._machine.make_topic(name, PARTITIONS)

    def side(self, log: str, side: str) -> dict[str, Any]:
        return {"type": "pulsar", "servers": "${BANK_PULSAR}", "topic": log, "timeout_s": TIMEOUT_S}

    def paged(self, feed: dict[str, Any], events: int) -> dict[str, Any]:
        return self.replaced(feed, "pulsar", page_events_max=events)

    def slow(self, sink: dict[str, Any], gate: Path) -> dict[str, Any]:
        return self.slowed(sink, "lab.scenarios.slow_pulsar:SlowPulsar", gate)

    def stored(self, log: str) -> dict[str, list[Stored]]:
        with closing(Topics(self._machine, log)) as topics:
            return {
                target: [Stored(place_in(each).sequence, each.data()) for each in topics.messages(target)]
                for target in TARGETS
            }

    def is_behind(self, number: int, position: str | None) -> bool:
        place = place_of(position)
        return place is not None and number <= place.sequence


@contextmanager
def served(*, with_spark: bool = True) -> Iterator[MakeGround]:
    """A broker for each bank: one that dies takes no other with it."""
    with ExitStack() as machines:

        def made(directory: Path, name: str) -> OverPulsar:
            return OverPulsar(directory, name, machines.enter_context(pulsar_machine()), with_spark=with_spark)

        yield made
