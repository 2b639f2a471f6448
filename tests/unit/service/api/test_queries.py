"""The API that reads: every route, and what it answers to bad requests."""

import asyncio
import re
from datetime import timedelta
from html import escape
from urllib.parse import quote

import pytest
from patience import until_async
from unit.service.conftest import NOW
from unit.service.problems import problem

from leasehold.leases.document import lease_id
from leasehold.leases.errors import StoreUnavailable
from leasehold.leases.lease import Child, Lease
from leasehold.leases.stores.memory import MemoryStore
from leasehold.pipeline.connectors.memory import MemoryChangeFeed
from leasehold.pipeline.errors import FeedUnavailable
from leasehold.pipeline.executors_wait import ExecutorsWait
from leasehold.pipeline.transform import NoTransform

ROUTES = ["/api/pipelines", "/api/hosts", "/api/leases", "/api/lag", "/api/batches", "/api/leases/bank/a"]
EVERYWHERE = [*ROUTES, "/health/live", "/health/ready", "/metrics", "/docs", "/openapi.json", "/nowhere"]
ODD_PARTITIONS = [
    "a/b",
    "a//b/",
    "/",
    "..",
    "../hosts/x",
    "a%2Fb",
    "%00",
    "\x00",
    "a\r\nb",
    "müß ☃ 🎈",
    "a?b#c&d",
    " ",
    "~",
]


@pytest.fixture
async def resting(start):
    """A host that has not begun, over two pipelines with some leases."""
    running = await start(runs=False, feeds={"bank": MemoryChangeFeed(["a", "b"]), "view": MemoryChangeFeed(["a"])})
    for pipeline, partition in (("bank", "a"), ("bank", "b"), ("view", "a")):
        await running.keeper.create(Lease(pipeline=pipeline, partition=partition))
    return running


@pytest.fixture
async def client(resting):
    async with resting.client() as client:
        yield client


# This host


async def test_a_host_is_live_before_it_is_ready(resting, client) -> None:
    assert (await client.get("/health/live")).json()["status"] == "live"
    ready = await client.get("/health/ready")
    assert ready.status_code == 503
    assert ready.json() == {
        "status": "not ready",
        "reasons": ["the host is starting: it waits for Spark or its sinks, or has not read the lease store yet"],
    }


async def test_a_host_that_starts_shows_that_it_waits_for_executors(
    resting, client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no record among the hosts yet."""
    monkeypatch.setattr(NoTransform, "executors_wait", ExecutorsWait(10.0, "no executor runs a task"))
    reasons = (await client.get("/health/ready")).json()["reasons"]
    assert reasons == ["the host is starting: it waits for executors of its Spark cluster"]
    assert (await client.get("/api/hosts")).json()["items"] == []
    (shown,) = (await client.get("/api/pipelines")).json()["problems"]
    assert shown.startswith("host 'host-a' has waited for executors since ")
    assert shown.endswith(": no executor runs a task")


async def test_a_host_at_work_is_ready_and_a_draining_one_is_not(start) -> None:
    running = await start()
    async with running.client() as client:
        assert (await client.get("/health/ready")).json() == {"status": "ready", "reasons": []}
        running.host.stop()
        ready = await client.get("/health/ready")
        assert ready.status_code == 503
        assert "draining" in ready.json()["reasons"][0]


async def test_metrics_are_served_with_the_lag_of_the_group(resting, client) -> None:
    resting.feeds["bank"].append("a", [b"{}"] * 3)
    answer = await client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'leasehold_lag_events{pipeline="bank"} 3.0' in answer.text


async def test_metrics_are_served_while_the_container_is_down(start) -> None:
    running = await start(store=Down(), runs=False)
    async with running.client() as client:
        answer = await client.get("/metrics")
        assert answer.status_code == 200
        assert "leasehold_lag_events" not in answer.text
        assert 'outcome="unavailable"' in answer.text


# The group


async def test_pipelines_tell_feed_sink_leases_and_failures(client) -> None:
    bank = (await client.get("/api/pipelines")).json()["items"][0]
    assert bank == {
        "name": "bank",
        "feed": "memory:memory",
        "sink": "memory",
        "leases": {"available": 2},
        "failures": [],
        "paused": None,
        "event_age": None,
    }


async def test_pipelines_tell_how_old_events_were_when_they_were_delivered(start) -> None:
    running = await start()
    running.feeds["bank"].append("a", [b"{}"] * 99, at=NOW - timedelta(seconds=2))
    running.feeds["bank"].append("b", [b"{}"], at=NOW - timedelta(seconds=200))
    await until_async(lambda: running.host.stats.events["bank"] == 100)
    async with running.client() as client:
        bank = (await client.get("/api/pipelines")).json()["items"][0]
    assert bank["event_age"] == {"events": 100, "p50_s": 1.758, "p99_s": 2.5}


async def test_documents_that_cannot_be_trusted_are_told(store, client) -> None:
    await store.create(lease_id("bank", "z"), "{")
    assert "document 'bank/leases/z' is not JSON" in (await client.get("/api/pipelines")).json()["problems"][0]
    assert "the lease cannot be read: document" in problem(await client.get("/api/leases/bank/z"), 404)["detail"]
    assert "(1 problem: GET" in problem(await client.get("/api/leases/bank/y"), 404)["detail"]


async def test_hosts_and_batches_of_the_whole_group_are_told(start) -> None:
    running = await start("host-a")
    running.feeds["bank"].append("a", [b"{}"] * 3)
    await start("host-b", feeds=running.feeds)
    async with running.client() as client:

        async def told(path: str) -> list[dict[str, object]]:
            return (await client.get(path)).json()["items"]

        async def are_shared() -> bool:
            hosts = [(host["name"], host["leases"], host["live"]) for host in await told("/api/hosts")]
            return hosts == [("host-a", 1, True), ("host-b", 1, True)]

        await until_async(are_shared)
        await until_async(lambda: told("/api/batches"))
        batch = (await told("/api/batches?pipeline=bank&limit=1"))[0]
        assert (batch["partition"], batch["from"], batch["to"], batch["events"]) == ("a", None, "3", 3)
        assert batch["host"] in ("host-a", "host-b")


async def test_leases_are_filtered_by_pipeline_owner_and_state(resting, client) -> None:
    await resting.keeper.take(await resting.keeper.read("bank", "b"), lambda state: state)

    async def keys(**wanted: str) -> list[tuple[str, str]]:
        items = (await client.get("/api/leases", params=wanted)).json()["items"]
        return [(item["pipeline"], item["partition"]) for item in items]

    assert await keys() == [("bank", "a"), ("bank", "b"), ("view", "a")]
    assert await keys(pipeline="view") == [("view", "a")]
    assert await keys(owner="host-a") == [("bank", "b")]
    assert await keys(owner="nobody") == []
    assert await keys(state="available", pipeline="bank") == [("bank", "a")]


async def test_pages_tell_every_lease_once(start) -> None:
    running = await start(runs=False)
    names = {*ODD_PARTITIONS, *map(str, range(30))}
    for name in names:
        await running.keeper.create(Lease(pipeline="bank", partition=name))
    seen: list[str] = []
    async with running.client() as client:
        cursor: str | None = ""
        while cursor is not None:
            page = (
                await client.get("/api/leases", params={"limit": 7, **({"cursor": cursor} if cursor else {})})
            ).json()
            assert page["total"] == len(names)
            seen += [item["partition"] for item in page["items"]]
            cursor = page["next"]
    assert seen == sorted(names)


@pytest.mark.parametrize("partition", ODD_PARTITIONS)
async def test_any_text_can_be_a_partition(start, partition: str) -> None:
    running = await start(runs=False)
    await running.keeper.create(Lease(pipeline="bank", partition=partition))
    async with running.client() as client:
        answer = await client.get("/api/leases/bank/" + quote(partition, safe="").replace(".", "%2E"))
        assert answer.status_code == 200
        assert answer.json()["partition"] == partition


async def test_one_lease_is_told_with_all_that_its_document_says(resting, client) -> None:
    seen = await resting.keeper.read("bank", "a")
    owned = await resting.keeper.take(seen, lambda state: "claimed")
    assert owned is not None
    await owned.end("7", (Child("a1", "7"),))
    lease = (await client.get("/api/leases/bank/a")).json()
    assert lease == {
        "pipeline": "bank",
        "partition": "a",
        "state": "closed",
        "owner": None,
        "epoch": 1,
        "generation": 0,
        "continuation": "7",
        "handoff_to": None,
        "tick": 2,
        "sink_state": "claimed",
        "tombstone": False,
        "parents": [],
        "children": [{"partition": "a1", "continuation": "7"}],
    }


async def test_a_lease_that_has_not_changed_is_not_sent_again(resting, client) -> None:
    etag = (await client.get("/api/leases/bank/a")).headers["etag"]
    assert re.fullmatch(r'"[^"]+"', etag)
    for known in (etag, f"W/{etag}", f'"other", {etag}', "*"):
        unchanged = await client.get("/api/leases/bank/a", headers={"if-none-match": known})
        assert (unchanged.status_code, unchanged.content, unchanged.headers["etag"]) == (304, b"", etag)
    assert (await client.get("/api/leases/bank/a", headers={"if-none-match": '"other"'})).status_code == 200
    await resting.keeper.ask(await resting.keeper.read("bank", "a"))

    async def has_changed() -> bool:
        return (await client.get("/api/leases/bank/a", headers={"if-none-match": etag})).status_code == 200

    await until_async(has_changed)


async def test_the_etag_tells_expiry_although_the_document_stays(resting, client) -> None:
    """Seen by the client's next conditional request, or a dashboard would show the dead owner for ever."""
    await resting.keeper.take(await resting.keeper.read("bank", "a"), lambda state: state)
    etag = (await client.get("/api/leases/bank/a")).headers["etag"]
    resting.view._shared_s = 0  # past what readers share
    resting.host.balancer.reader.scan = await resting.keeper.scan(["bank"])
    resting.host.balancer.reader.host_scan = await resting.host._membership.scan()
    resting.host.balancer.expired = frozenset({("bank", "a")})
    expired = await client.get("/api/leases/bank/a", headers={"if-none-match": etag})
    assert (expired.status_code, expired.json()["state"]) == (200, "expired")
    assert expired.headers["etag"] != etag


async def test_lag_is_one_number_that_a_scaler_can_read(resting, client) -> None:
    resting.feeds["bank"].append("a", [b"{}"] * 3, at=NOW - timedelta(seconds=2.5))
    resting.feeds["view"].append("a", [b"{}"] * 4, at=NOW - timedelta(seconds=7))
    whole = (await client.get("/api/lag")).json()
    assert (whole["lag"], whole["unknown"]) == (7, 0)
    assert whole["seconds"] == pytest.approx(7, abs=2)
    assert [(p["name"], p["lag"]) for p in whole["pipelines"]] == [("bank", 3), ("view", 4)]
    one = (await client.get("/api/lag", params={"pipeline": "bank"})).json()
    assert one["lag"] == 3
    assert one["pipelines"][0]["partitions"] == [
        {"partition": "a", "lag": 3, "seconds": pytest.approx(2.5, abs=2), "age_s": 0.0, "error": None},
        {"partition": "b", "lag": 0, "seconds": 0.0, "age_s": 0.0, "error": None},
    ]


async def test_a_scaler_by_seconds_gets_an_error_where_the_age_is_unknown_and_another_may_not(start) -> None:
    class Timeless(MemoryChangeFeed):
        async def find_enqueued_time(self, partition: str, continuation: str | None) -> None:
            return None

    feeds = {"bank": Timeless(["a", "b"]), "view": MemoryChangeFeed(["a"])}
    running = await start(runs=False, feeds=feeds)
    for pipeline, partition in (("bank", "a"), ("bank", "b"), ("view", "a")):
        await running.keeper.create(Lease(pipeline=pipeline, partition=partition))
    feeds["bank"].append("a", [b"{}"])
    feeds["view"].append("a", [b"{}"], at=NOW - timedelta(seconds=3))
    async with running.client() as client:
        for path in ("/api/lag?unit=seconds&pipeline=bank", "/api/lag?unit=seconds"):
            detail = problem(await client.get(path), 503)["detail"]
            assert "the lag in seconds of pipeline 'bank' is unknown: 1 of 2 partitions have an unknown age" in detail
            assert "its feed does not say when events were enqueued" in detail
        events = (await client.get("/api/lag")).json()
        assert (events["lag"], events["seconds"], events["unknown"], events["partial"]) == (2, None, 0, False)
        assert [each["seconds"] for each in events["pipelines"]] == [None, pytest.approx(3, abs=2)]
        view = (await client.get("/api/lag?unit=seconds&pipeline=view")).json()
        assert (view["seconds"], view["partial"]) == (pytest.approx(3, abs=2), False)
        partly = (await client.get("/api/lag?unit=seconds&partly=true")).json()
        assert (partly["seconds"], partly["unknown"], partly["partial"]) == (pytest.approx(3, abs=2), 1, True)
        assert (await client.get("/api/lag?unit=minutes")).status_code == 422


async def test_an_unknown_lag_is_an_error_and_never_a_zero(start) -> None:
    class Away(MemoryChangeFeed):
        async def lag(self, partition: str, continuation: str | None) -> int:
            raise FeedUnavailable("the broker is away")

    feeds = {"bank": Away(["a"]), "view": MemoryChangeFeed(["a"])}
    running = await start(runs=False, feeds=feeds)
    for pipeline in feeds:
        await running.keeper.create(Lease(pipeline=pipeline, partition="a"))
    async with running.client() as client:
        for path in ("/api/lag?pipeline=bank", "/api/lag"):
            detail = problem(await client.get(path), 503)["detail"]
            assert "the lag of pipeline 'bank' is unknown: 1 of 1 partitions did not answer" in detail
            assert "the broker is away" in detail
            assert "?partly=true" in detail
        assert (await client.get("/api/lag?pipeline=view")).json()["lag"] == 0
        partly = (await client.get("/api/lag?partly=true")).json()
        assert (partly["lag"], partly["unknown"], partly["partial"]) == (0, 1, True)
        assert [each["partial"] for each in partly["pipelines"]] == [True, False]
        assert partly["pipelines"][0]["partitions"][0]["error"] == "the broker is away"


async def test_a_scaler_gets_the_last_known_lag_of_a_partition_that_does_not_answer(start) -> None:
    class Leaving(MemoryChangeFeed):
        is_away = False

        async def lag(self, partition: str, continuation: str | None) -> int:
            if self.is_away:
                raise FeedUnavailable("the broker is away")
            return await super().lag(partition, continuation)

    feed = Leaving(["a"])
    feed.append("a", [b"{}"] * 17)
    running = await start(runs=False, feeds={"bank": feed})
    await running.keeper.create(Lease(pipeline="bank", partition="a"))
    assert (await running.view.read_lag(0)).events == 17
    feed.is_away = True
    assert (await running.view.read_lag(0)).errors
    async with running.client() as client:
        report = (await client.get("/api/lag")).json()
    assert (report["lag"], report["unknown"], report["partial"]) == (17, 0, False)
    assert report["pipelines"][0]["partitions"][0]["error"] == "the broker is away"


# Bad requests


@pytest.mark.parametrize(
    "path",
    [
        "/nowhere",
        "/api",
        "/api/",
        "/api/leases/",
        "/api/leases/bank",
        "/api/leases/bank/",
        "/api/leases/nope/a",
        "/api/leases/bank/nope",
        "/api/leases/bank/%00",
        "/api/leases/bank/a%0d%0aset-cookie:x",
        "/api/leases/..%2f..%2fhosts/host-a",
        "/api/leases/bank/%2e%2e/%2e%2e/hosts/host-a",
        "/api/leases/bank/..%2F..%2Fhosts%2Fhost-a",
        "/api/leases/bank/%ff%fe",
        "/api/leases/bank/" + "x" * 10_000,
        "/api/leases/" + "x" * 10_000 + "/a",
        "/api/leases/%0d%0a/a",
        "/api/lag?pipeline=nope",
        "/api/lag?pipeline=" + "x" * 10_000,
        "/api/leases?pipeline=",
        "/api/leases?pipeline=a%0d%0ab",
        "/api/batches?pipeline=%00",
    ],
)
async def test_what_is_not_there_is_a_404_in_a_sentence(client, path: str) -> None:
    answer = await client.get(path)
    problem(answer, 404)
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("leases?state=sleeping", "state"),
        ("leases?state=", "state"),
        ("leases?limit=0", "limit"),
        ("leases?limit=1001", "limit"),
        ("leases?limit=ten", "limit"),
        ("leases?limit=NaN", "limit"),
        ("leases?limit=" + "9" * 5000, "limit"),
        ("leases?pipelin=bank", "pipelin"),
        ("lag?state=owned", "state"),
        ("lag?" + "x" * 10_000 + "=1", "x"),
        ("hosts?pipeline=bank", "pipeline"),
        ("batches?limit=-1", "limit"),
    ],
)
async def test_a_filter_that_is_not_understood_is_refused_by_name(client, query: str, named: str) -> None:
    answer = problem(await client.get(f"/api/{query}"), 422)
    assert answer["errors"][0].startswith(named)


@pytest.mark.parametrize(
    "cursor", ["", "bank/", "bank/zzz", "bank/%%%", "bank/\x00", "bank/" + "x" * 5000, "bank/a\r\nb"]
)
async def test_a_cursor_is_a_place_to_begin_though_its_lease_has_gone(client, cursor: str) -> None:
    answer = await client.get("/api/leases", params={"cursor": cursor})
    assert answer.status_code == 200
    assert answer.json()["total"] == 3


@pytest.mark.parametrize("cursor", ["x", "zzzz", "\x00", "%%%", "x" * 5000, "a\r\nb", "bank"])
async def test_what_no_page_has_returned_is_refused_as_a_cursor(client, cursor: str) -> None:
    detail = str(problem(await client.get("/api/leases", params={"cursor": cursor}), 400)["detail"])
    assert detail.endswith("is not a cursor: take `next` of the page before, or begin without one")
    assert len(str(detail)) < 250


@pytest.mark.parametrize("cursor", ["zz/zz", "/", "/a", "BANK/a", "bank%2F/a", "x" * 5000 + "/a"])
async def test_a_cursor_that_names_no_pipeline_is_refused_with_the_reason(client, cursor: str) -> None:
    detail = str(problem(await client.get("/api/leases", params={"cursor": cursor}), 400)["detail"])
    assert "is not a cursor, because there is no pipeline '" in detail
    assert len(detail) < 400


@pytest.mark.parametrize("path", ROUTES)
async def test_other_methods_than_get_are_refused(client, path: str) -> None:
    for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW"):
        answer = await client.request(method, path)
        problem(answer, 405)
        assert answer.headers["allow"] == "GET"


async def test_head_is_answered_where_get_is(client) -> None:
    assert (await client.head("/health/live")).status_code == 200
    assert (await client.head("/api/leases/bank/a")).headers["etag"]


async def test_odd_conditional_requests_are_answered(client) -> None:
    for value in ("", '"', "W/", ",,,", "x" * 10_000):
        answer = await client.get("/api/leases/bank/a", headers={"if-none-match": value})
        assert answer.status_code == 200


@pytest.mark.parametrize("path", ROUTES)
async def test_a_container_that_does_not_answer_is_a_503(start, path: str) -> None:
    running = await start(store=Down(), runs=False)
    async with running.client() as client:
        answer = await client.get(path)
        assert "connection refused" in problem(answer, 503)["detail"]
        assert answer.headers["retry-after"] == "1"


async def test_a_fault_of_ours_is_a_500_that_tells_nothing_of_our_insides(start) -> None:
    class Faulty(MemoryStore):
        async def list(self, prefix: str):
            raise ZeroDivisionError("secret")

    running = await start(store=Faulty(), runs=False)
    async with running.client(raise_app_exceptions=False) as client:
        answer = await client.get("/api/leases")
        problem(answer, 500)
        assert "secret" not in answer.text
        assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", EVERYWHERE)
async def test_nothing_is_stored_sniffed_framed_or_shared_with_other_origins(client, path: str) -> None:
    headers = (await client.get(path, headers={"origin": "http://evil.example"})).headers
    assert headers["cache-control"] == "no-store"
    assert headers["x-content-type-options"] == "nosniff"
    assert "default-src 'none'" in headers["content-security-policy"]
    assert not [name for name in headers if name.startswith("access-control")]


# Descriptions


async def test_the_docs_page_tells_every_route_without_outside_resources(client) -> None:
    page = (await client.get("/docs")).text
    paths = (await client.get("/openapi.json")).json()["paths"]
    routes = [f"{method.upper()} {path}" for path, operations in paths.items() for method in operations]
    assert len(routes) == 19
    assert all(escape(route) in page for route in routes)
    assert not re.search(r"(src|href)=\"(?!/)", page)
    assert "<script" not in page


async def test_every_field_of_every_answer_is_described_or_shown_by_example(client) -> None:
    schemas = (await client.get("/openapi.json")).json()["components"]["schemas"]
    bare = [
        f"{name}.{field}"
        for name, schema in schemas.items()
        for field, told in schema.get("properties", {}).items()
        if not told.keys() & {"description", "examples", "items", "$ref"}
    ]
    assert bare == []


async def test_two_hundred_clients_cost_the_container_no_more_than_one(start) -> None:
    running = await start(runs=False, shared_s=60)
    async with running.client() as client:
        answers = await asyncio.gather(*(client.get("/api/leases") for _ in range(200)))
    assert {answer.status_code for answer in answers} == {200}
    assert running.host.stats.requests == {("list", "ok"): 2, ("changes", "ok"): 1}, "hosts and leases, once each"


class Down(MemoryStore):
    async def list(self, prefix: str):
        raise StoreUnavailable("connection refused")
