"""Who comes in to the API, with how much, and for how long: roles, other sites' pages, sizes, bodies that are no JSON, time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from unit.service.problems import problem

from leasehold.leases.lease import Lease
from leasehold.leases.stores.memory import MemoryStore
from leasehold.service.api import OPEN, create_app, middleware
from leasehold.service.api.auth import Access, Tokens
from leasehold.service.api.middleware import objection
from leasehold.service.errors import StartFailed

READER, OPERATOR = "reader-" + "r" * 32, "operator-" + "o" * 32
LEASE = "/api/leases/bank/a"
ACTIONS = [
    ("POST", f"{LEASE}/release", {}),
    ("POST", f"{LEASE}/handoff", {"to": "host-b"}),
    ("PUT", f"{LEASE}/continuation", {"to": "latest"}),
    ("POST", "/api/pipelines/bank/pause", {}),
    ("POST", "/api/pipelines/bank/resume", {}),
    ("POST", "/api/leases/import?pipeline=bank&from=leasehold", {}),
    ("GET", "/api/leases/export", None),
    ("HEAD", "/api/leases/export", None),
    ("GET", "/api/leases/export%0a", None),
    ("POST", "/nowhere", {}),
    ("DELETE", LEASE, None),
    ("OPTIONS", LEASE, None),
]


@pytest.fixture
async def resting(start):
    running = await start(runs=False)
    await running.keeper.create(Lease(pipeline="bank", partition="a", owner="z", incarnation="1"))
    return running


def tokens(folder: Path, name: str, content: str) -> Tokens:
    (folder / name).write_text(content)
    return Tokens(folder / name, f"api.{name}")


@pytest.fixture
def access(tmp_path: Path) -> Access:
    return Access(
        readers=tokens(tmp_path, "readers", READER), operators=tokens(tmp_path, "operators", f"alice {OPERATOR}\n")
    )


def asking(view, access: Access, token: str | None = None) -> httpx.AsyncClient:
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    transport = httpx.ASGITransport(create_app(view, access))
    return httpx.AsyncClient(transport=transport, base_url="http://leasehold", headers=headers)


@pytest.fixture
async def client(resting) -> AsyncIterator[httpx.AsyncClient]:
    async with resting.client() as client:
        yield client


# Roles


@pytest.mark.parametrize(("method", "path", "body"), ACTIONS)
@pytest.mark.parametrize(("token", "status"), [(None, 401), ("wrong-" + "w" * 32, 401), (READER, 403)])
async def test_only_operators_operate(
    resting, access: Access, method: str, path: str, body: object, token: str | None, status: int
) -> None:
    before = await resting.keeper.read("bank", "a")
    async with asking(resting.view, access, token) as client:
        answer = await client.request(method, path, json=body)
    assert answer.status_code == status
    assert method == "HEAD" or problem(answer, status)
    assert await resting.keeper.read("bank", "a") == before
    assert await resting.keeper.store.list("_control/") == []


async def test_an_operator_reads_and_operates(resting, access: Access) -> None:
    async with asking(resting.view, access, OPERATOR) as client:
        assert (await client.get(LEASE)).status_code == 200
        assert (await client.post(f"{LEASE}/release", json={})).status_code == 200
        assert (await client.post("/api/pipelines/bank/pause", json={})).json()["by"] == "alice"
        assert (await client.get("/api/leases/export")).status_code == 200


async def test_with_readers_alone_nobody_operates(resting, tmp_path: Path) -> None:
    access = Access(readers=tokens(tmp_path, "readers", READER))
    async with asking(resting.view, access, READER) as client:
        assert (await client.get(LEASE)).status_code == 200
        told = problem(await client.post(f"{LEASE}/release", json={}), 403)
    assert "api.operators" in str(told["detail"])


async def test_with_operators_alone_others_do_not_even_read(resting, tmp_path: Path) -> None:
    access = Access(operators=tokens(tmp_path, "operators", OPERATOR))
    async with asking(resting.view, access) as client:
        problem(await client.get(LEASE), 401)
    async with asking(resting.view, access, OPERATOR) as client:
        assert (await client.get(LEASE)).status_code == 200


async def test_operators_tokens_are_exchanged_without_a_restart(resting, access: Access, tmp_path: Path) -> None:
    async with asking(resting.view, access, READER) as client:
        problem(await client.post(f"{LEASE}/release", json={}), 403)
        (tmp_path / "operators").write_text(READER)
        assert (await client.post(f"{LEASE}/release", json={})).status_code == 200


def test_a_token_is_known_by_its_name_or_else_by_its_line(tmp_path: Path) -> None:
    found = tokens(tmp_path, "operators", f"\n  alice  smith \t{OPERATOR}\n{READER}\n")
    assert found.named(f"Bearer {OPERATOR}".encode()) == "alice smith"
    assert found.named(f"Bearer {READER}".encode()) == "operators line 3"
    assert found.named(f"Bearer alice smith {OPERATOR}".encode()) is None


def test_a_missing_file_of_operators_is_told_by_its_setting(tmp_path: Path) -> None:
    with pytest.raises(StartFailed, match=r"api\.operators is .*none"):
        Tokens(tmp_path / "none", "api.operators")


# Pages of others


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8080", "127.0.0.1:8080", "127.1.2.3", "[::1]:8080", "bank.localhost:1"]
)
def test_this_machines_names_are_let_in(host: str) -> None:
    assert objection({b"host": host.encode()}) is None
    assert objection({b"host": host.encode(), b"origin": f"http://{host}".encode()}) is None


@pytest.mark.parametrize(
    "host",
    [
        "",
        "evil.example",
        "evil.example:8080",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "10.0.0.1",
        "[",
        "[::",
    ],
)
def test_a_name_that_somebody_points_at_this_machine_is_not_let_in(host: str) -> None:
    assert "`Host`" in str(objection({b"host": host.encode()}))


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "", "http://localhost:8081", "http://localhost", "http://[", "localhost:8080"],
)
def test_a_page_of_another_origin_is_not_let_in(origin: str) -> None:
    assert "origin" in str(objection({b"host": b"localhost:8080", b"origin": origin.encode()}))


@pytest.mark.parametrize("headers", [{"host": "evil.example"}, {"origin": "http://evil.example"}, {"origin": "null"}])
async def test_a_browsers_page_of_elsewhere_neither_reads_nor_operates_a_host_without_tokens(
    resting, client, headers: dict[str, str]
) -> None:
    problem(await client.get("/api/leases", headers=headers), 403)
    problem(await client.post(f"{LEASE}/release", json={}, headers=headers), 403)
    assert (await resting.keeper.read("bank", "a")).lease.owner == "z"
    assert (await client.get("/health/live", headers=headers)).status_code == 200


@pytest.mark.parametrize(
    "type",
    [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/json", "json"],
)
async def test_what_a_form_can_send_changes_nothing(resting, client, type: str | None) -> None:
    headers = {} if type is None else {"content-type": type}
    for path in (f"{LEASE}/release", "/api/pipelines/bank/pause", "/api/leases/import?pipeline=bank&from=leasehold"):
        answer = await client.post(path, content=b"{}", headers=headers)
        assert "application/json" in str(problem(answer, 415)["detail"])
    assert (await resting.keeper.read("bank", "a")).lease.owner == "z"
    assert await resting.keeper.store.list("_control/") == []


async def test_a_browser_that_asks_whether_it_may_is_not_told_so(client) -> None:
    answer = await client.options(
        f"{LEASE}/release", headers={"access-control-request-method": "POST", "origin": "http://localhost"}
    )
    assert answer.status_code == 405
    assert not [name for name in answer.headers if name.startswith("access-control")]


# Bodies


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 422),
        (b"{", 400),
        (b"\xff\xfe", 400),
        (b"[" * 10_000 + b"]" * 10_000, 400),
        (b'{"to":' * 10_000 + b"1" + b"}" * 10_000, 400),
        (b'{"to": NaN}', 400),
        (b'{"to": Infinity}', 400),
        (b'{"to": 1e999}', 400),
        (b'{"to": "host-b", "to": "host-c"}', 400),
        (b'{"to": "host-b"} x', 400),
        (b'{"to": "\x00"}', 400),
        (b"null", 422),
        (b"[]", 422),
        (b'"to"', 422),
        (b"{}", 422),
        (b'{"to": null}', 422),
        (b'{"to": 1}', 422),
        (b'{"to": ' + b"[" * 99 + b"]" * 99 + b"}", 422),
        (b'{"to": ' + b"[" * 100 + b"]" * 100 + b"}", 400),
        (b'{"to": ""}', 422),
        (b'{"to": ["host-b"]}', 422),
        (b'{"to": "host-b", "too": 1}', 422),
        (b'{"to": "' + b"x" * 600 + b'"}', 422),
        (b'{"to": "\\ud800"}', 422),
        (b'{"to": "\\u0000"}', 409),
    ],
)
async def test_a_body_that_is_not_what_it_should_be_is_refused_in_a_sentence(
    resting, client, body: bytes, status: int
) -> None:
    answer = await client.post(f"{LEASE}/handoff", content=body, headers={"content-type": "application/json"})
    told = problem(answer, status)
    assert not str(told["detail"]).startswith(":"), "it names the field, or the body"
    assert (await resting.keeper.read("bank", "a")).lease.handoff_to is None


async def test_a_reset_to_what_no_document_can_hold_is_refused(resting, client) -> None:
    etag = (await client.get(LEASE)).headers["etag"]
    answer = await client.put(
        f"{LEASE}/continuation",
        content=b'{"to": "\\ud800"}',
        headers={"content-type": "application/json", "if-match": etag},
    )
    problem(answer, 422)


@pytest.mark.parametrize("path", [f"{LEASE}/release", "/api/leases/import?pipeline=bank&from=leasehold", "/nowhere"])
async def test_ten_megabytes_are_refused_before_they_are_read(client, path: str) -> None:
    sent = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(160):
            sent += 1
            yield b" " * 65_536

    headers = {"content-type": "application/json"}
    problem(await client.post(path, content=body(), headers={**headers, "content-length": "10485760"}), 413)
    assert sent <= 160
    if path != "/nowhere":
        problem(await client.post(path, content=body(), headers=headers), 413)


@pytest.mark.parametrize("length", ["-1", "x", "9" * 100, "1e3"])
async def test_an_odd_length_is_refused(client, length: str) -> None:
    problem(await client.get("/api/leases", headers={"content-length": length}), 413)


async def test_addresses_and_headers_have_their_bounds(client) -> None:
    problem(await client.get("/api/leases?cursor=" + "x" * middleware.TARGET_BYTES_MAX), 414)
    problem(await client.get("/" + "x" * middleware.TARGET_BYTES_MAX), 414)
    problem(await client.get("/api/leases", headers={"x": "x" * middleware.HEADERS_BYTES_MAX}), 431)


# Time


async def test_a_request_that_takes_too_long_is_answered_and_an_action_told_to_be_looked_at(
    start, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Silent(MemoryStore):
        async def list(self, prefix: str):
            await asyncio.Event().wait()

    running = await start(store=Silent(), runs=False)
    running.view._keeper.store = running.host.balancer._keeper.store._store._store  # without its own timeout
    monkeypatch.setattr(middleware, "REQUEST_S", 0.05)
    async with running.client() as client:
        answer = await client.get("/api/leases")
        assert problem(answer, 503)["detail"] == "there was no answer within 0.05 s"
        assert answer.headers["retry-after"] == "1"
        acted = problem(await client.post(f"{LEASE}/release", json={}), 503)
        assert "check before you repeat it" in str(acted["detail"])


async def test_a_body_that_never_comes_is_not_waited_for(client, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    monkeypatch.setattr(middleware, "REQUEST_S", 0.05)
    answer = await client.post(f"{LEASE}/release", content=body(), headers={"content-type": "application/json"})
    problem(answer, 408)


def test_probes_alone_need_neither_token_nor_name() -> None:
    assert {"/health/live", "/health/ready"} <= OPEN
