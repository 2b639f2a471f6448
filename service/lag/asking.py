"""Questions to feeds: many at a time, bounded in time, and an error is an answer too."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Generic, TypeVar, cast

from leasehold.leases.lease import Lease, LeaseKey
from leasehold.leases.lineage import scopes_of
from leasehold.pipeline.errors import FeedError, FeedNotFound, FeedUnavailable
from leasehold.pipeline.feed import ChangeFeed, FeedPartition, KnownLag

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class LagTimeouts:
    """How long feeds may take. call_s: one call; total_s: all calls together; at_once: how many run at a time."""

    call_s: float = 3.0
    total_s: float = 4.0
    at_once: int = 16


LAG_TIMEOUTS = LagTimeouts()
NO_LISTINGS: Mapping[str, Sequence[FeedPartition]] = MappingProxyType({})


def remind(feeds: Mapping[str, ChangeFeed], leases: Collection[Lease]) -> None:
    for name, feed in feeds.items():
        feed.remember(scopes_of(lease for lease in leases if lease.pipeline == name))


def find_missing(
    listed: Mapping[str, Sequence[FeedPartition]], feeds: Mapping[str, ChangeFeed], leases: Collection[Lease]
) -> set[LeaseKey]:
    """The keys of the leases that partitions lack. listed: the feeds' partitions, by pipeline."""
    missing = set()
    for pipeline, partitions in listed.items():
        ours = [lease for lease in leases if lease.pipeline == pipeline]
        known = {lease.partition for lease in ours}
        held = {lease.scope for lease in ours if lease.scope is not None and not lease.closed}
        parts = (
            part for each in partitions if each.name not in known for part in feeds[pipeline].uncovered(each, held)
        )
        missing |= {LeaseKey(pipeline, part.name) for part in parts if part.name not in known}
    return missing


def known_lag_of(feed: ChangeFeed, lease: Lease) -> KnownLag | None:
    """The lag that the reader of a metered feed knows; None if it knows none, or fails. Never raises."""
    try:
        return feed.known_lag(lease.partition, lease.continuation)
    except Exception:
        return None


@dataclass(frozen=True, slots=True)
class Answers(Generic[K, T]):
    found: dict[K, T]
    errors: dict[K, str]
    lasting: dict[K, str] = field(default_factory=dict)
    """The errors that only a person can end."""


async def list_partitions(
    feeds: Mapping[str, ChangeFeed], listings: Mapping[str, Sequence[FeedPartition]], patience: LagTimeouts
) -> Answers[str, Sequence[FeedPartition]]:
    calls: dict[str, Callable[[], Awaitable[Sequence[FeedPartition]]]] = {
        name: feeds[name].partitions for name in feeds if name not in listings
    }
    answers = await ask_noting(calls, patience)
    answers.found.update(listings)
    return answers


async def ask_noting(calls: Mapping[K, Callable[[], Awaitable[T]]], patience: LagTimeouts) -> Answers[K, T]:
    """As `ask_all`; also notes which errors only a person can end."""
    lasting: dict[K, str] = {}

    async def ask(key: K) -> T:
        try:
            return await calls[key]()
        except FeedError as error:
            if isinstance(error, FeedNotFound) or not isinstance(error, FeedUnavailable):
                lasting[key] = str(error)
            raise

    answers = await ask_all({key: partial(ask, key) for key in calls}, patience=patience)
    return replace(answers, lasting=lasting)


async def await_answer(call: Callable[[], Awaitable[T]], call_s: float) -> tuple[T | None, str | None]:
    """A feed's answer, or why there is none. Never raises."""
    try:
        async with asyncio.timeout(call_s):
            return await call(), None
    except TimeoutError:
        return None, f"no answer within {call_s:g} s"
    except FeedError as error:
        return None, str(error)
    except Exception as error:  # one faulty connector must not silence the others
        return None, f"unexpected {type(error).__name__}: {error}"


async def ask_all(calls: Mapping[K, Callable[[], Awaitable[T]]], *, patience: LagTimeouts) -> Answers[K, T]:
    """Every call's answer or error; never raises."""
    answers: Answers[K, T] = Answers({}, dict.fromkeys(calls, f"no answer within {patience.total_s:g} s"))
    gate = asyncio.Semaphore(patience.at_once)

    async def ask(key: K, call: Callable[[], Awaitable[T]]) -> None:
        async with gate:
            answer, error = await await_answer(call, patience.call_s)
            if error is not None:
                answers.errors[key] = error
            else:
                answers.found[key] = cast(T, answer)
                del answers.errors[key]

    with suppress(TimeoutError):  # a partition without an answer by then keeps the error from above
        async with asyncio.timeout(patience.total_s), asyncio.TaskGroup() as group:
            for key, call in calls.items():
                group.create_task(ask(key, call))
    return answers
