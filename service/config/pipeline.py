"""The settings of a pipeline, and whether they fit each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, model_validator

from leasehold.pipeline.limits import EVENT_COLUMNS, RANGES_TIMEOUT_S_MIN, REPLAY, BatchLimits, Isolation, RangeLimits
from leasehold.service.config.cosmos import CosmosFeed
from leasehold.service.config.custom import PythonSink
from leasehold.service.config.kinds import AnyFeed, AnyLetters, AnySink
from leasehold.service.config.messages import install_command
from leasehold.service.config.postgres import PostgresLetters, PostgresSink
from leasehold.service.config.programs import OF_HANDLER
from leasehold.service.config.section import Section
from leasehold.service.config.types import Count, Ddl, Importable, PipelineName, Seconds, SecondsOrNone, Sql

if TYPE_CHECKING:
    from leasehold.leases.timing import Timing
    from leasehold.pipeline.dead_letters import LetterBox
    from leasehold.pipeline.feed import ChangeFeed
    from leasehold.pipeline.handlers.changes import Gets
    from leasehold.pipeline.sink import Sink
    from leasehold.service.config.programs import Sql as PythonSql
    from leasehold.service.config.section import FeedSettings, SinkSettings


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
        description="The pipeline's name. Leases and positions are kept under it, so do not change it later."
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
        " access to the feed. The host needs the extra `pandas`. By default the host reads.",
    )
    executors_read_from: Count = Field(
        default=RangeLimits().from_events,
        description="With `executors_read`, executors read a partition if at least this many of its events wait. A task reads"
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
        default=32 * 1024 * 1024, description="How much is read ahead per partition; at least `batch_bytes_max`."
    )
    on_error: Literal["stop", "dead_letter"] | None = Field(
        default=None,
        description="What becomes of an event that cannot be processed. `stop`: its partition stops. `dead_letter`: it"
        " is kept apart, and the partition continues. By default `dead_letter` if `dead_letters` is set, otherwise"
        " `stop`.",
    )
    schema_mode: Literal["strict", "permissive"] | None = Field(
        default=None,
        description="With dead letters, what becomes of an event whose body does not fit the `schema`. `strict`: its partition"
        " stops. `permissive` (the default): it is a dead letter. Neither rounds values or sets them to null.",
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
        description="Where dead letters are kept. With `on_error: dead_letter` and a sink `postgres`, by default its database.",
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

            given, problems = fields_of(positional, values)
            with of_program(values, problems):
                super().__init__(**given)

        __init__.__pydantic_base_init__ = True

    @property
    def gets(self) -> Gets:
        """What the handler is called with."""
        sink = self.sink
        assert isinstance(sink, PythonSink)
        if sink.gets is not None:
            return sink.gets
        if self.needs_spark:
            return "table" if sink.parallel is None else "rows"
        is_latest = isinstance(self.feed, CosmosFeed) and self.feed.mode == "latest"
        return "documents" if is_latest else "events"

    def make_sink(self, timing: Timing, *, letters: bool = False) -> Sink:
        """Make the sink. Raises ValueError, StartFailed."""
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
        if isinstance(self.sink, PythonSink) and not self.needs_spark and self.gets == "rows":
            raise ValueError("`gets: rows` needs a transform, whose output has rows: add one, or set `gets: events`")
        return self

    @property
    def needs_spark(self) -> bool:
        """Whether Spark transforms events. Without SQL, function and schema, they go to the sink as they are."""
        return not (self.sql is None and self.function is None and self.event_schema is None)

    @property
    def letters(self) -> AnyLetters | None:
        """Where dead letters are kept; None if an event that cannot be processed stops its partition."""
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
                " (and a `dsn` if that is postgres)"
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
        if self.executors_read and find_spec("pandas") is None:
            raise ValueError(
                f"`executors_read` needs pandas, which is not installed, because PySpark does: {install_command('pandas')}"
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
                f"buffer_bytes_max ({self.buffer_bytes_max}) is below batch_bytes_max ({self.batch_bytes_max}), so no"
                " batch could fill up: raise the first, or lower the second"
            )
        return self
