"""From one configuration file: leases in one account, the change feed of another, hosts, and the commands that look."""

from __future__ import annotations

import asyncio
import json
import os
import textwrap
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import structlog
from azure.cosmos.aio import ContainerProxy
from click.testing import CliRunner
from connectors.cosmos.bank import Bank, banked
from patience import PATIENCE_S
from plugins_cosmos import Cosmos, running

from leasehold.leases.store import LeaseStore
from leasehold.service.cli.main import main
from leasehold.service.config.load import load
from leasehold.service.processor import ProcessorCore
from leasehold.service.wiring.build import pipelines_of, processor_of, store_of


@pytest.fixture
async def bank(cosmos: Cosmos) -> AsyncIterator[Bank]:
    async with banked(cosmos) as bank:
        yield bank


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Cosmos]:
    """The account that the leases are in."""
    with running("--ranges", "1") as account:
        yield account


@pytest.fixture
async def documents(elsewhere: Cosmos) -> AsyncIterator[ContainerProxy]:
    elsewhere.control.reset()
    async with elsewhere.client() as client:
        database = await client.create_database("operations")
        yield await database.create_container("leases", {"paths": ["/id"], "kind": "Hash"})


@pytest.fixture
def file(tmp_path: Path, bank: Bank, elsewhere: Cosmos, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KEY", bank.cosmos.key)
    monkeypatch.setenv("LEASES", f"AccountEndpoint={elsewhere.https};AccountKey={elsewhere.key};")
    path = tmp_path / "bank.yaml"
    path.write_text(
        textwrap.dedent(f"""
            leases: {{type: cosmos, connection_string: "${{LEASES}}", database: operations, ca_file: "{elsewhere.ca}",
                      duration_s: 12, balance_s: 0.3, call_timeout_s: 4}}
            api: {{enabled: false}}
            pipelines:
              - name: transactions
                feed: {{type: cosmos, endpoint: "{bank.cosmos.endpoint}", key: "${{KEY}}", database: bank,
                        container: transactions, poll_interval_s: 0.05, processor_name: billing}}
                sink: {{type: log, path: out}}
            """)
    )
    return path


def host_of(file: Path) -> ProcessorCore:
    quiet = structlog.wrap_logger(None, processors=[_dropped])
    return processor_of(load(file, os.environ), host="host-a", log=quiet)


def _dropped(logger: object, level: str, event: Any) -> str:
    raise structlog.DropEvent


async def prefix_of(bank: Bank) -> str:
    properties = await bank.container.read()
    database = await (bank.cosmos.client()).get_database_client("bank").read()
    return f"billing127.0.0.1_{database['_rid']}_{properties['_rid']}"


async def test_a_deployment_of_dotnet_is_taken_over_and_nothing_is_processed_again(
    bank: Bank, documents: ContainerProxy, file: Path
) -> None:
    for n in range(40):
        await bank.create(f"account-{n}")
    prefix, read = await prefix_of(bank), {each.id: each.lsn for each in bank.cosmos.control.ranges(bank.name)}
    for token, lsn in read.items():
        await documents.create_item(
            {
                "id": f"{prefix}..{token}",
                "LeaseToken": token,
                "Owner": "dotnet-host-1",
                "ContinuationToken": f'"{lsn}"',
                "properties": {},
                "timestamp": "2026-03-04T23:55:16.5233511Z",
                "theirs": token,
            }
        )
    await documents.create_item({"id": f"{prefix}.info"})
    await documents.create_item({"id": f"{prefix}.lock", "ttl": 30})
    for n in range(40, 60):
        await bank.create(f"account-{n}")
    processor = host_of(file)
    await processor.start()
    async with asyncio.timeout(PATIENCE_S):
        await processor.idle()
    await processor.stop()
    delivered = {name for name, _ in bank.cosmos.control.delivered(bank.name)}
    assert delivered == {f"d{n:05}" for n in range(41, 61)}
    for each in bank.cosmos.control.ranges(bank.name):
        lease = await documents.read_item(f"{prefix}..{each.id}", f"{prefix}..{each.id}")
        assert (lease["ContinuationToken"], lease["Owner"], lease["theirs"]) == (f'"{each.lsn}"', None, each.id)
        assert datetime.now(UTC) - datetime.fromisoformat(lease["timestamp"]) < timedelta(minutes=1)
        assert lease["timestamp"].endswith("Z")


async def test_hosts_with_leases_in_cosmos_go_through_a_split_and_a_merge(
    bank: Bank, documents: ContainerProxy, file: Path
) -> None:
    for n in range(20):
        await bank.create(f"account-{n}")
    processor = host_of(file)
    await processor.start()
    async with asyncio.timeout(PATIENCE_S):
        await processor.idle()
        bank.cosmos.control.split(bank.name, "1")
        for n in range(20, 40):
            await bank.create(f"account-{n}")
        await processor.idle()
        ranges = bank.cosmos.control.ranges(bank.name)
        bank.cosmos.control.merge(bank.name, ranges[0].id, ranges[1].id)
        for n in range(40, 60):
            await bank.create(f"account-{n}")
        await processor.idle()
    await processor.stop()
    prefix = await prefix_of(bank)
    leases = [
        item
        async for item in documents.read_all_items()
        if item["id"].startswith(prefix + "..") and not item["leasehold"].get("closed")
    ]
    bounds = sorted((lease["FeedRange"]["Range"]["min"], lease["FeedRange"]["Range"]["max"]) for lease in leases)
    assert (bounds[0][0], bounds[-1][1]) == ("", "FF")
    assert all(before[1] == after[0] for before, after in pairwise(bounds))
    assert {lease["version"] for lease in leases} == {0, 1}
    assert {name for name, _ in bank.cosmos.control.delivered(bank.name)} == {f"d{n:05}" for n in range(1, 61)}


async def told(*arguments: str) -> tuple[int, str]:
    result = await asyncio.to_thread(CliRunner().invoke, main, list(arguments))
    return result.exit_code, result.output


async def test_commands_look_into_the_container_and_make_nothing(
    bank: Bank, documents: ContainerProxy, file: Path, elsewhere: Cosmos
) -> None:
    code, said = await told("check", str(file))
    assert (code, said.splitlines()[0]) == (0, "settings: fine, 1 pipeline")
    code, output = await told("leases", "list", str(file))
    assert (code, "no leases yet in Cosmos DB container 'operations/leases'" in output) == (1, True)
    assert elsewhere.control.requests("document.create") == 0
    processor = host_of(file)
    await processor.start()
    async with asyncio.timeout(PATIENCE_S):
        await processor.idle()
    await processor.stop()
    code, output = await told("leases", "list", "--json", str(file))
    assert [(lease["partition"], lease["owner"]) for lease in json.loads(output)] == [(n, None) for n in "0123"]
    code, output = await told("leases", "show", str(file), "transactions", "2")
    assert json.loads(output)["partition"] == "2"
    code, output = await told("check", "--probe", str(file))
    assert (code, "leases: fine, 4 there" in output) == (0, True)


async def test_where_the_container_that_is_read_cannot_be_reached_its_leases_are_not_named(
    bank: Bank, file: Path
) -> None:
    await bank.cosmos.client().get_database_client("bank").delete_container(bank.name)
    settings = load(file, os.environ)
    pipelines = pipelines_of(settings)
    store: LeaseStore = store_of(settings, pipelines)
    with pytest.raises(Exception, match="leases are named after the container that is read"):
        await store.list("transactions/leases/")
    assert await store.list("_hosts/") == []
    await store.close()
    for pipeline in pipelines:
        await pipeline.feed.close()
        await pipeline.sink.close()
