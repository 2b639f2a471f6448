"""Apache Kafka, and services that speak its protocol: as a feed and as a sink."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from leasehold.service.config.azure import WithCredential
from leasehold.service.config.messages import install_command
from leasehold.service.config.section import FeedContext, FeedSettings, Seat, SinkSettings
from leasehold.service.config.types import Certificates, Count, FilePath, Seconds, Secret, Text, servers_like

if TYPE_CHECKING:
    import pyarrow as pa

    from leasehold.leases.timing import Timing
    from leasehold.pipeline.connectors.kafka.cluster import KafkaAccess
    from leasehold.pipeline.feed import ChangeFeed
    from leasehold.pipeline.outside_checkpoints import OutsideCheckpoints
    from leasehold.pipeline.sink import Sink


POSITIONS = "leasehold."
"""The beginning of the names of groups that hold positions of the sink `kafka`."""
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}", re.ASCII)


def _topic(value: str) -> str:
    if not _TOPIC.fullmatch(value):
        raise ValueError("must be the name of a topic: at most 249 of A-Z, a-z, 0-9, dot, dash and underscore")
    return value


class Kafka(WithCredential):
    servers: Annotated[Text, servers_like("kafka-1:9092,kafka-2:9092")] = Field(
        description="Brokers for the first connection: HOST:PORT, or several separated by commas. An Event Hubs namespace is"
        " NAMESPACE.servicebus.windows.net:9093."
    )
    topic: Annotated[Text, AfterValidator(_topic)] = Field(description="The topic's name.")
    tls: bool = Field(default=False, description="Whether to connect with TLS. The brokers' certificates are verified.")
    ca_file: Certificates | None = Field(
        default=None, description="With `tls`: certificates (PEM) to trust instead of the system's."
    )
    certificate_file: FilePath | None = Field(
        default=None, description="With `tls`: this client's own certificate (PEM), if the brokers ask for one."
    )
    key_file: FilePath | None = Field(default=None, description="The private key (PEM) of `certificate_file`.")
    sasl: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = Field(
        default=None, description="How `user` and `password` are sent. PLAIN requires `tls`."
    )
    user: Text | None = Field(
        default=None, description="With `sasl`. For a connection string of Event Hubs, it is `$ConnectionString`."
    )
    password: Secret | None = Field(default=None, description="With `sasl`.")
    identity: Text | None = Field(
        default=None,
        description="For Event Hubs, instead of `sasl`: `default` for the identity that azure-identity finds, or the client id of"
        " a managed identity. It sends tokens (OAUTHBEARER), and requires `tls`.",
    )
    timeout_s: Seconds = Field(default=20.0, description="How long one answer of the brokers may take.")

    @model_validator(mode="after")
    def _fits_together(self) -> Kafka:
        if find_spec("confluent_kafka") is None:
            raise ValueError(f"type `kafka` needs confluent-kafka, which is not installed: {install_command('kafka')}")
        if problems := list(self._problems()):
            raise ValueError("\n".join(problems))
        return self

    def _problems(self) -> Iterator[str]:
        identity = self.identity_or(self.identity)
        if len({self.sasl is None, self.user is None, self.password is None}) > 1:
            yield "`sasl`, `user` and `password` belong together: set all of them, or none"
        if identity is not None and self.sasl is not None:
            yield "has both `sasl` and an identity: keep one of them"
        if (self.certificate_file is None) != (self.key_file is None):
            yield "`certificate_file` and `key_file` belong together: set both, or none"
        if not self.tls and (identity is not None or self.sasl == "PLAIN"):
            yield "would send a password or a token without encryption: set `tls: true`, and the brokers' port for it"
        if not self.tls and (self.ca_file is not None or self.certificate_file is not None):
            yield "has certificates without `tls: true`"

    @property
    def access(self) -> KafkaAccess:
        """How to reach the brokers, with secrets."""
        from leasehold.pipeline.connectors.kafka.cluster import KafkaAccess

        identity = self.identity_or(self.identity)
        mechanism = self.sasl if identity is None else "OAUTHBEARER"
        options = {
            "security.protocol": ("SASL_" if mechanism else "") + ("SSL" if self.tls else "PLAINTEXT"),
            "ssl.ca.location": self.ca_file,
            "ssl.certificate.location": self.certificate_file,
            "ssl.key.location": self.key_file,
            "sasl.mechanism": mechanism,
            "sasl.username": self.user,
            "sasl.password": None if self.password is None else self.password.get_secret_value(),
        }
        given = {name: str(value) for name, value in options.items() if value is not None}
        return KafkaAccess(servers=self.servers, options=given, identity=identity)


class KafkaFeed(Kafka, FeedSettings):
    """A topic of Apache Kafka, with its own partitions."""

    type: Literal["kafka"] = Field(default="kafka", description="A topic of Apache Kafka, with its own partitions.")
    group: Text = Field(
        default="leasehold",
        description="The consumer group under whose name it reads. Leases assign partitions, so the group has no members and no"
        " offsets, unless `commits` is set.",
    )
    commits: bool = Field(
        default=False,
        description="Whether offsets of leases are committed to `group`, so that KEDA, Burrow and Kafka's own tools see the lag."
        " It requires a `group` that nothing else uses.",
    )
    keys: Literal["text", "base64"] = Field(
        default="text",
        description="How an event's key becomes a text: `text` for UTF-8, or `base64` for bytes of any kind. With `text`, an"
        " event with a key that is not UTF-8 stops its partition.",
    )
    trusts_headers: bool = Field(
        default=False,
        description="Whether the header `leasehold-operation` is an event's operation, as the sink `kafka` stores it. Set it only"
        " if nothing else writes to this topic: any producer can set headers.",
    )

    @model_validator(mode="after")
    def _commits_alone(self) -> KafkaFeed:
        if self.commits and "group" not in self.model_fields_set:
            raise ValueError("has `commits` without `group`: name a group for this pipeline alone")
        if self.commits and self.group.startswith(POSITIONS):
            raise ValueError(f"groups that begin with `{POSITIONS}` hold positions of sinks: name another `group`")
        return self

    @property
    def committing_seat(self) -> Seat | None:
        return (f"{self.access.name}/{self.topic}", self.group) if self.commits else None

    def make_outside_checkpoints(self) -> OutsideCheckpoints | None:
        if not self.commits:
            return None
        from leasehold.pipeline.connectors.kafka.committed import CommittedOffsets

        return CommittedOffsets(self.access, self.topic, self.group, timeout_s=self.timeout_s)

    def make(self, context: FeedContext) -> ChangeFeed:
        from leasehold.pipeline.connectors.kafka.feed import KafkaChangeFeed
        from leasehold.pipeline.connectors.kafka.reader import ReadingLimits

        limits = ReadingLimits(keys=self.keys, trusts_headers=self.trusts_headers)
        return KafkaChangeFeed(self.access, self.topic, group=self.group, limits=limits, timeout_s=self.timeout_s)


class KafkaSink(Kafka, SinkSettings):
    """A topic of Apache Kafka, to which each event is written exactly once."""

    type: Literal["kafka"] = Field(
        default="kafka", description="A topic of Apache Kafka, exactly once: transactions with the position in them."
    )
    partitions: Count | None = Field(
        default=None,
        description="Create the topic with this many partitions if it is missing. By default it must exist.",
    )
    by_key: bool = Field(
        default=False,
        description="Whether an event with a key goes to the partition that Kafka's clients choose for this key. By default"
        " a source partition goes to one partition: the one with its name, if that exists.",
    )
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = Field(
        default="none", description="How batches are compressed."
    )
    transaction_timeout_s: Seconds = Field(
        default=60.0,
        ge=1,
        le=86_400,
        description="The brokers abort a batch that takes longer. Readers may have to wait that long after a host was killed in a"
        " batch. At most the brokers' `transaction.max.timeout.ms`.",
    )
    refresh_s: Seconds = Field(
        default=3600.0,
        description="How often an idle lease commits its position again. It must be less than the brokers'"
        " `offsets.retention.minutes`.",
    )

    def make(self, timing: Timing, *, letters: bool = False) -> Sink:
        from leasehold.pipeline.connectors.kafka.sink import KafkaOutputSink

        return KafkaOutputSink(
            self.access,
            self.topic,
            by_key=self.by_key,
            partitions=self.partitions,
            compression=self.compression,
            transaction_timeout_s=self.transaction_timeout_s,
            timeout_s=self.timeout_s,
            refresh_s=self.refresh_s,
        )

    def check_output(self, table: pa.Table) -> None:
        from leasehold.pipeline.publishing_writer import events_of

        events_of(table, "a topic")
