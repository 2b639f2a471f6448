"""The sink `files` with `format: delta` in Azurite: the contract, and what a wire, a service or settings that fail make of it.

The wire between is served by this process. So a call of deltalake that holds Python's lock while it waits fails these tests.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
import pytest
import trustme
from aiohttp import web
from azure.core.credentials import AccessToken
from azure.core.exceptions import ClientAuthenticationError, ServiceRequestError
from azure.storage.blob import (
    BlobServiceClient,
    ContainerClient,
    ContainerSasPermissions,
    generate_container_sas,
)
from delta_log import TableState, read_log
from deltalake import DeltaTable
from lab.servers.blob_wire import Wire, between
from plugins_cli import Command
from plugins_node import AZURITE_KEY
from unit.pipeline.connectors.files.sink.places import Permit, claim, output

from leasehold.common.azure import StorageAccount, storage_account_of
from leasehold.pipeline.connectors.files.delta import DeltaSink, Table, container_location
from leasehold.pipeline.connectors.files.delta.table import Conflicted, Location
from leasehold.pipeline.connectors.files.sink import blobs
from leasehold.pipeline.connectors.files.sink.blobs import BlobContainer
from leasehold.pipeline.connectors.files.sink.storage import FilesRefused, FilesUnavailable
from leasehold.pipeline.contract import Row, SinkContract, SinkHarness
from leasehold.pipeline.errors import Ambiguous, Fenced, SinkRejected, SinkUnavailable
from leasehold.pipeline.sink import Output

ACCOUNT = "devstoreaccount1"
PREFIX = "lake/transactions"
CONTAINERS = map("delta-{}".format, count())
ONE = pa.schema([("a", pa.int64())])


@dataclass
class Lake:
    """A table in a container of its own, and the ways of several processes to it."""

    connection_string: str
    folder: Path
    container: str = field(default_factory=lambda: next(CONTAINERS))
    sinks: list[DeltaSink] = field(default_factory=list)

    def place(self, account: StorageAccount | None = None) -> BlobContainer:
        return BlobContainer(account or self.account(), self.container, prefix=PREFIX)

    def account(self, connection_string: str | None = None) -> StorageAccount:
        return storage_account_of(connection_string=connection_string or self.connection_string)

    def location(self, account: StorageAccount | None = None, **more: Any) -> Location:
        return container_location(account or self.account(), self.container, prefix=PREFIX, **more)

    def sink(self, account: StorageAccount | None = None, *, key: Sequence[str] = ()) -> DeltaSink:
        place = self.place(account)
        has_identity = account is not None and account.identity is not None
        location = self.location(account, token=place.token if has_identity else None, read=place.get)
        self.sinks.append(DeltaSink(place, location, key=key))
        return self.sinks[-1]

    def table(self, account: StorageAccount | None = None) -> Table:
        return Table(self.location(account))

    def state(self) -> TableState:
        """As a reader finds it that knows no deltalake, in a copy of all blobs."""
        with ContainerClient.from_connection_string(self.connection_string, self.container) as client:
            for name in client.list_blob_names():
                path = self.folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(client.download_blob(name).readall())
        return read_log(self.folder / PREFIX)

    def numbers(self, partition: str = "p") -> list[int]:
        return [row["sequence"] for row in self.state().rows() if row["partition"] == partition]

    async def close(self) -> None:
        for sink in self.sinks:
            await sink.close()


@pytest.fixture
async def lake(azurite: str, tmp_path: Path) -> AsyncIterator[Lake]:
    lake = Lake(azurite, tmp_path / "copy")
    await asyncio.to_thread(lake.place().prepare)
    yield lake
    await lake.close()


@pytest.fixture
async def wire(azurite: str) -> AsyncIterator[Wire]:
    async with between(azurite) as wire:
        yield wire


def through(lake: Lake, wire: Wire) -> StorageAccount:
    return lake.account(wire.connection_string)


class LakeHarness(SinkHarness):
    partitions = ("a", "b/ü c")

    def __init__(self, lake: Lake) -> None:
        self.lake = lake

    async def sink(self) -> DeltaSink:
        sink = self.lake.sink()
        await sink.prepare()
        return sink

    async def rows(self, partition: str) -> list[Row]:
        return [Row(number) for number in await asyncio.to_thread(self.lake.numbers, partition)]


class TestDeltaSinkInAzurite(SinkContract):
    @pytest.fixture
    async def harness(self, lake: Lake) -> SinkHarness:
        return LakeHarness(lake)


async def run_all(*calls: Callable[[], None]) -> list[BaseException | None]:
    """On a thread each."""
    return await asyncio.gather(*(asyncio.to_thread(call) for call in calls), return_exceptions=True)


async def test_of_two_commits_that_arrive_at_once_the_service_takes_one(lake: Lake, wire: Wire) -> None:
    await asyncio.to_thread(lake.table().create, ONE)
    tables = [lake.table(through(lake, wire)) for _ in range(2)]
    for table in tables:
        await asyncio.to_thread(table.refresh)
    wire.conditions.clear()
    wire.fault("hold", "create", times=2)
    commits = [
        lambda table=table, number=number: table.commit([], {"lease": number}) for number, table in enumerate(tables)
    ]
    running = asyncio.create_task(run_all(*commits))
    await wire.wait_until_held(2)  # both have seen that the version is free
    await wire.release()
    ends = await running
    assert sorted(type(end) for end in ends if end is not None) == [Conflicted]
    assert wire.conditions == ["If-None-Match"] * 2
    state = await asyncio.to_thread(lake.state)
    assert (state.version, state.txns) == (1, {"lease": ends.index(None)})
    loser = tables[1 - ends.index(None)]
    await asyncio.to_thread(loser.refresh)
    await asyncio.to_thread(loser.commit, [], {"lease": 7})
    assert (await asyncio.to_thread(lake.state)).txns == {"lease": 7}


@pytest.mark.parametrize("put", ["data file", "record", "entry of the log"])
async def test_lost_answers_lose_and_repeat_nothing(lake: Lake, wire: Wire, put: str) -> None:
    writer = await lake.sink(through(lake, wire)).open(claim(1))
    await writer.write(output(0, 3), Permit())
    wire.fault("lose_reply", "create", after=("data file", "record", "entry of the log").index(put), times=1)
    await writer.write(output(3, 6), Permit())
    await writer.write(output(6, 9), Permit())
    assert await asyncio.to_thread(lake.numbers) == list(range(1, 10))


async def test_a_commit_that_arrives_after_the_next_owner_s_claim_is_refused(lake: Lake, wire: Wire) -> None:
    writer = await lake.sink(through(lake, wire)).open(claim(1))
    await writer.write(output(0, 3), Permit())
    wire.fault("hold", "create", after=2)
    late = asyncio.create_task(writer.write(output(3, 6), Permit()))
    await wire.wait_until_held(1)
    successor = await lake.sink().open(claim(2))
    assert successor.position == "3"
    await wire.release()
    with pytest.raises(Fenced):
        await late
    await successor.write(output(3, 5), Permit())
    assert await asyncio.to_thread(lake.numbers) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(("puts", "kind"), [(0, SinkUnavailable), (1, SinkUnavailable), (2, Ambiguous)])
async def test_a_throttled_account_is_waited_for_and_the_batch_repeated(
    lake: Lake, wire: Wire, puts: int, kind: type[Exception]
) -> None:
    """The owner cannot know whether deltalake's first try of a commit was carried out, so it claims again first."""
    sink = lake.sink(through(lake, wire))
    writer = await sink.open(claim(1))
    await writer.write(output(0, 3), Permit())
    wire.fault("fail", "create", after=puts, status=503, code="ServerBusy")
    with pytest.raises(kind, match="the account is throttled"):
        await writer.write(output(3, 6), Permit())
    wire.heal()
    if kind is Ambiguous:
        writer = await sink.open(claim(2))
    assert writer.position == "3"
    await writer.write(output(3, 6), Permit())
    assert await asyncio.to_thread(lake.numbers) == [1, 2, 3, 4, 5, 6]


async def test_an_account_that_is_away_is_waited_for(lake: Lake, wire: Wire) -> None:
    sink = lake.sink(through(lake, wire))
    writer = await sink.open(claim(1))
    await writer.write(output(0, 3), Permit())
    wire.fault("cut")
    wire.requests.clear()
    with pytest.raises(SinkUnavailable, match="cannot be reached"):
        await sink.open(claim(2))
    assert wire.requests["list"] == 3
    wire.heal()
    writer = await sink.open(claim(3))
    await writer.write(output(3, 6), Permit())
    assert await asyncio.to_thread(lake.numbers) == [1, 2, 3, 4, 5, 6]


async def test_wrong_settings_are_reported_with_the_next_step_and_without_secrets(lake: Lake, wire: Wire) -> None:
    wrong = lake.account(re.sub(r"AccountKey=[^;]*", "AccountKey=c2VjcmV0", wire.connection_string))
    with pytest.raises(SinkRejected, match=rf"container '{lake.container}'.*403.*look at the key") as refused:
        await lake.sink(wrong).prepare()
    with pytest.raises(FilesRefused, match=rf"{lake.container}/{PREFIX}.*403 \(\w+\): look at the key") as also_refused:
        await asyncio.to_thread(lake.table(wrong).refresh)
    assert "c2VjcmV0" not in f"{refused.value} {also_refused.value}"
    with BlobServiceClient.from_connection_string(lake.connection_string) as service:
        await asyncio.to_thread(service.delete_container, lake.container)
    with pytest.raises(FilesRefused, match=r"404 \(ContainerNotFound\): create the container"):
        await asyncio.to_thread(lake.table().refresh)


def signature_of(container: str) -> str:
    """For its blobs, as docs/delta-sink.md says: it may neither create the container nor read its properties."""
    allowed = ContainerSasPermissions(read=True, write=True, list=True, delete=True, create=True)
    until = datetime.now(UTC) + timedelta(hours=1)
    return generate_container_sas(ACCOUNT, container, AZURITE_KEY, permission=allowed, expiry=until)


async def test_a_signature_is_enough_and_appears_in_no_error(lake: Lake, wire: Wire) -> None:
    secret = signature_of(lake.container)
    account = lake.account(f"BlobEndpoint={wire.account_url};AccountName={ACCOUNT};SharedAccessSignature={secret}")
    sink = lake.sink(account)
    await sink.prepare()
    writer = await sink.open(claim(1))
    for start in (0, 3):
        await writer.write(output(start, start + 3), Permit())
    assert await asyncio.to_thread(lake.numbers) == [1, 2, 3, 4, 5, 6]
    assert set(wire.authorizations) == {""}
    for fault, status in (("fail", 403), ("fail", 500), ("lose_reply", 0), ("truncate", 0)):
        wire.fault(fault, status=status)  # type: ignore[arg-type]  # as parametrized
        with pytest.raises(FilesUnavailable) as error:
            await asyncio.to_thread(lake.table(account).refresh)
        wire.heal()
        assert "sig=" not in str(error.value)
        assert secret not in str(error.value)


async def test_variables_do_not_replace_the_settings(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TOKEN", "ACCOUNT_KEY", "SAS_TOKEN", "ACCOUNT_NAME", "ENDPOINT"):
        monkeypatch.setenv(f"AZURE_STORAGE_{name}", "x")
    monkeypatch.setenv("AZURE_SKIP_SIGNATURE", "true")
    writer = await lake.sink().open(claim(1))
    await writer.write(output(0, 3), Permit())
    await writer.write(output(3, 4), Permit())
    assert await asyncio.to_thread(lake.numbers) == [1, 2, 3, 4]


class TokenWire(Wire):
    """Takes tokens, for an account that knows none: a request that bears one is signed on its way."""

    def _passed_on(self, request: web.BaseRequest) -> tuple[str, dict[str, str]]:
        path, headers = super()._passed_on(request)
        assert headers.pop("Authorization").startswith("Bearer ")
        container = path.partition("?")[0].split("/")[2]
        return f"{path}{'&' if '?' in path else '?'}{signature_of(container)}", headers


class Identity:
    """Its tokens expire so soon that none is kept."""

    def __init__(self) -> None:
        self.token = "token-1"

    def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        assert scopes == ("https://storage.azure.com/.default",)
        return AccessToken(self.token, int(time.time()) + 60)

    def close(self) -> None: ...


@pytest.fixture
async def token_wire(azurite: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Wire]:
    """Over TLS, whose authority both clients find in the environment."""
    authority, server = trustme.CA(), ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(server)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"):
        monkeypatch.setenv(name, str(tmp_path / "ca.pem"))
    async with TokenWire(azurite, server).serving() as wire:
        yield wire


async def test_an_identity_s_token_is_renewed_while_a_host_runs(
    lake: Lake, token_wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = Identity()
    monkeypatch.setattr(blobs, "blocking_credential_of", lambda client_id: identity)
    sink = lake.sink(storage_account_of(account_url=token_wire.account_url, identity="client"))
    writer = await sink.open(claim(1))
    await writer.write(output(0, 3), Permit())
    assert set(token_wire.authorizations) == {"Bearer token-1"}
    identity.token = "token-2"
    token_wire.authorizations.clear()
    await writer.write(output(3, 6), Permit())
    assert set(token_wire.authorizations) == {"Bearer token-2"}
    assert await asyncio.to_thread(lake.numbers) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (
            ClientAuthenticationError("no credential found"),
            FilesRefused,
            r"no Azure credentials found.*run `az login`, or set `key`",
        ),
        (ServiceRequestError("no route"), FilesUnavailable, r"no token for the identity \(no route\): check"),
    ],
)
async def test_without_a_token_nothing_is_read(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, error: Exception, kind: type[Exception], text: str
) -> None:
    class LoggedOut(Identity):
        def get_token(self, *scopes: str, **options: Any) -> AccessToken:
            raise error

    monkeypatch.setattr(blobs, "blocking_credential_of", lambda client_id: LoggedOut())
    account = storage_account_of(account_url="https://bank.blob.core.windows.net", identity="client")
    location = lake.location(account, token=lake.place(account).token)
    with pytest.raises(kind, match=text):
        await asyncio.to_thread(Table(location).refresh)


def merged(*pairs: tuple[str, int]) -> pa.Table:
    return pa.table({"k": [k for k, _ in pairs], "v": pa.array([v for _, v in pairs], pa.int64())})


async def test_rows_are_merged_compacted_and_read_by_others(lake: Lake, wire: Wire, tmp_path: Path) -> None:
    writer = await lake.sink(through(lake, wire), key=("k",)).open(claim(1))
    wide = merged(("w", 3)).append_column("note", pa.array(["new"]))
    for number, rows in enumerate((merged(("x", 1), ("y", 1)), merged(("y", 5), ("z", 7)), wide)):
        await writer.write(
            Output(table=rows, start=str(number) if number else None, to=str(number + 1), events=1), Permit()
        )
    wanted = [
        {"k": k, "v": v, "note": note}
        for k, v, note in (("w", 3, "new"), ("x", 1, None), ("y", 5, None), ("z", 7, None))
    ]

    def look() -> None:
        assert sorted(lake.state().rows(), key=lambda row: str(row["k"])) == wanted
        location = lake.location()
        options = {name: value for name, value in location.options().items() if name.startswith("azure_")}
        assert polars.read_delta(location.uri, storage_options=options).sort("k").to_dicts() == wanted
        rows = DeltaTable(location.uri, storage_options=options).to_pyarrow_table()
        assert rows.sort_by("k").to_pylist() == wanted

    await asyncio.to_thread(look)
    sink = {"type": "files", "format": "delta", "key_columns": ["k"], "container": lake.container, "prefix": PREFIX}
    feed = {"type": "files", "path": "*.csv"}
    pipelines = [{"name": "lake", "feed": feed, "sink": {**sink, "connection_string": "${ACCOUNT}"}}]
    (tmp_path / "lake.yaml").write_text(json.dumps({"pipelines": pipelines}))

    def run(name: str) -> str:
        command = Command("files", name, "lake.yaml", "lake", cwd=tmp_path, env={"ACCOUNT": wire.connection_string})
        assert command.ended() == 0, command.err
        return command.out + command.err

    before = (await asyncio.to_thread(lake.state)).txns
    assert re.fullmatch(r"\d files became 1\n", await asyncio.to_thread(run, "compact"))
    assert wire.requests["create"] > 0
    wire.requests.clear()
    assert await asyncio.to_thread(run, "vacuum") == ""
    assert wire.requests["list"] > 0
    await asyncio.to_thread(look)
    assert (await asyncio.to_thread(lake.state)).txns == before
    again = await lake.sink(key=("k",)).open(claim(2))
    assert again.position == "3"


async def test_later_commits_do_not_need_more_requests(lake: Lake, wire: Wire) -> None:
    writer = await lake.sink(through(lake, wire)).open(claim(1))
    other = await lake.sink().open(claim(1, partition="q"))
    needed = []
    for number in range(12):
        await other.write(output(number, number + 1, "q"), Permit())
        wire.requests.clear()
        await writer.write(output(number, number + 1), Permit())
        needed.append(wire.requests.total())
    assert max(needed[2:]) == min(needed[2:]) <= 16


async def test_many_commits_write_checkpoints_that_keep_positions(lake: Lake) -> None:
    sink = lake.sink()
    writer = await sink.open(claim(1))
    await writer.write(output(0, 1), Permit())
    location = lake.location()

    def set_interval() -> None:
        """As another program does it."""
        table = DeltaTable(location.uri, storage_options=dict(location.options()))
        table.alter.set_table_properties({"delta.checkpointInterval": "5"})

    await asyncio.to_thread(set_interval)
    for number in range(1, 12):
        await writer.write(output(number, number + 1), Permit())
    state = await asyncio.to_thread(lake.state)
    assert list((state.path / "_delta_log").glob("*.checkpoint.parquet"))
    assert sorted(row["sequence"] for row in state.rows()) == list(range(1, 13))
    assert (await lake.sink().open(claim(2))).position == "12"
