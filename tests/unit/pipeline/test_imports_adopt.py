"""Parts that do not derive from the base class of their interface."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, cast

import pytest

from leasehold.pipeline.connectors.memory import MemoryFeed
from leasehold.pipeline.event import Page
from leasehold.pipeline.feed import ChangeFeed, Start
from leasehold.pipeline.imports import adopt


class Duck:
    """Every method that a feed needs, and one of those that it may have, under its old name."""

    identity = "a duck"

    async def partitions(self) -> list[Any]:
        return []

    async def start_of(self, partition: str, start: Start) -> str | None:
        return None

    async def open(self, partition: str, continuation: str | None) -> AsyncGenerator[Page, None]:
        return
        yield

    async def latest(self, partition: str) -> str | None:
        return None

    async def lag(self, partition: str, continuation: str | None) -> int:
        return 1

    def compare(self, a: str | None, b: str | None) -> int:
        return 0

    async def close(self) -> None:
        pass

    async def held_back(self, partition: str, continuation: str | None) -> str | None:
        return f"{partition} {continuation}"


class OldName(MemoryFeed):
    async def held_back(self, partition: str, continuation: str | None) -> str | None:
        return "old"


class NewName(MemoryFeed):
    async def held_back(self, partition: str, continuation: str | None) -> str | None:
        raise AssertionError("for older releases only")

    async def find_held_back(self, partition: str, continuation: str | None) -> str | None:
        return "new"


def test_a_part_with_all_methods_gets_the_defaults_of_the_base_class_and_a_warning() -> None:
    with pytest.warns(DeprecationWarning, match="Duck") as warned:
        feed = cast(ChangeFeed, adopt(Duck(), ChangeFeed))
    assert [str(each.message) for each in warned] == [
        "Duck.held_back is now called find_held_back: rename it",
        "Duck does not derive from leasehold.ChangeFeed: the next release takes only what does",
    ]
    assert isinstance(feed, ChangeFeed)
    assert feed.no_partitions == "the feed a duck has no partitions yet"
    assert not feed.is_metered
    assert asyncio.run(feed.find_held_back("a", "1")) == "a 1"


def test_an_old_name_of_a_method_is_taken_for_the_new_one_unless_both_are_there() -> None:
    with pytest.warns(DeprecationWarning, match="OldName.held_back is now called find_held_back"):
        old = adopt(OldName(["0"]), ChangeFeed)
    assert asyncio.run(old.find_held_back("0", None)) == "old"
    assert asyncio.run(adopt(NewName(["0"]), ChangeFeed).find_held_back("0", None)) == "new"


def test_a_class_whose_objects_cannot_change_is_refused() -> None:
    slotted = type("Slotted", (), {"__slots__": ("a",)})
    with pytest.warns(DeprecationWarning, match="Slotted"), pytest.raises(TypeError):
        adopt(slotted(), ChangeFeed)


def test_a_part_that_derives_stays_as_it_is() -> None:
    feed = MemoryFeed(["0"])
    assert adopt(feed, ChangeFeed) is feed
    assert type(feed) is MemoryFeed
