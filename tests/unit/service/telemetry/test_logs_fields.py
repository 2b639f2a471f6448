"""A line about a lease says which lease and epoch, and one about a batch from where to where: by them logs are put together."""

from __future__ import annotations

import ast
import asyncio
import json
import logging
from pathlib import Path

import pytest
import structlog
from lab.simulation.group import Group, until
from lab.simulation.weather import Fate, Request

from leasehold.common.clock import BootClock
from leasehold.leases.errors import StoreUnavailable
from leasehold.leases.lease import Lease
from leasehold.leases.tenure import VersionedLease
from leasehold.pipeline.pump.run_parts import DeliveredBatch
from leasehold.service.config.settings import LogSettings
from leasehold.service.stats import Stats
from leasehold.service.telemetry import logs

ROOT = Path(__file__).parents[4]
LEASE = {"pipeline", "partition", "epoch"}
EVENTS = {
    *(
        "lease acquired",
        "lease released",
        "handoff requested",
        "handoff request received",
        "renewal failed",
        "suspended",
    ),
    *("partition failed, retrying", "asking for a lease failed"),
}


@pytest.mark.virtual
async def test_what_hosts_say_of_a_lease_names_it_and_its_epoch_through_failures_and_moves() -> None:
    group, refused = Group("abcdef"), set[str]()

    def judge(request: Request) -> Fate:
        is_refused = request.operation in refused and ("hosts" not in request.id or "beats" in refused)
        return Fate(ends="refused" if is_refused else "ok")

    async def away(seen: VersionedLease) -> None:
        raise StoreUnavailable("away")

    def appended() -> None:
        for partition in group.owners:
            group.append(partition, 3)

    group.weather.judge = judge
    a, b = await group.start("host-a"), await group.start("host-b")
    await until(group.is_balanced)
    c = group.started("host-c")
    c.host.balancer._keeper.ask = away  # type: ignore[method-assign]
    await until(lambda: c.said("asking for a lease failed"))
    refused.update(("replace", "beats"))
    await asyncio.sleep(group.timing.duration_s)
    appended()
    await until(lambda: a.said("suspended"))
    refused.remove("beats")
    await until(lambda: a.said("renewal failed"))
    refused.clear()
    del c.host.balancer._keeper.ask  # type: ignore[attr-defined]
    await until(group.is_balanced)
    refused.add("write")
    appended()
    await until(lambda: a.said("partition failed, retrying"))
    refused.clear()
    await until(group.is_delivered)
    for host in (c, b, a):
        await host.stop()
    said = [entry for host in (a, b, c) for entry in host.log]
    assert {entry["event"] for entry in said} >= EVENTS
    for entry in said:
        if entry["event"] in EVENTS or "partition" in entry:
            assert entry.keys() >= LEASE, entry
    assert all("position" in entry for entry in said if entry["event"] == "partition failed, retrying")


def test_no_line_of_the_service_about_a_partition_leaves_out_its_epoch() -> None:
    """Where a lease cannot be read its epoch is not known, and that is said in one place."""
    found = []
    for path in sorted((ROOT / "service").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and "log" in ast.unparse(node.func.value)
            ):
                names = {keyword.arg for keyword in node.keywords}
                if "partition" in names and not names >= LEASE:
                    found.append(f"{path.name}, line {node.lineno}: {ast.unparse(node)}")
    assert not found


def test_a_batch_is_a_line_of_json_with_its_positions(tmp_path: Path, clock: BootClock) -> None:
    file = tmp_path / "host.log"
    try:
        logs.configure(LogSettings(file=file, format="json", level="debug"), "host-a")
        stats = Stats(clock, logs.logger())
        batch = DeliveredBatch(start="90", to="97", events=7, waited_s=1, transform_s=2, queued_s=3, deliver_s=4)
        stats.record_batch(Lease(pipeline="bank", partition="7", epoch=4), batch)
    finally:
        structlog.reset_defaults()
        for handler in [each for each in logging.getLogger().handlers if each.name == "leasehold"]:
            logging.getLogger().removeHandler(handler)
            handler.close()
    (line,) = [json.loads(text) for text in file.read_text().splitlines()]
    assert line.pop("time")
    assert line == {
        "level": "debug",
        "host": "host-a",
        "event": "batch delivered",
        "pipeline": "bank",
        "partition": "7",
        "epoch": 4,
        "start": "90",
        "to": "97",
        "events": 7,
        "waited_s": 1,
        "transform_s": 2,
        "deliver_s": 4,
        "dead_letters": 0,
    }


def test_nothing_is_said_of_batches_above_debug(clock: BootClock) -> None:
    with structlog.testing.capture_logs() as said:
        batch = DeliveredBatch(start=None, to="1", events=1, waited_s=0, transform_s=0, deliver_s=0)
        for level, lines in (("info", 0), ("debug", 1)):
            log = structlog.wrap_logger(
                structlog.PrintLogger(),
                wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
                processors=structlog.get_config()["processors"],
            )
            Stats(clock, log).record_batch(Lease(pipeline="bank", partition="7"), batch)
            assert len(said) == lines
