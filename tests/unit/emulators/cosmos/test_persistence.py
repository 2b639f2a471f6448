"""An account that is read from its journal is the account that wrote it: documents, LSNs, ranges and the change feed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from leasehold_emulators.cosmos.account import Account
from leasehold_emulators.cosmos.container import Container
from leasehold_emulators.cosmos.persistence import restore
from leasehold_emulators.cosmos.refused import Refused
from leasehold_emulators.cosmos.writes import Draft, Write, apply
from leasehold_emulators.journal import Journal

DEFINITION = {"id": "tx", "partitionKey": {"paths": ["/key"], "kind": "Hash", "version": 2}, "defaultTtl": -1}
ACTIONS = st.one_of(
    st.tuples(st.just("write"), st.sampled_from(["Create", "Upsert", "Replace", "Delete"]), st.integers(0, 5)),
    st.tuples(st.just("rename"), st.integers(0, 5), st.integers(0, 5)),
    st.tuples(st.just("batch"), st.integers(0, 5), st.integers(1, 3)),
    st.tuples(st.just("split"), st.integers(0, 5), st.none()),
    st.tuples(st.just("merge"), st.integers(0, 5), st.none()),
    st.tuples(st.just("expire"), st.integers(0, 60), st.none()),
)


def do(container: Container, action: tuple[str, Any, Any], now: float) -> None:
    name, first, second = action
    ranges = container.ranges
    match name:
        case "write":
            write(container, [(first, f"d{second}", f"d{second}")], f"k{second}", now)
        case "rename":
            write(container, [("Replace", f"d{first}", f"d{second}")], f"k{first}", now)
        case "batch":
            write(container, [("Upsert", f"b{n}", f"b{n}") for n in range(second)], f"k{first}", now)
        case "split":
            container.split(ranges[first % len(ranges)].id)
        case "merge" if len(ranges) > 1:
            left = first % (len(ranges) - 1)
            container.merge(ranges[left].id, ranges[left + 1].id)
        case "expire":
            container.expire(now + first)


def write(container: Container, operations: list[tuple[str, str, str]], key: str, now: float) -> None:
    draft = Draft(container, container.partition_of(container.epk([key])), now)
    try:
        for operation, old, new in operations:
            body = {"id": new, "key": key, "at": now, "ttl": 5 if new == "d1" else -1}
            apply(draft, Write(operation=operation, partition_key=[key], id=old, body=body))
    except Refused:
        return
    draft.commit()


def content(account: Account) -> Any:
    """Everything that a client can see, and what decides about the next write."""
    return {
        name: [
            (
                container.definition,
                container.images,
                container.version,
                container.documents_made,
                [
                    (
                        partition.range,
                        partition.lsn,
                        [flat(change) for change in partition.log],
                        sorted((key, change.lsn) for key, change in partition.documents.items()),
                    )
                    for partition in (container.partitions[one.id] for one in container.ranges)
                ],
            )
            for container in database.containers.values()
        ]
        for name, database in account.databases.items()
    }


def flat(change: Any) -> Any:
    previous = change.previous and (change.previous.key, change.previous.lsn)
    body = json.dumps(change.body)
    return (change.lsn, change.key, change.operation, change.ts, change.number, body, previous, change.is_expired)


@given(actions=st.lists(ACTIONS, max_size=25))
def test_a_restart_changes_nothing(tmp_path_factory: Any, actions: list[tuple[str, Any, Any]]) -> None:
    path = tmp_path_factory.mktemp("account") / "cosmos.db"
    account = Account(2, Journal(path))
    container = account.create_container(account.create_database("bank", 1.0), DEFINITION, 1.0)
    for i, action in enumerate(actions):
        do(container, action, 10.0 + i)
    account.journal.close()
    read = Account(2, Journal(path))
    restore(read, read.journal.replay())
    read.journal.close()
    assert content(read) == content(account)


def test_what_was_deleted_stays_deleted_and_its_resource_ids_are_not_used_again(tmp_path: Path) -> None:
    account = Account(1, Journal(tmp_path / "a.db"))
    database = account.create_database("bank", 1.0)
    account.create_database("other", 1.0)
    used = {account.create_container(database, DEFINITION, 1.0).rid}
    write(account.container("bank", "tx"), [("Create", "d", "d")], "k", 2.0)
    account.delete_container(database, "tx")
    used.add(account.create_container(database, DEFINITION, 3.0).rid)
    account.delete_database("other")
    account.journal.close()

    read = Account(1, Journal(tmp_path / "a.db"))
    restore(read, read.journal.replay())
    assert list(read.databases) == ["bank"]
    assert read.container("bank", "tx").partitions["0"].log == []
    read.delete_container(read.database("bank"), "tx")
    assert read.create_container(read.database("bank"), DEFINITION, 4.0).rid not in used
    assert read.create_database("third", 4.0).number == 3
    read.journal.close()


def test_orders_that_change_the_account_are_kept(tmp_path: Path) -> None:
    account = Account(1, Journal(tmp_path / "a.db"))
    container = account.create_container(account.create_database("bank", 1.0), DEFINITION, 1.0)
    container.give_images("all")
    account.replace_container(account.database("bank"), "tx", DEFINITION | {"defaultTtl": 60}, 2.0)
    account.consistency = "Strong"
    account.ranges_of["wide"] = 9
    account.keep_settings()
    account.journal.close()

    read = Account(1, Journal(tmp_path / "a.db"))
    restore(read, read.journal.replay())
    read.journal.close()
    found = read.container("bank", "tx")
    assert (found.images, found.definition["defaultTtl"]) == ("all", 60)
    assert (read.consistency, read.ranges_of) == ("Strong", {"wide": 9})
