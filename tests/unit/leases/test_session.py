"""A host's own document: beats, what they entitle the host to, and what becomes of it under namesakes and other hands."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.leases.shown_hosts import TIMING, session_of, stored_host
from unit.leases.shown_hosts import BeatStore as Store

from leasehold.common.cancellation import await_shielded
from leasehold.leases.errors import DuplicateHost, StoreAmbiguous, StoreError, StoreUnavailable
from leasehold.leases.host_record import HOST_BYTES_MAX, HOSTS_PREFIX, HostRecord, decode_host, encode_host, host_id
from leasehold.leases.session import Session
from leasehold.leases.stores.memory import MemoryStore

T = TypeVar("T")


@pytest.mark.virtual
async def test_before_its_first_beat_a_host_is_not_trusted_and_judges_nobody() -> None:
    own = session_of(MemoryStore())
    assert not own.is_trusted
    assert not own.may_judge
    await own.open()
    assert own.is_trusted
    assert own.may_judge
    assert own.term == 1


@pytest.mark.virtual
async def test_trust_counts_from_the_start_of_a_beat_not_from_its_answer() -> None:
    own = session_of(Store(0.0, 1.0))
    await own.open()
    assert own.trusted_until == pytest.approx(TIMING.trust_s)


@pytest.mark.virtual
async def test_a_beat_that_is_answered_after_the_call_time_counts_all_the_same() -> None:
    own = session_of(Store(0.0, 0.0, 3.0))
    await own.open()
    await asyncio.sleep(2.0)
    with pytest.raises(StoreAmbiguous):
        await own.beat()
    assert own.trusted_until == pytest.approx(TIMING.trust_s)
    await asyncio.sleep(2.0)
    assert own.trusted_until == pytest.approx(2.0 + TIMING.trust_s), "it counts from its start"
    assert own.term == 1


@pytest.mark.virtual
async def test_a_read_that_shows_a_beat_whose_answer_was_lost_counts_as_its_answer() -> None:
    own = session_of(Store(0.0, 0.0, "lost"))
    await own.open()
    await asyncio.sleep(1.0)
    await own.beat()
    assert own.trusted_until == pytest.approx(1.0 + TIMING.trust_s)


@pytest.mark.virtual
async def test_leases_must_be_won_again_once_the_host_is_trusted_after_a_lapse() -> None:
    own = session_of(MemoryStore())
    await own.open()
    assert not own.must_win(1)
    waiting = asyncio.create_task(own.wait_for_turn())
    await asyncio.sleep(TIMING.trust_s)
    assert not own.must_win(1), "it is not trusted yet"
    await own.beat()
    assert not own.is_trusted, "its document names no term yet"
    assert not waiting.done()
    await own.beat()
    await asyncio.wait_for(waiting, 0.1)
    assert own.must_win(1)
    assert not own.must_win(2)
    assert own.lapses == 1


@pytest.mark.virtual
async def test_a_host_that_cannot_write_stops_judging_before_others_could_seem_dead() -> None:
    own = session_of(MemoryStore())
    await own.open()
    await asyncio.sleep(TIMING.judging_s - 0.01)
    assert own.may_judge
    await asyncio.sleep(0.02)
    assert not own.may_judge
    assert own.is_trusted, "its own leases are still its own"


@pytest.mark.virtual
async def test_the_time_between_beats_that_are_too_far_apart_is_unread() -> None:
    own = session_of(MemoryStore())
    await own.open()
    await asyncio.sleep(TIMING.beat_s)
    await own.beat()
    assert own.take_unread_s() == 0
    await asyncio.sleep(TIMING.judging_s + 1)
    await own.beat()
    assert own.take_unread_s() == pytest.approx(TIMING.judging_s + 1)
    assert own.take_unread_s() == 0, "it is left out once"


async def beats(own: Session, seconds: float) -> list[StoreError]:
    errors: list[StoreError] = []
    beating = asyncio.create_task(own.keep_beating(random.Random(1), errors.append))
    await asyncio.sleep(seconds)
    beating.cancel()
    await asyncio.gather(beating, return_exceptions=True)
    return errors


@pytest.mark.virtual
async def test_beats_follow_each_other_at_their_interval_and_keep_the_host_trusted() -> None:
    store = Store(*[0.5] * 1000)
    own = session_of(store)
    await beats(own, 600)
    gaps = {round(later - earlier, 2) for earlier, later in zip(store.attempts[1:], store.attempts[2:], strict=False)}
    assert min(gaps) >= 2.4, "whatever a write takes"
    assert max(gaps) <= TIMING.beat_s
    assert own.term == 1


@pytest.mark.virtual
async def test_a_beat_that_fails_is_repeated_at_once_and_then_less_and_less_often() -> None:
    store = Store(0.0, 0.0, *[StoreUnavailable("away")] * 50)
    await beats(session_of(store), 60)
    gaps = [later - earlier for earlier, later in zip(store.attempts[2:], store.attempts[3:], strict=False)]
    assert gaps[0] <= TIMING.retry_s
    assert gaps[-1] == pytest.approx(TIMING.beat_s, rel=0.15)
    assert len(store.attempts) < 60 / TIMING.beat_s + 9, "a container that refuses everything is not kept busy"


@pytest.mark.virtual
@pytest.mark.parametrize("lost", ["lost", "ghost", "down", "black hole"])
async def test_one_beat_that_is_lost_costs_no_trust(lost: str) -> None:
    own = session_of(Store(0.0, 0.0, 0.0, lost))
    await beats(own, 30)
    assert own.term == 1
    assert own.timing == TIMING, "and does not make others wait longer"


@pytest.mark.virtual
async def test_a_beat_waits_as_long_as_the_container_asks_up_to_its_interval() -> None:
    throttled = [StoreUnavailable("throttled", retry_after_s=seconds) for seconds in (1.0, 60.0)]
    store = Store(0.0, 0.0, *throttled)
    await beats(session_of(store), 12)
    first, second, third = (
        later - earlier for earlier, later in zip(store.attempts[2:], store.attempts[3:6], strict=False)
    )
    assert first == pytest.approx(1.0)
    assert second == pytest.approx(TIMING.beat_s)
    assert third <= TIMING.beat_s


@pytest.mark.virtual
@pytest.mark.parametrize("slow_s", [2.0, 3.0, 6.0, 10.0])
async def test_a_host_whose_beats_are_slow_asks_others_to_wait_and_is_trusted(slow_s: float) -> None:
    store = Store(*[slow_s] * 1000)
    own = session_of(store)
    await beats(own, 100)
    lapses, lasts_s = own.lapses, own.timing.duration_s
    beating = asyncio.create_task(own.keep_beating(random.Random(1), lambda error: None))
    for _ in range(1000):
        await asyncio.sleep(0.5)
        assert own.is_trusted
    assert own.lapses == lapses
    assert slow_s <= lasts_s / 3 + 0.01
    assert (await stored_host(store)).lasts_s == lasts_s
    store.outcomes.clear()
    await asyncio.sleep(300)
    assert own.timing == TIMING, "once beats are quick again, others wait no longer"
    assert own.lapses == lapses
    beating.cancel()


@pytest.mark.virtual
async def test_at_most_two_attempts_are_under_way() -> None:
    store = Store(0.0, 0.0, *["black hole"] * 100)
    own = session_of(store)
    await beats(own, 14)
    assert len(store.attempts) == 4


@pytest.mark.virtual
async def test_a_host_whose_answers_come_too_late_names_no_term_until_one_comes_in_time() -> None:
    terms = []

    class Listed(Store):
        async def replace(self, id: str, body: str, etag: str) -> str:
            terms.append(decode_host(id, body).term)
            return await super().replace(id, body, etag)

    store = Listed(0.0, 0.0, *[("late answer", 8.0)] * 3)
    own = session_of(store)
    await own.open()
    store.reads_late_s = None
    await beats(own, 50)
    assert list(dict.fromkeys(terms)) == [1, 0, 2]
    assert own.term == 2


@pytest.mark.virtual
async def test_a_ring_brings_the_next_beat_forward_and_stays_in_the_document() -> None:
    store = Store()
    own = session_of(store)
    beating = asyncio.create_task(own.keep_beating(random.Random(1), lambda error: None))
    await asyncio.sleep(1.0)
    own.ring()
    own.ring()
    await asyncio.sleep(0.01)
    assert (await stored_host(store)).ring == 2
    own.ring()
    await asyncio.sleep(TIMING.ring_gap_s + 0.01)
    assert (await stored_host(store)).ring == 3
    assert store.attempts[-1] - store.attempts[-2] >= TIMING.ring_gap_s - 1e-9, "many rings make few beats"
    beating.cancel()


@pytest.mark.virtual
async def test_a_ring_whose_beat_failed_is_heard_soon_all_the_same() -> None:
    store = Store(0.0, 0.0, StoreUnavailable("away"))
    own = session_of(store)
    beating = asyncio.create_task(own.keep_beating(random.Random(1), lambda error: None))
    await asyncio.sleep(1.0)
    own.ring()
    await asyncio.sleep(2 * TIMING.ring_gap_s)
    assert (await stored_host(store)).ring == 1
    beating.cancel()


@pytest.mark.virtual
@given(st.lists(st.sampled_from(["lost", "ghost", "down", 0.0, 2.0]), max_size=16))
async def test_whatever_answers_are_lost_every_beat_that_arrives_has_a_higher_tick(outcomes: list[str | float]) -> None:
    store, ticks = Store(*outcomes), []
    own = session_of(store)
    for _ in range(20):
        try:
            await own.beat()
        except StoreError:
            await asyncio.sleep(0.5)
        if await store.list(HOSTS_PREFIX):
            ticks.append((await stored_host(store)).tick)
    assert ticks == sorted(ticks)
    assert ticks[-1] > 3


@pytest.mark.virtual
async def test_a_restarted_host_takes_its_document_over() -> None:
    store = Store()
    await session_of(store, incarnation="1").open()
    again = session_of(store, incarnation="2")
    await again.open()
    assert (await stored_host(store)).incarnation == "2"
    assert again.is_trusted


@pytest.mark.virtual
async def test_of_two_live_processes_of_one_name_the_earlier_stops_sending_at_once_and_then_gives_way() -> None:
    store = MemoryStore()
    first, second = session_of(store), session_of(store, incarnation="2")
    await first.open()
    await second.open()
    with pytest.raises(StoreError, match="if it moves, this host stops"):
        await first.beat()
    assert not first.is_trusted
    await second.beat()
    with pytest.raises(DuplicateHost, match="its document moves"):
        await first.beat()
    await asyncio.sleep(1)
    await second.beat()
    assert second.is_trusted
    assert second.lapses == 0


@pytest.mark.virtual
async def test_a_backup_with_what_this_host_replaced_itself_is_replaced_at_once() -> None:
    store = MemoryStore()
    await session_of(store).open()
    backup = await store.read(host_id("a"))
    own = session_of(store, incarnation="2")
    await own.open()
    store._put(backup.id, backup.body)
    await own.beat()
    assert (await stored_host(store)).incarnation == "2"
    assert own.term == 0, "others may have seen nothing of it meanwhile"
    await own.beat()
    assert own.term == 2


@pytest.mark.virtual
async def test_a_document_of_another_incarnation_that_stands_still_is_a_relic_and_is_replaced() -> None:
    store = MemoryStore()
    own = session_of(store, incarnation="3")
    await own.open()
    relic = HostRecord(name="a", incarnation="1", tick=9)
    store._put(host_id("a"), encode_host(relic))
    beating = asyncio.create_task(own.keep_beating(random.Random(1), lambda error: None))
    await asyncio.sleep(relic.lasts_s - 0.5)
    assert not own.is_trusted
    assert (await stored_host(store)).incarnation == "1"
    await asyncio.sleep(2 * TIMING.beat_s + 1.5)
    assert own.is_trusted
    assert (await stored_host(store)).incarnation == "3"
    beating.cancel()


@pytest.mark.virtual
@pytest.mark.parametrize("edit", [None, "{", ""])
async def test_a_document_that_was_deleted_or_garbled_is_written_again(edit: str | None) -> None:
    store = MemoryStore()
    own = session_of(store)
    await own.open()
    if edit is None:
        del store._documents[host_id("a")]
    else:
        store._put(host_id("a"), edit)
    await own.beat()
    assert (await stored_host(store)).incarnation == "1"
    assert own.term == 1


@pytest.mark.virtual
async def test_draining_stays_in_the_document_and_the_document_ends_with_the_host() -> None:
    store = MemoryStore()
    own = session_of(store)
    await own.beat(draining=True)
    await own.beat()
    assert (await stored_host(store)).draining
    await own.end()
    assert await store.list(HOSTS_PREFIX) == []


class OneAfterAnother(MemoryStore):
    """A write takes 0.1 s, follows the earlier ones, and goes on if its caller leaves, as in `SqliteStore`."""

    def __init__(self) -> None:
        super().__init__()
        self.is_writing = asyncio.Event()
        self._turn = asyncio.Lock()

    async def replace(self, id: str, body: str, etag: str) -> str:
        return await self._go_on(super().replace(id, body, etag))

    async def delete(self, id: str, etag: str) -> None:
        await self._go_on(super().delete(id, etag))

    async def _go_on(self, write: Awaitable[T]) -> T:
        async def written() -> T:
            async with self._turn:
                self.is_writing.set()
                await asyncio.sleep(0.1)
                return await write

        return await await_shielded(asyncio.create_task(written()))


@pytest.mark.virtual
async def test_a_beat_that_arrives_while_the_host_leaves_does_not_keep_its_document() -> None:
    store = OneAfterAnother()
    own = session_of(store)
    await own.open()
    beating = asyncio.create_task(own.keep_beating(random.Random(7), lambda error: None))
    own.ring()
    await store.is_writing.wait()
    beating.cancel()
    await own.end()
    assert await store.list(HOSTS_PREFIX) == []


@pytest.mark.virtual
async def test_a_host_that_leaves_keeps_a_namesakes_document() -> None:
    store = MemoryStore()
    own = session_of(store)
    await own.open()
    await session_of(store, incarnation="2").open()
    await own.end()
    assert (await stored_host(store)).incarnation == "2"


@pytest.mark.virtual
async def test_what_people_want_to_see_has_the_room_that_is_left_of_a_small_document() -> None:
    store, rooms = MemoryStore(), []
    own = session_of(store)

    def describe(room: int) -> dict[str, object]:
        rooms.append(room)
        return {"text": "x" * (room - len('{"text":""}') + 2)}

    own.describe = describe
    await own.open()
    assert HOST_BYTES_MAX - 40 <= len((await store.read(host_id("a"))).body.encode()) <= HOST_BYTES_MAX
    assert len(rooms) == 1, "beats are frequent"


@pytest.mark.virtual
async def test_work_that_was_renounced_begins_again_in_a_new_term() -> None:
    store = MemoryStore()
    own = session_of(store)
    await own.open()
    own.set_fitness("r")
    await own.beat()
    assert own.term == 1
    own.set_fitness("f", resumes=True)
    assert not own.is_trusted
    await own.beat()
    assert (own.term, own.lapses) == (2, 0), "nothing has lapsed"
