"""What a program pays for: neither Spark nor Arrow nor an SDK, until a part needs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from patience import PATIENCE_S

ALLOWED = ["annotated_types", "leasehold", "pydantic", "pydantic_core", "typing_extensions", "typing_inspection"]
"""What sections import beyond the standard library. All else takes time, or is an extra."""
BEGIN = "import sys; before = {*sys.modules}\n"
FOUND = """
import json
modules = {name.partition(".")[0] for name in {*sys.modules} - before} - {*sys.stdlib_module_names}
print(json.dumps(sorted(name for name in modules if not name.startswith("_sysconfigdata"))))
"""
SECTIONS = """
from datetime import timedelta
from pathlib import Path
from leasehold import (
    Api, BlobLeases, CosmosFeed, CosmosLeases, CosmosSink, EventHubsFeed, EventHubsLetters, EventHubsSink, FilesFeed,
    FilesLetters, FilesSink, HostSettings, HttpSink, KafkaFeed, KafkaSink,
    LogFeed, LogLetters, LogSettings, LogSink, MemoryFeed, MemoryLeases,
    MemorySink, NatsFeed, NatsSink, Pipeline, PulsarFeed, PulsarSink,
    PostgresLeases, PostgresLetters, PostgresSink, Processor, Spark, Sql, SqliteLeases, TelemetrySettings,
)

async def on_changes(changes, context): ...
def transform(frame): return frame

cosmos = {"endpoint": "https://a.documents.azure.com", "key": "a2V5", "database": "a"}
blob = {"account_url": "https://a.blob.core.windows.net", "container": "leases"}
name = "Endpoint=sb://a.servicebus.windows.net/;SharedAccessKeyName=a;SharedAccessKey=a2V5"
hub = {"connection_string": name, "event_hub": "a"}
dsn = "postgresql://a@b/c"
kafka = {"servers": "a:9092", "topic": "b"}
nats = {"servers": "a:4222", "stream": "b", "subject": "b", "partitions": 2}
pulsar = {"servers": "a:6650", "topic": "b"}
made = [
    FilesFeed(path="*.jsonl"), LogFeed(path="log"), CosmosFeed(**cosmos, container="b"), MemoryFeed(changes={"0": (1,)}),
    EventHubsFeed(**hub, checkpoint_blobs={"account_url": blob["account_url"], "container": "checkpoints"}),
    PostgresSink(dsn=dsn, table="a"), LogSink(path="b"), FilesSink(path="c", format="jsonl"),
    FilesSink(path="d", format="parquet"),
    EventHubsSink(**hub, consumer_group="sinks"), HttpSink(url="https://a.example/b"), CosmosSink(**cosmos, container="c"),
    KafkaFeed(**kafka), KafkaSink(**kafka), NatsFeed(**nats), NatsSink(**nats),
    PulsarFeed(**pulsar), PulsarSink(**pulsar),
    MemorySink(), SqliteLeases(), PostgresLeases(dsn=dsn), CosmosLeases(**cosmos), BlobLeases(**blob), MemoryLeases(),
    PostgresLetters(dsn=dsn), LogLetters(path="e"), FilesLetters(path="f"), EventHubsLetters(**hub),
    Spark(), Api(), HostSettings(), LogSettings(), TelemetrySettings(), Sql("SELECT * FROM events"),
]
by_kind = {type(each).__name__: each for each in made}
feeds = [each for name, each in by_kind.items() if name.endswith("Feed")]
sinks = [each for name, each in by_kind.items() if name.endswith("Sink")]
leases = [each for name, each in by_kind.items() if name.endswith("Leases")]
pipelines = [Pipeline(f"f{at}", feed=feed, handler=on_changes, parallel={"key": "key"}) for at, feed in enumerate(feeds)]
sinks = [each for each in sinks if not isinstance(each, EventHubsSink)]
pipelines += [Pipeline(f"s{at}", feed=feeds[0], sink=sink) for at, sink in enumerate(sinks)]
pipelines += [Pipeline("sql", feed=feeds[0], transform=Sql("SELECT * FROM events"), sink=made[6])]
pipelines += [Pipeline("letters", feed=feeds[0], handler=on_changes, dead_letters=made[25])]
for store in leases:
    Processor(*pipelines, leases=store, api=Api(port=0), telemetry=TelemetrySettings())
"""
RUN = """
import asyncio, sys
from leasehold import FilesFeed, Pipeline, Processor, SqliteLeases

seen = []

async def on_changes(changes, context):
    seen.extend(event.json()["n"] for event in changes)

async def main():
    pipeline = Pipeline("numbers", feed=FilesFeed(path="*.jsonl"), handler=on_changes)
    async with Processor(pipeline, leases=SqliteLeases(path="leases.db")) as processor:
        await processor.idle()

asyncio.run(main())
assert seen == [1, 2, 3], seen
"""
SPIED = """
import sys

def refuse(event, arguments):
    if event in ("subprocess.Popen", "os.posix_spawn", "os.exec", "os.fork", "os.system"):
        raise AssertionError(f"{event} {arguments}")

sys.addaudithook(refuse)
"""
"""No process is started, such as Java."""


def ran(code: str, folder: Path) -> list[str]:
    """The modules that it imports beyond the standard library."""
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + code + FOUND],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_the_package_alone_imports_nothing_heavy(tmp_path: Path) -> None:
    assert ran("import leasehold\n", tmp_path) == ["leasehold"]


def test_a_processor_of_every_section_imports_only_what_is_allowed_and_opens_nothing(tmp_path: Path) -> None:
    assert ran(SECTIONS, tmp_path) == ALLOWED
    assert list(tmp_path.iterdir()) == []


def test_every_section_is_made_there() -> None:
    import leasehold

    kinds = ("Feed", "Sink", "Leases", "Letters", "Settings")
    sections = [name for name in leasehold.__all__ if name.endswith(kinds)]
    assert {name for name in sections if f"{name}(" not in SECTIONS} == {"AsyncSink", "ChangeFeed"}


def test_a_pipeline_without_a_transform_needs_neither_pyspark_nor_java(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n{"n": 2}\n{"n": 3}\n')
    found = ran(SPIED + RUN, tmp_path)
    assert {"pyspark", "py4j"}.isdisjoint(found), found
    assert "pyarrow" in found, "the test sees what is imported"
