"""Sections of settings as a program makes them: from nothing heavy, with the names, defaults and errors of a file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

import leasehold
from leasehold import (
    ConfigurationError,
    CosmosFeed,
    CosmosLeases,
    EventHubsFeed,
    FilesFeed,
    FilesSink,
    HttpSink,
    LogFeed,
    LogSink,
    MemoryFeed,
    Pipeline,
    PostgresLeases,
    PostgresSink,
    SqliteLeases,
)
from leasehold.service.config.load import parse

SECRET = "c2VjcmV0"
COSMOS = {"endpoint": "https://a.documents.azure.com", "key": SECRET, "database": "shop"}
HUB = f"Endpoint=sb://x.y/;SharedAccessKeyName=a;SharedAccessKey={SECRET};EntityPath=c"
DSN = f"postgresql://u:{SECRET}@h/d"
MADE: dict[str, dict[str, Any]] = {
    "FilesFeed": {"path": "a.jsonl"},
    "LogFeed": {"path": "a"},
    "CosmosFeed": {**COSMOS, "container": "orders", "ca_file": "missing.pem"},
    "EventHubsFeed": {"connection_string": HUB, "ca_file": "missing.pem", "start_positions": {"0": "41"}},
    "KafkaFeed": {"servers": "a:1,b:2", "topic": "t", "tls": True, "sasl": "PLAIN", "user": "u", "password": SECRET},
    "NatsFeed": {"servers": "a:1,b:2", "stream": "s", "subject": "t.u", "partitions": 2, "tls": True, "token": SECRET},
    "PulsarFeed": {"servers": "a:1,b:2", "topic": "t", "tls": True, "token": SECRET},
    "MemoryFeed": {"changes": {"0": [{"id": "1"}]}},
    "PostgresSink": {"dsn": DSN, "table": "t"},
    "LogSink": {"path": "a"},
    "FilesSink": {"path": "a"},
    "EventHubsSink": {"connection_string": HUB, "consumer_group": "g"},
    "KafkaSink": {"servers": "a:1", "topic": "t", "partitions": 4},
    "NatsSink": {"servers": "a:1", "stream": "s", "subject": "t", "partitions": 2, "replicas": 3},
    "PulsarSink": {"servers": "a:1", "topic": "t"},
    "HttpSink": {"url": f"https://x/?sig={SECRET}", "headers": {"Authorization": SECRET}, "ca_file": "missing.pem"},
    "CosmosSink": {**COSMOS, "container": "orders"},
    "MemorySink": {},
    "SqliteLeases": {},
    "CosmosLeases": COSMOS,
    "BlobLeases": {"account_url": "https://a.blob.core.windows.net", "key": SECRET},
    "PostgresLeases": {"dsn": DSN, "listen_dsn": DSN},
    "MemoryLeases": {},
    "Spark": {"conf": {"spark.hadoop.key": SECRET}},
    "Api": {"port": 0},
    "HostSettings": {"name": "a"},
}
HEAVY = (
    "pyarrow",
    "pyspark",
    "numpy",
    "pandas",
    "azure",
    "aiohttp",
    "psycopg",
    "fastapi",
    "deltalake",
    "opentelemetry",
)


@pytest.mark.parametrize("name", MADE)
def test_making_a_section_imports_nothing_heavy_and_opens_no_file(name: str, tmp_path: Path) -> None:
    code = f"""
import sys
sys.dont_write_bytecode = True
from leasehold import {name}
opened = []
sys.addaudithook(lambda event, of: opened.append(of[0]) if event in ("open", "socket.connect") else None)
{name}(**{MADE[name]!r})
assert not [each for each in opened if not str(each).endswith((".py", ".pyc", ".so"))], opened
assert not set({HEAVY!r}) & set(sys.modules), sorted(set({HEAVY!r}) & set(sys.modules))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", MADE)
def test_no_secret_shows(name: str) -> None:
    section = getattr(leasehold, name)(**MADE[name])
    assert SECRET not in repr(section)
    assert SECRET not in str(section)


def test_a_section_is_what_a_file_says(tmp_path: Path) -> None:
    text = """
leases: {type: sqlite, path: /l.db, duration_s: 30}
pipelines:
  - name: orders
    feed: {type: cosmos, connection_string: "AccountEndpoint=https://a.b/;AccountKey=eA==;", database: shop, container: orders}
    sink: {type: log, path: /out}
"""
    found = parse(text, {}, folder=tmp_path)
    secret: Any = "AccountEndpoint=https://a.b/;AccountKey=eA==;"
    assert found.pipelines[0] == Pipeline(
        "orders",
        feed=CosmosFeed(connection_string=secret, database="shop", container="orders"),
        sink=LogSink(path="/out"),
    )
    assert found.leases == SqliteLeases(path="/l.db", duration_s=30)
    assert isinstance(found.pipelines[0].feed.connection_string, SecretStr)  # type: ignore[union-attr]


def test_all_problems_are_raised_at_once_with_the_argument_s_name() -> None:
    with pytest.raises(ConfigurationError) as refused:
        CosmosFeed(**COSMOS, container=3, start="beginning", poll_interval_s=-1)
    assert str(refused.value) == (
        "CosmosFeed: 3 problems\n"
        "  `start` is 'beginning', and must be earliest, latest, or a time with its offset from UTC, like 2026-01-31T12:00:00Z\n"
        "  `container` is 3, and must be a text (put it in quotes)\n"
        "  `poll_interval_s` is -1, and must be greater than 0"
    )
    assert isinstance(refused.value, ValueError)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: CosmosFeed(databse="d"), "`databse` is not a setting: did you mean `database`?"),
        (lambda: LogFeed("a"), "takes its arguments by name: write LogFeed("),
        (lambda: FilesFeed(path="a.txt"), "the path's ending does not show the format"),
        (
            lambda: PostgresSink(dsn=f"postgresql://u:{SECRET}@h:x/d", table="t"),
            "`dsn` (a secret, not shown) has a port",
        ),
        (lambda: HttpSink(url=f"ftp://{SECRET}"), "`url` (a secret, not shown) must be an address like https://"),
        (lambda: EventHubsFeed(connection_string=SECRET), "`connection_string` must look like Endpoint=sb://"),
        (
            lambda: CosmosLeases(database="d", endpoint="https://a", credential=3),
            "must be a credential of azure-identity",
        ),
        (
            lambda: CosmosLeases(database="d", endpoint="https://a", credential=SECRET),
            "`credential` (a secret, not shown) must be a credential of azure-identity",
        ),
        (
            lambda: HttpSink(url="https://a", headers={"Authorization": f"Bearer {SECRET}\n"}),
            "`headers`: the value of Authorization has a line break or another control character: remove it",
        ),
        (lambda: SqliteLeases(duration_s=0.01), "`duration_s` is 0.01, and must be greater than or equal to 0.1"),
        (lambda: PostgresLeases(dsn=DSN, table="%"), "`table` must be a name of 1 to 63 bytes, without %"),
    ],
)
def test_a_wrong_value_is_refused_where_it_is_written(make: Any, problem: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        make()
    assert problem in str(refused.value)
    assert SECRET not in str(refused.value)


def test_a_path_is_taken_wherever_its_text_is(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    assert FilesFeed(path=path) == FilesFeed(path=str(path))
    assert SqliteLeases(path=path) == SqliteLeases(path=str(path))


class Credential:
    async def get_token(self, *scopes: str) -> None: ...


def test_a_credential_of_the_program_reaches_the_account() -> None:
    own = Credential()
    feed = CosmosFeed(endpoint="https://a.documents.azure.com", database="d", container="c", credential=own)
    assert feed.account["identity"] is own
    assert "Credential" not in repr(feed)
    with pytest.raises(ConfigurationError, match="both `identity` and `credential`"):
        EventHubsFeed(namespace="a.b", event_hub="h", identity="x", credential=own)


def test_a_file_cannot_give_what_only_a_program_has(tmp_path: Path) -> None:
    text = "pipelines: [{name: a, feed: {type: given by a program, part: 1}, sink: {type: log, path: a}}]"
    with pytest.raises(ConfigurationError, match=r"feed.type"):
        parse(text, {}, folder=tmp_path)


def test_changes_in_memory_are_a_feed() -> None:
    feed = MemoryFeed(changes={"0": [{"id": 1}, "x", b"y"]})
    assert Pipeline("a", feed=feed, sink=FilesSink(path="a")).feed is feed
