"""Sections for users' code: feeds, sinks and lease stores to import or from a program, and handlers in Python."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast
from weakref import WeakValueDictionary

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, TypeAdapter, ValidationError, model_validator

from leasehold.pipeline.errors import SinkRejected
from leasehold.pipeline.handlers import forms
from leasehold.pipeline.limits import ParallelLimits
from leasehold.service.config.leases import Feeds, LeaseSettings
from leasehold.service.config.messages import message_of
from leasehold.service.config.section import Custom, FeedContext, FeedSettings, Given, Section, SinkSettings
from leasehold.service.config.types import Count, Importable, Seconds, SecondsOrNone, Text

if TYPE_CHECKING:
    import pyarrow as pa

    from leasehold.leases.store import LeaseStore
    from leasehold.leases.timing import Timing
    from leasehold.pipeline.feed import ChangeFeed
    from leasehold.pipeline.sink import Sink


CHANGES_MAX = 10_000
"""The most changes in a batch for a handler that gets objects; batches that stay Arrow tables may be larger."""
_IMPORTABLE = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


class GivenFeed(Given, FeedSettings):
    """A feed that a program has made."""

    def make(self, context: FeedContext) -> ChangeFeed:
        from leasehold.pipeline.feed import ChangeFeed
        from leasehold.pipeline.imports import derived

        return cast(ChangeFeed, derived(self.part, ChangeFeed))


class GivenSink(Given, SinkSettings):
    """A sink that a program has made."""

    def make(self, timing: Timing, *, letters: bool = False) -> Sink:
        from leasehold.pipeline.imports import derived
        from leasehold.pipeline.sink import Sink

        return cast(Sink, derived(self.part, Sink))


class GivenLeases(Given, LeaseSettings):
    """A lease store that a program has made."""

    @property
    def is_place_unique(self) -> bool:
        return False

    def make(self, feeds: Feeds, *, creates: bool) -> LeaseStore:
        from leasehold.leases.store import LeaseStore
        from leasehold.pipeline.imports import derived

        return cast(LeaseStore, derived(self.part, LeaseStore))


class MemoryFeed(GivenFeed):
    """Changes in memory, for tests: by partition; each is bytes, a text, or a value that becomes JSON."""

    part: Any = Field(default=None, exclude=True)
    changes: Mapping[str, Sequence[Any]] = Field(default={}, exclude=True)

    def make(self, context: FeedContext) -> ChangeFeed:
        from leasehold.pipeline.connectors.memory import MemoryChangeFeed

        feed = MemoryChangeFeed(self.changes)
        for partition, changes in self.changes.items():
            feed.append(partition, [_body_of(change) for change in changes])
        return feed


class MemorySink(GivenSink):
    """Output in memory, for tests."""

    part: Any = Field(default=None, exclude=True)
    _destination: Any = PrivateAttr(default=None)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """All output so far, in the order of its delivery."""
        commits = () if self._destination is None else tuple(self._destination.commits)
        return [row for commit in commits for row in commit.output.table.to_pylist()]

    def make(self, timing: Timing, *, letters: bool = False) -> Sink:
        from leasehold.pipeline.connectors.memory import MemoryDestination, MemoryOutputSink

        self._destination = MemoryDestination()
        return MemoryOutputSink(self._destination)


def _body_of(change: object) -> bytes:
    if isinstance(change, bytes):
        return change
    return (change if isinstance(change, str) else json.dumps(change)).encode()


class CustomFeed(FeedSettings, Custom):
    type: Importable = Field(
        description="A `ChangeFeed` to import. All keys that are not named here are its arguments."
    )

    def make(self, context: FeedContext) -> ChangeFeed:
        from leasehold.service.config.plugins import feed_made

        return feed_made(self)


class CustomSink(SinkSettings, Custom):
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
        """The store's arguments may be secrets, so its place names none of them."""
        return False

    def make(self, feeds: Feeds, *, creates: bool) -> LeaseStore:
        from leasehold.service.config.plugins import store_made

        return store_made(self)


class ParallelSettings(Section):
    """Calls of a handler side by side, for each partition separately; see docs/handlers.md."""

    key: Text = Field(description="The column whose values are the keys. Events of one key are handled in order.")
    max: Count = Field(
        default=ParallelLimits().max,
        description="The most calls of one partition at a time. In each host, plain functions share this many threads.",
    )
    events_max: Count | None = Field(
        default=None,
        description="The handler is called with up to this many changes of one key. By default with one.",
    )
    window: Count = Field(
        default=ParallelLimits().window,
        description="The most events of one partition from the first that is not processed to the last that was taken. Reading"
        " pauses at this limit. A batch holds at most a quarter of it. At least `max`.",
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
        description="After this many failed calls, an event becomes a dead letter, or its partition stops.",
    )
    backoff_s: SecondsOrNone = Field(
        default=ParallelLimits().backoff_s,
        description="How long a key waits after its first failed call; doubled after each, up to 30 s.",
    )
    park_s: SecondsOrNone = Field(
        default=ParallelLimits().park_s,
        description="After an event has become a dead letter, how long later events of its key also become dead letters, without"
        " a call. 0: they are handled.",
    )

    def limits(self, *, manual_ack: bool = False) -> ParallelLimits:
        kept = {name: getattr(self, name) for name in ParallelLimits.__dataclass_fields__ if name != "manual_ack"}
        return ParallelLimits(**kept, manual_ack=manual_ack)

    @model_validator(mode="after")
    def _fits_together(self) -> ParallelSettings:
        if problems := list(self.limits().problems()):
            raise ValueError("\n".join(problems))
        return self


MANUAL = "manual"


def _handler(value: object) -> object:
    if not isinstance(value, str):
        return value
    if _IMPORTABLE.fullmatch(value) is None:
        raise ValueError("must name a handler to import, like package.module:name")
    return value


def _checkpoint_s(value: object) -> object:
    if value == MANUAL:
        return value
    try:
        return TypeAdapter(SecondsOrNone).validate_python(value)
    except ValidationError as error:
        raise ValueError(f"{message_of(error.errors()[0])}, or `{MANUAL}`") from None


class PythonSink(SinkSettings):
    type: Literal["python"] = Field(default="python", description="Your handler; every event at least once.")
    handler: Annotated[Any, AfterValidator(_handler)] = Field(
        description="The handler, `module:name`: a function, a class derived from `leasehold.Handler`, or a function that makes"
        " such objects. See docs/handlers.md."
    )
    gets: Literal["documents", "events", "rows", "table"] | None = Field(
        default=None,
        description="What the handler is called with: `documents` (bodies that are JSON objects), `events`, `rows` of a"
        " transform's output, or an Arrow `table`. By default documents for a feed `cosmos`, events for others, and after a"
        " transform the table (rows with `parallel`).",
    )
    parallel: ParallelSettings | None = Field(
        default=None,
        description="Calls the handler for many keys side by side, and for each key in order. By default it is called for one"
        " batch at a time.",
    )
    checkpoint_s: Annotated[Any, BeforeValidator(_checkpoint_s)] = Field(
        default=0.0,
        description="The longest time between checkpoints, each of which is a write to the lease. A crash repeats what"
        " was processed since the last one. 0: a checkpoint after every batch, before the next is sent. `manual`: the handler"
        " awaits `context.checkpoint(change)`.",
    )
    buffered_entries_max: Count = Field(
        default=10_000,
        description="With `checkpoint_s: manual`, reading pauses at this many changes of a partition without a checkpoint.",
    )

    @property
    def is_manual(self) -> bool:
        return bool(self.checkpoint_s == MANUAL)

    @property
    def unkept_s(self) -> float:
        return 0.0 if self.is_manual else float(self.checkpoint_s)

    @property
    def input_events_max(self) -> int | None:
        if self.parallel is not None:
            return self.parallel.limits().batch_events_max
        if self.is_manual:
            return max(1, self.buffered_entries_max // 4)
        return None if self.gets == "table" else CHANGES_MAX

    @property
    def name(self) -> str:
        """How messages name the handler."""
        return self.handler if isinstance(self.handler, str) else forms.name_of(self.handler)

    @model_validator(mode="after")
    def _takes_it(self) -> PythonSink:
        if self.parallel is not None and self.gets == "table":
            raise ValueError("`gets: table` has no effect with `parallel`: remove one of them")
        if not isinstance(self.handler, str):
            try:
                self._form_of(self.handler)
            except SinkRejected as error:
                raise ValueError(str(error)) from None
        return self

    def _form_of(self, handler: object) -> object:
        """Check the handler, and return it. Raises SinkRejected."""
        has_timeout = self.parallel is not None and self.parallel.timeout_s is not None
        forms.form_of(handler, self.name, is_manual=self.is_manual, has_timeout=has_timeout)
        return handler

    def import_code(self) -> None:
        self._found()

    def _found(self) -> Any:
        """The handler, imported if need be. Raises SinkRejected."""
        return self._form_of(forms.found(self.handler) if isinstance(self.handler, str) else self.handler)

    def check_output(self, table: pa.Table) -> None:
        if self.parallel is not None:
            from leasehold.pipeline.handlers.writer import check_columns

            limits = self.parallel.limits(manual_ack=self.is_manual)
            check_columns(table.column_names, self.parallel.key, limits, "the handler")

    def make(self, timing: Timing, *, letters: bool = False) -> Sink:
        from leasehold.pipeline.connectors.handler_loop import PROGRAM, HandlerLoop
        from leasehold.pipeline.connectors.observers import for_lease, observers
        from leasehold.pipeline.connectors.python import PythonOutputSink

        seen = WeakValueDictionary[int, Any]()
        loop, gets, name, is_manual = HandlerLoop(PROGRAM.get()), self.gets or "events", self.name, self.is_manual
        if self.parallel is None:
            return PythonOutputSink(
                load=lambda: observers(self._found(), name=name, gets=gets, loop=loop, seen=seen, is_manual=is_manual),
                name=name,
                manual_max=self.buffered_entries_max if is_manual else None,
                ended=loop.stop,
            )
        from leasehold.pipeline.connectors.handlers import HandlerSink

        limits = self.parallel.limits(manual_ack=is_manual)
        return HandlerSink(
            load=self._found,
            name=name,
            key=self.parallel.key,
            limits=replace(limits, events_max=limits.events_max or 1),
            for_lease=partial(for_lease, name=name, gets=gets, loop=loop, seen=seen, limits=limits),
            ended=loop.stop,
        )
