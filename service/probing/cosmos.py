"""Questions to Cosmos DB, about a container that is created for them and removed at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import count, pairwise

from leasehold.common.azure import CosmosAccount
from leasehold.common.clock import Clock
from leasehold.pipeline.connectors.cosmos.change_feed_request import (
    FROM_NOW,
    GONE,
    NOT_MODIFIED,
    OK,
    THROTTLED,
    Ask,
    FeedAnswer,
    Mode,
)
from leasehold.pipeline.connectors.cosmos.client import ScratchContainer
from leasehold.pipeline.connectors.cosmos.point_operations import Kind, Write
from leasehold.pipeline.connectors.cosmos.ranges import (
    KeyRange,
    PhysicalRange,
    RangeSection,
    furthest,
    lsn_of,
    position_behind,
    session_lsn,
)
from leasehold.pipeline.connectors.cosmos.records import ChangeRecord, records_of
from leasehold.pipeline.errors import FeedError, FeedUnavailable
from leasehold.service.probing.report import Finding, Question, either, judged

ANSWER_S_MAX = 20.0
THROTTLED_MAX = 10
"""How often a throttled request is repeated."""
READS = 20
KEYS = 50
KEYS_END = 0x40 << 120
"""Hashes of keys are below this, although the last range ends at FF."""
SILENT = 3
"""This many 304 in a row mean the end."""
SILENCE_S = 0.2
LISTED_S_MAX = 5.0
COSTS = "sends it about 150 small requests, and removes it at the end; the account bills such a container for at least an hour"


@dataclass(frozen=True, slots=True)
class ReadChanges:
    """An answer of the change feed."""

    answer: FeedAnswer
    records: list[ChangeRecord]

    @property
    def lsn(self) -> int:
        """The LSN of the ETag. Raises PositionLost."""
        return lsn_of(self.answer.etag)

    @property
    def ids(self) -> list[str]:
        return [dict(record.properties)["id"] for record in self.records]


class CosmosPlace:
    """A container under a name that nothing else has. Its documents have the key "a", and so are in one range."""

    def __init__(self, account: CosmosAccount, database: str, name: str, *, clock: Clock) -> None:
        self.notes: list[str] = []
        self.is_created = False
        self.clock = clock
        self.container = ScratchContainer(account, database, name, timeout_s=ANSWER_S_MAX)
        self._reader = ScratchContainer(account, database, name, timeout_s=ANSWER_S_MAX)
        """Without the session of the writer, as a feed reads: otherwise, replicas that lag would be skipped."""
        self.range = PhysicalRange("", KeyRange("", "FF"))
        self._numbers = count(1)

    async def open(self) -> None:
        """Create the container, and find the range of the documents. Raises FeedError."""
        await self.container.create()
        self.is_created = True
        first = await self.write()
        began = self.clock.monotonic()
        while self.clock.monotonic() - began < ANSWER_S_MAX:
            for each in await self.container.list_ranges():
                self.range = each
                if first in (await self.read(None)).ids:
                    return
            await self.clock.sleep(SILENCE_S)
        raise FeedError(f"container {self.container.name}: no range shows a document within {ANSWER_S_MAX:g} s")

    async def settle(self) -> None:
        """Nothing is left open."""

    async def remove(self, within_s: float) -> str | None:
        """Remove the container. Returns why it may still exist."""
        try:
            async with asyncio.timeout(within_s):
                await self.container.remove()
        except (FeedError, TimeoutError) as error:
            return str(error) or f"no answer within {within_s:g} s"
        return None

    async def close(self) -> None:
        await self.container.close()
        await self._reader.close()

    def new_id(self) -> str:
        return f"document-{next(self._numbers)}"

    async def write(self, name: str | None = None, *, key: str = "a", kind: Kind = "upsert") -> str:
        """Upsert or delete a document, a new one by default. Returns its id. Raises FeedError."""
        name = name or self.new_id()
        document = {} if kind == "delete" else {"id": name, "pk": key, "number": next(self._numbers)}
        write = Write(kind=kind, id=name, key=(key,), document=document)
        answer = await self._retry(lambda: self.container.write(write))
        self.notes.append(f"{kind} '{name}' -> {answer.status}")
        if answer.status >= 400:
            raise FeedError(f"{kind} is answered {answer.status}: {answer.message}")
        return name

    async def read(
        self, after: str | None, *, most: int = 100, mode: Mode = "latest", place: RangeSection | None = None
    ) -> ReadChanges:
        """One page. Raises FeedError, FeedUnavailable."""
        ask = Ask(place=place or RangeSection(self.range.id), after=after, items_max=most, mode=mode)
        answer = await self._retry(lambda: self._reader.read_changes(ask))
        is_whole = answer.status == OK
        records = records_of(answer.body, ("/pk",), all_versions=mode == "all_versions") if is_whole else []
        changes = ReadChanges(answer, records)
        where = "" if place is None or place.span is None else f", keys {place.span}"
        what = f"{answer.status}" + (f"/{answer.substatus}" if answer.substatus else "")
        shown = ", ".join(f"{record.operation} at LSN {record.lsn}" for record in records[:20])
        self.notes.append(
            f"changes ({mode}) after {after or 'the beginning'}, at most {most}{where} -> {what}, ETag {answer.etag or 'none'},"
            f" session {answer.session or 'none'}{': ' if shown else ''}{shown}"
        )
        return changes

    async def read_to_end(
        self, after: str | None, *, most: int = 100, place: RangeSection | None = None
    ) -> list[ReadChanges]:
        """All pages, until several answers in a row are 304: a replica may lag. Raises FeedError."""
        pages, silent = list[ReadChanges](), 0
        while True:
            page = await self.read(after, most=most, place=place)
            if page.answer.status not in (OK, NOT_MODIFIED):
                raise FeedError(f"the change feed is answered {page.answer.status}: {page.answer.message}")
            pages.append(page)
            silent = silent + 1 if page.answer.status == NOT_MODIFIED else 0
            if silent == SILENT:
                return pages
            after = furthest(after, page.answer.etag) if page.answer.etag else after
            await self.clock.sleep(SILENCE_S if silent else 0)

    async def read_until_shown(self, names: Sequence[str], after: str | None, *, most: int) -> ReadChanges:
        """The first page with one of these documents. Raises FeedError."""
        while not set(names) & set((page := await self.read(after, most=most)).ids):
            await self.clock.sleep(SILENCE_S)
        return page

    async def _retry(self, call: Callable[[], Awaitable[FeedAnswer]]) -> FeedAnswer:
        """Repeat the call until it is not throttled."""
        for _ in range(THROTTLED_MAX):
            answer = await call()
            if answer.status != THROTTLED:
                return answer
            await self.clock.sleep(answer.retry_after_s or 1.0)
        raise FeedUnavailable(f"throttled {THROTTLED_MAX} times in a row")


async def ask_for_etag_of_page(place: CosmosPlace) -> Finding:
    written = {await place.write() for _ in range(5)}
    pages = await place.read_to_end(None, most=2)
    late = [record.lsn for page in pages for record in page.records if record.lsn > page.lsn]
    early = [record.lsn for before, page in pairwise(pages) for record in page.records if record.lsn <= before.lsn]
    missing = written - {name for page in pages for name in page.ids}
    answer = (
        f"{len(pages)} pages: {len(late)} documents above the ETag of their page, {len(early)} at or below that of the page"
        f" before, {len(missing)} missing"
    )
    return judged(answer, not late and not missing)


async def ask_for_etag_of_304(place: CosmosPlace) -> Finding:
    end = (await place.read_to_end(None))[-1]
    if not end.answer.etag:
        return judged("a 304 has no ETag", False)
    name = await place.write()
    is_found = any(name in page.ids for page in await place.read_to_end(end.answer.etag))
    found = "finds" if is_found else "does not find"
    return judged(f"the 304 has {end.answer.etag}; reading after it {found} a later document", is_found)


async def ask_for_session(place: CosmosPlace) -> Finding:
    pages = await place.read_to_end(None, most=3)
    lsns = [(page.answer.status, page.lsn, session_lsn(page.answer.session)) for page in pages]
    behind = [each for each in lsns if each[2] is None or each[2] < each[1]]
    shown = ", ".join(f"{status}: ETag {lsn}, session {session}" for status, lsn, session in lsns[-2:])
    return judged(f"{len(behind)} of {len(lsns)} answers have no session LSN or a lower one ({shown})", not behind)


async def ask_for_transactions(place: CosmosPlace) -> Finding:
    end = (await place.read_to_end(None))[-1]
    names = [place.new_id() for _ in range(5)]
    await place.container.write_together([{"id": name, "pk": "a"} for name in names])
    place.notes.append(f"{len(names)} documents in one transaction")
    page = await place.read_until_shown(names, end.answer.etag, most=2)
    found = sum(name in page.ids for name in names)
    return judged(f"the first page, of at most 2, has {found} of 5 documents", found == len(names))


async def ask_for_lag(place: CosmosPlace) -> Finding:
    end = (await place.read_to_end(None))[-1]
    pages = [await place.read(end.answer.etag) for _ in range(READS)]
    lower = sum(page.lsn < end.lsn for page in pages)
    repeats = sum(any(record.lsn <= end.lsn for record in page.records) for page in pages)
    return either(f"of {READS} answers, {lower} have a lower ETag, and {repeats} repeat documents")


async def ask_for_versions(place: CosmosPlace) -> Finding:
    begin = await place.read(FROM_NOW, mode="all_versions")
    if begin.answer.status not in (OK, NOT_MODIFIED):
        return either(f"not offered: {begin.answer.status}, {begin.answer.message}")
    name = await place.write()
    await place.write(name)
    await place.write(name, kind="delete")
    found: list[ChangeRecord] = []
    after = begin.answer.etag
    while (page := await place.read(after, mode="all_versions")).answer.status == OK:
        found += page.records
        after = page.answer.etag
    operations = [record.operation for record in found]
    images = [record.operation for record in found if "previous" in dict(record.properties)]
    place.notes.append(f"the feed has previous images of: {', '.join(images) or 'nothing'}")
    answer = f"{', '.join(operations) or 'nothing'}; previous images with {', '.join(images) or 'none'}"
    return either(answer, is_known=operations == ["create", "replace", "delete"])


async def ask_for_history(place: CosmosPlace) -> Finding:
    """How far back all versions can be read."""
    answers = [(await place.read(after, mode="all_versions")).answer.status for after in (None, position_behind(1))]
    return either(f"from the beginning: {answers[0]}; after LSN 1: {answers[1]}")


async def ask_for_unknown_range(place: CosmosPlace) -> Finding:
    answer = (await place.read(None, place=RangeSection("987654"))).answer
    text = f"{answer.status}/{answer.substatus}, for a range that never existed; only a split shows more"
    return judged(text, answer.status == GONE)


async def ask_for_sections(place: CosmosPlace) -> Finding:
    for number in range(KEYS):
        await place.write(key=f"key-{number}")
    low, high = (int(bound.ljust(32, "0"), 16) for bound in place.range.span)
    middle = f"{(low + min(high, KEYS_END)) // 2:032X}"
    spans = (KeyRange(place.range.span.min, middle), KeyRange(middle, place.range.span.max))
    whole, *halves = [
        [name for page in await place.read_to_end(None, place=RangeSection(place.range.id, span)) for name in page.ids]
        for span in (None, *spans)
    ]
    is_divided = set(halves[0]) | set(halves[1]) == set(whole) and not set(halves[0]) & set(halves[1]) and all(halves)
    return judged(
        f"the whole range has {len(whole)} documents, its halves {len(halves[0])} and {len(halves[1])}", is_divided
    )


async def ask_for_compare_and_swap(place: CosmosPlace) -> Finding:
    document = {"id": place.new_id(), "pk": "a"}
    first = await place.container.create_document(dict(document))
    again = await place.container.create_document(dict(document))
    replaced = await place.container.replace_document({**document, "n": 1}, first.etag)
    stale = await place.container.replace_document({**document, "n": 2}, first.etag)
    statuses = [each.status for each in (first, again, replaced, stale)]
    place.notes.append(f"create, create again, replace, replace with the old ETag -> {statuses}")
    names = ("create", "create again", "replace", "replace with the old ETag")
    answer = ", ".join(f"{name}: {status}" for name, status in zip(names, statuses, strict=True))
    return judged(answer, statuses == [200, 409, 200, 412])


async def ask_for_listing(place: CosmosPlace) -> Finding:
    name = await place.write()
    began = place.clock.monotonic()
    while not await place.container.count_documents(name):
        if place.clock.monotonic() - began > LISTED_S_MAX:
            return judged(f"not within {LISTED_S_MAX:g} s", False)
        await place.clock.sleep(0.2)
    took_s = place.clock.monotonic() - began
    place.notes.append(f"a query finds '{name}' {took_s:.2f} s after it was written")
    return judged(f"after {took_s:.2f} s", True)


def _question(
    id: str, text: str, assumed: str, ask: Callable[[CosmosPlace], Awaitable[Finding]]
) -> Question[CosmosPlace]:
    return Question(id=f"cosmos-{id}", text=text, assumed=assumed, ask=ask)


QUESTIONS: Sequence[Question[CosmosPlace]] = (
    _question("etag", "Is the ETag of a page the LSN up to which it is complete?", "yes", ask_for_etag_of_page),
    _question(
        "etag-of-304", "Is the ETag of a 304 a position after which nothing is missed?", "yes", ask_for_etag_of_304
    ),
    _question("session", "Is the LSN of the session token at least that of the ETag?", "yes", ask_for_session),
    _question("transactions", "Are documents of one transaction divided among pages?", "no", ask_for_transactions),
    _question("lag", "May a lagging replica answer with a lower ETag, or repeat documents?", "yes or no", ask_for_lag),
    _question(
        "versions",
        "Which changes does the feed of all versions and deletes have, and with which previous images?",
        "all in order, with any images; or it is not offered",
        ask_for_versions,
    ),
    _question("history", "From where can all versions be read?", "from now on; more is not needed", ask_for_history),
    _question("sections", "Does a continuation work within a section of a range?", "yes", ask_for_sections),
    _question(
        "unknown-range", "How does the service answer for a range that does not exist?", "410", ask_for_unknown_range
    ),
    _question(
        "compare-and-swap",
        "Is a replace with `If-Match` a compare-and-swap, and is a create of an existing document refused?",
        "yes",
        ask_for_compare_and_swap,
    ),
    _question(
        "listing", "Does a listing show what was written before it?", f"within {LISTED_S_MAX:g} s", ask_for_listing
    ),
)
