"""An account on disk: each change becomes a row of its journal, and at the start the rows become the account again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from leasehold_emulators.cosmos.container import Change, Container, Key
from leasehold_emulators.journal import Row

if TYPE_CHECKING:
    from leasehold_emulators.cosmos.account import Account


def restore(account: Account, rows: Iterable[Row]) -> None:
    """Repeat the changes in their order, with the functions that made them."""
    containers: dict[str, Container] = {}
    for row in rows:
        fields = row.fields
        match row.kind:
            case "database":
                account.put_database(**fields)
            case "database.delete":
                account.delete_database(fields["id"])
            case "container":
                database = account.database(fields["database"])
                made = account.put_container(database, fields["rid"], fields["definition"], fields["ranges"])
                containers[made.rid] = made
            case "container.delete":
                account.delete_container(account.database(fields["database"]), fields["rid"])
            case "account":
                account.consistency, account.ranges_of = fields["consistency"], fields["ranges_of"]
            case _:
                _change(containers[row.owner], row)


def _change(container: Container, row: Row) -> None:
    fields = row.fields
    match row.kind:
        case "definition":
            container.define(fields["definition"])
        case "images":
            container.give_images(fields["previous"])
        case "split":
            container.split(fields["range"], fields["at"])
        case "merge":
            container.merge(fields["left"], fields["right"])
        case "changes":
            for change in fields["changes"]:
                _commit(container, change)


def _commit(container: Container, fields: dict[str, Any]) -> None:
    partition = container.partition_of(fields["epk"])
    previous = partition.documents[Key(*fields["was"])] if fields["was"] else None
    body = fields["body"]
    change = Change(
        lsn=fields["lsn"],
        key=Key(*fields["key"]),
        epk=fields["epk"],
        operation="delete" if body is None else "replace" if previous else "create",
        ts=fields["ts"],
        number=fields["number"],
        body=body,
        previous=previous,
        is_expired=fields["expired"],
    )
    container.documents_made = max(container.documents_made, change.number)
    container.commit(partition, [change])
