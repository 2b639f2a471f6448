"""A place in memory, which fails as it is told to, and what tests of the sink `files` share."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from leasehold.pipeline.connectors.files.sink import (
    Directory,
    FilesOutputSink,
    Snapshot,
    snapshot_of,
)
from leasehold.pipeline.connectors.files.sink.formats import Format
from leasehold.pipeline.connectors.files.sink.storage import FilesUnavailable, FilesUncertain, Storage
from leasehold.pipeline.contract import Row, SinkHarness, event_table
from leasehold.pipeline.errors import NotTrusted
from leasehold.pipeline.sink import Claim, Output


class Killed(BaseException):
    """The process died here."""


class MemoryPlace:
    """What several processes share. Give each of them its own `Way`."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    @property
    def identity(self) -> str:
        return "files:memory"

    def prepare(self) -> None:
        """It is there."""

    def put(self, name: str, content: bytes) -> bool:
        if name in self.files:
            return False
        self.files[name] = content
        return True

    def get(self, name: str) -> bytes | None:
        return self.files.get(name)

    def size(self, name: str) -> int | None:
        return len(self.files[name]) if name in self.files else None

    def names(self, folder: str) -> list[str]:
        return [name for name in self.files if name.startswith(f"{folder}/")]

    def delete(self, name: str) -> None:
        self.files.pop(name, None)

    def locate(self, name: str) -> str:
        return f"memory:{name}"

    def for_executors(self, mark: str) -> None:
        """It is in this process alone."""

    def close(self) -> None:
        """Nothing is held."""


class Way:
    """One process's way to a place. fate: asked before each call what becomes of it.

    done; lost (done, but the answer is lost); late (the answer is lost, and it is done at the next `arrive`); refused (not
    done); killed before; killed after.
    """

    def __init__(self, place: Storage, fate: Callable[[str, str], str] = lambda call, name: "done") -> None:
        self._place = place
        self._fate = fate
        self._late: list[Callable[[], Any]] = []

    @property
    def identity(self) -> str:
        return self._place.identity

    def prepare(self) -> None:
        self._place.prepare()

    def put(self, name: str, content: bytes) -> bool:
        return bool(self._called("put", name, lambda: self._place.put(name, content)))

    def get(self, name: str) -> bytes | None:
        found: bytes | None = self._called("get", name, lambda: self._place.get(name))
        return found

    def names(self, folder: str) -> list[str]:
        found: list[str] = self._called("names", folder, lambda: self._place.names(folder))
        return found

    def delete(self, name: str) -> None:
        self._called("delete", name, lambda: self._place.delete(name))

    def locate(self, name: str) -> str:
        return self._place.locate(name)

    def for_executors(self, mark: str) -> Storage | None:
        return self._place.for_executors(mark)

    def close(self) -> None:
        """Nothing is held."""

    def arrive(self) -> None:
        """What was sent and not seen again gets there now."""
        late, self._late = self._late, []
        for each in late:
            each()

    def _called(self, call: str, name: str, act: Callable[[], Any]) -> Any:
        fate = self._fate(call, name)
        if fate == "killed before":
            raise Killed
        if fate == "refused" or (fate in ("lost", "late") and call != "put"):
            raise FilesUnavailable(f"{call} '{name}' was refused")
        if fate == "late":
            self._late.append(act)
        answer = None if fate == "late" else act()
        if fate == "killed after":
            raise Killed
        if fate in ("lost", "late"):
            raise FilesUncertain(f"the answer to {call} '{name}' was lost")
        return answer


class Permit:
    def __init__(self, *, trusted: Callable[[], bool] = lambda: True) -> None:
        self._trusted = trusted

    def check(self) -> None:
        if not self._trusted():
            raise NotTrusted("the trust window is closed")

    async def wait_until_granted(self) -> None:
        self.check()


def claim(
    epoch: int, *, state: str = "", generation: int = 0, continuation: str | None = None, partition: str = "p"
) -> Claim:
    return Claim(
        pipeline="bank",
        partition=partition,
        owner=f"host-{epoch}",
        epoch=epoch,
        generation=generation,
        continuation=continuation,
        state=state,
        compare=lambda a, b: int(a or 0) - int(b or 0),
    )


def output(start: int, to: int, partition: str = "p", *, rows: int | None = None) -> Output:
    """The events behind `start` up to `to`; rows: 0 for an output without any."""
    table = event_table(partition, range(start + 1, to + 1))
    return Output(table=table.slice(0, rows), start=str(start) if start else None, to=str(to), events=to - start)


def numbers_in(place: Storage, partition: str = "p") -> list[int]:
    """What a reader sees, in the order of the files."""
    tables = snapshot_of(place, pipeline="bank", partition=partition).tables()
    return [int(number) for table in tables for number in table["sequence"].to_pylist()]


async def written(place: Storage, batches: int, *, epoch: int = 1, start: int = 0) -> None:
    """One event a batch, by one owner."""
    sink = FilesOutputSink(place)
    writer = await sink.open(claim(epoch))
    for number in range(start, start + batches):
        await writer.write(output(number, number + 1), Permit())


def run(work: Any) -> Any:
    return asyncio.run(work)


class FilesSinkHarness(SinkHarness):
    """Readers have a place of their own, as other programs would."""

    partitions = ("a", "b/ü c")

    def __init__(self, place: Callable[[], Storage], format: Format = "parquet") -> None:
        self.place = place
        self.format: Format = format
        self.sinks: list[FilesOutputSink] = []

    async def sink(self) -> FilesOutputSink:
        self.sinks.append(FilesOutputSink(self.place(), format=self.format))
        await self.sinks[-1].prepare()
        return self.sinks[-1]

    async def rows(self, partition: str) -> list[Row]:
        snapshot = snapshot_of(self.place(), pipeline="suite", partition=partition)
        files = zip(snapshot.files, snapshot.tables(), strict=True)
        return [
            Row(number_in(body), file.start, file.to) for file, table in files for body in table["body"].to_pylist()
        ]

    async def close(self) -> None:
        for sink in self.sinks:
            await sink.close()


def number_in(body: Any) -> int:
    return int(json.loads(body if isinstance(body, bytes) else base64.b64decode(body))["number"])


STEPS = ("link", "fsync", "open", "unlink")
"""Of the module `os`, as a directory uses them: everything that changes something comes through one."""


async def deliver(path: Path, epoch: int, to: int) -> None:
    sink = FilesOutputSink(Directory(path))
    try:
        writer = await sink.open(claim(epoch))
        while (position := int(writer.position or 0)) < to:
            await writer.write(output(position, min(position + 2, to)), Permit())
    finally:
        await sink.close()


def wrote(
    path: Path, *tables: pa.Table, epoch: int = 1, format: Format = "parquet", partition: str = "p 1/é"
) -> Snapshot:
    """A batch for each table."""

    async def story() -> None:
        sink = FilesOutputSink(Directory(path), format=format)
        writer = await sink.open(claim(epoch, partition=partition))
        for table in tables:
            start = int(writer.position or 0)
            to = str(start + table.num_rows)
            await writer.write(Output(table=table, start=writer.position, to=to, events=table.num_rows), Permit())
        await sink.close()

    asyncio.run(story())
    return snapshot_of(Directory(path))
