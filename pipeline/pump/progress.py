"""The activity of a runner, for its supervisor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Progress:
    """Which stages work since when, in Clock seconds. Waiting for events, for room or for a permit is not work.

    events, batches: delivered so far. idle_since: since when there has been nothing to do; None while there is, or may be.
    """

    def __init__(self) -> None:
        self.events = 0
        self.batches = 0
        self.idle_since: float | None = None
        self._busy: dict[str, float] = {}

    @property
    def is_idle(self) -> bool:
        return self.idle_since is not None

    @property
    def busy(self) -> dict[str, float]:
        """Stage -> since when it has worked on its present batch, or advanced."""
        return dict(self._busy)

    @property
    def slowest(self) -> tuple[str, float] | None:
        """The stage that has not advanced for longest, and since when; None if none works."""
        return min(self._busy.items(), key=lambda item: item[1], default=None)

    @contextmanager
    def working(self, stage: str, now: float) -> Iterator[None]:
        self._busy[stage] = now
        try:
            yield
        finally:
            self.end(stage)

    def begin(self, stage: str, now: float) -> None:
        """The stage works, if it did not before."""
        self._busy.setdefault(stage, now)

    def advance(self, stage: str, now: float) -> None:
        """The stage still runs, and has just advanced."""
        if stage in self._busy:
            self._busy[stage] = now

    def end(self, stage: str) -> None:
        self._busy.pop(stage, None)

    def deliver(self, events: int) -> None:
        """A batch of so many events is safe."""
        self.events += events
        self.batches += 1

    def rest(self, now: float) -> None:
        """There is nothing to do, unless a stage works."""
        if not self._busy:
            self.idle_since = now

    def resume(self) -> None:
        """There is something to do, or it is unknown."""
        self.idle_since = None
