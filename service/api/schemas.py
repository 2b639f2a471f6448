"""What the API answers, as pydantic models: the contract that OpenAPI shows. Field names stay; fields may be added.

`Lease`, `Host` and the like are made from the values in leasehold.service.group.status and
leasehold.service.lag.measurement (`Lease.model_validate(status)`); an alias names the source of a field if its name differs
there. Hosts' reports of their work are answered unchanged (leasehold.service.group.work).
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AliasPath, BaseModel, ConfigDict, Field

from leasehold.leases.import_.plan import Kind
from leasehold.service.group.status import GroupStatus, LeaseState
from leasehold.service.group.work import (
    BatchStatus,
    Epoch,
    ExecutorsWaitStatus,
    FailureStatus,
    HostName,
    PartitionName,
    PipelineName,
    Totals,
)
from leasehold.service.lag.measurement import Lag

Position = Annotated[
    str | None,
    Field(description="A position in the partition, opaque; null: the feed's beginning.", examples=["1840"]),
]
Unit = Literal["events", "seconds"]


class Model(BaseModel):
    model_config = ConfigDict(frozen=True, from_attributes=True)


class Problem(Model):
    """An error, as RFC 9457 defines it (application/problem+json)."""

    type: str = Field(default="about:blank", description="about:blank: the status code names the kind of error.")
    title: str = Field(description="The status code in words.", examples=["Not Found"])
    status: int = Field(examples=[404])
    detail: str = Field(
        description="What happened, to which thing, and what to do next.",
        examples=["pipeline 'transform' has no lease for partition '7': GET /api/leases lists the existing ones"],
    )
    errors: tuple[str, ...] | None = Field(
        default=None,
        description="Everything wrong with the request (422), or the leases that cannot be exported (409).",
    )


class Health(Model):
    status: str = Field(description="live, ready or not ready.", examples=["ready"])
    reasons: tuple[str, ...] = Field(
        default=(), description="Why the host is not ready.", examples=[["the leases have not been read yet"]]
    )


class Lease(Model):
    """The right of one host to work on one partition."""

    pipeline: PipelineName = Field(validation_alias=AliasPath("lease", "pipeline"))
    partition: PartitionName = Field(validation_alias=AliasPath("lease", "partition"))
    state: LeaseState = Field(
        description="owned: a host works on it. available: any host may take it. handing_over: promised to `handoff_to`."
        " expired: its owner is dead. closed: its partition ended, or an operator closed it."
    )
    owner: HostName | None = Field(
        validation_alias=AliasPath("lease", "owner"), description="The host that works on it; null: none."
    )
    epoch: Epoch = Field(validation_alias=AliasPath("lease", "epoch"))
    generation: int = Field(
        validation_alias=AliasPath("lease", "generation"),
        description="Counts operators' resets of the position.",
        examples=[0],
    )
    continuation: Position = Field(validation_alias=AliasPath("lease", "continuation"))
    handoff_to: HostName | None = Field(
        validation_alias=AliasPath("lease", "handoff_to"), description="The host that requested the lease."
    )


class Child(Model):
    partition: PartitionName
    continuation: Position


class LeaseDetail(Lease):
    """A lease with all fields of its document."""

    tick: int = Field(
        validation_alias=AliasPath("lease", "tick"),
        description="Raised by the owner with each of its writes.",
        examples=[181],
    )
    sink_state: str = Field(
        validation_alias=AliasPath("lease", "sink_state"),
        description="What the sink keeps with the lease; opaque.",
        examples=[""],
    )
    tombstone: bool = Field(
        validation_alias=AliasPath("lease", "tombstone"),
        description="An operator closed it, and its document stays, so that a file that returns is not read again.",
        examples=[False],
    )
    parents: tuple[PartitionName, ...] = Field(
        validation_alias=AliasPath("lease", "parents"),
        description="The partitions that were split or merged into this one.",
    )
    children: tuple[Child, ...] = Field(
        validation_alias=AliasPath("lease", "children"),
        description="The partitions that take over from a closed lease.",
    )


class Leases(Model):
    items: tuple[Lease, ...]
    total: int = Field(description="How many leases match, on all pages.", examples=[12])
    next: str | None = Field(
        description="The `cursor` of the next page; null on the last.", examples=["transform/transactions-1.csv"]
    )


class Host(Model):
    """A host, as it last reported."""

    name: HostName
    this: bool = Field(validation_alias="is_this", description="Whether it is the host that answers.")
    live: bool | None = Field(
        validation_alias="is_live",
        description="false: it has been silent for its duration, as the answering host has seen;"
        " null: that host has not watched for long enough to know.",
    )
    draining: bool = Field(
        validation_alias="is_draining", description="Whether it is giving its leases back in order to stop."
    )
    pipelines: tuple[PipelineName, ...]
    leases: int = Field(description="How many leases it owns.", examples=[4])
    leases_max: int | None = Field(description="How many leases it wants at most; null: no limit.", examples=[8])
    lasts_s: float = Field(
        description="How long it may be silent before others take its leases; longer than its setting while its beats are slow.",
        examples=[7.0],
    )
    unfit: tuple[PipelineName, ...] = Field(description="The pipelines that it cannot process now.", examples=[[]])
    started_at: str = Field(description="By its own wall clock.", examples=["2026-01-31T12:00:00+00:00"])
    tick: int = Field(
        description="Counts its heartbeats. Other hosts judge it by its document's ETag and term, not by this number.",
        examples=[181],
    )
    totals: tuple[Totals, ...] = Field(
        validation_alias=AliasPath("activity", "totals"),
        description="Deliveries since it started, by pipeline, as of its last report, which it makes every 10 seconds.",
    )
    failing: int = Field(
        validation_alias=AliasPath("activity", "failing"),
        description="How many partitions failed there and have not recovered since.",
        examples=[0],
    )
    suspended: int = Field(
        validation_alias=AliasPath("activity", "suspended"),
        description="How many of its leases it cannot renew now; it sends nothing for them.",
        examples=[0],
    )
    suspensions: int = Field(
        validation_alias=AliasPath("activity", "suspensions"),
        description="How often leases were suspended since it started.",
        examples=[0],
    )
    executors_wait: ExecutorsWaitStatus | None = Field(
        validation_alias=AliasPath("activity", "executors_wait"),
        description="null: it waits for no executors, or has no Spark cluster.",
    )


class Hosts(Model):
    items: tuple[Host, ...]


class EventAge(Model):
    """How old the events that the group delivered in the last five to ten minutes were when their output was safe."""

    events: int = Field(description="How many delivered events have an `enqueued_time`.", examples=[4200])
    p50_s: float = Field(description="Half of them were at most this old, estimated from a histogram.", examples=[0.18])
    p99_s: float = Field(
        description="99 of 100 were at most this old. The figure is never above a day.", examples=[0.94]
    )


class Pipeline(Model):
    name: PipelineName
    feed: str = Field(
        validation_alias=AliasPath("identity", "feed"), description="What it reads.", examples=["log:bank/raw-event"]
    )
    sink: str = Field(
        validation_alias=AliasPath("identity", "sink"),
        description="Where its output goes.",
        examples=["log:bank/transformed-event"],
    )
    leases: dict[LeaseState, int] = Field(
        description="How many of its leases are in each state.", examples=[{"owned": 4}]
    )
    failures: tuple[FailureStatus, ...]
    paused: str | None = Field(
        validation_alias="resting",
        description="Why no host may work on it: an operator has paused it; null: it is not paused.",
        examples=[
            "the pipeline was paused by alice at 2026-01-31T12:00:00Z: POST /api/pipelines/bank/resume continues it"
        ],
    )
    event_age: EventAge | None = Field(
        description="The age of delivered events; null: none were delivered in the last minutes, or it is unknown."
    )


class Pipelines(Model):
    items: tuple[Pipeline, ...]
    problems: tuple[str, ...] = Field(
        description="What needs an operator's attention: documents that cannot be trusted, hosts with other settings.",
        examples=[["pipeline 'audit' is paused by an order that cannot be read"]],
    )


def hosts_of(group: GroupStatus) -> Hosts:
    return Hosts(items=tuple(map(Host.model_validate, group.hosts.values())))


def pipelines_of(group: GroupStatus) -> Pipelines:
    return Pipelines(items=tuple(map(Pipeline.model_validate, group.pipelines.values())), problems=group.problems)


class LagOfPartition(Model):
    partition: PartitionName
    lag: int | None = Field(
        validation_alias="events",
        description="Events after the lease's position; null: unknown.",
        examples=[17],
    )
    seconds: float | None = Field(
        description="The age of the oldest undelivered event; 0: there is none; null: unknown.",
        examples=[2.75],
    )
    age_s: float = Field(description="How old `lag` is; 0: the feed has just answered.", examples=[0.0])
    error: str | None = Field(description="Why the feed did not answer; null: it did.", examples=[None])


EventsBehind = Annotated[
    int,
    Field(
        description="Events that the group is behind. Each unknown partition counts as one event, or as none if `partial`.",
        examples=[17],
    ),
]
Unknown = Annotated[int, Field(description="How many partitions are unknown.", examples=[0])]
IsPartial = Annotated[
    bool, Field(description="Too many partitions are unknown: `lag` covers only the known ones.", examples=[False])
]


OldestSeconds = Annotated[
    float | None,
    Field(
        description="The age of the oldest undelivered event; 0: there is none; null: unknown. With `partly=true`, of the known"
        " partitions only.",
        examples=[2.75],
    ),
]


class LagOfPipeline(Model):
    name: PipelineName
    lag: EventsBehind
    seconds: OldestSeconds
    unknown: Unknown
    partial: IsPartial
    partitions: tuple[LagOfPartition, ...]


def is_known(lag: Lag, unit: Unit) -> bool:
    return lag.is_known if unit == "events" else lag.seconds is not None


def unknown_of(lag: Lag, unit: Unit) -> int:
    return lag.unknown if unit == "events" else lag.unknown_seconds


class LagReport(Model):
    """How far the group is behind. KEDA's metrics-api scaler reads it with `valueLocation: lag` or `seconds`."""

    lag: EventsBehind
    seconds: OldestSeconds
    unknown: Unknown
    partial: IsPartial
    pipelines: tuple[LagOfPipeline, ...]

    @classmethod
    def of(cls, lags: dict[str, Lag], unit: Unit = "events", *, partly: bool = False) -> Self:
        """lags: by pipeline. unit: which of the two figures has to be known. partly: ignore partitions of unknown lag."""
        ages = {name: lag.oldest if partly else lag.seconds for name, lag in lags.items()}
        known = [age for age in ages.values() if age is not None]
        is_whole = partly or len(known) == len(ages)
        return cls(
            lag=sum(lag.events for lag in lags.values()),
            seconds=max(known, default=0.0 if not lags else None) if is_whole else None,
            unknown=sum(unknown_of(lag, unit) for lag in lags.values()),
            partial=not all(is_known(lag, unit) for lag in lags.values()),
            pipelines=tuple(
                LagOfPipeline(
                    name=name,
                    lag=lag.events,
                    seconds=ages[name],
                    unknown=unknown_of(lag, unit),
                    partial=not is_known(lag, unit),
                    partitions=tuple(map(LagOfPartition.model_validate, lag.partitions)),
                )
                for name, lag in lags.items()
            ),
        )


class Batches(Model):
    """Newest first. Batches of other hosts are listed as of their last report."""

    items: tuple[BatchStatus, ...]


class LeaseChange(Model):
    """What an operator did to a lease."""

    changed: bool = Field(description="false: nothing had to be done.", examples=[True])
    before: Lease
    after: Lease


class LeaseClose(LeaseChange):
    """What a close did to a lease."""

    left: int | None = Field(
        description="How many events the feed still had; null: unknown, or it was closed already.", examples=[0]
    )
    told: str = Field(
        description="What was done, in one line.",
        examples=["lease 'words-1.jsonl' of pipeline 'letters' closed at '3': 0 events left; it may be archived"],
    )


class Order(Model):
    """The last order of operators about a pipeline."""

    changed: bool = Field(description="false: nothing had to be changed.", examples=[True])
    pipeline: PipelineName
    paused: bool = Field(description="Whether no host may work on it.", examples=[True])
    by: str | None = Field(description="Who gave the order; null: no order was given.", examples=["alice"])
    at: str | None = Field(
        description="When, by the clock of the host that recorded the order.", examples=["2026-01-31T12:00:00Z"]
    )


class ImportChange(Model):
    """What an import does to one lease."""

    partition: PartitionName
    document: str = Field(description="The document's name in the input.", examples=["bank/leases/7"])
    change: Kind = Field(validation_alias="kind", description="refused: `why` gives the reason.", examples=["moved"])
    start: Position = Field(serialization_alias="from")
    to: Position
    generation: int | None = Field(description="The new generation; null: the lease stays as it is.", examples=[1])
    why: str = Field(description="The reason, or a remark.", examples=["a reset: generation 0 -> 1"])


class ImportReport(Model):
    created: int = Field(description="How many leases are new.", examples=[3])
    moved: int = Field(description="How many get another position, in a new generation.", examples=[1])
    unchanged: int = Field(description="How many are already as in the input.", examples=[0])
    refused: int = Field(
        description="How many cannot be taken over; as long as there is one, nothing is written.", examples=[0]
    )
    written: int = Field(description="How many were written; 0 without `apply=true`.", examples=[4])
    notes: tuple[str, ...] = Field(description="Further remarks.", examples=[[]])
    changes: tuple[ImportChange, ...]
