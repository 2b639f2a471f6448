"""Connections to Kafka's brokers, requests to all of them at once, and the meaning of their errors."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeVar

from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,
    ListOffsetsResultInfo,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from leasehold.common.azure import Identity, credential_of
from leasehold.common.clock import Backoff
from leasehold.pipeline.connectors.servers import Servers

T = TypeVar("T")
_log = logging.getLogger(__name__)
Place = Literal["earliest", "latest"] | int
"""The first offset of a partition, the end of what is committed, or the first event at or after a time (milliseconds)."""
COMMON = MappingProxyType({"client.id": "leasehold", "log_level": 3, "logger": _log, "reconnect.backoff.max.ms": 2000})
"""log_level 3: only errors."""
THREADS = 4
REFRESH_MS = 2000
"""How often a client asks which broker is the controller. Until then, requests wait for the former one, even a dead one."""
DOWN = KafkaError._ALL_BROKERS_DOWN  # noqa: SLF001
TOKEN_TIMEOUT_S = 60.0
NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""The id that the client shows for a topic if the brokers give no ids."""
NO_TOPIC = frozenset(
    (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)  # noqa: SLF001
)
FORBIDDEN = frozenset(
    (
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError._AUTHENTICATION,  # noqa: SLF001
        KafkaError._SSL,  # noqa: SLF001
    )
)
UNSUPPORTED = frozenset(
    (KafkaError.UNSUPPORTED_VERSION, KafkaError.INVALID_REQUEST, KafkaError._UNSUPPORTED_FEATURE)  # noqa: SLF001
)
"""Services that speak Kafka's protocol do not have all of its requests."""
MOVING = frozenset(
    (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE, KafkaError.OFFSET_NOT_AVAILABLE)
)
"""A partition is getting another leader, or its new leader does not know yet what is committed."""
PAUSES = Backoff(first_s=0.01, max_s=0.5)


def _offset_in(answer: ListOffsetsResultInfo) -> int:
    """Raises KafkaException if a broker did not answer in time: the client gives no error then, only an offset that is none."""
    if answer.offset == OFFSET_INVALID:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "the partition's leader did not answer"))  # noqa: SLF001
    return int(answer.offset)


def _is_moving(offset: int | KafkaException) -> bool:
    return isinstance(offset, KafkaException) and offset.args[0].code() in MOVING


class Topic(NamedTuple):
    """id: None if the brokers give no ids."""

    id: str | None
    partitions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaAccess(Servers):
    """options: librdkafka's, for TLS and SASL. identity: one of Microsoft Entra ID; OAUTHBEARER sends its tokens."""

    system = "kafka"
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    identity: Identity | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        return ",".join(f"{host}:{port}" for host, port in self.addresses)


class KafkaCluster:
    """The requests of one feed or sink. All methods that wait raise KafkaException."""

    def __init__(self, access: KafkaAccess, *, timeout_s: float) -> None:
        self.access = access
        self.timeout_s = timeout_s
        self._trouble: str | None = None
        self._admin: AdminClient | None = None
        self._turn = asyncio.Lock()
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="kafka")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._credential: Any = None

    def make_consumer(self, group: str, note: Callable[[KafkaError], None] | None = None, **more: Any) -> Consumer:
        """Reads only committed events and settled offsets. Call this, as `make_producer`, on a thread: it waits for a token."""
        own = {"group.id": group, "error_cb": note or self._note, "isolation.level": "read_committed"}
        return Consumer(self._configuration() | own | {"enable.auto.commit": False} | more)

    def make_producer(self, transactional_id: str, **more: Any) -> Producer:
        own = {"transactional.id": transactional_id, "allow.auto.create.topics": False, "error_cb": self._note}
        return Producer(self._configuration() | own | more)

    async def run(self, call: Callable[[], T]) -> T:
        """Run a call on a thread of its own pool: the client blocks while brokers are away, and others need shared threads."""
        self._loop = asyncio.get_running_loop()
        return await self._loop.run_in_executor(self._threads, call)

    def described(self, error: KafkaException) -> str:
        """The error and the reason why a connection failed, because the client's error names only its request."""
        if self._admin is not None:
            self._admin.poll(0)  # calls `_note` with errors of its connections
        known: KafkaError = error.args[0]
        trouble = f"; the last connection that failed: {self._trouble}" if self._trouble and known.code() < 0 else ""
        return f"Kafka {self.access.name}: {known.str()}{trouble}"

    async def describe(self, name: str) -> Topic:
        futures = (await self._asked()).describe_topics(TopicCollection([name]), request_timeout=self.timeout_s)
        found = await asyncio.wrap_future(futures[name])
        self._trouble, topic_id = None, str(found.topic_id)
        return Topic(None if topic_id == NO_ID else topic_id, len(found.partitions))

    async def find_offsets(self, topic: str, partitions: Iterable[int], at: Place) -> dict[int, int | KafkaException]:
        """Ask each broker once for all partitions, and again while leaders move. Returns the errors of partitions that fail.

        An offset is -1 if no event is that late.
        """
        spec: Any = OffsetSpec.for_timestamp(at) if isinstance(at, int) else getattr(OffsetSpec, at)()
        offsets: dict[int, int | KafkaException] = {}
        wanted, loop, turn = list(partitions), asyncio.get_running_loop(), 0
        began = loop.time()
        while wanted:
            futures = (await self._asked()).list_offsets(
                {TopicPartition(topic, partition): spec for partition in wanted},
                isolation_level=IsolationLevel.READ_COMMITTED,
                request_timeout=self.timeout_s,
            )
            for place, found in futures.items():
                try:
                    offsets[place.partition] = _offset_in(await asyncio.wrap_future(found))
                except KafkaException as error:
                    offsets[place.partition] = error
            wanted = [partition for partition in wanted if _is_moving(offsets[partition])]
            if loop.time() - began > self.timeout_s:
                break
            turn += 1
            await asyncio.sleep(PAUSES.pause_s(turn, 0.0) if wanted else 0)
        return offsets

    async def create(self, name: str, partitions: int) -> None:
        """Create a topic with the brokers' default replication factor, unless it exists."""
        futures = (await self._asked()).create_topics(
            [NewTopic(name, partitions)], operation_timeout=self.timeout_s, request_timeout=self.timeout_s
        )
        try:
            await asyncio.wrap_future(futures[name])
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise

    async def find_message_bytes_max(self, topic: str) -> int | None:
        """The topic's limit of a message's size; None if this client has no right to read it, or the brokers do not show it."""
        resource = ConfigResource(ResourceType.TOPIC, topic)
        futures = (await self._asked()).describe_configs([resource], request_timeout=self.timeout_s)
        try:
            found = await asyncio.wrap_future(futures[resource])
        except KafkaException as error:
            if error.args[0].code() not in FORBIDDEN | UNSUPPORTED:
                raise
            return None
        return int(found["max.message.bytes"].value) if "max.message.bytes" in found else None

    async def close(self) -> None:
        admin, self._admin = self._admin, None
        if admin is not None:
            holders = [admin]
            del admin
            await self.run(holders.clear)  # deleting the client waits for its threads
        self._threads.shutdown(wait=False)
        if self._credential is not None:
            await self._credential.close()

    async def _asked(self) -> AdminClient:
        async with self._turn:
            if self._admin is None:
                own: dict[str, Any] = {
                    "error_cb": self._note,
                    "topic.metadata.refresh.interval.ms": REFRESH_MS,
                    "socket.timeout.ms": max(1000, min(300_000, int(self.timeout_s * 1000))),  # the client's bounds
                }
                self._admin = await self.run(lambda: AdminClient(self._configuration() | own))
            return self._admin

    def _configuration(self) -> dict[str, Any]:
        token = {} if self.access.identity is None else {"oauth_cb": self._fetch_token}
        return {"bootstrap.servers": self.access.servers, **COMMON, **self.access.options, **token}

    def _fetch_token(self, _: str) -> tuple[str, float]:
        """Called on a thread of a client, which asks again before the token expires."""
        assert self._loop is not None, "the first request sets it"
        if self._credential is None:
            self._credential = credential_of(self.access.identity)
        host = self.access.servers.partition(",")[0].strip().rpartition(":")[0]
        fetched = self._credential.get_token(f"https://{host}/.default")
        token = asyncio.run_coroutine_threadsafe(fetched, self._loop).result(TOKEN_TIMEOUT_S)
        return token.token, float(token.expires_on)

    def _note(self, error: KafkaError) -> None:
        if self._trouble is None or error.code() != DOWN:  # DOWN would hide the reason
            self._trouble = error.str()
