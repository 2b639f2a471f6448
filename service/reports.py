"""Reports a lasting condition once, although every round finds it again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from structlog.typing import FilteringBoundLogger as Log

from leasehold.common.clock import Clock
from leasehold.leases.lease import LeaseKey
from leasehold.service.failures import Streak

REPORTS_MAX = 65_536


class Reports:
    """The last report by kind and subject, for the latest REPORTS_MAX subjects only, so that it does not grow for ever.

    A text that changes each time (the tracking id of an error, the time in a foreign document) is reported again at intervals
    that double.
    """

    def __init__(self, clock: Clock, log: Log) -> None:
        self._clock = clock
        self._log = log
        self._last: OrderedDict[tuple[str, Hashable], tuple[int, Streak]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._last)

    def report(
        self, kind: str, subject: Hashable, text: str, key: LeaseKey | None = None, *, pipeline: str | None = None
    ) -> None:
        """Log what needs attention, once. key: the partition that it is about; its lease may be unreadable.

        pipeline: the pipeline that it is about, if it is not about a single partition.
        """
        if self.is_due(kind, subject, text):
            fields = {"pipeline": pipeline} if pipeline is not None else {}
            if key is not None:
                fields = {"pipeline": key.pipeline, "partition": key.partition}
            self._log.warning("needs attention", what=text, **fields)

    def is_due(self, kind: str, subject: Hashable, text: str) -> bool:
        """Whether to report it now; it then counts as reported."""
        known = self._last.get((kind, subject))
        reported, streak = (None, Streak(self._clock)) if known is None else known
        is_due = reported != hash(text) and streak.count_failure()
        self._last[kind, subject] = hash(text) if is_due or reported is None else reported, streak
        self._last.move_to_end((kind, subject))
        if len(self._last) > REPORTS_MAX:
            self._last.popitem(last=False)
        return is_due
