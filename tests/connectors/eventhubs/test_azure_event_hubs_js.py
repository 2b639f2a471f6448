"""@azure/event-hubs, of another house and another language, on the wire server."""

from __future__ import annotations

from plugins_eventhubs import EventHubs
from plugins_node import run_script

HUB = "raw-event"
BASICS = {
    "hub": [HUB, ["0", "1", "2", "3"]],
    "partition": [200, False, 0],
    "numbers": list(range(201)),
    "bodies": [0, 199, 500_000],
    "later": 198,
    "byOffset": 100,
    "one": ["alone", {"text": "é", "number": 7, "truth": True}, 0],
    "nobody": "MessagingEntityNotFoundError",
    "refused": "UnauthorizedError",
}


def test_events_cross_with_all_that_they_carry(eventhubs: EventHubs) -> None:
    assert run_script("eventhubs_basics.mjs", eventhubs.connection_string, HUB, "") == BASICS
    keyed = [event for partition in "0123" for event in eventhubs.control.events(HUB, partition) if event.key]
    assert [event.key for event in keyed] == ["a key"] * 3


def test_tls_with_the_authority_that_the_server_names(eventhubs: EventHubs) -> None:
    secure = eventhubs.connection_string.replace(";UseDevelopmentEmulator=true", "")
    address = f"sb://{eventhubs.host}:{eventhubs.tls_port}"
    seen = run_script("eventhubs_basics.mjs", secure, HUB, address, NODE_EXTRA_CA_CERTS=eventhubs.ca)
    assert seen == BASICS


def test_idempotent_producers_their_options_their_retries_and_their_fencing(eventhubs: EventHubs) -> None:
    seen = run_script("eventhubs_idempotent.mjs", eventhubs.connection_string, HUB, eventhubs.control.url)
    id_ = seen["fresh"][0]
    assert seen == {
        "fresh": [id_, 0, 0],
        "after": [id_, 0, 4],
        "granted": [77, 3, 41],
        "resumed": [77, 3, 43],
        "fenced": "ProducerDisconnectedError",
        "lower": "Producer 77 is at epoch 4: epoch 3 has been fenced off.",
        "behind": "Producer 77 has published up to 1 at epoch 4, not up to 7.",
        "negative": "ArgumentOutOfRangeError",
    }
    stored = eventhubs.control.events(HUB, "0")
    assert [event.body for event in stored] == [f'"{letter}"' for letter in "abcdefg"]
    assert [event.producer for event in stored] == [[id_, 0, number] for number in range(1, 8)]
    assert eventhubs.control.bodies(HUB, "3") == ['"a"', '"b"', '"c"']
    assert [eventhubs.control.partition(HUB, partition).repeated for partition in "03"] == [1, 1]
    assert [event.producer for event in eventhubs.control.events(HUB, "1")] == [[77, 3, 42], [77, 3, 43], [77, 4, 1]]
    assert [event.body for event in eventhubs.control.events(HUB, "2")] == [str(n) for n in range(50)]
