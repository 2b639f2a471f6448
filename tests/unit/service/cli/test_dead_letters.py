"""Dead letters after `leasehold leases copy`: what was replayed or discarded stays so, and the old configuration replays none."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from leasehold.leases.pause_orders import control_id
from leasehold.leases.stores.sqlite import SqliteStore
from leasehold.pipeline.limits import REPLAY
from leasehold.service.cli.main import main

SETTINGS = """
leases: {{type: sqlite, path: {name}.db}}
api: {{enabled: false}}
pipelines:
  - name: orders
    feed: {{type: files, path: "orders-*.jsonl"}}
    sink: {{type: python, handler: "copied_orders:handle", parallel: {{key: partition, max: 1, attempts: 1, park_s: 0}}}}
    dead_letters: {{type: log, path: dead}}
"""
HANDLER = """
from pathlib import Path

def handle(event):
    with (Path(__file__).parent / "handled").open("a") as handled:
        handled.write(event["body"].decode() + "\\n")
    if not (Path(__file__).parent / "repaired").exists():
        raise ValueError("not repaired")
"""


class Orders:
    """A pipeline with two dead letters, and configurations with an old and a new lease store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "copied_orders.py").write_text(HANDLER)
        (folder / "orders-1.jsonl").write_text('{"n": 1}\n{"n": 2}\n')
        self.old, self.new = (folder / f"{name}.yaml" for name in ("old", "new"))
        for file in (self.old, self.new):
            file.write_text(SETTINGS.format(name=file.stem))

    @property
    def handled(self) -> int:
        return len((self.folder / "handled").read_text().splitlines())

    def repair(self) -> None:
        (self.folder / "repaired").touch()

    def run(self, *arguments: str | Path) -> str:
        result = self.invoke(*arguments)
        assert result.exit_code == 0, result.output
        return result.stdout

    def invoke(self, *arguments: str | Path) -> Result:
        return CliRunner().invoke(main, list(map(str, arguments)))

    def copy(self, *options: str) -> str:
        return self.run("leases", "copy", "--from", self.old, "--to", self.new, *options)

    def states(self, file: Path) -> list[str]:
        lines = self.run("dead-letters", "list", file, "orders", "--json").splitlines()
        return [json.loads(line)["state"] for line in lines]

    def remove_mark(self) -> None:
        """Earlier releases did not mark replays."""

        async def remove() -> None:
            store = SqliteStore(self.folder / "old.db")
            for stored in await store.list(control_id("orders" + REPLAY)):
                await store.delete(stored.id, stored.etag)
            await store.close()

        asyncio.run(remove())


@pytest.fixture
def orders(tmp_path: Path) -> Iterator[Orders]:
    path, orders = list(sys.path), Orders(tmp_path)
    try:
        orders.run("run", orders.old, "--until-idle")
        assert (orders.handled, orders.states(orders.old)) == (2, ["open", "open"])
        yield orders
    finally:
        sys.path[:] = path
        sys.modules.pop("copied_orders", None)


def test_replayed_letters_are_replayed_in_the_new_store_and_not_handled_again(orders: Orders) -> None:
    orders.repair()
    orders.run("dead-letters", "replay", orders.old, "orders")
    assert (orders.handled, orders.states(orders.old)) == (4, ["replayed", "replayed"])
    assert orders.copy().splitlines()[:2] == ["pipeline 'orders': 1 lease", "pipeline 'orders.replay': 1 lease"]
    orders.copy("--apply")
    assert orders.states(orders.new) == ["replayed", "replayed"]
    assert "nothing to replay" in orders.run("dead-letters", "replay", orders.new, "orders")
    orders.run("run", orders.new, "--until-idle")
    assert orders.handled == 4


def test_discarded_letters_stay_discarded_in_the_new_store(orders: Orders) -> None:
    orders.run("dead-letters", "discard", orders.old, "orders", "--yes")
    orders.copy("--apply")
    assert orders.states(orders.new) == ["replayed", "replayed"]
    assert "nothing to replay" in orders.run("dead-letters", "replay", orders.new, "orders")
    assert orders.handled == 2


@pytest.mark.parametrize("release", ["this", "an earlier"])
@pytest.mark.parametrize("command", [("replay",), ("discard", "--yes")], ids=lambda each: each[0])
def test_the_old_configuration_replays_and_discards_nothing(
    orders: Orders, command: tuple[str, ...], release: str
) -> None:
    orders.copy("--apply")
    if release != "this":
        orders.remove_mark()
    orders.repair()
    refused = orders.invoke("dead-letters", command[0], orders.old, "orders", *command[1:])
    assert refused.exit_code == 2, refused.output
    assert f"the leases of pipeline 'orders' were moved to {orders.folder / 'new.db'} at 2" in refused.stderr
    assert orders.states(orders.new) == ["open", "open"]
    orders.run("dead-letters", "replay", orders.new, "orders")
    assert (orders.handled, orders.states(orders.new)) == (4, ["replayed", "replayed"])
    assert "nothing to do" in orders.copy("--apply")


def test_a_replay_is_marked_before_it_has_leases_so_that_earlier_releases_start_none(orders: Orders) -> None:
    orders.copy("--apply")

    async def read() -> str:
        store = SqliteStore(orders.folder / "old.db")
        try:
            return (await store.read(control_id("orders" + REPLAY))).body
        finally:
            await store.close()

    assert '"state":"done"' in asyncio.run(read())
