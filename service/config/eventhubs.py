"""Azure Event Hubs: as a feed, as a sink, and for dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from leasehold.common.azure import storage_account_of
from leasehold.pipeline.connectors.eventhubs.account import account_of, is_consumer_group
from leasehold.pipeline.connectors.eventhubs.position import position_of
from leasehold.pipeline.errors import FeedError
from leasehold.service.config.azure import StorageAccess, StorageAccountSettings, WithCredential
from leasehold.service.config.section import FeedContext, FeedSettings, LettersSettings, Seat, SinkSettings
from leasehold.service.config.types import (
    NONE,
    BlobContainerName,
    Certificates,
    Conf,
    Prefetch,
    Seconds,
    SecretOrNone,
    Text,
    Variable,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from leasehold.leases.stores.blob import CheckpointBlobs
    from leasehold.leases.timing import Timing
    from leasehold.pipeline.dead_letters import LetterBox
    from leasehold.pipeline.feed import ChangeFeed
    from leasehold.pipeline.sink import Sink


BATCH_BYTES_MAX = 512 * 1024
"""The most input for one batch: a hub takes batches of 1 MiB, with markers."""


def _consumer_group(name: str) -> str:
    if not is_consumer_group(name):
        raise ValueError("must be the name of a consumer group, like $Default")
    return name


ConsumerGroup = Annotated[Text, AfterValidator(_consumer_group)]


class EventHub(WithCredential):
    connection_string: SecretOrNone = Field(
        default=NONE,
        description="As the portal shows it, of the namespace or of the hub (`EntityPath=...`); for a sink, it must"
        " allow Send and Listen. With `UseDevelopmentEmulator=true`, the connection does not use TLS.",
    )
    namespace: Text | None = Field(
        default=None, description="Instead of a connection string: NAMESPACE.servicebus.windows.net."
    )
    event_hub: Text | None = Field(default=None, description="The hub's name, if it is not in the connection string.")
    identity: Text | None = Field(
        default=None,
        description="With `namespace`: `default` for the identity that azure-identity finds (this is also the"
        " default), or the client id of a managed identity. It needs the role Azure Event Hubs Data Receiver, and for"
        " a sink also Data Sender.",
    )
    transport: Literal["amqp", "websockets"] = Field(
        default="amqp",
        description="AMQP on port 5671, or in WebSockets on port 443, for a firewall that lets nothing else through.",
    )
    ca_file: Certificates = Field(
        default=NONE,
        description="Authorities (PEM) to trust instead of the usual ones, for a namespace behind a proxy.",
    )
    endpoint: Text | None = Field(
        default=None,
        description="A host to connect to instead of the namespace, with a port if it is not the usual one, such as a gateway's.",
    )
    proxy: SecretOrNone = Field(
        default=NONE,
        description="An HTTP proxy to connect through, like http://USER:PASSWORD@PROXY:3128. It needs `transport: websockets`.",
    )

    @model_validator(mode="after")
    def _reaches(self) -> EventHub:
        account_of(**self.account)
        return self

    @property
    def account(self) -> dict[str, Any]:
        """How to reach the hub, with secrets."""
        secret = self.connection_string
        identity = self.identity_or(self.identity)
        is_anybody = identity is None and secret is None and self.namespace is not None
        return {
            "connection_string": None if secret is None else secret.get_secret_value(),
            "namespace": self.namespace,
            "event_hub": self.event_hub,
            "identity": "default" if is_anybody else identity,
            "transport": self.transport,
            "ca_file": None if self.ca_file is None else str(self.ca_file),
            "endpoint": self.endpoint,
            "proxy": None if self.proxy is None else self.proxy.get_secret_value(),
        }

    def seat_in(self, consumer_group: str) -> Seat:
        return account_of(**self.account).name.lower(), consumer_group.lower()


class CheckpointBlobsSettings(StorageAccountSettings):
    container: BlobContainerName = Field(
        description="The container's name, not that of the leases. It is created if it does not exist and Leasehold has"
        " permission."
    )
    interval_s: Seconds = Field(
        default=10.0,
        description="The shortest time between two checkpoints of a partition. A release writes one at once.",
    )
    timeout_s: Seconds = Field(default=5.0, description="How long one request may take.")

    @model_validator(mode="after")
    def _reaches_it(self) -> CheckpointBlobsSettings:
        storage_account_of(**self.account)
        return self


class EventHubsFeed(EventHub, FeedSettings):
    """An event hub, with its own partitions."""

    type: Literal["eventhubs"] = Field(
        default="eventhubs", description="An event hub (Azure Event Hubs), with its own partitions."
    )
    consumer_group: ConsumerGroup = Field(
        default="$Default",
        description="The feed's consumer group. No other reader may use it, because owners of leases displace each"
        " other by epoch.",
    )
    start_positions: Conf = Field(
        default={},
        description="The start of single partitions that have no lease yet, by name, instead of `start`: after the"
        " event with a sequence number (`41`), an offset (`@4294967296`), or both (`41@4294967296`).",
    )
    prefetch: Prefetch = Field(
        default=4000,
        description="The most events of each partition to prefetch. What is prefetched and not taken stays below 1"
        " MiB per partition.",
    )
    trusts_properties: bool = Field(
        default=False,
        description="Whether the properties `leasehold-key` and `leasehold-operation` are an event's key and operation, as the"
        " sink `eventhubs` stores them. Set it only if nothing else publishes to this hub: any publisher can set them.",
    )
    timeout_s: Seconds = Field(default=20.0, description="How long one answer of the service may take.")
    executors_consumer_group: ConsumerGroup | None = Field(
        default=None,
        description="With `executors_read`: the consumer group in which Spark's executors read, without an epoch. No feed may"
        " read there, and no executors of another pipeline.",
    )
    executors_env: Variable | None = Field(
        default=None,
        description="With `executors_read` and a connection string: the environment variable of the executors that holds a"
        " connection string of this hub, with the right to listen.",
    )

    checkpoint_blobs: CheckpointBlobsSettings | None = Field(
        default=None,
        description="A container of Azure Blob Storage in which to write positions as Azure's SDKs do, for KEDA's scaler and"
        " for processors of the SDKs. By default none.",
    )

    @model_validator(mode="after")
    def _begins(self) -> EventHubsFeed:
        if twice := sorted(self.starts.keys() & self.start_positions.keys()):
            raise ValueError(f"`starts` and `start_positions` both name partition '{twice[0]}': keep one of them")
        for partition, position in self.start_positions.items():
            try:
                position_of(position)
            except FeedError as error:
                raise ValueError(f"`start_positions`, partition '{partition}': {error}") from None
        return self

    @property
    def seat(self) -> Seat:
        return self.seat_in(self.consumer_group)

    @property
    def executors_seat(self) -> Seat | None:
        return None if self.executors_consumer_group is None else self.seat_in(self.executors_consumer_group)

    @property
    def executors_lack(self) -> str | None:
        if self.executors_consumer_group is None:
            return "the feed's `executors_consumer_group`, in which executors read"
        if self.connection_string is not None and self.executors_env is None:
            return "the feed's `executors_env`, the environment variable of the executors that holds their connection string"
        return None

    @property
    def checkpoint_container(self) -> tuple[StorageAccess, str] | None:
        blobs = self.checkpoint_blobs
        return None if blobs is None else (blobs.account, blobs.container)

    def make_outside_checkpoints(self) -> CheckpointBlobs | None:
        if (blobs := self.checkpoint_blobs) is None:
            return None
        from leasehold.leases.stores.blob import BlobContainerAddress, CheckpointBlobs, LeaseBlobContainer

        account, place = storage_account_of(**blobs.account), BlobContainerAddress(container=blobs.container)
        container = LeaseBlobContainer(account, place, call_timeout_s=blobs.timeout_s)
        return CheckpointBlobs(container, "/".join(self.seat), interval_s=blobs.interval_s)

    def make(self, context: FeedContext) -> ChangeFeed:
        from leasehold.pipeline.connectors.eventhubs.feed.feed import EventHubsChangeFeed
        from leasehold.pipeline.connectors.eventhubs.feed.receiver import ReceiverLimits

        limits = ReceiverLimits(
            prefetch=self.prefetch, timeout_s=self.timeout_s, trusts_properties=self.trusts_properties
        )
        return EventHubsChangeFeed(
            account_of(**self.account),
            consumer_group=self.consumer_group,
            start_positions=self.start_positions,
            limits=limits,
            executors_group=self.executors_consumer_group,
            executors_env=self.executors_env,
        )


class EventHubsSink(EventHub, SinkSettings):
    """An event hub, in which each event is published exactly once."""

    type: Literal["eventhubs"] = Field(
        default="eventhubs", description="An event hub, exactly once: idempotent publishing, a marker on every event."
    )
    consumer_group: ConsumerGroup = Field(
        description="The consumer group in which the sink reads the end of each partition. No reader with an epoch,"
        " such as the feed `eventhubs`, may use it.",
    )
    timeout_s: Seconds = Field(default=20.0, description="The timeout for one attempt to send, or for one response.")

    @model_validator(mode="before")
    @classmethod
    def _has_a_group(cls, given: Any) -> Any:
        is_missing = isinstance(given, dict) and "consumer_group" not in given
        if is_missing and cls.model_fields["consumer_group"].is_required():
            raise ValueError(
                "needs `consumer_group`: the sink reads the end of the hub's partitions in it, which fails while a feed reads"
                " there with an epoch. Create a consumer group that no feed uses, and set, for example,"
                " `consumer_group: leasehold-sink`"
            )
        return given

    @property
    def seat(self) -> Seat:
        return self.seat_in(self.consumer_group)

    @property
    def input_bytes_max(self) -> int:
        return BATCH_BYTES_MAX

    def make(self, timing: Timing, *, letters: bool = False) -> Sink:
        from leasehold.pipeline.connectors.eventhubs.sink.sink import EventHubsOutputSink

        return EventHubsOutputSink(
            account_of(**self.account), consumer_group=self.consumer_group, timeout_s=self.timeout_s
        )

    def check_output(self, table: pa.Table) -> None:
        from leasehold.pipeline.publishing_writer import events_of

        events_of(table, "an event hub")


class EventHubsLetters(LettersSettings, EventHubsSink):
    """Dead letters in an event hub."""

    type: Literal["eventhubs"] = Field(
        default="eventhubs",
        description="An event hub, preferably for dead letters only. It keeps them no longer than its retention.",
    )
    consumer_group: ConsumerGroup = Field(
        default="$Default",
        description="The consumer group in which letters are read. It must not have readers with an epoch, such as the"
        " feed `eventhubs`.",
    )

    def make_box(self, pipeline: str, sink: SinkSettings, timing: Timing) -> LetterBox:
        from leasehold.pipeline.connectors.eventhubs.feed.feed import EventHubsChangeFeed
        from leasehold.pipeline.connectors.eventhubs.feed.letters import HubLetters
        from leasehold.pipeline.connectors.eventhubs.feed.receiver import ReceiverLimits
        from leasehold.pipeline.dead_letters import LetterBox
        from leasehold.pipeline.dead_letters.merged_feed import MergedLetters

        limits = ReceiverLimits(timeout_s=self.timeout_s)
        feed = EventHubsChangeFeed(account_of(**self.account), consumer_group=self.consumer_group, limits=limits)
        by_partition = MergedLetters(HubLetters(feed, pipeline))
        return LetterBox(feed=feed, sink=self.make(timing), by_partition=by_partition)
