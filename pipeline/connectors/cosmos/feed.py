"""A container's change feed: a partition for each of its ranges, with the server's own ETags as continuations.

The server cuts pages at the ends of transactions. A position is the ETag after a page, or `"<lsn>"` between two
transactions of a page. If a range was split or merged, reading ends there, and the children begin at the delivered position.

Executors may read what waits: a request may begin at any LSN, so ranges are cut by LSN, up to the current one. The service takes
no upper bound, so a reader drops what is past its range. Nothing counts the changes between two LSNs: a range is complete once
the service has sent a later change, or once a replica that has reached its end has answered that nothing follows. In mode
`latest`, a document that has changed since is missing from its range, and follows with its new LSN (docs/protocol.md, latest
versions).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import NamedTuple, TypeVar
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa

from leasehold.common.azure import CosmosAccount, cosmos_account_of
from leasehold.common.clock import Patience, Pauses
from leasehold.pipeline.connectors.cosmos.change_feed_request import (
    FROM_NOW,
    GONE,
    NOT_MODIFIED,
    OK,
    TIMEOUT,
    Ask,
    FeedAnswer,
    Mode,
    refusal,
)
from leasehold.pipeline.connectors.cosmos.client import CosmosContainer
from leasehold.pipeline.connectors.cosmos.page_size import PageSize
from leasehold.pipeline.connectors.cosmos.ranges import (
    BEGINNING,
    RangeSection,
    estimated,
    furthest,
    lsn_of,
    partition_of,
    position_behind,
    session_lsn,
    uncovered,
)
from leasehold.pipeline.connectors.cosmos.records import SEQUENCE_BITS, ChangeRecord, PageLimits, pages_of, records_of
from leasehold.pipeline.connectors.cosmos.whereabouts import Whereabouts
from leasehold.pipeline.errors import FeedError, FeedUnavailable, PositionLost
from leasehold.pipeline.event import EVENT_SCHEMA, Page
from leasehold.pipeline.feed import ChangeFeed, FeedPartition, PartitionEnded, Start
from leasehold.pipeline.ranges import EventRange, RangeReader, iterate, secret_in

T = TypeVar("T")
PARSING_THREADS = 2
REFRESHED_S = 3600.0
"""An idle position of all versions and deletes is advanced this often; otherwise retention (hours) would pass it."""


class _Gone(FeedUnavailable):
    """The requested range no longer exists."""


class _Lag(NamedTuple):
    """The lag of one range. time_s: when the first change after the position was written, seconds since 1970."""

    transactions: int
    time_s: int | None


class CosmosChangeFeed(ChangeFeed):
    """mode: `latest` yields each changed document's latest version; `all_versions` every version and delete, from now on.

    executors_env: the environment variable of Spark's executors that holds the account's key; an identity needs none.
    """

    def __init__(
        self,
        account: CosmosAccount,
        database: str,
        container: str,
        *,
        mode: Mode = "latest",
        pages: PageLimits | None = None,
        poll_interval_s: float = 1.0,
        timeout_s: float = 20.0,
        pauses: Pauses | None = None,
        executors_env: str | None = None,
    ) -> None:
        self._is_for_executors = account.key is None or executors_env is not None
        self._container = CosmosContainer(account, database, container, timeout_s=timeout_s)
        self._endpoint_host = urlsplit(account.endpoint).hostname or ""
        self._mode: Mode = mode
        self._page_limits = pages or PageLimits()
        self._poll_interval_s = poll_interval_s
        self._pauses = pauses or Pauses()
        self._ranges = CosmosRanges(
            account=replace(account, key=None),
            variable=None if account.key is None else executors_env,
            database=database,
            container=container,
            mode=mode,
            pages=self._page_limits,
            timeout_s=timeout_s,
            patience_s=self._pauses.patience_s,
        )
        self._where = Whereabouts(self._container.list_ranges)
        self._key_paths: tuple[str, ...] | None = None
        self._first_times: dict[str, tuple[str | None, int | None]] = {}
        """By partition: the position of the last call of `lag`, and when the first change after it was written."""
        self._threads = ThreadPoolExecutor(PARSING_THREADS, thread_name_prefix="cosmos-feed")

    @property
    def identity(self) -> str:
        return f"cosmos:{self._container.name}" + (":all_versions" if self._mode == "all_versions" else "")

    @property
    def mode(self) -> Mode:
        return self._mode

    @property
    def endpoint_host(self) -> str:
        return self._endpoint_host

    async def read_container_rid(self) -> str:
        """The container's resource id: .NET's leases are named after it and the host."""
        return await self._container.read_rid()

    async def partitions(self) -> list[FeedPartition]:
        """If the account throttles the request, it is repeated after the time that the account names."""
        patience = Patience(self._pauses)
        while True:
            try:
                return sorted(partition_of(each) for each in await self._where.list_ranges())
            except FeedUnavailable as error:
                if error.retry_after_s is None:
                    raise
                await patience.pause(error)

    def remember(self, scopes: Mapping[str, str]) -> None:
        self._where.remember(scopes)

    def uncovered(self, partition: FeedPartition, scopes: Collection[str]) -> list[FeedPartition]:
        return uncovered(partition, scopes)

    async def start_of(self, partition: str, start: Start) -> str | None:
        place = await self._where.find_place(partition)
        if start == "earliest" and self._mode == "latest":
            return None
        if start == "latest":
            return await self._end_of(place)
        if self._mode == "all_versions" or not isinstance(start, datetime):
            raise PositionLost(
                f"feed '{self.identity}' cannot deliver all versions and deletes from {start}: set `start: latest`"
            )
        return await self._at(place, start)

    async def open(self, partition: str, continuation: str | None) -> AsyncGenerator[Page, None]:
        lsn_of(continuation)
        self._check_beginning(partition, continuation)
        size, patience = PageSize.of(self._page_limits.items_max), Patience(self._pauses)
        delivered = after = continuation
        moved_at = in_reach_at = self._pauses.monotonic()
        while True:
            try:
                place = await self._place_or_end(partition, delivered)
                answer = await self._ask(place, after, size.items)
                size = size.shrunk() if answer.status == TIMEOUT else size.served() if answer.status == OK else size
                pages = await self._pages(partition, answer, after)
            except FeedUnavailable as error:
                await patience.pause(error)
                continue
            patience.served()
            in_reach_at = self._in_reach(partition, delivered, answer, in_reach_at)
            after = pages[-1].to if pages else furthest(after, answer.etag)
            if not pages:
                if self._mode == "all_versions" and self._pauses.monotonic() - moved_at >= REFRESHED_S:
                    pages.append(Page(EVENT_SCHEMA.empty_table(), after))
                await self._pauses.sleep(self._pauses.jittered(self._poll_interval_s))
            while pages:  # keep no page while this loop or its reader waits
                delivered, moved_at = pages[0].to, self._pauses.monotonic()
                yield pages.pop(0)

    async def plan_ranges(
        self, partition: str, continuation: str | None, events_max: int, range_events: int
    ) -> list[EventRange]:
        """Counts transactions. In mode `latest`, ranges may have far fewer documents, each only at its last change."""
        first = lsn_of(continuation)
        if continuation is None and self._mode == "all_versions":
            return []  # `open` raises PositionLost
        try:
            last = lsn_of(await self._end_of(await self._place_or_end(partition, continuation)))
        except (FeedUnavailable, PartitionEnded):
            return []  # `open` waits, or raises it
        end = min(last, first + events_max)
        edges = [*range(first, end, range_events), end]
        starts = [continuation, *map(position_behind, edges[1:-1])]
        return [
            EventRange(start, position_behind(b), b - a) for start, (a, b) in zip(starts, pairwise(edges), strict=False)
        ]

    def range_reader(self) -> RangeReader | None:
        return self._ranges if self._is_for_executors else None

    async def read_up_to(self, partition: str, start: str | None, to: str) -> AsyncGenerator[pa.Table, None]:
        """Yield what follows `start` up to `to`, and end. `to`: a position that the partition has reached."""
        size, patience = PageSize.of(self._page_limits.items_max), Patience(self._pauses)
        after, last = start, lsn_of(to)
        while lsn_of(after) < last:
            try:
                place = await self._place_or_end(partition, after)
                answer = await self._ask(place, after, size.items)
                size = size.shrunk() if answer.status == TIMEOUT else size.served() if answer.status == OK else size
                pages = await self._pages(partition, answer, after)
                reached = pages[-1].to if pages else self._checked_end(partition, answer, after, to)
            except FeedUnavailable as error:
                await patience.pause(error)
                continue
            patience.served()
            after = reached
            for page in pages:
                count = np.searchsorted(page.events["sequence"].to_numpy(), (last + 1) << SEQUENCE_BITS)
                if count:
                    yield page.events.slice(0, int(count))

    def _checked_end(self, partition: str, answer: FeedAnswer, after: str | None, to: str) -> str:
        """The position up to which nothing follows `after`, by an answer without changes.

        A 304 counts only up to where its replica had come, which may lag. Raises FeedUnavailable if that is not past `after`.
        """
        session = session_lsn(answer.session) if answer.status == NOT_MODIFIED else None
        end = answer.etag if session is None else position_behind(session)
        if lsn_of(end) <= lsn_of(after):
            raise FeedUnavailable(
                f"container {self._container.name}, partition '{partition}' answers up to {end}, and the range ends at {to}"
            )
        return end

    async def latest(self, partition: str) -> str | None:
        """For a range that was split or merged, the furthest of its successors' positions."""
        last = max(await self._everywhere(partition, self._end_of), key=lsn_of)
        return last if lsn_of(last) > BEGINNING else None

    async def lag(self, partition: str, continuation: str | None) -> int:
        """Transactions, as the .NET estimator counts them: those of a merged range's other part count too."""
        found = await self._lags(partition, continuation)
        self._first_times[partition] = (
            continuation,
            min((each.time_s for each in found if each.time_s is not None), default=None),
        )
        return sum(each.transactions for each in found)

    async def find_enqueued_time(self, partition: str, continuation: str | None) -> datetime | None:
        """The `_ts` of the first change, in whole seconds: from the answer to `lag`, if that was for this position."""
        known, time_s = self._first_times.get(partition, (None, None))
        if known != continuation or time_s is None:
            found = await self._lags(partition, continuation)
            time_s = min((each.time_s for each in found if each.time_s is not None), default=None)
        return None if time_s is None else datetime.fromtimestamp(time_s, UTC)

    async def _lags(self, partition: str, continuation: str | None) -> list[_Lag]:
        lsn_of(continuation)
        self._check_beginning(partition, continuation)
        return await self._everywhere(partition, lambda place: self._lag_at(place, continuation))

    def compare(self, a: str | None, b: str | None) -> int:
        """Within a partition, and between it and its successors, which continue its LSNs."""
        return lsn_of(a) - lsn_of(b)

    async def close(self) -> None:
        await self._container.close()
        self._threads.shutdown(wait=False)

    async def _everywhere(self, partition: str, ask: Callable[[RangeSection], Awaitable[T]]) -> list[T]:
        """The answers for the partition's or its successors' ranges, with new ranges if the known ones are outdated."""
        try:
            return [await ask(place) for place in await self._where.list_places(partition)]
        except _Gone:
            return [await ask(place) for place in await self._where.list_places(partition)]

    async def _place_or_end(self, partition: str, delivered: str | None) -> RangeSection:
        """The partition's place. Raises PartitionEnded."""
        heirs = await self._where.find_heirs(partition)
        if [heir.name for heir in heirs] == [partition]:
            return await self._where.find_place(partition)
        raise PartitionEnded(
            partition,
            tuple((heir.name, delivered) for heir in heirs),
            scopes={heir.name: str(heir.span) for heir in heirs},
        )

    async def _ask(
        self, place: RangeSection, after: str | None, items_max: int, since: datetime | None = None
    ) -> FeedAnswer:
        ask = Ask(place=place, after=after, items_max=items_max, mode=self._mode, since=since)
        answer = await self._container.read_changes(ask)
        if answer.status == GONE:
            self._where.forget(place)
        return answer

    async def _ask_one(self, place: RangeSection, after: str | None, since: datetime | None = None) -> FeedAnswer:
        """The answer to a request for at most one item. Raises FeedError."""
        answer = await self._ask(place, after, 1, since)
        if answer.status == GONE:
            raise _Gone(str(self._refused(place.range_id, answer)))
        if answer.status not in (OK, NOT_MODIFIED):
            raise self._refused(place.range_id, answer)
        return answer

    async def _end_of(self, place: RangeSection) -> str:
        answer = await self._ask_one(place, FROM_NOW)
        lsn_of(answer.etag)
        return answer.etag

    async def _at(self, place: RangeSection, time: datetime) -> str | None:
        """Where to begin for all changes from `time` on. The account may first answer 304, with the position to begin at."""
        if time <= datetime(1970, 1, 1, tzinfo=UTC):
            return None
        answer = await self._ask_one(place, None, time)
        if answer.status == NOT_MODIFIED:
            lsn_of(answer.etag)
            return answer.etag
        records = await self._records(answer, None)
        return position_behind(records[0].lsn - 1) if records else answer.etag

    async def _lag_at(self, place: RangeSection, continuation: str | None) -> _Lag:
        answer = await self._ask_one(place, continuation)
        records = await self._records(answer, continuation) if answer.status == OK else []
        if not records:
            return _Lag(0, None)
        return _Lag(estimated(session_lsn(answer.session), records[0].lsn), records[0].time_s)

    async def _pages(self, partition: str, answer: FeedAnswer, after: str | None) -> list[Page]:
        """The pages of an answer; none if nothing follows `after`, whatever a lagging replica answers. Raises FeedError."""
        if answer.status not in (OK, NOT_MODIFIED):
            raise self._refused(partition, answer)
        lsn_of(answer.etag)
        if answer.status == NOT_MODIFIED:
            return []
        paths = await self._paths()
        return await self._run_on_thread(lambda: self._cut(partition, self._behind(answer, paths, after), answer))

    def _cut(self, partition: str, records: list[ChangeRecord], answer: FeedAnswer) -> list[Page]:
        """The answer's receipt is that of the first page; the others were not charged."""
        if not records:
            return []
        to = furthest(position_behind(records[-1].lsn), answer.etag)
        pages = pages_of(partition, records, to, self._page_limits)
        first, free = answer.receipt, replace(answer.receipt, request_charge=0.0)
        return [replace(page, receipt=free if number else first) for number, page in enumerate(pages)]

    async def _records(self, answer: FeedAnswer, after: str | None) -> list[ChangeRecord]:
        paths = await self._paths()
        return await self._run_on_thread(lambda: self._behind(answer, paths, after))

    def _behind(self, answer: FeedAnswer, paths: tuple[str, ...], after: str | None) -> list[ChangeRecord]:
        """The changes of an answer after `after`: a replica that lags may repeat earlier ones."""
        read = lsn_of(after)
        records = records_of(answer.body, paths, all_versions=self._mode == "all_versions")
        return [record for record in records if record.lsn > read]

    async def _paths(self) -> tuple[str, ...]:
        if self._key_paths is None:
            self._key_paths = await self._container.read_key_paths()
        return self._key_paths

    async def _run_on_thread(self, call: Callable[[], T]) -> T:
        """Make a call on a thread: parsing takes a while, and renewals must not wait for it."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    def _in_reach(self, partition: str, delivered: str | None, answer: FeedAnswer, in_reach_at: float) -> float:
        """When the range was last seen to be at or past the delivered position. A replica may lag, but not forever.

        A range that stays before it has lost writes: its new ones would be skipped until it is there again. Raises PositionLost.
        """
        session, now = session_lsn(answer.session), self._pauses.monotonic()
        session = lsn_of(answer.etag) if session is None else session
        if session >= lsn_of(delivered):
            return now
        if now - in_reach_at > self._pauses.patience_s:
            raise PositionLost(
                f"container {self._container.name}, partition '{partition}' ends at {session} and was read up to"
                f" {delivered}: it was restored or failed over without its last writes; set the lease to a continuation"
                f" like {position_behind(session)!r}"
            )
        return in_reach_at

    def _refused(self, partition: str, answer: FeedAnswer) -> Exception:
        return refusal(answer, f"container {self._container.name}, partition '{partition}'")

    def _check_beginning(self, partition: str, continuation: str | None) -> None:
        if continuation is None and self._mode == "all_versions":
            raise PositionLost(
                f"feed '{self.identity}', partition '{partition}': all versions and deletes are not kept from the beginning:"
                " set the lease to a continuation"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class CosmosRanges(RangeReader):
    """Reads ranges with a client of its own.

    account: without its key. variable: of the executors, with the key; None for an identity. patience_s: how long requests may
    fail without any success.
    """

    account: CosmosAccount
    variable: str | None
    database: str
    container: str
    mode: Mode
    pages: PageLimits
    timeout_s: float
    patience_s: float

    counts_events = False

    @property
    def is_repeatable(self) -> bool:
        """Not with latest versions: a document that changes leaves its range."""
        return self.mode == "all_versions"

    def read_range(self, partition: str, planned: EventRange) -> Iterator[pa.Table]:
        yield from iterate(self._read(partition, planned))

    async def _read(self, partition: str, planned: EventRange) -> AsyncGenerator[pa.Table, None]:
        feed = CosmosChangeFeed(
            self._own_account(),
            self.database,
            self.container,
            mode=self.mode,
            pages=self.pages,
            timeout_s=self.timeout_s,
            pauses=Pauses(patience_s=self.patience_s),
        )
        try:
            async with aclosing(feed.read_up_to(partition, planned.start, planned.to)) as tables:
                async for table in tables:
                    yield table
        except PartitionEnded as ended:
            raise FeedUnavailable(f"{ended}: its children take over") from ended
        finally:
            await feed.close()

    def _own_account(self) -> CosmosAccount:
        """The account with the key that this process has."""
        if self.variable is None:
            return self.account
        try:
            return cosmos_account_of(
                endpoint=self.account.endpoint, key=secret_in(self.variable), ca_file=self.account.ca_file
            )
        except ValueError as error:
            raise FeedError(f"the environment variable {self.variable} of Spark's executors: {error}") from None
