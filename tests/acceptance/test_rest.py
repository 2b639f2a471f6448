"""The REST API of real hosts over real sockets: two hundred clients while leases move, tokens, operators, and the log."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from patience import PATIENCE_S, until
from plugins_cli import Command, Commands

PARTITIONS = 12
CLIENTS = 200
READER, OPERATOR = "reader-" + "r" * 32, "operator-" + "o" * 32
SETTINGS = """
leases: {{type: sqlite, path: state/leases.db, balance_s: 1, duration_s: 15}}
host: {{name: {host}}}
api: {{port: 0, readers: readers, operators: operators}}
log: {{format: json}}
pipelines:
  - name: copy
    feed: {{type: files, path: "words-*.jsonl"}}
    sink: {{type: log, path: state/copied}}
"""
PATHS = (
    *("/api/leases?limit=1000", "/api/leases?limit=5", "/api/hosts", "/api/pipelines", "/api/lag", "/api/batches"),
    *("/api/leases/copy/words-01.jsonl", "/metrics", "/health/ready"),
)


class Hosts:
    """Hosts of one group, by name, and how to ask them."""

    def __init__(self, folder: Path, leasehold: Commands) -> None:
        self._folder = folder
        self._leasehold = leasehold
        self.commands: dict[str, Command] = {}
        (folder / "readers").write_text(READER)
        (folder / "operators").write_text(f"alice {OPERATOR}\n")
        for number in range(PARTITIONS):
            (folder / f"words-{number:02}.jsonl").write_text('{"word": "one"}\n')

    def start(self, name: str) -> None:
        (self._folder / f"{name}.yaml").write_text(SETTINGS.format(host=name))
        self.commands[name] = self._leasehold("run", f"{name}.yaml")

    def url(self, name: str) -> str:
        command = self.commands[name]
        until(lambda: command.found(r'"url": "(http://[^"]+)"'), "the API listens")
        return str(command.found(r'"url": "(http://[^"]+)"'))

    def ask(self, name: str, path: str) -> Any:
        return httpx.get(self.url(name) + path, headers=bearer(READER), timeout=PATIENCE_S, trust_env=False).json()

    def act(self, name: str, method: str, path: str, body: object, **headers: str) -> httpx.Response:
        return httpx.request(
            method,
            self.url(name) + path,
            json=body,
            headers={**bearer(OPERATOR), **headers},
            timeout=PATIENCE_S,
            trust_env=False,
        )

    def shares(self, name: str) -> Counter[str | None]:
        """As this host tells."""
        return Counter(item["owner"] for item in self.ask(name, "/api/leases?limit=1000").get("items", ()))

    def lines(self, name: str, event: str) -> list[dict[str, Any]]:
        lines = [line for line in self.commands[name].err.splitlines() if line.startswith("{")]
        return [found for line in lines if (found := json.loads(line))["event"] == event]


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@pytest.fixture
def hosts(tmp_path: Path, leasehold: Commands) -> Hosts:
    return Hosts(tmp_path, leasehold)


async def crowd(urls: list[str], meanwhile: Callable[[], Awaitable[None]]) -> Counter[int]:
    """Clients that ask both hosts, each on a connection of its own, until `meanwhile` is over; how often was answered what."""
    answered: Counter[int] = Counter()
    over = asyncio.Event()

    async def ask(number: int) -> None:
        async with httpx.AsyncClient(
            headers=bearer(READER), timeout=PATIENCE_S, trust_env=False, verify=False
        ) as client:  # which has no certificates to load
            turn = number
            while not over.is_set():
                url = urls[turn % len(urls)]
                answer = await client.get(url + PATHS[turn % len(PATHS)])
                answered[answer.status_code] += 1
                if "limit=1000" in str(answer.url):
                    assert_whole(answer.json())
                turn += 1
                with suppress(TimeoutError):  # its pace: a client that looks twice a second, and stops at once
                    await asyncio.wait_for(over.wait(), 0.5)

    async with asyncio.TaskGroup() as group:
        for number in range(CLIENTS):
            group.create_task(ask(number))
        try:
            await meanwhile()
        finally:
            over.set()
    return answered


def assert_whole(leases: dict[str, Any]) -> None:
    """Every lease once, whatever moves."""
    assert len({item["partition"] for item in leases["items"]}) == leases["total"] == PARTITIONS


def test_two_hundred_clients_are_answered_by_both_hosts_while_leases_move_between_them(hosts: Hosts) -> None:
    hosts.start("host-a")
    until(lambda: hosts.shares("host-a") == {"host-a": PARTITIONS}, "the first host has all leases")
    hosts.start("host-b")
    urls = [hosts.url("host-a"), hosts.url("host-b")]

    async def rebalance() -> None:
        half = {"host-a": PARTITIONS // 2, "host-b": PARTITIONS // 2}

        def are_shared() -> bool:
            return hosts.shares("host-a") == hosts.shares("host-b") == half

        await asyncio.to_thread(until, are_shared, "both hosts have half of the leases")

    answered = asyncio.run(crowd(urls, rebalance))
    assert set(answered) <= {200, 503}, answered
    assert answered[503] <= answered[200] / 10, "a host that is not ready says so; nobody else does"
    assert answered[200] >= CLIENTS
    for name in ("host-a", "host-b"):
        assert hosts.lines(name, "suspended") == []
        assert "http server" not in hosts.commands[name].err


def test_operators_move_pause_and_reset_through_any_host_and_every_action_is_logged(
    hosts: Hosts, tmp_path: Path
) -> None:
    hosts.start("host-a")
    hosts.start("host-b")
    half = {"host-a": PARTITIONS // 2, "host-b": PARTITIONS // 2}
    until(lambda: hosts.shares("host-a") == half, "both hosts work")
    assert (
        httpx.post(hosts.url("host-a") + "/api/pipelines/copy/pause", json={}, headers=bearer(READER)).status_code
        == 403
    )

    assert hosts.act("host-a", "POST", "/api/pipelines/copy/pause", {}).json()["by"] == "alice"
    until(lambda: hosts.shares("host-b") == {None: PARTITIONS}, "both hosts rest")
    hosts.commands["host-b"].process.send_signal(signal.SIGTERM)
    assert hosts.commands["host-b"].ended() == 0
    hosts.start("host-b")
    until(lambda: len(hosts.ask("host-b", "/api/hosts")["items"]) == 2, "a host comes back into the pause")
    assert hosts.shares("host-b") == {None: PARTITIONS}

    path = "/api/leases/copy/words-01.jsonl"
    etag = httpx.get(hosts.url("host-b") + path, headers=bearer(READER)).headers["etag"]
    reset = hosts.act("host-b", "PUT", f"{path}/continuation", {"to": "earliest"}, **{"if-match": etag})
    assert reset.json()["after"]["generation"] == 1
    stale = hosts.act("host-b", "PUT", f"{path}/continuation", {"to": "earliest"}, **{"if-match": etag})
    assert stale.status_code == 412
    assert hosts.act("host-b", "POST", "/api/pipelines/copy/resume", {}).json()["changed"]
    until(lambda: hosts.shares("host-a") == half, "both hosts go on")

    done = {
        (line["action"], line["outcome"])
        for name in ("host-a", "host-b")
        for line in hosts.lines(name, "operator action")
    }
    assert done == {("pause", "denied"), ("pause", "done"), ("reset", "done"), ("reset", "refused"), ("resume", "done")}
    said = "".join(command.err + command.out for command in hosts.commands.values())
    assert not re.search(f"{READER}|{OPERATOR}", said)
