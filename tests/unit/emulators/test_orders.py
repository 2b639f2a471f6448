"""A wrong order is answered 400 with what is wrong about it, and changes nothing."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from aiohttp import ClientSession

from leasehold_emulators.blob import server as blob
from leasehold_emulators.cosmos import server as cosmos
from leasehold_emulators.cosmos.faults import Fault
from leasehold_emulators.eventhubs import server as eventhubs

JSON = {"Content-Type": "application/json"}
CONTAINER = "bank/tx"
NAMED = {"hub": "raw", "partition": "0"}
OPTIONS: dict[ModuleType, Any] = {
    blob: blob.Options(containers=("abc",)),
    cosmos: cosmos.Options(ranges=2, containers=(("bank", "tx", "/account"),)),
    eventhubs: eventhubs.Options(hubs={"raw": 2}),
}
EVERYWHERE = [
    ("clock", '{"move_s": NaN}', "NaN is not JSON: send a finite number"),
    ("clock", '{"move_s": -Infinity}', "-Infinity is not JSON"),
    ("clock", '{"move_s": 1e999}', "move_s: inf must be a finite number"),
    ("clock", {"move_s": 1e300}, "move_s: 1e+300 must be less than or equal to 1576800000"),
    ("clock", {"move_s": -1e10}, "move_s: -10000000000.0 must be greater than or equal to -1576800000"),
    ("clock", {"move_s": 10**300}, "move_s: 1000"),
    ("clock", {"move_s": True}, "move_s: True must be a number"),
    ("clock", {"move_s": None}, "move_s: None must be a number"),
    ("clock", {"move_s": "60"}, "move_s: '60' must be a number"),
    ("clock", {"move_s": 1, "control": 1}, "control: 1 is not an argument of this order"),
    ("heal", {"number": 77}, "number: 77 must be the number of a fault: use one of 1"),
    ("heal", {"number": 0}, "number: 0 must be the number of a fault"),
    ("heal", {"number": True}, "number: True must be a whole number"),
    ("heal", {"number": [1]}, "number: [1] must be a whole number"),
    ("heal", {"nummer": 1}, "nummer: 1 is not an argument of this order"),
    ("reset", {"all": True}, "all: True is not an argument of this order"),
    ("faults", {"number": 1}, "number: 1 is not an argument of this order"),
    ("fault", {}, "do: is missing: this order needs it"),
    ("fault", {"do": ["cut"]}, "do: ['cut'] must be a text"),
    ("fault", {"do": "explode"}, "do: 'explode' is not a fault: use one of "),
    ("fault", {"do": "cut", "of": "attic.*"}, "of: 'attic.*' fits none of "),
    ("fault", {"do": "cut", "times": -1}, "times: -1 must be greater than or equal to 1"),
    ("fault", {"do": "cut", "times": 0}, "times: 0 must be greater than or equal to 1"),
    ("fault", {"do": "cut", "times": 1.5}, "times: 1.5 must be a whole number"),
    ("fault", {"do": "cut", "times": "many"}, "times: 'many' must be a whole number"),
    ("fault", {"do": "cut", "after": -5}, "after: -5 must be greater than or equal to 0"),
    ("fault", {"do": "cut", "number": 3}, "number: 3 is not an argument of this order"),
    ("fault", {"do": "cut", "taken": 3}, "taken: 3 is not an argument of this order"),
    ("fault", {"do": "cut", "control": 3}, "control: 3 is not an argument of this order"),
    ("fault", {"do": "cut", "self": 3}, "self: 3 is not an argument of this order"),
    ("fault", {"do": "cut", "__dataclass_self__": 3}, "__dataclass_self__: 3 is not an argument of this order"),
    ("fault", {"do": "cut", "times": 0, "after": -1}, "; "),
    ("fault", '{"do": "delay", "delay_s": 1e999}', "delay_s: inf must be a finite number"),
    ("fault", {"do": "delay", "delay_s": -1}, "delay_s: -1 must be greater than or equal to 0"),
    ("fault", {"do": "delay", "delay_s": 0}, "delay_s: 0.0 must be the seconds of a delay, more than 0"),
    ("fault", {"do": "delay", "delay_s": 1e9}, "delay_s: 1000000000.0 must be less than or equal to 86400"),
    ("fault", {"do": "delay", "of": "\ud800", "delay_s": 1}, "of: '\\ud800'"),
]
OF_REPLIES = [
    ("fault", {"do": "fail", "status": 99999}, "status: 99999 must be less than or equal to 599"),
    ("fault", {"do": "fail", "status": 200}, "status: 200 must be greater than or equal to 400"),
    ("fault", {"do": "fail", "status": -1}, "status: -1 must be greater"),
    ("fault", {"do": "cut", "container": ""}, "container: '' must have at least 1 character"),
    ("fault", {"do": "cut", "container": "\ud800"}, "container: '\\ud800' must be a text in Unicode"),
    ("disconnect", {"all": True}, "all: True is not an argument of this order"),
    ("statistics", {"all": True}, "all: True is not an argument of this order"),
]
WRONG: dict[ModuleType, list[tuple[str, Any, str]]] = {
    blob: [
        *EVERYWHERE,
        *OF_REPLIES,
        ("fault", {"do": "cut", "blob": 5}, "blob: 5 must be a text"),
        ("fault", {"do": "cut", "container": "attic"}, "container: there is no container 'attic': use one of abc"),
        ("fault", {"do": "cut", "of": "blob.*", "container": "attic"}, "container: there is no container 'attic'"),
        ("fault", {"do": "lag"}, "do: 'lag' is not a fault"),
        ("containers", {"name": "abc"}, "name: 'abc' is not an argument of this order"),
    ],
    cosmos: [
        *EVERYWHERE,
        *OF_REPLIES,
        ("fault", {"do": "cut", "share": 2}, "share: 2 must be less than or equal to 1"),
        ("fault", {"do": "cut", "share": -0.1}, "share: -0.1 must be greater"),
        ("fault", {"do": "cut", "in_a_row": 0}, "in_a_row: 0 must be greater"),
        ("fault", {"do": "cut", "page_min": -1}, "page_min: -1 must be greater"),
        ("fault", {"do": "fail", "substatus": -1}, "substatus: -1 must be greater"),
        ("fault", {"do": "throttle", "retry_after_ms": -1}, "retry_after_ms: -1 must be greater"),
        ("fault", {"do": "lag", "of": "feed.*", "lsns": 0}, "lsns: 0 must be greater"),
        ("fault", {"do": "lag", "of": "feed.*", "again": 1}, "again: 1 must be true or false"),
        ("fault", {"do": "cut", "range_id": ["0"]}, "range_id: ['0'] must be a text"),
        (
            "fault",
            {"do": "cut", "container": "attic"},
            "container: there is no container 'attic': use one of bank/tx",
        ),
        ("fault", {"do": "cut", "container": "attic/tx"}, "container: there is no container 'attic/tx'"),
        ("fault", {"do": "cut", "container": CONTAINER, "range_id": "17"}, "range_id: '17' is not a range of tx"),
        ("fault", {"do": "cut", "range_id": "17"}, "range_id: '17' is not a range of any container"),
        ("delivered", {"container": "attic/tx"}, "container: there is no container 'attic/tx'"),
        ("split", {"container": 5, "range_id": []}, "container: 5 must be a text; range_id: [] must be a text"),
        ("split", {"container": CONTAINER}, "range_id: is missing"),
        (
            "split",
            {"container": "attic", "range_id": "0"},
            "container: there is no container 'attic': use one of bank/tx",
        ),
        ("split", {"container": CONTAINER, "range_id": "17"}, "range_id: '17' is not a range of tx, or has been split"),
        ("split", {"container": CONTAINER, "range_id": "0", "at": "zz"}, "at: 'zz' must match pattern"),
        ("split", {"container": CONTAINER, "range_id": "0", "at": ""}, "at: '' must match pattern"),
        ("split", {"container": CONTAINER, "range_id": "0", "at": "FF"}, "at: 'FF' is not inside range 0"),
        ("split", {"container": CONTAINER, "range_id": "0", "completing": -1}, "completing: -1 must be greater"),
        ("merge", {"container": CONTAINER, "left": "0", "right": "9"}, "right: '9' is not a range of tx"),
        ("merge", {"container": CONTAINER, "left": "0", "right": "0"}, "left, right: ranges 0 and 0 are not neighbors"),
        ("merge", {"container": CONTAINER, "left": "0", "right": 1}, "right: 1 must be a text"),
        ("ranges_of", {"container": "a", "ranges": 0}, "ranges: 0 must be greater"),
        ("ranges_of", {"container": "a", "ranges": 101}, "ranges: 101 must be less"),
        ("ranges_of", {"container": "a", "ranges": True}, "ranges: True must be a whole number"),
        ("ranges_of", {"container": "", "ranges": 1}, "container: '' must match pattern"),
        ("ranges_of", {"container": CONTAINER, "ranges": 1}, "container: 'bank/tx' must match pattern"),
        ("images", {"container": CONTAINER, "previous": "some"}, "previous: 'some' must be 'none', 'deletes' or 'all'"),
        ("images", {"container": CONTAINER, "previous": []}, "previous: [] must be 'none', 'deletes' or 'all'"),
        ("consistency", {"level": "Weak"}, "level: 'Weak' must be 'Strong'"),
        ("consistency", {"level": 5}, "level: 5 must be 'Strong'"),
        ("statistics", {"clear": 1}, "clear: 1 must be true or false"),
        ("truth", {"container": {}}, "container: {} must be a text"),
        ("versions", {"container": "attic"}, "container: there is no container 'attic'"),
        ("delivered", {"container": "attic"}, "container: there is no container 'attic'"),
    ],
    eventhubs: [
        *EVERYWHERE,
        ("clock", {}, "move_s: is missing"),
        ("fault", {"do": "cut", "hub": ""}, "hub: '' must have at least 1 character"),
        ("fault", {"do": "cut", "partition": 0}, "partition: 0 must be a text"),
        ("fault", {"do": "cut", "hub": "attic"}, "hub: there is no hub 'attic': use one of raw"),
        ("fault", {"do": "cut", "partition": "2"}, "partition: '2' must be below 2"),
        ("fault", {"do": "cut", "hub": "raw", "partition": "01"}, "partition: '01' must be below 2"),
        ("fault", {"do": "cut", "group": "attic"}, "group: there is no consumer group 'attic': use one of $Default"),
        ("fault", {"do": "cut", "passed": 1}, "passed: 1 is not an argument of this order"),
        ("fault", {"do": "refuse", "condition": "ü"}, "condition: 'ü' must match pattern"),
        ("fault", {"do": "refuse", "description": 5}, "description: 5 must be a text"),
        (
            "fault",
            {"do": "lose_ack", "of": "receive"},
            "do: 'lose_ack' cannot be done to receive: use one of cut, delay",
        ),
        ("make_hub", {"hub": "", "partitions": 1}, "hub: '' must match pattern"),
        ("make_hub", {"hub": "a/0", "partitions": 1}, "hub: 'a/0' must match pattern"),
        ("make_hub", {"hub": "a"}, "partitions: is missing"),
        ("make_hub", {"hub": "a", "partitions": 0}, "partitions: 0 must be greater"),
        ("make_hub", {"hub": "a", "partitions": 10**6}, "partitions: 1000000 must be less"),
        ("make_hub", {"hub": "a", "partitions": 2.5}, "partitions: 2.5 must be a whole number"),
        ("make_hub", {"hub": "a", "partitions": 1, "groups": "abc"}, "groups: 'abc' must be a list"),
        ("make_hub", {"hub": "a", "partitions": 1, "groups": [""]}, "groups.0: '' must match pattern"),
        ("make_hub", {"hub": "a", "partitions": 1, "groups": [5]}, "groups.0: 5 must be a text"),
        ("make_hub", {"hub": "a", "partitions": 1, "events_max": 0}, "events_max: 0 must be greater"),
        ("make_hub", {"hub": "raw", "partitions": -1}, "partitions: -1 must be greater"),
        ("grow", {"hub": "raw", "partitions": -3}, "partitions: -3 must be greater"),
        ("grow", {"hub": "raw", "partitions": True}, "partitions: True must be a whole number"),
        ("grow", {"hub": "raw", "partitions": 1}, "partitions: 1 must not be below 2: a hub keeps its partitions"),
        ("grow", {"hub": "attic", "partitions": 3}, "hub: there is no hub 'attic': use one of raw"),
        ("append", NAMED, "bodies, count: give one of them"),
        ("append", NAMED | {"count": 1, "bodies": ["a"]}, "bodies, count: give one of them"),
        ("append", NAMED | {"count": -1}, "count: -1 must be greater"),
        ("append", NAMED | {"count": 1, "bytes": -10}, "bytes: -10 must be greater"),
        ("append", NAMED | {"count": 10**7, "bytes": 1 << 20}, "count: 10000000 events of 1048576 bytes must not"),
        ("append", NAMED | {"bodies": ["a"], "bytes": 20}, "bytes: 20 belongs to `count`"),
        ("append", NAMED | {"bodies": "abc"}, "bodies: 'abc' must be a list"),
        ("append", NAMED | {"bodies": ["a", 5]}, "bodies.1: 5 must be a text"),
        ("append", NAMED | {"bodies": ["\ud800"]}, "bodies.0: '\\ud800' must be a text in Unicode"),
        ("append", NAMED | {"bodies": ["a"], "key": 5}, "key: 5 must be a text"),
        ("append", {"hub": "raw", "partition": "2", "count": 1}, "partition: '2' must be one of hub raw: 0 to 1"),
        ("append", {"hub": "raw", "partition": "01", "count": 1}, "partition: '01' must match pattern"),
        ("append", {"hub": "raw", "partition": True, "count": 1}, "partition: True must be a text"),
        ("trim", NAMED | {"first": -1}, "first: -1 must be greater"),
        ("trim", NAMED | {"first": 4}, "first: 4 must not be beyond the end of the partition, 3"),
        ("trim", NAMED | {"first": "1"}, "first: '1' must be a whole number"),
        ("forget", {"hub": "attic", "partition": "0"}, "hub: there is no hub 'attic'"),
        ("close", {"condition": ""}, "condition: '' must match pattern"),
        *(
            (order, given, problem)
            for order in ("cut", "detach", "links", "steal")
            for given, problem in (
                ({"hub": "attic"}, "hub: there is no hub 'attic': use one of raw"),
                ({"hub": 5}, "hub: 5 must be a text"),
                ({"partition": "2"}, "partition: '2' must be below 2"),
                ({"group": "attic"}, "group: there is no consumer group 'attic': use one of $Default"),
                ({"role": "reader"}, "role: 'reader' must be "),
                ({"hubs": "raw"}, "hubs: 'raw' is not an argument of this order"),
            )
        ),
        ("steal", {"role": "sender"}, "role: 'sender' must be 'receiver'"),
        ("rules", {"reply": "asks"}, "reply: 'asks' must be 'known' or 'asked'"),
        ("rules", {"old_events": -1}, "old_events: -1 must be greater"),
        ("rules", {"old_s": -1}, "old_s: -1 must be greater"),
        ("rules", {"reads_per_s_max": -1}, "reads_per_s_max: -1 must be greater"),
        ("rules", '{"reads_per_s_max": NaN}', "NaN is not JSON"),
        ("rules", {"null_level": []}, "null_level: [] must be 'current' or 'next'"),
        ("rules", {"nothing": 5}, "nothing: 5 must be less"),
        ("rules", {"nothing": False}, "nothing: False must be a whole number"),
        ("rules", {"beyond": None}, "beyond: None must be 'refused' or 'waits'"),
        ("statistics", {"clear": True}, "clear: True is not an argument of this order"),
        ("partitions", {"hub": "attic"}, "hub: there is no hub 'attic'"),
        ("truth", NAMED | {"first": -1}, "first: -1 must be greater"),
        ("truth", NAMED | {"count": -1}, "count: -1 must be greater"),
    ],
}
RIGHT: dict[ModuleType, list[tuple[str, dict[str, Any]]]] = {
    blob: [
        ("clock", {}),
        ("clock", {"move_s": -5.5}),
        ("fault", {"do": "fail", "status": 599, "times": 1}),
        ("fault", {"do": "fail", "of": "container.create", "container": "attic", "times": 1}),
    ],
    cosmos: [
        ("clock", {"move_s": 60}),
        ("fault", {"do": "fail", "status": 400, "times": None}),
        ("fault", {"do": "fail", "container": CONTAINER, "range_id": "0", "times": 1}),
        ("fault", {"do": "fail", "container": "tx", "times": 1}),
        ("split", {"container": CONTAINER, "range_id": "0", "at": "1F", "completing": 2}),
        ("merge", {"container": "tx", "left": "2", "right": "3"}),
        ("ranges_of", {"container": "leases", "ranges": 100}),
        ("images", {"container": "tx", "previous": "all"}),
        ("consistency", {"level": "Eventual"}),
        ("delivered", {"container": "tx"}),
        ("statistics", {"clear": True}),
    ],
    eventhubs: [
        ("clock", {"move_s": 60}),
        ("make_hub", {"hub": "a.b-C_9", "partitions": 1, "groups": ["one", "$Default"], "events_max": None}),
        ("append", {"hub": "RAW", "partition": 1, "count": 2, "bytes": 16, "key": "k"}),
        ("append", NAMED | {"bodies": []}),
        ("trim", NAMED | {"first": 3}),
        ("grow", {"hub": "raw", "partitions": 2}),
        ("rules", {"old_s": 15, "reads_per_s_max": 3, "nothing": -1, "beyond": "waits"}),
        ("cut", {"hub": "raw", "partition": "0", "group": "$default", "role": "sender"}),
        ("fault", {"do": "cut", "hub": "RAW", "partition": "1", "group": "$default"}),
        ("steal", {"hub": None}),
    ],
}


class Sent:
    """The orders of one server."""

    def __init__(self, client: ClientSession, url: str) -> None:
        self._client = client
        self._url = url

    async def order(self, name: str, given: Any) -> tuple[int, Any]:
        text = given if isinstance(given, str) else json.dumps(given)
        async with self._client.post(f"{self._url}{name}", data=text) as answer:
            return answer.status, await answer.json()

    async def state(self) -> Any:
        """What the page shows."""
        async with self._client.get(f"{self._url}state") as answer:
            return await answer.json()


@asynccontextmanager
async def serving(server: ModuleType) -> AsyncIterator[Sent]:
    async with (
        server.serve(OPTIONS[server]) as said,
        ClientSession(headers=JSON) as client,
    ):
        yield Sent(client, said["control"])


@pytest.mark.parametrize("server", WRONG, ids=lambda server: server.__package__.rpartition(".")[2])
async def test_a_wrong_order_is_refused_and_changes_nothing(server: ModuleType) -> None:
    began = int(time.time()) * 1000
    async with serving(server) as sent:
        assert await sent.order("fault", {"do": "delay", "delay_s": 1}) == (200, {"number": 1})
        if server is eventhubs:
            assert (await sent.order("append", NAMED | {"bodies": ["a", "b", "c"]}))[0] == 200
        before = await sent.state()
        for name, given, problem in WRONG[server]:
            status, said = await sent.order(name, given)
            assert (name, given, status) == (name, given, 400), said
            assert problem in said["error"], (name, given)
        assert await sent.state() == before
        _, clock = await sent.order("clock", {"move_s": 0})
        assert began <= clock.get("now_ms", clock.get("now", 0) * 1000) <= time.time() * 1000
        assert await sent.order("fault", {"do": "delay", "delay_s": 1}) == (200, {"number": 2})


@pytest.mark.parametrize("server", RIGHT, ids=lambda server: server.__package__.rpartition(".")[2])
async def test_a_right_order_is_carried_out(server: ModuleType) -> None:
    async with serving(server) as sent:
        if server is eventhubs:
            await sent.order("append", NAMED | {"bodies": ["a", "b", "c"]})
        for name, given in RIGHT[server]:
            status, said = await sent.order(name, given)
            assert (name, given, status) == (name, given, 200), said


@pytest.mark.parametrize("server", [blob, cosmos])
async def test_a_clock_stays_within_fifty_years_however_often_it_is_moved(server: ModuleType) -> None:
    async with serving(server) as sent:
        assert (await sent.order("clock", {"move_s": 1e9}))[0] == 200
        status, said = await sent.order("clock", {"move_s": 1e9})
        assert (status, "move_s: 1000000000.0 must leave the clock within" in said["error"]) == (400, True)
        assert (await sent.order("clock", {"move_s": 0}))[1]["offset_s"] == 1e9
        assert (await sent.order("clock", {"move_s": -1e9}))[1]["offset_s"] == 0


@pytest.mark.parametrize("server", WRONG)
async def test_an_unknown_order_is_answered_with_those_that_there_are(server: ModuleType) -> None:
    async with serving(server) as sent:
        status, said = await sent.order("explode", {})
        assert (status, said["error"].startswith("no order 'explode': use one of ")) == (404, True)


async def test_an_order_does_not_count_as_a_request_that_finds_a_range_gone() -> None:
    async with serving(cosmos) as sent:
        given = {"container": CONTAINER, "range_id": "0", "completing": 1}
        assert (await sent.order("split", given))[0] == 200
        for _ in range(2):
            status, said = await sent.order("split", given)
            assert (status, said["error"]) == (
                400,
                "range_id: '0' is not a range of tx, or has been split or merged: use one of 2, 3, 1",
            )


async def test_no_hub_without_a_name_survives_a_restart(tmp_path: Path) -> None:
    options = eventhubs.Options(hubs={"raw": 1}, data=tmp_path)
    async with eventhubs.serve(options) as said, ClientSession(headers=JSON) as client:
        sent = Sent(client, said["control"])
        assert (await sent.order("make_hub", {"hub": "", "partitions": 1}))[0] == 400
        assert (await sent.order("make_hub", {"hub": "other", "partitions": 1, "groups": "abc"}))[0] == 400
    async with eventhubs.serve(options) as said:
        assert said["hubs"] == ["raw"]


@pytest.mark.parametrize(("container", "fits"), [(None, True), ("tx", True), ("bank/tx", True), ("attic/tx", False)])
def test_a_fault_fits_the_requests_of_its_container_with_and_without_the_database(
    container: str | None, fits: bool
) -> None:
    call: Any = SimpleNamespace(kind="document.create", path=("dbs", "bank", "colls", "tx", "docs"), limit=0)
    assert Fault(do="cut", container=container).fits(call, "0") is fits
