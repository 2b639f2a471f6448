"""A standalone Spark master is tried by its addresses before a JVM is started for it."""

from __future__ import annotations

import socket

import pytest

from pipeline.errors import EngineUnavailable
from pipeline.spark.master import Address, addresses, require_master


@pytest.mark.parametrize(
    ("master", "found"),
    [
        ("spark://a:7077", [("a", 7077)]),
        ("spark://a:1,b.example:2", [("a", 1), ("b.example", 2)]),
        ("spark://[::1]:7077", [("::1", 7077)]),
        ("local[2]", []),
        ("yarn", []),
        ("k8s://https://a:443", []),
    ],
)
def test_the_addresses_of_standalone_masters_alone_are_read(master: str, found: list[Address]) -> None:
    assert addresses(master) == found


@pytest.mark.parametrize("master", ["spark://nohost", "spark://", "spark://a:1,b", "spark://a:port", "spark://a:99999"])
def test_a_master_without_a_port_is_refused_with_the_form_that_is_wanted(master: str) -> None:
    with pytest.raises(EngineUnavailable, match="write it as spark://HOST:PORT"):
        require_master(master)


def test_one_address_that_accepts_a_connection_is_enough() -> None:
    require_master("spark://a:1,b:2", lambda address: None if address[0] == "b" else "connection refused")


def test_if_no_address_accepts_a_connection_each_is_named_with_its_reason() -> None:
    with pytest.raises(EngineUnavailable) as refused:
        require_master("spark://a:1,b:2", lambda address: f"no {address[0]}")
    assert str(refused.value) == (
        "the Spark master at 'spark://a:1,b:2' cannot be reached (a:1: no a; b:2: no b): start it, or correct `spark.master`"
    )


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("nohost.invalid:7077", "nohost.invalid:7077: .*(not known|name resolution|no address)"),
        (f"{'x' * 64}.invalid:1", "too long"),
    ],
)
def test_an_address_that_leads_nowhere_is_a_reason_and_no_traceback(address: str, reason: str) -> None:
    with pytest.raises(EngineUnavailable, match=reason):
        require_master(f"spark://{address}")


def test_a_real_listener_is_reached_and_a_closed_port_is_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        require_master(f"spark://127.0.0.1:{port}")
    with pytest.raises(EngineUnavailable, match=f"127.0.0.1:{port}: connection refused"):
        require_master(f"spark://127.0.0.1:{port}")
