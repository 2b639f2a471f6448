"""This host's session: one small document whose tick it moves, and what that entitles the host to.

While the host is trusted, it may send for every lease that it has written in the present term. A term ends when a
heartbeat is answered after the trust in the one before it was over: others may have taken leases since. Each lease must
then be won again by a compare-and-swap before anything is sent for it (docs/protocol.md, Sessions).

A process that changes leases and has no session, as a command does, rings the group's bell instead.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import inf
from types import MappingProxyType

from leasehold.common.clock import Clock, Pace, retry_after_s
from leasehold.leases.balance import Peer
from leasehold.leases.document import INTEGER_MAX, NAME_BYTES_MAX, Fields, to_json
from leasehold.leases.errors import InvalidDocument, StoreAmbiguous, StoreConflict, StoreError, StoreMissing
from leasehold.leases.hints import Hints
from leasehold.leases.host_record import PIPELINES_MAX, HostRecord, OwnDocument
from leasehold.leases.store import LeaseStore, Stored, TimedStore
from leasehold.leases.timing import SESSION_S_MAX, SessionTiming, Timing

SESSIONS_PREFIX = "_sessions/"
BELL_ID = "_sessions.bell"
LOOK_PREFIX = "_sessions"
"""Lists the sessions, and the bell."""
BELL_WRITES_MAX = 3
VERSION = 1
JITTER = 0.02
WON_AGAIN_PER_S = 20.0
"""How many leases a host wins again in a second, after a lapse."""

Tenant = tuple[str, str]
"""(host, incarnation): the owner of leases, and of one session."""

_FIELDS = frozenset(
    (
        *("version", "host", "incarnation", "tick", "durationS", "beatS", "ring"),
        *("draining", "pipelines", "leasesMax", "contestedBy", "waits"),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRecord:
    """A session, according to its document. duration_s, beat_s: the host's `SessionTiming`.

    waits: what the host reports of its work, for people; no lease is judged by it. Hosts of an earlier version report none.
    """

    host: str
    incarnation: str
    tick: int = 0
    duration_s: float = SessionTiming().duration_s
    beat_s: float = SessionTiming().beat_s
    ring: int = 0
    draining: bool = False
    pipelines: tuple[str, ...] = ()
    leases_max: int | None = None
    contested_by: str | None = None
    waits: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))
    unknown: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def tenant(self) -> Tenant:
        return self.host, self.incarnation

    def peer(self, *, is_new: bool) -> Peer:
        return Peer(
            name=self.host,
            pipelines=frozenset(self.pipelines),
            leases_max=self.leases_max,
            draining=self.draining,
            is_new=is_new,
            has_session=True,
        )


def session_id(host: str) -> str:
    return SESSIONS_PREFIX + host


def encode_session(session: SessionRecord) -> str:
    return to_json(
        {
            **session.unknown,
            "version": VERSION,
            "host": session.host,
            "incarnation": session.incarnation,
            "tick": session.tick,
            "durationS": session.duration_s,
            "beatS": session.beat_s,
            "ring": session.ring,
            "draining": session.draining,
            "pipelines": list(session.pipelines),
            "leasesMax": session.leases_max,
            "contestedBy": session.contested_by,
            **({"waits": dict(session.waits)} if session.waits else {}),
        }
    )


def decode_session(id: str, body: str) -> SessionRecord:
    """Raises InvalidDocument."""
    fields = Fields.parse(id, body)
    fields.version(VERSION)
    session = SessionRecord(
        host=fields.text("host", NAME_BYTES_MAX),
        incarnation=fields.text("incarnation", NAME_BYTES_MAX),
        tick=fields.integer("tick"),
        duration_s=fields.number("durationS"),
        beat_s=fields.number("beatS"),
        ring=fields.integer("ring"),
        draining=fields.boolean("draining"),
        pipelines=fields.texts("pipelines", NAME_BYTES_MAX, PIPELINES_MAX),
        leases_max=fields.optional_integer("leasesMax"),
        contested_by=fields.optional_text("contestedBy", NAME_BYTES_MAX),
        waits=fields.mapping("waits") if fields.has("waits") else MappingProxyType({}),
        unknown=fields.unknown(_FIELDS),
    )
    if session.duration_s > SESSION_S_MAX:
        fields.refuse("durationS", f"must be at most {SESSION_S_MAX}")
    if id != session_id(session.host):
        fields.refuse("host", f"is {session.host!r}, which belongs under another id")
    return session


class Session:
    """This host's session. All times are of its own clock.

    term: 0 before the first heartbeat. It grows with each lapse of trust.

    is_agreed: whether every live host has a session. Then leases may be written that hosts without one cannot read.

    turn: the order in which leases are won again. hints: for the hosts that have to act at once, if the store can pass them on.

    report: called with each heartbeat for `SessionRecord.waits`. It must be fast, and raise nothing.
    """

    def __init__(self, store: LeaseStore, record: SessionRecord, *, clock: Clock, timing: SessionTiming) -> None:
        self.timing = timing
        self.term = 0
        self.is_agreed = False
        self.turn = Pace(clock.monotonic, clock.sleep)
        self.hints = Hints(TimedStore(store, timing.call_timeout_s))
        self.report: Callable[[], Mapping[str, object]] = dict
        self._own = OwnDocument(
            TimedStore(store, timing.call_timeout_s),
            session_id(record.host),
            replace(record, duration_s=timing.duration_s, beat_s=timing.beat_s),
            host=record.host,
            encode=encode_session,
            decode=decode_session,
        )
        self._clock = clock
        self._beat_at = -inf
        self._unread_s = 0.0
        self._rings = 0
        self._is_draining = False
        self._rung = asyncio.Event()
        self._turned = asyncio.Event()

    @property
    def record(self) -> SessionRecord:
        record: SessionRecord = self._own.record
        return record

    @property
    def trusted_until(self) -> float:
        return self._beat_at + self.timing.trust_s

    @property
    def is_trusted(self) -> bool:
        return self._clock.monotonic() < self.trusted_until

    @property
    def may_judge(self) -> bool:
        """Whether this host can write, so that it may take the silence of others for theirs and not for an outage."""
        return self._clock.monotonic() < self._beat_at + self.timing.judging_s

    @property
    def lapses(self) -> int:
        """How often trust was over before a heartbeat was answered."""
        return max(0, self.term - 1)

    @property
    def beat_age_s(self) -> float:
        """Since the last successful heartbeat began; infinity before the first."""
        return self._clock.monotonic() - self._beat_at

    def ring(self) -> None:
        """This host changed who has which lease: the others list the leases after the next heartbeat, which comes soon."""
        self._rings += 1
        self._rung.set()

    def must_win(self, term: int | None) -> bool:
        """Whether a lease that was last written in `term` must be written now, before anything is sent for it."""
        return self.term != term and self.is_trusted

    async def wait_for_turn(self) -> None:
        """Until the term ends, since trust that is over returns only with a new one, or until `wake`."""
        await self._turned.wait()

    def wake(self) -> None:
        """All that wait for a turn look again at whether they must."""
        self._turned.set()
        self._turned = asyncio.Event()

    async def beat(self, *, draining: bool = False) -> None:
        """One heartbeat. Raises DuplicateHost, StoreError."""
        started = self._clock.monotonic()
        self._is_draining |= draining
        self._rung.clear()
        ring = self._rings
        try:
            await self._own.write(lambda me: replace(me, ring=ring, draining=self._is_draining, waits=self.report()))
        except StoreError:
            if ring > self.record.ring:
                self._rung.set()  # the next heartbeat comes as soon as it may
            raise
        self._record_answer(started, self._clock.monotonic())

    async def keep_beating(
        self, rng: random.Random, failed: Callable[[StoreError], None], beaten: Callable[[], None] = lambda: None
    ) -> None:
        """Heartbeats until it is cancelled. Raises DuplicateHost. failed, beaten: called after each."""
        failures = 0
        while True:
            await self._wait_for_beat(rng.random())
            try:
                await self.beat()
            except StoreError as error:
                failures += 1
                failed(error)
                pause_s = self.timing.backoff.pause_s(failures, rng.random(), retry_after_s(error))
                await self._clock.sleep(min(pause_s, self.timing.beat_s))
            else:
                failures = 0
                beaten()

    async def _wait_for_beat(self, jitter: float) -> None:
        """Until the next heartbeat is due: soon after a ring."""
        sleeping = asyncio.create_task(self._sleep_until(self._beat_at + self.timing.beat_s * (1 - JITTER * jitter)))
        ringing = asyncio.create_task(self._rung.wait())
        try:
            await asyncio.wait({sleeping, ringing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleeping.cancel()
            ringing.cancel()
        await self._sleep_until(
            min(self._beat_at + self.timing.ring_gap_s, self._clock.monotonic() + self.timing.ring_gap_s)
        )

    async def _sleep_until(self, at: float) -> None:
        await self._clock.sleep(max(0.0, at - self._clock.monotonic()))

    async def end(self) -> None:
        """Remove the document: other hosts need not wait until it expires. Raises StoreError."""
        await self._own.remove()

    def take_unread_s(self) -> float:
        """Time since the last call in which this host could not write, and looked as if it could: it does not count."""
        unread_s, self._unread_s = self._unread_s, 0.0
        return unread_s

    def _record_answer(self, started: float, answered: float) -> None:
        """A lapse is judged when the answer is there: until then nothing could be sent. The first term begins so, too."""
        if self.timing.judging_s < started - self._beat_at < inf:
            self._unread_s += started - self._beat_at
        if answered >= self.trusted_until:
            self.term += 1
            self.wake()
        self._beat_at = max(self._beat_at, started)


def session_of(me: HostRecord, store: LeaseStore, *, clock: Clock, timing: Timing) -> Session | None:
    """The session of a host, if hosts have any."""
    if timing.session is None:
        return None
    record = SessionRecord(host=me.name, incarnation=me.incarnation, pipelines=me.pipelines, leases_max=me.leases_max)
    return Session(store, record, clock=clock, timing=timing.session)


# The bell.


class Bell:
    """Rung by a process that changed leases or orders and has no session: hosts then list both."""

    def __init__(self, store: LeaseStore) -> None:
        self.hints = Hints(store)
        self._store = store
        self._is_rung = False

    def ring(self) -> None:
        """Leases or orders have changed since the last `write`."""
        self._is_rung = True

    async def write(self) -> None:
        """Change the bell's document, if it was rung.

        After a conflict another process has changed the document since, and hosts see that. Raises StoreUnavailable,
        StoreAmbiguous.
        """
        if not self._is_rung:
            return
        self._is_rung = False
        await self._change()
        with suppress(StoreError):  # hosts see the bell at their next look
            await self.hints.send()

    async def _change(self) -> None:
        for attempt in range(1, BELL_WRITES_MAX + 1):
            try:
                await self._write()
            except StoreConflict:
                return
            except (StoreMissing, StoreAmbiguous):
                if attempt == BELL_WRITES_MAX:
                    raise
            else:
                return

    async def _write(self) -> None:
        try:
            stored = await self._store.read(BELL_ID)
        except StoreMissing:
            await self._store.create(BELL_ID, _bell_body(1))
            return
        await self._store.replace(BELL_ID, _bell_body(_ring_in(stored) + 1), stored.etag)


def _bell_body(ring: int) -> str:
    return to_json({"version": VERSION, "ring": ring})


def _ring_in(stored: Stored) -> int:
    """0 if the document is unreadable: it is replaced."""
    try:
        fields = Fields.parse(stored.id, stored.body)
        fields.version(VERSION)
        return fields.integer("ring", at_most=INTEGER_MAX - 1)
    except InvalidDocument:
        return 0
