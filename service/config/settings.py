"""All settings: frozen values, each with its default and its meaning. They come from one YAML file by
`leasehold.service.config.load`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, Tag, model_validator

from leasehold.pipeline.limits import (
    BYTES_MAX,
    EVENT_COLUMNS,
    RANGES_TIMEOUT_S_MIN,
    REPLAY,
    BatchLimits,
    Isolation,
    RangeLimits,
)
from leasehold.service.config.cosmos import CosmosFeed, CosmosLeases, CosmosSink
from leasehold.service.config.custom import (
    CustomFeed,
    CustomLeases,
    CustomSink,
    GivenFeed,
    GivenLeases,
    GivenSink,
    PythonSink,
)
from leasehold.service.config.eventhubs import EventHubsFeed, EventHubsLetters, EventHubsSink
from leasehold.service.config.files import FilesFeed, FilesLetters, FilesSink
from leasehold.service.config.http import HttpSink
from leasehold.service.config.kafka import KafkaFeed, KafkaSink
from leasehold.service.config.leases import BlobLeases, MemoryLeases, SqliteLeases
from leasehold.service.config.log import LogFeed, LogLetters, LogSink
from leasehold.service.config.postgres import PostgresLeases, PostgresLetters, PostgresSink
from leasehold.service.config.programs import OF_HANDLER
from leasehold.service.config.section import CUSTOM, GIVEN, Given, Seat, Section, tag_of
from leasehold.service.config.types import (
    NONE,
    Conf,
    Count,
    Ddl,
    FilePathOrNone,
    HostName,
    Importable,
    Memory,
    PipelineName,
    Port,
    Seconds,
    SecondsOrNone,
    Series,
    Sql,
    Text,
    is_loopback,
)

if TYPE_CHECKING:
    from leasehold.leases.timing import Timing
    from leasehold.pipeline.dead_letters import LetterBox
    from leasehold.pipeline.feed import ChangeFeed
    from leasehold.pipeline.handlers.changes import Gets
    from leasehold.pipeline.sink import Sink
    from leasehold.pipeline.spark.engine import SparkEngine
    from leasehold.service.config.programs import Sql as PythonSql
    from leasehold.service.config.section import FeedSettings, SinkSettings

# What `type` stands for, by its section.


def _wrapping(module: str, base: str, wrapper: type[Given]) -> BeforeValidator:
    """Takes an object of this class for the section that stands for it. Imports nothing: its module is there already."""

    def wrap(value: object) -> object:
        known = getattr(sys.modules.get(module), base, None)
        return wrapper(part=value) if known is not None and isinstance(value, known) else value

    return BeforeValidator(wrap)


AnyFeed = Annotated[
    Annotated[FilesFeed, Tag("files")]
    | Annotated[LogFeed, Tag("log")]
    | Annotated[CosmosFeed, Tag("cosmos")]
    | Annotated[EventHubsFeed, Tag("eventhubs")]
    | Annotated[KafkaFeed, Tag("kafka")]
    | Annotated[CustomFeed, Tag(CUSTOM)]
    | Annotated[GivenFeed, Tag(GIVEN)],
    tag_of(None, "files", "log", "cosmos", "eventhubs", "kafka"),
    _wrapping("leasehold.pipeline.feed", "ChangeFeed", GivenFeed),
]

AnySink = Annotated[
    Annotated[LogSink, Tag("log")]
    | Annotated[PostgresSink, Tag("postgres")]
    | Annotated[EventHubsSink, Tag("eventhubs")]
    | Annotated[KafkaSink, Tag("kafka")]
    | Annotated[FilesSink, Tag("files")]
    | Annotated[PythonSink, Tag("python")]
    | Annotated[HttpSink, Tag("http")]
    | Annotated[CosmosSink, Tag("cosmos")]
    | Annotated[CustomSink, Tag(CUSTOM)]
    | Annotated[GivenSink, Tag(GIVEN)],
    tag_of(None, "log", "postgres", "eventhubs", "kafka", "files", "python", "http", "cosmos"),
    _wrapping("leasehold.pipeline.sink", "Sink", GivenSink),
]

AnyLetters = Annotated[
    Annotated[PostgresLetters, Tag("postgres")]
    | Annotated[LogLetters, Tag("log")]
    | Annotated[FilesLetters, Tag("files")]
    | Annotated[EventHubsLetters, Tag("eventhubs")],
    tag_of(None, "postgres", "log", "files", "eventhubs", is_open=False),
]

AnyLeases = Annotated[
    Annotated[SqliteLeases, Tag("sqlite")]
    | Annotated[PostgresLeases, Tag("postgres")]
    | Annotated[CosmosLeases, Tag("cosmos")]
    | Annotated[BlobLeases, Tag("blob")]
    | Annotated[MemoryLeases, Tag("memory")]
    | Annotated[CustomLeases, Tag(CUSTOM)]
    | Annotated[GivenLeases, Tag(GIVEN)],
    tag_of("sqlite", "sqlite", "postgres", "cosmos", "blob", "memory"),
    _wrapping("leasehold.leases.store", "LeaseStore", GivenLeases),
]


# Addresses of collectors.


def _endpoint(value: str) -> str:
    try:
        parts = urlsplit(value)
        is_one = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_one = False
    if not is_one or set("@?#") & set(value):
        raise ValueError(
            "must be an address like http://collector:4318, without user and query: put credentials in the"
            " variable OTEL_EXPORTER_OTLP_HEADERS"
        )
    return value


_Endpoint = Annotated[Text, AfterValidator(_endpoint)]


class TelemetrySettings(Section):
    """The collector of traces, metrics and logs, for OpenTelemetry."""

    traces: _Endpoint | None = Field(
        default=None,
        description="Where to send traces: a collector of OTLP over HTTP, like http://collector:4318. By default where the"
        " variables OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT say; without them nowhere.",
    )
    metrics: _Endpoint | None = Field(
        default=None,
        description="Where to send metrics, as with `traces`. By default where the variables OTEL_EXPORTER_OTLP_ENDPOINT or"
        " OTEL_EXPORTER_OTLP_METRICS_ENDPOINT say; without them nowhere. `/metrics` is served in any case.",
    )
    logs: _Endpoint | None = Field(
        default=None,
        description="Where to send the log, as with `traces`, beside where `log` writes it. By default where the variables"
        " OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_LOGS_ENDPOINT say; without them nowhere.",
    )


class HostSettings(Section):
    """This process: its name, and how much it takes and holds."""

    name: HostName | None = Field(
        default=None,
        description="This host's name, unique among the hosts on these leases. Keep it across restarts: a host takes the leases"
        " of its name back at once. By default the machine's name (a pod's name), followed by `-2`, `-3`, ... if other"
        " processes on this machine have it already.",
    )
    leases_max: Count | None = Field(
        default=None, description="How many leases this host takes at most. By default no limit."
    )
    buffer_bytes_max: Count = Field(
        default=BYTES_MAX,
        description="How much of what is read and not delivered yet this host holds, over all partitions. A partition that"
        " holds nothing may read a page (at most 4 MiB, or one event) whatever the others hold.",
    )
    stop_timeout_s: Seconds = Field(
        default=25.0,
        description="How long a stop may take to finish, checkpoint and release. Set it below the grace period of what"
        " sends SIGTERM, such as Kubernetes.",
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
        """The one Spark of this process, which has not begun."""
        from leasehold.pipeline.spark.engine import SparkEngine

        return SparkEngine(master=self.master, remote=self.remote, driver_memory=self.driver_memory, conf=self.conf)


class Api(Section):
    """The REST API and the dashboard of this host."""

    enabled: bool = Field(default=True, description="Whether this host serves the REST API.")
    host: Text = Field(default="127.0.0.1", description="The address to listen on; without tokens loopback only.")
    port: Port = Field(default=8080, description="The port to listen on. 0: a free one, which the log names.")
    readers: FilePathOrNone = Field(
        default=NONE,
        description="A file of bearer tokens, one a line, each optionally after a name. A client with one of them may"
        " read; without a token, a client may only read health. The file is read again when it changes.",
    )
    operators: FilePathOrNone = Field(
        default=NONE,
        description="A file like `readers`. A client with one of its tokens may read, release, hand over, reset, close"
        " and pause. With `readers` alone, no client may change anything.",
    )
    tap_mask: tuple[Text, ...] | None = Field(
        default=None,
        description="Lets operators watch what this host reads and delivers (`leasehold tap`), with these names masked: of"
        " columns, properties and JSON fields, like `account` or `*phone*`. `[]` masks secrets only. By default taps are off.",
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
        default="info", description="The lowest level that is logged. `off`: nothing is, not even of other libraries."
    )
    format: Literal["text", "json"] = Field(default="text", description="Lines for people, or one JSON object a line.")
    file: FilePathOrNone = Field(default=NONE, description="A file to append to. By default standard error.")


class Pipeline(Section):
    """One feed, and where its changes go: `Pipeline("orders", feed=CosmosFeed(...), handler=on_changes)`.

    - `name`: leases and positions are kept under it, so do not change it later.
    - `handler`: a function `(changes, context)`, a subclass of `Handler`, or a function that makes one. `gets`, `parallel`,
      `checkpoint_s` (in seconds, or "manual") and `buffered_entries_max` belong to it.
    - `sink`: instead of `handler`.
    - `transform`: `Sql(...)`, or a function from DataFrame to DataFrame at the top level of a module. By default none.

    Raises ConfigurationError with all problems.
    """

    name: PipelineName = Field(
        description="Its own name, under which leases and positions are kept: do not change it later."
    )
    feed: AnyFeed = Field(description="Where events come from.")
    event_schema: Ddl | None = Field(
        default=None,
        alias="schema",
        description="Columns to parse from the JSON body, as in SQL's CREATE TABLE; NOT NULL is honoured. Types nest at most"
        " 32 levels deep.",
    )
    sql: Sql | None = Field(
        default=None,
        description="The transform: a SELECT over `events` that keeps the column `partition`. Brackets nest at most 200 levels"
        " deep.",
    )
    function: Importable | None = Field(
        default=None,
        description="The transform as Python, `module:function`, from DataFrame to DataFrame. Either this, `sql` or none.",
    )
    sink: AnySink = Field(description="Where output goes.")
    executors_read: bool = Field(
        default=False,
        description="Whether Spark's executors read the events of a large backlog. They need this version of Leasehold, and"
        " access to the feed. By default the host reads.",
    )
    executors_read_from: Count = Field(
        default=RangeLimits().from_events,
        description="With `executors_read`, how many events of a partition have to wait until executors read them. A task reads"
        " half as many.",
    )
    batch_events_max: Count = Field(
        default=BatchLimits().events_max,
        description="A batch holds at most this many events. `batch_bytes_max` or `batch_age_max_s` may close it earlier.",
    )
    batch_bytes_max: Count = Field(
        default=BatchLimits().bytes_max, description="A batch closes when it holds this many bytes."
    )
    batch_age_max_s: SecondsOrNone = Field(
        default=BatchLimits().age_max_s,
        description="A batch closes this long after its first event. 0: as soon as the one before it has been transformed.",
    )
    batch_timeout_s: Seconds = Field(
        default=300.0,
        description="A batch that makes no progress for this long is cancelled, and its lease released. At least 60 with"
        " `executors_read`.",
    )
    buffer_bytes_max: Count = Field(
        default=32 * 1024 * 1024, description="What is read ahead per partition; at least `batch_bytes_max`."
    )
    on_error: Literal["stop", "dead_letter"] | None = Field(
        default=None,
        description="What becomes of an event that cannot be processed. `stop`: its partition stops. `dead_letter`: it"
        " is kept apart, and the partition continues. By default `dead_letter` where there is a `dead_letters`, else"
        " `stop`.",
    )
    schema_mode: Literal["strict", "permissive"] | None = Field(
        default=None,
        description="With dead letters, what becomes of an event whose body does not fit the `schema`. `strict`: its partition"
        " stops. `permissive` (the default): it is a dead letter. In neither is anything nulled or rounded.",
    )
    attempts: Count = Field(
        default=Isolation().attempts,
        description="How often an event must have failed, alone or with others, before it counts as one that cannot be"
        " processed. A body that does not fit the `schema` is checked only once.",
    )
    attempt_backoff_s: SecondsOrNone = Field(
        default=Isolation().backoff_s,
        description="How long to wait before an event that has failed alone is tried once more; doubled each time, up to 60 s.",
    )
    dead_letters: AnyLetters | None = Field(
        default=None,
        description="Where dead letters are kept. With `on_error: dead_letter` and a sink `postgres` by default in its database.",
    )

    program_arguments: ClassVar[tuple[str, ...]] = ("handler", *OF_HANDLER, "transform")

    if TYPE_CHECKING:

        def __init__(
            self,
            name: str,
            *,
            feed: FeedSettings | ChangeFeed,
            sink: SinkSettings | Sink = ...,
            handler: Any = ...,
            gets: Gets = ...,
            parallel: Mapping[str, Any] = ...,
            checkpoint_s: float | Literal["manual"] = ...,
            buffered_entries_max: int = ...,
            transform: PythonSql | Callable[..., Any] | None = ...,
            schema: str = ...,
            **settings: Any,
        ) -> None: ...

    else:

        def __init__(self, *positional, **values):
            from leasehold.service.config.programs import fields_of, of_program

            with of_program(values):
                super().__init__(**fields_of(positional, values))

        __init__.__pydantic_base_init__ = True

    @property
    def gets(self) -> Gets:
        """What a handler is called with."""
        sink = self.sink
        assert isinstance(sink, PythonSink)
        if sink.gets is not None:
            return sink.gets
        if self.needs_spark:
            return "table" if sink.parallel is None else "rows"
        is_latest = isinstance(self.feed, CosmosFeed) and self.feed.mode == "latest"
        return "documents" if is_latest else "events"

    def make_sink(self, timing: Timing, *, letters: bool = False) -> Sink:
        """Raises ValueError, StartFailed."""
        sink = self.sink
        if isinstance(sink, PythonSink):
            sink = sink.model_copy(update={"gets": self.gets})
        return sink.make(timing, letters=letters)

    @model_validator(mode="after")
    def _gets_what_is_there(self) -> Pipeline:
        if isinstance(self.sink, PythonSink) and self.needs_spark and self.gets in ("documents", "events"):
            raise ValueError(
                f"`gets: {self.gets}` needs a pipeline without a transform, whose output has columns of its own: remove it, or"
                " set `gets: rows`"
            )
        return self

    @property
    def needs_spark(self) -> bool:
        """Without SQL, function and schema the events go to the sink as they are."""
        return not (self.sql is None and self.function is None and self.event_schema is None)

    @property
    def letters(self) -> AnyLetters | None:
        """Where dead letters are kept; None where an event that cannot be processed stops its partition."""
        if self.on_error == "dead_letter" and self.dead_letters is None:
            return PostgresLetters(type="postgres")
        return self.dead_letters

    def make_box(self, timing: Timing) -> LetterBox | None:
        """The store of the letters. Raises ValueError."""
        letters = self.letters
        return None if letters is None else letters.make_box(self.name, self.sink, timing)

    @model_validator(mode="after")
    def _keeps_letters(self) -> Pipeline:
        if self.name.endswith(REPLAY):
            raise ValueError(f"the suffix {REPLAY} of its name is reserved for replays: choose another name")
        if self.on_error == "stop" and self.dead_letters is not None:
            raise ValueError("`dead_letters` has no effect with `on_error: stop`: remove one of them")
        letters, has_database = self.letters, isinstance(self.sink, PostgresSink)
        if isinstance(letters, PostgresLetters) and letters.dsn is None and not has_database:
            raise ValueError(
                "needs a place for dead letters, because its sink is not `postgres`: give `dead_letters` with a `type`"
                " (and a `dsn` where that is postgres)"
            )
        if self.schema_mode is not None and (letters is None or self.event_schema is None):
            raise ValueError(
                "`schema_mode` requires `schema` and dead letters: add the missing one, or remove `schema_mode`"
            )
        return self

    @model_validator(mode="after")
    def _fits(self) -> Pipeline:
        if self.sql is not None and self.function is not None:
            raise ValueError("has both `sql` and `function`: keep one of them")
        if self.executors_read and not self.needs_spark:
            raise ValueError(
                "`executors_read` needs a transform, because Spark is not involved without one: add `sql`, `function` or"
                " `schema`, or remove it"
            )
        if "executors_read_from" in self.model_fields_set and not self.executors_read:
            raise ValueError(
                "`executors_read_from` has no effect without `executors_read: true`: add it, or remove the former"
            )
        if self.executors_read and self.feed.executors_lack is not None:
            raise ValueError(f"`executors_read` has no effect: set {self.feed.executors_lack}")
        parallel = self.sink.parallel if isinstance(self.sink, PythonSink) else None
        if parallel is not None and not self.needs_spark and parallel.key not in EVENT_COLUMNS:
            raise ValueError(
                f"`sink.parallel.key` names the column '{parallel.key}', and without a transform events have the columns"
                f" {', '.join(EVENT_COLUMNS)}: name one of these, or add a `schema` or `sql` that makes it a column"
            )
        if self.executors_read and self.batch_timeout_s < RANGES_TIMEOUT_S_MIN:
            raise ValueError(
                f"with `executors_read`, `batch_timeout_s` ({self.batch_timeout_s:g}) has to be {RANGES_TIMEOUT_S_MIN:g} at"
                " least, because Spark may take long to stop a job: raise it"
            )
        if self.buffer_bytes_max < self.batch_bytes_max:
            raise ValueError(
                f"buffer_bytes_max ({self.buffer_bytes_max}) is below batch_bytes_max ({self.batch_bytes_max}), so that no"
                " batch could fill up: raise the one, or lower the other"
            )
        return self


class Settings(Section):
    leases: AnyLeases = Field(default=SqliteLeases(), description="The lease store, and how long leases last.")
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
        """Start Spark in the background at once if a transform needs it, while the caller imports more. Stop it in the end,
        unless that was done."""
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
