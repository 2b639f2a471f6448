"""How often a metered feed is listed: hosts and pipelines that share one share the pace."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any

import pytest
from lab.simulation.loop import VirtualClock

from leasehold.leases.bootstrap import Identity
from leasehold.leases.timing import Timing
from leasehold.pipeline.feed import FeedPartition
from leasehold.service.partitions import Partitions
from leasehold.service.runtime import Runtime


class Metered:
    is_metered = True
    listings = 0

    def __init__(self, identity: str) -> None:
        self.identity = identity

    async def partitions(self) -> list[FeedPartition]:
        type(self).listings += 1
        return [FeedPartition("0")]


@pytest.mark.virtual
@pytest.mark.parametrize(("hubs", "expected"), [(["a"], 61), (["a"] * 8, 68), (["a"] * 4 + ["b"] * 4, 128)])
async def test_pipelines_over_one_hub_list_it_once_a_second_together(
    hubs: list[str], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Metered, "listings", 0)
    pipelines: dict[str, Any] = {
        f"p{n}": SimpleNamespace(name=f"p{n}", feed=Metered(hub), identity=Identity("feed", "sink", ""))
        for n, hub in enumerate(hubs)
    }
    nothing: Any = None
    of_host = Partitions(
        pipelines,
        SimpleNamespace(store=None),  # type: ignore[arg-type]
        runtime=Runtime(clock=VirtualClock(), timing=Timing(), rng=random.Random(1), log=nothing, stats=nothing),
        report=lambda *_: None,
        orphaned=lambda *_: None,
        wake=lambda: None,
    )
    scan: Any = SimpleNamespace(by_pipeline={})
    for _ in range(601):  # a minute
        for each in pipelines.values():
            await of_host._list(each, scan, 1)
        await asyncio.sleep(0.1)
    assert Metered.listings <= expected
