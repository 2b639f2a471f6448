"""The embedded log: as a feed, as a sink, and for dead letters."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from leasehold.service.config.section import FeedContext, FeedSettings, LettersSettings, SinkSettings
from leasehold.service.config.types import Count, FilePath, Seconds

if TYPE_CHECKING:
    import pyarrow as pa

    from leasehold.leases.timing import Timing
    from leasehold.pipeline.dead_letters import LetterBox
    from leasehold.pipeline.feed import ChangeFeed
    from leasehold.pipeline.sink import Sink


class LogFeed(FeedSettings):
    """An embedded log on a local disk, as a `LogSink` writes it."""

    type: Literal["log"] = Field(default="log", description="An embedded log, as the sink `log` writes it.")
    path: FilePath = Field(description="The log's directory.")

    @property
    def log_path(self) -> Path:
        return self.path

    def make(self, context: FeedContext) -> ChangeFeed:
        from leasehold.pipeline.connectors.log import LogChangeFeed

        return LogChangeFeed(self.path)


class LogSink(SinkSettings):
    """An embedded log on a local disk, with partitions, exactly once."""

    type: Literal["log"] = Field(
        default="log", description="An embedded log: partitioned files on a local disk, exactly once."
    )
    path: FilePath = Field(description="The log's directory. It is created if missing.")
    retention_s: Seconds | None = Field(
        default=None,
        description="Events older than this may be deleted, by the wall clocks of the hosts that write. By default none are.",
    )
    retention_bytes: Count | None = Field(
        default=None, description="How much each partition keeps; older events may be deleted. By default all is kept."
    )

    @property
    def log_path(self) -> Path:
        return self.path

    def make(self, timing: Timing, *, letters: bool = False) -> Sink:
        from leasehold.pipeline.connectors.log import LogOutputSink

        return LogOutputSink(self.path, retention_s=self.retention_s, retention_bytes=self.retention_bytes)

    def check_output(self, table: pa.Table) -> None:
        from leasehold.pipeline.publishing_writer import events_of

        events_of(table, "a log")


class LogLetters(LettersSettings):
    """Dead letters in an embedded log."""

    type: Literal["log"] = Field(default="log", description="An embedded log, on a local disk.")
    path: FilePath = Field(description="The log's directory, for dead letters only.")

    def make_box(self, pipeline: str, sink: SinkSettings, timing: Timing) -> LetterBox:
        from leasehold.pipeline.connectors.log import LogChangeFeed, LogOutputSink
        from leasehold.pipeline.dead_letters import LetterBox

        return LetterBox(feed=LogChangeFeed(self.path), sink=LogOutputSink(self.path))
