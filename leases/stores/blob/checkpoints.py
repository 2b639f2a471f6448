"""Checkpoints of an event hub's partitions, written in the form of the BlobCheckpointStore of Azure's SDKs.

    {namespace}/{hub}/{group}/checkpoint/{partition}    metadata `offset`, `sequencenumber`; the name in lower case

KEDA's scaler and processors of the SDKs read them, and so does `leasehold.leases.import_.checkpoint_blobs`.

A checkpoint only moves forwards, except after an operator's reset. The content of the blob counts resets: a lease's
generation, or nothing for generation 0. The SDKs write only metadata, so the content survives their checkpoints.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from leasehold.leases.errors import StoreConflict, StoreError, StoreMissing
from leasehold.leases.stores.blob.codec import Packed
from leasehold.leases.stores.blob.container import LeaseBlobContainer, StoredBlob

CONFLICTS_MAX = 4
CONTENT_BYTES_MAX = 20
Outcome = Literal["written", "unchanged", "outdated"]
"""unchanged: nothing to do. outdated: the blob counts more resets than the lease."""
_BOTH = re.compile(r"([0-9]{1,18})@([^@]+)", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,18}", re.ASCII)
_BEFORE_ALL = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The checkpoint of one partition. offset: -1 is the beginning, as for the service."""

    generation: int
    sequence: int
    offset: str = "-1"

    def packed(self, *, whole: bool) -> Packed:
        """whole: with the content; otherwise only the metadata."""
        metadata = {"offset": self.offset, "sequencenumber": str(self.sequence)}
        content = str(self.generation).encode() if self.generation else b""
        return Packed(metadata=metadata, content=content if whole else None)


def checkpoint_of(position: str | None, generation: int) -> Checkpoint | None:
    """None for a position without sequence number or offset: clients of the SDKs fail on it."""
    if position is None:
        return Checkpoint(generation=generation, sequence=_BEFORE_ALL)
    if (both := _BOTH.fullmatch(position)) is None:
        return None
    return Checkpoint(generation=generation, sequence=int(both[1]), offset=both[2])


def checkpoint_in(blob: StoredBlob) -> Checkpoint:
    """What is unreadable counts as the beginning: it helps no reader, so it is overwritten."""
    number = blob.metadata.get("sequencenumber", "")
    content = blob.content.decode("ascii", "replace")
    return Checkpoint(
        generation=int(content) if _NUMBER.fullmatch(content) else 0,
        sequence=int(number) if _NUMBER.fullmatch(number) else _BEFORE_ALL,
        offset=blob.metadata.get("offset", ""),
    )


def compared(now: Checkpoint | None, wanted: Checkpoint) -> Outcome:
    """What a write of `wanted` leads to. now: None if there is no blob, which readers take for the beginning."""
    if now is None:
        return "unchanged" if wanted.sequence == _BEFORE_ALL else "written"
    if wanted.generation != now.generation:
        return "written" if wanted.generation > now.generation else "outdated"
    return "written" if wanted.sequence > now.sequence else "unchanged"


class CheckpointBlobs:
    """The checkpoints of one hub and consumer group.

    - `folder`: `{namespace}/{hub}/{group}`, in lower case.
    - `interval_s`: the least time between two writes of a partition's checkpoint.
    """

    title = "checkpoint blob"

    def __init__(self, container: LeaseBlobContainer, folder: str, *, interval_s: float) -> None:
        self.interval_s = interval_s
        self._container = container
        self._folder = folder
        self._seen: dict[str, tuple[str, Checkpoint]] = {}

    def name_of(self, partition: str) -> str:
        return f"{self._folder}/checkpoint/{partition}".lower()

    async def write(self, partition: str, position: str | None, generation: int) -> Outcome:
        """Compare with the blob, and write if that moves it forwards or follows a reset. Raises StoreError."""
        wanted = checkpoint_of(position, generation)
        if wanted is None:
            return "unchanged"
        name = self.name_of(partition)
        for _ in range(CONFLICTS_MAX):
            seen = self._seen.get(name) or await self._read(name)
            outcome = compared(None if seen is None else seen[1], wanted)
            if outcome != "written":
                if outcome == "outdated":
                    self._seen.pop(name, None)  # it may be deleted, as the log advises
                return outcome
            try:
                self._seen[name] = await self._put(name, wanted, seen), wanted
            except StoreError as error:  # read it again, now or later
                self._seen.pop(name, None)
                if not isinstance(error, StoreConflict | StoreMissing):
                    raise
            else:
                return "written"
        raise StoreConflict(
            f"blob '{name}' was changed by others {CONFLICTS_MAX} times in a row: look for another program that writes it"
        )

    async def count(self) -> int:
        """How many partitions have a checkpoint. Raises StoreError."""
        return len(await self._container.list_blobs(self.name_of("")))

    async def close(self) -> None:
        await self._container.close()

    async def _read(self, name: str) -> tuple[str, Checkpoint] | None:
        try:
            blob = await self._container.read(name, CONTENT_BYTES_MAX)
        except StoreMissing:
            return None
        self._seen[name] = blob.etag, checkpoint_in(blob)
        return self._seen[name]

    async def _put(self, name: str, wanted: Checkpoint, seen: tuple[str, Checkpoint] | None) -> str:
        """The new ETag. The content is written only if it changes: soft delete keeps every version of it."""
        if seen is None:
            return await self._container.create(name, wanted.packed(whole=True))
        etag, now = seen
        return await self._container.replace(name, wanted.packed(whole=wanted.generation != now.generation), etag)
