"""A lease store that refuses: hosts ask it less often, and it recovers by itself."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from math import inf
from statistics import mean

import pytest
from lab.simulation.group import Group, until
from lab.simulation.quota import Quota
from lab.simulation.weather import Container, Fate, Request, of

from leasehold.leases.document import encode_lease, lease_id, lease_prefix
from leasehold.leases.errors import StoreUnavailable
from leasehold.leases.host_record import HOSTS_PREFIX
from leasehold.leases.lease import Lease
from leasehold.leases.side_by_side import AT_ONCE_MAX
from leasehold.leases.store import Stored
from leasehold.leases.timing import Timing

MINUTE = 60.0
HOSTS = 8


def lists_leases(request: Request) -> bool:
    return request.operation == "list" and request.id == lease_prefix("bank")


def reads_leases(request: Request) -> bool:
    return request.operation in ("list", "changes") and request.id == lease_prefix("bank")


def now() -> float:
    return asyncio.get_running_loop().time()


def rate(group: Group, kind: Callable[[Request], bool], since: float, until_: float) -> float:
    """Requests a second."""
    return sum(since <= at < until_ for at in group.asked(kind)) / (until_ - since)


async def settled(leases: int = 8, hosts: int = HOSTS, timing: Timing | None = None) -> Group:
    group = Group([f"p{n}" for n in range(leases)], timing=timing)
    for n in range(hosts):
        await group.start(f"host-{n}")
    await until(group.is_balanced)
    await asyncio.sleep(5 * MINUTE)
    return group


@pytest.mark.virtual
@pytest.mark.parametrize(("kind", "pages"), [(lists_leases, 2), (of("store"), 1), (of("store"), 4)])
async def test_listings_recover_from_a_disturbance_though_refused_ones_cost_half_of_the_room(
    kind: Callable[[Request], bool], pages: int
) -> None:
    """The container has one and a half times the units that a calm group needs."""
    group = await settled()
    began = now()
    calm = rate(group, kind, began - 5 * MINUTE, began)
    listed = rate(group, lambda request: kind(request) and request.operation == "list", began - 5 * MINUTE, began)
    quota = Quota(1.5 * (calm + (pages - 1) * listed), list_pages=pages, closes=began, opens=began + 10)
    group.weather.judge = lambda request: (kind(request) and quota.fate(request, now())) or Fate()
    await asyncio.sleep(30 * MINUTE)
    assert quota.refused > 0
    assert min(quota.succeeded, default=inf) <= began + 10 + 2 * MINUTE
    assert rate(group, kind, began, began + 10) <= 2 * calm, "while the container refused everybody"
    for n in range(30):
        minute = began + n * MINUTE
        assert rate(group, kind, minute, minute + MINUTE) <= 2 * calm, f"minute {n}"
    last = [at for at in quota.succeeded if at >= began + 20 * MINUTE]
    listings = lists_leases if kind is lists_leases else of("store", "list")
    assert len(last) >= 0.95 * len([at for at in group.asked(listings) if at >= began + 20 * MINUTE])


@pytest.mark.virtual
@pytest.mark.parametrize("timing", [Timing()])
async def test_while_the_container_refuses_listings_they_come_no_more_than_twice_as_often_as_rounds(
    timing: Timing,
) -> None:
    group = await settled(hosts=4, timing=timing)
    calm = 4 / timing.balance_s
    began = now()
    group.weather.judge = lambda request: Fate(ends="refused" if lists_leases(request) else "ok")
    await asyncio.sleep(10 * MINUTE)
    assert rate(group, lists_leases, began, now()) <= 2 * calm


@pytest.mark.virtual
async def test_while_listings_are_refused_leases_of_a_dead_host_are_taken_and_listings_stay_rare() -> None:
    group = await settled(hosts=4)
    began = now()
    group.weather.judge = lambda request: Fate(ends="refused", retry_after_s=1.0) if lists_leases(request) else Fate()
    await asyncio.sleep(10 * MINUTE)
    assert rate(group, lists_leases, began, now()) <= 4 / Timing().audit_s
    await group.hosts[0].kill()
    await until(group.is_balanced, within_s=10 + 5)


@pytest.mark.virtual
async def test_while_all_readings_are_throttled_hosts_try_a_reading_of_changes_and_rarely_a_listing() -> None:
    group = await settled(hosts=4)
    began = now()
    group.weather.judge = lambda request: Fate(ends="refused", retry_after_s=1.0) if reads_leases(request) else Fate()
    await asyncio.sleep(10 * MINUTE)
    listed = rate(group, lists_leases, began, now())
    assert 0 < listed <= 4 / Timing().audit_s
    assert rate(group, reads_leases, began, now()) > 3 * listed


class Refusing(Container):
    """Refuses what `kind` says from then on, and wants to be left alone for so long."""

    kind: Callable[[str, str], bool] = staticmethod(lambda operation, name: False)
    retry_after_s = 40.0

    async def list(self, prefix: str) -> list[Stored]:
        self._check("list", prefix)
        return await super().list(prefix)

    async def read(self, id: str) -> Stored:
        self._check("read", id)
        return await super().read(id)

    async def replace(self, id: str, body: str, etag: str) -> str:
        self._check("replace", id)
        return await super().replace(id, body, etag)

    def __init__(self, group: Group) -> None:
        super().__init__(group.weather)
        self.refused: list[float] = []

    def _check(self, operation: str, id: str) -> None:
        if self.kind(operation, id):
            self.refused.append(now())
            raise StoreUnavailable("throttled", retry_after_s=self.retry_after_s)


@pytest.mark.virtual
@pytest.mark.parametrize(
    "kind",
    [
        lambda operation, name: (operation, name) == ("list", lease_prefix("bank")),
        lambda operation, name: operation == "replace" and name.startswith(HOSTS_PREFIX),
        lambda operation, name: (operation, name) == ("read", "bank/info"),
    ],
    ids=["a scan", "a host's document", "the bootstrap"],
)
async def test_nothing_but_a_renewal_comes_again_before_the_container_wants_it(
    kind: Callable[[str, str], bool],
) -> None:
    group = Group("ab")
    store = group.store = Refusing(group)
    store.kind = kind
    group.started("host-a")
    await asyncio.sleep(10 * MINUTE)
    assert len(store.refused) > 5
    assert min(later - earlier for earlier, later in pairwise(store.refused)) >= store.retry_after_s - 1e-9


@pytest.mark.virtual
async def test_renewals_are_not_kept_waiting_by_scans_that_are_refused() -> None:
    group = await settled(hosts=2)
    epochs = group.epochs
    began = now()
    group.weather.judge = lambda request: Fate(ends="refused" if request.operation == "list" else "ok")
    while now() < began + 10 * MINUTE:
        assert all(worker.owned.is_trusted for each in group.alive for worker in each.host.workers.values())
        await asyncio.sleep(1)
    assert group.epochs == epochs


@pytest.mark.virtual
async def test_hosts_that_are_refused_together_do_not_return_together() -> None:
    group = await settled()
    group.weather.down.add(("", "store"))
    for each in group.alive:
        each.host.wake()
    began = now()
    await asyncio.sleep(5 * MINUTE)
    assert len([at for at in group.asked(reads_leases) if began <= at < began + 1]) >= HOSTS
    asked = group.asked(lists_leases)
    in_second = Counter(int(at) for at in asked if at >= began + 1)
    assert mean(in_second.values()) < 2, "without jitter it is the number of hosts"


@pytest.mark.virtual
@pytest.mark.parametrize(("timing", "most_s"), [(Timing(), 10 + 5)])
async def test_hundreds_of_leases_of_a_dead_host_are_taken_within_the_promised_bound(
    timing: Timing, most_s: float
) -> None:
    group = Group([f"p{n:04}" for n in range(1000)], timing=timing)
    await group.start("host-a")
    b = await group.start("host-b")
    await until(group.is_balanced, within_s=20 * MINUTE)
    group.weather.judge = lambda request: Fate(late_s=0.06)
    await asyncio.sleep(MINUTE)
    before = now()
    await b.kill()
    await until(lambda: group.shares["host-a"] == 1000, within_s=10 * MINUTE)
    assert now() - before <= most_s


def refusing_takes() -> tuple[Group, Refusing]:
    """Fifty free leases, and a container that refuses every take."""
    group = Group([f"p{n:02}" for n in range(50)])
    for name in group.feed._logs:
        group.put(lease_id("bank", name), encode_lease(Lease(pipeline="bank", partition=name)))
    store, documents = Refusing(group), group.store._documents
    group.store, store._documents = store, documents
    store.kind = lambda operation, name: operation == "replace" and name.startswith(lease_prefix("bank"))
    return group, store


@pytest.mark.virtual
async def test_after_the_container_wants_to_be_left_alone_the_rest_of_a_round_is_skipped() -> None:
    group, store = refusing_takes()
    host = group.started("host-a")
    await until(lambda: store.refused)
    listed = len(group.asked(lists_leases))
    await asyncio.sleep(store.retry_after_s - 1)
    assert len(store.refused) <= AT_ONCE_MAX
    assert len(group.asked(lists_leases)) == listed
    assert len(host.said("taking a lease failed")) == 1
    store.kind = lambda operation, name: False
    await until(group.is_balanced, within_s=5)
    await until(lambda: host.said("taking leases recovered"), within_s=5)


@pytest.mark.virtual
async def test_a_take_that_is_refused_again_also_keeps_the_container_alone() -> None:
    group, store = refusing_takes()
    group.started("host-a")
    await asyncio.sleep(10 * MINUTE)
    listed = group.asked(lists_leases)
    assert len(store.refused) > 5
    assert min(later - earlier for earlier, later in pairwise(store.refused)) >= store.retry_after_s - 1e-9
    for refused in store.refused:
        assert not [at for at in listed if refused <= at < refused + store.retry_after_s]


@pytest.mark.virtual
async def test_a_probe_comes_no_sooner_than_the_container_wants_it() -> None:
    group = Group("ab")
    store = group.store = Refusing(group)
    store.retry_after_s = 12.0
    await group.start("host-a")
    await until(group.is_balanced)
    group.weather.down.add(("", "sink"))
    store.kind = lambda operation, name: operation == "replace" and name.startswith(lease_prefix("bank"))
    for partition in "ab":
        group.append(partition, 5)
    await asyncio.sleep(10 * MINUTE)
    probes = group.asked(of("sink", "standing"))
    assert len(probes) > 5
    for refused in store.refused:
        assert not [at for at in probes if refused < at < refused + store.retry_after_s - 1e-9]


@pytest.mark.virtual
async def test_a_listing_that_uses_up_what_takes_need_does_not_keep_leases_from_being_taken() -> None:
    """The container has something to give again two seconds after each reading. Each round reads, as a document is unreadable."""
    group = Group("abc")
    for name in group.feed._logs:
        group.put(lease_id("bank", name), encode_lease(Lease(pipeline="bank", partition=name)))
    group.put(lease_id("bank", "d"), "{")

    def judge(request: Request) -> Fate:
        is_take = request.operation == "replace" and request.id.startswith(lease_prefix("bank"))
        listed = group.asked(reads_leases)
        if is_take and not host.host.workers and now() < listed[-1] + 2:
            return Fate(ends="refused", retry_after_s=2.0)
        return Fate()

    group.weather.judge = judge
    host = group.started("host-a")
    await until(lambda: len(host.host.workers) == 3, within_s=5 * MINUTE)


@pytest.mark.virtual
@pytest.mark.parametrize("timing", [Timing()])
async def test_the_log_of_an_outage_grows_with_its_logarithm_and_ends_with_a_recovery(timing: Timing) -> None:
    group = await settled(leases=4, hosts=1, timing=timing)
    [host] = group.hosts
    host.log.clear()
    group.weather.down.add(("", "store"))
    began = now()
    for partition in group.owners:
        group.append(partition, 3)
    await asyncio.sleep(30 * MINUTE)
    told = [entry for entry in host.log if entry["level"] == "warning"]
    assert max(Counter((each["event"], each.get("partition")) for each in told).values()) <= 12
    writes = len(group.asked(lambda request: request.operation == "replace"))
    assert writes > 500 > len(told)
    group.weather.down.clear()
    kept_alive = "heartbeat"
    await until(lambda: all(host.said(f"{what} recovered") for what in (kept_alive, "scan")))
    for recovered in host.said(f"{kept_alive} recovered"):
        assert recovered["failing_for_s"] == pytest.approx(now() - began, abs=2 * MINUTE)


@pytest.mark.virtual
@pytest.mark.parametrize("apart_s", [0.0, 0.02, 0.3])
async def test_hosts_that_start_together_do_not_all_create_the_same_leases(apart_s: float) -> None:
    group = Group([f"p{n:04}" for n in range(1024)])
    group.weather.judge = lambda request: Fate(late_s=0.02)
    for n in range(32):
        group.started(f"host-{n:02}")
        await asyncio.sleep(apart_s)
    await until(lambda: len(group.leases) == 1024, within_s=2 * MINUTE)
    creations = group.asked(lambda request: request.operation == "create" and request.id.startswith("bank/leases/"))
    assert len(creations) <= 1.2 * 1024
    assert not [each for running in group.hosts for each in running.log if each["level"] == "warning"]
