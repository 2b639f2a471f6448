"""An owner that dies or freezes at whatever step: nothing is lost, and nothing comes twice, as DuckDB and Polars read it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from unit.pipeline.connectors.files.delta.owners import CASES, deliver, delivered_in, displaced, ending_at
from unit.pipeline.connectors.files.delta.tables import Permit, claim, numbers_in, output, sink_in
from unit.pipeline.connectors.files.sink.places import Killed

from leasehold.pipeline.crash_point import watch_points
from leasehold.pipeline.errors import Fenced, NotTrusted

TIMES_MAX = 12


@pytest.mark.parametrize(("point", "key"), CASES)
def test_an_owner_that_dies_at_a_step_leaves_what_the_next_one_finishes(
    tmp_path: Path, point: str, key: Sequence[str]
) -> None:
    asyncio.run(deliver(tmp_path / "before", 1, 2, key))
    for times in range(1, TIMES_MAX):
        path = tmp_path / str(times)
        died = False
        with ending_at(point, times):
            try:
                asyncio.run(deliver(path, 1, 3, key))
            except Killed:
                died = True
        asyncio.run(deliver(path, 2, 4, key))
        assert delivered_in(path, key) == [1, 2, 3, 4], f"{point}, time {times}"
        if not died:
            break
    assert died or times > 1 or point == "table claimed"


@pytest.mark.parametrize("times", [2, 3])
@pytest.mark.parametrize(("point", "key"), [case for case in CASES if case[0] != "table claimed"])
def test_an_owner_that_wakes_after_another_one_has_written_is_fenced(
    tmp_path: Path, point: str, key: Sequence[str], times: int
) -> None:
    path = tmp_path / "table"
    end = displaced(path, point, times, key)
    assert isinstance(end, Fenced), end
    assert end.epoch == 2
    asyncio.run(deliver(path, 3, 6, key))
    assert delivered_in(path, key) == [1, 2, 3, 4, 5, 6]


def test_an_owner_whose_trust_ends_between_file_and_commit_sends_nothing(tmp_path: Path) -> None:
    path = tmp_path / "table"

    async def write() -> None:
        sink = sink_in(path)
        writer = await sink.open(claim(1))
        await writer.write(output(0, 1), Permit())
        trusted = True

        def reach(name: str) -> None:
            nonlocal trusted
            trusted = trusted and name != "data file put"

        with watch_points(reach), pytest.raises(NotTrusted):
            await writer.write(output(1, 2), Permit(trusted=lambda: trusted))
        assert (numbers_in(path), writer.position) == ([1], "1")
        assert len(list(path.glob("*.parquet"))) == 1
        await writer.write(output(1, 2), Permit())
        await sink.close()

    asyncio.run(write())
    assert numbers_in(path) == [1, 2]
