"""A model of how hosts show that they live, small enough that every course of events is looked at: `make model`.

One owner, one observer, one lease, one document of the owner, one store. Requests arrive in any order or never, and answers
come late or never. The owner's decisions are those of the code (`leasehold.leases.trust`). Time is a small whole number, and
all that happens within one of its steps may happen in any order.

    safe: nobody sends for the lease while another host has taken it as expired or renounced

Each `Variant` breaks one rule of docs/protocol.md, and a course of events must show that this is unsafe.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from leasehold.leases.trust import Attempt, Trust

SHORT, LONG = 2.0, 4.0
WITHOUT_TERM = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """What differs from the rules. All False: the rules."""

    name: str = "the rules"
    counts_from_answer: bool = False
    wins_in_term_of_answer: bool = False
    needs_no_term: bool = False
    shrinks_for_nothing: bool = False
    grows_at_once: bool = False
    judges_last_two: bool = False
    wins_nothing_again: bool = False
    reads_after_look: bool = False
    judges_termless: bool = True
    resumes_in_same_term: bool = False
    renounces_before_it_stops: bool = False


RULES = Variant()
UNSAFE = (
    Variant(name="trust runs from the answer to a beat", counts_from_answer=True),
    Variant(name="a lease is won in the term of the answer", wins_in_term_of_answer=True),
    Variant(name="a host sends before its document names the new term", needs_no_term=True),
    Variant(name="a host does not pay for shrinking", shrinks_for_nothing=True),
    Variant(name="observers judge by the last two values seen", shrinks_for_nothing=True, judges_last_two=True),
    Variant(name="a longer duration counts once it is asked for", grows_at_once=True),
    Variant(name="no lease is won again after a lapse", wins_nothing_again=True),
    Variant(name="a lease may be read after the look that judges its owner", reads_after_look=True),
    Variant(name="work that was renounced begins again in the same term", resumes_in_same_term=True),
    Variant(name="a host renounces before it has stopped", renounces_before_it_stops=True),
)


class Document(NamedTuple):
    etag: int
    tick: int
    term: int
    lasts_s: float
    renounced: bool


class Beat(NamedTuple):
    """A write of the owner's document. outcome: None until it has been carried out."""

    etag: int
    attempt: Attempt
    renounced: bool
    outcome: bool | None = None


class Win(NamedTuple):
    """A write of the lease by its owner."""

    etag: int
    term: int
    outcome: bool | None = None


class Seen(NamedTuple):
    """What the observer saw last of the owner, and since when; since when no term was named; the duration before."""

    etag: int
    lasts_s: float
    term: int
    renounced: bool
    since: int
    termless_since: int
    before_s: float


class State(NamedTuple):
    now: int
    document: Document
    lease_etag: int
    is_taken: bool
    # the owner
    trust: Trust
    won_term: int
    tick: int
    etag: int
    own_lease_etag: int
    renounces: bool
    works: bool
    beats: tuple[Beat, ...]
    wins: tuple[Win, ...]
    # the observer
    seen: Seen | None
    read_etag: int
    judged_etag: int
    takes: tuple[int, ...]
    # how much may still happen
    beats_left: int
    wins_left: int
    looks_left: int
    reads_left: int
    turns_left: int


class Bounds(NamedTuple):
    until: int = 6
    beats: int = 3
    wins: int = 1
    looks: int = 2
    reads: int = 1
    turns: int = 0
    """How often the owner may renounce or resume."""


def first(lasts_s: float, bounds: Bounds) -> State:
    """The owner has just begun a term, and holds the lease. The observer has just started, and has seen nothing."""
    known = Attempt(tick=1, began=0.0, lasts_s=lasts_s, term=1)
    return State(
        now=0,
        document=Document(1, 1, 1, lasts_s, False),
        lease_etag=1,
        is_taken=False,
        trust=Trust(term=1, last_term=1, known=known),
        won_term=1,
        tick=1,
        etag=1,
        own_lease_etag=1,
        renounces=False,
        works=True,
        beats=(),
        wins=(),
        seen=None,
        read_etag=0,
        judged_etag=0,
        takes=(),
        beats_left=bounds.beats,
        wins_left=bounds.wins,
        looks_left=bounds.looks,
        reads_left=bounds.reads,
        turns_left=bounds.turns,
    )


def is_safe(state: State, variant: Variant) -> bool:
    won = state.trust.term > 0 if variant.wins_nothing_again else 0 < state.won_term == state.trust.term
    return not (state.is_taken and state.works and won and may_send(state, variant))


def may_send(state: State, variant: Variant) -> bool:
    trust = state.trust
    if trust.known is None or trust.term == 0:
        return False
    until = trust.known.trusted_until if variant.shrinks_for_nothing else trust.until
    if variant.grows_at_once:
        until = max([until, *(each.trusted_until for each in trust.open if each.lasts_s > trust.known.lasts_s)])
    return state.now < until


def arrived(state: State, tick: int, variant: Variant) -> Trust:
    trust = state.trust
    if variant.counts_from_answer:
        late = tuple(replace(each, began=float(state.now)) if each.tick == tick else each for each in trust.open)
        trust = replace(trust, open=late)
    found = trust.arrived(tick, state.now)
    if variant.needs_no_term and found.term == 0 and found.known is not None and state.now < found.until:
        found = replace(found, term=found.last_term + 1, last_term=found.last_term + 1)
    return found


def successors(state: State, variant: Variant, bounds: Bounds) -> Iterator[State]:
    if state.now < bounds.until:
        yield state._replace(now=state.now + 1)
    yield from _owner(state, variant)
    yield from _network(state, variant)
    yield from _observer(state, variant)


def _owner(state: State, variant: Variant) -> Iterator[State]:
    if state.beats_left and sum(each.outcome is None for each in state.beats) < 2:
        for lasts_s in (SHORT, LONG):
            attempt = Attempt(
                tick=state.tick + 1, began=float(state.now), lasts_s=lasts_s, term=state.trust.term_to_name(state.now)
            )
            yield state._replace(
                trust=state.trust.begun(attempt),
                tick=state.tick + 1,
                beats=(*state.beats, Beat(state.etag, attempt, state.renounces)),
                beats_left=state.beats_left - 1,
            )
    if state.reads_left:  # of the owner's document, on another connection
        yield state._replace(
            trust=arrived(state, state.document.tick, variant),
            etag=state.document.etag,
            reads_left=state.reads_left - 1,
        )
    if state.wins_left and may_send(state, variant):
        yield state._replace(
            wins=(*state.wins, Win(state.own_lease_etag, state.trust.term)), wins_left=state.wins_left - 1
        )
    if state.turns_left and not state.renounces:
        works = state.works and variant.renounces_before_it_stops
        yield state._replace(renounces=True, works=works, turns_left=state.turns_left - 1)
    elif state.turns_left:
        trust = state.trust if variant.resumes_in_same_term else state.trust.ended()
        yield state._replace(renounces=False, works=True, trust=trust, turns_left=state.turns_left - 1)


def _network(state: State, variant: Variant) -> Iterator[State]:
    for beat in state.beats:
        rest = tuple(each for each in state.beats if each is not beat)
        if beat.outcome is None:  # it arrives, or never does
            yield state._replace(beats=rest)
            if beat.etag == state.document.etag:  # otherwise it is refused, which shows nothing
                attempt = beat.attempt
                document = Document(beat.etag + 1, attempt.tick, attempt.term, attempt.lasts_s, beat.renounced)
                yield state._replace(document=document, beats=_sorted((*rest, beat._replace(outcome=True))))
        else:  # its answer comes back; if not, it stays on its way for ever
            yield state._replace(
                trust=arrived(state, beat.attempt.tick, variant), etag=max(state.etag, beat.etag + 1), beats=rest
            )
    for win in state.wins:
        rest_of_wins = tuple(each for each in state.wins if each is not win)
        if win.outcome is None:
            if win.etag == state.lease_etag:
                yield state._replace(lease_etag=state.lease_etag + 1, wins=(*rest_of_wins, win._replace(outcome=True)))
        else:
            term = state.trust.term if variant.wins_in_term_of_answer else win.term
            yield state._replace(won_term=term, own_lease_etag=win.etag + 1, wins=rest_of_wins)
    for etag in state.takes:
        is_taken = etag == state.lease_etag
        yield state._replace(
            is_taken=state.is_taken or is_taken,
            lease_etag=state.lease_etag + is_taken,
            takes=tuple(each for each in state.takes if each != etag),
        )


def _observer(state: State, variant: Variant) -> Iterator[State]:
    if state.is_taken:
        return
    if state.read_etag != state.lease_etag:
        yield state._replace(read_etag=state.lease_etag)
    if state.looks_left:
        seen = looked(state.seen, state.document, state.now)
        judged = state.read_etag if is_dead(seen, state.now, variant) else 0
        if variant.reads_after_look and is_dead(seen, state.now, variant):
            judged = -1
        yield state._replace(seen=seen, judged_etag=judged, looks_left=state.looks_left - 1)
    wanted = state.lease_etag if state.judged_etag == -1 else state.judged_etag
    if wanted and not state.takes:
        yield state._replace(takes=(wanted,), judged_etag=0)


def looked(before: Seen | None, found: Document, now: int) -> Seen:
    is_same = before is not None and before.etag == found.etag
    since = before.since if before is not None and is_same else now
    was_termless = before is not None and before.term == 0 and found.term == 0
    termless_since = before.termless_since if before is not None and was_termless else now
    before_s = found.lasts_s if before is None else before.before_s if is_same else before.lasts_s
    return Seen(found.etag, found.lasts_s, found.term, found.renounced, since, termless_since, before_s)


def is_dead(seen: Seen, now: int, variant: Variant) -> bool:
    lasts_s = max(seen.lasts_s, seen.before_s) if variant.judges_last_two else seen.lasts_s
    is_silent = now >= seen.since + lasts_s
    is_termless = seen.term == 0 and now >= seen.termless_since + WITHOUT_TERM * lasts_s
    return is_silent or (variant.judges_termless and is_termless) or seen.renounced


def _sorted(beats: tuple[Beat, ...]) -> tuple[Beat, ...]:
    return tuple(sorted(beats, key=lambda beat: beat.attempt.tick))


class Found(NamedTuple):
    """states: how many were looked at. course: how the first unsafe one came about; empty if there is none."""

    states: int
    course: tuple[State, ...]


def searched(
    variant: Variant,
    bounds: Bounds,
    starts: tuple[float, ...] = (SHORT, LONG),
    told: Callable[[int], None] = lambda n: None,
) -> Found:
    """Every state that can be reached, breadth first."""
    came_from: dict[State, State | None] = {first(lasts_s, bounds): None for lasts_s in starts}
    queue = deque(came_from)
    while queue:
        state = queue.popleft()
        if not is_safe(state, variant):
            return Found(len(came_from), _course(came_from, state))
        for following in successors(state, variant, bounds):
            if following not in came_from:
                came_from[following] = state
                queue.append(following)
                if len(came_from) % 100_000 == 0:
                    told(len(came_from))
    return Found(len(came_from), ())


def _course(came_from: dict[State, State | None], state: State | None) -> tuple[State, ...]:
    course: list[State] = []
    while state is not None:
        course.append(state)
        state = came_from[state]
    return tuple(reversed(course))
