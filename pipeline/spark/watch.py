"""Whether a job on a cluster makes progress. Pure.

Spark waits for executors forever, without an error. So a job without a running task for `STILL_S` is given up, and the failure of
its partition names what may be missing. Before that, the host asks a standalone master whether it still knows the application.
"""

from __future__ import annotations

from dataclasses import dataclass

STILL_S = 30.0
"""Executors take some seconds to start, or to come back."""
ASK_S = 8.0
"""A job that waits for an executor to start, or for another job, seldom takes longer."""
LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class Progress:
    """The tasks of one job. running: at this moment; ended: so far; left: not ended, as far as is known."""

    running: int
    ended: int
    left: int


@dataclass(slots=True)
class Watch:
    """The watch over one job, in the caller's seconds.

    moved_at: when it last progressed. asked_at: when the host last asked a master.
    """

    moved_at: float
    ended: int = 0
    asked_at: float = 0.0

    def note(self, progress: Progress | None, now: float) -> None:
        """progress: None if nothing is known of it, while Spark plans it for example."""
        if progress is None or progress.running or not progress.left or progress.ended != self.ended:
            self.moved_at = now
        if progress is not None:
            self.ended = progress.ended

    def is_still(self, now: float, ran_at: float = 0.0) -> bool:
        """ran_at: when a task of any job of this host was last seen to run, because jobs wait for each other.

        On a Connect server, jobs may also wait for those of other hosts, which are not seen.
        """
        return now - max(self.moved_at, ran_at) >= STILL_S

    def has_to_ask(self, now: float, ran_at: float = 0.0) -> bool:
        """Whether it is time to ask the master, for the first time or again."""
        return now - max(self.moved_at, ran_at, self.asked_at) >= ASK_S


def still(place: str) -> str:
    """What is wrong, and what to do."""
    where, which = "pages of its master and workers", "workers may run another version of Spark than the master"
    others = ""
    if place.startswith("sc://"):
        others = ". Jobs of other hosts may hold all cores of this server (share them: `spark.scheduler.mode`)"
    if place.startswith("k8s://"):
        where, which = "pods of its executors", "their image may be missing"
    return (
        f"no executor of the Spark cluster at '{place}' has run a task of this job for {STILL_S:g} s: look at the"
        f" {where}. Cores or memory may be short there, {which}, or executors cannot reach the driver"
        f" (`spark.driver.host` and `spark.driver.port` in `spark.conf`){others}"
    )


def forgotten(place: str) -> str:
    """What is wrong, and what happens next."""
    return (
        f"the Spark master at '{place}' no longer knows this host's application, as after it lost the connection to its driver:"
        " the next batch starts another"
    )
