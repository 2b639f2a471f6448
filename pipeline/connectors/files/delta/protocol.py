"""Which Delta tables the sink writes to: those for which a plain append is correct. Pure.

Files are added as they are, so a table must not require more of a writer than its columns: no constraints, no generated columns,
no renamed columns, no partitions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from leasehold.pipeline.errors import SinkRejected

WRITER_WITH_FEATURES = 7
"""From this version of the protocol on, a table lists what it requires of writers. Before, its columns and properties show it."""
TAKEN = frozenset(
    (
        *("appendOnly", "invariants", "timestampNtz", "deletionVectors", "changeDataFeed"),
        *("v2Checkpoint", "checkConstraints", "generatedColumns", "columnMapping"),
    )
)
"""Features that require nothing of an append, unless columns or properties show it. deltalake can commit to all of these."""
_OF_COLUMNS = {
    "delta.invariants": "a column invariant",
    "delta.generationExpression": "a generated column",
    "delta.identity.start": "an identity column",
}
_CONSTRAINT = "delta.constraints."
_RETENTION = "delta.setTransactionRetentionDuration"


@dataclass(frozen=True, slots=True, kw_only=True)
class Demands:
    """What a table requires of its writers."""

    writer_version: int
    writer_features: Collection[str]
    properties: Mapping[str, str]
    partition_columns: Sequence[str]
    columns: pa.Schema


def check(demands: Demands, address: str, *, is_rewriting: bool) -> None:
    """is_rewriting: whether the sink replaces rows. Raises SinkRejected."""
    if (problem := _problem(demands, is_rewriting=is_rewriting)) is not None:
        what, remedy = problem
        raise SinkRejected(f"the Delta table {address} has {what}, which the sink `files` does not support: {remedy}")


def _problem(demands: Demands, *, is_rewriting: bool) -> tuple[str, str] | None:
    """What the table has, and what to do; None if all is well."""
    elsewhere = "remove that, or write to another table"
    if demands.partition_columns:
        return f"the partition columns {', '.join(demands.partition_columns)}", "write to a table without partitions"
    if demands.writer_version > WRITER_WITH_FEATURES:
        return f"writer version {demands.writer_version} of Delta's protocol", "use a newer version of Leasehold"
    if demands.writer_version == WRITER_WITH_FEATURES and (more := sorted(set(demands.writer_features) - TAKEN)):
        return f"the table feature `{more[0]}`", elsewhere
    return _of_properties(demands.properties, elsewhere, is_rewriting=is_rewriting) or _of_columns(demands, elsewhere)


def _of_properties(properties: Mapping[str, str], elsewhere: str, *, is_rewriting: bool) -> tuple[str, str] | None:
    if constraints := [name for name in properties if name.startswith(_CONSTRAINT)]:
        return f"the constraint `{constraints[0].removeprefix(_CONSTRAINT)}`", elsewhere
    if properties.get("delta.columnMapping.mode", "none") != "none":
        return "column mapping", elsewhere
    if _RETENTION in properties:
        return f"the property `{_RETENTION}`", "unset it, because Delta would forget the positions of idle partitions"
    if is_rewriting and properties.get("delta.appendOnly") == "true":
        return "the property `delta.appendOnly`, with `key_columns`,", "remove `key_columns`, or unset the property"
    return None


def _of_columns(demands: Demands, elsewhere: str) -> tuple[str, str] | None:
    for field in demands.columns:
        for name, what in _OF_COLUMNS.items():
            if name.encode() in (field.metadata or {}):
                return f"{what}, '{field.name}'", elsewhere
    return None
