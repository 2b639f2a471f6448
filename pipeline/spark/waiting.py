"""The jobs of one Spark that wait for executors, for its log, metrics and REST."""

from __future__ import annotations

import logging

from leasehold.pipeline.executors_wait import ExecutorsWait
from leasehold.pipeline.spark.watch import REPORTED_S, waits

_log = logging.getLogger(__name__)


class Waiting:
    """place: of Spark, for people. The log has one line every REPORTED_S, whatever the number of jobs, and one at the end."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._jobs: dict[tuple[str, str], float] = {}
        self._about = ""
        self._due_s = REPORTED_S

    def note(self, pipeline: str, job: str, for_s: float, about: str) -> None:
        """Note that the job has waited for `for_s` so far. about: what the cluster answers about its executors."""
        self._jobs[pipeline, job], self._about = for_s, about
        longest_s = max(self._jobs.values())
        if longest_s >= self._due_s:
            self._due_s = longest_s + REPORTED_S
            _log.warning("waiting for executors", extra={"seconds": round(longest_s), "why": self._why})

    def end(self, pipeline: str, job: str) -> None:
        """Note that the job does not wait, whether it did before or not."""
        for_s = self._jobs.pop((pipeline, job), None)
        if for_s is not None and not self._jobs:
            if self._due_s > REPORTED_S:
                _log.info("no longer waiting for executors", extra={"seconds": round(for_s)})
            self._due_s = REPORTED_S

    def of(self, pipeline: str) -> ExecutorsWait | None:
        """The wait of the pipeline's job that has waited longest."""
        found = [for_s for (name, _), for_s in self._jobs.items() if name == pipeline]
        return ExecutorsWait(max(found), self._why) if found else None

    @property
    def _why(self) -> str:
        return waits(self._place, self._about)
