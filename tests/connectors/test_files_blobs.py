"""The sink `files` in Azurite, a storage server that nobody here wrote: the contract, and what lost answers come to."""

from __future__ import annotations

import re
import socket
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from plugins_node import ON_BOTH
from unit.pipeline.connectors.files.sink.places import FilesSinkHarness, Permit, claim, numbers_in, output

from leasehold.common.azure import storage_account_of
from leasehold.pipeline.connectors.files.sink import FilesOutputSink, FilesUnavailable, snapshot_of
from leasehold.pipeline.connectors.files.sink.blobs import BlobContainer
from leasehold.pipeline.connectors.files.sink.storage import FilesUncertain
from leasehold.pipeline.contract import SinkContract, SinkHarness

pytestmark = ON_BOTH

Places = Callable[..., BlobContainer]


class Between:
    """The way to a server, one request at a time on each connection. lost: how many answers to puts get lost from now on."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.lost = 0
        self.requests: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=self._passed, args=(self._listener.accept()[0],), daemon=True).start()

    def _passed(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self._port)) as server, suppress(OSError):
            while request := self._message(client):
                self.requests.append(request)
                server.sendall(request)
                answer = self._message(server)
                if request.startswith(b"PUT") and self.lost:
                    self.lost -= 1
                    return
                client.sendall(answer)

    @staticmethod
    def _message(source: socket.socket) -> bytes:
        """A whole one: head, and as much as its Content-Length says (or chunks up to the last)."""
        read = b""
        while b"\r\n\r\n" not in read:
            if not (part := source.recv(65536)):
                return b""
            read += part
        head, _, _ = read.partition(b"\r\n\r\n")
        found = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
        is_chunked = re.search(rb"(?i)\r\ntransfer-encoding: chunked", head)
        while len(read) < len(head) + 4 + int(found[1] if found else 0) or (
            is_chunked and not read.endswith(b"0\r\n\r\n")
        ):
            read += source.recv(65536)
        return read


@pytest.fixture
def places(azurite: str) -> Iterator[Places]:
    """Ways to one new container, each as a process of its own would have it."""
    container = f"files-{uuid.uuid4().hex}"
    made: list[BlobContainer] = []

    def place(connection_string: str = azurite, prefix: str = "out") -> BlobContainer:
        made.append(
            BlobContainer(
                storage_account_of(connection_string=connection_string), container, prefix=prefix, timeout_s=20
            )
        )
        return made[-1]

    place().prepare()
    yield place
    for each in made:
        each.close()


class TestFilesSinkInAzurite(SinkContract):
    @pytest.fixture
    async def harness(self, places: Places) -> AsyncIterator[SinkHarness]:
        harness = FilesSinkHarness(places)
        yield harness
        await harness.close()


@pytest.fixture
def between(azurite: str) -> Iterator[Between]:
    found = re.search(r"127\.0\.0\.1:(\d+)", azurite)
    assert found
    with closing(Between(int(found[1]))) as between:
        yield between


def through(azurite: str, between: Between) -> str:
    return re.sub(r"127\.0\.0\.1:\d+", f"127.0.0.1:{between.port}", azurite)


def test_a_blob_is_put_once_and_never_replaced(places: Places, azurite: str, between: Between) -> None:
    first, second = places(through(azurite, between)), places()
    assert first.put("a/b.json", b"ours")
    assert not second.put("a/b.json", b"theirs")
    assert not first.put("a/b.json", b"ours again")
    assert first.get("a/b.json") == b"ours"
    assert (second.size("a/b.json"), second.size("a/c.json")) == (4, None)
    [put] = [request for request in between.requests if request.startswith(b"PUT") and request.endswith(b"ours")]
    assert b"\r\nif-none-match: *\r\n" in put.lower()
    assert (first.get("a/c.json"), first.names("a"), first.names("b")) == (None, ["a/b.json"], [])
    first.delete("a/b.json")
    first.delete("a/b.json")
    assert first.names("a") == []


def test_a_put_whose_answer_is_lost_is_uncertain_and_sent_once(places: Places, azurite: str, between: Between) -> None:
    place = places(through(azurite, between))
    assert place.names("a") == []
    between.lost = 1
    with pytest.raises(FilesUncertain):
        place.put("a/b.json", b"ours")
    assert sum(request.startswith(b"PUT") for request in between.requests) == 1
    assert place.get("a/b.json") == b"ours"


@pytest.mark.parametrize("lost", [1, 2])
async def test_lost_answers_lose_and_repeat_nothing(places: Places, azurite: str, between: Between, lost: int) -> None:
    sink = FilesOutputSink(places(through(azurite, between)))
    await sink.prepare()
    writer = await sink.open(claim(1))
    for number in range(0, 12, 3):
        between.lost = lost
        await writer.write(output(number, number + 3), Permit())
    assert numbers_in(places()) == list(range(1, 13))
    await sink.close()


def test_an_account_that_is_away_or_refuses_us_is_told(places: Places, azurite: str) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as nobody:
        port = nobody.getsockname()[1]
    away = places(re.sub(r"127\.0\.0\.1:\d+", f"127.0.0.1:{port}", azurite))
    with pytest.raises(FilesUnavailable, match="cannot be reached"):
        away.put("a/b.json", b"")
    wrong = places(re.sub(r"AccountKey=[^;]*", "AccountKey=AAAA", azurite))
    with pytest.raises(FilesUnavailable, match="look at the key"):
        wrong.put("a/b.json", b"")
    assert "AAAA" not in wrong.identity
    with pytest.raises(FilesUnavailable, match="create the container"):
        BlobContainer(storage_account_of(connection_string=azurite), "not-there", prefix="").names("a")


async def test_blobs_have_addresses_without_secrets(places: Places, tmp_path: Path) -> None:
    sink = FilesOutputSink(places())
    writer = await sink.open(claim(1, partition="p/1"))
    await writer.write(output(0, 3, "p/1"), Permit())
    [path] = snapshot_of(places(), pipeline="bank").paths
    assert re.fullmatch(
        r"http://127\.0\.0\.1:\d+/devstoreaccount1/files-\w+/out/bank/p%252F1/0{9}/0{11}1-\w{32}\.parquet", path
    )
    await sink.close()
