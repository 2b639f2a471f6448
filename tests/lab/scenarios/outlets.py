"""Where the hosts of `make scenarios SINK=...` deliver to, how it is emptied, and what has arrived there."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import duckdb
import pyarrow.dataset as ds
from delta_log import LOG
from delta_readers import read_replaced, read_rows
from patience import Failed
from plugins_endpoint import Endpoint, endpoint_served

from leasehold.pipeline.connectors.files.sink import Directory, snapshot_of
from leasehold.pipeline.connectors.files.sink.snapshot import Snapshot

SINKS = ("files", "blobs", "delta", "delta-blobs", "delta-merged", "delta-blobs-merged", "http", "cosmos")
GAPS, GAPS_LAST, TAKES_S = 0.15, 3, 0.02
"""The share of entries that fail, how often each does, and how long a request takes: so that a checkpoint, which takes its time
too, that passed over one of them is the newest when its host dies. A host has to die several times: not each death shows it."""
DATABASE = "bank"
LINES = 10
"""Every event is of one of so many keys."""
BATCH, BUFFERED = 20, 40
REQUESTS = {"batch_entries_max": 5, "in_flight_max": 4, "buffered_entries_max": BUFFERED, "buffer_age_max_s": 0.02}
KEY = ["partition", "key"]
"""Of merged rows."""
AGAIN_MAX = BUFFERED + 2 * BATCH
"""Entries of a partition that may come again for each crash and steal, as docs/sinks.md says."""


class Outlet(Protocol):
    """batch: how many events a host takes at a time. again_max: how many of a partition may come again for each incident.

    lines: events whose numbers leave the same rest are in order; None where nothing is.
    """

    @property
    def batch(self) -> int: ...
    @property
    def again_max(self) -> int: ...
    @property
    def lines(self) -> int | None: ...

    def sink(self) -> dict[str, Any]:
        """Its settings."""
        ...

    def empty(self) -> None: ...

    def arrived(self) -> dict[str, list[int]]:
        """Account -> the numbers of its events in the order in which they arrived. Raises Failed."""
        ...


MakeOutlet: TypeAlias = Callable[[Path], Outlet]
"""In that directory."""


class InDirectory:
    """Batches are small, so that there are many entries, and folds of them."""

    batch, again_max, lines = 5, 0, 1

    def __init__(self, directory: Path) -> None:
        self._path = directory / "out"

    def sink(self) -> dict[str, Any]:
        return {"type": "files", "path": str(self._path)}

    def empty(self) -> None:
        shutil.rmtree(self._path, ignore_errors=True)

    def arrived(self) -> dict[str, list[int]]:
        snapshot = snapshot_of(Directory(self._path))
        if snapshot.paths:
            _see_readers_agree(snapshot)
        return in_files(snapshot)


def _see_readers_agree(snapshot: Snapshot) -> None:
    with duckdb.connect() as connection:  # its own: cases run side by side
        counted = "SELECT count(*), sum(sequence) FROM read_parquet(?)"
        by_duckdb = connection.execute(counted, [snapshot.paths]).fetchone()
    by_pyarrow = ds.dataset(snapshot.paths).to_table(columns=["sequence"])["sequence"].to_pylist()
    if by_duckdb != (snapshot.rows, sum(by_pyarrow)) or len(by_pyarrow) != snapshot.rows:
        raise Failed(f"DuckDB reads {by_duckdb}, pyarrow {len(by_pyarrow)} rows, and the manifest has {snapshot.rows}")


class InDelta:
    """DuckDB and Polars have to read the same rows. A table has no order: its checkpoints list the files in any."""

    batch, again_max = BATCH, 0
    lines: int | None = None

    def __init__(self, directory: Path) -> None:
        self._path = directory / "table"

    def sink(self) -> dict[str, Any]:
        return {"type": "files", "path": str(self._path), "format": "delta"}

    def empty(self) -> None:
        shutil.rmtree(self._path, ignore_errors=True)

    def arrived(self) -> dict[str, list[int]]:
        return self.read(self._path)

    def read(self, table: Path) -> dict[str, list[int]]:
        if not (table / LOG).exists():
            return {}
        return by_account(json.loads(row["body"]) for row in read_rows(table, "body"))


class InDeltaMerged(InDelta):
    """The rows of a table are the last events of each key. So what has arrived is read from all of its versions.

    A batch has each key at most once: else only the last event of a key would be seen. A version that changes no row has failed.
    """

    batch, again_max = LINES, 0
    lines: int | None = LINES

    def sink(self) -> dict[str, Any]:
        return {**super().sink(), "key_columns": KEY}

    def read(self, table: Path) -> dict[str, list[int]]:
        if not (table / LOG).exists():
            return {}
        versions = read_replaced(table, KEY, "sequence", "body")
        if not all(versions):
            raise Failed(f"a merge is repeated: the one behind {versions.index([])} others has changed no row")
        rows = (row for rows in versions for row in sorted(rows, key=lambda row: row["sequence"]))
        return by_account(json.loads(row["body"]) for row in rows)


class InBlobs:
    """In a container of its own for each case."""

    batch, again_max = 5, 0
    lines: int | None = 1

    def __init__(self, connection_string: str, name: str) -> None:
        self._account = connection_string
        self._name = name
        self._case = count()
        self._container = ""

    def sink(self) -> dict[str, Any]:
        return {"type": "files", "connection_string": self._account, "container": self._container, "prefix": "out"}

    def empty(self) -> None:
        self._container = f"{self._name}-{next(self._case)}"

    def arrived(self) -> dict[str, list[int]]:
        from leasehold.common.azure import storage_account_of
        from leasehold.pipeline.connectors.files.sink.blobs import (
            BlobContainer,  # the SDKs of Azure take a second to import
        )

        with closing(
            BlobContainer(storage_account_of(connection_string=self._account), self._container, prefix="out")
        ) as place:
            return in_files(snapshot_of(place))


class InDeltaBlobs(InBlobs):
    """Blobs as `InBlobs`, with the format of another outlet, which reads a copy of the container."""

    def __init__(self, connection_string: str, directory: Path, like: InDelta) -> None:
        super().__init__(connection_string, directory.name)
        self._directory = directory
        self._like = like
        self.batch, self.lines = like.batch, like.lines

    def sink(self) -> dict[str, Any]:
        of_table = {name: each for name, each in self._like.sink().items() if name != "path"}
        return {**super().sink(), **of_table}

    def arrived(self) -> dict[str, list[int]]:
        from azure.storage.blob import ContainerClient

        copy = self._directory / self._container
        with ContainerClient.from_connection_string(self._account, self._container) as client:
            for name in client.list_blob_names():
                path = copy / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(client.download_blob(name).readall())
        return self._like.read(copy / "out")


def in_files(snapshot: Snapshot) -> dict[str, list[int]]:
    return by_account(json.loads(body) for table in snapshot.tables() for body in table["body"].to_pylist())


class OverHttp:
    """Many single entries fail, and again, so that nearly always some wait before others that were taken."""

    batch, again_max = BATCH, AGAIN_MAX
    lines: int | None = LINES

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    def sink(self) -> dict[str, Any]:
        url = f"{self._endpoint.url}/entries?items=1"
        return {"type": "http", "url": url, "content": "body", "results": "items", "order_by": "key", **REQUESTS}

    def empty(self) -> None:
        self._endpoint.order("reset")
        self._endpoint.order("trouble", items=GAPS, item_status=408, item_times=GAPS_LAST, takes_s=TAKES_S)

    def arrived(self) -> dict[str, list[int]]:
        return by_account(self._endpoint.entries)


class OverCosmos:
    """In a container of its own for each case. A document that is written again is another version of it."""

    batch, again_max, lines = BATCH, AGAIN_MAX, None

    def __init__(self, server: Any, name: str) -> None:
        self._server = server
        self._name = name
        self._case = count()
        self._container = ""

    def sink(self) -> dict[str, Any]:
        account = {"endpoint": self._server.endpoint, "key": self._server.key}
        place = {"database": DATABASE, "container": self._container}
        return {"type": "cosmos", **account, **place, "content": "body", **REQUESTS}

    def empty(self) -> None:
        from azure.cosmos import PartitionKey

        self._container = f"{self._name}-{next(self._case)}"
        with client_of(self._server) as client:
            client.get_database_client(DATABASE).create_container(self._container, PartitionKey("/account"))

    def arrived(self) -> dict[str, list[int]]:
        return by_account(version["body"] for version in self._server.control.versions(f"{DATABASE}/{self._container}"))


def troubled(server: Any) -> None:
    """It has a database, and single writes fail as over http."""
    with client_of(server) as client:
        client.create_database(DATABASE)
    server.control.fault("throttle", "document.upsert", share=0.02, retry_after_ms=20)
    server.control.fault("fail", "document.upsert", status=408, share=GAPS, in_a_row=GAPS_LAST)
    server.control.fault("delay", "document.upsert", delay_s=TAKES_S)


def client_of(server: Any) -> Any:
    from azure.cosmos import CosmosClient

    return CosmosClient(server.endpoint, server.key)


def by_account(bodies: Iterable[Mapping[str, Any]]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for body in bodies:
        found.setdefault(body["account"], []).append(body["n"])
    return found


@contextmanager
def outlets(sink: str) -> Iterator[MakeOutlet]:
    """sink: one of SINKS. The servers that it needs are there meanwhile."""
    if sink == "files":
        yield InDirectory
    elif sink == "delta":
        yield InDelta
    elif sink == "delta-merged":
        yield InDeltaMerged
    elif sink == "blobs":
        from plugins_node import blobs_served

        with blobs_served() as (connection_string, _):
            yield lambda directory: InBlobs(connection_string, directory.name)
    elif sink in ("delta-blobs", "delta-blobs-merged"):
        from plugins_node import blobs_served

        kind = InDelta if sink == "delta-blobs" else InDeltaMerged
        with blobs_served() as (connection_string, _):
            yield lambda directory: InDeltaBlobs(connection_string, directory, kind(directory))
    elif sink == "http":
        with ExitStack() as servers:
            yield lambda directory: OverHttp(servers.enter_context(endpoint_served()))
    else:
        from plugins_cosmos import running

        with running() as server:
            troubled(server)
            yield lambda directory: OverCosmos(server, directory.name)
