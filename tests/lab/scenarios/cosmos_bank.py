"""The bank over Cosmos DB: tellers write transactions into one account, hosts read its change feed, and lease in another account.

Its settings are those of docs/examples/bank-cosmos.yaml; a second pipeline notes which versions of the documents were read.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import yaml
from azure.cosmos import ContainerProxy, CosmosClient, DatabaseProxy, PartitionKey
from lab.scenarios.host import Host
from patience import Failed
from plugins_cosmos import Cosmos

from leasehold.leases.dotnet import database_rid, lease_prefix
from leasehold_emulators.cosmos.epk import epk_of
from leasehold_emulators.cosmos.ranges import evenly

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "bank-cosmos.yaml"
PIPELINES = ("balances", "versions")
LEASES = {"duration_s": 6, "balance_s": 1}
TAKEOVER_S = 1.35 * LEASES["duration_s"] + 2
"""docs/protocol.md: a dead owner's leases are taken within its duration, a look and some calls."""
SILENT_S = TAKEOVER_S + 5
"""An owner writes its lease at checkpoints alone: at most 5 s apart while there are events."""
TRANSACTIONS = 1000
CUSTOMERS = 8
TELLERS = 4
PAUSE_S = 0.2
BATCH_AGE_S = 1
"""Fewer batches than would be made at once, each of which costs some of a machine that has more to do."""
PENDING = 0.3
"""How many transactions are pending at first, and are replaced before they are booked."""
COMMAND_S = 60

VERSIONS = {
    "name": "versions",
    "schema": "id STRING NOT NULL, version INT NOT NULL",
    "sql": "SELECT partition, sequence, CAST(offset AS BIGINT) AS lsn, id, version FROM events",
    "sink": {
        "type": "postgres",
        "dsn": "${LEASEHOLD_POSTGRES_DSN}",
        "setup": "CREATE TABLE IF NOT EXISTS versions (arrived bigserial, partition text, lsn bigint, id text, version int)",
        "merge": "INSERT INTO versions (partition, lsn, id, version)"
        " SELECT partition, lsn, id, version FROM batch ORDER BY partition, sequence",
        "history": True,
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """A document as a teller wrote it last."""

    id: str
    account: str
    kind: str
    amount: Decimal
    status: str
    version: int = 1

    @property
    def value(self) -> Decimal:
        return self.amount if self.kind == "deposit" else -self.amount

    @property
    def body(self) -> dict[str, Any]:
        fields = {name: getattr(self, name) for name in ("id", "account", "kind", "status", "version")}
        return {**fields, "amount": float(self.amount)}


class Teller:
    """Writes transactions one by one, and comes back to those that are pending until all are booked."""

    def __init__(self, number: int, container: ContainerProxy, closing: threading.Event) -> None:
        self.written: dict[str, Transaction] = {}
        self._accounts = spread(CUSTOMERS)
        self._number = number
        self._container = container
        self._closing = closing
        self._rng = random.Random(number)
        self._pending: deque[Transaction] = deque()

    def work(self) -> None:
        """Until the bank is closing and there are enough."""
        while not (self._closing.wait(PAUSE_S) and len(self.written) >= TRANSACTIONS // TELLERS):
            self._begin()
            if len(self._pending) > self._rng.randrange(10):
                self._go_on(self._pending.popleft())
        while self._pending:
            self._go_on(self._pending.popleft())

    def _begin(self) -> None:
        is_pending = self._rng.random() < PENDING
        made = Transaction(
            id=f"{self._number}-{len(self.written):05}",
            account=self._rng.choice(self._accounts),
            kind=self._rng.choice(("deposit", "withdrawal")),
            amount=self._amount(),
            status="pending" if is_pending else "booked",
        )
        self._container.create_item(made.body)
        self._note(made)

    def _go_on(self, last: Transaction) -> None:
        status = "booked" if self._rng.random() < 0.6 else "pending"
        changed = replace(last, status=status, version=last.version + 1, amount=self._amount())
        self._container.replace_item(last.id, changed.body)
        self._note(changed)

    def _note(self, transaction: Transaction) -> None:
        self.written[transaction.id] = transaction
        if transaction.status == "pending":
            self._pending.append(transaction)

    def _amount(self) -> Decimal:
        return Decimal(self._rng.randrange(1, 1_000_000)) / 100


@dataclass(frozen=True, slots=True)
class Step:
    """A row of the sinks' position history."""

    pipeline: str
    partition: str
    epoch: int
    owner: str
    start: str | None
    to: str


class CosmosBank:
    """bank, leases: the two accounts. Nobody writes before `open_counters`."""

    def __init__(self, directory: Path, dsn: str, bank: Cosmos, leases: Cosmos) -> None:
        self.directory = directory
        self.accounts = (bank, leases)
        self.bank = bank.control
        self.leases = leases.control
        self.environment = {
            **os.environ,
            "LEASEHOLD_POSTGRES_DSN": dsn,
            "BANK_COSMOS": f"AccountEndpoint={bank.endpoint};AccountKey={bank.key};",
            "LEASES_COSMOS": f"AccountEndpoint={leases.https};AccountKey={leases.key};",
        }
        self._dsn = dsn
        self._ca = leases.ca
        self._hosts: list[Host] = []
        self._closing = threading.Event()
        self._threads = ThreadPoolExecutor(TELLERS, thread_name_prefix="teller")
        self._working: list[Future[None]] = []
        self._database = made(bank, "bank")
        self.transactions = self._database.create_container("transactions", PartitionKey("/account"))
        self._leases = made(leases, "operations").create_container("leases", PartitionKey("/id"))
        self._tellers = [Teller(number, self.transactions, self._closing) for number in range(TELLERS)]

    # Transactions

    def open_counters(self) -> None:
        self._working = [self._threads.submit(teller.work) for teller in self._tellers]

    def close_counters(self) -> None:
        """Returns when everything is booked."""
        self._closing.set()
        for teller in self._working:
            teller.result()

    @property
    def written(self) -> dict[str, Transaction]:
        return {last.id: last for teller in self._tellers for last in list(teller.written.values())}

    # Hosts

    def run(self, name: str) -> Host:
        host = Host(self, name, self.settings(name), armed=None, until_idle=False)
        self._hosts.append(host)
        return host

    def settings(self, host: str) -> Path:
        """The example's, with short leases, the second pipeline, and a log that we can read."""
        settings = yaml.safe_load(EXAMPLE.read_text())
        settings["leases"] |= {**LEASES, "ca_file": self._ca}
        settings["spark"] |= {"driver_memory": "512m"}
        settings |= {"host": {"name": host}, "log": {"format": "json", "file": f"{host}.log"}}
        [balances] = settings["pipelines"]
        balances["sink"] |= {"history": True}
        settings["pipelines"] = [
            {**pipeline, "batch_age_max_s": BATCH_AGE_S}
            for pipeline in (balances, {**VERSIONS, "feed": dict(balances["feed"])})
        ]
        path = self.directory / f"{host}.yaml"
        path.write_text(yaml.safe_dump(settings))
        return path

    def check(self) -> None:
        """Raises Failed where a host has ended that nobody killed."""
        for host in self._hosts:
            if host.process.poll() not in (None, -signal.SIGKILL):
                raise Failed(f"host {host.name} has ended: {host.words}")

    def told(self, *arguments: str) -> Any:
        """What a command answers in JSON. Raises Failed."""
        leasehold = str(Path(sys.executable).with_name("leasehold"))
        file = str(self.settings("visitor"))
        command = [leasehold, *arguments, "--json", file]
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=COMMAND_S, check=False
        )
        if done.returncode != 0:
            raise Failed(f"{' '.join(arguments)}: {done.stdout}{done.stderr}")
        return json.loads(done.stdout)

    # Leases

    def prefix(self, pipeline: str) -> str:
        """What the ids of its leases' documents begin with, as .NET makes it."""
        rid = str(self.transactions.read()["_rid"])
        return lease_prefix(pipeline, "127.0.0.1", database_rid(rid), rid)

    def documents(self, pipeline: str) -> list[dict[str, Any]]:
        """The leases, as the .NET estimator and KEDA ask for them."""
        query, prefix = "SELECT * FROM c WHERE STARTSWITH(c.id, @prefix)", f"{self.prefix(pipeline)}.."
        parameters: list[dict[str, object]] = [{"name": "@prefix", "value": prefix}]
        found = self._leases.query_items(query, parameters=parameters, enable_cross_partition_query=True)
        return [dict(document) for document in found]

    def open_leases(self, pipeline: str) -> list[dict[str, Any]]:
        return [each for each in self.documents(pipeline) if not each["leasehold"].get("closed")]

    def is_shared_evenly(self, *names: str) -> bool:
        """In every pipeline, and over both."""
        shares = [Counter(each["Owner"] for each in self.open_leases(pipeline)) for pipeline in PIPELINES]
        return all(shares) and all(_is_even(share, names) for share in (*shares, sum(shares, Counter())))

    @contextmanager
    def storm(self, share: float) -> Iterator[None]:
        """Either account answers this share of all requests with 429; the bank's feeds answer as often by a replica that lags."""
        faults = [
            (each.control, each.control.fault("throttle", share=share, retry_after_ms=50)) for each in self.accounts
        ]
        faults += [
            (self.bank, self.bank.fault("lag", "feed.*", share=share, lsns=3, again=again)) for again in (True, False)
        ]
        try:
            yield
        finally:
            for control, number in faults:
                control.heal(number)

    # What came of it

    def is_delivered(self) -> bool:
        """Every transaction counts, and its last version was read by the other pipeline."""
        last = {(each.id, each.version) for each in self.written.values()}
        return self.counted() >= len(last) and last <= {(name, version) for _, _, name, version in self.versions()}

    def counted(self) -> int:
        """The transactions in all balances."""
        return sum(events for _, events in self.balances().values())

    def balances(self) -> Mapping[str, tuple[Decimal, int]]:
        rows = self._fetch("SELECT account, balance, events FROM balances")
        return {account: (balance, events) for account, balance, events in rows}

    def versions(self) -> list[tuple[str, int, str, int]]:
        """partition, LSN, id and version of all that was read, in the order of delivery."""
        return self._fetch("SELECT partition, lsn, id, version FROM versions ORDER BY arrived")

    def steps(self) -> list[Step]:
        """In the order of positions within each partition."""
        rows = self._fetch(
            'SELECT pipeline, partition, epoch, owner, "from", "to" FROM leasehold_history'
            ' ORDER BY pipeline, partition, trim(both \'"\' from "to")::bigint'
        )
        return [Step(*row) for row in rows]

    def _fetch(self, query: str) -> list[Any]:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            try:
                return connection.execute(query.encode()).fetchall()
            except psycopg.errors.UndefinedTable:
                return []

    def close(self) -> None:
        self._closing.set()
        for host in self._hosts:
            host.end()
        self._threads.shutdown(cancel_futures=True)


def spread(count: int) -> list[str]:
    """Accounts whose transactions lie in the first, the second ... of so many equal parts of the container."""
    key = {"paths": ["/account"], "kind": "Hash", "version": 2}
    places = {name: epk_of([name], key) for name in map("account-{}".format, range(50 * count))}
    return [next(name for name, epk in places.items() if part.span.holds(epk)) for part in evenly(count)]


def made(account: Cosmos, database: str) -> DatabaseProxy:
    """With a client that is patient enough for storms."""
    client = CosmosClient(account.endpoint, account.key, retry_total=1000, retry_backoff_max=600)
    return client.create_database(database)


def _is_even(shares: Counter[str | None], names: tuple[str, ...]) -> bool:
    counts = [shares[name] for name in names]
    return sum(counts) == shares.total() and max(counts) - min(counts) <= 1
