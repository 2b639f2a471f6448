"""A stream whose subjects are partitions: its names, its requests, and what a feed or a sink needs of it."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from leasehold.pipeline.connectors.nats.connection import NatsConnection, RefusedRequest
from leasehold.pipeline.errors import FeedError
from leasehold.pipeline.markers import lease_of

NO_MESSAGE = 10037
NO_STREAM = 10059
STREAM_EXISTS = 10058
SWITCHES = ("allow_atomic", "allow_rollup_hdrs", "allow_msg_ttl")
"""With these, a batch is stored whole or not at all, and only the newest of a lease's positions is kept and never expires."""
POSITIONS = "leasehold"
"""The token that follows the stream's subject for positions of leases, instead of a partition's number."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Extent:
    """first, last: sequences; first is last + 1 in an empty stream. created: in microseconds since 1970."""

    first: int
    last: int
    created: int


@dataclass(frozen=True, slots=True)
class Kept:
    """A message that the stream keeps. is_ordered: whether retention deletes it in order, because it has no TTL of its own."""

    sequence: int
    data: bytes
    time: datetime
    is_ordered: bool


class Stream:
    """Partition N is the subject `{subject}.N`. All calls raise NatsError."""

    def __init__(self, connection: NatsConnection, name: str, subject: str, partitions: int) -> None:
        self.connection = connection
        self.name = name
        self.subject = subject
        self.partitions = sorted(map(str, range(partitions)))

    @property
    def identity(self) -> str:
        """It has no addresses of servers, because a cluster has many."""
        return f"nats:{self.name}/{self.subject}"

    def events(self, partition: str) -> str:
        """The subject of a partition's events."""
        return f"{self.subject}.{partition}"

    def lease(self, pipeline: str, partition: str) -> str:
        """The subject on which a lease's position is kept."""
        return f"{self.subject}.{POSITIONS}.{lease_of(pipeline, partition).replace('.', '%2E')}"

    async def create(self, replicas: int) -> None:
        """Create the stream, unless it exists."""
        try:
            await self.connection.ask(
                f"STREAM.CREATE.{self.name}",
                name=self.name,
                subjects=[f"{self.subject}.>"],
                retention="limits",
                storage="file",
                num_replicas=replicas,
                **dict.fromkeys(SWITCHES, True),
            )
        except RefusedRequest as refused:
            if refused.number != STREAM_EXISTS:
                raise

    async def find_configuration(self) -> dict[str, Any]:
        return dict((await self.connection.ask(f"STREAM.INFO.{self.name}"))["config"])

    async def find_extent(self) -> Extent:
        """Raises FeedError if a feed would miss events of this stream."""
        found = await self.connection.ask(f"STREAM.INFO.{self.name}")
        if wrong := list(unfit_to_read(found["config"], [self.events(name) for name in self.partitions])):
            raise FeedError(f"stream '{self.name}' cannot be read: {', and '.join(wrong)}")
        state, created = found["state"], datetime.fromisoformat(found["created"])
        return Extent(int(state["first_seq"]), int(state["last_seq"]), (created - EPOCH) // timedelta(microseconds=1))

    async def find_front(self, extent: Extent, passed: int) -> int:
        """The sequence before which retention may have deleted events; after it, none are missing. passed: the last one read.

        The stream's first message may be a position, which retention leaves in its place. Then the first event counts.
        """
        if not 0 < extent.first <= min(passed, extent.last):
            return extent.first
        first = await self._find(seq=extent.first)
        if first is None or first.is_ordered:
            return extent.first
        event = await self.find_first(f"{self.subject}.*")
        return extent.last + 1 if event is None else event.sequence

    async def find_last(self, subject: str) -> Kept | None:
        return await self._find(last_by_subj=subject)

    async def find_first(self, subject: str, sequence: int = 1) -> Kept | None:
        """The first message at or after a sequence."""
        return await self._find(seq=sequence, next_by_subj=subject)

    async def _find(self, **which: Any) -> Kept | None:
        try:
            answer = await self.connection.ask(f"STREAM.MSG.GET.{self.name}", **which)
        except RefusedRequest as refused:
            if refused.number == NO_MESSAGE:
                return None
            raise
        message = answer["message"]
        return Kept(
            int(message["seq"]),
            base64.b64decode(message.get("data", "")),
            datetime.fromisoformat(message["time"]),
            b"Nats-TTL" not in base64.b64decode(message.get("hdrs", "")),
        )


def unfit_to_read(configuration: Mapping[str, Any], subjects: Sequence[str]) -> Iterator[str]:
    """Reasons why a feed would miss events. Pure."""
    if configuration.get("retention", "limits") != "limits":
        yield "its retention must be `limits`, because other consumers remove events otherwise"
    if configuration.get("max_msgs_per_subject", -1) > 0:
        yield "`max_msgs_per_subject` must be off, because it deletes events unnoticed"
    if configuration.get("subject_delete_marker_ttl"):
        yield "`subject_delete_marker_ttl` must be off, because its markers look like events"
    if not configuration.get("mirror") and not configuration.get("sources"):
        yield from not_taken(configuration, subjects)


def unfit_to_publish(configuration: Mapping[str, Any], subjects: Sequence[str]) -> Iterator[str]:
    """What a sink needs and the stream lacks. Pure."""
    if off := [f"`{name}`" for name in SWITCHES if not configuration.get(name)]:
        yield f"{', '.join(off)} must be on, which nats-server supports from 2.12 on"
    if configuration.get("retention", "limits") != "limits":
        yield "its retention must be `limits`"
    if configuration.get("max_msgs_per_subject", -1) > 0:
        yield "`max_msgs_per_subject` must be off"
    yield from not_taken(configuration, subjects)


def not_taken(configuration: Mapping[str, Any], subjects: Sequence[str]) -> Iterator[str]:
    taken = configuration.get("subjects") or []
    for subject in subjects:
        if not any(covers(pattern, subject) for pattern in taken):
            yield f"it takes {', '.join(map(repr, taken)) or 'no subjects'}, and not '{subject}': add that, or correct `subject`"
            return


def covers(pattern: str, subject: str) -> bool:
    """Whether a stream's pattern takes a subject. Pure."""
    wanted, tokens = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        wanted = wanted[:-1]
        if len(tokens) <= len(wanted):
            return False
        tokens = tokens[: len(wanted)]
    return len(wanted) == len(tokens) and all(a in ("*", b) for a, b in zip(wanted, tokens, strict=True))
