"""One owned lease at work: claims, what fails and is tried again, checkpoints, and what is never sent."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pyarrow as pa
import pytest
from lab.simulation.group import Group, Tenure, always, until
from lab.simulation.weather import Container, Fate, Once, Outlet, Request, Weather, of

from leasehold.leases.document import decode_lease
from leasehold.leases.errors import StoreUnavailable
from leasehold.pipeline.batch import Batch
from leasehold.pipeline.connectors.memory import MemoryChangeFeed
from leasehold.pipeline.errors import Ambiguous, EngineUnavailable, FeedUnavailable, Fenced, SinkUnavailable
from leasehold.pipeline.event import Page
from leasehold.pipeline.limits import BatchLimits
from leasehold.pipeline.sink import Claim, Output, Permit
from leasehold.pipeline.transform import NoTransform
from leasehold.service.permit import TrustPermit

ONE = BatchLimits(events_max=1)


async def stopped(tenure: Tenure) -> None:
    tenure.worker.stop()
    outcome = await tenure.task
    assert (outcome.reason, outcome.error) == ("shutdown", None)


class Leveled(Outlet):
    """Keeps an owner level and a count in its state, as Protocol F does: a claim raises the level, a write the count."""

    def claimed(self, state: str) -> str:
        level, count = json.loads(state or "[0, 0]")
        return json.dumps([level + 1, count])

    async def open(self, claim: Claim) -> Any:
        self.destination.claims.append((claim.epoch, json.loads(claim.state)[0]))  # type: ignore[attr-defined]
        writer = await super().open(claim)
        plain = writer.write

        async def write(output: Output, permit: Permit) -> None:
            await plain(output, permit)
            level, count = json.loads(writer.state)
            writer.state = json.dumps([level, count + 1])

        writer.write = write  # type: ignore[method-assign]
        writer.state = json.dumps([json.loads(claim.state)[0], len(self.destination.commits)])
        return writer


class Ledger(Container):
    """Every lease that was ever written."""

    def __init__(self, weather: Weather) -> None:
        super().__init__(weather)
        self.written: list[Any] = []

    def _put(self, id: str, body: str) -> Any:
        if "/leases/" in id:
            self.written.append(decode_lease(id, body))
        return super()._put(id, body)


def leveled(**settings: Any) -> Group:
    group = Group("a", **settings)
    group.destination.claims = []  # type: ignore[attr-defined]
    group._sink = lambda: Leveled(group.destination, group.weather)
    group.store = Ledger(group.weather)
    return group


# Claiming


@pytest.mark.virtual
async def test_a_partition_is_worked_through_from_where_its_sink_stands() -> None:
    group = Group("a")
    group.append("a", 10)
    first = await group.tenure()
    await until(group.is_delivered)
    await stopped(first)
    group.edit("a", lambda lease: lease.checkpointed("3", ""))  # the lease may lag; the sink knows
    group.append("a", 10)
    second = await group.tenure()
    await until(group.is_delivered)
    await stopped(second)


@pytest.mark.virtual
async def test_the_claim_stands_in_the_lease_before_anything_is_sent() -> None:
    group = leveled(limits=ONE)
    group.append("a", 3)
    first = await group.tenure()
    await until(group.is_delivered)
    first.task.cancel()
    await asyncio.wait({first.task})
    group.edit("a", lambda lease: lease.checkpointed("1", json.dumps([1, 1])))
    group.append("a", 1)
    claims: list[tuple[str | None, str]] = []

    def judge(request: Request) -> Fate:
        if of("sink", "write")(request):
            claims.append((group.leases["a"].continuation, group.leases["a"].sink_state))
        return Fate(late_s=0.2)

    group.weather.judge = judge
    second = await group.tenure()
    await until(group.is_delivered)
    assert claims[0] == ("3", "[2, 3]")
    await stopped(second)


@pytest.mark.virtual
async def test_an_older_epoch_than_the_sinks_is_raised_above_it() -> None:
    group = Group("a")
    group.append("a", 3)
    group.destination._epochs["bank", "a"] = 7
    tenure = await group.tenure()
    took = await until(group.is_delivered)
    assert (group.epochs["a"], took < 1) == (8, True)
    assert {commit.claim.epoch for commit in group.destination.commits} == {8}
    await stopped(tenure)


# Failing, and trying again


@pytest.mark.virtual
@pytest.mark.parametrize("ends", ["lost", "ghost", "late"])
@pytest.mark.parametrize("at", range(4))
async def test_after_an_ambiguous_write_the_epoch_is_raised_before_anything_else_is_sent(ends: str, at: int) -> None:
    group = Group("a", limits=ONE)
    group.append("a", 4)
    faults = Once(of("sink", "write"), *["ok"] * at, ends, late_s=0.5)
    epochs: list[int] = []

    def judge(request: Request) -> Fate:
        if request.where == "sink" and not faults.ends:
            epochs.append(group.epochs["a"])
        return faults(request)

    group.weather.judge = judge
    tenure = await group.tenure()
    await until(lambda: group.destination.commits and group.destination.commits[-1].output.to == "4")
    await asyncio.sleep(5)
    assert group.is_delivered()  # once each: neither lost nor sent twice
    assert set(epochs) == {2}
    await stopped(tenure)


@pytest.mark.virtual
@pytest.mark.parametrize("failures", [1, 2, 5])
@pytest.mark.parametrize("operation", ["open", "write"])
async def test_a_sink_that_is_away_is_tried_again_ever_more_seldom(operation: str, failures: int) -> None:
    group = Group("a")
    group.append("a", 3)
    group.weather.judge = Once(of("sink", operation), *["refused"] * failures)
    tenure = await group.tenure()
    took = await until(group.is_delivered)
    assert 0.05 * 2 ** (failures - 1) <= took <= 0.1 * 2**failures + 1
    assert len(tenure.said("partition failed, retrying")) == failures
    await stopped(tenure)


class Following(Outlet):
    """The first `follow` of a writer raises this, and first waits for `goes_on`."""

    def __init__(self, group: Group, error: Exception, goes_on: Callable[[], object] = lambda: True) -> None:
        super().__init__(group.destination, group.weather)
        self.errors = [error]
        self.goes_on = goes_on

    async def open(self, claim: Claim) -> Any:
        writer = await super().open(claim)

        async def follow() -> None:
            if self.errors:
                error = self.errors.pop()
                await until(self.goes_on)
                raise error

        writer.follow = follow  # type: ignore[method-assign]
        return writer


@pytest.mark.virtual
@pytest.mark.parametrize("error", [Fenced("another owner", epoch=4), Ambiguous("no answer"), SinkUnavailable("away")])
async def test_an_idle_owner_whose_writer_fails_claims_again_with_a_higher_epoch(error: Exception) -> None:
    group = Group("a")
    tenure = await group.tenure(sink=Following(group, error))
    group.append("a", 3)
    await until(lambda: len(group.asked(of("sink", "open"))) == 2)
    assert group.is_delivered()
    assert group.epochs["a"] == (5 if isinstance(error, Fenced) else 2)
    group.append("a", 2)
    await until(group.is_delivered)
    assert len(group.asked(of("sink", "open"))) == 2
    await stopped(tenure)


@pytest.mark.virtual
async def test_a_batch_that_is_written_while_an_idle_writer_fails_arrives_once() -> None:
    group = Group("a", limits=ONE)
    sink = Following(group, Ambiguous("no answer"), lambda: group.asked(of("sink", "write")))
    tenure = await group.tenure(sink=sink)
    group.weather.judge = lambda request: Fate(late_s=2.0 if of("sink", "write")(request) else 0.005)
    await until(lambda: not sink.errors)
    group.append("a", 3)
    await until(group.is_delivered)
    assert len(group.asked(of("sink", "open"))) == 2
    assert [commit.claim.epoch for commit in group.destination.commits] == [1, 2, 2]
    await stopped(tenure)


@pytest.mark.virtual
async def test_what_an_abandoned_writer_raises_late_does_not_concern_its_successor() -> None:
    group = Group("a")
    sink = Following(group, Ambiguous("no answer"), lambda: len(group.asked(of("sink", "open"))) > 1)
    tenure = await group.tenure(sink=sink)
    await until(lambda: not sink.errors)
    group.weather.judge = Once(of("sink", "write"), "refused")
    group.append("a", 1)
    await until(group.is_delivered)
    await asyncio.sleep(100)
    assert len(group.asked(of("sink", "open"))) == 2
    await stopped(tenure)


class Away:
    """Fails a few times. kind: what to raise."""

    def __init__(self, times: int, kind: Callable[[], Exception]) -> None:
        self.times, self.kind, self.at = times, kind, list[float]()

    def pass_by(self) -> None:
        if len(self.at) < self.times:
            self.at.append(asyncio.get_running_loop().time())
            raise self.kind()


class AwayTransform(NoTransform):
    def __init__(self, away: Away) -> None:
        self.away = away

    async def apply(self, batch: Batch) -> pa.Table:
        self.away.pass_by()
        return batch.table


class AwayFeed(MemoryChangeFeed):
    def __init__(self, away: Away) -> None:
        super().__init__("a")
        self.away = away

    async def open(self, partition: str, continuation: str | None) -> AsyncGenerator[Page, None]:
        self.away.pass_by()
        async for page in super().open(partition, continuation):
            yield page


@pytest.mark.virtual
@pytest.mark.parametrize("where", ["feed", "transform"])
async def test_a_feed_or_an_engine_that_is_away_is_tried_again(where: str) -> None:
    away = Away(4, lambda: FeedUnavailable("away") if where == "feed" else EngineUnavailable("died"))
    group = Group("a")
    if where == "feed":
        group.feed = AwayFeed(away)  # type: ignore[assignment]
    group.append("a", 3)
    settings = {"transform": AwayTransform(away)} if where == "transform" else {}
    tenure = await group.tenure(**settings)
    await until(group.is_delivered)
    assert len(away.at) == 4
    await stopped(tenure)


@pytest.mark.virtual
@pytest.mark.parametrize("retry_after_s", [0.0, -1.0, 7.0])
async def test_what_a_system_says_of_when_to_come_again_is_a_least_and_never_a_reason_to_spin(
    retry_after_s: float,
) -> None:
    away = Away(5, lambda: SinkUnavailable("throttled", retry_after_s=retry_after_s))
    group = Group("a")
    group.append("a", 1)
    tenure = await group.tenure(transform=AwayTransform(away))
    await until(group.is_delivered)
    gaps = [later - earlier for earlier, later in zip(away.at, away.at[1:], strict=False)]
    assert all(gap >= max(retry_after_s, 0.05) for gap in gaps)
    await stopped(tenure)


@pytest.mark.virtual
@pytest.mark.parametrize("retry_after_s", [0.0, 20.0])
async def test_a_pause_ends_as_soon_as_a_try_may_succeed_unless_the_system_named_a_time(retry_after_s: float) -> None:
    away = Away(9, lambda: SinkUnavailable("away", retry_after_s=retry_after_s))
    group = Group("a")
    group.append("a", 1)
    tenure = await group.tenure(transform=AwayTransform(away))
    await until(lambda: len(away.at) == 8)
    asked_at = away.at[-1] + 0.5
    await asyncio.sleep(0.5)
    tenure.worker.retry_now()
    await until(group.is_delivered)
    assert away.at[8] - asked_at == pytest.approx(19.5 if retry_after_s else 0.0, abs=0.3)
    await stopped(tenure)


@pytest.mark.virtual
async def test_an_attempt_that_began_too_early_is_followed_by_one_without_a_pause() -> None:
    def away() -> SinkUnavailable:
        if len(source.at) == 8:
            tenure.worker.retry_now()
        return SinkUnavailable("away")

    source = Away(9, away)
    group = Group("a")
    group.append("a", 1)
    tenure = await group.tenure(transform=AwayTransform(source))
    await until(group.is_delivered)
    assert source.at[8] - source.at[7] < 0.1 < source.at[7] - source.at[6]
    await stopped(tenure)


@pytest.mark.virtual
async def test_a_delivered_batch_makes_the_next_failure_a_first_one_again() -> None:
    group = Group("a", limits=ONE)
    group.append("a", 20)
    group.weather.judge = Once(of("sink", "write"), *["ok", "refused"] * 10)
    tenure = await group.tenure()
    assert await until(group.is_delivered) < 3
    await stopped(tenure)


@pytest.mark.virtual
@pytest.mark.parametrize("seed", range(25))
async def test_under_any_weather_everything_arrives_once_and_neither_epoch_nor_sink_state_goes_back(seed: int) -> None:
    group, rng = leveled(limits=BatchLimits(events_max=3), checkpoint_s=0.05), random.Random(seed)
    group.append("a", 5)
    bad = ("refused", "lost", "ghost", "late")

    def judge(request: Request) -> Fate:
        ends = rng.choice(bad) if rng.random() < 0.25 and group.leases["a"].owner else "ok"
        return Fate(late_s=rng.random() * 3, ends=ends)  # type: ignore[arg-type]

    tenure = await group.tenure()
    group.weather.judge = judge
    for _ in range(15):
        await asyncio.sleep(rng.random() * 4)
        group.append("a", rng.randrange(4))
    await until(group.is_delivered, within_s=5000)
    group.weather.judge = lambda request: Fate()
    await asyncio.sleep(40)
    assert group.is_delivered()
    await stopped(tenure)
    written = group.store.written  # type: ignore[attr-defined]
    epochs, states = zip(*((lease.epoch, json.loads(lease.sink_state or "[0, 0]")) for lease in written), strict=True)
    assert list(epochs) == sorted(epochs)
    assert list(states) == sorted(states)
    claims = group.destination.claims  # type: ignore[attr-defined]
    assert claims == sorted(claims)
    assert len(dict(claims)) == len({level for _, level in claims})  # no level serves two epochs
    assert group.leases["a"].continuation == str(group.feed._logs["a"].end)


# Trust


@pytest.mark.virtual
async def test_while_trust_has_run_out_nothing_is_sent_and_work_goes_on_when_it_is_back() -> None:
    group = Group("a", limits=ONE)
    tenure = await group.tenure()
    group.append("a", 1)
    await until(group.is_delivered)
    group.weather.down.add(("", "store"))
    await asyncio.sleep(group.timing.patience_s)
    assert not tenure.worker.owned.is_trusted
    sent = len(group.weather.requests)
    group.append("a", 5)
    await always(lambda: not group.is_delivered(), 300)
    assert not any(request.where == "sink" for _, request in group.weather.requests[sent:])
    assert tenure.stats.suspensions["bank"] == 1
    group.weather.down.clear()
    await until(group.is_delivered, within_s=group.timing.balance_s)
    assert group.epochs["a"] == 1
    await stopped(tenure)


@pytest.mark.virtual
async def test_a_claim_too_waits_for_trust() -> None:
    group = Group("a")
    group.append("a", 1)
    group.weather.down |= {("", "store"), ("", "sink")}
    group.weather.down.remove(("", "store"))
    tenure = await group.tenure()
    group.weather.down |= {("", "store")}
    await asyncio.sleep(group.timing.patience_s + 40)
    group.weather.down -= {("", "sink")}
    asked = len(group.asked(of("sink")))
    await asyncio.sleep(100)
    assert len(group.asked(of("sink"))) == asked
    group.weather.down.clear()
    await until(group.is_delivered)
    await stopped(tenure)


@pytest.mark.virtual
async def test_a_machine_that_slept_between_take_and_claim_claims_only_once_it_has_renewed() -> None:
    group = Group("a")
    tenure = await group.tenure()
    tenure.clock.ahead_s += 3600
    group.weather.down.add(("", "store"))
    await asyncio.sleep(100)
    assert group.asked(of("sink")) == []
    group.weather.down.clear()
    await until(lambda: group.asked(of("sink")), within_s=5)
    await stopped(tenure)


@pytest.mark.virtual
async def test_a_stop_while_trust_has_run_out_takes_no_longer_than_the_closing_may() -> None:
    group = Group("a")
    tenure = await group.tenure()
    group.weather.down |= {("", "store"), ("", "sink")}
    group.append("a", 1)
    await asyncio.sleep(200)
    tenure.worker.stop()
    async with asyncio.timeout(11):
        assert (await tenure.task).reason == "shutdown"
    assert not group.destination.commits


@pytest.mark.virtual
async def test_a_machine_that_slept_sends_nothing_before_it_has_renewed() -> None:
    group = Group("a", limits=ONE)
    tenure = await group.tenure()
    await asyncio.sleep(1)
    tenure.clock.ahead_s += 3600
    group.append("a", 1)
    renewed = tenure.worker.owned.lease.tick
    await until(group.is_delivered)
    assert tenure.worker.owned.lease.tick > renewed
    await stopped(tenure)


@pytest.mark.virtual
async def test_a_claim_that_cannot_be_kept_leaves_no_writer_open() -> None:
    group = leveled()
    claimed = group._sink
    open_now: set[int] = set()

    def sink() -> Any:
        made = claimed()
        plain = made.open

        async def opened(claim: Claim) -> Any:
            writer = await plain(claim)
            close = writer.close
            writer.state = json.dumps([json.loads(writer.state)[0], 10 + claim.epoch])  # to be kept before all else
            open_now.add(id(writer))

            async def closed(reason: Any) -> None:
                open_now.discard(id(writer))
                await close(reason)

            writer.close = closed
            return writer

        made.open = opened
        return made

    group._sink = sink
    tenure = await group.tenure()
    is_away, most, attempts = True, 0, 0
    checkpoint = tenure.worker.owned.checkpoint

    async def refused(continuation: str | None, state: str) -> None:
        nonlocal most, attempts
        most, attempts = max(most, len(open_now)), attempts + 1
        if is_away:
            raise StoreUnavailable("away")
        await checkpoint(continuation, state)

    tenure.worker.owned.checkpoint = refused  # type: ignore[method-assign]
    await asyncio.sleep(45)
    is_away = False
    group.append("a", 3)
    await until(group.is_delivered)
    await stopped(tenure)
    assert (most, attempts > 3) == (1, True)
    assert not open_now


@pytest.mark.virtual
async def test_however_many_wait_for_trust_a_suspension_begins_and_ends_once() -> None:
    group = Group("a")
    tenure = await group.tenure()
    noted: list[bool | str] = []
    owned = tenure.worker.owned
    permit = TrustPermit(owned, tenure.clock, noted.append, lambda: noted.append("restored"))
    await permit.wait_until_granted()
    group.weather.down.add(("", "store"))
    await until(lambda: not owned.is_trusted)
    waiting = [asyncio.create_task(permit.wait_until_granted()) for _ in range(3)]
    await asyncio.sleep(1)
    assert noted == [True, False, False]
    waiting.pop().cancel()
    group.weather.down.clear()
    await asyncio.gather(*waiting)
    permit.check()
    assert noted == [True, False, False, "restored"]
    await stopped(tenure)
