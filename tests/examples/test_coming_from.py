"""The pages for users of the originals: Leasehold's side of each sample runs as it is written, over the emulators."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from azure.cosmos import CosmosClient
from azure.eventhub import EventData, EventHubProducerClient
from pages import examples
from patience import until
from plugins_cli import Command, Commands

Emulate = Callable[..., str]


@pytest.fixture
def emulate(leasehold: Commands) -> Emulate:
    """Starts an emulator. Returns its connection string."""

    def start(service: str, *options: str) -> str:
        server = leasehold("emulate", service, "--port", "0", "--control-port", "0", *options)
        until(lambda: server.found(r"(Ctrl-C)") or server.process.poll() is not None, f"{service} serves")
        found = server.found(r"connection string +(\S.*)\n")
        assert found, server.out + server.err
        return found

    return start


def orders_in(account: str, numbers: Iterable[int]) -> list[str]:
    orders = CosmosClient.from_connection_string(account).get_database_client("shop").get_container_client("orders")
    return [orders.upsert_item({"id": f"order-{n}", "customer": str(n)})["id"] for n in numbers]


def ids_of(program: Command) -> set[str]:
    return set(re.findall(r"^\d: (order-\d+)$", program.out, re.MULTILINE))


def test_a_delegate_gets_every_document_though_the_program_is_killed(
    tmp_path: Path, emulate: Emulate, python: Commands
) -> None:
    examples("coming-from-change-feed-processor.md", tmp_path)
    account = emulate("cosmos", "--container", "shop/orders:/customer")
    first = orders_in(account, range(20))
    billing = python("billing.py", env={"SHOP_COSMOS": account})
    until(lambda: ids_of(billing) == set(first), "all orders", lambda: billing.out + billing.err)
    assert sorted(re.findall(r"^(\d): acquired$", billing.out, re.MULTILINE)) == ["0", "1", "2", "3"]
    billing.process.kill()
    billing.process.wait()
    more = orders_in(account, range(20, 40))
    again = python("billing.py", env={"SHOP_COSMOS": account})
    until(lambda: ids_of(again) >= set(more), "the orders of the time between", lambda: again.out + again.err)
    again.process.terminate()
    assert again.ended() == 0, again.err


def test_an_observer_is_opened_called_and_closed_for_each_lease(
    tmp_path: Path, emulate: Emulate, python: Commands
) -> None:
    examples("coming-from-change-feed-processor.md", tmp_path)
    account = emulate("cosmos", "--container", "shop/orders:/customer")
    orders_in(account, range(20))
    observer = python("observer.py", env={"SHOP_COSMOS": account})

    def documents() -> int:
        return sum(map(int, re.findall(r"^\d: (\d+) documents$", observer.out, re.MULTILINE)))

    until(lambda: documents() == 20, "all documents", lambda: observer.out + observer.err)
    observer.process.terminate()
    assert observer.ended() == 0, observer.err
    assert sorted(re.findall(r"^(\d): opened at None$", observer.out, re.MULTILINE)) == ["0", "1", "2", "3"]
    assert sorted(re.findall(r"^(\d): closed, shutdown$", observer.out, re.MULTILINE)) == ["0", "1", "2", "3"]


def test_events_are_received_and_checkpointed_by_hand(tmp_path: Path, emulate: Emulate, python: Commands) -> None:
    examples("coming-from-event-processor.md", tmp_path)
    hubs = emulate("eventhubs", "--hub", "orders:2")
    environment = {"SHOP_HUBS": hubs, "SHOP_BLOBS": emulate("blob")}

    def publish(*bodies: str) -> None:
        with EventHubProducerClient.from_connection_string(hubs, eventhub_name="orders") as producer:
            producer.send_batch([EventData(body) for body in bodies])

    def received(program: Command) -> list[str]:
        return re.findall(r"^\d (order-\d+)$", program.out, re.MULTILINE)

    publish(*(f"order-{n}" for n in range(10)))
    first = python("receive.py", env=environment)
    until(lambda: len(received(first)) == 10, "all events", lambda: first.out + first.err)
    first.process.terminate()
    assert first.ended() == 0, first.err
    assert sorted(re.findall(r"^(\d) closed: shutdown$", first.out, re.MULTILINE)) == ["0", "1"]
    publish("order-10")
    second = python("receive.py", env=environment)
    until(lambda: received(second) == ["order-10"], "the new event alone", lambda: second.out + second.err)
    second.process.terminate()
    assert second.ended() == 0, second.err
