"""The log of what operators did: every action, refused ones too, and never a token."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog

from leasehold.leases.lease import Lease
from leasehold.service.api import create_app
from leasehold.service.api.audit import OperatorAction, operator_action_of, outcome_of
from leasehold.service.api.auth import Access, Tokens

READER, OPERATOR = "reader-" + "r" * 32, "operator-" + "o" * 32
LEASE = "/api/leases/bank/a"


@pytest.fixture
async def resting(start):
    running = await start(runs=False)
    await running.keeper.create(
        Lease(pipeline="bank", partition="a", owner="z", incarnation="1", epoch=4, continuation="0")
    )
    return running


@pytest.fixture
async def client(resting, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    for name, content in (("readers", READER), ("operators", f"alice {OPERATOR}")):
        (tmp_path / name).write_text(content)
    access = Access(readers=Tokens(tmp_path / "readers"), operators=Tokens(tmp_path / "operators", "api.operators"))
    app = create_app(resting.view, access, log=structlog.get_logger().bind(host="host-a"))
    transport = httpx.ASGITransport(app, client=("192.0.2.7", 1234))
    headers = {"authorization": f"Bearer {OPERATOR}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as client:
        yield client


def lines(logs: list[Any]) -> list[dict[str, Any]]:
    return [entry for entry in logs if entry["event"] == "operator action"]


async def test_an_action_is_a_line_with_who_what_before_after_and_outcome(resting, client) -> None:
    with structlog.testing.capture_logs() as logs:
        await client.post(f"{LEASE}/release", json={})
        await client.post(f"{LEASE}/release", json={})
    done, again = lines(logs)
    facts = {"handoff_to": None, "epoch": 4, "generation": 0, "continuation": "0"}
    assert done == {
        "event": "operator action",
        "log_level": "info",
        "host": "host-a",
        "action": "release",
        "pipeline": "bank",
        "partition": "a",
        "who": "alice",
        "client": "192.0.2.7",
        "outcome": "done",
        "status": 200,
        "before": {"owner": "z", **facts},
        "after": {"owner": None, **facts},
    }
    assert again["outcome"] == "unchanged"
    assert resting.host.stats.actions == {("release", "done"): 1, ("release", "unchanged"): 1}


@pytest.mark.parametrize(
    ("method", "path", "body", "action", "outcome"),
    [
        ("PUT", f"{LEASE}/continuation", {"to": "latest"}, "reset", "refused"),
        ("POST", "/api/leases/bank/nope/handoff", {"to": "x"}, "handoff", "refused"),
        ("POST", f"{LEASE}/handoff", {"too": 1}, "handoff", "refused"),
        ("POST", f"{LEASE}/close", {}, "close", "refused"),
        ("POST", "/api/pipelines/bank/pause", {}, "pause", "done"),
        ("POST", "/api/pipelines/bank/resume", {}, "resume", "unchanged"),
        ("GET", "/api/leases/export", None, "export", "done"),
        ("POST", "/api/leases/import?pipeline=bank&from=leasehold", {}, "import", "refused"),
    ],
)
async def test_what_was_refused_is_told_with_the_reason(
    client, method: str, path: str, body: object, action: str, outcome: str
) -> None:
    with structlog.testing.capture_logs() as logs:
        answer = await client.request(method, path, json=body)
    [line] = lines(logs)
    assert (line["action"], line["outcome"], line["who"]) == (action, outcome, "alice")
    assert outcome != "refused" or line["why"] == answer.json()["detail"]
    assert outcome != "refused" or line["log_level"] == "warning"


@pytest.mark.parametrize(("token", "who"), [(READER, "readers line 1"), ("w" * 40, "unknown")])
async def test_whoever_is_denied_is_told_by_name_and_no_token_is_written_down(
    client, token: str, who: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with structlog.testing.capture_logs() as logs:
        await client.post(f"{LEASE}/release", json={}, headers={"authorization": f"Bearer {token}"})
    [line] = lines(logs)
    assert (line["outcome"], line["who"], line["partition"]) == ("denied", who, "a")
    assert token not in str(logs) + "".join(capsys.readouterr())


async def test_reading_is_nobodys_business(client) -> None:
    with structlog.testing.capture_logs() as logs:
        await client.get("/api/leases")
        await client.post("/api/leases", json={})
    assert lines(logs) == []


async def test_long_and_odd_names_are_cut_and_begin_no_line(client) -> None:
    with structlog.testing.capture_logs() as logs:
        await client.post("/api/leases/bank/" + "x" * 5000 + "%0aforged/release", json={})
    [line] = lines(logs)
    assert len(line["partition"]) < 300


def test_deeds_are_known_by_method_and_path() -> None:
    assert operator_action_of("POST", "/api/leases/bank/a/b\n/release") == OperatorAction(
        action="release", pipeline="bank", partition="a/b\n"
    )
    assert operator_action_of("PUT", "/api/leases/bank/a/continuation") == OperatorAction(
        action="reset", pipeline="bank", partition="a"
    )
    assert operator_action_of("GET", "/api/leases/bank/a/release") is None
    assert operator_action_of("POST", "/api/leases/bank//release") is None


def test_outcomes_are_few() -> None:
    told = {outcome_of(status, is_change=change) for status in range(200, 600) for change in (True, False)}
    assert told == {"done", "unchanged", "denied", "refused", "failed"}
