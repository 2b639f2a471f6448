"""What the bank stands on: where its files, its two logs and its leases are, and how they are looked at and broken.

`log` is the embedded one, all of it in a directory; `eventhubs` (scenarios/hubs.py) has hubs for logs, and leases in blobs;
`nats` (scenarios/streams.py) has streams for logs, and `kafka` (scenarios/topics.py) topics. The view is in PostgreSQL in all of
them.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from importlib import resources
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import yaml
from plugins_cli import events_in, leases_in

from leasehold.leases.lease import Lease

ROLES = ("generate", "transform", "balances")
MADE = {"generate": "raw-event", "transform": "transformed-event"}
LOGS = tuple(MADE.values())
PARTITIONS = 4
FEEDS = ("log", "eventhubs", "nats", "kafka", "pulsar")
LEASES = ("sqlite", "postgres")
"""Where leases are, if the logs are embedded ones."""
IN_POSTGRESQL = """
    INSERT INTO balances (account, balance, events)
    SELECT e->>'account', sum(CASE e->>'kind' WHEN 'deposit' THEN 1 ELSE -1 END * (e->>'amount')::numeric), count(*)
    FROM (SELECT convert_from(body, 'UTF8')::json AS e FROM batch) AS events GROUP BY 1 ORDER BY 1
    ON CONFLICT (account) DO UPDATE
    SET balance = balances.balance + excluded.balance, events = balances.events + excluded.events
"""

Breakage: TypeAlias = Callable[[], AbstractContextManager[None]]
"""Breaks when it begins, on a thread, and mends when it ends."""
MakeGround: TypeAlias = "Callable[[Path, str], Ground]"
"""In that directory, for the bank of that name."""


class Ground(Protocol):
    """files: as many as there are partitions; each is a partition of the logs. environment: of hosts.

    buffer_bytes: what a slow host of a role reads ahead of each partition: two or three pages, behind three batches that are in
    hand or transformed; full: the share of it that is reached, where a page is not read that would be too much.
    begins_nowhere: whether a partition's first batch begins at no position. breakages: kind of fault
    (scenarios/chaos_plan.py) -> how. dsn: of the database of the balances, past all wires; set when the database is created.
    """

    files: tuple[str, ...]
    environment: Mapping[str, str]
    buffer_bytes: Mapping[str, int]
    full: float
    begins_nowhere: bool
    breakages: Mapping[str, Breakage]
    dsn: str

    def settings(self) -> dict[str, Any]:
        """Of a host with all roles."""
        ...

    def paged(self, feed: dict[str, Any], events: int) -> dict[str, Any]:
        """The same feed, with pages of at most so many events."""
        ...

    def slow(self, sink: dict[str, Any], gate: Path) -> dict[str, Any]:
        """The same sink; the second batch of every partition waits for the file `gate`."""
        ...

    def open(self) -> None:
        """Before the first role."""
        ...

    def undo(self, stage: Path, roles: Sequence[str]) -> None:
        """In a copy of the directory: what these roles have made, and their leases."""
        ...

    def put_back(self, roles: Sequence[str]) -> None:
        """The directory is back; what these roles make is to be empty, and so are their leases."""
        ...

    def leases(self, role: str) -> list[Lease]: ...

    def locked(self) -> list[str]:
        """What nobody can write to at this moment."""
        ...

    def events(self, log: str) -> dict[str, list[Any]]:
        """File -> bodies of the events in its partition of a log."""
        ...

    def counted(self, positions: Iterable[tuple[str, str | None]]) -> dict[str, int]:
        """File -> how many of the last log's events are behind the position in its partition."""
        ...


class Embedded:
    """Files, SQLite and nothing else, in one directory. with_spark: else events are handed on as they are."""

    files = tuple(f"transactions-{number}.csv" for number in range(1, PARTITIONS + 1))
    environment: Mapping[str, str] = {}
    buffer_bytes: Mapping[str, int] = {"generate": 17_000, "transform": 17_000, "balances": 7_700}
    full = 1.0
    begins_nowhere = True
    dsn = ""

    def __init__(self, directory: Path, *, with_spark: bool = True) -> None:
        self._directory = directory
        self._with_spark = with_spark
        if not with_spark:  # all roles read the same events
            self.buffer_bytes = dict.fromkeys(ROLES, self.buffer_bytes["transform"])
        self._leases = directory / "leases.db"
        self.breakages: Mapping[str, Breakage] = {"leases locked": self._without_leases}

    def settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = yaml.safe_load(
            resources.files("leasehold.service.cli.demo").joinpath("bank.yaml").read_text()
        )
        if not self._with_spark:
            for pipeline in settings["pipelines"]:
                _do_without_spark(pipeline)
        return settings

    def paged(self, feed: dict[str, Any], events: int) -> dict[str, Any]:
        return paged_files(self._directory, feed, events) or {
            **feed,
            "type": "leasehold.pipeline.connectors.log:LogChangeFeed",
            "path": str(self._directory / feed["path"]),
            "page_events_max": events,
        }

    def slow(self, sink: dict[str, Any], gate: Path) -> dict[str, Any]:
        return slow_postgres(sink, gate) or {
            **sink,
            "type": "lab.scenarios.slow:SlowLog",
            "path": str(self._directory / sink["path"]),
            "gate": str(gate),
        }

    def open(self) -> None:
        """Logs and leases are made by whoever comes first."""

    def undo(self, stage: Path, roles: Sequence[str]) -> None:
        for role in roles:
            if role in MADE:
                shutil.rmtree(stage / MADE[role])
            forget_leases(stage / "leases.db", role)

    def put_back(self, roles: Sequence[str]) -> None:
        """It is all in the directory."""

    def leases(self, role: str) -> list[Lease]:
        return leases_in(self._leases, role)

    def locked(self) -> list[str]:
        logs = (file for log in LOGS for file in (self._directory / log).glob("*.db"))
        files = [*self._directory.glob(self._leases.name), *logs]
        return [file.name for file in files if is_locked(file)]

    def events(self, log: str) -> dict[str, list[Any]]:
        return {Path(name).name: bodies for name, bodies in events_in(self._directory / log).items()}

    def counted(self, positions: Iterable[tuple[str, str | None]]) -> dict[str, int]:
        return {Path(name).name: -1 if position is None else int(position) + 1 for name, position in positions}

    @contextmanager
    def _without_leases(self) -> Iterator[None]:
        """Nobody else can write to them."""
        with closing(
            sqlite3.connect(self._leases, timeout=20, isolation_level=None, check_same_thread=False)
        ) as leases:
            leases.execute("BEGIN IMMEDIATE")
            yield
            leases.execute("ROLLBACK")


class Logs:
    """What the two logs are called: a case gets new, empty ones for what its roles make, and reads what the undisturbed run has
    made for the roles before.

    name: of the bank; others may stand on the same servers. make: a log of that name.
    """

    def __init__(self, name: str, make: Callable[[str], None]) -> None:
        self._name = name
        self._make = make
        self.case = 0
        self._names: dict[str, str] = {}
        self._undisturbed: dict[str, str] = {}

    def __getitem__(self, log: str) -> str:
        return self._names[log]

    def open(self) -> None:
        self._renew(LOGS)
        self._undisturbed = dict(self._names)

    def put_back(self, roles: Sequence[str]) -> None:
        self.case += 1
        self._names = dict(self._undisturbed)
        self._renew([MADE[role] for role in roles if role in MADE])

    def _renew(self, logs: Iterable[str]) -> None:
        for log in logs:
            self._names[log] = f"{log}-{self._name}-{self.case}"
            self._make(self._names[log])


def forget_leases(database: Path, role: str) -> None:
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute("DELETE FROM lease_documents WHERE id LIKE ?", (f"{role}/%",))


def paged_files(directory: Path, feed: dict[str, Any], events: int) -> dict[str, Any] | None:
    """None of any other feed."""
    if feed["type"] != "files":
        return None
    return {
        **feed,
        "type": "lab.scenarios.slow:PagedFiles",
        "path": str(directory / feed["path"]),
        "page_events_max": events,
    }


def slow_postgres(sink: dict[str, Any], gate: Path) -> dict[str, Any] | None:
    """None of any other sink."""
    return (
        {**sink, "type": "lab.scenarios.slow:SlowPostgres", "gate": str(gate)} if sink["type"] == "postgres" else None
    )


@contextmanager
def grounds(feed: str, *, leases: str = "sqlite", with_spark: bool = True) -> Iterator[MakeGround]:
    """feed: one of FEEDS. The servers that it needs are there meanwhile. with_spark: all but `eventhubs` can do without.

    leases: of LEASES, for `log`.
    """
    if feed == "log" and leases == "postgres":
        from lab.scenarios.leases_in_postgres import WithLeasesInPostgres

        yield lambda directory, name: WithLeasesInPostgres(directory, with_spark=with_spark)
    elif feed == "log":
        yield lambda directory, name: Embedded(directory, with_spark=with_spark)
    elif feed == "nats":
        from lab.scenarios import streams

        with streams.served(with_spark=with_spark) as make:
            yield make
    elif feed == "kafka":
        from lab.scenarios import topics

        with topics.served(with_spark=with_spark) as make:
            yield make
    elif feed == "pulsar":
        from lab.scenarios import pulsar_topics

        with pulsar_topics.served(with_spark=with_spark) as make:
            yield make
    else:
        from lab.scenarios import hubs  # the SDKs of Azure take a second to import

        with hubs.served() as make:
            yield make


def _do_without_spark(pipeline: dict[str, Any]) -> None:
    """Events are handed on as they are, and PostgreSQL reads them: the same bank in seconds."""
    for setting in ("schema", "sql"):
        pipeline.pop(setting, None)
    if "merge" in pipeline["sink"]:
        pipeline["sink"] |= {"merge": IN_POSTGRESQL}


def spread(targets: Sequence[str], target_of: Callable[[str], str | None]) -> dict[str, str]:
    """Partition of a log -> the name of a file whose transactions go there."""
    names = [f"transactions-{number}.csv" for number in range(100)]
    return {target: next(name for name in names if target_of(name) == target) for target in targets}


def behind(role: str) -> tuple[str, ...]:
    """The roles that work on what this one delivers."""
    return ROLES[ROLES.index(role) + 1 :]


def is_locked(file: Path) -> bool:
    with closing(sqlite3.connect(file, timeout=0, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return True
        connection.execute("ROLLBACK")
        return False
