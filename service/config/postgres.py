"""PostgreSQL: as a sink, for dead letters, and for leases."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal

from pydantic import Field, SecretStr, model_validator

from leasehold.common.azure import Identity
from leasehold.common.dsn import check_table, read_dsn, read_dsn_without_password
from leasehold.service.config.azure import WithCredential
from leasehold.service.config.leases import Feeds, LeaseSettings
from leasehold.service.config.messages import install_command
from leasehold.service.config.section import LettersSettings, SinkSettings
from leasehold.service.config.types import NONE, Connections, Dsn, DsnOrNone, Text, Variable

if TYPE_CHECKING:
    import pyarrow as pa

    from leasehold.leases.store import LeaseStore
    from leasehold.leases.timing import Timing
    from leasehold.pipeline.connectors.postgres import Timeouts
    from leasehold.pipeline.dead_letters import LetterBox
    from leasehold.pipeline.sink import Sink

POSTGRES_IDENTITY = (
    "Instead of a password in `dsn`, for Azure Database for PostgreSQL: `default` for the identity that azure-identity"
    " finds, or the client id of a managed identity. It needs a role in the database, which `dsn` names as its"
    " user."
)


def check_driver() -> None:
    """Raises ValueError if the driver of PostgreSQL finds no libpq."""
    if any(find_spec(name) for name in ("psycopg_binary", "psycopg_c")):
        return  # these include libpq, and an import takes a while
    try:
        import leasehold.common.postgres  # noqa: F401
    except ImportError as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise ValueError(
            f"type `postgres` needs PostgreSQL's library libpq, which psycopg does not find ({reason}):"
            f" install the package libpq5 of Debian, or {install_command('binary')}"
        ) from None


def check_postgres_identity(dsn: SecretStr, identity: Identity | None) -> None:
    """Raises ValueError if `dsn` does not fit an identity."""
    if identity is not None:
        read_dsn_without_password(dsn.get_secret_value())


class PostgresSink(WithCredential, SinkSettings):
    """A table, or a merge of your own, in PostgreSQL. Output and position are committed in one transaction: exactly once."""

    type: Literal["postgres"] = Field(
        default="postgres", description="PostgreSQL, exactly once: output and position in one transaction."
    )
    dsn: Dsn = Field(description="How to connect: a postgresql:// address or key=value pairs.")
    identity: Text | None = Field(default=None, description=POSTGRES_IDENTITY)
    setup: Text | None = Field(
        default=None, description="SQL to run when the host starts. It has to be repeatable (IF NOT EXISTS)."
    )
    merge: Text | None = Field(
        default=None,
        description="One INSERT, UPDATE, DELETE or MERGE that reads this batch's output as table `batch`. Touch rows in the order"
        " of their keys (ORDER BY). Either this or `table`.",
    )
    table: Text | None = Field(default=None, description="A table with the output's columns, `name` or `schema.name`.")
    mode: Literal["append", "upsert"] = Field(
        default="append", description="What `table` gets: new rows, or rows replaced by their `key`."
    )
    key: tuple[Text, ...] = Field(
        default=(), description="The columns of a unique index of `table`, for `mode: upsert`."
    )
    schema_name: Text = Field(
        default="public", alias="schema", description="The schema of the tables of positions, which are created there."
    )
    history: bool = Field(
        default=False,
        description="Whether every batch is noted in `leasehold_history`. Leasehold never deletes from it.",
    )
    connections_max: Connections = Field(
        default=4, description="How many connections this host opens for this sink at most."
    )
    executors_env: Variable | None = Field(
        default=None,
        description="With `executors_read`: the environment variable, on hosts and executors, with the DSN that executors use to"
        " stage large output. Without it, all output goes through the host.",
    )

    @model_validator(mode="after")
    def _has_one_target(self) -> PostgresSink:
        check_driver()
        if (self.merge is None) == (self.table is None):
            raise ValueError("needs either `merge` or `table`: give one of them")
        if self.merge is not None and (self.key or "mode" in self.model_fields_set):
            raise ValueError("`mode` and `key` require `table`, and `merge` replaces both: remove them")
        if (self.mode == "upsert") != bool(self.key):
            raise ValueError("`mode: upsert` and `key` go together: give both, or neither")
        check_postgres_identity(self.dsn, self.identity_or(self.identity))
        return self

    def make(self, timing: Timing, *, letters: bool = False) -> Sink:
        from leasehold.pipeline.connectors.postgres import Connections, PostgresOutputSink, Tables

        return PostgresOutputSink(
            self.dsn.get_secret_value(),
            merge=self.merge,
            table=self.table,
            key=self.key,
            setup=self.setup,
            tables=Tables(self.schema_name, self.history, letters),
            connections=Connections(
                max=self.connections_max, timeouts=_timeouts_within(timing), identity=self.identity_or(self.identity)
            ),
            executors_env=self.executors_env,
        )

    def check_output(self, table: pa.Table) -> None:
        from leasehold.pipeline.connectors.postgres.copy import check_key, load

        check_key(table.column_names, self.key)
        load(table)


class PostgresLetters(WithCredential, LettersSettings):
    """Dead letters in a table of PostgreSQL."""

    type: Literal["postgres"] = Field(
        default="postgres",
        description="The table `leasehold_dead_letters`. In the sink's own database, it is written in the batch's transaction.",
    )
    dsn: DsnOrNone = Field(default=NONE, description="The database. By default that of the sink `postgres`.")
    identity: Text | None = Field(default=None, description=POSTGRES_IDENTITY)
    schema_name: Text | None = Field(
        default=None,
        alias="schema",
        description="The schema of the table, which is created there. By default the sink's, or public.",
    )

    @model_validator(mode="after")
    def _is_one_place(self) -> PostgresLetters:
        check_driver()
        if self.schema_name is not None and self.dsn is None:
            raise ValueError("`schema` requires `dsn`: in the sink's database, letters use the sink's schema")
        if self.identity is not None and self.dsn is None:
            raise ValueError("`identity` requires `dsn`: in the sink's database, letters use the sink's")
        if self.dsn is not None:
            check_postgres_identity(self.dsn, self.identity_or(self.identity))
        return self

    def make_box(self, pipeline: str, sink: SinkSettings, timing: Timing) -> LetterBox:
        from leasehold.pipeline.connectors.postgres import (
            Connections,
            PostgresLettersFeed,
            PostgresOutputSink,
            Tables,
            letters_merge,
            storable,
        )
        from leasehold.pipeline.dead_letters import LetterBox

        place = sink if self.dsn is None else self
        assert isinstance(place, PostgresSink | PostgresLetters), "the settings see to it"
        assert place.dsn is not None
        dsn, schema = place.dsn.get_secret_value(), place.schema_name or "public"
        connections = Connections(timeouts=_timeouts_within(timing), identity=place.identity_or(place.identity))
        feed = PostgresLettersFeed(dsn, pipeline, schema=schema, connections=connections)
        if self.dsn is None:
            return LetterBox(feed=feed)
        merge = letters_merge(schema)
        own = PostgresOutputSink(dsn, merge=merge, tables=Tables(schema, keeps_letters=True), connections=connections)
        return LetterBox(feed=feed, sink=own, rows=storable)


class PostgresLeases(WithCredential, LeaseSettings):
    """Leases in a table of PostgreSQL, for hosts anywhere."""

    type: Literal["postgres"] = Field(default="postgres", description="A table in PostgreSQL, for hosts anywhere.")
    dsn: Dsn = Field(description="How to connect: a postgresql:// address or key=value pairs.")
    identity: Text | None = Field(default=None, description=POSTGRES_IDENTITY)
    schema_name: Text = Field(default="public", alias="schema", description="The schema of the table.")
    table: Text = Field(
        default="leasehold_leases",
        description="The table, which holds the leases of one group of hosts. It is created if missing and permitted.",
    )
    connections_max: Connections = Field(
        default=4,
        ge=2,
        description="How many connections this host opens for leases at most; one of them is kept free for heartbeats.",
    )

    listen_dsn: DsnOrNone = Field(
        default=NONE,
        description="The server itself, for notifications, if `dsn` leads to a pooler in transaction mode. By default `dsn`.",
    )

    @model_validator(mode="after")
    def _reaches_it(self) -> PostgresLeases:
        check_driver()
        for dsn in (self.dsn, self.listen_dsn):
            if dsn is not None:
                check_postgres_identity(dsn, self.identity_or(self.identity))
        check_table(self.schema_name, self.table)
        return self

    @property
    def place(self) -> str:
        from leasehold.common.postgres import address_of  # its driver takes a while to import

        address = address_of(read_dsn(self.dsn.get_secret_value()))
        return f"the table '{self.schema_name}.{self.table}' in PostgreSQL {address}"

    def make(self, feeds: Feeds, *, creates: bool) -> LeaseStore:
        from leasehold.leases.stores.postgres import LeaseTable, PostgresAddress, PostgresStore

        address = PostgresAddress(
            dsn=self.dsn.get_secret_value(),
            table=LeaseTable(self.schema_name, self.table),
            identity=self.identity_or(self.identity),
            connections_max=self.connections_max,
            creates=creates,
            listen_dsn=None if self.listen_dsn is None else self.listen_dsn.get_secret_value(),
        )
        return PostgresStore(address, call_timeout_s=self.timing.call_timeout_s)


def _timeouts_within(timing: Timing) -> Timeouts:
    """The usual timeouts, shortened in proportion if hosts wait less than 60 s for a live owner (`patience_s`)."""
    from leasehold.pipeline.connectors.postgres import Timeouts

    usual = Timeouts()
    shrink = min(1.0, timing.patience_s / 60)
    return Timeouts(**{name: getattr(usual, name) * shrink for name in Timeouts.__dataclass_fields__})
