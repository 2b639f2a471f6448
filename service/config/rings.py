"""Finds rings of pipelines: one reads again, directly or through others, what it writes into files, a log, a hub or the like.

Rings are found before validation, so that another mistake does not hide one. Patterns and paths are compared by name, whatever
files exist now. Links are followed. Hubs and containers are compared by their accounts' addresses and their names.

A hub or a container may hold more than one kind of event on purpose, such as documents that are completed in place. So a ring
through one is accepted if a transform in the ring may leave events out. No transform sees an event that becomes a dead letter.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leasehold.common.azure import cosmos_account_of
from leasehold.service.config.pulsar import whole_topic
from leasehold.service.config.strict_yaml import KeyPath
from leasehold.service.config.types import expanded_path

Parts = tuple[str, ...]
Place = tuple[str, ...]
"""The type of what is written and read, and its name."""
ENDLESS = "which would never end: use another"
UNLESS = ", or let a transform leave out events (`WHERE`, or a function)"
_LEAVES_OUT = re.compile(
    r"\b(?:where|having|join|limit|except|minus|intersect|explode|inline|stack|tablesample|delete)\b", re.IGNORECASE
)
"""Words of SQL with which a batch of events may have no output, or only deletes."""
_OF_LOGS = (("*.db",), ("*.db-wal",), ("*.db-shm",))


@dataclass(frozen=True, slots=True)
class _Written:
    """What one section writes. into: a log, a hub or a container. files: globs of all files, part by part."""

    place: KeyPath
    into: Place | None
    files: tuple[Parts, ...] = ()


def rings_in(pipelines: Sequence[object], host_log: object, folder: Path) -> Iterator[tuple[KeyPath, str]]:
    """For each ring, the place of the setting that closes it, and the problem. host_log: the setting `log.file`."""
    known = {index: each for index, each in enumerate(pipelines) if isinstance(each, dict)}
    written = {index: list(_written(index, each, folder)) for index, each in known.items()}
    readers = {index: _Reader.of(each, folder) for index, each in known.items()}
    reaches = {
        index: {to for to, reader in readers.items() if any(map(reader.reads, written[index]))} for index in known
    }
    leaves_out = {index for index, each in known.items() if _may_leave_out(each)}
    told: set[frozenset[int]] = set()
    for each, index in ((each, index) for index, writes in written.items() for each in writes):
        for to in (to for to, reader in readers.items() if reader.reads(each)):
            way = _way(reaches, to, index) or ()
            is_shared = any(readers[one].is_shared for one in way)
            is_letters = "dead_letters" in each.place
            if is_shared and any(one in leaves_out for one in way if not (is_letters and one == index)):
                continue
            if way and (len(way) == 1 or frozenset(way) not in told):
                told.add(frozenset(way))
                problem = _problem([known[one].get("name") for one in (*way, to)], readers[to])
                yield each.place, problem + (UNLESS if is_shared and not (is_letters and len(way) == 1) else "")
    if (path := resolved_path(host_log, folder)) is not None:
        own = _Written(("log", "file"), None, (_escaped(path),))
        for index, reader in readers.items():
            if reader.reads(own):
                yield own.place, f"is a file that the feed of pipelines[{index}] reads, {ENDLESS}"


def _may_leave_out(pipeline: Mapping[str, Any]) -> bool:
    sql = pipeline.get("sql")
    return pipeline.get("function") is not None or (isinstance(sql, str) and _LEAVES_OUT.search(sql) is not None)


def _problem(names: Sequence[object], reader: _Reader) -> str:
    """names: of the pipelines in the ring, the first one again at the end."""
    if len(names) == 2:
        return f"is {'where' if reader.source is None else f'the {_WORDS[reader.source[0]]} that'} its feed reads, {ENDLESS}"
    return f"closes a ring, {' -> '.join(str(name) for name in names)}, {ENDLESS}"


_WORDS = {
    "log": "log",
    "eventhubs": "hub",
    "cosmos": "container",
    "kafka": "topic",
    "nats": "subject",
    "pulsar": "topic",
}
_KEYS = _WORDS | {"eventhubs": "event_hub"}
"""The setting that contains the name, if one setting does."""


def _way(reaches: Mapping[int, set[int]], start: int, end: int) -> list[int] | None:
    """The shortest way between two pipelines, including both; None if there is none."""
    ways = [[start]]
    seen = {start}
    for way in ways:
        if way[-1] == end:
            return way
        for to in sorted(reaches[way[-1]] - seen):
            seen.add(to)
            ways.append([*way, to])
    return None


@dataclass(frozen=True, slots=True)
class _Reader:
    """What a feed reads. source: a log, a hub or a container. pattern: a glob of files, part by part."""

    source: Place | None = None
    pattern: Parts | None = None

    @classmethod
    def of(cls, pipeline: Mapping[str, Any], folder: Path) -> _Reader:
        kind, path, section = _section(pipeline, "feed")
        if kind == "files":
            return cls(None, _pattern(path, folder))
        return cls(_place_of(kind, section, folder))

    @property
    def is_shared(self) -> bool:
        """Whether it may hold more than one kind of event on purpose."""
        return self.source is not None and self.source[0] != "log"

    def reads(self, written: _Written) -> bool:
        if self.source is not None:
            return self.source == written.into
        return self.pattern is not None and any(overlap(self.pattern, each) for each in written.files)


def _written(index: int, pipeline: Mapping[str, Any], folder: Path) -> Iterator[_Written]:
    for side in ("sink", "dead_letters"):
        kind, path, section = _section(pipeline, side)
        into = _place_of(kind, section, folder)
        if kind in ("files", "log") and (place := resolved_path(path, folder)) is not None:
            shapes = _OF_LOGS if kind == "log" else _shapes(section.get("format") or "parquet", pipeline.get("name"))
            files = tuple(_escaped(place) + shape for shape in shapes)
            yield _Written(("pipelines", index, side, "path"), into, files)
        elif into is not None:
            key = _KEYS[into[0]]
            yield _Written(("pipelines", index, side, *([key] if key in section else [])), into)


def _place_of(kind: object, section: Mapping[str, Any], folder: Path) -> Place | None:
    """What a section reads or writes; None if that has no place of its own, or is invalid, which is reported elsewhere."""
    with suppress(ValueError, TypeError, AttributeError, LookupError):
        if kind == "log" and (path := resolved_path(section.get("path"), folder)) is not None:
            return "log", path
        if kind == "eventhubs":
            from leasehold.pipeline.connectors.eventhubs.account import account_of  # here, because it imports the SDK

            has_string = section.get("connection_string") is not None
            given: dict[str, Any] = {
                name: section.get(name) for name in ("connection_string", "namespace", "event_hub")
            }
            hub = account_of(**given, identity=None if has_string else "default")
            return "eventhubs", hub.host.lower(), hub.hub.lower()
        if kind == "pulsar":
            return kind, whole_topic(section["topic"])
        if kind in ("kafka", "nats"):
            servers = [each.strip().lower().removeprefix("nats://") for each in section["servers"].split(",")]
            names = (section["topic"],) if kind == "kafka" else (section["stream"], section["subject"])
            return kind, ",".join(sorted(servers)), *names
        if kind == "cosmos":
            found = {name: section.get(name) for name in ("endpoint", "connection_string", "key")}
            has_key = found["key"] is not None or found["connection_string"] is not None
            account = cosmos_account_of(**found, identity=None if has_key else "default")
            return "cosmos", account.host.lower(), section["database"], section["container"]
    return None


def _shapes(format: object, name: object) -> tuple[Parts, ...]:
    """Globs of what the sink `files` writes below its directory, as leasehold.pipeline.connectors.files names it."""
    if format == "delta":
        records = ("_leasehold", "positions", f"{name}*", "*", "0*.json")
        return ("part-*.parquet",), ("_delta_log", "0*.json"), ("_delta_log", "0*.parquet"), records
    return (
        ("_leasehold", f"{name}*", "*", "0*.json"),
        (f"{name}*", "*", "0*", f"0*-*.{format}"),
        (f"{name}*", "*", "staged", "0*", "0*", f"0*-*.{format}"),
    )


def _section(pipeline: Mapping[str, Any], side: str) -> tuple[object, object, Mapping[str, Any]]:
    section = pipeline.get(side)
    found = section if isinstance(section, dict) else {}
    return found.get("type"), found.get("path"), found


def resolved_path(path: object, folder: Path) -> str | None:
    """The path, with links followed; None for an invalid one, which is reported elsewhere."""
    try:
        return os.path.realpath(folder / expanded_path(Path(path))) if isinstance(path, str) else None
    except ValueError:
        return None


def _pattern(path: object, folder: Path) -> Parts | None:
    """The glob, with links followed up to its first wildcard; None for an invalid path."""
    try:
        whole = Path(os.path.abspath(Path(glob.escape(str(folder))) / expanded_path(Path(path)))).parts  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    fixed = next((i for i, part in enumerate(whole) if glob.has_magic(part)), len(whole) - 1)
    real = os.path.realpath(Path(*whole[:fixed]))
    return (*_escaped(real), *whole[fixed:], *(["*"] if whole[-1] == "**" else []))


def _escaped(path: str) -> Parts:
    return tuple(map(glob.escape, Path(path).parts))


def overlap(pattern: Parts, files: Parts) -> bool:
    """Whether some path matches both, part by part. `**` in the pattern stands for any folders, as for the feed."""
    below = [False] * len(files) + [True]
    for part in reversed(pattern):
        here = [False] * (len(files) + 1)
        for j in range(len(files), -1, -1):
            is_left = j < len(files)
            if part == "**":
                passes = j + 1 < len(files) and not files[j].startswith(".") and here[j + 1]
                here[j] = below[j] or passes
            else:
                here[j] = is_left and below[j + 1] and _share_a_name(part, files[j])
        below = here
    return below[0]


ANY = "?"
MANY = "*"


def _share_a_name(one: str, other: str) -> bool:
    """Whether some name matches two globs. A set of characters (`[0-9]`) counts as any character."""
    if other.startswith(".") and not one.startswith("."):
        return False
    a, b = _characters(one), _characters(other)
    below = [all(each == MANY for each in b[j:]) for j in range(len(b) + 1)]
    for each in reversed(a):
        here = [False] * (len(b) + 1)
        for j in range(len(b), -1, -1):
            if each == MANY:
                here[j] = below[j] or (j < len(b) and here[j + 1])
            elif j < len(b):
                is_met = below[j + 1] and (ANY in (each, b[j]) or each == b[j])
                here[j] = (here[j + 1] or below[j]) if b[j] == MANY else is_met
        below = here
    return below[0]


def _characters(name: str) -> tuple[str, ...]:
    """A glob's characters: MANY, ANY, or `=` and a character."""
    found: list[str] = []
    at = 0
    while at < len(name):
        end = name.find("]", at + 2) if name[at] == "[" else -1
        inside = name[at + 1 : end] if end > 0 else name[at]
        is_plain = end > 0 or inside not in (ANY, MANY)
        found.append(ANY if len(inside) > 1 else f"={inside}" if is_plain else inside)
        at = end + 1 if end > 0 else at + 1
    return tuple(found)
