"""KEDA counts what a group has left to do, and processors of other SDKs take over where a host stopped, and give back."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from interop.bench import PARTITIONS, Hub, numbered
from patience import until_async

from leasehold.service.group import import_sources
from leasehold.service.group.actions import pause_pipeline, resume_pipeline

ALL = len(PARTITIONS)


async def test_keda_sees_the_true_lag_from_zero_to_zero(go: str, hub: Hub) -> None:
    assert await hub.lag(go) == 0  # an empty hub, and no container yet
    await hub.append(range(10))
    assert await hub.lag(go) == 10 * ALL  # no pod has ever run: the first one starts
    await hub.drain()
    assert await hub.lag(go) == 0  # the last pod stops
    await hub.append(range(10, 17))
    assert await hub.lag(go) == 7 * ALL  # from zero
    await hub.drain()
    assert await hub.lag(go) == 0
    assert await hub.delivered() == numbered(range(17))


async def test_keda_follows_a_host_that_runs_pauses_and_resumes(go: str, hub: Hub) -> None:
    await hub.append(range(5))
    async with hub.host() as host:
        await hub.until_lag(go, 0)
        await pause_pipeline(host.keeper, "bank", by="a test", at="2026-01-31T12:00:00Z")
        await until_async(lambda: not host.host.workers)
        await hub.append(range(5, 8))
        assert await hub.lag(go) == 3 * ALL
        await resume_pipeline(host.keeper, "bank", by="a test", at="2026-01-31T12:01:00Z")
        await hub.until_lag(go, 0)


async def test_a_reset_while_no_pod_runs_starts_one(go: str, hub: Hub) -> None:
    await hub.append(range(10))
    await hub.drain()
    assert await hub.lag(go) == 0
    await hub.run("leases", "reset", str(hub.file), "bank", "--all", "--to", "earliest", "--yes")
    assert await hub.lag(go) == 10 * ALL
    await hub.drain()
    assert await hub.lag(go) == 0


@pytest.fixture(params=["java", "go"])
def consumer(request: pytest.FixtureRequest) -> Sequence[str]:
    """The command line of a processor of that SDK."""
    found = request.getfixturevalue(request.param)
    return [found, "consume"] if request.param == "go" else list(found)


async def test_a_processor_of_an_sdk_and_a_host_continue_exactly_behind_each_other(
    consumer: Sequence[str], hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_sources, "CLAIM_S", 2.0)  # they claim every second
    await hub.append(range(10))
    await hub.drain()
    await hub.append(range(10, 20))
    assert await hub.consume(consumer, 10 * ALL) == numbered(range(10, 20))
    await hub.append(range(20, 30))
    line = ("--pipeline", "bank", "--from", "checkpointstore", "--container", hub.container, "--apply")
    await hub.run("leases", "import", str(hub.file), *line)
    await hub.drain()
    assert await hub.delivered() == numbered(range(10), range(20, 30))
    await hub.append(range(30, 35))
    assert await hub.consume(consumer, 5 * ALL) == numbered(range(30, 35))
