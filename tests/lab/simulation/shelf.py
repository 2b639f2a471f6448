"""A place for files in memory, for the real FilesOutputSink: manifest and data files, on a network that loses and delays.

What counts is decided by the production code (leasehold.pipeline.connectors.files.sink). The onlooker is told of a batch once
an entry names it that readers see: one behind all others, and in no range that was folded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from lab.simulation.broker import Threads
from lab.simulation.invariants import Onlooker
from lab.simulation.process import current, incarnation
from lab.simulation.weather import Request, Weather, host_of

from leasehold.leases.lease import Lease
from leasehold.pipeline.connectors.files.sink.entry import MANIFEST, entry_in, folders_in, folders_of, listing_of
from leasehold.pipeline.connectors.files.sink.manifest import is_past, name_of, steps
from leasehold.pipeline.connectors.files.sink.sink import FilesOutputSink
from leasehold.pipeline.connectors.files.sink.storage import FilesUnavailable, FilesUncertain

T = TypeVar("T")
OPERATIONS = {"claim": "open", "batch": "publish", "end": "publish"}
"""As what the put of an entry is known to the weather, by the entry's kind."""


class Shelf:
    """What all hosts put files on. Implements leasehold.pipeline.connectors.files.sink.storage.Place."""

    identity = "simulated"

    def __init__(self, onlooker: Onlooker, weather: Weather) -> None:
        self._files: dict[str, bytes] = {}
        self._restores = 0
        self._onlooker = onlooker
        self._weather = weather

    def sink(self) -> FilesOutputSink:
        """One host's way here."""
        sink = FilesOutputSink(self, format="jsonl")
        sink._threads = Threads(self._weather)  # type: ignore[assignment]  # run by VirtualLoop.run_in_executor
        return sink

    # A place

    def prepare(self) -> None:
        """It is there."""

    def put(self, name: str, content: bytes) -> bool:
        entry = _entry(name, content)
        if entry is None:
            return self._asked(_request("stage", name), lambda: self._put(name, content), FilesUncertain)
        by, partition, fence = incarnation(), entry["partition"], (entry["epoch"],)
        is_sent = entry["kind"] != "claim"
        is_repeated = is_sent and self._onlooker.is_unsettled(by, partition, fence)
        if is_sent:
            self._onlooker.sends(by, partition, fence, content)
        request = Request(host_of(current()), "sink", OPERATIONS[entry["kind"]], partition)
        try:
            is_made = self._asked(request, lambda: self._put(name, content, entry), FilesUncertain)
        except FilesUnavailable:
            if is_sent and not is_repeated:
                self._onlooker.settled(by, partition, fence)
            raise
        if is_sent:
            self._onlooker.settled(by, partition, fence)
        return is_made

    def get(self, name: str) -> bytes | None:
        return self._asked(_request("get", name), lambda: self._files.get(name), FilesUnavailable)

    def size(self, name: str) -> int | None:
        content = self.get(name)
        return None if content is None else len(content)

    def names(self, folder: str) -> list[str]:
        return self._asked(_request("names", folder), lambda: self._below(folder), FilesUnavailable)

    def delete(self, name: str) -> None:
        self._asked(_request("delete", name), lambda: self._files.pop(name, None), FilesUnavailable)

    def locate(self, name: str) -> str:
        return name

    def for_executors(self, mark: str) -> Shelf:
        return self

    def close(self) -> None:
        """Nothing is held."""

    def _asked(self, request: Request, call: Callable[[], T], lost: type[Exception]) -> T:
        fate = self._weather.fate(request)
        if fate.ends == "refused":
            raise FilesUnavailable("out of reach")
        if fate.ends in ("late", "ghost"):
            if fate.ends == "late":
                restores = self._restores
                self._weather.delay(request, fate, lambda: call() if restores == self._restores else None)
            raise lost("no answer")
        self._weather.reaches(request)
        answer = call()
        if fate.ends == "lost":
            raise lost("no answer")
        return answer

    def _put(self, name: str, content: bytes, entry: Mapping[str, Any] | None = None) -> bool:
        if name in self._files:
            return False
        self._files[name] = content
        if entry is not None and not self._is_past(entry):
            partition, files = entry["partition"], entry_in(content, name).files
            self._onlooker.fenced(partition, (entry["epoch"],))
            if files:
                numbers = [number for file in files for number in numbers_in(self._files[file.name])]
                self._onlooker.arrives(partition, entry["generation"], numbers)
        return True

    def _is_past(self, entry: Mapping[str, Any]) -> bool:
        manifest = folders_of(entry["pipeline"], entry["partition"]).manifest
        return is_past(entry["version"], listing_of(self._below(manifest)))

    def _below(self, folder: str) -> list[str]:
        return [name for name in self._files if name.startswith(f"{folder}/")]

    # A vault (simulation.restores)

    def backup(self) -> object:
        return dict(self._files)

    def restore(self, backup: Any) -> None:
        """Of files that are on their way none arrives later."""
        self._files = dict(backup)
        self._restores += 1

    def missing(self) -> list[str]:
        """Files that readers look for, and that are gone.

        A put that arrives once its entry was folded away brings back an entry whose file is gone. No reader looks at it.
        """
        read = [
            self._files[name_of(folders, step)]
            for folders, names in folders_in(self._below(MANIFEST)).items()
            for step in steps(listing_of(names))
        ]
        manifests = [json.loads(content) for content in read]
        named = [file["name"] for each in manifests for file in (each.get("files") or [each.get("file")]) if file]
        return sorted(name for name in named if name not in self._files)

    def has_lost(self, lease: Lease) -> bool:
        """Whether it holds less than that lease has seen of it."""
        generation, _, version = lease.sink_state.partition(":")
        if not version or int(generation) != lease.generation:
            return False
        head = listing_of(self._below(folders_of(lease.pipeline, lease.partition).manifest)).head
        return head is None or head < int(version)


def numbers_in(lines: bytes) -> list[int]:
    """The numbers of the events in a file of JSON lines."""
    return [json.loads(line)["sequence"] for line in lines.splitlines()]


def _entry(name: str, content: bytes) -> Mapping[str, Any] | None:
    """Of a manifest; None for a fold, and for a file of data."""
    if not name.startswith(f"{MANIFEST}/"):
        return None
    found: Mapping[str, Any] = json.loads(content)
    return found if "kind" in found else None


def _request(operation: str, name: str) -> Request:
    return Request(host_of(current()), "sink", operation, name.split("/")[-2] if operation != "names" else "")
