"""Apache Pulsar: the partitions of a topic as a feed and as a sink."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from leasehold.service.config.messages import install_command
from leasehold.service.config.section import FeedContext, FeedSettings, Seat, Section, SinkSettings
from leasehold.service.config.types import (
    NONE,
    Certificates,
    Count,
    FilePathOrNone,
    Seconds,
    SecretOrNone,
    Text,
    are_loopback,
    servers_like,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from leasehold.leases.timing import Timing
    from leasehold.pipeline.connectors.pulsar.broker import PulsarAccess
    from leasehold.pipeline.feed import ChangeFeed
    from leasehold.pipeline.outside_checkpoints import OutsideCheckpoints
    from leasehold.pipeline.sink import Sink

EVENTS_MAX = 2048
"""The output of this many events is one batch, if the transform adds no rows."""
_NAME = r"[A-Za-z0-9=:%._-]{1,200}"
_TOPIC = re.compile(rf"(?:persistent://)?(?:{_NAME}/{_NAME}/)?{_NAME}", re.ASCII)


def whole_topic(value: str) -> str:
    """The topic's name, with its tenant and namespace."""
    if not _TOPIC.fullmatch(value):
        raise ValueError("must be the name of a persistent topic, like orders or my-tenant/my-namespace/orders")
    name = value.removeprefix("persistent://")
    return name if "/" in name else f"public/default/{name}"


class Pulsar(Section):
    servers: Annotated[Text, servers_like("pulsar-1:6650,pulsar-2:6650")] = Field(
        description="Brokers or proxies for the first connection: HOST:PORT, or several separated by commas."
    )
    topic: Annotated[Text, AfterValidator(whole_topic)] = Field(
        description="The topic: TENANT/NAMESPACE/NAME, or its name alone in `public/default`."
    )
    tls: bool = Field(default=False, description="Whether to connect with TLS. The brokers' certificates are verified.")
    ca_file: Certificates = Field(
        default=NONE, description="With `tls`: certificates (PEM) to trust instead of the system's."
    )
    certificate_file: FilePathOrNone = Field(
        default=NONE, description="With `tls`: this client's own certificate (PEM), if the brokers ask for one."
    )
    key_file: FilePathOrNone = Field(default=NONE, description="The private key (PEM) of `certificate_file`.")
    token: SecretOrNone = Field(default=NONE, description="A token (JWT). Requires `tls`, except on this machine.")
    token_file: FilePathOrNone = Field(
        default=NONE, description="Instead of `token`: a file that holds it. It is read at every connection."
    )
    oauth_issuer: Text | None = Field(
        default=None, description="Instead of a token: the URL of an OAuth 2.0 server, for client credentials."
    )
    oauth_file: FilePathOrNone = Field(
        default=NONE, description="With `oauth_issuer`: a file (JSON) with `client_id` and `client_secret`."
    )
    oauth_audience: Text | None = Field(default=None, description="With `oauth_issuer`: the audience of its tokens.")
    oauth_scope: Text | None = Field(default=None, description="With `oauth_issuer`: the scope of its tokens.")
    timeout_s: Seconds = Field(default=20.0, description="How long one answer of the brokers may take.")

    @model_validator(mode="after")
    def _fits_together(self) -> Pulsar:
        if find_spec("_pulsar") is None:
            raise ValueError(f"type `pulsar` needs pulsar-client, which is not installed: {install_command('pulsar')}")
        if problems := list(self._problems()):
            raise ValueError("\n".join(problems))
        return self

    def _problems(self) -> Iterator[str]:
        logins = {"token": self.token, "token_file": self.token_file, "oauth_issuer": self.oauth_issuer}
        given = [f"`{name}`" for name, value in logins.items() if value is not None]
        if len(given) > 1:
            yield f"has {' and '.join(given)}: keep one of them"
        if (self.oauth_issuer is None) != (self.oauth_file is None):
            yield "`oauth_issuer` and `oauth_file` belong together: set both, or none"
        if self.oauth_issuer is None and (self.oauth_audience is not None or self.oauth_scope is not None):
            yield "`oauth_audience` and `oauth_scope` need `oauth_issuer`"
        if (self.certificate_file is None) != (self.key_file is None):
            yield "`certificate_file` and `key_file` belong together: set both, or none"
        if not self.tls and (self.ca_file is not None or self.certificate_file is not None):
            yield "has certificates without `tls: true`"
        if given and not self.tls and not are_loopback(self.servers):
            yield "would send a token without encryption: set `tls: true`, and the brokers' port for it"

    @property
    def access(self) -> PulsarAccess:
        """How to reach the brokers, with secrets."""
        from leasehold.pipeline.connectors.pulsar.broker import PulsarAccess

        oauth = {
            "issuer_url": self.oauth_issuer,
            "private_key": None if self.oauth_file is None else str(self.oauth_file),
            "audience": self.oauth_audience,
            "scope": self.oauth_scope,
        }
        own, key = self.certificate_file, self.key_file
        return PulsarAccess(
            servers=self.servers,
            tls=self.tls,
            ca_file=self.ca_file,
            certificates=None if own is None or key is None else (own, key),
            token=None if self.token is None else self.token.get_secret_value(),
            token_file=self.token_file,
            oauth={name: value for name, value in oauth.items() if value is not None},
        )


class PulsarFeed(Pulsar, FeedSettings):
    """A topic of Apache Pulsar, with its own partitions."""

    type: Literal["pulsar"] = Field(default="pulsar", description="A topic of Apache Pulsar, with its own partitions.")
    subscription: Text = Field(
        default="leasehold",
        description="With `commits`: the subscription whose cursor is moved. Nothing is read through it.",
    )
    commits: bool = Field(
        default=False,
        description="Whether positions of leases are committed to `subscription`, so that KEDA and Pulsar's own tools see the"
        " backlog, and brokers keep what is not processed. It requires a `subscription` that nothing else uses.",
    )
    trusts_headers: bool = Field(
        default=False,
        description="Whether the property `leasehold-event` is an event's operation, as the sink `pulsar` stores it. Set it only"
        " if nothing else publishes to this topic: any producer can set properties.",
    )
    allows_gaps: bool = Field(
        default=False,
        description="Whether entries that no reader sees are passed. Transactions, replicated subscriptions and the broker's"
        " entry filters need it. Otherwise they stop the partition, because parts of a message in chunks may lie there.",
    )
    page_events_max: Count = Field(default=1000, description="The most events that are requested at once.")

    @model_validator(mode="after")
    def _commits_alone(self) -> PulsarFeed:
        if self.commits and "subscription" not in self.model_fields_set:
            raise ValueError("has `commits` without `subscription`: name a subscription for this pipeline alone")
        return self

    @property
    def committing_seat(self) -> Seat | None:
        return (f"pulsar:{self.topic}", self.subscription) if self.commits else None

    def make_outside_checkpoints(self) -> OutsideCheckpoints | None:
        if not self.commits:
            return None
        from leasehold.pipeline.connectors.pulsar.cursor import SubscriptionCursors

        return SubscriptionCursors(self.access, self.topic, self.subscription, timeout_s=self.timeout_s)

    def make(self, context: FeedContext) -> ChangeFeed:
        from leasehold.pipeline.connectors.pulsar.feed import PulsarChangeFeed
        from leasehold.pipeline.connectors.pulsar.reader import TopicLimits

        limits = TopicLimits(
            events_max=self.page_events_max, trusts_headers=self.trusts_headers, allows_gaps=self.allows_gaps
        )
        return PulsarChangeFeed(self.access, self.topic, limits=limits, timeout_s=self.timeout_s)


class PulsarSink(Pulsar, SinkSettings):
    """A topic of Apache Pulsar, to which each event is published exactly once."""

    type: Literal["pulsar"] = Field(
        default="pulsar", description="A topic of Apache Pulsar, exactly once: batches with the position in them."
    )
    compression: Literal["none", "lz4", "zlib", "zstd", "snappy"] = Field(
        default="none", description="How batches are compressed."
    )
    message_bytes_max: Count = Field(
        default=5 * 1024 * 1024, ge=10_000, description="The most bytes of a batch: the brokers' `maxMessageSize`."
    )

    @property
    def input_events_max(self) -> int:
        return EVENTS_MAX

    @property
    def input_bytes_max(self) -> int:
        return self.message_bytes_max * 3 // 4

    def make(self, timing: Timing, *, letters: bool = False) -> Sink:
        from leasehold.pipeline.connectors.pulsar.sink import PulsarOutputSink

        return PulsarOutputSink(
            self.access,
            self.topic,
            compression=self.compression,
            message_bytes_max=self.message_bytes_max,
            timeout_s=self.timeout_s,
        )

    def check_output(self, table: pa.Table) -> None:
        from leasehold.pipeline.publishing_writer import events_of

        events_of(table, "a topic")
