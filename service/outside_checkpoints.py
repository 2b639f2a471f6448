"""Writes checkpoints for readers outside, such as KEDA's scalers and processors of Azure's SDKs.

Each follows a checkpoint in the lease. A pipeline never waits for one, and a failed write does not affect it: workers note
positions, and one task of the host writes them.

    writer = CheckpointWriter(name, outside, clock=clock, log=log, stats=stats)
    writer.note(lease)              a lease's position, written once the partition's last write is `interval_s` ago
    writer.note(lease, now=True)    after a release
    writer.drop(partition)          after another host took the lease: its position must not be set back
    await writer.run()              for ever
    await writer.flush()            before the host ends
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, NoReturn

from structlog.typing import FilteringBoundLogger as Log

from leasehold.common.clock import Backoff, Clock, retry_after_s
from leasehold.leases.errors import LeasesError
from leasehold.leases.lease import Lease
from leasehold.pipeline.errors import PipelineError
from leasehold.service.failures import Streak
from leasehold.service.reports import Reports
from leasehold.service.stats import Stats
from leasehold.service.stopping import sleep_unless_stopped
from leasehold.service.texts import described

if TYPE_CHECKING:
    from leasehold.pipeline.outside_checkpoints import OutsideCheckpoints

AT_ONCE_MAX = 16
CALL_TIMEOUT_S = 10.0
FLUSH_TIMEOUT_S = 5.0
"""What is not written by then is written by the next owner, or when the next host starts."""
PAUSES = Backoff(first_s=1.0, max_s=60.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Noted:
    """The position of a lease, to be written from `due_at` on, and not again after `until` (Clock seconds)."""

    lease: Lease
    due_at: float
    until: float = inf


class CheckpointWriter:
    """The outside checkpoints of one pipeline, written by this host for the leases that it owns."""

    def __init__(self, pipeline: str, outside: OutsideCheckpoints, *, clock: Clock, log: Log, stats: Stats) -> None:
        self._pipeline = pipeline
        self._outside = outside
        self._clock = clock
        self._log = log.bind(pipeline=pipeline)
        self._stats = stats
        self._reports = Reports(clock, log)
        self._streak = Streak(clock)
        self._noted: dict[str, _Noted] = {}
        self._dropped: set[str] = set()
        self._began_at: dict[str, float] = {}
        self._resting_until = -inf
        self._woken = asyncio.Event()

    def note(self, lease: Lease, *, now: bool = False) -> None:
        """Note a position to be written; the newest one counts.

        now: write it at once, and do not try for long, because the next owner writes newer ones.
        """
        if now:
            noted = _Noted(lease=lease, due_at=-inf, until=self._clock.monotonic() + FLUSH_TIMEOUT_S)
        else:
            noted = _Noted(lease=lease, due_at=self._began_at.get(lease.partition, -inf) + self._outside.interval_s)
        self._noted[lease.partition] = noted
        self._dropped.discard(lease.partition)
        self._woken.set()

    def drop(self, partition: str) -> None:
        """Forget a position that was noted, also one whose write is failing now."""
        self._noted.pop(partition, None)
        self._dropped.add(partition)

    async def run(self) -> NoReturn:
        while True:
            self._woken.clear()
            due_at = min((each.due_at for each in self._noted.values()), default=inf)
            pause_s = max(due_at, self._resting_until) - self._clock.monotonic()
            if pause_s == inf:
                await self._woken.wait()
            elif pause_s > 0:
                await sleep_unless_stopped(self._woken, pause_s)
            else:
                await self._write_due(self._clock.monotonic())

    async def flush(self) -> None:
        """Write everything that is noted, without retries and within FLUSH_TIMEOUT_S."""
        try:
            async with asyncio.timeout(FLUSH_TIMEOUT_S):
                while self._noted and await self._write_due(inf):
                    pass
        except TimeoutError:
            pass
        if self._noted:
            partitions = ", ".join(sorted(self._noted))
            self._log.warning(
                f"{self._outside.title}s are behind", partitions=partitions, see="the next host writes them"
            )

    async def _write_due(self, now: float) -> bool:
        """Write up to AT_ONCE_MAX positions that are due. Returns whether all of these writes succeeded. Never raises."""
        due = [partition for partition, each in self._noted.items() if each.due_at <= now]
        errors = await asyncio.gather(*(self._write(partition) for partition in due[:AT_ONCE_MAX]))
        failed = [error for error in errors if error is not None]
        if not failed:
            self._streak.log_end(self._log, f"writing {self._outside.title}s recovered")
            return True
        what = f"writing {self._outside.title}s failed"
        self._streak.log_failure(self._log, what, failed[0], then="the pipeline continues")
        pause_s = PAUSES.pause_s(self._streak.count, 0.0, max(map(retry_after_s, failed)))
        self._resting_until = self._clock.monotonic() + pause_s
        return False

    async def _write(self, partition: str) -> Exception | None:
        """Write one position. Returns the error if that failed: the position is then noted again, unless a newer one is."""
        noted = self._noted.pop(partition)
        lease = noted.lease  # chosen only now: a newer position may have been noted before this task began
        self._began_at[partition] = self._clock.monotonic()
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                outcome = await self._outside.write(partition, lease.continuation, lease.generation)
        except asyncio.CancelledError:
            self._note_again(noted)
            raise
        except Exception as error:  # whatever it is, the pipeline must not end because of it
            self._note_again(noted)
            self._stats.record_outside_checkpoint(self._pipeline, "failed")
            return error
        if outcome == "outdated":
            self._reports.report(self._outside.title, partition, outdated_text(self._outside, lease), lease.key)
        elif outcome == "written":
            self._stats.record_outside_checkpoint(self._pipeline, "written")
        return None

    def _note_again(self, noted: _Noted) -> None:
        if noted.lease.partition not in self._dropped and self._clock.monotonic() < noted.until:
            self._noted.setdefault(noted.lease.partition, noted)


def outdated_text(outside: OutsideCheckpoints, lease: Lease) -> str:
    return (
        f"{outside.title} '{outside.name_of(lease.partition)}' counts more resets than the lease (generation"
        f" {lease.generation}), so it is not written. If the lease was created again, delete the {outside.title}"
    )


async def write_reset(outside: OutsideCheckpoints | None, lease: Lease) -> str | None:
    """Write the position of a lease that an operator has reset. Returns what the operator has to know if that failed."""
    if outside is None:
        return None
    name, later = f"{outside.title} '{outside.name_of(lease.partition)}'", "the next owner of the lease writes it"
    try:
        async with asyncio.timeout(CALL_TIMEOUT_S):
            outcome = await outside.write(lease.partition, lease.continuation, lease.generation)
    except (LeasesError, PipelineError, TimeoutError) as error:
        return f"the {name} was not written ({described(error)}): {later}"
    if outcome == "outdated":
        return outdated_text(outside, lease)
    is_as_wanted = outcome == "written" or lease.continuation is None
    return None if is_as_wanted else f"the {name} was not changed: {later}"
