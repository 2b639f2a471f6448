"""PostgreSQL (14 or later) as a sink: output and position in one transaction, so that every event counts exactly once.

It needs sessions: a pooler between here and the server has to work in session mode, because output is staged in a temporary
table. A host that dies or stops never keeps another partition waiting. A transaction that has been sent continues at the
server until it commits or times out; the epoch in the position's row decides whether it still counts.
"""

from leasehold.pipeline.connectors.postgres.dead_letters import PostgresLettersFeed
from leasehold.pipeline.connectors.postgres.dead_letters_sql import letters_merge, storable
from leasehold.pipeline.connectors.postgres.session import Connections, Timeouts
from leasehold.pipeline.connectors.postgres.sink import PostgresOutputSink
from leasehold.pipeline.connectors.postgres.sql import Tables

__all__ = [
    "Connections",
    "PostgresLettersFeed",
    "PostgresOutputSink",
    "Tables",
    "Timeouts",
    "letters_merge",
    "storable",
]
