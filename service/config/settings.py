"""All settings: frozen values, each with its default and its meaning. `leasehold.service.config.load` reads them from one YAML
file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator

from leasehold.pipeline.limits import BYTES_MAX
from leasehold.service.config.eventhubs import EventHubsSink
from leasehold.service.config.kinds import AnyLeases
from leasehold.service.config.leases import SqliteLeases
from leasehold.service.config.pipeline import Pipeline
from leasehold.service.config.section import Seat, Section
from leasehold.service.config.telemetry import TelemetrySettings
from leasehold.service.config.types import (
    NONE,
    Conf,
    Count,
    FilePathOrNone,
    HostName,
    Importable,
    Memory,
    Port,
    Seconds,
    Series,
    Text,
    is_loopback,
)

if TYPE_CHECKING:
    from leasehold.pipeline.spark.engine import SparkEngine


class HostSettings(Section):
    """This process: its name, and how much it takes and holds."""

    name: HostName | None = Field(
        default=None,
        description="This host's name, unique among the hosts on these leases. Keep it across restarts: a host takes back the"
        " leases of its name at once. By default the machine's name (a pod's name), followed by `-2`, `-3`, ... if other"
        " processes on this machine already use it.",
    )
    leases_max: Count | None = Field(
        default=None, description="How many leases this host takes at most. By default no limit."
    )
    buffer_bytes_max: Count = Field(
        default=BYTES_MAX,
        description="How many bytes this host may have read and not delivered yet, over all partitions. A partition that"
        " holds nothing may read a page (at most 4 MiB, or one event) whatever the others hold.",
    )
    stop_timeout_s: Seconds = Field(
        default=25.0,
        description="How long a stop may take to finish, checkpoint and release. Set it below the grace period after a"
        " SIGTERM, such as that of Kubernetes.",
    )


class Spark(Section):
    """Where transforms run."""

    master: Text = Field(
        default="local[*]", description="Spark's master URL. `local[*]`: inside this process, on all cores."
    )
    remote: Text | None = Field(
        default=None, description="A Spark Connect server, like sc://spark:15002, instead of `master`."
    )
    driver_memory: Memory = Field(default="1g", description="The heap of Spark's driver: a number with k, m, g or t.")
    executors_wait_s: Seconds = Field(
        default=600.0,
        description="How long a job on a cluster may wait for executors before it is tried again, while the cluster answers and"
        " knows the application.",
    )
    conf: Conf = Field(
        repr=False,
        default={},
        description="More of Spark's own settings, by their names. They override Leasehold's. Pass secrets as"
        " `${NAME}`, but never in `spark.driver.*`, jars or files, because process listings show those.",
    )

    @model_validator(mode="after")
    def _is_one_place(self) -> Spark:
        if self.remote and "master" in self.model_fields_set:
            raise ValueError("has both `master` and `remote`, and Spark runs in one place: keep one of them")
        return self

    def make(self) -> SparkEngine:
        """The one Spark of this process, which has not started yet."""
        from leasehold.pipeline.spark.engine import SparkEngine

        return SparkEngine(
            master=self.master,
            remote=self.remote,
            driver_memory=self.driver_memory,
            conf=self.conf,
            executors_wait_s=self.executors_wait_s,
        )


class Api(Section):
    """The REST API and the dashboard of this host."""

    enabled: bool = Field(default=True, description="Whether this host serves the REST API.")
    host: Text = Field(default="127.0.0.1", description="The address to listen on; without tokens loopback only.")
    port: Port = Field(default=8080, description="The port to listen on. 0: a free one, which the log names.")
    readers: FilePathOrNone = Field(
        default=NONE,
        description="A file of bearer tokens, one per line, each optionally after a name. A client with one of them may"
        " read; without a token, a client may only read health. The file is read again when it changes.",
    )
    operators: FilePathOrNone = Field(
        default=NONE,
        description="A file like `readers`. A client with one of its tokens may read, release, hand over, reset, close"
        " and pause. With `readers` alone, no client may change anything.",
    )
    tap_mask: tuple[Text, ...] | None = Field(
        default=None,
        description="Lets operators watch what this host reads and delivers (`leasehold tap`), with these columns, properties"
        " and JSON fields masked, like `account` or `*phone*`. `[]` masks secrets only. By default taps are off.",
    )
    metrics_partitions: Series = Field(
        default=0,
        description="For how many partitions `GET /metrics` has `leasehold_partition_lag_seconds`: those of this host that are"
        " furthest behind. 0: for none.",
    )

    @model_validator(mode="after")
    def _is_for_readers(self) -> Api:
        if self.readers is None and self.operators is None and not is_loopback(self.host):
            raise ValueError(
                "`host` is an address that others reach, and the API has no tokens: set `readers`, or let it listen on this"
                " machine alone (127.0.0.1, ::1 or localhost)"
            )
        return self


class LogSettings(Section):
    """What is logged, how and where."""

    level: Literal["debug", "info", "warning", "error", "off"] = Field(
        default="info", description="The lowest level that is logged. `off`: nothing, not even from other libraries."
    )
    format: Literal["text", "json"] = Field(
        default="text", description="Lines for people, or one JSON object per line."
    )
    file: FilePathOrNone = Field(default=NONE, description="A file to append to. By default standard error.")


class Settings(Section):
    leases: AnyLeases = Field(default_factory=SqliteLeases, description="The lease store, and how long leases last.")
    host: HostSettings = Field(default=HostSettings(), description="This process.")
    spark: Spark = Field(default=Spark(), description="Where transforms run.")
    api: Api = Field(default=Api(), description="The REST API of this host.")
    log: LogSettings = Field(default=LogSettings(), description="What is logged, how and where.")
    telemetry: TelemetrySettings = Field(
        default=TelemetrySettings(), description="Traces, metrics and logs for OpenTelemetry."
    )
    notifications: Importable | None = Field(
        default=None,
        description="Your class, `module:Class`, that is notified when leases, partitions and batches change. By default none.",
    )
    pipelines: Annotated[tuple[Pipeline, ...], Field(min_length=1)] = Field(
        description="What is processed, each on its own. At least one."
    )

    @contextmanager
    def starting_spark(self) -> Iterator[SparkEngine]:
        """Start Spark in the background at once if a transform needs it, while the caller imports more. Stop it at the end,
        unless that was done before."""
        engine = self.spark.make()
        if any(each.needs_spark for each in self.pipelines):
            engine.begin()
        try:
            yield engine
        finally:
            engine.stop()

    @model_validator(mode="after")
    def _keeps_checkpoints_apart(self) -> Settings:
        for each in self.pipelines:
            if each.feed.checkpoint_container is not None and each.feed.checkpoint_container == self.leases.blobs:
                raise ValueError(
                    f"the feed of '{each.name}' would write `checkpoint_blobs` among the leases: name another `container`"
                )
        return self

    @model_validator(mode="after")
    def _commit_apart(self) -> Settings:
        committing: dict[Seat, str] = {}
        for each in self.pipelines:
            if (seat := each.feed.committing_seat) is not None and committing.setdefault(seat, each.name) != each.name:
                raise ValueError(
                    f"the pipelines '{committing[seat]}' and '{each.name}' would commit their offsets of one topic to one group:"
                    " give each a `group` of its own"
                )
        return self

    @model_validator(mode="after")
    def _sit_apart(self) -> Settings:
        seats: dict[Seat, str] = {}
        for each in self.pipelines:
            if (seat := each.feed.seat) is not None:
                other = seats.setdefault(seat, each.name)
                if other != each.name:
                    raise ValueError(
                        f"the pipelines '{other}' and '{each.name}' read one hub in one consumer group, where each would displace"
                        " the other's receivers: give each a `consumer_group` of its own"
                    )
        for each in self.pipelines:
            reader = seats.get(each.feed.executors_seat) if each.feed.executors_seat is not None else None
            if reader is not None:
                raise ValueError(
                    f"executors of '{each.name}' are to read in the consumer group of the feed of '{reader}', which permits no"
                    " other reader there: give `executors_consumer_group` a group of its own"
                )
        for each in self.pipelines:
            hubs = (("sink", each.sink, "has", "its"), ("dead letters", each.dead_letters, "have", "their"))
            for what, hub, has, its in hubs:
                if not isinstance(hub, EventHubsSink):
                    continue
                reader = seats.get(hub.seat)
                if reader is not None:
                    raise ValueError(
                        f"the {what} of '{each.name}' {has} to be read in the consumer group '{hub.consumer_group}' after a"
                        f" crash, and the feed of '{reader}' is the only permitted reader there: give the {what} a"
                        f" `consumer_group` of {its} own"
                    )
        return self

    @model_validator(mode="after")
    def _keeps_executors_apart(self) -> Settings:
        seats: dict[Seat, str] = {}
        for each in self.pipelines:
            if each.executors_read and each.feed.executors_seat is not None:
                other = seats.setdefault(each.feed.executors_seat, each.name)
                if other != each.name:
                    raise ValueError(
                        f"executors of '{other}' and '{each.name}' are to read one hub in one consumer group, where the service"
                        " permits five receivers of a partition: give each pipeline an `executors_consumer_group` of its own"
                    )
        return self
