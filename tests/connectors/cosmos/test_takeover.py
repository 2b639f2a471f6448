"""Leases that .NET and Java left behind, taken over by a real host: in their own documents, or by `leasehold leases import`.

The documents are written by hand as those processors write them. What was processed before does not come again, and what we
write can still be read by them.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
from connectors.cosmos.bank import Bank, banked
from connectors.cosmos.deployment import FIRST, GUID, LATER, NEW, Deployment, deployed, is_fresh, read_as_dotnet
from patience import rhythm
from plugins_cosmos import Cosmos

from leasehold.leases.errors import GroupMismatch


@pytest.fixture
def key() -> str:
    return "/id"


@pytest.fixture
def leases() -> str:
    return "type: cosmos, connection_string: '${BANK}', database: bank"


@pytest.fixture
async def deployment(
    cosmos: Cosmos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, leases: str
) -> AsyncIterator[Deployment]:
    """Leases and all else in one account."""
    monkeypatch.setenv("BANK", f"AccountEndpoint={cosmos.endpoint};AccountKey={cosmos.key};")
    async with banked(cosmos) as bank, cosmos.client() as client:
        yield await deployed(bank, client, tmp_path, key=key, leases=leases)


@pytest.mark.parametrize("key", ["/id", "/partitionKey"])
async def test_leases_of_dotnet_go_on_where_they_were_and_can_still_be_read_by_it(deployment: Deployment) -> None:
    bank = deployment.bank
    left, right, *others = deployment.ranges
    cut = left.max
    await deployment.write(
        deployment.dotnet(f"{left.min}-{cut}", left.min, cut, left.lsn),
        *(deployment.dotnet(each.id, each.min, each.max, each.lsn) for each in (right, *others)),
        {"id": f"{deployment.prefix}.info"},
        {"id": f"{deployment.prefix}.lock", "ttl": -1},
        deployment.dotnet("0", "", "FF", 1, id=f"other{deployment.prefix}..0"),
    )
    await deployment.add_later()
    assert await deployment.processed() == Counter(NEW)
    after = {each.id: each for each in bank.cosmos.control.ranges(Bank.name)}
    documents = await deployment.documents()
    expected = {f"{left.min}-{cut}": after[left.id], **{each.id: after[each.id] for each in (right, *others)}}
    assert {read_as_dotnet(each) for each in documents.values()} == {
        (token, each.lsn, each.min, each.max) for token, each in expected.items()
    }
    for token, document in documents.items():
        assert is_fresh(document)
        assert (document["Owner"], document["unknown"]) == (None, {"deep": [1, None, token]})
        assert document["properties"]["theirs"] == token
        assert document["partitionKey"].startswith(GUID)
    kept = [item["id"] async for item in deployment.leases.read_all_items() if item["id"].endswith((".info", ".lock"))]
    assert sorted(kept) == [f"{deployment.prefix}.info", f"{deployment.prefix}.lock"]


async def test_java_is_taken_over_in_place_once_its_continuations_are_unpacked(deployment: Deployment) -> None:
    """One lease holds the positions of two ranges, as after a split that it went through."""
    a, b, c, d = deployment.ranges
    await deployment.write(
        deployment.java(f"{a.min}-{b.max}", [(b.min, b.max, f'"{b.lsn}"'), (a.min, a.max, f'"{a.lsn}"')]),
        *(deployment.java(f"{each.min}-{each.max}", [(each.min, each.max, f'"{each.lsn}"')]) for each in (c, d)),
        {"id": f"{deployment.prefix}.info"},
    )
    await deployment.add_later()
    before = await deployment.documents()
    line = ("import", "--pipeline", "transactions", "--from", "java")
    code, said = await deployment.leasehold(*line)
    assert (code, "0 created, 3 moved, 0 unchanged, 0 refused: nothing was written" in said) == (0, True), said
    assert await deployment.documents() == before
    code, said = await deployment.leasehold(*line, "--apply")
    assert (code, "3 moved, 0 unchanged, 0 refused: 3 written" in said) == (0, True), said
    code, said = await deployment.leasehold(*line, "--apply")
    assert (code, "0 moved, 3 unchanged, 0 refused: 0 written" in said) == (0, True), said
    assert await deployment.processed() == Counter(NEW)
    documents = {token: each for token, each in (await deployment.documents()).items() if token != f"{a.min}-{b.max}"}
    spans = {(low, high) for _, _, low, high in map(read_as_dotnet, documents.values())}
    assert spans == {(each.min, each.max) for each in (a, b, c, d)}
    assert all(is_fresh(each) for each in documents.values())
    assert documents[f"{c.min}-{c.max}"]["unknown"] == f"{c.min}-{c.max}"


@pytest.mark.parametrize("kind", ["dotnet", "java"])
async def test_while_a_former_host_is_at_work_its_leases_are_refused(deployment: Deployment, kind: str) -> None:
    await deployment.write(
        *(
            deployment.java(f"{each.min}-{each.max}", [(each.min, each.max, f'"{each.lsn}"')])
            for each in deployment.ranges
        )
        if kind == "java"
        else (
            deployment.dotnet(each.id, each.min, each.max, each.lsn, id=f"old{deployment.prefix}..{each.id}")
            for each in deployment.ranges
        )
    )

    async def renew() -> None:
        async for _ in rhythm(0.2):
            async for item in deployment.leases.read_all_items():
                if "LeaseToken" in item and item["LeaseToken"].startswith(("0", "-")):
                    await deployment.leases.replace_item(
                        item["id"], {**item, "timestamp": datetime.now(UTC).isoformat()}
                    )

    renewing = asyncio.create_task(renew())
    line = ("import", "--pipeline", "transactions", "--from", kind, "--apply")
    options = () if kind == "java" else ("--prefix", f"old{deployment.prefix}")
    code, said = await deployment.leasehold(*line, *options)
    renewing.cancel()
    with suppress(asyncio.CancelledError):
        await renewing
    assert code == 1
    assert f"'{kind}-host-1' is processing document '" in said
    assert "1 refused: nothing is written as long as one is refused" in said


async def test_leases_under_another_prefix_become_ours(deployment: Deployment) -> None:
    """As those of a processor that named another host of the account, or of Java's older one, which named names."""
    await deployment.write(
        *(
            deployment.dotnet(each.id, each.min, each.max, each.lsn, id=f"oldaccount_bank_transactions..{each.id}")
            for each in deployment.ranges
        )
    )
    await deployment.add_later()
    line = (
        "import",
        "--pipeline",
        "transactions",
        "--from",
        "dotnet",
        "--prefix",
        "oldaccount_bank_transactions",
        "--apply",
    )
    code, said = await deployment.leasehold(*line)
    assert (code, "4 created, 0 moved, 0 unchanged, 0 refused: 4 written" in said) == (0, True), said
    assert await deployment.processed() == Counter(NEW)
    assert {each["unknown"]["deep"][2] for each in (await deployment.documents()).values()} == {"0", "1", "2", "3"}


@pytest.mark.parametrize("leases", ["type: sqlite, path: leases.db"])
async def test_an_export_of_the_old_container_goes_on_in_another_store(deployment: Deployment) -> None:
    await deployment.write(
        *(deployment.dotnet(each.id, each.min, each.max, each.lsn, _ts=1) for each in deployment.ranges),
        {"id": f"{deployment.prefix}.info"},
    )
    exported = [item async for item in deployment.leases.read_all_items()]
    (deployment.folder / "old.json").write_text(json.dumps(exported, indent=2))
    await deployment.add_later()
    line = ("import", str(deployment.folder / "old.json"), "--pipeline", "transactions", "--from", "dotnet", "--apply")
    code, said = await deployment.leasehold(*line)
    assert (code, "4 created, 0 moved, 0 unchanged, 0 refused: 4 written" in said) == (0, True), said
    assert await deployment.processed() == Counter(NEW)


async def test_leases_that_cover_what_others_cover_are_refused(deployment: Deployment) -> None:
    await deployment.write(*(deployment.dotnet(each.id, each.min, each.max, each.lsn) for each in deployment.ranges))
    whole = deployment.dotnet("-FF", "", "FF", 7, id=f"old{deployment.prefix}..-FF")
    (deployment.folder / "old.jsonl").write_text(json.dumps(whole))
    line = ("import", str(deployment.folder / "old.jsonl"), "--pipeline", "transactions", "--from", "dotnet")
    code, said = await deployment.leasehold(*line)
    assert (code, "it covers what '0', '1', '2', '3' covers" in said) == (1, True), said


async def test_what_was_exported_restores_a_container_that_was_lost(deployment: Deployment) -> None:
    await deployment.write(
        *(deployment.dotnet(each.id, each.min, each.max, each.lsn) for each in deployment.ranges),
        {"id": f"{deployment.prefix}.info"},
    )
    await deployment.add_later()
    assert await deployment.processed() == Counter(NEW)
    before = await deployment.documents()
    file = str(deployment.folder / "leases.jsonl")
    assert (await deployment.leasehold("export", "-o", file))[0] == 0
    async for item in deployment.leases.read_all_items():
        await deployment.leases.delete_item(item["id"], item["id"])
    line = ("import", file, "--pipeline", "transactions", "--from", "leasehold", "--apply")
    code, said = await deployment.leasehold(*line)
    assert (code, "4 created, 0 moved, 0 unchanged, 0 refused: 4 written" in said) == (0, True), said
    after = await deployment.documents()
    kept = ("ContinuationToken", "FeedRange", "Mode", "properties", "unknown", "version")
    assert {token: [each[name] for name in kept] for token, each in after.items()} == {
        token: [each[name] for name in kept] for token, each in before.items()
    }
    assert await deployment.processed() == Counter(NEW)


async def test_a_pipeline_of_another_name_is_told_whose_leases_they_are_and_takes_them_over_by_an_import(
    deployment: Deployment,
) -> None:
    """Its sink knows what was delivered by the former name alone."""
    await deployment.add_later()
    assert set((await deployment.processed()).values()) == {1}
    deployment.change("name: transactions", "name: payments")
    with pytest.raises(GroupMismatch, match="belong to a pipeline called 'transactions'"):
        await deployment.processed()
    deployment.change("path: out", "path: elsewhere")
    with pytest.raises(GroupMismatch, match="belong to a pipeline called 'transactions'"):
        await deployment.processed()
    deployment.change("path: elsewhere", "path: out")
    deployment.change("processor_name: billing", "processor_name: paying")
    line = ("import", "--pipeline", "payments", "--from", "dotnet", "--prefix", deployment.prefix, "--apply")
    code, said = await deployment.leasehold(*line)
    assert (code, "4 created, 0 moved, 0 unchanged, 0 refused: 4 written" in said) == (0, True), said
    await deployment.add_later()
    found = await deployment.processed()
    assert found == Counter({f"d{n:05}" for n in range(1, len(found) + 1)})
    assert len(found) == FIRST + 2 * LATER


async def test_a_changed_sink_is_refused_where_the_leases_are_dotnets_documents(deployment: Deployment) -> None:
    await deployment.processed()
    deployment.change("path: out", "path: elsewhere")
    with pytest.raises(GroupMismatch, match="belong to sink"):
        await deployment.processed()
