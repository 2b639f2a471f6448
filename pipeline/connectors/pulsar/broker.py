"""A client of Pulsar's brokers for one topic, and the meaning of its errors.

The client is written in C++ and has threads of its own. Its calls block, so they run on threads.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import ssl
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

import pulsar

from leasehold.pipeline.connectors.pulsar.position import MessagePlace
from leasehold.pipeline.connectors.servers import Servers

T = TypeVar("T")
THREADS = 4
FORBIDDEN = (pulsar.AuthenticationError, pulsar.AuthorizationError, pulsar.ErrorGettingAuthenticationData)
MISSING = (pulsar.TopicNotFound, pulsar.InvalidTopicName)
_PARTITION = re.compile(r".*-partition-(\d+)")


class PlaceGone(Exception):
    """The topic no longer has the ledger of `place`. first: the first event that it has; None if it has none."""

    def __init__(self, place: MessagePlace, first: MessagePlace | None) -> None:
        super().__init__(str(place))
        self.place = place
        self.first = first


@dataclass(frozen=True, slots=True, kw_only=True)
class PulsarAccess(Servers):
    """token_file: read for each connection, and when the broker asks for a new token. oauth: pulsar-client's form.

    certificates: the client's certificate and its key.
    """

    system = "pulsar"
    tls: bool = False
    ca_file: Path | None = None
    certificates: tuple[Path, Path] | None = None
    token: str | None = field(default=None, repr=False)
    token_file: Path | None = None
    oauth: Mapping[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"pulsar{'+ssl' if self.tls else ''}://{','.join(each.strip() for each in self.servers.split(','))}"

    def make_client(self, timeout_s: float) -> pulsar.Client:
        trusted: Path | str | None = self.ca_file or ssl.get_default_verify_paths().cafile
        own, key = self.certificates or (None, None)
        return pulsar.Client(
            self.url,
            authentication=self._authentication(),
            operation_timeout_seconds=max(1, ceil(timeout_s)),
            connection_timeout_ms=max(1, ceil(timeout_s * 1000)),
            tls_trust_certs_file_path=None if trusted is None else str(trusted),
            tls_validate_hostname=True,
            tls_certificate_file_path=None if own is None else str(own),
            tls_private_key_file_path=None if key is None else str(key),
            logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull),  # exceptions show errors; others use stdout
        )

    def _authentication(self) -> pulsar.Authentication | None:
        if self.oauth:
            return pulsar.AuthenticationOauth2(json.dumps(dict(self.oauth)))
        if self.token_file is not None:
            return pulsar.AuthenticationToken(TokenFile(self.token_file).read)
        return None if self.token is None else pulsar.AuthenticationToken(self.token)


class TokenFile:
    """The newest token that could be read."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._token = ""

    def read(self) -> str:
        """Raises nothing: the client also calls this on a thread of its own, where an error would end the process."""
        with suppress(OSError, UnicodeDecodeError):
            self._token = self._file.read_text().strip()
        return self._token


class PulsarBroker:
    """topic: `TENANT/NAMESPACE/NAME`. All methods raise PulsarException; those that are not async also block."""

    def __init__(self, access: PulsarAccess, topic: str, *, timeout_s: float) -> None:
        self.access = access
        self.topic = topic
        self.timeout_s = timeout_s
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="pulsar")
        self._making = Lock()
        self._client: pulsar.Client | None = None

    @property
    def patience_ms(self) -> int:
        return int(self.timeout_s * 1000)

    async def run(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    def client(self) -> pulsar.Client:
        with self._making:
            if self._client is None:
                self._client = self.access.make_client(self.timeout_s)
            return self._client

    async def find_partitions(self) -> dict[str, str]:
        """The topic of each partition, by the partition's name. A topic without partitions is the partition 0."""
        found = await self.run(lambda: self.client().get_topic_partitions(f"persistent://{self.topic}"))
        numbers = {match[1] if (match := _PARTITION.fullmatch(each)) else "0": each for each in found}
        return dict(sorted(numbers.items()))

    def make_reader(
        self, topic: str, place: MessagePlace | None, *, events_max: int = 1000, is_at_end: bool = False
    ) -> pulsar.Reader:
        """A reader that starts with the entry of `place`, or with the first one left if that is gone. None: at the beginning.

        is_at_end: it starts with the last event.
        """
        start: Any = pulsar.MessageId.latest if is_at_end else pulsar.MessageId.earliest
        if place is not None:
            start = pulsar.MessageId(-1, place.ledger, place.entry, -1)
        return self.client().create_reader(
            topic,
            start,
            start_message_id_inclusive=True,
            receiver_queue_size=events_max,
            reader_name="leasehold",
            crypto_failure_action=pulsar.ConsumerCryptoFailureAction.CONSUME,  # by default, encrypted events are skipped
        )

    def find_first(self, topic: str, place: MessagePlace | None, time_ms: int | None = None) -> pulsar.Message | None:
        """The first event after a place, of this time or later; None at the end. Raises PlaceGone."""
        reader = self.make_reader(topic, place, events_max=1)
        try:
            if time_ms is not None:
                reader.seek(time_ms)
            is_found = place is None
            while reader.has_message_available():
                message = reader.read_next(self.patience_ms)
                if place is not None and not is_found and place_in(message).ledger != place.ledger:
                    self.check_ledger(topic, place)
                is_found = True
                if (place is None or place_in(message).order > place.order) and (
                    time_ms is None or message.publish_timestamp() >= time_ms
                ):
                    return message
            if place is not None and not is_found:
                raise PlaceGone(place, None)
            return None
        finally:
            reader.close()

    def check_ledger(self, topic: str, place: MessagePlace) -> None:
        """Raises PlaceGone if the topic no longer has the ledger of a place.

        It reads the ledger's first event: at the place there may be the last chunk of a message, which the client does not give.
        """
        reader = self.make_reader(topic, MessagePlace(place.ledger, 0), events_max=1)
        try:
            first = place_in(reader.read_next(self.patience_ms)) if reader.has_message_available() else None
        finally:
            reader.close()
        if first is None or first.ledger != place.ledger:
            raise PlaceGone(place, first)

    def find_last(self, topic: str) -> MessagePlace | None:
        reader = self.make_reader(topic, None, events_max=1, is_at_end=True)
        try:
            if not reader.has_message_available():
                return None
            return place_in(reader.read_next(self.patience_ms))
        finally:
            reader.close()

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with suppress(pulsar.PulsarException):  # AlreadyClosed, if one of its producers is being closed
                await self.run(client.close)
        self._threads.shutdown(wait=False)


def place_in(message: pulsar.Message) -> MessagePlace:
    found = message.message_id()
    return MessagePlace(found.ledger_id(), found.entry_id(), found.batch_index())


def is_in_chunks(message: pulsar.Message) -> bool:
    """Whether its producer split it into several entries. Only the id of such a message also holds the first entry."""
    found = message.message_id()
    plain = pulsar.MessageId(found.partition(), found.ledger_id(), found.entry_id(), found.batch_index())
    return found.batch_index() < 0 and bool(found.serialize() != plain.serialize())


HINTS = {
    pulsar.Timeout: ": no answer in time. If the servers can be reached, a token may be wrong: then there is no answer either",
    pulsar.ConnectError: ": no connection. Look at `servers`; with `tls`, the certificate may not fit",
}


def text_of(error: BaseException) -> str:
    text = (str(error) or type(error).__name__).removeprefix("Pulsar error: ").removeprefix("Result")
    return text + HINTS.get(type(error), "")
