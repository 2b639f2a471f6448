"""Code of yours: feeds, sinks and lease stores to import, and observers in Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from leasehold.pipeline.limits import ParallelLimits
from leasehold.service.config.leases import Feeds, LeaseSettings
from leasehold.service.config.section import Custom, FeedContext, FeedSettings, Section, SinkSettings
from leasehold.service.config.types import Count, Importable, Seconds, SecondsOrNone, Text

if TYPE_CHECKING:
    import pyarrow as pa

    from leasehold.leases.store import LeaseStore
    from leasehold.leases.timing import Timing
    from leasehold.pipeline.feed import ChangeFeed
    from leasehold.pipeline.sink import Sink


class CustomFeedSettings(FeedSettings, Custom):
    type: Importable = Field(
        description="A `ChangeFeed` to import. All keys that are not named here are its arguments."
    )

    def make(self, context: FeedContext) -> ChangeFeed:
        from leasehold.service.config.plugins import feed_made

        return feed_made(self)


class CustomSinkSettings(SinkSettings, Custom):
    type: Importable = Field(description="A `Sink` to import. All other keys are its arguments.")

    def make(self, timing: Timing, *, letters: bool = False) -> Sink:
        from leasehold.service.config.plugins import sink_made

        return sink_made(self)


class CustomLeases(LeaseSettings, Custom):
    type: Importable = Field(
        description="A `LeaseStore` to import. All keys that are not named here are its arguments."
    )

    @property
    def is_place_unique(self) -> bool:
        """Its arguments may be secrets, so that the place names none of them."""
        return False

    def make(self, feeds: Feeds, *, creates: bool) -> LeaseStore:
        from leasehold.service.config.plugins import store_made

        return store_made(self)


class ParallelSettings(Section):
    """For each partition separately; see docs/handlers.md."""

    key: Text = Field(description="The column whose values are the keys. Events of one key are handled in order.")
    max: Count = Field(
        default=ParallelLimits().max,
        description="Calls of one partition at a time. Plain functions share as many threads in each host.",
    )
    events_max: Count | None = Field(
        default=None,
        description="The handler takes `Events`, up to so many of one key, instead of one event as a dict.",
    )
    ack: Literal["auto", "manual"] = Field(
        default="auto",
        description="When events count as processed. `auto`: once the handler returns. `manual`: once it has awaited"
        " `events.ack(position)`, which requires `events_max`.",
    )
    window: Count = Field(
        default=ParallelLimits().window,
        description="The most events of one partition that are taken and not yet processed without a gap. Reading pauses at this"
        " limit. A batch holds at most a quarter of it. At least `max`.",
    )
    window_bytes: Count = Field(
        default=ParallelLimits().window_bytes,
        description="The most bytes of one partition's events that are taken and not yet processed.",
    )
    timeout_s: Seconds | None = Field(
        default=None,
        description="A call of an `async def` handler that takes longer is cancelled, and counts as failed. By default no limit.",
    )
    attempts: Count = Field(
        default=ParallelLimits().attempts,
        description="After so many failed calls an event becomes a dead letter, or its partition stops.",
    )
    backoff_s: SecondsOrNone = Field(
        default=ParallelLimits().backoff_s,
        description="How long a key waits after its first failed call; doubled after each, up to 30 s.",
    )
    park_s: SecondsOrNone = Field(
        default=ParallelLimits().park_s,
        description="For how long the later events of a key become dead letters unseen after one did. 0: they are handled.",
    )

    @property
    def limits(self) -> ParallelLimits:
        kept = {name: getattr(self, name) for name in ParallelLimits.__dataclass_fields__ if name != "manual_ack"}
        return ParallelLimits(**kept, manual_ack=self.ack == "manual")

    @model_validator(mode="after")
    def _fits_together(self) -> ParallelSettings:
        if problems := list(self.limits.problems()):
            raise ValueError("\n".join(problems))
        return self


class PythonSinkSettings(SinkSettings):
    type: Literal["python"] = Field(description="Your handler; every event at least once.")
    handler: Importable = Field(
        description="The factory that creates the handlers, one for each lease: `module:factory`. With `parallel`, the function"
        " that is called: `module:function`."
    )
    parallel: ParallelSettings | None = Field(
        default=None,
        description="Calls the handler for many keys side by side, and for each key in order. By default it is called for one"
        " batch at a time.",
    )
    checkpoint_s: SecondsOrNone = Field(
        default=0.0,
        description="The longest time between checkpoints, each of which is a write to the lease. A crash repeats what"
        " was processed since the last one. 0: a checkpoint after every batch, before the next is sent.",
    )

    @property
    def unkept_s(self) -> float:
        return self.checkpoint_s

    @property
    def input_events_max(self) -> int | None:
        return None if self.parallel is None else self.parallel.limits.batch_events_max

    def import_code(self) -> None:
        if self.parallel is None:
            from leasehold.pipeline.connectors.python import load

            load(self.handler)
        else:
            from leasehold.pipeline.connectors.handlers import load as load_function

            load_function(self.handler, self.parallel.limits)

    def check_output(self, table: pa.Table) -> None:
        if self.parallel is not None:
            from leasehold.pipeline.handlers.writer import check_columns

            check_columns(table.column_names, self.parallel.key, self.parallel.limits, "the handler")

    def make(self, timing: Timing, *, letters: bool = False) -> Sink:
        if self.parallel is None:
            from leasehold.pipeline.connectors.python import PythonSink

            return PythonSink(self.handler)
        from leasehold.pipeline.connectors.handlers import HandlerSink

        return HandlerSink(self.handler, key=self.parallel.key, limits=self.parallel.limits)
