"""The account: its databases and containers by name or resource id, its properties, and settings from the control port."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Any

from leasehold_emulators.cosmos import rids
from leasehold_emulators.cosmos.container import Container, checked_definition
from leasehold_emulators.cosmos.refused import CONTAINER_RID_MISMATCH, OWNER_NOT_FOUND, Refused, bad, missing
from leasehold_emulators.journal import Journal


@dataclass(slots=True)
class Database:
    id: str
    rid: str
    number: int
    ts: float
    etag: str
    containers: dict[str, Container] = field(default_factory=dict)
    containers_made: int = 0

    @property
    def properties(self) -> dict[str, Any]:
        own = {"id": self.id, "_rid": self.rid, "_self": f"dbs/{self.rid}/", "_etag": self.etag}
        return {**own, "_colls": "colls/", "_users": "users/", "_ts": int(self.ts)}


class Account:
    """ranges: how many a new container has, unless `ranges_of` has the container's name."""

    def __init__(self, ranges: int = 1, journal: Journal | None = None) -> None:
        self.ranges = ranges
        self.journal = journal or Journal()
        self.ranges_of: dict[str, int] = {}
        self.consistency = "Session"
        self.databases: dict[str, Database] = {}
        self._made = 0

    # --- databases --------------------------------------------------------------------------------------------------

    def database(self, name: str, substatus: int = 0) -> Database:
        for database in self.databases.values():
            if name in (database.id, database.rid):
                return database
        raise missing(f"database {name!r}", substatus)

    def create_database(self, id: Any, now: float) -> Database:
        if not isinstance(id, str) or not id:
            raise bad("A database has an id.")
        if id in self.databases:
            raise Refused(409, f"Entity with the specified id already exists in the system: database {id!r}")
        return self.put_database(id, now, f'"{uuid.uuid4()}"')

    def put_database(self, id: str, ts: float, etag: str) -> Database:
        self._made += 1
        made = Database(id, rids.database_rid(self._made), self._made, ts, etag)
        self.databases[id] = made
        self.journal.add("", "database", {"id": id, "ts": ts, "etag": etag})
        return made

    def delete_database(self, name: str) -> None:
        database = self.databases.pop(self.database(name).id)
        for container in list(database.containers.values()):
            self.journal.forget(container.rid)
        self.journal.add("", "database.delete", {"id": database.id})

    # --- containers -------------------------------------------------------------------------------------------------

    def container(self, database: str, name: str, substatus: int = 0) -> Container:
        for container in self.database(database, substatus).containers.values():
            if name in (container.id, container.rid):
                return container
        raise missing(f"container {name!r}", substatus)

    def owner(self, database: str, name: str, intended_rid: str | None) -> Container:
        """The container whose documents or ranges a request names."""
        container = self.container(database, name, OWNER_NOT_FOUND)
        if intended_rid and intended_rid != container.rid:
            raise bad("The container is not the one that the client knows.", CONTAINER_RID_MISMATCH)
        return container

    def create_container(self, database: Database, definition: dict[str, Any], now: float) -> Container:
        definition = checked_definition(definition)
        if definition["id"] in database.containers:
            message = f"Entity with the specified id already exists in the system: container {definition['id']!r}"
            raise Refused(409, message)
        rid = rids.container_rid(database.number, database.containers_made + 1)
        definition |= self._stamp(database, rid, now)
        return self.put_container(database, rid, definition, self.ranges_of.get(definition["id"], self.ranges))

    def put_container(self, database: Database, rid: str, definition: dict[str, Any], ranges: int) -> Container:
        database.containers_made += 1
        made = Container(rid, definition, ranges, self.journal)
        database.containers[made.id] = made
        fields = {"database": database.id, "rid": rid, "definition": definition, "ranges": ranges}
        self.journal.add("", "container", fields)
        return made

    def replace_container(self, database: Database, name: str, definition: dict[str, Any], now: float) -> Container:
        container = self.container(database.id, name)
        definition = checked_definition(definition)
        if definition["partitionKey"] != container.definition["partitionKey"] or definition["id"] != container.id:
            raise bad("A container keeps its id and partition key.")
        container.define(definition | self._stamp(database, container.rid, now))
        return container

    def delete_container(self, database: Database, name: str) -> None:
        container = database.containers.pop(self.container(database.id, name).id)
        self.journal.forget(container.rid)
        self.journal.add("", "container.delete", {"database": database.id, "rid": container.rid})

    def keep_settings(self) -> None:
        """Keep the settings from the control port that outlive a restart."""
        self.journal.put("", "account", {"consistency": self.consistency, "ranges_of": self.ranges_of})

    def _stamp(self, database: Database, rid: str, now: float) -> dict[str, Any]:
        link = f"dbs/{database.rid}/colls/{rid}/"
        own = {"_rid": rid, "_self": link, "_etag": f'"{uuid.uuid4()}"', "_ts": int(now)}
        return {
            **own,
            "_docs": "docs/",
            "_sprocs": "sprocs/",
            "_triggers": "triggers/",
            "_udfs": "udfs/",
            "_conflicts": "conflicts/",
        }


def account_properties(endpoint: str, consistency: str) -> dict[str, Any]:
    location = {"name": "Here", "databaseAccountEndpoint": endpoint}
    return {
        "_self": "",
        "id": "wire",
        "_rid": "wire.documents.local",
        "media": "//media/",
        "addresses": "//addresses/",
        "_dbs": "//dbs/",
        "writableLocations": [location],
        "readableLocations": [location],
        "enableMultipleWriteLocations": False,
        "continuousBackupEnabled": True,
        "enablePerPartitionFailoverBehavior": False,
        "userReplicationPolicy": {"asyncReplication": False, "minReplicaSetSize": 3, "maxReplicasetSize": 4},
        "userConsistencyPolicy": {"defaultConsistencyLevel": consistency},
        "systemReplicationPolicy": {"minReplicaSetSize": 3, "maxReplicasetSize": 4},
        "readPolicy": {"primaryReadCoefficient": 1, "secondaryReadCoefficient": 1},
        "queryEngineConfiguration": QUERY_ENGINE,
    }


QUERY_ENGINE = (
    '{"maxSqlQueryInputLength":262144,"maxJoinsPerSqlQuery":5,"maxLogicalAndPerSqlQuery":500,'
    '"maxLogicalOrPerSqlQuery":500,"maxUdfRefPerSqlQuery":10,"maxInExpressionItemsCount":16000,'
    '"queryMaxInMemorySortDocumentCount":500,"maxQueryRequestTimeoutFraction":0.9,"sqlAllowNonFiniteNumbers":false,'
    '"sqlAllowAggregateFunctions":true,"sqlAllowSubQuery":true,"sqlAllowScalarSubQuery":true,"allowNewKeywords":true,'
    '"sqlAllowLike":true,"sqlAllowGroupByClause":true,"maxSpatialQueryCells":12,"spatialMaxGeometryPointCount":256,'
    '"sqlDisableOptimizationFlags":0,"sqlDisableQueryILOptimization":false,"sqlDisableFilterPlanOptimization":false,'
    '"clientDisableOptimisticDirectExecution":true,"queryEnableFullText":false}'
)
