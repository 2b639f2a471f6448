"""How far a pipeline's dead letters were replayed, according to the leases of its replay and to its sink."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from leasehold.common.clock import BootClock
from leasehold.common.standing import Standing
from leasehold.leases.errors import LeasesError, StoreMissing
from leasehold.leases.keeper import Keeper
from leasehold.leases.lease import Lease
from leasehold.leases.store import TimedStore
from leasehold.pipeline.dead_letters.settled import Replayed
from leasehold.pipeline.errors import PipelineError
from leasehold.pipeline.limits import REPLAY
from leasehold.pipeline.sink import Sink
from leasehold.service.config.pipeline import Pipeline
from leasehold.service.config.settings import Settings
from leasehold.service.errors import ServiceError
from leasehold.service.wiring.build import store_of

Compare = Callable[[str | None, str | None], int]


async def read_replayed(settings: Settings, pipeline: Pipeline, compare: Compare) -> Replayed:
    """compare: orders positions among the letters. Nothing is created. Never raises errors of outside calls."""
    if not settings.leases.is_shared:
        return Replayed({}, everything="`leases: {type: memory}` does not keep how far a replay got")
    try:
        leases, unreadable = await _scan(settings, pipeline.name + REPLAY)
    except StoreMissing:
        return Replayed({})
    except (LeasesError, ServiceError) as error:
        return Replayed({}, everything=f"how far the replay got is unknown: {error}")
    unsettled = [lease for lease in leases if lease.owner is not None]
    try:
        held = await _ask_sink(settings, pipeline, unsettled) if unsettled else {}
        positions = {lease.partition: furthest(lease, held.get(lease.partition), compare) for lease in leases}
    except (PipelineError, ServiceError, ValueError) as error:
        why = f"its replay was interrupted or is running, and the sink cannot report how far it got: {error}"
        unreadable |= dict.fromkeys((lease.partition for lease in unsettled), why)
        positions = {lease.partition: lease.continuation for lease in leases}
    return Replayed(positions, unreadable)


def furthest(lease: Lease, held: Standing | None, compare: Compare) -> str | None:
    """A sink's position counts unless an operator has reset the lease since: the lease may lag behind the sink."""
    if held is None or held.generation < lease.generation or compare(held.position, lease.continuation) <= 0:
        return lease.continuation
    return held.position


async def _scan(settings: Settings, replay: str) -> tuple[list[Lease], dict[str, str]]:
    """The leases of the replay, and the partitions whose lease is unreadable, with the reason."""
    clock, timing = BootClock(), settings.leases.timing
    store = TimedStore(store_of(settings, [], creates=False), timing.call_timeout_s)
    try:
        keeper = Keeper(store, host="leasehold", incarnation="", clock=clock, timing=timing)
        scan = await keeper.scan([replay])
    finally:
        await store.close()
    return scan.leases, {partition: str(error) for (_, partition), error in scan.unreadable.items()}


async def _ask_sink(settings: Settings, pipeline: Pipeline, leases: list[Lease]) -> Mapping[str, Standing]:
    """The sink's positions. A replay that did not release its lease may have written more than its lease shows."""
    letters = pipeline.letters
    sink: Sink = pipeline.make_sink(settings.leases.timing, letters=letters is not None)
    try:
        if not sink.reports_standing:
            return {}
        found = {lease.partition: await sink.standing(lease.pipeline, lease.partition) for lease in leases}
    finally:
        await sink.close()
    return {partition: each for partition, each in found.items() if each is not None}
