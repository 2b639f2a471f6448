"""A container's documents into a log by the command line: checked, run, counted, and through a merge while nobody runs."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from connectors.cosmos.bank import Bank, banked
from plugins_cli import Command
from plugins_cosmos import Cosmos

from leasehold.pipeline.connectors.log import LogFeed

SETTINGS = """
leases: {type: sqlite, path: leases.db}
api: {enabled: false}
pipelines:
  - name: transactions
    feed: {type: cosmos, endpoint: "ENDPOINT", key: "${COSMOS_KEY}", database: bank, container: CONTAINER, poll_interval_s: 0.05}
    sink: {type: log, path: out}
"""


@pytest.fixture
async def bank(cosmos: Cosmos) -> AsyncIterator[Bank]:
    async with banked(cosmos) as bank:
        yield bank


def leasehold(bank: Bank, folder: Path, *arguments: str, more: str = "") -> tuple[int, str]:
    """Exit code and all that was said. more: pipelines."""
    text = (SETTINGS.replace("CONTAINER", bank.name) + more).replace("ENDPOINT", bank.cosmos.endpoint)
    (folder / "bank.yaml").write_text(text)
    command = Command(*arguments, "bank.yaml", cwd=folder, env={"COSMOS_KEY": bank.cosmos.key})
    code = command.ended()
    assert bank.cosmos.key not in command.out + command.err
    return code, command.out + command.err


async def ids(folder: Path) -> list[str]:
    feed = LogFeed(folder / "out")
    found = []
    for partition in await feed.partitions():
        pages = feed.open(partition.name, None)
        left = await feed.lag(partition.name, None)
        while left:
            bodies = (await anext(pages)).events["body"].to_pylist()
            found += [json.loads(body)["id"] for body in bodies]
            left -= len(bodies)
        await pages.aclose()
    await feed.close()
    return sorted(found)


async def test_until_idle_and_lag_through_a_split_and_a_merge_while_nobody_runs(bank: Bank, tmp_path: Path) -> None:
    made = [(await bank.create(f"account-{n}"))["id"] for n in range(30)]
    code, said = leasehold(bank, tmp_path, "run", "--until-idle")
    assert code == 0, said
    assert await ids(tmp_path) == made
    bank.cosmos.control.merge(bank.name, "0", "1")
    bank.cosmos.control.split(bank.name, "2")
    made += [(await bank.create(bank.account("", "FF")))["id"] for _ in range(3)]
    code, said = leasehold(bank, tmp_path, "lag")
    assert code == 0, said
    assert [line.split()[1] for line in said.splitlines() if line.split()[:1] == ["all"]] == ["3"], said
    code, said = leasehold(bank, tmp_path, "run", "--until-idle")
    assert code == 0, said
    assert await ids(tmp_path) == sorted(made)


async def test_check_tells_which_container_is_there_and_which_is_not(bank: Bank, tmp_path: Path) -> None:
    other = SETTINGS[SETTINGS.index("  - name") :].replace("CONTAINER", "elsewhere").replace("path: out", "path: other")
    code, said = leasehold(bank, tmp_path, "check", "--probe", more=other.replace("name: transactions", "name: other"))
    assert code == 2
    host = bank.cosmos.endpoint.removeprefix("http://").rstrip("/")
    assert f"transactions: feed: fine, 4 partitions now (cosmos:{host}/bank/transactions)" in said
    assert f"other: feed: FAILED: container {host}/bank/elsewhere" in said
    assert "check `database` and `container`" in said
