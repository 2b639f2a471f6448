"""A stream that holds partitions: the names of its subjects, and what can be asked about it."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

from leasehold import lease_of
from leasehold.pipeline.connectors.nats.connection import Connection, Refused

NO_MESSAGE = 10037
NO_STREAM = 10059
STREAM_EXISTS = 10058
OUTPACED = (10071, 10164)
"""The last sequence of a subject is another one than expected."""


@dataclass(frozen=True, slots=True)
class Extent:
    """first, last: sequences in the stream; first is last + 1 where it is empty, and nothing was ever in it where last is 0."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Kept:
    """A message as the stream keeps it."""

    sequence: int
    data: bytes


class Stream:
    """name: of the stream. subject: what its subjects begin with. partitions: how many there are."""

    def __init__(self, connection: Connection, name: str, subject: str, partitions: int) -> None:
        self.connection = connection
        self.name = name
        self.subject = subject
        self.partitions = sorted(map(str, range(partitions)))

    @property
    def identity(self) -> str:
        """Without the servers' addresses, as a cluster has many."""
        return f"jetstream:{self.name}:{self.subject}"

    def events(self, partition: str) -> str:
        """The subject of a partition's events."""
        return f"{self.subject}.{partition}"

    def lease(self, pipeline: str, partition: str) -> str:
        """The subject on which a lease's position is kept."""
        return f"{self.subject}.leasehold.{lease_of(pipeline, partition).replace('.', '%2E')}"

    async def made(self) -> None:
        """Where it is missing, in its simplest form; keep it as you like, but for the four switches."""
        try:
            await self.connection.api(f"STREAM.CREATE.{self.name}", **self._configuration())
        except Refused as refused:
            if refused.number != STREAM_EXISTS:
                raise

    def _configuration(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "subjects": [f"{self.subject}.>"],
            "retention": "limits",
            "storage": "file",
            "num_replicas": 1,
            **dict.fromkeys(SWITCHES, True),
        }

    async def configuration(self) -> dict[str, Any]:
        return dict((await self.connection.api(f"STREAM.INFO.{self.name}"))["config"])

    async def extent(self) -> Extent:
        state = (await self.connection.api(f"STREAM.INFO.{self.name}"))["state"]
        return Extent(int(state["first_seq"]), int(state["last_seq"]))

    async def last(self, subject: str) -> Kept | None:
        return await self._kept(last_by_subj=subject)

    async def first(self, subject: str) -> Kept | None:
        return await self._kept(seq=1, next_by_subj=subject)

    async def _kept(self, **which: Any) -> Kept | None:
        try:
            answer = await self.connection.api(f"STREAM.MSG.GET.{self.name}", **which)
        except Refused as refused:
            if refused.number == NO_MESSAGE:
                return None
            raise
        message = answer["message"]
        return Kept(int(message["seq"]), base64.b64decode(message.get("data", "")))


SWITCHES = ("allow_atomic", "allow_rollup_hdrs", "allow_msg_ttl")
"""A batch is there whole or not at all; of a lease's positions the newest alone is kept; and it is kept for good."""
