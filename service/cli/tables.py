"""What commands print for people: leases, lag, balances, what stopped."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from decimal import Decimal
from types import MappingProxyType
from typing import TextIO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from leasehold.leases.import_.plan import PlannedChange
from leasehold.leases.lease import Lease, LeaseKey
from leasehold.pipeline.dead_letters.settled import Judged
from leasehold.service.group.status import LeaseStatus, Standstill
from leasehold.service.group.work import FailureStatus, fields_of
from leasehold.service.lag.measurement import Lag, PartitionLag

CONTINUATION_SHOWN = 48
NOTHING: Mapping[LeaseKey, Sequence[Standstill]] = MappingProxyType({})
WIDTH_ELSEWHERE = 4096
"""The width without a terminal: a file or a program needs the whole table."""


def screen_of(stream: TextIO) -> Console:
    return Console(file=stream, width=None if stream.isatty() else WIDTH_ELSEWHERE)


def stopped(pipeline: str, partition: str, error: str) -> str:
    """Why a partition stands still. Its error often begins with the partition, which is shown once."""
    if not partition:
        return f"pipeline '{pipeline}' stopped: {error}"
    named = f"partition '{partition}'"
    return f"pipeline '{pipeline}', {named} stopped: {error.removeprefix(f'{named}, ')}"


def leases_table(
    leases: Iterable[LeaseStatus],
    unreadable: Iterable[LeaseKey] = (),
    held_up: Mapping[LeaseKey, Sequence[Standstill]] = NOTHING,
) -> Table:
    """unreadable: leases whose documents cannot be read. held_up: why others stand still."""
    table = _table("pipeline", "partition", "state", "owner", "epoch>", "generation>", "continuation")
    for status in leases:
        lease = status.lease
        _add_row(
            table,
            lease.pipeline,
            lease.partition,
            ", ".join(
                [status.state.replace("_", " "), *(each.kind.replace("_", " ") for each in held_up.get(lease.key, ()))]
            ),
            lease.owner or "",
            str(lease.epoch),
            str(lease.generation),
            _shortened(lease.continuation),
        )
    for pipeline, partition in unreadable:
        _add_row(table, pipeline, partition, "unreadable", "", "", "", "")
    return table


def lag_table(lag: Lag) -> Table:
    table = _table("pipeline", "partition", "events behind>", "oldest>")
    for one in lag.partitions:
        _add_row(
            table,
            one.pipeline,
            one.partition,
            _events(one),
            _age(one.seconds) if one.events != 0 else "",
        )
    table.add_section()
    measured = "" if not lag.unknown else "about " if lag.is_known else "at least "
    events = f"{measured}{lag.events:,}" + (f" ({lag.unknown} unknown)" if lag.unknown else "")
    _add_row(table, "all", "", events, _oldest(lag))
    return table


def _events(one: PartitionLag) -> str:
    if one.events is None:
        return "unknown"
    return f"{one.events:,}" if one.error is None else f"{one.events:,} ({_age(one.age_s)} ago)"


def _oldest(lag: Lag) -> str:
    if lag.seconds is not None:
        return _age(lag.seconds) if lag.seconds else ""
    return f"at least {_age(lag.oldest)}" if lag.oldest else "unknown"


def _age(seconds: float | None) -> str:
    """For people: 2.8 s, 14 min, 3.2 h."""
    if seconds is None:
        return "unknown"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:,.1f} h"


def lag_fields(one: PartitionLag) -> dict[str, object]:
    """A partition's lag, as `lag --json` prints it."""
    fields = asdict(one)
    del fields["waited_s"], fields["position"], fields["early_s"]
    return fields


def letters_table(letters: Iterable[Judged]) -> Table:
    table = _table("number>", "state", "partition", "sequence>", "failed at", "tries>", "host", "error")
    for judged in letters:
        one = judged.kept.letter
        _add_row(
            table,
            str(judged.kept.number),
            judged.state.replace("_", " ") + (f" ({judged.again})" if judged.again is not None else ""),
            one.partition,
            str(one.sequence),
            one.failed_at.partition(".")[0].partition("+")[0],
            str(one.attempts),
            one.host,
            one.error,
        )
    return table


def changes_table(changes: Iterable[PlannedChange]) -> Table:
    table = _table("partition", "change", "from", "to", "generation>", "")
    for change in changes:
        here, there = change.seen and change.seen.lease, change.wanted
        generation = "" if change.generation is None else str(change.generation)
        _add_row(table, change.partition, change.kind, _position(here), _position(there), generation, change.why)
    return table


def _position(lease: Lease | None) -> str:
    if lease is None:
        return ""
    return "beginning" if lease.continuation is None else _shortened(lease.continuation)


def balances_table(expected: Mapping[str, Decimal], found: Mapping[str, Decimal], accounts: Sequence[str]) -> Table:
    """Both ledgers side by side, for the given accounts."""
    table = _table("account", "from PostgreSQL>", "plain computation>", "")
    for account in accounts:
        ours, theirs = found.get(account), expected.get(account)
        _add_row(
            table,
            account,
            "missing" if ours is None else f"{ours:,.2f}",
            "unknown" if theirs is None else f"{theirs:,.2f}",
            "" if ours == theirs else "differs",
        )
    return table


def reasons(held_up: Mapping[LeaseKey, Sequence[Standstill]]) -> list[str]:
    """Lines to print under a table."""
    return [
        f"pipeline '{pipeline}'" + (f", partition '{partition}' {each.why}" if partition else f" {each.why}")
        for (pipeline, partition), found in held_up.items()
        for each in found
    ]


def held_up_fields(failure: FailureStatus | None, held_up: Sequence[Standstill]) -> dict[str, object]:
    """Why a partition stands still, as --json prints it."""
    return {
        "failing": None if failure is None else fields_of(failure, "pipeline", "partition", "position"),
        "held_up": [{"kind": each.kind, "why": each.why} for each in held_up],
    }


def lease_fields(
    status: LeaseStatus, failure: FailureStatus | None = None, held_up: Sequence[Standstill] = ()
) -> dict[str, object]:
    """One lease in full, as `leases show` prints it."""
    lease = status.lease
    return {
        "pipeline": lease.pipeline,
        "partition": lease.partition,
        "state": status.state,
        "owner": lease.owner,
        "incarnation": lease.incarnation,
        "epoch": lease.epoch,
        "generation": lease.generation,
        "tick": lease.tick,
        "continuation": lease.continuation,
        "sink_state": lease.sink_state,
        "handoff_to": lease.handoff_to,
        "tombstone": lease.tombstone,
        "parents": list(lease.parents),
        "children": [{"partition": child.partition, "continuation": child.continuation} for child in lease.children],
        "etag": status.etag,
        **held_up_fields(failure, held_up),
    }


def unreadable_fields(key: LeaseKey, why: str) -> dict[str, object]:
    """A lease whose document cannot be read, as `leases list --json` prints it."""
    return {"pipeline": key.pipeline, "partition": key.partition, "state": "unreadable", "error": why}


def body_fields(body: bytes | None) -> dict[str, str | None]:
    """An event's body for JSON: `body` if it is text, else `body_base64`."""
    try:
        return {"body": None if body is None else body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body or b"").decode()}


def change_fields(change: PlannedChange) -> dict[str, object]:
    """A change of an import, as `leases import --json` prints it."""
    return {
        "partition": change.partition,
        "document": change.document,
        "change": change.kind,
        "from": change.start,
        "to": change.to,
        "generation": change.generation,
        "why": change.why,
    }


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        table.add_column(column.removesuffix(">"), justify="right" if column.endswith(">") else "left")
    return table


def _add_row(table: Table, *cells: str) -> None:
    """Add cells as they are: a name may contain what rich takes for markup, or what would move a terminal's cursor."""
    table.add_row(*(Text(cell if cell.isprintable() else json.dumps(cell)) for cell in cells))


def _shortened(text: str | None) -> str:
    if text is None:
        return ""
    return text if len(text) <= CONTINUATION_SHOWN else text[: CONTINUATION_SHOWN - 1] + "…"
