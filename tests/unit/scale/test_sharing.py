from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from lab.scale import sharing
from lab.scale.group import ScaleGroup, name_of, until
from lab.scale.sharing import compare
from lab.simulation.loop import run_virtual

from leasehold.leases import balance, host_watch, keeper, tenure
from leasehold.leases.bootstrap import Bootstrap
from leasehold.leases.keeper import Scan
from leasehold.leases.timing import Timing
from leasehold.service import partitions

HOSTS, LEASES = 5, 40
COUNTING = Timing(counted_above=10)
REPLACED = (
    (tenure, "decode_lease"),
    (host_watch, "decode_host"),
    (balance, "distribution_of"),
    (keeper, "_readable"),
    (keeper, "_unreadable"),
    (keeper, "versioned"),
    (partitions, "scopes_of"),
    (Bootstrap, "_audit_leases"),
)


@pytest.fixture(autouse=True)
def _restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sharing replaces functions of modules."""
    monkeypatch.setattr(sharing, "CHECKED_EVERY", 1)
    for module, name in REPLACED:
        monkeypatch.setattr(module, name, getattr(module, name))


async def lived(*, is_shared: bool) -> ScaleGroup:
    """A group in which a host joins, another one dies, and some minutes pass."""
    group = ScaleGroup(HOSTS, LEASES, timing=COUNTING, is_shared=is_shared)
    for number in range(HOSTS):
        group.start(name_of(number))
    assert await until(lambda: group.is_even) is not None
    await asyncio.sleep(90.0)
    group.start(name_of(HOSTS))
    assert await until(lambda: group.is_even) is not None
    await asyncio.sleep(30.0)
    await group.kill(name_of(0))
    assert await until(lambda: group.is_even) is not None
    await asyncio.sleep(180.0)
    await group.close()
    return group


def test_hosts_that_share_scans_request_what_others_request() -> None:
    alone, shared = (run_virtual(lived(is_shared=is_shared)) for is_shared in (False, True))
    assert shared.store.by_kind == alone.store.by_kind
    assert shared.store.cost == alone.store.cost
    assert {"changes", "count", "list"} <= {operation for operation, _ in shared.store.by_kind}
    assert (shared.moves, shared.said) == (alone.moves, alone.said)


async def scans() -> list[Scan]:
    """Of two hosts that read the same leases."""
    group = ScaleGroup(2, LEASES, timing=COUNTING, is_shared=True)
    for number in range(2):
        group.start(name_of(number))
    await until(lambda: group.is_even)
    await asyncio.sleep(60.0)
    found = [each.host.balancer.reader.scan for each in group.hosts.values()]
    await group.close()
    return [scan for scan in found if scan is not None]


def test_hosts_share_what_their_scans_show() -> None:
    one, other = run_virtual(scans())
    assert one is not other
    assert one.seen is other.seen
    assert one.shape is other.shape


def test_a_scan_that_a_host_would_not_have_made_is_found() -> None:
    scan, _ = run_virtual(scans())
    compare(scan, replace(scan))
    fewer = dict(list(scan.seen.items())[1:])
    with pytest.raises(AssertionError, match="other seen than"):
        compare(scan, replace(scan, seen=fewer))
