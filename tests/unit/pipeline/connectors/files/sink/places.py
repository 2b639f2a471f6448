"""A place in memory, which fails as it is told to, and what tests of the sink `files` share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from leasehold.pipeline.connectors.files.sink import FilesSink, snapshot_of
from leasehold.pipeline.connectors.files.sink.storage import FilesUnavailable, FilesUncertain, Storage
from leasehold.pipeline.contract import event_table
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
    sink = FilesSink(place)
    writer = await sink.open(claim(epoch))
    for number in range(start, start + batches):
        await writer.write(output(number, number + 1), Permit())


def run(work: Any) -> Any:
    return asyncio.run(work)
