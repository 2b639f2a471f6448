"""Shows watchers what a partition reads and delivers. Without watchers, it costs one attribute access for each page and batch.

Watchers are called in the middle of the work: they must take what they want within microseconds, wait for nothing, and raise
nothing.
"""

from __future__ import annotations

from typing import Protocol

from leasehold.pipeline.event import Page
from leasehold.pipeline.ranges import RangedBatch
from leasehold.pipeline.sink import Output


class Watcher(Protocol):
    def see_page(self, page: Page) -> None:
        """The host has just read the page."""
        ...

    def see_ranges(self, batch: RangedBatch) -> None:
        """Executors are about to read the batch: the host does not see these events."""
        ...

    def see_output(self, output: Output) -> None:
        """The output has just become safe."""
        ...

    def see_end(self) -> None:
        """The host no longer works on this partition."""
        ...


class Tap:
    """The watchers of one partition. watchers: replaced as a whole, so that one may leave while another is called."""

    __slots__ = ("watchers",)

    def __init__(self) -> None:
        self.watchers: tuple[Watcher, ...] = ()

    def add(self, watcher: Watcher) -> None:
        self.watchers = (*self.watchers, watcher)

    def remove(self, watcher: Watcher) -> None:
        self.watchers = tuple(each for each in self.watchers if each is not watcher)

    def close(self) -> None:
        for watcher in self.watchers:
            watcher.see_end()
        self.watchers = ()
