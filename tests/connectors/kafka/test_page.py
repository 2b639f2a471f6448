"""docs/kafka.md: its example runs as it is written, over a real broker."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from pathlib import Path

import pytest
from connectors.kafka.topics import Topics, committed
from pages import examples, lines_of
from plugins_cli import Commands

pytestmark = pytest.mark.xdist_group("kafka")
"""One broker, instead of one for each process."""


async def test_orders_in_euros_reach_their_topic_once(topics: Topics, tmp_path: Path, leasehold: Commands) -> None:
    page = examples("kafka.md", tmp_path)
    orders, euros = f"orders-{uuid.uuid4().hex[:8]}", f"orders-eur-{uuid.uuid4().hex[:8]}"
    file = tmp_path / "orders.yaml"
    text = (
        file.read_text().replace("topic: orders-eur", f"topic: {euros}").replace("topic: orders}", f"topic: {orders}}}")
    )
    file.write_text(text)
    topics.machine.make_topic(orders, 4)
    source = replace(topics, name=orders)

    def sell(first: int) -> None:
        for number in range(first, first + 20):
            body = json.dumps({"order": str(number), "currency": "EUR" if number % 2 else "USD"}).encode()
            source.produce(number % 4, [body], key=str(number % 5))

    sell(0)
    for line in (*lines_of(page, "check orders.yaml"), *lines_of(page, "run --until-idle")):
        done = leasehold(*line.split()[1:], cwd=tmp_path, env={"KAFKA": topics.machine.servers})
        assert done.ended() == 0, done.out + done.err
    sell(20)
    again = leasehold(*lines_of(page, "run --until-idle")[0].split()[1:], env={"KAFKA": topics.machine.servers})
    assert again.ended() == 0, again.out + again.err
    found = [record for partition in range(4) for record in await committed(replace(topics, name=euros), partition)]
    numbers = [int(json.loads(record.value or b"")["order"]) for record in found]
    assert sorted(numbers) == list(range(1, 40, 2))
    assert all(record.key == str(number % 5).encode() for record, number in zip(found, numbers, strict=True))


def test_the_settings_for_event_hubs_are_right(tmp_path: Path, leasehold: Commands) -> None:
    examples("kafka.md", tmp_path)
    done = leasehold("check", "hubs.yaml", env={"HUBS": "Endpoint=sb://secret"})
    assert done.ended() == 0, done.err
    assert "sb://secret" not in done.out + done.err
