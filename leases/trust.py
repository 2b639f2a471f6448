"""What a host knows of its own beats, and therefore whether it may send. Pure (docs/protocol.md, S2 to S4).

A beat is tried until one of its attempts is known to have arrived: by its answer, however late, or because a read shows
it. Trust runs from the start of that attempt.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf
from typing import Literal, NamedTuple

from leasehold.leases.timing import CALM_S, LASTS_S_MAX, MARGIN, QUICK, SLOW

LATE_MAX_S = 15.0
"""An attempt that has no answer after this time is given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A write of this host's document. began: Clock seconds. lasts_s: the duration that it names.

    term: the one that it names; 0 if none.
    """

    tick: int
    began: float
    lasts_s: float
    term: int = 0

    @property
    def trusted_until(self) -> float:
        return self.began + self.lasts_s * (1 - MARGIN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """term: the present one; 0 after a lapse. last_term: every new term is above it.

    known: the last attempt that is known to have arrived. open: later attempts, which may have arrived. lapsed_at: when a term
    last lapsed (Clock seconds).
    """

    term: int = 0
    last_term: int = 0
    known: Attempt | None = None
    open: tuple[Attempt, ...] = ()
    lapsed_at: float = field(default=-inf, compare=False)

    @property
    def until(self) -> float:
        """When trust ends (Clock seconds).

        A longer duration counts once it is known to have arrived, and a shorter one as soon as an attempt names it.
        """
        if self.known is None:
            return -inf
        shorter = (each.trusted_until for each in self.open if each.lasts_s < self.known.lasts_s)
        return min(self.known.trusted_until, *shorter, inf)

    def may_send(self, now: float) -> bool:
        return self.term > 0 and now < self.until

    def term_to_name(self, now: float) -> int:
        """The term for an attempt that begins now: after a lapse 0 until a beat has arrived in time, and then a new one."""
        if now >= self.until:
            return 0
        return self.term or self.last_term + 1

    def begun(self, attempt: Attempt) -> Trust:
        """With an attempt that begins now, and without those that are too old to matter."""
        now = attempt.began
        kept = (each for each in self.open if now < each.began + max(each.lasts_s, LATE_MAX_S))
        return replace(self._at(now), open=(*kept, attempt))

    def failed(self, tick: int) -> Trust:
        """Without an attempt that has certainly not arrived."""
        return replace(self, open=tuple(each for each in self.open if each.tick != tick))

    def has_arrived(self, tick: int) -> bool:
        """Whether this attempt, or a later one, is known to have arrived."""
        return self.known is not None and self.known.tick >= tick

    def arrived(self, tick: int, now: float) -> Trust:
        """After an attempt is known to have arrived. The first one that arrives in time and names a new term begins that term."""
        attempt = next((each for each in self.open if each.tick == tick), None)
        if attempt is None:
            return self
        later = tuple(each for each in self.open if each.tick > tick)
        found = replace(self._at(now), known=attempt, open=later)
        if found.term or attempt.term <= self.last_term or now >= found.until:
            return found
        return replace(found, term=attempt.term, last_term=attempt.term)

    def _at(self, now: float) -> Trust:
        """As of `now`: without the term if it has lapsed."""
        return self if self.term == 0 or now < self.until else replace(self, term=0, lapsed_at=self.until)

    def ended(self) -> Trust:
        """Without a term: nothing is sent before the next one begins. An attempt that is under way cannot begin one."""
        return replace(self, term=0, last_term=max(self.last_term, *(each.term for each in self.open), 0))

    def lost(self) -> Trust:
        """Another process's document has taken the place of this host's."""
        return replace(self, term=0, known=None, open=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The duration of a host: its setting, or longer while its beats are slow. took_s: of the last beat.

    calm_since: since when the duration has not changed, and no beat took the share QUICK of it (Clock seconds).
    """

    lasts_s: float
    setting_s: float
    calm_since: float
    took_s: float = 0.0

    def measured(self, took_s: float, now: float) -> Pace:
        """After a beat that became known to have arrived `took_s` after its start."""
        longest, lasts_s = max(LASTS_S_MAX, self.setting_s), self.lasts_s
        while took_s >= SLOW * lasts_s and lasts_s < longest:
            lasts_s = min(2 * lasts_s, longest)
        if lasts_s > self.lasts_s or took_s >= QUICK * lasts_s:
            return replace(self, lasts_s=lasts_s, calm_since=now, took_s=took_s)
        if now - self.calm_since < CALM_S:
            return replace(self, took_s=took_s)
        return replace(self, lasts_s=max(lasts_s / 2, self.setting_s), calm_since=now, took_s=took_s)


class Encounter(NamedTuple):
    """Another process's document under this host's name. since: when this host first read it so (Clock seconds)."""

    incarnation: str
    tick: int
    lasts_s: float
    since: float

    def is_moved_since(self, before: Encounter) -> bool:
        return (self.incarnation, self.tick) != (before.incarnation, before.tick)


def encountered(
    found: Encounter, before: Encounter | None, *, is_first: bool, is_replaced: bool
) -> Literal["replace", "wait", "give way"]:
    """What to do about another process's document. is_first: no beat of this host has arrived yet, so an earlier process
    wrote the document.

    is_replaced: this host replaced that incarnation at its first write, so a backup has put the document back.
    """
    if is_first or is_replaced:
        return "replace"
    if before is None:
        return "wait"
    if found.is_moved_since(before):
        return "give way"
    return "replace" if found.since - before.since >= before.lasts_s else "wait"
