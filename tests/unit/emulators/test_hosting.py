"""The control port serves its own page and local clients, and no page of another site."""

from __future__ import annotations

import socket
import ssl
from types import ModuleType
from typing import Any

import pytest
from aiohttp import ClientSession

from leasehold_emulators.blob import server as blob
from leasehold_emulators.cosmos import server as cosmos
from leasehold_emulators.eventhubs import server as eventhubs
from leasehold_emulators.hosting import PAGE, Place, foreign
from leasehold_emulators.journal import Unusable

JSON = "application/json"


@pytest.mark.parametrize(
    ("method", "headers"),
    [
        ("GET", {"Host": "127.0.0.1:9001"}),
        ("GET", {"Host": "localhost:9001"}),
        ("GET", {"Host": "[::1]:9001"}),
        ("GET", {"Host": "localhost"}),
        ("POST", {"Host": "127.0.0.1:9001", "Content-Type": JSON}),
        (
            "POST",
            {"Host": "localhost:9001", "Content-Type": f"{JSON}; charset=utf-8", "Origin": "http://localhost:9001"},
        ),
    ],
)
def test_local_clients_and_the_page_may_ask(method: str, headers: dict[str, str]) -> None:
    assert foreign(method, headers) is None


@pytest.mark.parametrize(
    ("method", "headers", "problem"),
    [
        ("GET", {"Host": "evil.example:9001"}, "not 'evil.example:9001'"),
        ("GET", {"Host": "127.0.0.1.evil.example"}, "not '127"),
        ("GET", {}, "not ''"),
        ("POST", {"Host": "127.0.0.1:9001", "Content-Type": JSON, "Origin": "http://evil.example"}, "Origin"),
        ("POST", {"Host": "127.0.0.1:9001", "Content-Type": JSON, "Origin": "http://127.0.0.1:8080"}, "Origin"),
        ("POST", {"Host": "127.0.0.1:9001", "Content-Type": JSON, "Origin": "null"}, "Origin"),
        ("POST", {"Host": "127.0.0.1:9001", "Content-Type": "text/plain"}, "Content-Type"),
        ("POST", {"Host": "127.0.0.1:9001"}, "Content-Type"),
        ("PUT", {"Host": "127.0.0.1:9001"}, "GET and POST"),
    ],
)
def test_others_are_refused(method: str, headers: dict[str, str], problem: str) -> None:
    assert problem in (foreign(method, headers) or "")


@pytest.mark.parametrize(
    ("host", "address"),
    [("0.0.0.0", "127.0.0.1"), ("::", "[::1]"), ("::1", "[::1]"), ("10.0.0.7", "10.0.0.7"), ("localhost", "localhost")],
)
def test_clients_get_an_address_that_they_can_reach(host: str, address: str) -> None:
    assert Place(host=host).address == address


def has_ipv6_loopback() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


def test_the_page_needs_nothing_from_elsewhere() -> None:
    text = PAGE.read_text()
    assert "http://" not in text
    assert "https://" not in text
    assert "innerHTML" not in text


SERVERS = [cosmos, blob, eventhubs]
WITH_IPV6 = pytest.mark.skipif(not has_ipv6_loopback(), reason="this machine has no IPv6 loopback interface")
FAULT = {"do": "delay", "delay_s": 0.1}


@WITH_IPV6
@pytest.mark.parametrize("host", ["::", "::1"])
async def test_over_ipv6_the_addresses_of_an_emulator_and_its_page_answer(host: str) -> None:
    options = blob.Options(host=host, control_host=host, tls_port=0)
    async with blob.serve(options) as said, ClientSession() as client:
        async with client.get(f"{said['endpoint']}?comp=list") as answer:
            assert answer.status == 401, "it has no signature"
        async with client.get(f"{said['control']}state") as answer:
            assert answer.status == 200
        trusted = ssl.create_default_context(cafile=said["ca"])
        async with client.get(f"{said['https']}?comp=list", ssl=trusted) as answer:
            assert answer.status == 401


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("nonsense", "JSON"),
        ("\udcff", "JSON"),
        ("[" * 100_000, "JSON"),
        ("[]", "a JSON object, not list"),
        ('{"do": "nothing"}', "nothing"),
        ('{"do": "delay", "delay_s": 0}', "delay_s"),
        ('{"do": "cut", "of": "attic.*"}', "of: 'attic.*' fits none of"),
        ('{"do": "cut", "many": 1}', "many"),
    ],
)
async def test_an_order_that_is_wrong_is_refused(server: ModuleType, body: str, problem: str) -> None:
    async with server.serve(server.Options()) as said, ClientSession(headers={"Content-Type": JSON}) as client:
        async with client.post(f"{said['control']}fault", data=body.encode(errors="surrogateescape")) as answer:
            assert answer.status == 400
            assert problem in (await answer.json())["error"]
        async with client.post(f"{said['control']}faults") as answer:
            assert await answer.json() == []


@pytest.mark.parametrize("server", [cosmos, blob])
@pytest.mark.parametrize(
    "wrong", [{"delay_s": "a"}, {"times": "many"}, {"times": True}, {"of": None}, {"container": 5}, {"after": 0.5}]
)
async def test_a_field_of_a_fault_has_its_type(server: ModuleType, wrong: dict[str, Any]) -> None:
    [field] = wrong
    async with (
        server.serve(server.Options()) as said,
        ClientSession() as client,
        client.post(f"{said['control']}fault", json=FAULT | wrong) as answer,
    ):
        assert answer.status == 400
        assert f"{field}: " in (await answer.json())["error"]


async def test_the_share_of_a_fault_is_a_number() -> None:
    async with cosmos.serve(cosmos.Options()) as said, ClientSession() as client:
        async with client.post(f"{said['control']}fault", json={"do": "cut", "share": "a"}) as answer:
            assert (answer.status, "share: 'a'" in (await answer.json())["error"]) == (400, True)
        async with client.post(f"{said['control']}fault", json={"do": "cut", "share": 1}) as answer:
            assert answer.status == 200


@pytest.mark.parametrize(
    ("server", "kinds"),
    [
        (cosmos, ["*", "feed.*", "feed.latest", "document.*", "document.upsert", "documents.*", "ranges.list"]),
        (blob, ["*", "blob.*", "blob.put", "container.*", "container.delete"]),
        (eventhubs, ["*", "send", "attach.sender", "cbs"]),
    ],
)
async def test_kinds_of_requests_are_known(server: ModuleType, kinds: list[str]) -> None:
    async with server.serve(server.Options()) as said, ClientSession() as client:
        for kind in kinds:
            async with client.post(f"{said['control']}fault", json=FAULT | {"of": kind}) as answer:
                assert (answer.status, kind) == (200, kind)


@pytest.mark.parametrize("name", ["cp", "a" * 64, "Leases", "a--b", "-ab", "ab-", "a_b", ""])
async def test_a_container_has_a_name_that_azure_takes(name: str) -> None:
    with pytest.raises(Unusable, match="3 to 63 lower case letters"):
        async with blob.serve(blob.Options(containers=(name,))):
            pass


async def test_containers_are_created_at_the_start() -> None:
    async with (
        blob.serve(blob.Options(containers=("abc", "a" * 63, "a-1-b"))) as said,
        ClientSession(headers={"Content-Type": JSON}) as client,
        client.post(f"{said['control']}containers") as answer,
    ):
        assert len(await answer.json()) == 3
