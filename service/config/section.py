"""What all sections of the configuration have in common.

The section of a system also makes its feed, sink or lease store. It imports the connector only then: some SDKs import slowly.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Discriminator, Field, model_validator

from leasehold.pipeline.limits import AsyncLimits
from leasehold.service.config.types import Count, Importable, Seconds, SecondsOrNone, Share, StartAt

if TYPE_CHECKING:
    import pyarrow as pa

    from leasehold.leases.stores.cosmos import Monitored
    from leasehold.leases.timing import Timing
    from leasehold.pipeline.connectors.files.sink.storage import Storage
    from leasehold.pipeline.dead_letters import LetterBox
    from leasehold.pipeline.feed import ChangeFeed
    from leasehold.pipeline.outside_checkpoints import OutsideCheckpoints
    from leasehold.pipeline.sink import Sink
    from leasehold.service.config.azure import StorageAccess


GIVEN = "given by a program"
"""Stands for every part that a program has made itself. No file can name it."""
CUSTOM = "module:Class"
"""Stands for every `type` that names a third party's class."""


class Section(BaseModel):
    """The base of all sections: frozen, without unknown keys and infinite numbers."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True, validate_default=True
    )

    program_arguments: ClassVar[tuple[str, ...]] = ()
    """More arguments that a program may give."""

    if not TYPE_CHECKING:  # type checkers derive the arguments from the fields

        def __init__(self, /, *positional: object, **values: Any) -> None:
            """Raises ConfigurationError, with all problems."""
            from leasehold.service.config.arguments import make_of

            make_of(type(self), positional, values, super().__init__)

        # Otherwise pydantic would call it for each section of a file, and the errors would lose their places.
        __init__.__pydantic_base_init__ = True


class Keys(dict[str, Any]):
    """The keys of a section, as in a file. A program gives the section itself."""


class Given(Section):
    """A part that a program has made itself, instead of settings."""

    type: str = Field(default=GIVEN, exclude=True)
    part: Any = Field(exclude=True)


class Custom(Section):
    """Keys that are not named here are arguments of the class."""

    model_config = ConfigDict(extra="allow")
    type: Importable

    @property
    def options(self) -> Mapping[str, Any]:
        return dict(self.model_extra or {})

    def __repr_args__(self) -> list[tuple[str | None, Any]]:
        """The arguments, without the values of `options`, which may be secrets."""
        return [(name, "..." if name in self.options else value) for name, value in super().__repr_args__()]


def tag_of(
    default: str | None, *known: str, is_open: bool = True, given: type[Given] | tuple[()] = ()
) -> Discriminator:
    """Chooses a section by `type`. is_open: whether a third party's class is allowed. given: what wraps a program's object."""

    def tag(value: object) -> str | None:
        if isinstance(value, given):
            return GIVEN
        name = value.get("type", default) if isinstance(value, Mapping) else getattr(value, "type", None)
        return str(name) if name in known else CUSTOM if is_open and isinstance(name, str) and ":" in name else None

    return Discriminator(
        tag,
        custom_error_type="unknown_type",
        custom_error_message=", ".join(known) + (", or a class to import like package.module:Class" if is_open else ""),
    )


Seat = tuple[str, str]
"""A hub and a consumer group: a reader with an epoch excludes other readers of its partition there."""


@dataclass(frozen=True, slots=True)
class FeedContext:
    """What a feed needs to know about its pipeline. columns: those of the schema, each with whether it is NOT NULL.

    yields_malformed: whether a record that cannot become an event becomes a dead letter.
    """

    pipeline: str = "PIPELINE"
    yields_malformed: bool = False
    columns: Mapping[str, bool] = field(default_factory=dict)


class FeedSettings(Section):
    start: StartAt = Field(
        default="earliest",
        description="The start of partitions that exist at the first run: `earliest`, `latest`, or a time like"
        " 2026-01-31T12:00:00Z. Partitions that appear later are read from their beginning.",
    )
    starts: Mapping[str, StartAt] = Field(
        default={},
        description="The start of single partitions, by name, instead of `start`: for each `earliest`, `latest` or a time.",
    )

    @property
    def seat(self) -> Seat | None:
        """Where no other reader is allowed; None if others do no harm."""
        return None

    @property
    def executors_seat(self) -> Seat | None:
        """The seat at which Spark's executors read without an epoch, so that no feed may read there. None: they read nowhere."""
        return None

    @property
    def executors_lack(self) -> str | None:
        """The setting without which Spark's executors cannot read the feed, and what it is for; None if they can."""
        return None

    @property
    def log_path(self) -> Path | None:
        """The directory of the embedded log that it reads; None if it reads none."""
        return None

    def monitored(self, pipeline: str, feed: ChangeFeed) -> Monitored | None:
        """What names the leases in Cosmos DB; None: the pipeline alone. feed: as `make` returned it."""
        return None

    @property
    def committing_seat(self) -> Seat | None:
        """The seat at which this feed commits its offsets, so that no other pipeline may; None if it commits none."""
        return None

    @property
    def checkpoint_container(self) -> tuple[StorageAccess, str] | None:
        """The account and the container of checkpoint blobs; None: none are written."""
        return None

    def make_outside_checkpoints(self) -> OutsideCheckpoints | None:
        """Where positions are written for readers outside; None: nowhere. Raises ValueError."""
        return None

    @abstractmethod
    def make(self, context: FeedContext) -> ChangeFeed:
        """Make the feed. Raises ValueError, StartFailed."""


class SinkSettings(Section):
    @property
    def seat(self) -> Seat | None:
        """Where the sink reads back its own output; None if it does not."""
        return None

    @property
    def input_bytes_max(self) -> int | None:
        """The sink's own limit for batches, because the output of larger ones would have to be cut; None: there is none."""
        return None

    @property
    def input_events_max(self) -> int | None:
        """The sink's own limit for batches: its output then fits one write, or a crash repeats less. None: there is none."""
        return None

    @property
    def unkept_s(self) -> float:
        """The longest time between checkpoints of a sink that holds no position."""
        return 0.0

    @property
    def log_path(self) -> Path | None:
        """The directory of the embedded log that it writes; None if it writes none."""
        return None

    @property
    def writes_files(self) -> bool:
        return False

    def make_place(self) -> Storage:
        """The place of the files, for writing and for reading; for a sink that `writes_files`. Raises ValueError."""
        raise NotImplementedError

    def import_code(self) -> None:
        """Import what the sink names as `module:attribute`. Raises SinkRejected."""

    def check_output(self, table: pa.Table) -> None:
        """Check that the destination takes these columns and values, as far as that is known without it. Raises SinkRejected."""

    @abstractmethod
    def make(self, timing: Timing, *, letters: bool = False) -> Sink:
        """letters: whether the sink takes dead letters with its output. Raises ValueError, StartFailed."""


class Buffering(SinkSettings):
    """The limits of an asynchronous sink, for each partition separately; see docs/sinks.md."""

    batch_entries_max: Count = Field(
        default=AsyncLimits().batch_entries_max, description="The most entries in one request."
    )
    batch_bytes_max: Count = Field(default=AsyncLimits().batch_bytes_max, description="The most bytes in one request.")
    entry_bytes_max: Count = Field(
        default=AsyncLimits().entry_bytes_max,
        description="A larger entry stops its partition; at most `batch_bytes_max`.",
    )
    in_flight_max: Count = Field(
        default=AsyncLimits().in_flight_max, description="The most requests of a partition at a time, if all goes well."
    )
    buffered_entries_max: Count = Field(
        default=AsyncLimits().buffered_entries_max,
        description="The most entries of one partition from the first that is not acknowledged to the last that was taken."
        " Reading pauses at this limit. At least `batch_entries_max`.",
    )
    buffer_age_max_s: SecondsOrNone = Field(
        default=AsyncLimits().buffer_age_max_s, description="How long an entry waits for its request to fill up."
    )
    request_timeout_s: Seconds = Field(
        default=AsyncLimits().request_timeout_s,
        description="A request that gets no answer for this long is sent again.",
    )

    @property
    def limits(self) -> AsyncLimits:
        return AsyncLimits(**{name: getattr(self, name) for name in AsyncLimits.__dataclass_fields__})

    @model_validator(mode="after")
    def _fits_together(self) -> Buffering:
        if problems := list(self.limits.problems()):
            raise ValueError("\n".join(problems))
        return self


class LettersSettings(Section):
    share_max: Share = Field(
        default=0.1,
        description="The partition stops if a larger share of its last `share_events` events become dead letters. 1:"
        " it never stops for that.",
    )
    share_events: Count = Field(default=1000, description="The number of last events that `share_max` refers to.")

    @abstractmethod
    def make_box(self, pipeline: str, sink: SinkSettings, timing: Timing) -> LetterBox:
        """The store of a pipeline's letters; with a sink of its own, unless the pipeline's sink takes them. Raises ValueError."""
