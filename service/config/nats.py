"""NATS JetStream: subjects of a stream as a feed and as a sink."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from leasehold.service.config.messages import install_command
from leasehold.service.config.section import FeedContext, FeedSettings, Section, SinkSettings
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
    from leasehold.pipeline.connectors.nats.connection import NatsAccess
    from leasehold.pipeline.feed import ChangeFeed
    from leasehold.pipeline.sink import Sink

EVENTS_MAX = 999
"""The output of this many events is one atomic publication, if the transform adds no rows."""
BYTES_MAX = 8 * 1024 * 1024
_STREAM = re.compile(r"[A-Za-z0-9_-]{1,255}", re.ASCII)
_SUBJECT = re.compile(r"(?=.{1,200}\Z)[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*", re.ASCII)
_SEED = re.compile(r"SU[A-Z2-7]{56}", re.ASCII)


def _stream(value: str) -> str:
    if not _STREAM.fullmatch(value):
        raise ValueError("must be the name of a stream: at most 255 of A-Z, a-z, 0-9, dash and underscore")
    return value


def _subject(value: str) -> str:
    if not _SUBJECT.fullmatch(value):
        raise ValueError(
            "must be the beginning of subjects, without wildcards: parts of A-Z, a-z, 0-9, dash and underscore with dots between"
            " them, like bank.orders"
        )
    return value


class Nats(Section):
    servers: Annotated[Text, servers_like("nats-1:4222,nats-2:4222", scheme="nats://")] = Field(
        description="Servers for the first connection: HOST:PORT, or several separated by commas."
    )
    stream: Annotated[Text, AfterValidator(_stream)] = Field(description="The stream's name.")
    subject: Annotated[Text, AfterValidator(_subject)] = Field(
        description="The beginning of the subjects: partition N is the subject SUBJECT.N."
    )
    partitions: Annotated[Count, Field(le=1024)] = Field(description="The number of partitions, from 0 on.")
    tls: bool = Field(default=False, description="Whether to connect with TLS. The servers' certificates are verified.")
    ca_file: Certificates = Field(
        default=NONE, description="With `tls`: certificates (PEM) to trust instead of the system's."
    )
    certificate_file: FilePathOrNone = Field(
        default=NONE, description="With `tls`: this client's own certificate (PEM), if the servers ask for one."
    )
    key_file: FilePathOrNone = Field(default=NONE, description="The private key (PEM) of `certificate_file`.")
    user: Text | None = Field(default=None, description="With `password`. Requires `tls`, except on this machine.")
    password: SecretOrNone = Field(default=NONE, description="With `user`.")
    token: SecretOrNone = Field(
        default=NONE, description="Instead of a user: a token. Requires `tls`, except on this machine."
    )
    nkey: SecretOrNone = Field(
        default=NONE, description="Instead of a user: the seed of an NKey, like SU... It is not sent."
    )
    credentials_file: FilePathOrNone = Field(
        default=NONE,
        description="Instead of a user: a file with a JWT and the seed of its NKey, as `nsc` writes it. It is read at every"
        " connection.",
    )
    timeout_s: Seconds = Field(default=5.0, description="How long one answer of the servers may take.")

    @model_validator(mode="after")
    def _fits_together(self) -> Nats:
        if find_spec("nats") is None or find_spec("nkeys") is None:
            raise ValueError(f"type `nats` needs nats-py[nkeys], which is not installed: {install_command('nats')}")
        if problems := list(self._problems()):
            raise ValueError("\n".join(problems))
        return self

    def _problems(self) -> Iterator[str]:
        logins = {
            "user": self.user,
            "token": self.token,
            "nkey": self.nkey,
            "credentials_file": self.credentials_file,
        }
        if len(given := [f"`{name}`" for name, value in logins.items() if value is not None]) > 1:
            yield f"has {' and '.join(given)}: keep one of them"
        if (self.user is None) != (self.password is None):
            yield "`user` and `password` belong together: set both, or none"
        if self.nkey is not None and not _SEED.fullmatch(self.nkey.get_secret_value()):
            yield "`nkey` must be the seed of a user's NKey: SU and 56 of A-Z and 2-7"
        if (self.certificate_file is None) != (self.key_file is None):
            yield "`certificate_file` and `key_file` belong together: set both, or none"
        if not self.tls and (self.ca_file is not None or self.certificate_file is not None):
            yield "has certificates without `tls: true`"
        if (
            not self.tls
            and (self.password is not None or self.token is not None)
            and not are_loopback(self.servers, scheme="nats://")
        ):
            yield "would send a password or a token without encryption: set `tls: true`"

    @property
    def access(self) -> NatsAccess:
        """How to reach the servers, with secrets."""
        from leasehold.pipeline.connectors.nats.connection import NatsAccess

        login = {
            "user": self.user,
            "password": None if self.password is None else self.password.get_secret_value(),
            "token": None if self.token is None else self.token.get_secret_value(),
            "nkeys_seed_str": None if self.nkey is None else self.nkey.get_secret_value(),
            "user_credentials": None if self.credentials_file is None else str(self.credentials_file),
        }
        own, key = self.certificate_file, self.key_file
        return NatsAccess(
            servers=self.servers,
            login={name: value for name, value in login.items() if value is not None},
            tls=self.tls,
            ca_file=self.ca_file,
            certificates=None if own is None or key is None else (own, key),
        )


class NatsFeed(Nats, FeedSettings):
    """Subjects of a stream of NATS JetStream, each of which is a partition."""

    type: Literal["nats"] = Field(
        default="nats", description="Subjects of a stream of NATS JetStream, each of which is a partition."
    )
    trusts_headers: bool = Field(
        default=False,
        description="Whether the header `leasehold-event` is an event's key and operation, as the sink `nats` stores them. Set it"
        " only if nothing else publishes to these subjects: any publisher can set headers.",
    )
    page_events_max: Count = Field(default=1000, description="The most events that are requested at once.")

    def make(self, context: FeedContext) -> ChangeFeed:
        from leasehold.pipeline.connectors.nats.feed import NatsChangeFeed

        return NatsChangeFeed(
            self.access,
            self.stream,
            self.subject,
            partitions=self.partitions,
            trusts_headers=self.trusts_headers,
            timeout_s=self.timeout_s,
            page_events_max=self.page_events_max,
        )


class NatsSink(Nats, SinkSettings):
    """Subjects of a stream of NATS JetStream, to which each event is published exactly once."""

    type: Literal["nats"] = Field(
        default="nats",
        description="Subjects of a stream of NATS JetStream, exactly once: atomic publications with the position in them.",
    )
    replicas: Annotated[Count, Field(le=5)] | None = Field(
        default=None,
        description="Create the stream with this many replicas if it is missing. By default it must exist.",
    )
    refresh_s: Seconds = Field(
        default=3600.0,
        description="How often an idle lease writes its position again. With `max_bytes` or `max_msgs`, a stream must keep"
        " messages for longer.",
    )

    @property
    def input_events_max(self) -> int:
        return EVENTS_MAX

    @property
    def input_bytes_max(self) -> int:
        return BYTES_MAX

    def make(self, timing: Timing, *, letters: bool = False) -> Sink:
        from leasehold.pipeline.connectors.nats.sink import NatsOutputSink

        return NatsOutputSink(
            self.access,
            self.stream,
            self.subject,
            partitions=self.partitions,
            replicas=self.replicas,
            timeout_s=self.timeout_s,
            refresh_s=self.refresh_s,
        )

    def check_output(self, table: pa.Table) -> None:
        from leasehold.pipeline.publishing_writer import events_of

        events_of(table, "a stream")
