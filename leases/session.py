"""This host's document, by which it shows that it lives, and what that entitles it to.

While the host is trusted, it may send for every lease that it has written in the present term. A term ends when trust
does: others may have taken leases since. Each lease must then be won again by a compare-and-swap in a new term, before
anything is sent for it. `leasehold.leases.trust` decides, and this module writes and reads (docs/protocol.md).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from math import inf

from leasehold.common.cancellation import is_cancelled
from leasehold.common.clock import Clock, Turnstile, retry_after_s
from leasehold.leases.errors import (
    DuplicateHost,
    StoreAmbiguous,
    StoreConflict,
    StoreError,
    StoreMissing,
    StoreUnavailable,
)
from leasehold.leases.hints import Hints
from leasehold.leases.host_record import HOST_BYTES_MAX, HostRecord, encode_host, found_host, host_id
from leasehold.leases.store import LeaseStore, TimedStore
from leasehold.leases.timing import QUICK, Timing
from leasehold.leases.trust import LATE_MAX_S, Attempt, Encounter, Pace, Trust, encountered

JITTER = 0.02
WON_AGAIN_PER_S = 20.0
"""How many leases per second a host wins again after a lapse."""
UNDER_WAY_MAX = 2
"""How many attempts may wait for an answer at a time."""
TRIES_MAX = 4
"""How often a beat, or the removal of the document, is tried while others change it."""
ACTIVITY_S = 10.0
"""How old a report for people may become before a beat renews it."""


class Session:
    """This host's document. All times are of its own clock.

    fitness: `HostRecord.fitness` of the next beat. turn: the pace at which leases are won again. hints: for the hosts that have
    to act at once, if the store can pass them on.

    report: returns `HostRecord.waits`, for each beat. describe: returns `HostRecord.activity`, for a beat every ACTIVITY_S; its
    argument is how many bytes of JSON that may have. Both must be fast, and raise nothing.
    """

    def __init__(self, store: LeaseStore, record: HostRecord, *, clock: Clock, timing: Timing) -> None:
        self.record = record
        self.fitness = ""
        self.turn = Turnstile(clock.monotonic, clock.sleep)
        self.hints = Hints(TimedStore(store, timing.beat_timeout_s))
        self.report: Callable[[], Mapping[str, object]] = dict
        self.describe: Callable[[int], Mapping[str, object]] = lambda room: {}
        self._store = TimedStore(store, max(LATE_MAX_S, timing.beat_timeout_s))
        self._clock = clock
        self._timing = timing
        self._trust = Trust()
        self._pace = Pace(lasts_s=timing.duration_s, setting_s=timing.duration_s, calm_since=clock.monotonic())
        self._id = host_id(record.name)
        self._etag: str | None = None
        self.own_etag = ""
        """An ETag that this host's document has had, so no other document has it."""
        self._lock = asyncio.Lock()
        self._under_way: set[asyncio.Task[None]] = set()
        self._records: dict[int, HostRecord] = {}
        """By tick, the records that may have arrived."""
        self._shown: HostRecord | None = None
        """The last record that is known to have arrived."""
        self._replaced: set[str] = set()
        self._met: Encounter | None = None
        self._described_at = -inf
        self._unread_s = 0.0
        self._rings = 0
        self._resumes = 0
        self._nudged = asyncio.Event()
        self._turned = asyncio.Event()

    # What others may know

    @property
    def timing(self) -> Timing:
        """The intervals at the present pace."""
        return self._timing.lasting(self._pace.lasts_s)

    @property
    def term(self) -> int:
        """The present term; 0 if there is none."""
        return self._trust.term if self.is_trusted else 0

    @property
    def is_trusted(self) -> bool:
        return self._trust.may_send(self._clock.monotonic())

    @property
    def trusted_until(self) -> float:
        return self._trust.until if self._trust.term else -inf

    @property
    def may_judge(self) -> bool:
        """Whether this host can write, so that the silence of others is their own, and not an outage."""
        return self.beat_age_s < self.timing.judging_s

    @property
    def lapses(self) -> int:
        """How many terms have ended because no beat arrived in time."""
        return max(0, self._trust.last_term - bool(self.term) - self._resumes)

    @property
    def lapsed_at(self) -> float:
        """When a term last lapsed (Clock seconds)."""
        return self._trust.lapsed_at

    @property
    def beat_age_s(self) -> float:
        """Seconds since the start of the last attempt that has arrived; infinity before the first."""
        return inf if self._trust.known is None else self._clock.monotonic() - self._trust.known.began

    def ring(self) -> None:
        """Note that this host changed who has which lease: the next beat is sent soon, and the others then read the leases."""
        self._rings += 1
        self._nudged.set()

    def set_fitness(self, fitness: str, *, resumes: bool = False) -> None:
        """Show it with the next beat, which is sent soon. resumes: renounced work begins again, which needs a new term."""
        self.fitness = fitness
        if resumes:
            self._resumes += bool(self._trust.term)
            self._trust = self._trust.ended()
        self.ring()

    def must_win(self, term: int) -> bool:
        """Whether a lease that was last written in `term` must be written now, before anything is sent for it."""
        return self.term not in (0, term)

    async def wait_for_turn(self) -> None:
        """Wait until a new term begins, or `wake` is called."""
        await self._turned.wait()

    def wake(self) -> None:
        """Have all that wait for a turn check again whether they must wait."""
        self._turned.set()
        self._turned = asyncio.Event()

    def take_unread_s(self) -> float:
        """The part of the time since the last call that does not count: this host's beats were too far apart for it to judge."""
        unread_s, self._unread_s = self._unread_s, 0.0
        return unread_s

    # Beats

    async def keep_beating(
        self, rng: random.Random, failed: Callable[[BaseException], None], beaten: Callable[[], None] = lambda: None
    ) -> None:
        """Beat until cancelled. Raises DuplicateHost. failed, beaten: called after each beat that failed or arrived."""
        failures = 0
        try:
            while True:
                await self._wait_until_due(rng.random())
                try:
                    await self.beat()
                except (StoreError, asyncio.CancelledError) as error:
                    if is_cancelled(error):
                        raise
                    failures += 1
                    failed(error)
                    pause_s = self.timing.beat_backoff.pause_s(failures, rng.random(), retry_after_s(error))
                    await self._clock.sleep(min(pause_s, self.timing.beat_s))
                else:
                    failures = 0
                    beaten()
        finally:
            for task in self._under_way:
                task.cancel()

    async def open(self) -> None:
        """Beat until the first term begins. Raises DuplicateHost, StoreError."""
        while not self.is_trusted:
            await self.beat()

    async def beat(self, *, draining: bool = False) -> None:
        """Beat, and return once an attempt of this beat is known to have arrived. Raises DuplicateHost, StoreError."""
        if draining:
            self.record = replace(self.record, draining=True)
        async with self._lock:
            for _ in range(TRIES_MAX):
                tick, writing = await self._begin()
                await asyncio.wait({writing}, timeout=self.timing.beat_timeout_s)
                error = writing.exception() if writing.done() else StoreAmbiguous("a beat got no answer in time")
                if isinstance(error, StoreUnavailable):
                    self._trust = self._trust.failed(tick)
                    raise error
                if error is not None:
                    await self._read_beside(writing)
                if self._trust.has_arrived(tick):
                    return
                if not isinstance(error, StoreConflict | StoreMissing):
                    raise error or AssertionError("a beat that was answered has arrived")
            raise StoreConflict(
                f"'{self._id}' was changed by others {TRIES_MAX} times in a row: look for what writes it"
            )

    async def end(self) -> None:
        """Remove the document, so that other hosts need not wait for it to expire. A namesake's stays. Raises StoreError."""
        async with self._lock:
            if self.record.tick == 0:
                return  # never written
            with suppress(StoreMissing):
                for tries_left in reversed(range(TRIES_MAX)):
                    stored = await self._store.read(self._id)
                    found = found_host(self._id, stored.body)
                    if found is None or found.incarnation != self.record.incarnation:
                        return
                    try:
                        await self._store.delete(self._id, stored.etag)
                    except StoreConflict:  # a beat that was under way when beating ended has just arrived
                        if not tries_left:
                            raise
                    else:
                        return

    async def _wait_until_due(self, jitter: float) -> None:
        """Wait until the next beat is due: at once to name a new term, soon after a ring."""
        while True:
            self._nudged.clear()
            known, now = self._trust.known, self._clock.monotonic()
            if known is None or (not self._trust.term and self._trust.term_to_name(now)):
                return
            is_rung = self._shown is not None and self._rings > self._shown.ring
            pause_s = self.timing.ring_gap_s if is_rung else self._pause_s * (1 - JITTER * jitter)
            if (left_s := known.began + pause_s - now) <= 0:
                return
            sleeping = asyncio.create_task(self._clock.sleep(left_s))
            nudged = asyncio.create_task(self._nudged.wait())
            try:
                await asyncio.wait({sleeping, nudged}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                sleeping.cancel()
                nudged.cancel()

    @property
    def _pause_s(self) -> float:
        """After a slow beat the next one begins sooner, so that the last one that arrived is recent enough to judge others by."""
        timing, took_s = self.timing, self._pace.took_s
        return max(timing.beat_s / 2, timing.beat_s - (took_s if took_s >= QUICK * timing.duration_s else 0.0))

    async def _begin(self) -> tuple[int, asyncio.Task[None]]:
        """Begin an attempt. Returns its tick, and the task that waits for its answer."""
        if self._met is not None:
            await self._read()
        if self._met is not None:
            raise StoreConflict(
                f"another process's document has the name of host '{self.record.name}' (incarnation {self._met.incarnation}):"
                f" if it moves, this host stops; if it stands still for {self._met.lasts_s:g} s, it is replaced"
            )
        while len(self._under_way) >= UNDER_WAY_MAX:
            await asyncio.wait(self._under_way, return_when=asyncio.FIRST_COMPLETED)
        now = self._clock.monotonic()
        attempt = Attempt(
            tick=self.record.tick + 1, began=now, lasts_s=self._pace.lasts_s, term=self._trust.term_to_name(now)
        )
        self._trust = self._trust.begun(attempt)
        self.record = self._described(attempt)
        self._records = {each.tick: self._records.get(each.tick, self.record) for each in self._trust.open}
        writing = asyncio.create_task(self._write(attempt.tick, encode_host(self.record), self._etag), name="beat")
        self._under_way.add(writing)
        writing.add_done_callback(self._forget)
        return attempt.tick, writing

    def _described(self, attempt: Attempt) -> HostRecord:
        record = replace(
            self.record,
            tick=attempt.tick,
            term=attempt.term,
            lasts_s=attempt.lasts_s,
            ring=self._rings,
            fitness=self.fitness,
            waits=self.report(),
        )
        if record.draining or attempt.began - self._described_at >= ACTIVITY_S:
            self._described_at = attempt.began
            room = HOST_BYTES_MAX - len(encode_host(replace(record, activity={})).encode()) - len('"activity":{},')
            record = replace(record, activity=self.describe(max(0, room)))
        return record

    def _forget(self, writing: asyncio.Task[None]) -> None:
        self._under_way.discard(writing)
        if not writing.cancelled():
            writing.exception()  # retrieve it: a beat that still waits gets it, too

    async def _write(self, tick: int, body: str, etag: str | None) -> None:
        if etag is None:
            new = await self._store.create(self._id, body)
        else:
            new = await self._store.replace(self._id, body, etag)
        self.own_etag = new
        if self._etag == etag:  # otherwise a later ETag is known
            self._etag = new
        self._note_arrival(tick)

    def _note_arrival(self, tick: int) -> None:
        """Note that an attempt is known to have arrived."""
        now, before = self._clock.monotonic(), self._trust
        self._trust = before.arrived(tick, now)
        if (known := self._trust.known) is None or known is before.known:
            return
        self._shown, self._met = self._records[tick], None
        if before.known is not None and known.began - before.known.began > self.timing.judging_s:
            self._unread_s += known.began - before.known.began
        self._pace = self._pace.measured(now - known.began, now)
        if self._trust.last_term > before.last_term:
            self.wake()
        self._nudged.set()

    async def _read_beside(self, writing: asyncio.Task[None]) -> None:
        """Read while an attempt waits. Returns early if the attempt is answered meanwhile. Raises as `_read` does."""
        reading = asyncio.create_task(self._read(), name="read of a beat")
        try:
            if not writing.done():
                await asyncio.wait({reading, writing}, return_when=asyncio.FIRST_COMPLETED)
            if not (writing.done() and self._trust.has_arrived(self.record.tick)):
                await reading
        finally:
            reading.cancel()

    async def _read(self) -> None:
        """Read the document under this host's name. Raises DuplicateHost, StoreUnavailable."""
        try:
            async with asyncio.timeout(self.timing.beat_timeout_s):
                stored = await self._store.read(self._id)
        except StoreMissing:
            self._etag = self._met = None
            return
        except TimeoutError:
            raise StoreUnavailable(f"reading '{self._id}' got no answer in time") from None
        found = found_host(self._id, stored.body)
        if found is None or found.incarnation == self.record.incarnation:
            self._etag, self._met = stored.etag, None
            if found is not None:
                self._note_arrival(found.tick)
        elif self._is_ours_to_replace(found):
            self._etag, self._met = stored.etag, None

    def _is_ours_to_replace(self, found: HostRecord) -> bool:
        """Whether to replace another process's document: a relic, one that a backup has put back, or a namesake's.

        Raises DuplicateHost.
        """
        met = Encounter(found.incarnation, found.tick, found.lasts_s, self._clock.monotonic())
        is_first, is_replaced = self._shown is None, found.incarnation in self._replaced
        decision = encountered(met, self._met, is_first=is_first, is_replaced=is_replaced)
        if is_first:
            self._replaced.add(found.incarnation)
        else:
            self._trust = self._trust.lost()
            self._replaced.discard(
                found.incarnation
            )  # only once: the next document of this incarnation may be a live process's
        if decision == "give way":
            raise DuplicateHost(
                f"another process (incarnation {found.incarnation}) runs as host '{self.record.name}', since its document"
                " moves: this one stops; give every process a host.name of its own"
            )
        if decision == "wait":
            self._met = self._met or met
        return decision == "replace"
