"""What hosts report of their work, declared once: for host documents, the API, and commands.

Any host answers for the whole group from the documents of all hosts. Anyone may have written these, so every field is checked
and bounded.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import AfterValidator, AwareDatetime, ConfigDict, Field, TypeAdapter
from pydantic.dataclasses import dataclass

from leasehold.leases.document import INTEGER_MAX, NAME_BYTES_MAX
from leasehold.service.stats import AGE_BUCKETS_S

ENTRIES_MAX = 1024
ERROR_BYTES_MAX = 600
POSITION_BYTES_MAX = 200
CHECKED = ConfigDict(populate_by_name=True)


def _bytes_up_to(bytes_max: int) -> AfterValidator:
    def check(text: str) -> str:
        if len(text.encode("utf-8", "surrogatepass")) > bytes_max:
            raise ValueError(f"is longer than {bytes_max} bytes")
        return text

    return AfterValidator(check)


def _in_utc(moment: datetime) -> datetime:
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise ValueError("is not a date and time") from None


def _of_these_buckets(counts: tuple[int, ...]) -> tuple[int, ...]:
    """Empty if a host of another version has other buckets."""
    return counts if len(counts) == len(AGE_BUCKETS_S) + 1 else ()


_Name = Annotated[str, Field(strict=True), _bytes_up_to(NAME_BYTES_MAX)]
_Position = Annotated[str, Field(strict=True), _bytes_up_to(POSITION_BYTES_MAX)]
_Error = Annotated[str, Field(strict=True), _bytes_up_to(ERROR_BYTES_MAX)]
HostName = Annotated[_Name, Field(description="The host's name.", examples=["pod-1"])]
PipelineName = Annotated[_Name, Field(description="The pipeline's name.", examples=["transform"])]
PartitionName = Annotated[_Name, Field(description="The feed's partition; any text.", examples=["transactions-1.csv"])]
Count = Annotated[int, Field(strict=True, ge=0, le=INTEGER_MAX)]
Epoch = Annotated[Count, Field(description="Counts the lease's changes of owner; the fencing token.", examples=[4])]
Seconds = Annotated[float, Field(strict=True, ge=0, le=INTEGER_MAX, examples=[0.041])]
Moment = Annotated[AwareDatetime, AfterValidator(_in_utc), Field(examples=["2026-01-31T12:00:00Z"])]


@dataclass(frozen=True, slots=True, kw_only=True, config=CHECKED)
class BatchStatus:
    """Events of one partition that were delivered together. Positions are cut if they are long."""

    host: HostName
    pipeline: PipelineName
    partition: PartitionName
    epoch: Epoch
    start: Annotated[
        _Position | None,
        Field(
            validation_alias="from",
            serialization_alias="from",
            description="A position in the partition, opaque; null: the feed's beginning.",
            examples=["1840"],
        ),
    ]
    to: Annotated[_Position, Field(description="The position just after the batch.", examples=["2000"])]
    events: Annotated[Count, Field(examples=[1000])]
    waited_s: Annotated[Seconds, Field(description="From reading its first event to its transform.")]
    transform_s: Seconds
    deliver_s: Seconds
    at: Annotated[Moment, Field(description="When it was delivered, by the host's wall clock.")]


@dataclass(frozen=True, slots=True, kw_only=True, config=CHECKED)
class FailureStatus:
    """Why a partition stands still."""

    host: HostName
    pipeline: PipelineName
    partition: PartitionName
    error: Annotated[_Error, Field(examples=["file 'transactions-1.csv', line 17: the field 'amount' is missing"])]
    failures: Annotated[Count, Field(description="How many in a row.", examples=[3])]
    retry_at: Annotated[Moment, Field(description="When the host will try again, unless the failure is over by then.")]
    since: Annotated[Moment, Field(description="When the first of them happened.")]
    at: Annotated[Moment, Field(description="When the last of them happened.")]
    position: Annotated[
        _Position,
        Field(
            description="The lease's position at the last failure, cut if it is long. Empty: the feed's beginning.",
            examples=["1840"],
        ),
    ]


@dataclass(frozen=True, slots=True, kw_only=True, config=CHECKED)
class WaitingStatus:
    """Why a partition gets no lease for now."""

    pipeline: PipelineName
    partition: PartitionName
    why: _Error


@dataclass(frozen=True, slots=True, kw_only=True, config=CHECKED)
class ExecutorsWaitStatus:
    """Jobs of a host wait for executors of its Spark cluster. It does not count as a failure."""

    since: Moment
    why: Annotated[
        _Error,
        Field(
            description="Which cluster runs no task, and what to check.",
            examples=["spark://spark:7077 runs no task: no worker has free cores"],
        ),
    ]


@dataclass(frozen=True, slots=True, kw_only=True, config=CHECKED)
class Totals:
    """What a host has delivered of one pipeline since it started."""

    pipeline: PipelineName
    events: Annotated[Count, Field(description="Events whose output is safe, with dead letters.", examples=[120000])]
    batches: Annotated[Count, Field(examples=[120])]
    dead_letters: Annotated[Count, Field(description="How many of these events it could not process.", examples=[2])]
    ages: Annotated[
        tuple[Count, ...],
        Field(
            max_length=ENTRIES_MAX,
            description="A histogram of the ages that events of the last minutes had when their output was safe. Empty: unknown."
            f" The counts are for these bounds in seconds: {', '.join(f'{each:g}' for each in AGE_BUCKETS_S)}.",
            examples=[[]],
        ),
        AfterValidator(_of_these_buckets),
    ] = ()


_ADAPTERS: dict[type, TypeAdapter[Any]] = {
    each: TypeAdapter(each) for each in (BatchStatus, FailureStatus, WaitingStatus, ExecutorsWaitStatus, Totals)
}


def fields_of(
    status: BatchStatus | FailureStatus | WaitingStatus | ExecutorsWaitStatus | Totals, *without: str
) -> dict[str, Any]:
    """The fields as values of JSON."""
    fields: dict[str, Any] = _ADAPTERS[type(status)].dump_python(
        status, mode="json", by_alias=True, exclude=set(without)
    )
    return fields
