"""The same takeover where the leases stand in @vercel/cosmosdb-server, which nobody here wrote."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from azure.cosmos.aio import CosmosClient
from connectors.cosmos.bank import banked
from connectors.cosmos.deployment import NEW, Deployment, deployed, is_fresh, read_as_dotnet
from plugins_cosmos import Cosmos
from plugins_node import ending, script

ANY_KEY = "YW55IGtleQ=="


@pytest.fixture
def endpoint() -> Iterator[str]:
    command = script("cosmosdb_server_http.mjs")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    with ending(process):
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["endpoint"]


@pytest.fixture(params=["/id", "/partitionKey"])
async def deployment(
    request: pytest.FixtureRequest, cosmos: Cosmos, endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Deployment]:
    monkeypatch.setenv("BANK", f"AccountEndpoint={cosmos.endpoint};AccountKey={cosmos.key};")
    monkeypatch.setenv("LEASES", f"AccountEndpoint={endpoint};AccountKey={ANY_KEY};")
    leases = "type: cosmos, connection_string: '${LEASES}', database: bank"
    async with banked(cosmos) as bank, CosmosClient(endpoint, ANY_KEY, enable_endpoint_discovery=False) as client:
        yield await deployed(bank, client, tmp_path, key=request.param, leases=leases)


async def test_leases_of_dotnet_go_on_where_they_were_and_can_still_be_read_by_it(deployment: Deployment) -> None:
    await deployment.write(
        *(deployment.dotnet(each.id, each.min, each.max, each.lsn) for each in deployment.ranges),
        {"id": f"{deployment.prefix}.info"},
        {"id": f"{deployment.prefix}.lock", "ttl": 30},
    )
    await deployment.add_later()
    assert await deployment.processed() == Counter(NEW)
    documents = await deployment.documents()
    after = deployment.bank.cosmos.control.ranges(deployment.bank.name)
    assert {read_as_dotnet(each) for each in documents.values()} == {(r.id, r.lsn, r.min, r.max) for r in after}
    assert all(is_fresh(each) and each["unknown"] == {"deep": [1, None, token]} for token, each in documents.items())


async def test_java_is_taken_over_in_place_once_its_continuations_are_unpacked(deployment: Deployment) -> None:
    await deployment.write(
        *(deployment.java(f"{r.min}-{r.max}", [(r.min, r.max, f'"{r.lsn}"')]) for r in deployment.ranges),
        {"id": f"{deployment.prefix}.info"},
    )
    await deployment.add_later()
    code, said = await deployment.leasehold("import", "--pipeline", "transactions", "--from", "java", "--apply")
    assert (code, "4 moved, 0 unchanged, 0 refused: 4 written" in said) == (0, True), said
    assert await deployment.processed() == Counter(NEW)
    documents = await deployment.documents()
    assert {each["unknown"] for each in documents.values()} == set(documents)
    assert len(set(map(read_as_dotnet, documents.values()))) == 4
