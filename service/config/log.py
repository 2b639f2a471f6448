"""The embedded log: as a feed, as a sink, and for dead letters."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from service.config.section import FeedSettings, LettersSettings, Section
from service.config.types import Count, FilePath, Seconds


class LogFeedSettings(FeedSettings):
    type: Literal["log"] = Field(description="An embedded log, as the sink `log` writes it.")
    path: FilePath = Field(description="The log's directory.")


class LogSinkSettings(Section):
    type: Literal["log"] = Field(description="An embedded log: partitioned files on a local disk, exactly once.")
    path: FilePath = Field(description="The log's directory. It is created where it is missing.")
    retention_s: Seconds | None = Field(
        default=None,
        description="Events older than this may be forgotten, by the wall clocks of the hosts that write. By default none are.",
    )
    retention_bytes: Count | None = Field(
        default=None, description="What each partition keeps; older events beyond it may be forgotten. By default all."
    )


class LogLettersSettings(LettersSettings):
    type: Literal["log"] = Field(description="An embedded log, on a local disk.")
    path: FilePath = Field(description="Its directory, with nothing but dead letters in it.")
