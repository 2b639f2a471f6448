"""How an event hub is reached: what is taken, and what is told otherwise."""

from __future__ import annotations

from typing import Any

import pytest

from leasehold.pipeline.connectors.eventhubs.account import EventHubAccount, account_of, is_consumer_group

KEY = "c2VjcmV0IQ=="
ENDPOINT = "Endpoint=sb://bank.servicebus.windows.net/"
FULL = f"{ENDPOINT};SharedAccessKeyName=reader;SharedAccessKey={KEY}"
EMULATOR = f"Endpoint=sb://localhost:5673;SharedAccessKeyName=a;SharedAccessKey={KEY};UseDevelopmentEmulator=true;"


def test_a_connection_string_says_who_and_where() -> None:
    account = account_of(connection_string=f"{FULL};EntityPath=raw-event")
    assert (account.host, account.hub, account.name) == (
        "bank.servicebus.windows.net",
        "raw-event",
        "bank.servicebus.windows.net/raw-event",
    )
    assert not account.is_emulator
    assert account.custom_endpoint is None


def test_the_hub_may_be_named_apart() -> None:
    assert account_of(connection_string=FULL, event_hub="raw-event").hub == "raw-event"
    assert account_of(connection_string=f"{FULL};EntityPath=Raw-Event", event_hub="raw-event").hub == "raw-event"


def test_an_emulator_is_spoken_to_without_tls_at_its_own_port() -> None:
    account = account_of(connection_string=EMULATOR, event_hub="raw-event")
    assert account.is_emulator
    assert account.host == "localhost:5673"
    assert account.custom_endpoint is None


def test_a_signature_made_elsewhere_is_taken_in_place_of_a_key() -> None:
    string = f"{ENDPOINT};SharedAccessSignature=SharedAccessSignature sr=x&sig=y&se=1&skn=z"
    assert account_of(connection_string=string, event_hub="raw-event").connection_string == string


@pytest.mark.parametrize(("identity", "kept"), [("default", None), ("1234-client", "1234-client")])
def test_an_identity_needs_the_namespace_alone(identity: str, kept: str | None) -> None:
    account = account_of(namespace="bank.servicebus.windows.net", event_hub="raw-event", identity=identity)
    assert (account.connection_string, account.identity) == (None, kept)


@pytest.mark.parametrize(
    ("what", "endpoint"),
    [
        ({"namespace": "eh.example:5671", "identity": "default"}, "sb://eh.example:5671"),
        ({"namespace": "eh.example:444", "identity": "default", "transport": "websockets"}, "sb://eh.example:444"),
        ({"namespace": "eh.example", "identity": "default", "transport": "websockets"}, None),
        ({"connection_string": EMULATOR, "transport": "websockets"}, "sb://localhost:5673"),
    ],
)
def test_a_port_that_is_not_the_usual_one_is_where_to_connect(what: dict[str, Any], endpoint: str | None) -> None:
    assert account_of(event_hub="raw-event", **what).custom_endpoint == endpoint


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ({}, "needs `connection_string`, or `namespace` and `identity`"),
        ({"namespace": "bank.servicebus.windows.net"}, "needs `connection_string`, or"),
        ({"connection_string": FULL, "identity": "default"}, "remove `namespace` and `identity`"),
        ({"connection_string": FULL, "namespace": "bank"}, "remove `namespace` and `identity`"),
        ({"namespace": "sb://bank.servicebus.windows.net", "identity": "default"}, "without sb://"),
        ({"namespace": "bank:99999", "identity": "default"}, "`namespace` must be a name like"),
        ({"connection_string": "secret-nonsense"}, "must look like Endpoint=sb://"),
        ({"connection_string": "Endpoint=sb://[::1;SharedAccessKey=secret"}, "must look like Endpoint=sb://"),
        ({"connection_string": f"{ENDPOINT};SharedAccessKey=secret"}, "SharedAccessKeyName and SharedAccessKey"),
        ({"connection_string": f"{FULL};SharedAccessSignature=secret"}, "or SharedAccessSignature"),
        ({"connection_string": f"{FULL};EntityPath=other", "event_hub": "hub"}, "name two hubs"),
        ({"connection_string": FULL, "event_hub": "a/b"}, "needs the hub's name"),
        ({"connection_string": FULL, "event_hub": None}, "needs the hub's name"),
    ],
)
def test_what_is_missing_or_too_much_is_told_without_secrets(what: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match="`") as raised:
        account_of(**{"event_hub": "raw-event"} | what)
    assert told in str(raised.value)
    assert "secret" not in str(raised.value)
    assert KEY not in str(raised.value)


def test_an_account_is_shown_without_its_secrets() -> None:
    assert KEY not in repr(account_of(connection_string=FULL, event_hub="raw-event"))
    assert isinstance(account_of(connection_string=FULL, event_hub="raw-event"), EventHubAccount)


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("$Default", True),
        ("$default", True),
        ("group-1", True),
        ("", False),
        ("$other", False),
        ("a/b", False),
        ("x" * 51, False),
    ],
)
def test_the_name_of_a_consumer_group_is_checked(name: str, is_one: bool) -> None:
    assert is_consumer_group(name) is is_one
