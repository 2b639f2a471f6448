"""What the open reader of a partition knows of its end."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class OpenReader:
    """What the open reader of a partition knows. delivered: sequence of the last event that it passed on; None if unknown.

    is_waiting: whether it is attached and has passed on all that arrived, so that the next event would arrive at once.
    end: sequence of the partition's last event, as it was known at `at` (seconds).
    """

    delivered: int | None
    is_waiting: bool = False
    end: int | None = None
    at: float = 0.0

    def wait(self) -> None:
        self.is_waiting = True

    def note(self, end: int | None, at: float) -> None:
        """end: None if none was reported. An end before the delivered position, or before a known end, is an old answer."""
        if end is not None and all(other is None or end >= other for other in (self.end, self.delivered)):
            self.end, self.at = end, at

    def known_end(self, now: float) -> tuple[int, float] | None:
        """The partition's end, and how old that is in seconds; None if it is unknown."""
        if self.end is None or self.delivered is None:
            return None
        if self.is_waiting and self.delivered >= self.end:
            return self.delivered, 0.0
        return max(self.end, self.delivered), max(0.0, now - self.at)
