"""Leases in a Cosmos DB container, as the .NET change feed processor keeps them.

`store` maps ids to documents, and `documents` converts them (pure). `container` makes the calls. `connection` opens the
connection for them, and translates the SDK's errors.
"""

from leasehold.leases.stores.cosmos.connection import CosmosContainerAddress
from leasehold.leases.stores.cosmos.container import LeaseContainer
from leasehold.leases.stores.cosmos.store import CosmosStore, Monitored

__all__ = ["LeaseContainer", "CosmosStore", "Monitored", "CosmosContainerAddress"]
