"""How far a replay got, as its leases and its sink have it, whatever of the two cannot be read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from leasehold.common.standing import Standing
from leasehold.leases.document import encode_lease, lease_id
from leasehold.leases.lease import Lease
from leasehold.leases.stores.sqlite import SqliteStore
from leasehold.pipeline.connectors.log import LogOutputSink
from leasehold.pipeline.dead_letters.settled import Replayed
from leasehold.pipeline.sink import Claim, Output
from leasehold.service.cli.replayed import furthest, read_replayed
from leasehold.service.config import load as config
from leasehold.service.config.settings import Settings

LEASE = Lease(pipeline="orders.replay", partition="a", epoch=1, continuation="4")


def settings_of(tmp_path: Path, leases: str = "{type: sqlite, path: leases.db}") -> Settings:
    (tmp_path / "orders.yaml").write_text(
        f"""
leases: {leases}
pipelines:
  - name: orders
    feed: {{type: files, path: "orders-*.jsonl"}}
    sink: {{type: log, path: out}}
    dead_letters: {{type: log, path: dead}}
"""
    )
    return config.load(tmp_path / "orders.yaml", {})


def compare(a: str | None, b: str | None) -> int:
    return int(a or -1) - int(b or -1)


async def read(settings: Settings) -> Replayed:
    return await read_replayed(settings, settings.pipelines[0], compare)


async def leases(tmp_path: Path, *found: Lease) -> None:
    store = SqliteStore(tmp_path / "leases.db")
    for lease in found:
        await store.create(lease_id(lease.pipeline, lease.partition), encode_lease(lease))
    await store.close()


async def test_where_no_replay_ran_there_are_no_positions_and_nothing_is_created(tmp_path: Path) -> None:
    assert await read(settings_of(tmp_path)) == Replayed({})
    assert not (tmp_path / "leases.db").exists()
    await leases(tmp_path, replace(LEASE, pipeline="orders"))
    assert await read(settings_of(tmp_path)) == Replayed({})


async def test_a_released_lease_says_how_far_the_replay_got(tmp_path: Path) -> None:
    await leases(tmp_path, LEASE, replace(LEASE, partition="b", continuation=None))
    assert await read(settings_of(tmp_path)) == Replayed({"a": "4", "b": None})
    assert not (tmp_path / "out").exists(), "its sink was not asked"


async def test_of_a_replay_that_was_killed_the_sink_says_how_far_it_got(tmp_path: Path) -> None:
    sink = LogOutputSink(tmp_path / "out")
    await sink.prepare()
    claim: dict[str, Any] = {"pipeline": "orders.replay", "partition": "a", "owner": "host", "generation": 0}
    writer = await sink.open(Claim(**claim, epoch=1, continuation=None, state=sink.claimed(""), compare=compare))
    await writer.write(Output(table=pa.table({"body": [b"x"]}), start=None, to="7", events=1), _Trust())
    await writer.close("failed")
    await sink.close()
    await leases(tmp_path, replace(LEASE, owner="host", incarnation="1"))
    assert await read(settings_of(tmp_path)) == Replayed({"a": "7"})


class _Trust:
    def check(self) -> None: ...

    async def wait_until_granted(self) -> None: ...


@pytest.mark.parametrize(
    ("held", "position"),
    [
        (None, "4"),
        (Standing(0, "7"), "7"),
        (Standing(0, "3"), "4"),
        (Standing(1, "7"), "7"),
        (Standing(0, None), "4"),
    ],
)
def test_the_further_of_lease_and_sink_counts(held: Standing | None, position: str) -> None:
    assert furthest(LEASE, held, compare) == position


def test_a_lease_that_was_reset_outranks_what_the_sink_held_before() -> None:
    assert furthest(replace(LEASE, generation=1, continuation=None), Standing(0, "7"), compare) is None


async def test_a_sink_that_cannot_be_asked_makes_only_interrupted_replays_unknown(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("no directory")
    await leases(tmp_path, LEASE, replace(LEASE, partition="b", owner="host", incarnation="1"))
    found = await read(settings_of(tmp_path))
    assert found.unknown.keys() == {"b"}
    assert "the sink cannot report how far it got" in found.unknown["b"]
    assert (found.positions["a"], found.everything) == ("4", None)


async def test_leases_that_cannot_be_read_or_kept_make_every_state_unknown(tmp_path: Path) -> None:
    (tmp_path / "leases.db").write_text("my diary, of more than a hundred bytes" * 10)
    found = await read(settings_of(tmp_path))
    assert "cannot be used (file is not a database)" in str(found.everything)
    found = await read(settings_of(tmp_path, "{type: memory}"))
    assert "does not keep how far a replay got" in str(found.everything)


async def test_one_unreadable_lease_leaves_the_others_known(tmp_path: Path) -> None:
    await leases(tmp_path, LEASE)
    store = SqliteStore(tmp_path / "leases.db")
    await store.create(lease_id("orders.replay", "b"), "{")
    await store.close()
    found = await read(settings_of(tmp_path))
    assert (dict(found.positions), found.unknown.keys()) == ({"a": "4"}, {"b"})
