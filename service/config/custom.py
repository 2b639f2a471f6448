"""Code of yours: feeds, sinks and lease stores to import, and observers in Python."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from service.config.leases import LeaseSettings
from service.config.section import Custom, FeedSettings, Section
from service.config.types import Importable, SecondsOrNone


class CustomFeedSettings(FeedSettings, Custom):
    type: Importable = Field(
        description="A `ChangeFeed` to import. All keys that are not named here are its arguments."
    )


class CustomSinkSettings(Custom):
    type: Importable = Field(description="A `Sink` to import. All other keys are its arguments.")


class CustomLeases(LeaseSettings, Custom):
    type: Importable = Field(
        description="A `LeaseStore` to import. All keys that are not named here are its arguments."
    )


class PythonSinkSettings(Section):
    type: Literal["python"] = Field(description="An observer of yours, one per lease; every batch at least once.")
    handler: Importable = Field(description="What makes the observers: `module:factory`.")
    checkpoint_s: SecondsOrNone = Field(
        default=0.0,
        description="The longest time between checkpoints, each of which is a write to the lease. A crash repeats what"
        " was processed since the last one. 0: a checkpoint after every batch, before the next is sent.",
    )
