"""Output that executors have stored at its destination, where it does not count until the owner of the lease commits it.

What is staged names the lease, the epoch and the position where its batch begins. Executors never commit. A task may run twice,
or end after its owner is gone, so only the parts that the owner's job has returned count.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from leasehold.pipeline.errors import PipelineError

SEQUENCE = "sequence"


class NotStaged(PipelineError):
    """Parts that cannot be committed as they are; the host processes their events itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedPart:
    """Some rows of a batch's output.

    - `epoch`: the lease's.
    - `start`: where the batch begins.
    - `name`: within the destination; each attempt has its own.
    - `bytes`, `sha256`: of its content, if the destination keeps them.
    - `first`, `last`: the smallest and the largest `sequence` of its rows; None if the output has no such column, or only nulls.
    """

    epoch: int
    start: str | None
    name: str
    rows: int
    bytes: int = 0
    sha256: str = ""
    first: int | None = None
    last: int | None = None


class Stager(ABC):
    """Stages rows for one batch, in another process. It is sent there by pickle, so it holds no secrets and no connections."""

    @abstractmethod
    def stage(self, table: pa.Table, unique: str) -> StagedPart:
        """Store the rows under a name of their own. Blocks. unique: differs for each call.

        Raises SinkUnavailable, SinkRejected.
        """


class Ranged(NamedTuple):
    """What a batch that executors have read became: collected rows or, without any, staged parts in their order."""

    table: pa.Table
    staged: tuple[StagedPart, ...] = ()


def described(part: StagedPart, table: pa.Table) -> StagedPart:
    """The part with the smallest and the largest sequence of its rows, if they have any."""
    if not _has_sequences(table):
        return part
    found = pc.min_max(table[SEQUENCE]).as_py()
    return replace(part, first=found["min"], last=found["max"])


def sorted_slices(table: pa.Table, bytes_max: int) -> Iterator[pa.Table]:
    """A part's rows in the order of their sequences, if they have any, as in a batch that is not staged.

    Only one slice at a time is copied, and nothing if the rows are sorted. bytes_max: of a slice; a single row may exceed it.
    """
    if not _has_sequences(table) or _is_sorted(table[SEQUENCE]):
        yield from halved(table, bytes_max)
        return
    ranks = np.empty(table.num_rows, np.int32)
    ranks[pc.sort_indices(table[SEQUENCE]).to_numpy()] = np.arange(table.num_rows, dtype=np.int32)
    rows = max(1, table.num_rows * bytes_max // table.nbytes)
    for first in range(0, table.num_rows, rows):
        # filter() works chunk by chunk. take() would copy all chunks of a column into one first.
        found = table.filter(pa.array((ranks >= first) & (ranks < first + rows)))
        yield from halved(found.take(pc.sort_indices(found[SEQUENCE])), bytes_max)


def _is_sorted(values: pa.ChunkedArray) -> bool:
    """False if a value is null, because nulls belong at the end."""
    before, after = values.slice(0, max(0, len(values) - 1)), values.slice(1)
    return values.null_count == 0 and bool(pc.all(pc.less_equal(before, after), min_count=0).as_py())


def halved(table: pa.Table, bytes_max: int) -> Iterator[pa.Table]:
    """The table in slices within the limit, cut by halves, because the sizes of rows may differ. One row may be larger."""
    if table.num_rows <= 1 or table.nbytes <= bytes_max:
        yield table
    else:
        middle = table.num_rows // 2
        yield from halved(table.slice(0, middle), bytes_max)
        yield from halved(table.slice(middle), bytes_max)


def _has_sequences(table: pa.Table) -> bool:
    return SEQUENCE in table.column_names and pa.types.is_integer(table.schema.field(SEQUENCE).type)


def put_together(
    pieces: Sequence[pa.Table | StagedPart], columns: pa.Schema, stager: Stager | None, new_name: Callable[[], str]
) -> Ranged:
    """A batch's output, from the rows that its tasks returned and the parts that they staged, in order.

    If anything is staged, the rows are staged too, each run of them in its place. Blocks. Raises NotStaged, SinkUnavailable,
    SinkRejected.
    """
    runs = [list(group) for _, group in groupby(pieces, lambda piece: isinstance(piece, StagedPart))]
    if not any(isinstance(piece, StagedPart) for piece in pieces):
        return Ranged(pa.concat_tables([columns.empty_table(), *pieces]))
    parts: list[StagedPart] = []
    for run in runs:
        if isinstance(run[0], StagedPart):
            parts += run
        elif (table := pa.concat_tables(run)).num_rows:
            assert stager is not None, "parts are staged by a stager"
            parts.append(described(stager.stage(table, new_name()), table))
    return Ranged(columns.empty_table(), tuple(in_order(parts)))


def in_order(parts: Sequence[StagedPart]) -> list[StagedPart]:
    """The parts by their sequences, those without any at the end. Raises NotStaged if parts overlap: then their rows cannot be in
    order part by part."""
    numbered = [part for part in parts if part.first is not None]
    ordered = sorted(numbered, key=lambda part: (part.first or 0, part.last or 0))  # equal ones keep the tasks' order
    if any((before.last or 0) > (after.first or 0) for before, after in pairwise(ordered)):
        raise NotStaged(
            "the transform shuffles rows, so that parts of its output have no order by `sequence`: drop that column from"
            " the output, or set `executors_read: false`"
        )
    return ordered + [part for part in parts if part.first is None]


def check_parts(parts: Sequence[StagedPart], *, epoch: int, start: str | None) -> None:
    """Raises NotStaged for what another epoch, or a batch that begins elsewhere, has staged. Pure."""
    for part in parts:
        if (part.epoch, part.start) != (epoch, start):
            raise NotStaged(
                f"'{part.name}' was staged at epoch {part.epoch} from {part.start!r}, and not at epoch {epoch} from {start!r}"
            )
