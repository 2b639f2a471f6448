"""Processes under one host name, and backups that are put back: who goes on. Every course of a few events is looked at."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from leasehold.leases.trust import Encounter, encountered

LASTS_S = 3.0
EVENTS = 9


class Process(NamedTuple):
    """replaced: incarnations whose documents it replaced at its first write. ended: it has given way."""

    name: str
    has_written: bool = False
    tick: int = 0
    replaced: frozenset[str] = frozenset()
    met: Encounter | None = None
    ended: bool = False


class World(NamedTuple):
    now: int
    document: tuple[str, int]
    processes: tuple[Process, ...]
    backups: tuple[tuple[str, int], ...]


def beaten(world: World, number: int, *, is_forgetful: bool = False) -> World:
    """A process tries to write its document. is_forgetful: as if each foreign document were a live process's."""
    process = world.processes[number]
    if process.ended:
        return world
    owner, tick = world.document
    if owner not in ("", process.name):
        found = Encounter(owner, tick, LASTS_S, float(world.now))
        decision = encountered(
            found, process.met, is_first=not process.has_written, is_replaced=owner in process.replaced
        )
        if is_forgetful and process.has_written:
            decision = "give way"
        if decision == "wait":
            return _with(world, number, process._replace(met=process.met or found))
        if decision == "give way":
            return _with(world, number, process._replace(ended=True))
        kept = process.replaced - {owner} if process.has_written else process.replaced | {owner}
        process = process._replace(replaced=kept)
    process = process._replace(has_written=True, tick=process.tick + 1, met=None)
    return _with(world, number, process)._replace(document=(process.name, process.tick))


def _with(world: World, number: int, process: Process) -> World:
    return world._replace(processes=(*world.processes[:number], process, *world.processes[number + 1 :]))


def courses(world: World, events: int, *, restores: bool, is_forgetful: bool = False) -> Iterator[World]:
    """The world after every course of so many events, and before."""
    seen, queue = {world}, [world]
    for _ in range(events):
        following = set[World]()
        for each in queue:
            later = each._replace(now=each.now + 1)
            following |= {beaten(later, number, is_forgetful=is_forgetful) for number in range(len(each.processes))}
            if restores:
                following |= {later._replace(document=backup) for backup in each.backups}
        queue = [each for each in following if each not in seen]
        seen |= following
        yield from queue


def results() -> Iterator[tuple[str, str | None]]:
    """What was looked at, and what is wrong with it."""
    alone = World(0, ("old", 7), (Process("b"),), (("old", 7), ("older", 3)))
    yield "a process without one never gives way to a backup", _ends(alone, restores=True, backups=1)
    yield "a host that takes any foreign document for a live one ends after a restore", _survives(alone)
    both = World(0, ("old", 7), (Process("a"), Process("b")), ())
    yield (
        "of two, one goes on",
        (
            "both gave way"
            if any(all(each.ended for each in world.processes) for world in courses(both, EVENTS, restores=False))
            else None
        ),
    )
    yield "of two that both beat, one gives way in the end", _settles(both)


def _ends(world: World, *, restores: bool, backups: int) -> str | None:
    """With one backup that is put back again and again: two that differ look like a process that moves."""
    for backup in world.backups:
        for each in courses(world._replace(backups=(backup,)), EVENTS, restores=restores):
            if each.processes[0].ended:
                return f"it gave way: {each}"
    return None


def _survives(world: World) -> str | None:
    ended = any(each.processes[0].ended for each in courses(world, EVENTS, restores=True, is_forgetful=True))
    return None if ended else "it went on"


def _settles(world: World) -> str | None:
    """Whatever the order of their first beats, after some turns of both only one is left."""
    for order in product((0, 1), repeat=5):
        each = world
        for number in (*order, *(0, 1) * 10):
            each = beaten(each._replace(now=each.now + 1), number)
        if sum(process.ended for process in each.processes) != 1:
            return f"order {order}: {each}"
    return None
