"""Everything that a log can refuse. Its feed and its sink translate this into pipeline.errors.

LogError
├── LogUnavailable             surely not done: locked, full, read-only, damaged; the message tells what to do
│   └── LogMissing             there is no such partition (yet)
├── LogUncertain               a write whose outcome nobody knows: send the same again, or ask at a higher level
├── Outranked                  a claim of this rank or a later one is attached
├── OutOfOrder                 not the sequence number that follows, or other events under the last one's number
└── ProducerEnded              the producer said that it would write no more
"""

from __future__ import annotations


class LogError(Exception):
    """Base of all errors of a log."""


class LogUnavailable(LogError):
    """Nothing was changed. What stands in the way may go away by itself, or need a person."""


class LogMissing(LogUnavailable):
    """No file is there for the partition."""


class LogUncertain(LogError):
    """The commit failed on its way to the disk: it may or may not have happened."""


class Outranked(LogError):
    """held: generation, series and level of the claim that the log knows; None where it knows none."""

    def __init__(self, message: str, *, held: tuple[int, int, int] | None = None) -> None:
        super().__init__(message)
        self.held = held


class OutOfOrder(LogError):
    """Somebody else used our numbers, or we lost count."""


class ProducerEnded(LogError):
    """Its partition was split or merged; others write on."""
