"""The position of a lease in a Delta table: a number in the table's log, and a record under that number. Pure.

    _delta_log/00000000000000000042.json            txn: {appId: "leasehold:{pipeline}/{partition}", version: 17}
    _leasehold/positions/{pipeline}/{partition}/0000000000000000017.json        the record: epoch, owner, position

Delta keeps one whole number for each application, and a position is text, so the number names a record. A record is written
before the commit that names it, under a number that was free, and never changes. It counts once the log has its number.

A table is created by the first batch, because it needs columns. Before that, a claim is only a record. If an owner commits after
its claim was outranked, this is not refused at once, but still exact: the later owner's first commit conflicts with it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace

from leasehold.common.nesting import parsed_json
from leasehold.pipeline.connectors.files.claims import carried_over, check_open, checked
from leasehold.pipeline.connectors.files.sink.entry import folder_of
from leasehold.pipeline.connectors.files.sink.storage import FilesDamaged
from leasehold.pipeline.limits import JSON_LEVELS_MAX
from leasehold.pipeline.sink import Claim, Output

ROOM = "_leasehold/positions"
"""Delta's VACUUM skips folders whose names begin with an underscore."""
FORMAT = 1
DIGITS = 19
_APP = "leasehold:"
_NUMBER = re.compile(rf"(\d{{{DIGITS}}})\.json")
_WHOLE = ("number", "generation", "epoch")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRecord:
    """number: the one by which the table's log names it. kind: claim, batch or end. position, ended: from this record on."""

    number: int
    kind: str
    pipeline: str
    partition: str
    generation: int
    epoch: int
    owner: str
    position: str | None
    ended: bool = False

    @property
    def label(self) -> str:
        return f"record {self.number}"

    @property
    def app_id(self) -> str:
        return app_id_of(self.pipeline, self.partition)


def app_id_of(pipeline: str, partition: str) -> str:
    """The application of a lease in the table's log. Raises ValueError for names that are not text."""
    return f"{_APP}{folder_of(pipeline)}/{folder_of(partition)}"


def folder_for(pipeline: str, partition: str) -> str:
    """The folder of a lease's records. Raises ValueError for names that are not text."""
    return f"{ROOM}/{folder_of(pipeline)}/{folder_of(partition)}"


def name_of(pipeline: str, partition: str, number: int) -> str:
    return name_under(app_id_of(pipeline, partition), number)


def app_ids_in(names: Iterable[str]) -> set[str]:
    """The applications of leases that have records. names: below ROOM; other names are ignored."""
    parts = (name.removeprefix(f"{ROOM}/").split("/") for name in names)
    return {f"{_APP}{found[0]}/{found[1]}" for found in parts if len(found) == 3}


def name_under(app_id: str, number: int) -> str:
    """The name of an application's record."""
    return f"{ROOM}/{app_id.removeprefix(_APP)}/{number:0{DIGITS}d}.json"


def numbers_in(names: Iterable[str]) -> list[int]:
    """The numbers of a lease's records, the newest first; other names are ignored."""
    found = (_NUMBER.fullmatch(name.rpartition("/")[2]) for name in names)
    return sorted((int(each[1]) for each in found if each), reverse=True)


def claimed(head: CommitRecord | None, claim: Claim) -> CommitRecord:
    """The record by which a claim shuts out all before it. Raises Fenced, SinkRejected."""
    made = CommitRecord(
        number=1,
        kind="claim",
        pipeline=claim.pipeline,
        partition=claim.partition,
        generation=claim.generation,
        epoch=claim.epoch,
        owner=claim.owner,
        position=claim.continuation,
    )
    if head is None:
        return made
    position, has_ended = carried_over(head, claim, "table")
    return replace(made, number=head.number + 1, position=position, ended=has_ended)


def moved(head: CommitRecord, output: Output) -> CommitRecord:
    """Raises SinkRejected."""
    check_open(head)
    return replace(head, number=head.number + 1, kind="batch", position=output.to)


def ended(head: CommitRecord) -> CommitRecord:
    return replace(head, number=head.number + 1, kind="end", ended=True)


def encoded(record: CommitRecord) -> bytes:
    return json.dumps({"format": FORMAT, **asdict(record)}, ensure_ascii=False, separators=(",", ":")).encode()


def record_in(content: bytes, name: str) -> CommitRecord:
    """Raises FilesDamaged."""
    try:
        found = parsed_json(content, JSON_LEVELS_MAX)
        if (number := found.pop("format")) != FORMAT:
            raise FilesDamaged(f"'{name}' is of format {number!r}, and this version knows {FORMAT}: use a newer one")
        return checked(CommitRecord(**found), _WHOLE)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        why = " ".join(str(error).split())[:200]
        raise FilesDamaged(f"'{name}' is not a record, or is damaged ({why}): restore it from a backup") from error
