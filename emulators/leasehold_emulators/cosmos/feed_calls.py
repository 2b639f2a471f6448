"""Requests for a change feed: from their headers to a page of a range."""

from __future__ import annotations

import json
from email.utils import parsedate_to_datetime
from typing import Any

from leasehold_emulators.cosmos import feed
from leasehold_emulators.cosmos.call import Call, Reply, listed
from leasehold_emulators.cosmos.container import Change, Container, Partition
from leasehold_emulators.cosmos.refused import bad, range_gone
from leasehold_emulators.cosmos.where import check_session, partition_key, partitions, session_headers, span_of


def answer(container: Container, call: Call) -> Reply:
    """Raises Refused."""
    touched = partitions(container, call)
    if len(touched) != 1:
        if call.header("x-ms-start-epk") is not None:
            raise range_gone(f"of {span_of(call)}")
        raise bad("A change feed is read range by range: a partition key range id or a partition key has to be given.")
    if call.lag:
        touched = [touched[0].replica(call.lag)]
    check_session(call, touched)
    partition = touched[0]
    ask, is_first = _ask(container, partition, call)
    page = feed.page(partition, ask)
    headers = session_headers(container, touched) | {"etag": f'"{page.lsn}"'}
    if is_first or not page.changes:
        etag = {"etag": f'"{ask.after}"'} if is_first else {}
        return Reply(status=304, headers=headers | etag, range_id=partition.range.id)
    items = [_item(change, container, ask) for change in page.changes]
    headers["x-ms-item-count"] = str(len(items))
    content = listed("Documents", container.rid, items)
    return Reply(content=content, headers=headers, documents=len(items), range_id=partition.range.id)


def _ask(container: Container, partition: Partition, call: Call) -> tuple[feed.Ask, bool]:
    """What to read, and whether this request only finds its start: to a read from a time, the service first answers with that."""
    known, since = call.header("if-none-match"), _since(call)
    is_full = call.kind == "feed.full"
    if is_full and known is None:
        raise bad("All versions and deletes are read from now on, or from a continuation.")
    is_first = known is None and since is not None
    after = feed.position_at(partition, since) if is_first and since is not None else _lsn(known, partition)
    values = partition_key(call)
    if call.again and after >= partition.lsn:
        after = max(0, partition.lsn - 1)
    ask = feed.Ask(
        after=after,
        since=since,
        span=span_of(call),
        only_key=json.dumps(values) if values else None,
        limit=call.limit,
        is_full=is_full,
    )
    return ask, is_first


def _lsn(known: str | None, partition: Partition) -> int:
    if known is None:
        return 0
    if known == "*":
        return partition.lsn
    number = known.removeprefix("W/").strip('"')
    if not number.isdigit():
        raise bad(f"The continuation {known} is not from this feed.")
    return int(number)


def _since(call: Call) -> int | None:
    header = call.header("if-modified-since")
    try:
        return int(parsedate_to_datetime(header).timestamp()) if header else None
    except ValueError:
        raise bad(f"The time {header} cannot be read.") from None


def _item(change: Change, container: Container, ask: feed.Ask) -> dict[str, Any]:
    return feed.full_fidelity(change, container) if ask.is_full else feed.latest_version(change)
