"""Connections to Kafka's brokers, requests to all of them at once, and the meaning of their errors."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # the package does not mark its exports
    AdminClient,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from leasehold.common.azure import Identity, credential_of
from leasehold.common.clock import Backoff
from leasehold.pipeline.endpoint import Endpoint

T = TypeVar("T")
_log = logging.getLogger(__name__)
Place = Literal["earliest", "latest"] | int
"""In a partition: the first offset, the end of what is committed, or the first event since a time (milliseconds)."""
Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
LOGS_ERRORS = 3
TOKEN_TIMEOUT_S = 60.0
NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""A topic's id from brokers that give none."""
NO_OFFSET = -1001
MESSAGE_BYTES_MAX = 1_000_000_000
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
FENCED = frozenset(
    (
        KafkaError._FENCED,  # noqa: SLF001
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
    )
)
PASSING = frozenset(
    (KafkaError.UNSTABLE_OFFSET_COMMIT, KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE)
)
PAUSES = Backoff(first_s=0.01, max_s=0.5)


class Topic(NamedTuple):
    """id: None from brokers that give none."""

    id: str | None
    partitions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaAccess:
    """servers: `HOST:PORT`, separated by commas. certificate_file, key_file: this client's own, if brokers ask for it.

    identity: of Microsoft Entra ID, whose tokens OAUTHBEARER sends.
    """

    servers: str
    tls: bool = False
    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    mechanism: Mechanism | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    identity: Identity | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """The same in whatever order the servers are given."""
        return ",".join(sorted(each.strip() for each in self.servers.split(",")))

    def endpoint(self, topic: str, group: str | None = None) -> Endpoint:
        server, _, port = self.name.partition(",")[0].rpartition(":")
        return Endpoint(system="kafka", name=topic, server=server, port=int(port), group=group)

    def configuration(self) -> dict[str, Any]:
        given = {
            "bootstrap.servers": self.servers,
            "client.id": "leasehold",
            "security.protocol": ("SASL_" if self.mechanism else "") + ("SSL" if self.tls else "PLAINTEXT"),
            "ssl.ca.location": self.ca_file,
            "ssl.certificate.location": self.certificate_file,
            "ssl.key.location": self.key_file,
            "sasl.mechanism": self.mechanism,
            "sasl.username": self.user,
            "sasl.password": self.password,
            "log_level": LOGS_ERRORS,
            "logger": _log,
            "reconnect.backoff.max.ms": 2000,
        }
        return {
            name: str(value) if isinstance(value, Path) else value for name, value in given.items() if value is not None
        }


class KafkaCluster:
    """The requests of one feed or sink. All methods that wait raise KafkaException."""

    def __init__(self, access: KafkaAccess, *, timeout_s: float) -> None:
        self.access = access
        self.timeout_s = timeout_s
        self._trouble: str | None = None
        self._admin: AdminClient | None = None
        self._turn = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._credential: Any = None

    def make_consumer(self, group: str, note: Callable[[KafkaError], None], **more: Any) -> Consumer:
        """Call it on a thread, as `make_producer`: it waits for a token."""
        return Consumer({**self._configuration(), "group.id": group, "error_cb": note, **more})

    def make_producer(self, transactional_id: str, **more: Any) -> Producer:
        own = {"transactional.id": transactional_id, "error_cb": self._note}
        return Producer({**self._configuration(), **own, **more})

    def described(self, error: KafkaException) -> str:
        """With the reason for which a connection failed, because an error names only its request."""
        if self._admin is not None:
            self._admin.poll(0)  # which hands over errors of its connections
        known: KafkaError = error.args[0]
        trouble = f"; last, a connection failed: {self._trouble}" if self._trouble and known.code() < 0 else ""
        return f"Kafka {self.access.name}: {known.str()}{trouble}"

    async def describe(self, name: str) -> Topic:
        futures = (await self._asked()).describe_topics(TopicCollection([name]), request_timeout=self.timeout_s)
        found = await asyncio.wrap_future(futures[name])
        self._trouble, topic_id = None, str(found.topic_id)
        return Topic(None if topic_id == NO_ID else topic_id, len(found.partitions))

    async def find_offsets(self, topic: str, partitions: Iterable[int], at: Place) -> dict[int, int]:
        """Asks each broker once for all partitions. -1 if nothing is that late."""
        spec: Any = OffsetSpec.for_timestamp(at) if isinstance(at, int) else getattr(OffsetSpec, at)()
        wanted = {TopicPartition(topic, partition): spec for partition in partitions}

        async def ask() -> dict[int, int]:
            futures = (await self._asked()).list_offsets(
                wanted, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=self.timeout_s
            )
            return {place.partition: (await asyncio.wrap_future(found)).offset for place, found in futures.items()}

        return await self._ask_until_settled(ask, self.timeout_s)

    async def find_committed(self, group: str, topic: str, patience_s: float) -> TopicPartition | None:
        """The offset of partition 0, and its metadata, once no transaction has another one for it."""
        asked = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0)])

        async def ask() -> TopicPartition | None:
            futures = (await self._asked()).list_consumer_group_offsets(
                [asked], require_stable=True, request_timeout=self.timeout_s
            )
            [found] = (await asyncio.wrap_future(futures[group])).topic_partitions
            if found.error is not None:
                raise KafkaException(found.error)
            return None if found.offset == NO_OFFSET else found

        return await self._ask_until_settled(ask, patience_s)

    async def _ask_until_settled(self, ask: Callable[[], Awaitable[T]], patience_s: float) -> T:
        """Again while a transaction is being completed, or a partition gets another leader."""
        loop, turn = asyncio.get_running_loop(), 0
        began = loop.time()
        while True:
            try:
                return await ask()
            except KafkaException as error:
                if error.args[0].code() not in PASSING or loop.time() - began > patience_s:
                    raise
            turn += 1
            await asyncio.sleep(PAUSES.pause_s(turn, 0.0))

    async def commit(self, group: str, topic: str, partition: int, offset: int) -> None:
        """Outside transactions. The group must have no members."""
        asked = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, partition, offset)])
        futures = (await self._asked()).alter_consumer_group_offsets([asked], request_timeout=self.timeout_s)
        [done] = (await asyncio.wrap_future(futures[group])).topic_partitions
        if done.error is not None:
            raise KafkaException(done.error)

    async def create(self, name: str, partitions: int) -> None:
        """With the brokers' own replication factor. Nothing, if it is there."""
        new = NewTopic(name, partitions)
        futures = (await self._asked()).create_topics(
            [new], operation_timeout=self.timeout_s, request_timeout=self.timeout_s
        )
        try:
            await asyncio.wrap_future(futures[name])
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise

    async def find_message_bytes_max(self, topic: str) -> int | None:
        """The largest message that the topic takes; None if this client may not know."""
        resource = ConfigResource(ResourceType.TOPIC, topic)
        futures = (await self._asked()).describe_configs([resource], request_timeout=self.timeout_s)
        try:
            found = await asyncio.wrap_future(futures[resource])
        except KafkaException:
            return None
        return int(found["max.message.bytes"].value) if "max.message.bytes" in found else None

    async def close(self) -> None:
        admin, self._admin = self._admin, None
        if admin is not None:
            holders = [admin]
            del admin
            await asyncio.to_thread(holders.clear)  # it waits for its own threads
        if self._credential is not None:
            await self._credential.close()

    async def _asked(self) -> AdminClient:
        async with self._turn:
            if self._admin is None:
                self._loop = asyncio.get_running_loop()
                self._admin = await asyncio.to_thread(self._make_admin)
            return self._admin

    def _make_admin(self) -> AdminClient:
        own: dict[str, Any] = {"error_cb": self._note}
        return AdminClient(self._configuration() | own)

    def _configuration(self) -> dict[str, Any]:
        token = {} if self.access.identity is None else {"oauth_cb": self._fetch_token}
        return self.access.configuration() | token

    def _fetch_token(self, _: str) -> tuple[str, float]:
        """On a thread of a client, which asks again before the token ends."""
        assert self._loop is not None, "the first request sets it"
        if self._credential is None:
            self._credential = credential_of(self.access.identity)
        host = self.access.servers.partition(",")[0].strip().rpartition(":")[0]
        fetched = self._credential.get_token(f"https://{host}/.default")
        token = asyncio.run_coroutine_threadsafe(fetched, self._loop).result(TOKEN_TIMEOUT_S)
        return token.token, float(token.expires_on)

    def _note(self, error: KafkaError) -> None:
        self._trouble = error.str()
