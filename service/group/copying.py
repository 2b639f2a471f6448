"""How `leasehold leases copy` copies the leases of a stopped group into another lease store, so that none is in use twice.

    watch both stores for live hosts; read and compare                    nothing is written yet
    mark the source, and then the target: no host works on either         leasehold.leases.moves
    write each lease of the source once more                              a host that was frozen can no longer write it
    copy what the target lacks, read both stores again
    mark the source as done, and lift the mark of the target

It can die at any point. The marks show the next run how far it got, and each step has the same result if it is repeated.

The leases of a pipeline's replay move with it: they show which dead letters are done. A replay is marked even without leases.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from leasehold.common.clock import Clock
from leasehold.leases.document import encode_lease
from leasehold.leases.errors import StoreMissing
from leasehold.leases.keeper import Keeper
from leasehold.leases.moves import Move, PausedBefore, Side
from leasehold.leases.pause_orders import Control, control_id, encode_control
from leasehold.leases.store import LeaseStore, Stored
from leasehold.leases.tenure import versioned
from leasehold.pipeline.limits import REPLAY
from leasehold.service.errors import NotNow
from leasehold.service.group.copied_documents import (
    Documents,
    Names,
    Step,
    is_same,
    read_documents,
    require_not_ahead,
    require_unused,
    step_of,
    step_of_replay,
    wanted_in,
)
from leasehold.service.group.copy_writes import ProgressReport, Writes
from leasehold.service.group.live_hosts import listed, names_of, read_hosts, watch_hosts
from leasehold.service.group.migration import Say
from leasehold.service.texts import counted

BY = "leasehold leases copy"


@dataclass(frozen=True, slots=True)
class Place:
    """A lease store. name: for people, and for marks. is_unique: whether no other lease store has this name."""

    keeper: Keeper
    name: str
    is_unique: bool = True

    @property
    def store(self) -> LeaseStore:
        return self.keeper.store


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineCopy:
    """step: what was left to do when it was read. leases: of the source."""

    pipeline: str
    step: Step
    leases: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyReport:
    """written: documents that this run wrote into the target."""

    pipelines: tuple[PipelineCopy, ...]
    written: int = 0

    @property
    def is_done(self) -> bool:
        return all(each.step == "nothing" for each in self.pipelines)


@dataclass(frozen=True, slots=True)
class _Found:
    """A pipeline in both stores."""

    source: Documents
    target: Documents


async def plan_copy(
    source: Place, target: Place, pipelines: Sequence[str], *, replayed: Collection[str] = (), clock: Clock, say: Say
) -> CopyReport:
    """What is left to do. Writes nothing, and waits if hosts may be alive.

    replayed: the pipelines that keep dead letters.

    Raises NotNow if a host is alive, or the target has other leases; InvalidDocument, StoreMissing, StoreUnavailable.
    """
    steps, _ = await _Copy(source, target, pipelines, replayed, clock, say).look()
    return _report(steps)


async def copy_group(
    source: Place,
    target: Place,
    pipelines: Sequence[str],
    *,
    replayed: Collection[str] = (),
    copy: str,
    at: str,
    clock: Clock,
    say: Say,
) -> CopyReport:
    """Copy, or complete an earlier copy. copy: the id of a new one. Raises as `plan_copy` does, and StoreError."""
    return await _Copy(source, target, pipelines, replayed, clock, say).run(copy, at)


def _report(steps: Sequence[PipelineCopy], written: int = 0) -> CopyReport:
    """Leave out replays without leases: what is left to do for them is left to do for their pipelines, too."""
    shown = (each for each in steps if each.leases or not each.pipeline.endswith(REPLAY))
    return CopyReport(pipelines=tuple(shown), written=written)


async def cancel_copy(source: Place, pipelines: Sequence[str], *, clock: Clock) -> tuple[str, ...]:
    """Lift the marks of an unfinished copy from the source. Returns the pipelines that had one. The target keeps its marks.

    Raises NotNow if the copy of a pipeline is done: the leases in the target may be in use. Raises StoreError.
    """
    writes, marked = Writes(source.store, clock), list[tuple[Documents, Move]]()
    for name in (each for pipeline in pipelines for each in (pipeline, pipeline + REPLAY)):
        found = await read_documents(source.store, name)
        if found.order is None or found.order.move is None or found.order.move.side != "source":
            continue
        if found.order.move.state == "done":
            raise NotNow(f"{found.order.move.why(name, found.order.at)}. That cannot be given up")
        marked.append((found, found.order.move))
    for found, move in reversed(marked):  # a replay before its pipeline, whose mark refuses both
        await _restore(writes, found, move.before)
    return tuple(found.pipeline for found, _ in marked)


class _Copy:
    def __init__(
        self,
        source: Place,
        target: Place,
        pipelines: Sequence[str],
        replayed: Collection[str],
        clock: Clock,
        say: Say,
    ) -> None:
        self._source = source
        self._target = target
        self._names = Names(source=source.name, target=target.name, is_unique=target.is_unique)
        self._pipelines = pipelines
        self._replayed = replayed
        self._clock = clock
        self._say = say
        self._marks = dict[str, str]()
        """Pipeline -> the copy's id in the mark of the source, as this run has found or made it."""
        self._into = Writes(target.store, clock)
        self._back = Writes(source.store, clock)

    async def look(self) -> tuple[Sequence[PipelineCopy], Mapping[tuple[Side, str], str]]:
        """What is left to do, and the ETags of the documents of (dead) hosts."""
        hosts = await self._watch()
        steps = [step for name in self._pipelines for step in await self._look_at(name)]
        if not any(each.leases or each.step != "copy" for each in steps):
            raise StoreMissing(f"no leases in {self._source.name} yet: there is nothing to copy")
        return steps, hosts

    async def _look_at(self, pipeline: str) -> list[PipelineCopy]:
        """The pipeline and its replay, which may have leases from a time when the pipeline kept dead letters."""
        found, replay = await self._read(pipeline), await self._read(pipeline + REPLAY)
        for each in (found, replay):
            wanted_in(each.source)  # raises if a document could not be copied
        step = step_of(found.source, found.target, self._names)
        if pipeline not in self._replayed and replay.source.are_missing:
            return [_left(found.source, step)]
        of_replay = step_of_replay(replay.source, replay.target, self._names, pipeline=step)
        return [_left(found.source, step), _left(replay.source, of_replay)]

    async def run(self, copy: str, at: str) -> CopyReport:
        steps, hosts = await self.look()
        left = [each for each in steps if each.step in ("copy", "continue")]
        for each in left:
            await self._mark(each.pipeline, copy, at)
        if left:
            await self._require_no_newcomers(hosts)
        for each in left:
            await self._seal(each.pipeline)
        for each in left:
            await self._fill(each.pipeline)
        for each in left:
            await self._verify(each.pipeline)
        for each in reversed(steps):  # a replay before its pipeline, whose mark refuses both
            if each.step != "nothing":
                await self._finish(each.pipeline)
        return _report(steps, self._into.count)

    @property
    def _sides(self) -> Mapping[Side, Place]:
        return {"source": self._source, "target": self._target}

    async def _watch(self) -> Mapping[tuple[Side, str], str]:
        """The ETags of dead hosts' documents, by side, because hosts on both may have one name. Raises NotNow."""
        etags: dict[tuple[Side, str], str] = {}
        for side, place in self._sides.items():
            try:
                dead = await watch_hosts(place.keeper, self._clock, self._say)
            except StoreMissing:
                if place is self._source:
                    raise
                continue  # the target is created later
            etags |= {(side, stored.id): stored.etag for stored in dead}
        return etags

    async def _require_no_newcomers(self, before: Mapping[tuple[Side, str], str]) -> None:
        """Raise NotNow if a host has started since the watch: it may not have seen the marks. Later hosts find them."""
        for side, place in self._sides.items():
            found = await read_hosts(place.store)
            new = [name for name, stored in found.items() if before.get((side, name)) != stored.etag]
            if new:
                raise NotNow(
                    f"{listed(names_of(new))} started meanwhile on {place.name}: stop all hosts, and run the command again, or"
                    " with --cancel to give the copy up"
                )

    async def _read(self, pipeline: str) -> _Found:
        source, target = self._source.store, self._target.store
        return _Found(await read_documents(source, pipeline), await read_documents(target, pipeline))

    async def _mark(self, pipeline: str, copy: str, at: str) -> None:
        """The source first: its mark has the id. Raises NotNow if another copy has begun since the look."""
        found = await self._read(pipeline)
        step_of(found.source, found.target, self._names)
        order = found.source.order
        if order is None or order.move is None:
            before = None if order is None else PausedBefore(paused=order.paused, by=order.by, at=order.at)
            move = Move(copy=copy, side="source", other=self._target.name, before=before)
            order = Control(pipeline=pipeline, paused=True, by=BY, at=at, move=move)
            await self._back.put(control_id(pipeline), encode_control(order), found.source.order_etag)
        assert order.move is not None
        self._marks[pipeline] = order.move.copy
        if found.target.order is None:
            move = Move(copy=order.move.copy, side="target", other=self._source.name)
            mark = Control(pipeline=pipeline, paused=True, by=BY, at=order.at, move=move)
            await self._into.put(control_id(pipeline), encode_control(mark), None)

    async def _seal(self, pipeline: str) -> None:
        """Give each lease of the source a new ETag, without an owner: nothing that a frozen host may still send changes it."""
        found = await read_documents(self._source.store, pipeline)
        order, move = self._require_mark(found)
        if move.state != "begun":
            return
        progress = ProgressReport(self._say, self._clock, f"leases of pipeline '{pipeline}' locked", len(found.leases))

        async def seal(stored: Stored) -> None:
            body = encode_lease(versioned(stored).lease.given_up())
            await self._back.put(stored.id, body, stored.etag)

        await self._back.run_all(found.leases, seal, progress)
        sealed = replace(order, move=replace(move, state="sealed"))
        await self._back.put(control_id(pipeline), encode_control(sealed), found.order_etag)

    async def _fill(self, pipeline: str) -> None:
        """Create what the target lacks, and correct what another process made there under the mark."""
        found = await self._read(pipeline)
        wanted, there = wanted_in(found.source), found.target.by_id
        missing = [name for name, body in wanted.items() if not _has(there, name, body)]
        progress = ProgressReport(self._say, self._clock, f"documents of pipeline '{pipeline}' copied", len(missing))

        async def fill(name: str) -> None:
            if name in there:
                require_not_ahead(there[name], wanted[name], self._target.name)
            await self._into.put(name, wanted[name], there[name].etag if name in there else None)

        await self._into.run_all(missing, fill, progress)
        for name in there.keys() - wanted.keys():
            require_unused(there[name], self._target.name)
            await self._into.remove(there[name])

    async def _verify(self, pipeline: str) -> None:
        """Raises NotNow."""
        found = await self._read(pipeline)
        wanted, there = wanted_in(found.source), found.target.by_id
        wrong = [name for name, body in wanted.items() if not _has(there, name, body)]
        wrong += sorted(there.keys() - wanted.keys())
        owned = [stored.id for stored in found.source.leases if versioned(stored).lease.owner is not None]
        if wrong or owned:
            what, where = (wrong, self._target) if wrong else (owned, self._source)
            raise NotNow(
                f"{counted(len(what), 'document')} in {where.name} changed meanwhile, '{what[0]}' first: look for a host that"
                " still runs, and run the command again"
            )

    async def _finish(self, pipeline: str) -> None:
        """The source first: once a host may work on the target, none may on the source."""
        found = await self._read(pipeline)
        order, move = self._require_mark(found.source)
        if move.state != "done":
            done = replace(order, move=replace(move, state="done"))
            await self._back.put(control_id(pipeline), encode_control(done), found.source.order_etag)
        if found.target.order is not None and found.target.order.move is not None:
            await _restore(self._into, found.target, move.before)

    def _require_mark(self, source: Documents) -> tuple[Control, Move]:
        """The mark of this copy. Raises NotNow if another process has lifted it, and perhaps begun another copy since."""
        order, copy = source.order, self._marks.get(source.pipeline)
        if (
            order is not None
            and (move := order.move) is not None
            and move.side == "source"
            and copy in (None, move.copy)
        ):
            return order, move
        raise NotNow(
            f"the copy of pipeline '{source.pipeline}' was given up meanwhile (--cancel): hosts may run on {self._source.name}"
            f" again. What was copied stays in {self._target.name}: remove it, or name another, before you copy again"
        )


def _left(source: Documents, step: Step) -> PipelineCopy:
    return PipelineCopy(pipeline=source.pipeline, step=step, leases=len(source.leases))


async def _restore(writes: Writes, marked: Documents, before: PausedBefore | None) -> None:
    """Replace the mark by the order that the pipeline had before."""
    document, order = control_id(marked.pipeline), marked.order
    assert order is not None
    assert marked.order_etag is not None
    if before is None:
        await writes.remove(Stored(document, "", marked.order_etag))
        return
    restored = replace(order, paused=before.paused, by=before.by, at=before.at, move=None)
    await writes.put(document, encode_control(restored), marked.order_etag)


def _has(documents: Mapping[str, Stored], name: str, body: str) -> bool:
    return name in documents and is_same(name, documents[name].body, body)
