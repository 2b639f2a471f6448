"""Leasehold's own export: JSON lines with everything needed to restore leases. Pure; docs/migration.md has the format.

    {"leasehold": 1, "pipeline": {"name": ..., "feed": ..., "sink": ..., "transform": ..., "complete": ..., "leases": 4}}
    {"leasehold": 1, "lease": {...}}          four times: the lease's document, as leasehold.leases.document writes it

The number of leases reveals a truncated file. Owners are exported, but not imported. Each line has version 1 of a lease's
document, which earlier releases of Leasehold read too: later versions differ in how an owner is judged.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from leasehold.leases.bootstrap import IDENTITY_BYTES_MAX, Identity, Info
from leasehold.leases.document import NAME_BYTES_MAX, Fields, decode_lease, encode_lease, lease_id, parsed, to_json
from leasehold.leases.errors import InvalidDocument
from leasehold.leases.import_.cosmos_import import DOCUMENTS_MAX, INPUT_BYTES_MAX
from leasehold.leases.import_.plan import Candidate
from leasehold.leases.lease import Lease

VERSION = 1
MARK = "leasehold"
LINE_BYTES_MAX = 128 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedPipeline:
    """A pipeline in an export."""

    pipeline: str
    info: Info
    leases: tuple[Lease, ...]

    @property
    def candidates(self) -> list[Candidate]:
        """The leases as they will be here: without an owner, and not requested by any host."""
        return [
            Candidate(
                document=lease_id(lease.pipeline, lease.partition),
                partition=lease.partition,
                owner=lease.owner,
                restores=True,
                lease=lease.given_up(),
            )
            for lease in self.leases
        ]


def lines_of(groups: Iterable[ExportedPipeline]) -> list[str]:
    """Raises InvalidDocument for a lease that could not be read back."""
    return [line for group in groups for line in (_header(group), *map(_lease_line, group.leases))]


def _header(group: ExportedPipeline) -> str:
    identity = group.info.identity
    about = {"name": group.pipeline, "feed": identity.feed, "sink": identity.sink, "transform": identity.transform}
    return to_json({MARK: VERSION, "pipeline": {**about, "complete": group.info.complete, "leases": len(group.leases)}})


def _lease_line(lease: Lease) -> str:
    return to_json({MARK: VERSION, "lease": parsed("the lease", encode_lease(lease))})


def groups_in(text: str) -> dict[str, ExportedPipeline]:
    """The exported pipelines, by name. Raises InvalidDocument, which names the line."""
    if len(text) > INPUT_BYTES_MAX:
        raise InvalidDocument(f"the input is larger than {INPUT_BYTES_MAX} bytes: export one pipeline at a time")
    lines = [(f"line {number} of the input", line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if len(lines) > 2 * DOCUMENTS_MAX:
        raise InvalidDocument(f"the input has more than {2 * DOCUMENTS_MAX} lines: export one pipeline at a time")
    headers: dict[str, tuple[Info, int]] = {}
    leases: dict[str, list[Lease]] = {}
    for name, line in lines:
        fields = _line_fields(name, line)
        if fields.has("pipeline"):
            pipeline, info, count = _header_in(fields.inner("pipeline"))
            if pipeline in headers:
                fields.refuse("pipeline", f"'{pipeline}' occurs twice")
            headers[pipeline] = info, count
        else:
            lease = _lease_in(fields)
            leases.setdefault(lease.pipeline, []).append(lease)
    _check(headers, leases)
    return {
        name: ExportedPipeline(pipeline=name, info=info, leases=tuple(leases.get(name, ())))
        for name, (info, _) in headers.items()
    }


def _line_fields(name: str, line: str) -> Fields:
    fields = Fields.parse(name, line, LINE_BYTES_MAX)
    if not fields.has(MARK):
        fields.refuse(
            MARK,
            "is missing, so this is not an export of Leasehold: if it comes from .NET or Java, add --from dotnet or --from java",
        )
    if (version := fields.integer(MARK)) != VERSION:
        fields.refuse(MARK, f"is {version}, and this version of Leasehold reads {VERSION}")
    return fields


def _header_in(fields: Fields) -> tuple[str, Info, int]:
    feed, sink, transform = (fields.text(name, IDENTITY_BYTES_MAX) for name in ("feed", "sink", "transform"))
    info = Info(identity=Identity(feed, sink, transform), complete=fields.boolean("complete"))
    return fields.text("name", NAME_BYTES_MAX), info, fields.integer("leases", at_most=DOCUMENTS_MAX)


def _lease_in(fields: Fields) -> Lease:
    body = fields.mapping("lease")
    within = fields.inner("lease")
    pipeline, partition = (within.text(name, NAME_BYTES_MAX) for name in ("pipeline", "partition"))
    return decode_lease(lease_id(pipeline, partition), to_json(dict(body)))


def _check(headers: dict[str, tuple[Info, int]], leases: dict[str, list[Lease]]) -> None:
    for pipeline in leases.keys() - headers.keys():
        raise InvalidDocument(
            f"the input has leases of pipeline '{pipeline}' and not the line about it: export it again"
        )
    for pipeline, (_, count) in headers.items():
        found = len(leases.get(pipeline, ()))
        if found != count:
            raise InvalidDocument(
                f"the input has {found} leases of pipeline '{pipeline}' but announces {count}: it was cut off; if you removed"
                " some, correct `leases` in the line about the pipeline"
            )
