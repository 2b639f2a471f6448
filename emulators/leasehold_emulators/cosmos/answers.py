"""Answers to requests for the account, databases, containers and ranges; documents have their own module."""

from __future__ import annotations

from typing import Any

from leasehold_emulators.cosmos import document_calls, rids
from leasehold_emulators.cosmos.account import Account, Database, account_properties
from leasehold_emulators.cosmos.call import Call, Reply, listed
from leasehold_emulators.cosmos.container import Container
from leasehold_emulators.cosmos.query_calls import plain_query
from leasehold_emulators.cosmos.ranges import Range
from leasehold_emulators.cosmos.refused import Refused, missing


def answer(account: Account, call: Call, now: float) -> Reply:
    """Raises Refused. When it returns, all changes are made."""
    match call.path:
        case ():
            return Reply(content=account_properties(call.endpoint, account.consistency))
        case ("dbs",):
            return _databases(account, call, now)
        case ("dbs", database):
            return _database(account, call, database)
        case ("dbs", database, "colls"):
            return _containers(account, call, account.database(database), now)
        case ("dbs", database, "colls", container):
            return _container(account, call, account.database(database), container, now)
        case ("dbs", database, "colls", container, "pkranges"):
            return _ranges(_owner(account, call, database, container), call)
        case ("dbs", database, "colls", container, "docs", *id):
            owner = _owner(account, call, database, container)
            owner.expire(now)
            reply = document_calls.answer(owner, call, id[0] if id else None, now)
            reply.headers |= {"x-ms-alt-content-path": f"dbs/{account.database(database).id}/colls/{owner.id}"}
            reply.headers |= {"x-ms-content-path": owner.rid}
            return reply
        case ("offers", *_):
            return Reply(content=listed("Offers", "", []))
    raise missing("/".join(call.path))


def _owner(account: Account, call: Call, database: str, container: str) -> Container:
    return account.owner(database, container, call.header("x-ms-cosmos-intended-collection-rid"))


def _databases(account: Account, call: Call, now: float) -> Reply:
    if call.kind == "database.create":
        made = account.create_database(call.json().get("id"), now)
        return Reply(status=201, content=made.properties, headers={"etag": made.etag})
    return plain_query(call, "Databases", "", [database.properties for database in account.databases.values()])


def _database(account: Account, call: Call, name: str) -> Reply:
    database = account.database(name)
    if call.method == "DELETE":
        account.delete_database(name)
        return Reply(status=204)
    _only(call, "GET")
    return Reply(content=database.properties, headers={"etag": database.etag})


def _containers(account: Account, call: Call, database: Database, now: float) -> Reply:
    if call.kind == "container.create":
        return _properties(account.create_container(database, call.json(), now), 201)
    found = [container.definition for container in database.containers.values()]
    return plain_query(call, "DocumentCollections", database.rid, found)


def _container(account: Account, call: Call, database: Database, name: str, now: float) -> Reply:
    if call.method == "DELETE":
        account.delete_container(database, name)
        return Reply(status=204)
    if call.method == "PUT":
        return _properties(account.replace_container(database, name, call.json(), now))
    _only(call, "GET")
    return _properties(account.container(database.id, name))


def _properties(container: Container, status: int = 200) -> Reply:
    return Reply(status=status, content=container.definition, headers={"etag": container.definition["_etag"]})


def _only(call: Call, method: str) -> None:
    if call.method != method:
        raise Refused(405, f"{call.method} is not allowed here.")


def _ranges(container: Container, call: Call) -> Reply:
    """The change feed of the ranges themselves: with an ETag, only the ranges made since then, which name their parents."""
    _only(call, "GET")
    etag = f'"{container.version}"'
    known = (call.header("if-none-match") or "").strip('"')
    if known.isdigit() and int(known) >= container.version:
        return Reply(status=304, headers={"etag": etag})
    since = int(known) if known.isdigit() else -1
    new = [_range(container, one) for one in container.ranges if one.since > since]
    return Reply(content=listed("PartitionKeyRanges", container.rid, new), headers={"etag": etag})


def _range(container: Container, range: Range) -> dict[str, Any]:
    rid = rids.range_rid(container.rid, int(range.id))
    return {
        "_rid": rid,
        "id": range.id,
        "_etag": f'"{container.rid}-{range.id}"',
        "minInclusive": range.span.min,
        "maxExclusive": range.span.max,
        "ridPrefix": int(range.id),
        "_self": f"{container.definition['_self']}pkranges/{rid}/",
        "throughputFraction": 1 / len(container.partitions),
        "status": "online",
        "parents": list(range.parents),
        "_ts": container.definition["_ts"],
        "_lsn": range.since,
    }
