"""A copy of the leases into another store: whole or without effect, wherever it dies, and never in use twice."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from typing import TypeVar

import pytest
from lab.simulation.group import Group, HostClock, until
from lab.simulation.weather import Container

from leasehold.leases.bootstrap import Identity, Info, encode_info, info_id
from leasehold.leases.document import decode_lease, encode_lease, lease_prefix
from leasehold.leases.errors import (
    GroupMoved,
    InvalidDocument,
    StoreAmbiguous,
    StoreConflict,
    StoreError,
    StoreMissing,
    StoreUnavailable,
)
from leasehold.leases.host_record import HostRecord, encode_host, host_id
from leasehold.leases.keeper import Keeper, id_of
from leasehold.leases.lease import Child, Lease
from leasehold.leases.pause_orders import Control, check_not_moved, control_id, decode_control, encode_control, order
from leasehold.leases.session import Session
from leasehold.leases.store import READS, LeaseStore, Operation, StoreAround
from leasehold.leases.stores.memory import MemoryStore
from leasehold.leases.timing import Timing
from leasehold.pipeline.limits import REPLAY
from leasehold.service.errors import NotNow
from leasehold.service.group.copying import CopyReport, Place, cancel_copy, copy_group, plan_copy
from leasehold.service.pipeline import PipelineParts
from leasehold.service.processor import ProcessorCore

T = TypeVar("T")
PIPELINES = ("bank", "shop")
LEASES = (
    Lease(pipeline="bank", partition="0", epoch=4, generation=1, tick=99, continuation="12", closed=True,
          children=(Child("1", "12", begun=True), Child("2", "12"))),
    Lease(pipeline="bank", partition="1", owner="host-a", incarnation="1f", epoch=7, continuation="15", sink_state="s",
          parents=("0",), handoff_to="host-b"),
    Lease(pipeline="bank", partition="2", epoch=3, parents=("0",), unknown={"later": [1]}),
    Lease(pipeline="shop", partition="a/b", epoch=9, generation=2, continuation="x", scope="[0,9)"),
)  # fmt: skip
REPLAYED = Lease(
    pipeline="bank.replay", partition="1", owner="host-a-replay", incarnation="2f", epoch=2, continuation="5"
)
PAUSED = Control(pipeline="shop", paused=True, by="ada", at="2026-01-31")


class Died(Exception):
    """The process of the command was killed."""


class Deaths:
    """Lets the process die at its write number `at`: before it is carried out, or after."""

    def __init__(self, at: int = -1, *, is_after: bool = False) -> None:
        self.at = at
        self.is_after = is_after
        self.writes = 0


class Before(Deaths):
    """Does something before write number `at`, and lets the process live."""

    def __init__(self, at: int, then: Callable[[], Awaitable[None]]) -> None:
        super().__init__()
        self.moment = at
        self.then = then


class Mortal(StoreAround):
    def __init__(self, store: LeaseStore, deaths: Deaths) -> None:
        super().__init__(store)
        self._deaths = deaths

    async def _call(self, operation: Operation, name: str, answer: Awaitable[T]) -> T:
        if operation in READS:
            return await answer
        self._deaths.writes += 1
        if isinstance(self._deaths, Before) and self._deaths.writes == self._deaths.moment:
            await self._deaths.then()
        is_last = self._deaths.writes >= self._deaths.at >= 0
        if is_last and not (self._deaths.is_after and self._deaths.writes == self._deaths.at):
            answer.close()  # type: ignore[attr-defined]  # a coroutine
            raise Died
        found = await answer
        if is_last:
            raise Died
        return found


class Case:
    def __init__(self) -> None:
        self.old = MemoryStore()
        self.new = MemoryStore()
        self.clock = HostClock()
        self.said: list[str] = []
        self.runs = 0
        self.replayed: Collection[str] = ()

    async def fill(self) -> None:
        for name in PIPELINES:
            info = Info(identity=Identity("feed", "sink", "t"), complete=True, pipeline=name)
            await self.old.create(info_id(name), encode_info(info))
        for lease in LEASES:
            await self.old.create(id_of(lease), encode_lease(lease))
        await self.old.create(control_id("shop"), encode_control(PAUSED))
        await self.old.create(host_id("host-a"), encode_host(HostRecord(name="host-a", incarnation="1f")))

    async def fill_with_replay(self) -> None:
        """Both pipelines keep dead letters, and those of the first were replayed."""
        await self.fill()
        self.replayed = PIPELINES
        await self.add_replay(self.old, REPLAYED)

    async def add_replay(self, store: LeaseStore, lease: Lease) -> None:
        info = Info(identity=Identity("letters", "sink", "t"), complete=True, pipeline=lease.pipeline)
        await store.create(info_id(lease.pipeline), encode_info(info))
        await store.create(id_of(lease), encode_lease(lease))

    def place(self, store: LeaseStore, name: str, deaths: Deaths | None = None, *, is_unique: bool = True) -> Place:
        store = store if deaths is None else Mortal(store, deaths)
        keeper = Keeper(store, host="leasehold", incarnation="c", clock=self.clock, timing=Timing())
        return Place(keeper, name, is_unique)

    async def copy(self, deaths: Deaths | None = None) -> CopyReport:
        old, new = self.place(self.old, "old.db", deaths), self.place(self.new, "new.db", deaths)
        return await self.copy_between(old, new)

    async def copy_between(self, old: Place, new: Place) -> CopyReport:
        self.runs += 1
        return await copy_group(
            old, new, PIPELINES, replayed=self.replayed, copy=f"copy-{self.runs}", at="now", clock=self.clock,
            say=self.said.append,
        )  # fmt: skip

    async def plan(self) -> CopyReport:
        old, new = self.place(self.old, "old.db"), self.place(self.new, "new.db")
        return await plan_copy(old, new, PIPELINES, replayed=self.replayed, clock=self.clock, say=self.said.append)

    async def leases(self, store: LeaseStore) -> list[Lease]:
        stored = [each for name in PIPELINES for each in await store.list(lease_prefix(name))]
        return [decode_lease(each.id, each.body) for each in stored]

    async def usable(self, store: LeaseStore) -> set[str]:
        """Pipelines whose leases hosts may take there."""
        found = set()
        for name in PIPELINES:
            try:
                await check_not_moved(store, name)
            except GroupMoved:
                continue
            if await store.list(lease_prefix(name)):
                found.add(name)
        return found

    async def has_usable_replay(self, store: LeaseStore) -> bool:
        """Whether a replay of the first pipeline may continue there."""
        try:
            for name in ("bank", "bank" + REPLAY):
                await check_not_moved(store, name)
        except GroupMoved:
            return False
        return bool(await store.list(lease_prefix("bank" + REPLAY)))

    async def replay_in(self, store: LeaseStore) -> list[Lease]:
        return [decode_lease(each.id, each.body) for each in await store.list(lease_prefix("bank" + REPLAY))]

    async def marks(self, store: LeaseStore) -> dict[str, str | None]:
        """Pipeline -> the state of its copy."""
        orders = [decode_control(each.id, each.body) for each in await store.list(control_id(""))]
        return {each.pipeline: None if each.move is None else each.move.state for each in orders}

    async def is_whole(self) -> bool:
        return await self.leases(self.new) == [lease.given_up() for lease in LEASES]


@pytest.fixture
def case() -> Case:
    return Case()


@pytest.mark.virtual
async def test_everything_but_hosts_and_owners_is_copied(case: Case) -> None:
    await case.fill()
    report = await case.copy()
    assert [(each.pipeline, each.leases, each.step) for each in report.pipelines] == [
        ("bank", 3, "copy"),
        ("shop", 1, "copy"),
    ]
    assert await case.is_whole()
    for name in PIPELINES:
        assert (await case.new.read(info_id(name))).body == (await case.old.read(info_id(name))).body
    kept = await case.new.read(control_id("shop"))
    assert decode_control(kept.id, kept.body) == PAUSED
    assert [each.id for each in await case.new.list("_")] == [control_id("shop")]


@pytest.mark.virtual
async def test_a_plan_writes_nothing(case: Case) -> None:
    await case.fill()
    before = await case.old.list("")
    report = await case.plan()
    assert [(each.step, each.leases) for each in report.pipelines] == [("copy", 3), ("copy", 1)]
    assert await case.old.list("") == before
    assert await case.new.list("") == []


@pytest.mark.virtual
async def test_wherever_it_dies_no_lease_is_in_use_twice_and_the_next_run_completes_it(case: Case) -> None:
    await case.fill()
    counted = Deaths()
    await case.copy(counted)
    assert counted.writes > 12
    for at in range(1, counted.writes + 1):
        for is_after in (False, True):
            case = Case()
            await case.fill()
            with pytest.raises(Died):
                await case.copy(Deaths(at, is_after=is_after))
            old, new = await case.usable(case.old), await case.usable(case.new)
            assert not old & new, f"death {at}, {is_after=}"
            if new:
                assert await case.is_whole()
            if at == counted.writes and is_after:
                assert new == set(PIPELINES)
            report = await case.copy()
            assert await case.is_whole()
            assert await case.usable(case.new) == set(PIPELINES)
            assert await case.usable(case.old) == set()
            kept = await case.new.read(control_id("shop"))
            assert decode_control(kept.id, kept.body) == PAUSED
            assert report.pipelines[0].leases == 3


@pytest.mark.virtual
async def test_a_copy_that_is_done_has_nothing_left_to_do(case: Case) -> None:
    await case.fill()
    await case.copy()
    before = await case.old.list(""), await case.new.list("")
    for report in (await case.plan(), await case.copy()):
        assert report.is_done
        assert report.written == 0
    assert (await case.old.list(""), await case.new.list("")) == before


@pytest.mark.virtual
async def test_a_host_of_the_old_store_is_refused_with_the_place_of_the_leases(case: Case) -> None:
    await case.fill()
    await case.copy()
    with pytest.raises(
        GroupMoved, match=r"^the leases of pipeline 'bank' were moved to new\.db at now: run the config"
    ):
        await check_not_moved(case.old, "bank")
    with pytest.raises(GroupMoved, match=r"were moved to new\.db"):
        await order(case.old, Control(pipeline="bank", paused=False))


@pytest.mark.virtual
async def test_hosts_of_earlier_releases_see_a_pause_there(case: Case) -> None:
    await case.fill()
    await case.copy()
    for name in PIPELINES:
        stored = await case.old.read(control_id(name))
        assert '"paused":true' in stored.body


@pytest.mark.virtual
async def test_a_frozen_host_can_write_no_lease_of_the_old_store(case: Case) -> None:
    await case.fill()
    frozen = {each.id: each.etag for name in PIPELINES for each in await case.old.list(lease_prefix(name))}
    await case.copy()
    for lease in LEASES:
        with pytest.raises(StoreConflict):
            await case.old.replace(id_of(lease), encode_lease(lease), frozen[id_of(lease)])


@pytest.mark.virtual
@pytest.mark.parametrize("which", ["old", "new"])
async def test_a_live_host_of_either_store_refuses_the_copy(case: Case, which: str) -> None:
    await case.fill()
    store: MemoryStore = getattr(case, which)
    me = HostRecord(name="host-z", incarnation="9")
    session = Session(store, me, clock=case.clock, timing=Timing())
    await session.open()

    async def live() -> None:
        while True:
            await asyncio.sleep(1)
            await session.beat()

    living = asyncio.create_task(live())
    await asyncio.sleep(0)
    before = [each for name in PIPELINES for each in await case.old.list(lease_prefix(name))]
    with pytest.raises(NotNow, match="host 'host-z' is alive, so nothing was changed"):
        await case.copy()
    living.cancel()
    assert [each for name in PIPELINES for each in await case.old.list(lease_prefix(name))] == before
    assert await case.new.list(lease_prefix("bank")) == []
    await case.copy()
    assert await case.is_whole()


@pytest.mark.virtual
async def test_a_host_that_starts_beside_it_stops_the_copy_before_any_lease_is_written(case: Case) -> None:
    await case.fill()

    class Started(MemoryStore):
        async def create(self, id: str, body: str) -> str:
            etag = await super().create(id, body)
            if id == control_id("shop"):
                await super().create(host_id("host-z"), encode_host(HostRecord(name="host-z", incarnation="9")))
            return etag

    case.new = Started()
    with pytest.raises(NotNow, match=r"host 'host-z' started meanwhile on new\.db"):
        await case.copy()
    assert await case.new.list(lease_prefix("bank")) == []
    await case.copy()
    assert await case.is_whole()


@pytest.mark.virtual
async def test_a_target_with_leases_is_refused(case: Case) -> None:
    await case.fill()
    await case.new.create(id_of(LEASES[2]), encode_lease(LEASES[2]))
    before = await case.new.list("")
    with pytest.raises(
        NotNow, match=r"new\.db has documents of pipeline 'bank' already \(1 lease\): name an empty lease"
    ):
        await case.copy()
    assert await case.new.list("") == before
    assert await case.usable(case.old) == set(PIPELINES)


@pytest.mark.virtual
async def test_the_target_of_another_copy_is_refused(case: Case) -> None:
    await case.fill()
    with pytest.raises(Died):
        await case.copy(Deaths(8))
    other = Case()
    await other.fill()
    other.new = case.new
    with pytest.raises(NotNow, match=r"new\.db belongs to another copy"):
        await other.copy()
    case.new = MemoryStore()
    old, elsewhere = case.place(case.old, "old.db"), case.place(case.new, "elsewhere.db")
    with pytest.raises(NotNow, match=r"are being copied to new\.db \(begun at now\)"):
        await copy_group(old, elsewhere, PIPELINES, copy="x", at="now", clock=case.clock, say=case.said.append)


@pytest.mark.virtual
async def test_a_moved_group_without_its_target_is_reported(case: Case) -> None:
    await case.fill()
    await case.copy()
    case.new = MemoryStore()
    with pytest.raises(NotNow, match=r"were moved to new\.db, where they are missing now"):
        await case.copy()


@pytest.mark.virtual
async def test_a_lease_that_cannot_be_read_refuses_the_copy_before_anything_is_written(case: Case) -> None:
    await case.fill()
    stored = await case.old.read(id_of(LEASES[2]))
    await case.old.replace(stored.id, "{}", stored.etag)
    with pytest.raises(InvalidDocument, match="until you repair it"):
        await case.copy()
    assert await case.new.list("") == []
    assert await case.usable(case.old) == set(PIPELINES)


@pytest.mark.virtual
async def test_a_source_without_leases_has_nothing_to_copy(case: Case) -> None:
    with pytest.raises(StoreMissing, match=r"no leases in old\.db yet"):
        await case.copy()


@pytest.mark.virtual
async def test_a_lease_that_a_host_made_under_the_mark_is_corrected_and_one_that_it_worked_on_is_not(
    case: Case,
) -> None:
    await case.fill()
    with pytest.raises(Died):
        await case.copy(Deaths(10))
    fresh = replace(LEASES[3], epoch=0, generation=0, continuation=None)
    there = {each.id: each for each in await case.new.list(lease_prefix("shop"))}
    assert id_of(fresh) not in there
    await case.new.create(id_of(fresh), encode_lease(fresh))
    await case.new.create("shop/leases/z", encode_lease(Lease(pipeline="shop", partition="z")))
    await case.copy()
    assert await case.is_whole()

    case = Case()
    await case.fill()
    with pytest.raises(Died):
        await case.copy(Deaths(10))
    worked = replace(LEASES[3], epoch=12)
    await case.new.create(id_of(worked), encode_lease(worked))
    with pytest.raises(NotNow, match=r"lease 'a/b' of pipeline 'shop' in new\.db is ahead \(generation 2, epoch 12\)"):
        await case.copy()
    kept = await case.new.read(id_of(worked))
    assert decode_lease(kept.id, kept.body).epoch == 12


@pytest.mark.virtual
async def test_an_unfinished_copy_can_be_given_up(case: Case) -> None:
    await case.fill()
    with pytest.raises(Died):
        await case.copy(Deaths(9))
    assert await case.usable(case.old) == set()
    given_up = await cancel_copy(case.place(case.old, "old.db"), PIPELINES, clock=case.clock)
    assert given_up == PIPELINES
    assert await case.usable(case.old) == set(PIPELINES)
    assert await case.usable(case.new) == set()
    kept = await case.old.read(control_id("shop"))
    assert decode_control(kept.id, kept.body) == PAUSED
    with pytest.raises(StoreMissing):
        await case.old.read(control_id("bank"))
    assert await cancel_copy(case.place(case.old, "old.db"), PIPELINES, clock=case.clock) == ()
    case.new = MemoryStore()
    await case.copy()
    assert await case.is_whole()


@pytest.mark.virtual
@pytest.mark.parametrize("copied_again", [False, True], ids=["given up", "and begun again"])
@pytest.mark.parametrize("at", range(2, 18))
async def test_a_copy_that_is_given_up_while_it_runs_ends_with_that_and_no_store_is_left_in_use_twice(
    case: Case, at: int, copied_again: bool
) -> None:
    """Given up by another process before write number `at`; the last of them marks the first pipeline as done."""

    async def give_up() -> None:
        await cancel_copy(case.place(case.old, "old.db"), PIPELINES, clock=case.clock)
        if copied_again:
            source, other = case.place(case.old, "old.db", Deaths(3)), case.place(MemoryStore(), "other.db")
            with pytest.raises(Died):
                await copy_group(
                    source, other, PIPELINES, copy="another", at="later", clock=case.clock, say=case.said.append
                )

    await case.fill()
    noticed = (
        r"was given up meanwhile \(--cancel\).*in new\.db: remove it|changed meanwhile|being copied to other\.db"
        "|another writer|does not exist|exists already"
    )
    with pytest.raises((NotNow, StoreError), match=noticed):
        await case.copy(Before(at, give_up))
    assert await case.usable(case.new) == set()
    for name in PIPELINES:
        order = await case.old.list(control_id(name))
        assert all("done" not in each.body for each in order)


class ReadAgain(StoreAround):
    """Does something before a document is read for the second time."""

    def __init__(self, store: LeaseStore, document: str, then: Callable[[], Awaitable[object]]) -> None:
        super().__init__(store)
        self._document = document
        self._then = then
        self._reads = 0

    async def _call(self, operation: Operation, name: str, answer: Awaitable[T]) -> T:
        if operation == "read" and name == self._document:
            self._reads += 1
            if self._reads == 2:
                await self._then()
        return await answer


@pytest.mark.virtual
async def test_of_two_copies_that_begin_at_once_one_ends_and_its_store_is_not_used(case: Case) -> None:
    await case.fill()
    other = MemoryStore()

    async def copy_first() -> None:
        source, target = case.place(case.old, "old.db", Deaths(4)), case.place(other, "other.db")
        with pytest.raises(Died):
            await copy_group(source, target, PIPELINES, copy="first", at="now", clock=case.clock, say=case.said.append)

    source = case.place(ReadAgain(case.old, control_id("bank"), copy_first), "old.db")
    with pytest.raises(NotNow, match=r"the leases of pipeline 'bank' are being copied to other\.db"):
        await copy_group(
            source, case.place(case.new, "new.db"), PIPELINES, copy="second", at="now", clock=case.clock,
            say=case.said.append,
        )  # fmt: skip
    assert await case.new.list("") == []
    assert await case.usable(case.old) == set()


@pytest.mark.virtual
async def test_a_copy_that_is_done_cannot_be_given_up(case: Case) -> None:
    await case.fill()
    await case.copy()
    with pytest.raises(NotNow, match=r"were moved to new\.db.*That cannot be given up"):
        await cancel_copy(case.place(case.old, "old.db"), PIPELINES, clock=case.clock)
    assert await case.usable(case.old) == set()


@pytest.mark.virtual
async def test_a_host_that_was_frozen_during_the_copy_works_on_nothing_when_it_continues(case: Case) -> None:
    group = Group("abcd")
    for partition in "abcd":
        group.append(partition, 5)
    frozen = await group.start("host-a")
    await until(group.is_delivered)
    frozen.process.stop()
    old, new = group.store, Container(group.weather)
    places = case.place(old, "old.db"), case.place(new, "new.db")
    await copy_group(*places, ["bank"], copy="x", at="now", clock=case.clock, say=case.said.append)
    epochs = dict(group.epochs)
    group.store = new
    await group.start("host-b")
    for partition in "abcd":
        group.append(partition, 5)
    frozen.process.resume()
    await until(group.is_delivered)
    await asyncio.sleep(300)
    group.append("a", 5)
    await until(group.is_delivered)
    assert set(group.owners.values()) == {"host-b"}
    assert group.epochs == {name: epoch + 1 for name, epoch in epochs.items()}
    assert not frozen.host.workers
    assert frozen.said("pipeline paused")[0]["why"].startswith("the leases of pipeline 'bank' were moved to new.db")
    group.store = old
    assert set(group.owners.values()) == {None}
    assert group.epochs == epochs


@pytest.mark.virtual
async def test_a_host_that_starts_on_either_store_is_refused_until_the_copy_is_done(case: Case) -> None:
    group = Group("ab")
    await (await group.start("host-a")).stop()
    target = Container(group.weather)

    def processor(store: LeaseStore) -> ProcessorCore:
        pipeline = PipelineParts(name="bank", feed=group.feed, sink=group._sink())
        return ProcessorCore([pipeline], store, host="host-b", clock=HostClock(), log=group.logger([]))

    deaths = Deaths(5)
    places = case.place(group.store, "old.db", deaths), case.place(target, "new.db", deaths)
    with pytest.raises(Died):
        await copy_group(*places, ["bank"], copy="x", at="now", clock=case.clock, say=case.said.append)
    for store in (group.store, target):
        with pytest.raises(GroupMoved, match="are being copied"):
            await processor(store).start()
    places = case.place(group.store, "old.db"), case.place(target, "new.db")
    await copy_group(*places, ["bank"], copy="y", at="now", clock=case.clock, say=case.said.append)
    with pytest.raises(GroupMoved, match=r"were moved to new\.db"):
        await processor(group.store).start()
    await (running := processor(target)).start()
    assert len(running.host.workers) == 2
    await running.stop()


@pytest.mark.virtual
async def test_a_lease_that_a_host_owned_there_and_that_the_source_lacks_is_kept(case: Case) -> None:
    await case.fill()
    with pytest.raises(Died):
        await case.copy(Deaths(10))
    worked = Lease(pipeline="bank", partition="z", epoch=2)
    await case.new.create(id_of(worked), encode_lease(worked))
    with pytest.raises(
        NotNow, match=r"lease 'z' of pipeline 'bank' in new\.db does not exist in the source, and had an owner"
    ):
        await case.copy()
    assert await case.new.read(id_of(worked))


@pytest.mark.virtual
async def test_a_store_that_forgets_a_document_is_noticed_before_any_host_may_use_it(case: Case) -> None:
    await case.fill()

    class Forgetful(MemoryStore):
        async def create(self, id: str, body: str) -> str:
            etag = await super().create(id, body)
            if id == id_of(LEASES[2]):
                await super().delete(id, etag)
            return etag

    good, case.new = case.new, Forgetful()
    with pytest.raises(NotNow, match=r"1 document in new\.db changed meanwhile, 'bank/leases/2' first"):
        await case.copy()
    assert await case.usable(case.new) == set()
    assert await case.usable(case.old) == set()
    case.new = good
    await case.copy()
    assert await case.is_whole()


class Weak(StoreAround):
    """Refuses each second write, and loses the answer of each third."""

    writes = 0

    async def _call(self, operation: Operation, name: str, answer: Awaitable[T]) -> T:
        if operation in READS:
            return await answer
        self.writes += 1
        if self.writes % 2 == 0:
            answer.close()  # type: ignore[attr-defined]  # a coroutine
            raise StoreUnavailable("throttled", retry_after_s=2)
        found = await answer
        if self.writes % 3 == 0:
            raise StoreAmbiguous("no answer")
        return found


@pytest.mark.virtual
async def test_a_store_that_refuses_and_loses_answers_delays_the_copy_alone(case: Case) -> None:
    await case.fill()
    old, new = case.place(Weak(case.old), "old.db"), case.place(Weak(case.new), "new.db")
    await copy_group(old, new, PIPELINES, copy="x", at="now", clock=case.clock, say=case.said.append)
    assert await case.is_whole()
    assert await case.usable(case.old) == set()


@pytest.mark.virtual
async def test_a_store_that_stays_away_ends_the_copy_which_can_be_continued(case: Case) -> None:
    await case.fill()

    class Away(StoreAround):
        async def _call(self, operation: Operation, name: str, answer: Awaitable[T]) -> T:
            if operation in READS or name.startswith("_"):
                return await answer
            answer.close()  # type: ignore[attr-defined]  # a coroutine
            raise StoreUnavailable("away")

    old, new = case.place(case.old, "old.db"), case.place(Away(case.new), "new.db")
    with pytest.raises(StoreUnavailable, match="away"):
        await copy_group(old, new, PIPELINES, copy="x", at="now", clock=case.clock, say=case.said.append)
    await case.copy()
    assert await case.is_whole()


@pytest.mark.virtual
async def test_long_copies_report_how_far_they_are(case: Case) -> None:
    class Slow(StoreAround):
        async def _call(self, operation: Operation, name: str, answer: Awaitable[T]) -> T:
            await asyncio.sleep(1)
            return await answer

    await case.fill()
    for number in range(2500):
        lease = Lease(pipeline="bank", partition=f"p{number}")
        await case.old.create(id_of(lease), encode_lease(lease))
    old, new = case.place(Slow(case.old), "old.db"), case.place(Slow(case.new), "new.db")
    await copy_group(old, new, PIPELINES, copy="x", at="now", clock=case.clock, say=case.said.append)
    assert "of 2,503 leases of pipeline 'bank' locked" in "\n".join(case.said)
    copied = [line for line in case.said if "of 2,504 documents of pipeline 'bank' copied" in line]
    assert 10 < len(copied) < 20


@pytest.mark.virtual
async def test_the_leases_of_a_replay_move_with_its_pipeline(case: Case) -> None:
    await case.fill_with_replay()
    assert [each.pipeline for each in (await case.plan()).pipelines] == ["bank", "bank.replay", "shop"]
    report = await case.copy()
    assert [(each.pipeline, each.leases) for each in report.pipelines] == [("bank", 3), ("bank.replay", 1), ("shop", 1)]
    assert await case.replay_in(case.new) == [REPLAYED.given_up()]
    assert await case.new.read(info_id("bank.replay"))
    assert await case.is_whole()
    assert await case.marks(case.old) == dict.fromkeys(("bank", "bank.replay", "shop", "shop.replay"), "done")
    assert await case.marks(case.new) == {"shop": None}
    for again in (await case.plan(), await case.copy()):
        assert (again.is_done, again.written) == (True, 0)


@pytest.mark.virtual
async def test_wherever_it_dies_no_replay_may_continue_in_both_stores_and_the_next_run_completes_it(case: Case) -> None:
    await case.fill_with_replay()
    counted = Deaths()
    await case.copy(counted)
    for at in range(1, counted.writes + 1):
        for is_after in (False, True):
            case = Case()
            await case.fill_with_replay()
            with pytest.raises(Died):
                await case.copy(Deaths(at, is_after=is_after))
            old, new = await case.has_usable_replay(case.old), await case.has_usable_replay(case.new)
            assert not (old and new), f"death {at}, {is_after=}"
            if new:
                assert await case.replay_in(case.new) == [REPLAYED.given_up()]
            plan = await case.plan()
            assert plan.is_done == (await case.marks(case.new) == {"shop": None}), f"death {at}, {is_after=}"
            await case.copy()
            assert await case.replay_in(case.new) == [REPLAYED.given_up()]
            assert await case.is_whole()
            assert await case.has_usable_replay(case.new)
            assert not await case.has_usable_replay(case.old)
            assert await case.marks(case.old) == dict.fromkeys(("bank", "bank.replay", "shop", "shop.replay"), "done")
            assert await case.marks(case.new) == {"shop": None}


@pytest.mark.virtual
async def test_a_copy_is_given_up_with_its_replays_wherever_either_of_the_two_dies(case: Case) -> None:
    await case.fill_with_replay()
    for copy_dies_at, cancel_dies_at in ((4, -1), (12, -1), (12, 1), (12, 2), (12, 3), (12, 4)):
        case = Case()
        await case.fill_with_replay()
        with pytest.raises(Died):
            await case.copy(Deaths(copy_dies_at))
        if cancel_dies_at > 0:
            with pytest.raises(Died):
                await cancel_copy(case.place(case.old, "old.db", Deaths(cancel_dies_at)), PIPELINES, clock=case.clock)
            assert not await case.has_usable_replay(case.old)
        given_up = await cancel_copy(case.place(case.old, "old.db"), PIPELINES, clock=case.clock)
        assert "bank" in given_up
        assert await case.has_usable_replay(case.old)
        assert not await case.has_usable_replay(case.new)
        assert await case.marks(case.old) == {"shop": None}


@pytest.mark.virtual
async def test_a_replay_is_copied_whose_pipeline_keeps_no_dead_letters_now(case: Case) -> None:
    await case.fill_with_replay()
    case.replayed = ()
    await case.copy()
    assert await case.replay_in(case.new) == [REPLAYED.given_up()]
    assert await case.marks(case.old) == dict.fromkeys(("bank", "bank.replay", "shop"), "done")


@pytest.mark.virtual
async def test_a_target_with_leases_of_a_replay_is_refused(case: Case) -> None:
    await case.fill_with_replay()
    await case.add_replay(case.new, REPLAYED)
    before = await case.new.list("")
    with pytest.raises(NotNow, match=r"new\.db has documents of pipeline 'bank\.replay' already \(1 lease\)"):
        await case.copy()
    assert await case.new.list("") == before
    assert await case.usable(case.old) == set(PIPELINES)


@pytest.mark.virtual
@pytest.mark.parametrize("replayed_since", [False, True])
async def test_a_replay_that_a_copy_left_out_is_copied_unless_the_target_has_its_own(
    case: Case, replayed_since: bool
) -> None:
    await case.fill()
    await case.copy()
    await case.add_replay(case.old, REPLAYED)
    later = replace(REPLAYED, epoch=1, continuation="3").given_up()
    if replayed_since:
        await case.add_replay(case.new, later)
    case.replayed = PIPELINES
    report = await case.copy()
    assert report.is_done is replayed_since
    assert await case.replay_in(case.new) == [later if replayed_since else REPLAYED.given_up()]
    assert not await case.has_usable_replay(case.old)
    assert (await case.plan()).is_done


@pytest.mark.virtual
async def test_dead_hosts_of_one_name_on_both_stores_do_not_stop_the_copy(case: Case) -> None:
    await case.fill()
    await case.new.create(host_id("host-a"), encode_host(HostRecord(name="host-a", incarnation="2f")))
    dead = await case.old.read(host_id("host-a"))
    await case.old.replace(dead.id, dead.body, dead.etag)
    await case.copy_between(case.place(case.old, "a table"), case.place(case.new, "a table"))
    assert await case.is_whole()
    assert await case.usable(case.new) == set(PIPELINES)


@pytest.mark.virtual
async def test_the_store_that_was_copied_is_not_its_own_target(case: Case) -> None:
    """Or its marks would be lifted, and hosts could run on both stores."""
    await case.fill()
    await case.copy()
    with pytest.raises(NotNow, match=r"old\.db belongs to another copy \(.* were moved to new\.db"):
        await case.copy_between(case.place(case.old, "old.db"), case.place(case.old, "old.db"))
    assert await case.usable(case.old) == set()


class TestStoresOfOneName:
    """As those of a user's own class: their arguments may be secrets."""

    @staticmethod
    async def copy(case: Case, to: LeaseStore) -> CopyReport:
        return await case.copy_between(case.place(case.old, "table"), case.place(to, "table", is_unique=False))

    @pytest.mark.virtual
    async def test_a_copy_that_is_done_stays_so(self, case: Case) -> None:
        await case.fill()
        await self.copy(case, case.new)
        (lease,) = await case.new.list(id_of(LEASES[1]))
        ahead = replace(LEASES[1].given_up(), epoch=8, continuation="99")
        await case.new.replace(lease.id, encode_lease(ahead), lease.etag)
        assert (await self.copy(case, case.new)).is_done

    @pytest.mark.virtual
    @pytest.mark.parametrize("change", ["behind", "another generation", "missing", "unreadable"])
    async def test_a_third_store_is_refused(self, case: Case, change: str) -> None:
        await case.fill()
        await self.copy(case, case.new)
        third = MemoryStore()
        for lease in LEASES[1:] if change == "missing" else LEASES:
            await third.create(id_of(lease), encode_lease(lease))
        (stored,) = await third.list(id_of(LEASES[1]))
        if change != "missing":
            behind = replace(LEASES[1], epoch=6) if change == "behind" else replace(LEASES[1], epoch=9)
            body = "{}" if change == "unreadable" else encode_lease(behind)
            await third.replace(stored.id, body, stored.etag)
        if change == "another generation":
            source = await case.old.read(id_of(LEASES[1]))
            reset = replace(LEASES[1].given_up(), generation=1)
            await case.old.replace(source.id, encode_lease(reset), source.etag)
        with pytest.raises(NotNow, match=r"the leases of pipeline 'bank' were moved to table at now: run the conf"):
            await self.copy(case, third)
        assert await case.usable(case.old) == set()
