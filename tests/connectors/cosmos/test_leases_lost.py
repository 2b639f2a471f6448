"""A lease in Cosmos DB that somebody deleted or spoilt, before a split: nothing comes twice, and nobody guesses."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from connectors.cosmos.bank import Bank, banked
from connectors.cosmos.deployment import Deployment, deployed
from plugins_cosmos import Cosmos

import leasehold

LEASES = "type: cosmos, connection_string: '${BANK}', database: bank"
HANDLED: list[str] = []


class Handler(leasehold.Handler):
    """Writes down the ids that it is given."""

    def process(self, table: object, context: object) -> None:
        HANDLED.extend(dict(each)["id"] for each in table["properties"].to_pylist())  # type: ignore[index]


@pytest.fixture
async def deployment(cosmos: Cosmos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Deployment]:
    """All that there was has been processed, and its range 1 is split."""
    monkeypatch.setenv("BANK", f"AccountEndpoint={cosmos.endpoint};AccountKey={cosmos.key};")
    async with banked(cosmos) as bank, cosmos.client() as client:
        deployment = await deployed(bank, client, tmp_path, key="/id", leases=LEASES)
        assert set((await deployment.processed()).values()) == {1}
        yield deployment


async def split(deployment: Deployment) -> list[str]:
    return [each.id for each in deployment.bank.cosmos.control.split(Bank.name, "1")]


async def delete(deployment: Deployment, token: str) -> None:
    name = f"{deployment.prefix}..{token}"
    await deployment.leases.delete_item(name, name)


async def test_the_children_of_a_deleted_lease_go_on_where_its_sink_stands(deployment: Deployment) -> None:
    await delete(deployment, "1")
    children = await split(deployment)
    await deployment.add_later()
    assert set((await deployment.processed()).values()) == {1}
    documents = await deployment.documents()
    assert {*children} <= documents.keys()
    assert "1" not in documents


async def test_a_handlers_children_of_a_deleted_lease_wait_until_somebody_says_where(deployment: Deployment) -> None:
    text = deployment.file.read_text().replace(
        "{type: log, path: out}", f"{{type: python, handler: '{__name__}:Handler', gets: table}}"
    )
    deployment.file.write_text(text.replace("name: transactions", "name: handled").replace("billing", "handling"))
    deployment.prefix = deployment.prefix.replace("billing", "handling")
    HANDLED.clear()
    await deployment.processed()
    assert len(HANDLED) == len(set(HANDLED)) == 40
    await delete(deployment, "1")
    children = await split(deployment)
    await deployment.add_later()
    position = await held_by(deployment, "1")
    await deployment.processed(stopped=children)
    assert not {*children} & (await deployment.documents()).keys()
    code, said = await deployment.leasehold("list", "--pipeline", "handled")
    assert code == 0, said
    for child in children:
        code, said = await deployment.leasehold("reset", "handled", child, "--to", position, "--yes")
        assert (code, "its document is new" in said) == (0, True), said
    await deployment.processed()
    assert Counter(HANDLED) == Counter({f"d{n:05}" for n in range(1, 61)})


async def held_by(deployment: Deployment, range_id: str) -> str:
    lsn = next(each.lsn for each in deployment.ranges if each.id == range_id)
    return f'"{lsn}"'


async def test_an_unreadable_lease_is_listed_with_what_to_do_and_a_reset_brings_it_on(deployment: Deployment) -> None:
    name = f"{deployment.prefix}..1"
    document = await deployment.leases.read_item(name, name)
    await deployment.leases.replace_item(name, {**document, "leasehold": {"version": 1, "epoch": "many"}})
    await deployment.add_later()
    code, said = await deployment.leasehold("list")
    assert (code, "unreadable" in said, "leases reset FILE transactions 1 --to" in said) == (0, True, True), said
    code, said = await deployment.leasehold(
        "reset", "transactions", "1", "--to", await held_by(deployment, "1"), "--yes"
    )
    assert (code, "its document is new" in said) == (0, True), said
    assert set((await deployment.processed()).values()) == {1}
