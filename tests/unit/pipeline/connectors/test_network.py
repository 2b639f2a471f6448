"""What sinks say while a host starts: an outage is waited for, a wrong address, path or permission is not."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from azure.core.exceptions import ClientAuthenticationError, HttpResponseError

from leasehold.common.azure import CosmosAccount as CosmosAccount
from leasehold.common.azure import storage_account_of as blobs_of
from leasehold.pipeline.connectors.cosmos import cosmos_sink
from leasehold.pipeline.connectors.eventhubs.account import account_of as hub_of
from leasehold.pipeline.connectors.eventhubs.sink.sink import EventHubsOutputSink
from leasehold.pipeline.connectors.files.sink import blobs
from leasehold.pipeline.connectors.files.sink.blobs import BlobContainer
from leasehold.pipeline.connectors.files.sink.directory import Directory
from leasehold.pipeline.connectors.files.sink.sink import FilesOutputSink
from leasehold.pipeline.connectors.http import http_sink
from leasehold.pipeline.connectors.log.sink import LogOutputSink
from leasehold.pipeline.connectors.nats.connection import NatsAccess
from leasehold.pipeline.connectors.nats.sink import NatsOutputSink
from leasehold.pipeline.connectors.pulsar.broker import PulsarAccess
from leasehold.pipeline.connectors.pulsar.sink import PulsarOutputSink
from leasehold.pipeline.errors import SinkNotFound, SinkRejected, SinkUnavailable
from leasehold.pipeline.sink import Sink

HOST = "gone.example"
HUB = f"Endpoint=sb://{HOST}/;SharedAccessKeyName=a;SharedAccessKey=a2V5;EntityPath=hub"
BLOBS = f"AccountName=bank;AccountKey=a2V5;BlobEndpoint=https://{HOST}/"
SINKS: Mapping[str, Callable[[], Sink]] = {
    "http": lambda: http_sink(f"http://{HOST}/events"),
    "cosmos": lambda: cosmos_sink(CosmosAccount(endpoint=f"https://{HOST}", key="a2V5"), "bank", "accounts"),
    "eventhubs": lambda: EventHubsOutputSink(hub_of(connection_string=HUB), consumer_group="own", timeout_s=5.0),
    "blobs": lambda: FilesOutputSink(BlobContainer(blobs_of(connection_string=BLOBS), "out")),
    "pulsar": lambda: PulsarOutputSink(PulsarAccess(servers=f"{HOST}:6650"), "public/default/accounts", timeout_s=1.0),
    "nats": lambda: NatsOutputSink(NatsAccess(servers=f"{HOST}:4222"), "accounts", "bank.accounts", partitions=4),
}


def resolver(code: int) -> Callable[..., Any]:
    real = socket.getaddrinfo

    def resolve(host: Any, *args: Any, **named: Any) -> Any:
        if host in (HOST, HOST.encode()):
            raise socket.gaierror(code, "no address")
        return real(host, *args, **named)

    return resolve


@pytest.mark.parametrize("name", SINKS)
async def test_a_host_that_does_not_exist_is_told(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", resolver(socket.EAI_NONAME))
    sink = SINKS[name]()
    with pytest.raises(SinkNotFound, match=HOST):
        await sink.prepare()
    await sink.close()


@pytest.mark.parametrize("name", [name for name in SINKS if name != "http"])
async def test_a_name_server_that_is_away_is_waited_for(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", resolver(socket.EAI_AGAIN))
    sink = SINKS[name]()
    with pytest.raises(SinkUnavailable) as caught:
        await sink.prepare()
    assert not isinstance(caught.value, SinkNotFound)
    await sink.close()


async def test_an_endpoint_is_asked_nothing_before_its_first_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", resolver(socket.EAI_AGAIN))
    sink = SINKS["http"]()
    await sink.prepare()
    await sink.close()


class Answer:
    def __init__(self, status: int) -> None:
        self.status_code, self.reason, self.headers = status, "", {}


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        *((HttpResponseError(response=Answer(status)), SinkRejected) for status in (401, 403, 404)),  # type: ignore[arg-type]
        *((HttpResponseError(response=Answer(status)), SinkUnavailable) for status in (429, 500, 503)),  # type: ignore[arg-type]
        (ClientAuthenticationError("nobody"), SinkRejected),
    ],
)
async def test_blob_storage_that_refuses_is_not_waited_for(
    error: Exception, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def create_container(_: object) -> None:
        raise error

    monkeypatch.setattr(blobs.ContainerClient, "create_container", create_container)
    monkeypatch.setattr(blobs.ContainerClient, "list_blob_names", lambda _, **options: create_container(_))
    sink = FilesOutputSink(BlobContainer(blobs_of(connection_string=BLOBS), "out"))
    with pytest.raises(kind):
        await sink.prepare()
    await sink.close()


@pytest.mark.parametrize(("code", "kind"), [(errno.EACCES, SinkRejected), (errno.ENOSPC, SinkUnavailable)])
@pytest.mark.parametrize("name", ["log", "files"])
async def test_a_full_disk_is_waited_for_and_a_closed_directory_is_not(
    name: str, code: int, kind: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mkdir(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    path = tmp_path / "out"
    sink: Sink = LogOutputSink(path) if name == "log" else FilesOutputSink(Directory(path))
    monkeypatch.setattr(os, "mkdir", mkdir)
    with pytest.raises(kind):
        await sink.prepare()
    await sink.close()


@pytest.mark.parametrize("name", ["log", "files"])
async def test_a_path_through_a_file_is_not_waited_for(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "out"
    sink: Sink = LogOutputSink(path) if name == "log" else FilesOutputSink(Directory(path))
    with pytest.raises(SinkRejected, match="file"):
        await sink.prepare()
    await sink.close()
