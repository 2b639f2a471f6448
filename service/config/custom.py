"""Code of yours: feeds, sinks and lease stores to import, and observers in Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from service.config.leases import Feeds, LeaseSettings
from service.config.section import Custom, FeedContext, FeedSettings, SinkSettings
from service.config.types import Importable, SecondsOrNone

if TYPE_CHECKING:
    from leases.store import LeaseStore
    from leases.timing import Timing
    from pipeline.feed import ChangeFeed
    from pipeline.sink import Sink


class CustomFeedSettings(FeedSettings, Custom):
    type: Importable = Field(
        description="A `ChangeFeed` to import. All keys that are not named here are its arguments."
    )

    def make(self, context: FeedContext) -> ChangeFeed:
        from service.config.plugins import feed_made

        return feed_made(self)


class CustomSinkSettings(SinkSettings, Custom):
    type: Importable = Field(description="A `Sink` to import. All other keys are its arguments.")

    def make(self, timing: Timing, *, letters: bool = False) -> Sink:
        from service.config.plugins import sink_made

        return sink_made(self)


class CustomLeases(LeaseSettings, Custom):
    type: Importable = Field(
        description="A `LeaseStore` to import. All keys that are not named here are its arguments."
    )

    def make(self, feeds: Feeds, *, creates: bool) -> LeaseStore:
        from service.config.plugins import store_made

        return store_made(self)


class PythonSinkSettings(SinkSettings):
    type: Literal["python"] = Field(description="Your handler, one instance per lease; every batch at least once.")
    handler: Importable = Field(description="The factory that creates the handlers: `module:factory`.")
    checkpoint_s: SecondsOrNone = Field(
        default=0.0,
        description="The longest time between checkpoints, each of which is a write to the lease. A crash repeats what"
        " was processed since the last one. 0: a checkpoint after every batch, before the next is sent.",
    )

    @property
    def unkept_s(self) -> float:
        return self.checkpoint_s

    def import_code(self) -> None:
        from pipeline.connectors.python import load

        load(self.handler)

    def make(self, timing: Timing, *, letters: bool = False) -> Sink:
        from pipeline.connectors.python import PythonSink

        return PythonSink(self.handler)
