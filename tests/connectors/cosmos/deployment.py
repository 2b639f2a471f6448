"""A deployment of .NET or Java that is to be taken over: its lease documents written by hand, and what it had processed."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import textwrap
from collections import Counter
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import structlog
from azure.cosmos.aio import ContainerProxy, CosmosClient
from click.testing import CliRunner
from connectors.cosmos.bank import Bank
from patience import PATIENCE_S
from plugins_cli import events_in
from unit.leases.lease_documents import packed

from leasehold.service.cli.main import main
from leasehold.service.config.load import load
from leasehold.service.wiring.build import processor_of

GUID = "8a0c8bb3-6d0a-4b8f-9d4c-1d0c0f4e8f1"
FIRST, LATER = 40, 20
PROCESSED = {f"d{n:05}" for n in range(1, FIRST + 1)}
NEW = {f"d{n:05}" for n in range(FIRST + 1, FIRST + LATER + 1)}


class Deployment:
    """A container that is read, with the FIRST documents that a former processor had processed, and the container of leases."""

    def __init__(self, bank: Bank, leases: ContainerProxy, folder: Path, prefix: str) -> None:
        self.bank = bank
        self.leases = leases
        self.folder = folder
        self.prefix = prefix
        self.file = folder / "bank.yaml"
        self.ranges = bank.cosmos.control.ranges(Bank.name)

    async def add_later(self) -> None:
        """What nobody has processed yet."""
        for number in range(LATER):
            await self.bank.create(f"account-{number}")

    async def write(self, *documents: dict[str, Any]) -> None:
        """Under keys that are no ids, where the container has keys of its own: older versions of .NET chose them so."""
        for number, document in enumerate(documents):
            await self.leases.create_item({"partitionKey": f"{GUID}{number}", **document})

    async def documents(self) -> dict[str, dict[str, Any]]:
        """Of leases, by token."""
        found = [item async for item in self.leases.read_all_items()]
        return {str(item["LeaseToken"]): item for item in found if item["id"].startswith(f"{self.prefix}..")}

    def dotnet(self, token: str, low: str, high: str, lsn: int, **fields: Any) -> dict[str, Any]:
        return {
            "id": f"{self.prefix}..{token}",
            "version": 1 if "-" in token else 0,
            "LeaseToken": token,
            "FeedRange": {"Range": {"min": low, "max": high}},
            "Owner": "dotnet-host-1",
            "ContinuationToken": f'"{lsn}"',
            "properties": {"theirs": token},
            "timestamp": "2026-03-04T23:55:16.5233511Z",
            "Mode": "Incremental Feed",
            "unknown": {"deep": [1, None, token]},
            **fields,
        }

    def java(self, token: str, parts: list[tuple[str, str, str | None]], **fields: Any) -> dict[str, Any]:
        low, _, high = token.partition("-")
        return {
            "id": f"{self.prefix}..{token}",
            "LeaseToken": token,
            "ContinuationToken": packed(parts),
            "timestamp": "2026-03-04T23:55:16.523Z[UTC]",
            "Owner": "java-host-1",
            "version": 1,
            "feedRange": {"Range": {"min": low, "max": high}},
            "unknown": token,
            **fields,
        }

    def change(self, text: str, other: str) -> None:
        """Of the settings."""
        self.file.write_text(self.file.read_text().replace(text, other))

    async def leasehold(self, *arguments: str) -> tuple[int, str]:
        """leases ... of this deployment, and all that it said."""
        line = ["leases", arguments[0], str(self.file), *arguments[1:]]
        result = await asyncio.to_thread(CliRunner().invoke, main, line)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result.exit_code, result.output

    async def processed(self, *, stopped: Collection[str] = ()) -> Counter[str]:
        """A host of ours, until nothing is left to do: the ids of the documents that came out, and how often.

        stopped: the partitions that wait for a person.

        What the host said, and what was read how often, goes to standard output, which pytest shows with a test that fails.
        """
        log = structlog.wrap_logger(None, processors=[_told])
        processor = processor_of(load(self.file, os.environ), host="host-a", log=log)
        await processor.start()
        try:
            async with asyncio.timeout(PATIENCE_S):
                backlog = await processor.idle()
            assert {partition for _, partition in backlog.failed} == {*stopped}
        finally:
            await processor.stop()
            sys.stdout.write(f"read: {self.bank.cosmos.control.delivered(Bank.name)}\n")
        found = await asyncio.to_thread(events_in, self.folder / "out", lambda row: json.loads(row["body"])["id"])
        return Counter(name for names in found.values() for name in names)


def _told(logger: object, level: str, event: Any) -> str:
    sys.stdout.write(f"{level} {event}\n")
    raise structlog.DropEvent


async def deployed(bank: Bank, others: CosmosClient, folder: Path, *, key: str, leases: str) -> Deployment:
    """others: to the account that the leases are in. key: of their container. leases: the settings of the lease store."""
    settings = f"""
        leases: {{{leases}, duration_s: 4, balance_s: 0.3, call_timeout_s: 2.5}}
        pipelines:
          - name: transactions
            feed: {{type: cosmos, connection_string: "${{BANK}}", database: bank, container: {Bank.name},
                    poll_interval_s: 0.05, processor_name: billing}}
            sink: {{type: log, path: out}}
        """
    (folder / "bank.yaml").write_text(textwrap.dedent(settings))
    database = await others.create_database_if_not_exists("bank")
    container = await database.create_container("leases", {"paths": [key], "kind": "Hash"})
    for number in range(FIRST):
        await bank.create(f"account-{number}")
    async with bank.cosmos.client() as client:
        rid = (await client.get_database_client("bank").read())["_rid"]
    prefix = f"billing127.0.0.1_{rid}_{(await bank.container.read())['_rid']}"
    return Deployment(bank, container, folder, prefix)


def read_as_dotnet(document: dict[str, Any]) -> tuple[str, int, str, str]:
    """As the .NET processor, its estimator and KEDA take it: (token, LSN, min, max)."""
    version = document.get("version", 0)
    assert version in (0, 1)
    bounds = document["FeedRange"]["Range"]
    assert document["LeaseToken"] == (f"{bounds['min']}-{bounds['max']}" if version else document["LeaseToken"])
    assert document["id"].endswith(f"..{document['LeaseToken']}")
    assert document["Owner"] is None or isinstance(document["Owner"], str)
    assert document.get("Mode", "Incremental Feed") == "Incremental Feed"
    assert all(isinstance(value, str) for value in document.get("properties", {}).values())
    etag = document["ContinuationToken"]
    assert etag[0] == etag[-1] == '"'
    assert document["timestamp"].endswith("Z")
    datetime.fromisoformat(document["timestamp"])
    return document["LeaseToken"], int(etag[1:-1]), bounds["min"], bounds["max"]


def is_fresh(document: dict[str, Any]) -> bool:
    age = datetime.now(UTC) - datetime.fromisoformat(document["timestamp"])
    return timedelta(0) <= age < timedelta(minutes=1)
