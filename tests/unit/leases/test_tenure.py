"""Keeping a lease renewed: when, how often after failures, and what ends it."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lab.simulation.loop import VirtualClock

from leasehold.leases.errors import LeaseLost, StoreError, StoreUnavailable
from leasehold.leases.keeper import Keeper
from leasehold.leases.lease import Lease
from leasehold.leases.stores.memory import MemoryStore
from leasehold.leases.tenure import OwnedLease, keep_renewed, pause_before
from leasehold.leases.timing import Timing

TIMING = Timing()


class Store(MemoryStore):
    """Counts replaces. fails_until: it refuses them before that time; retry_after_s: and says when to come again."""

    def __init__(self) -> None:
        super().__init__()
        self.replaced_at: list[float] = []
        self.fails_until = 0.0
        self.retry_after_s: float | None = None
        self.rival = False

    async def replace(self, id: str, body: str, etag: str) -> str:
        now = VirtualClock().monotonic()
        self.replaced_at.append(now)
        if now < self.fails_until:
            raise StoreUnavailable("away", retry_after_s=self.retry_after_s)
        if self.rival:
            self._put(id, self._found(id).body)
        return await super().replace(id, body, etag)


class Case:
    def __init__(self) -> None:
        self.store, self.clock = Store(), VirtualClock()
        self.failures: list[tuple[type[StoreError], int]] = []

    def keeper(self, host: str = "a") -> Keeper:
        return Keeper(self.store, host=host, incarnation=f"{host}-1", clock=self.clock, timing=TIMING)

    async def taken(self) -> OwnedLease:
        await self.keeper().create(Lease(pipeline="p", partition="0"))
        owned = await self.keeper().take(await self.keeper().read("p", "0"), str)
        assert owned is not None
        self.store.replaced_at.clear()
        return owned

    def started(self, owned: OwnedLease) -> asyncio.Task[None]:
        return asyncio.create_task(
            keep_renewed(
                owned,
                clock=self.clock,
                timing=TIMING,
                rng=random.Random(3),
                failed=lambda error, attempt: self.failures.append((type(error), attempt)),
            )
        )


def gaps(times: list[float], since: float = 0.0) -> list[float]:
    return [later - earlier for earlier, later in zip([since, *times], times, strict=False)]


@pytest.mark.virtual
async def test_a_lease_is_renewed_within_every_renew_interval_and_not_much_more_often() -> None:
    case = Case()
    keeping = case.started(await case.taken())
    await case.clock.sleep(600)
    keeping.cancel()
    first, *others = gaps(case.store.replaced_at)
    assert 0.5 * TIMING.renew_s <= first <= TIMING.renew_s
    assert others == pytest.approx([TIMING.renew_s] * len(others))
    assert len(case.store.replaced_at) >= 35


@pytest.mark.virtual
async def test_a_lease_whose_checkpoints_come_often_needs_no_renewals() -> None:
    case = Case()
    owned = await case.taken()
    keeping = case.started(owned)
    for position in range(100):
        await case.clock.sleep(10)
        await owned.checkpoint(str(position), "")
    keeping.cancel()
    assert len(case.store.replaced_at) == 100


@pytest.mark.virtual
async def test_a_failed_renewal_is_tried_again_soon_and_ever_more_seldom() -> None:
    case = Case()
    owned = await case.taken()
    case.store.fails_until = 100
    keeping = case.started(owned)
    await case.clock.sleep(99)
    tries = gaps(case.store.replaced_at)[1:]
    assert tries[0] < TIMING.renew_s / 50
    assert 0.9 * TIMING.renew_s / 4 <= tries[-1] <= TIMING.renew_s / 4
    assert [attempt for _, attempt in case.failures] == list(range(1, len(case.failures) + 1))
    assert not owned.is_trusted
    await case.clock.sleep(TIMING.renew_s / 4 + 1)
    assert owned.is_trusted  # the old ETag still matched: no other host had taken it
    keeping.cancel()


@pytest.mark.virtual
@given(st.floats(0, 60), st.floats(0, 30))
async def test_any_outage_that_ends_well_within_the_trust_window_costs_no_trust(begins: float, lasts: float) -> None:
    case = Case()
    owned = await case.taken()
    keeping = case.started(owned)
    await case.clock.sleep(begins)
    case.store.fails_until = begins + lasts
    for _ in range(200):
        await case.clock.sleep(0.5)
        assert owned.is_trusted
    keeping.cancel()


@pytest.mark.virtual
@pytest.mark.parametrize("retry_after_s", [0.0, 3.0, 3600.0])
async def test_the_containers_wish_to_be_left_alone_is_heeded_up_to_a_renew_interval(retry_after_s: float) -> None:
    case = Case()
    owned = await case.taken()
    case.store.fails_until, case.store.retry_after_s = 200, retry_after_s
    keeping = case.started(owned)
    await case.clock.sleep(199)
    keeping.cancel()
    assert min(gaps(case.store.replaced_at)[1:]) >= min(retry_after_s, TIMING.renew_s)
    assert max(gaps(case.store.replaced_at)[1:]) <= 1.25 * TIMING.renew_s
    assert len(case.store.replaced_at) < 60


@pytest.mark.virtual
async def test_a_rival_that_writes_in_a_loop_is_given_way_to() -> None:
    case = Case()
    owned = await case.taken()
    case.store.rival = True
    keeping = case.started(owned)
    await case.clock.sleep(120)
    assert len(case.failures) < 60
    case.store.rival = False
    await case.clock.sleep(TIMING.renew_s)
    assert owned.is_trusted
    keeping.cancel()


@pytest.mark.virtual
async def test_a_lost_lease_ends_it() -> None:
    case = Case()
    keeping = case.started(await case.taken())
    await case.clock.sleep(5)
    assert await case.keeper("b").take(await case.keeper("b").read("p", "0"), str)
    with pytest.raises(LeaseLost) as lost:
        await keeping
    assert lost.value.taken_by == "b"


@pytest.mark.virtual
async def test_after_its_machine_slept_an_owner_renews_at_once_and_never_in_a_loop() -> None:
    class Jumping(VirtualClock):
        ahead_s = 0.0

        def monotonic(self) -> float:
            return super().monotonic() + self.ahead_s

    case = Case()
    case.clock = Jumping()
    owned = await case.taken()
    keeping = case.started(owned)
    await case.clock.sleep(1)
    case.clock.ahead_s = 3600
    assert not owned.is_trusted
    await case.clock.sleep(TIMING.renew_s)
    assert owned.is_trusted
    await case.clock.sleep(100)
    assert len(case.store.replaced_at) < 9
    keeping.cancel()


def test_once_the_leases_of_a_host_are_apart_each_is_renewed_no_sooner_than_it_has_to_be() -> None:
    firsts = {pause_before(0, 0, 0, TIMING, jitter / 10) for jitter in range(11)}
    assert (min(firsts), max(firsts)) == (TIMING.renew_s / 2, TIMING.renew_s)
    assert {pause_before(0, 0, 0, TIMING, n / 10, is_settled=True) for n in range(11)} == {TIMING.renew_s}


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.integers(1, 200), st.floats(0, 1))
def test_no_pause_after_a_failure_is_so_short_that_it_spins_or_so_long_that_trust_runs_out(
    renewed_at: float, now: float, attempt: int, jitter: float
) -> None:
    assert TIMING.renew_s / 80 < pause_before(renewed_at, now, attempt, TIMING, jitter) <= TIMING.renew_s / 4
