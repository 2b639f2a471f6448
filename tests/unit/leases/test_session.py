"""A host's own session: heartbeats, trust, and the terms between lapses."""

from __future__ import annotations

import asyncio
import json
import random

import pytest
from lab.simulation.loop import VirtualClock

from leasehold.leases.errors import (
    DuplicateHost,
    InvalidDocument,
    StoreAmbiguous,
    StoreConflict,
    StoreError,
    StoreMissing,
    StoreUnavailable,
)
from leasehold.leases.host_record import HostRecord
from leasehold.leases.session import (
    BELL_ID,
    BELL_WRITES_MAX,
    SESSION_S_MAX,
    Bell,
    Session,
    SessionRecord,
    decode_session,
    encode_session,
    session_id,
    session_of,
)
from leasehold.leases.stores.memory import MemoryStore
from leasehold.leases.timing import SessionTiming, Timing

TIMING = SessionTiming()
FULL = SessionRecord(
    host="a",
    incarnation="1",
    tick=3,
    duration_s=7.5,
    beat_s=3.0,
    ring=4,
    draining=True,
    pipelines=("p", "q"),
    leases_max=2,
    contested_by="2",
    waits={"p": [0.5, 7]},
    unknown={"later": [1]},
)


class Store(MemoryStore):
    """outcomes: of the next writes: seconds until it is answered, or an error. attempts: when writes began."""

    def __init__(self, *outcomes: float | StoreError) -> None:
        super().__init__()
        self.outcomes = list(outcomes)
        self.attempts: list[float] = []

    async def create(self, id: str, body: str) -> str:
        return await self._late(super().create(id, body))

    async def replace(self, id: str, body: str, etag: str) -> str:
        return await self._late(super().replace(id, body, etag))

    async def _late(self, write) -> str:  # type: ignore[no-untyped-def]
        self.attempts.append(VirtualClock().monotonic())
        outcome = self.outcomes.pop(0) if self.outcomes else 0.0
        if isinstance(outcome, StoreError):
            write.close()
            raise outcome
        etag: str = await write
        await asyncio.sleep(outcome)
        return etag


def session(store: MemoryStore, incarnation: str = "1") -> Session:
    return Session(store, SessionRecord(host="a", incarnation=incarnation), clock=VirtualClock(), timing=TIMING)


async def stored(store: MemoryStore) -> SessionRecord:
    found = await store.read(session_id("a"))
    return decode_session(found.id, found.body)


def test_a_session_survives_its_document_unknown_fields_included() -> None:
    assert decode_session(session_id("a"), encode_session(FULL)) == FULL


def test_a_session_of_usual_size_is_small() -> None:
    usual = SessionRecord(host="leasehold-7d9f8b6c5d-x2x4z", incarnation="0" * 32, pipelines=("orders", "payments"))
    assert len(encode_session(usual)) < 400


@pytest.mark.parametrize("duration_s", [SESSION_S_MAX + 1, -1.0])
def test_a_duration_that_would_keep_others_waiting_for_ever_is_refused(duration_s: float) -> None:
    body = encode_session(SessionRecord(host="a", incarnation="1", duration_s=duration_s))
    with pytest.raises(InvalidDocument, match="'durationS'"):
        decode_session(session_id("a"), body)


def test_a_session_under_another_hosts_id_is_refused() -> None:
    with pytest.raises(InvalidDocument, match="belongs under another id"):
        decode_session(session_id("b"), encode_session(FULL))


def test_hosts_have_sessions_only_if_their_intervals_say_so() -> None:
    me, store, clock = (
        HostRecord(name="a", incarnation="1", pipelines=("p",), leases_max=3),
        MemoryStore(),
        VirtualClock(),
    )
    assert session_of(me, store, clock=clock, timing=Timing(session=None)) is None
    own = session_of(me, store, clock=clock, timing=Timing(session=TIMING))
    assert own is not None
    assert (own.record.host, own.record.incarnation, own.record.pipelines, own.record.leases_max) == (
        "a",
        "1",
        ("p",),
        3,
    )


@pytest.mark.virtual
async def test_before_its_first_heartbeat_a_host_is_not_trusted_and_judges_nobody() -> None:
    own = session(MemoryStore())
    assert not own.is_trusted
    assert not own.may_judge
    await own.beat()
    assert own.is_trusted
    assert own.may_judge
    assert own.term == 1


@pytest.mark.virtual
async def test_trust_counts_from_the_start_of_a_heartbeat_not_from_its_answer() -> None:
    own = session(Store(1.0))
    await own.beat()
    assert own.trusted_until == pytest.approx(TIMING.trust_s)


@pytest.mark.virtual
async def test_a_heartbeat_that_is_answered_while_the_host_is_trusted_keeps_the_term() -> None:
    own = session(Store(0.0, 1.0))
    await own.beat()
    await asyncio.sleep(TIMING.trust_s - 1.1)
    await own.beat()
    assert own.term == 1


@pytest.mark.virtual
async def test_a_heartbeat_that_is_begun_in_time_and_answered_too_late_begins_a_new_term() -> None:
    own = session(Store(0.0, 1.0))
    await own.beat()
    await asyncio.sleep(TIMING.trust_s - 0.5)
    await own.beat()
    assert own.is_trusted
    assert own.term == 2, "between the end of trust and the answer, others may have judged it"


@pytest.mark.virtual
async def test_leases_must_be_won_again_once_the_host_is_trusted_after_a_lapse() -> None:
    own = session(MemoryStore())
    await own.beat()
    assert not own.must_win(1)
    waiting = asyncio.create_task(own.wait_for_turn())
    await asyncio.sleep(TIMING.trust_s)
    assert not own.must_win(1), "it is not trusted yet"
    assert not waiting.done()
    await own.beat()
    await asyncio.wait_for(waiting, 0.1)
    assert own.must_win(1)
    assert not own.must_win(2)


@pytest.mark.virtual
async def test_a_host_that_cannot_write_stops_judging_before_others_could_seem_dead() -> None:
    own = session(MemoryStore())
    await own.beat()
    await asyncio.sleep(TIMING.judging_s - 0.01)
    assert own.may_judge
    await asyncio.sleep(0.02)
    assert not own.may_judge
    assert own.is_trusted, "its own leases are still its own"


@pytest.mark.virtual
async def test_the_time_between_heartbeats_that_are_too_far_apart_is_unread() -> None:
    own = session(MemoryStore())
    await own.beat()
    await asyncio.sleep(TIMING.beat_s)
    await own.beat()
    assert own.take_unread_s() == 0
    await asyncio.sleep(TIMING.judging_s + 1)
    await own.beat()
    assert own.take_unread_s() == pytest.approx(TIMING.judging_s + 1)
    assert own.take_unread_s() == 0, "it is left out once"


async def beats(own: Session, seconds: float) -> None:
    beating = asyncio.create_task(own.keep_beating(random.Random(1), lambda error: None))
    await asyncio.sleep(seconds)
    beating.cancel()
    await asyncio.gather(beating, return_exceptions=True)


@pytest.mark.virtual
async def test_heartbeats_follow_each_other_at_their_interval_and_keep_the_host_trusted() -> None:
    store = Store(*[0.5] * 1000)
    own = session(store)
    await beats(own, 600)
    gaps = {round(later - earlier, 2) for earlier, later in zip(store.attempts, store.attempts[1:], strict=False)}
    assert min(gaps) >= 2.4, "whatever a write takes"
    assert max(gaps) <= TIMING.beat_s
    assert own.term == 1


@pytest.mark.virtual
async def test_a_heartbeat_that_fails_is_repeated_at_once_and_then_less_and_less_often() -> None:
    store = Store(0.0, *[StoreUnavailable("away")] * 50)
    own = session(store)
    await beats(own, 60)
    gaps = [later - earlier for earlier, later in zip(store.attempts[1:], store.attempts[2:], strict=False)]
    assert gaps[0] <= TIMING.retry_s
    assert gaps[-1] == pytest.approx(TIMING.beat_s, rel=0.15)
    assert len(store.attempts) < 60 / TIMING.beat_s + 8, "a container that refuses everything is not kept busy"


@pytest.mark.virtual
async def test_one_heartbeat_that_is_lost_costs_no_trust() -> None:
    for lost in (StoreAmbiguous("no answer"), StoreUnavailable("away")):
        own = session(Store(0.0, 0.0, lost))
        await beats(own, 30)
        assert own.term == 1


@pytest.mark.virtual
async def test_a_heartbeat_waits_as_long_as_the_container_asks_up_to_its_interval() -> None:
    store = Store(
        0.0, StoreUnavailable("throttled", retry_after_s=1.0), StoreUnavailable("throttled", retry_after_s=60)
    )
    await beats(session(store), 12)
    first, second, third = (
        later - earlier for earlier, later in zip(store.attempts[1:], store.attempts[2:5], strict=False)
    )
    assert first == pytest.approx(1.0)
    assert second == pytest.approx(TIMING.beat_s)
    assert third <= TIMING.beat_s


@pytest.mark.virtual
async def test_a_ring_brings_the_next_heartbeat_forward_and_stays_in_the_session() -> None:
    store = Store()
    own = session(store)
    beating = asyncio.create_task(own.keep_beating(random.Random(1), lambda error: None))
    await asyncio.sleep(1.0)
    own.ring()
    own.ring()
    await asyncio.sleep(0.01)
    assert (await stored(store)).ring == 2
    own.ring()
    await asyncio.sleep(TIMING.ring_gap_s + 0.01)
    assert (await stored(store)).ring == 3
    assert store.attempts[-1] - store.attempts[-2] >= TIMING.ring_gap_s - 1e-9, "many rings make few heartbeats"
    beating.cancel()


@pytest.mark.virtual
async def test_of_two_sessions_of_one_name_the_earlier_gives_way() -> None:
    store = MemoryStore()
    first, second = session(store), session(store, "2")
    await first.beat()
    await second.beat()
    with pytest.raises(DuplicateHost):
        await first.beat()
    assert (await stored(store)).contested_by == "1"


@pytest.mark.virtual
async def test_draining_stays_in_the_session_and_the_session_ends_with_the_host() -> None:
    store = MemoryStore()
    own = session(store)
    await own.beat(draining=True)
    await own.beat()
    assert (await stored(store)).draining
    await own.end()
    assert await store.list("_sessions/") == []


@pytest.mark.virtual
async def test_a_ring_whose_heartbeat_failed_is_heard_soon_all_the_same() -> None:
    store = Store(0.0, StoreUnavailable("away"))
    own = session(store)
    beating = asyncio.create_task(own.keep_beating(random.Random(1), lambda error: None))
    await asyncio.sleep(1.0)
    own.ring()
    await asyncio.sleep(2 * TIMING.ring_gap_s)
    assert (await stored(store)).ring == 1
    beating.cancel()


# The bell


async def rung(store: MemoryStore) -> None:
    bell = Bell(store)
    bell.ring()
    await bell.write()


async def body(store: MemoryStore) -> object:
    return json.loads((await store.read(BELL_ID)).body)


async def test_a_bell_is_written_if_it_was_rung_and_counts() -> None:
    store = MemoryStore()
    await Bell(store).write()
    assert await store.list("") == []
    await rung(store)
    assert await body(store) == {"version": 1, "ring": 1}
    await rung(store)
    assert await body(store) == {"version": 1, "ring": 2}


@pytest.mark.parametrize(
    "garbled",
    [
        "",
        "{",
        "[]",
        '{"version":1}',
        '{"version":9,"ring":3}',
        '{"version":1,"ring":-1}',
        f'{{"version":1,"ring":{2**63 - 1}}}',
    ],
)
async def test_a_bell_that_cannot_be_read_is_replaced(garbled: str) -> None:
    store = MemoryStore()
    await store.create(BELL_ID, garbled)
    await rung(store)
    assert await body(store) == {"version": 1, "ring": 1}


@pytest.mark.parametrize("error", [StoreConflict, StoreMissing])
async def test_a_bell_that_another_process_rings_meanwhile_is_not_rung_twice(error: type[StoreError]) -> None:
    store = Store(0.0, error("another was first"))
    await rung(store)
    await rung(store)
    ring = {StoreConflict: 1, StoreMissing: 2}[error]
    assert await body(store) == {"version": 1, "ring": ring}


async def test_a_bell_whose_answers_are_lost_is_tried_a_few_times() -> None:
    store = Store(*[StoreAmbiguous("no answer")] * 10)
    with pytest.raises(StoreAmbiguous):
        await rung(store)
    assert len(store.attempts) == BELL_WRITES_MAX
    store = Store(StoreAmbiguous("no answer"))
    await rung(store)
    assert await body(store) == {"version": 1, "ring": 1}
