"""The jobs of one Spark that wait for executors: for its log, metrics and REST, and for time limits that exclude the wait."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf

from leasehold.pipeline.executors_wait import ExecutorsWait
from leasehold.pipeline.spark.watch import REPORTED_S, waits

_log = logging.getLogger(__name__)


class Waiting:
    """place: of Spark, for people. The log has one line every REPORTED_S, whatever the number of jobs, and one at the end."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._jobs: dict[tuple[str, str], float] = {}
        self._about = ""
        self._logged_at = self._counted_until = -inf
        self._is_logged = False
        self._noted: list[Callable[[float], object]] = []

    @contextmanager
    def noting(self, note: Callable[[float], object]) -> Iterator[None]:
        """Calls `note` about once a second while any job waits, with how much longer it has waited. While one does, no task of
        any job runs, and jobs of other pipelines may wait for its thread."""
        self._noted.append(note)
        try:
            yield
        finally:
            self._noted.remove(note)

    def note(self, pipeline: str, job: str, for_s: float, about: str, now: float) -> None:
        """Note that the job has waited for `for_s` so far. about: what the cluster answers about its executors."""
        if not self._jobs:
            self._logged_at = now - for_s
        self._jobs[pipeline, job], self._about = for_s, about
        if now - self._logged_at >= REPORTED_S:
            self._logged_at, self._is_logged = now, True
            _log.warning("waiting for executors", extra={"seconds": round(max(self._jobs.values())), "why": self._why})
        more_s = now - max(now - for_s, self._counted_until)
        self._counted_until = now
        for note in list(self._noted):
            note(more_s)

    def end(self, pipeline: str, job: str) -> None:
        """Note that the job does not wait, whether it did before or not."""
        for_s = self._jobs.pop((pipeline, job), None)
        if for_s is not None and not self._jobs:
            if self._is_logged:
                _log.info("no longer waiting for executors", extra={"seconds": round(for_s)})
            self._is_logged = False

    def of(self, pipeline: str) -> ExecutorsWait | None:
        """The wait of the pipeline's job that has waited longest."""
        found = [for_s for (name, _), for_s in self._jobs.items() if name == pipeline]
        return ExecutorsWait(max(found), self._why) if found else None

    @property
    def _why(self) -> str:
        return waits(self._place, self._about)
