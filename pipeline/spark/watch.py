"""Whether a job on a cluster makes progress. Pure.

Spark waits for executors forever, without an error. So a job without a running task for `STILL_S` is given up, and the failure of
its partition names what may be missing.
"""

from __future__ import annotations

from dataclasses import dataclass

STILL_S = 30.0
"""Executors take some seconds to start, or to come back."""
LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class Progress:
    """The tasks of one job. running: at this moment; ended: so far; left: not ended, as far as is known."""

    running: int
    ended: int
    left: int


@dataclass(slots=True)
class Watch:
    """The watch over one job. moved_at: when it last made progress, in the caller's seconds."""

    moved_at: float
    ended: int = 0

    def note(self, progress: Progress | None, now: float) -> None:
        """progress: None if nothing is known of it, while Spark plans it for example."""
        if progress is None or progress.running or not progress.left or progress.ended != self.ended:
            self.moved_at = now
        if progress is not None:
            self.ended = progress.ended

    def is_still(self, now: float, ran_at: float = 0.0) -> bool:
        """ran_at: when a task of any job was last seen to run, because jobs wait for each other."""
        return now - max(self.moved_at, ran_at) >= STILL_S


def still(place: str) -> str:
    """What is wrong, and what to do."""
    where = "pods of its executors" if place.startswith("k8s://") else "pages of its master and workers"
    return (
        f"no executor of the Spark cluster at '{place}' has run a task of this job for {STILL_S:g} s: look at the"
        f" {where}. Cores or memory may be short there, or executors cannot reach the driver"
        " (`spark.driver.host` and `spark.driver.port` in `spark.conf`)"
    )
