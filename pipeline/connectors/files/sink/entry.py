"""Entries of a manifest: what each says, and which may follow which. Pure.

An entry holds all that a partition's next writer must know, so the newest one alone tells where the sink stands.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, TypeVar

from pipeline.connectors.files.sink.storage import FilesDamaged
from pipeline.errors import Fenced, SinkRejected
from pipeline.limits import JSON_LEVELS_MAX
from pipeline.nesting import parsed_json
from pipeline.sink import Claim, Output

FORMAT = 1
T = TypeVar("T", "DataFile", "Entry", "Fold")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A file of output. start, to: the positions that its batch covers. version: the entry that names it."""

    name: str
    format: str
    rows: int
    bytes: int
    sha256: str
    version: int
    generation: int
    epoch: int
    start: str | None
    to: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """id: of the attempt, to know one's own again. kind: claim, batch or end. position, ended: from this entry on."""

    version: int
    id: str
    kind: str
    pipeline: str
    partition: str
    generation: int
    epoch: int
    owner: str
    position: str | None
    ended: bool = False
    file: DataFile | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """The files of the entries `first` to `last`."""

    first: int
    last: int
    pipeline: str
    partition: str
    files: tuple[DataFile, ...]


def claimed(head: Entry | None, claim: Claim, id: str) -> Entry:
    """The entry by which a claim shuts out all before it. Raises Fenced, SinkRejected."""
    made = Entry(
        version=0,
        id=id,
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
    if (head.pipeline, head.partition) != (claim.pipeline, claim.partition):
        raise SinkRejected(
            f"the manifest of partition '{claim.partition}' of pipeline '{claim.pipeline}' is that of partition"
            f" '{head.partition}' of '{head.pipeline}': the file system does not tell A from a. Use another one"
        )
    if claim.epoch < head.epoch:
        raise outranked(claim, head)
    if claim.generation < head.generation:
        raise SinkRejected(
            f"partition '{claim.partition}' of pipeline '{claim.pipeline}' was claimed at generation {claim.generation}, and the"
            f" manifest is at generation {head.generation}: the lease's document was deleted or restored. Reset the lease until"
            " it is of that generation or later"
        )
    goes_on = claim.generation == head.generation
    return replace(
        made,
        version=head.version + 1,
        position=head.position if goes_on else claim.continuation,
        ended=head.ended and goes_on,
    )


def moved(head: Entry, output: Output, id: str, file: DataFile | None) -> Entry:
    """Raises SinkRejected."""
    if head.ended:
        raise SinkRejected(f"partition '{head.partition}' of pipeline '{head.pipeline}' has ended at {head.position!r}")
    return replace(head, version=head.version + 1, id=id, kind="batch", position=output.to, file=file)


def ended(head: Entry, id: str) -> Entry:
    return replace(head, version=head.version + 1, id=id, kind="end", ended=True, file=None)


def outranked(claim: Claim | Entry, head: Entry | None) -> Fenced:
    """head: what came between, None where it could not be read."""
    ours = f"partition '{claim.partition}' of pipeline '{claim.pipeline}' was claimed at epoch {claim.epoch}"
    if head is None:
        return Fenced(f"{ours}, and another entry of the manifest came first: take the lease again")
    if head.epoch == claim.epoch:
        return Fenced(
            f"{ours}, and entry {head.version} of the manifest is another attempt's: claim anew", epoch=head.epoch
        )
    return Fenced(f"{ours}, and belongs to '{head.owner}' since epoch {head.epoch}", epoch=head.epoch)


def encoded(value: Entry | Fold) -> bytes:
    return json.dumps({"format": FORMAT, **asdict(value)}, ensure_ascii=False, separators=(",", ":")).encode()


def entry_in(content: bytes, name: str) -> Entry:
    """Raises FilesDamaged."""
    found = _read(content, name)
    try:
        file = found.pop("file")
        return _checked(Entry(**found, file=None if file is None else _checked(DataFile(**file))))
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise _damaged(name, error) from error


def fold_in(content: bytes, name: str) -> Fold:
    """Raises FilesDamaged."""
    found = _read(content, name)
    try:
        files: Sequence[Any] = found.pop("files")
        return _checked(Fold(**found, files=tuple(_checked(DataFile(**each)) for each in files)))
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise _damaged(name, error) from error


def _read(content: bytes, name: str) -> dict[str, Any]:
    try:
        found = parsed_json(content, JSON_LEVELS_MAX)
    except ValueError as error:
        raise _damaged(name, error) from error
    if not isinstance(found, dict) or "format" not in found:
        raise _damaged(name, ValueError("it is no entry"))
    if (number := found.pop("format")) != FORMAT:
        raise FilesDamaged(f"'{name}' is of format {number!r}, and this version knows {FORMAT}: use a newer one")
    return found


_WHOLE = ("version", "generation", "epoch", "rows", "bytes", "first", "last")
_NONE_TOO = ("position", "start")
_OTHERWISE = ("ended", "file", "files")


def _checked(value: T) -> T:
    """Raises ValueError where a field is not what its name promises."""
    for name in (field.name for field in fields(value)):
        found = getattr(value, name)
        if name in _WHOLE:
            is_right = type(found) is int and 0 <= found < 2**63
        elif name in _OTHERWISE:
            is_right = name != "ended" or type(found) is bool
        else:
            is_right = isinstance(found, str) or (found is None and name in _NONE_TOO)
        if not is_right:
            raise ValueError(f"its {name} is {found!r}")
    return value


def _damaged(name: str, error: Exception) -> FilesDamaged:
    why = " ".join(str(error).split())[:200]
    return FilesDamaged(f"'{name}' is no file of a manifest, or damaged ({why}): restore it from a backup")
