"""One seed: a world, its faults, their end, and the verdict.

faults and a flow of events  ->  calm  ->  everything delivered, shares equal  ->  a while in which nothing may move
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import random
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from lab.simulation.documents import order_pause, resume, run_document_faults
from lab.simulation.faults import calm, release, run_faults
from lab.simulation.gray_faults import grays, put_back, run_gray_faults
from lab.simulation.group import Running
from lab.simulation.hub import on_virtual_time
from lab.simulation.loop import run_virtual
from lab.simulation.restores import mind, run_restores
from lab.simulation.session_faults import run_session_faults
from lab.simulation.setup import Setup, Size
from lab.simulation.topic import on_virtual_time as on_virtual_topic
from lab.simulation.world import World, narrowed

from leasehold.leases.balance import Peer, plan
from leasehold.leases.errors import StoreConflict
from leasehold.leases.host_record import HOSTS_PREFIX, found_host
from leasehold.leases.keeper import Keeper
from leasehold.leases.lease import Lease, LeaseKey
from leasehold.leases.timing import LASTS_S
from leasehold.service.worker import Worker

FAULTS_SHARE = 0.45
"""Of the simulated time; the rest is for settling and for the quiet afterwards."""
HOLD_OFFS_S = 90.0
"""What a partition that failed, and a worker that backs off, may still have to wait when faults stop."""
QUIET_SCANS = 10
SCANS = 4
"""Within so many balance intervals a host has read its leases once, though some of its listings were refused."""
GRAY_S = 120.0
"""For how long something is neither well nor dead, while events come."""
SLOW = 0.6
"""A store that answers nobody within `call_timeout_s` cannot be reached, and promises nothing."""
PROGRESS_S = 90.0
"""Until everything is delivered that came meanwhile: a host that cannot do its work is found out, and others take over."""
RESTORED_S = 30.0
"""Until all hosts work on, once a backup of their documents was put back; later by what a document in it asks to wait longer."""
MOVES_PER_MINUTE, MOVES_AT_FIRST = 1.0, 2
MOVES_OF_A_TRIAL = 3
"""The lease that a host tries when it resumes comes, goes, and may be balanced then."""
GARBAGE_MAX = 100_000
"""Objects that may be left over from earlier seeds."""
NOTICED_S = 3.0
"""After the look that shows a ring, or the listing that is due, until an owner knows that its lease was released."""
SUCCESSION_S = 2.0
"""Beyond the duration and a look, until somebody has taken over from the dead (docs/protocol.md)."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """found: the violations, the first one first. trace, hash: of nothing where nobody wants them. counts: what happened."""

    seed: int
    found: tuple[str, ...]
    hash: str
    trace: tuple[str, ...]
    counts: Counter[str]
    simulated_s: float


def simulated(seed: int, size: Size, *, is_told: bool = True) -> Verdict:
    """is_told: whether somebody reads the trace of a seed that violates nothing.

    The collector waits for the end of the seed, lest its moments play a part; where nothing but seeds is run (`hasten`), until
    there is something to be gained. What stays then are modules and values kept for the next seeds.
    """
    is_collected = gc.isenabled()
    gc.disable()
    try:
        with narrowed(), on_virtual_time():
            return run_virtual(_run(Setup.drawn(seed, size), is_told))
    finally:
        if is_collected:
            gc.enable()
        elif gc.get_count()[0] > GARBAGE_MAX:
            gc.collect()
            gc.freeze()


async def _run(setup: Setup, is_told: bool) -> Verdict:
    world = World(setup)
    asyncio.get_running_loop().set_exception_handler(lambda _, context: _unhandled(world, context))
    world.tell("SETUP", str(setup))
    total_s = 60.0 * setup.size.minutes
    try:
        with on_virtual_topic(world.topic):
            await _lived(world, total_s)
    except Ended:
        pass
    except Exception as error:
        world.onlooker.violated("the simulation itself", "".join(traceback.format_exception(error)))
    found = tuple(world.onlooker.found)
    trace = (*world.trace, *(f"VIOLATED {violation}" for violation in found)) if is_told or found else ()
    counts = world.onlooker.counts + Counter({f"fault {name}": n for name, n in world.faults.items()})
    counts += Counter(overtaken=world.weather.overtaken)
    simulated_s = world.now
    for running in world.hosts:
        await running.kill()
    return Verdict(setup.seed, found, _hash(trace), trace, counts, simulated_s)


class Ended(Exception):
    """A violation: there is no use in going on."""


async def _lived(world: World, total_s: float) -> None:
    for n in range(world.setup.size.hosts):
        world.started(f"host-{n}")
    flow = asyncio.create_task(_flow(world))
    faults = asyncio.create_task(run_faults(world, FAULTS_SHARE * total_s))
    documents = asyncio.create_task(run_document_faults(world, FAULTS_SHARE * total_s))
    sessions = asyncio.create_task(run_session_faults(world, FAULTS_SHARE * total_s))
    gray = asyncio.create_task(run_gray_faults(world, FAULTS_SHARE * total_s))
    restores = asyncio.create_task(_restored(world, FAULTS_SHARE * total_s))
    await _pause(world, FAULTS_SHARE * total_s)
    await _until(world, faults.done, world.timing.patience_s, "end of faults")
    faults.result()
    await documents
    await sessions
    await gray
    world.tell("CALM", "no more faults")
    calm(world)
    timing = world.timing
    settling_s = 3 * timing.patience_s + timing.balance_s + HOLD_OFFS_S + 2 * world.setup.opens_s
    await _until(world, lambda: _taken_up(world), settling_s, "owners")
    await _pause(world, world.skies.under_way_s)
    flow.cancel()
    world.tell("CALM", "no more events")
    await _settled(world, settling_s)
    restores.cancel()  # not before: the operator may have seen a lease only now that the sink refuses
    world.onlooker.check_idle(world.leases.values())
    succession_s = world.setup.succession_s + SUCCESSION_S
    await _quiet(world, max(QUIET_SCANS * timing.balance_s, total_s - succession_s - world.now))
    if world.skies.quota is not None:
        names = sorted(running.name for running in world.alive)
        world.onlooker.check_scans(world.skies.quota.listed_at, names, SCANS * timing.balance_s)
    world.skies.quota = None  # who asks others for leases looks each second: no promise holds while that is refused
    world.onlooker.is_calm = True
    await _progressed(world, settling_s)
    await _restored_hosts(world, settling_s)
    await _released(world, settling_s)
    if world.setup.document_faults:
        await _paused(world, settling_s)
    elif world.setup.seed % 2:
        await _moved_on(world, settling_s)
    await _succession(world)
    world.onlooker.check_end()
    world.check_documents()
    world.check_files()


async def _restored(world: World, until_s: float) -> None:
    if world.setup.restores:
        await run_restores(world, world.vault, until_s)
        await mind(world, world.vault)


async def _settled(world: World, within_s: float) -> None:
    """Everything is delivered in equal shares, and has stayed so for a round of every host: nobody has news for the others."""
    ends = world.now + within_s
    round_s = max(world.timing.balance_s, world.timing.balance_s) + 2 * world.timing.call_timeout_s
    is_so = False
    while not is_so:
        left_s = ends - world.now
        await _until(
            world, lambda: _taken_up(world) and _is_settled(world), left_s, "delivery of everything in equal shares"
        )
        epochs = world.epochs
        await _pause(world, round_s)
        is_so = _is_settled(world) and world.epochs == epochs


async def _quiet(world: World, for_s: float) -> None:
    """Nothing moves where nobody comes or goes."""
    world.tell("CALM", f"quiet for {for_s:.1f} s")
    epochs = world.epochs
    await _pause(world, for_s)
    if moved := sorted(name for name, epoch in world.epochs.items() if epoch != epochs.get(name)):
        world.onlooker.violated("liveness", f"{moved} moved though nobody came or went")


async def _revoked(keeper: Keeper, key: LeaseKey) -> None:
    """As an operator's command does it: again, if its owner wrote between reading and writing."""
    while True:
        seen = await keeper.read(*key)
        with suppress(StoreConflict):
            await keeper.rewrite(seen, seen.lease.revoked())
            return


async def _released(world: World, settling_s: float) -> None:
    """I12: an operator releases an idle lease, and its owner notices: soon if a host did it, whose ring others hear. Otherwise at
    the next listing."""
    timing = world.timing
    if not (idle := _idle_workers(world)):
        return
    worker = world.rng.choice(idle)
    lease = worker.owned.lease
    rings = world.rng.random() < 0.5
    if rings:
        keeper = world.rng.choice(world.alive).host.balancer._keeper
        await _revoked(keeper, lease.key)
    else:
        release(world, lease.partition)
    look_s = next(each.session.timing.look_s for each in world.alive if each.name == lease.owner)  # it may be slow
    within_s = (look_s if rings else timing.audit_s) + NOTICED_S
    world.tell("CALM", f"'{lease.partition}' is released by an operator {'' if rings else 'who does not ring'}")
    what = f"notice of the release of '{lease.partition}' by {lease.owner}"
    await _until(world, lambda: worker.owned.is_lost, within_s, what, "I12")
    world.onlooker.counts["releases noticed"] += 1
    await _settled(world, settling_s)


def _idle_workers(world: World) -> list[Worker]:
    return [
        worker
        for running in world.alive
        for _, worker in sorted(running.host.workers.items())
        if worker.progress.is_idle
    ]


async def _progressed(world: World, settling_s: float) -> None:
    """Progress: while a host, or its way to the store, is neither well nor dead, and others can do all, events are delivered, and
    leases do not move back and forth. Afterwards all is as before."""
    rng = random.Random(f"{world.setup.seed} progress")
    alive = [running for running in world.alive if running.leases_max is None]
    if len(alive) < 2 or len(alive) < len(world.alive) or world.setup.opens_slowly:
        return
    ways = ["slow", "slow for all", "one way", "disabled", "disabled"]
    if world.setup.sink in ("memory", "python") and world.setup.parallel is None:
        ways.append("rejected")
    sick, way = rng.choice(alive).name, rng.choice(ways)
    retries_itself = world.setup.parallel is not None or world.setup.sink == "async"
    world.skies.gray = grays(rng, sick, way, SLOW * world.timing.call_timeout_s, retries_itself=retries_itself)
    what = f"{way}: {', '.join(cut.is_meant.__name__ for cut in world.skies.gray)} of {sick}"
    world.tell("CALM", f"gray: {what}")
    world.onlooker.counts[f"gray {way}"] += 1
    began, appended = world.now, 0
    dies = rng.choice(alive) if rng.random() < 0.4 else None
    if dies is not None and len(alive) > 2 and dies.name != sick:
        world.tell("CALM", f"{dies.process.name} dies meanwhile")
        await dies.kill()
    while world.now - began < GRAY_S:
        for partition, log in sorted(world.feed._logs.items()):
            if log.children is None:
                world.append(partition, 1)
                appended += 1
        await _pause(world, GRAY_S / 8)
    await _until(world, world.onlooker.is_delivered, PROGRESS_S, f"progress although {what}", "progress")
    moves = Counter(name for at, name in world.onlooker.moves if at >= began)
    minutes = (world.now - began) / 60
    most = MOVES_PER_MINUTE * minutes + MOVES_AT_FIRST + (MOVES_OF_A_TRIAL if way == "rejected" else 0)
    if often := {name: count for name, count in moves.items() if count > most}:
        world.onlooker.violated("progress", f"{often} moves in {minutes:.1f} minutes, although only {what}")
    world.skies.gray = []
    world.tell("CALM", "all is well again")
    await _settled(world, settling_s)


async def _restored_hosts(world: World, settling_s: float) -> None:
    """A backup of the hosts' documents is put back: it may be older than the last starts. All hosts work on, and soon."""
    rng, alive = random.Random(f"{world.setup.seed} backup"), world.alive
    if not world.backups or world.setup.opens_slowly or rng.random() < 0.5:
        return
    world.tell("CALM", "a backup of the hosts' documents is put back")
    world.onlooker.counts["backups put back in calm"] += 1
    backup = rng.choice(world.backups)
    put_back(world, backup)
    longer_s = (
        max((found.lasts_s for name, body in backup.items() if (found := found_host(name, body))), default=LASTS_S)
        - LASTS_S
    )
    for partition, log in sorted(world.feed._logs.items()):
        if log.children is None:
            world.append(partition, 1)

    def works_on() -> bool:
        """Trust alone may still be that from before the backup."""
        documents = [found_host(stored.id, stored.body) for stored in world.documents(HOSTS_PREFIX)]
        shown = {found.name: found.incarnation for found in documents if found is not None}
        is_shown = all(shown.get(each.name) == each.session.record.incarnation for each in alive)
        is_trusted = all(each.session.is_trusted for each in alive)
        return world.alive == alive and is_shown and is_trusted and world.onlooker.is_delivered()

    await _until(world, works_on, RESTORED_S + max(0.0, longer_s), "work of all hosts after a restore", "progress")
    await _settled(world, settling_s)


async def _paused(world: World, settling_s: float) -> None:
    """An operator pauses a pipeline. Its leases are given back and nobody works on them until it is resumed; others go on."""
    pipeline = world.setup.pipelines[-1]

    def leases() -> list[Lease]:
        return [lease for lease in world.leases.values() if lease.pipeline == pipeline and not lease.closed]

    world.tell("CALM", f"{pipeline} is paused")
    order_pause(world, pipeline)
    audit_s = world.timing.audit_s  # this operator does not ring
    rest_s = audit_s + world.timing.patience_s + 2 * world.timing.call_timeout_s
    await _until(world, lambda: all(lease.owner is None for lease in leases()), rest_s, f"rest of {pipeline}")
    at_rest = leases()
    for partition, log in sorted(world.feed._logs.items()):
        if log.children is None:
            world.append(partition, 1)
    await _pause(world, 2 * world.timing.balance_s)
    if leases() != at_rest:
        world.onlooker.violated("pause", f"leases of {pipeline} changed while it was paused")
    resume(world, pipeline)
    await _settled(world, settling_s)


async def _moved_on(world: World, settling_s: float) -> None:
    """A host joins and gets its share, and then one stops, both while events come. An owner that gives up a lease has
    written down what it has delivered (`Onlooker._check_release`)."""
    world.started("host-newcomer")
    await _settled_with_events(world, settling_s)
    if len(alive := [running for running in world.alive if running.leases_max is None]) > 1:
        leaves = world.rng.choice(alive)
        world.tell("CALM", f"{leaves.process.name} stops")
        leaves.host.stop()
        await _settled_with_events(world, settling_s)


async def _settled_with_events(world: World, within_s: float) -> None:
    for partition, log in sorted(world.feed._logs.items()):
        if log.children is None:
            world.append(partition, 3 * world.setup.batch_events_max)
    await _settled(world, within_s)


async def _succession(world: World) -> None:
    """A host dies. Meanwhile somebody edits its leases, and that is no sign of life."""
    alive = [running for running in world.alive if running.host.workers and _has_heirs(world, running)]
    if len(world.alive) < 2 or not alive:
        return
    victim = world.rng.choice(alive)
    left = sorted(key[1] for key in victim.host.workers)
    died_at = world.now
    await victim.kill()
    world.tell("CALM", f"{victim.process.name} dies, and leaves {left}")
    records = [found_host(each.id, each.body) for each in world.documents(HOSTS_PREFIX)]
    names = {victim.name, *(each.name for each in world.alive)}
    slowest = world.timing.lasting(
        max(each.lasts_s for each in records if each and each.name in names)
    )  # it may have been slow
    within_s = replace(world.setup, timing=slowest).succession_s + SUCCESSION_S
    await _pause(world, world.timing.duration_s / 2)
    for partition in left:
        world.edit(partition, lambda lease: lease.handoff_requested("nobody"))
    await _until(world, lambda: _is_worked_on(world), within_s - (world.now - died_at), "successors")


def _has_heirs(world: World, victim: Running) -> bool:
    """Whether another host may own all that this one has, however much that is."""
    return any(each is not victim and each.leases_max is None for each in world.alive)


def _is_moving(world: World) -> bool:
    """Whether a live host would take or ask for a lease, once it reads them all. Where hosts have limits, `is_balanced` asks
    less of their shares than hosts do."""
    leases, pipelines = list(world.leases.values()), frozenset(world.setup.pipelines)
    peers = [Peer(name=each.name, pipelines=pipelines, leases_max=each.leases_max) for each in world.alive]
    plans = [
        plan(
            leases,
            peers,
            each.name,
            each.host.workers.keys(),
            (),
            (),
            random.Random(0),
        )
        for each in world.alive
    ]
    return any(each.take or each.ask for each in plans)


def _is_settled(world: World) -> bool:
    """All is delivered, and nothing is under way any more that began before."""
    workers = [worker for running in world.alive for worker in running.host.workers.values()]
    return (
        _is_worked_on(world)
        and not _lacks_leases(world)
        and not world.reopening
        and world.onlooker.is_delivered()
        and world.is_balanced()
        and not _is_moving(world)
        and all(worker.progress.is_idle for worker in workers)
    )


def _lacks_leases(world: World) -> bool:
    """Whether an open lease was deleted, and no host has put it back yet: they notice that at an audit."""
    return any(not lease.closed and name not in world.leases for name, lease in world.onlooker.leases.items())


def _taken_up(world: World) -> bool:
    """Whether every open lease has an owner. Where nobody is left to be one, starts a host, as whoever runs hosts would: the last
    one may have woken to give way to one of its name, which was dead by then."""
    if all(running.host.is_draining or running.leases_max is not None for running in world.alive):
        world.started("host-last")
    return _is_worked_on(world)


def _is_worked_on(world: World) -> bool:
    """Every open lease has a live owner who knows it as it is."""
    worked_on = {
        key[1]: (running.name, worker.owned.lease.epoch)
        for running in world.alive
        for key, worker in running.host.workers.items()
    }
    leases = {name: (lease.owner, lease.epoch) for name, lease in world.leases.items() if not lease.closed}
    return leases == worked_on != {}


async def _flow(world: World) -> None:
    """Events, ever more, in all partitions that have not ended."""
    rng = random.Random(f"{world.setup.seed} flow")
    while True:
        open_ = [name for name, log in sorted(world.feed._logs.items()) if log.children is None]
        await asyncio.sleep(rng.expovariate(len(open_) / world.setup.size.appends_every_s))
        name = rng.choice(open_)
        if world.feed._logs[name].children is None:
            world.append(name, rng.randint(1, 2 * world.setup.batch_events_max))


async def _until(
    world: World, condition: Callable[[], bool], within_s: float, what: str, invariant: str = "liveness"
) -> None:
    """Looked at each second. Ends early by the first violation."""
    ends = world.now + within_s
    while not condition():
        if world.now >= ends:
            world.onlooker.violated(invariant, f"no {what} within {within_s:.1f} s; {_state(world)}")
        if world.onlooker.found:
            raise Ended
        await asyncio.sleep(1.0)


async def _pause(world: World, seconds: float) -> None:
    """Ends early by the first violation."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await world.onlooker.first.wait()
    if world.onlooker.found:
        raise Ended


def _state(world: World) -> str:
    held = {running.name: sorted(key[1] for key in running.host.workers) for running in world.alive}
    failed = {running.name: sorted(key[1] for key in running.host.failures) for running in world.alive}
    arrived = {f"{name}.{gen}": place.to for (name, gen), place in sorted(world.onlooker.arrived.items())}
    return f"workers {held}, failures {failed}, arrived {arrived}"


def _unhandled(world: World, context: dict[str, object]) -> None:
    error = context.get("exception")
    world.onlooker.violated("unhandled", f"{context.get('message')}: {type(error).__name__}: {error}")


def _hash(trace: tuple[str, ...]) -> str:
    return hashlib.sha256("\n".join(trace).encode()).hexdigest()
