"""Who is to blame for a batch that fails even on its own: the search of `pipeline.poison.bisect`, carried out job by job."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.batch import Batch
from pipeline.clock import Clock, LoopClock
from pipeline.errors import EngineUnavailable, FailsTogether, Poison, PoisonEvent, TransformError
from pipeline.limits import FIRST_ONE, Isolation
from pipeline.poison.bisect import Found, halfway, place_of, search
from pipeline.poison.job import Job, JobFailed, Refused, Slice

SEQUENCE = "sequence"


async def find_culprits(
    batch: Batch, failure: JobFailed, job: Job, isolation: Isolation = FIRST_ONE, clock: Clock | None = None
) -> Exception:
    """What to tell of a batch that has failed alone. Raises what `job.run` does, but for JobFailed."""
    steps = search(batch.events, str(failure), attempts=isolation.attempts, most=isolation.most)
    trial = next(steps)
    while True:
        if pause_s := isolation.pause_s(trial.again):
            await (clock or LoopClock()).sleep(pause_s)
        reason = await _try(job, Slice(batch, trial.range))
        try:
            trial = steps.send(reason)
        except StopIteration as end:
            return _told(batch, end.value, str(failure))


async def _try(job: Job, events: Slice) -> str | None:
    try:
        await job.run([events])
    except JobFailed as failure:
        return str(failure)
    return None


def _told(batch: Batch, found: Found, reason: str) -> Exception:
    if found.fails_always is not None:
        return TransformError(f"the transform fails whatever the events are: {found.fails_always}")
    if found.poison:
        return poison_event(batch, found.poison)
    if found.together is None:
        return EngineUnavailable(f"a job over partition '{batch.partition}' failed once, and then no more: {reason}")
    events = Slice(batch, found.together).table
    return FailsTogether(
        f"{place_of(events)}: {reason}: give the partition smaller batches (batch_events_max)",
        before=found.together.start,
        sequence=events.column(SEQUENCE)[0].as_py(),
        events=len(found.together),
        cut=halfway(found.together),
    )


def refused_events(batch: Batch, refused: Refused) -> PoisonEvent:
    return poison_event(batch, refused.poison, refused)


def poison_event(batch: Batch, poison: Sequence[Poison], refused: Refused | None = None) -> PoisonEvent:
    first = poison[0]
    event = Slice(batch, range(first.index, first.index + 1)).table
    return PoisonEvent(
        f"{place_of(event)}: {first.reason}: mend the event or the transform, and processing goes on from there",
        before=first.index,
        sequence=event.column(SEQUENCE)[0].as_py(),
        found=poison,
        output=None if refused is None else refused.output,
    )
