"""The SQL texts, pure: what is sent to the server, never when.

Everything that has to happen together travels as one simple-protocol message. The server reads a message to its end before it
executes the first statement. So a client that is stopped, killed or cut off at any moment never leaves a lock that it alone
could release. (Drivers' pipeline modes send statement by statement: a client stopped between two of them keeps its locks.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from psycopg.sql import SQL, Composed, Identifier, Literal

from pipeline.sink import Claim

Statement = SQL | Composed
BATCH = Identifier("batch")
STAGED = Identifier("pg_temp", "batch")
BEGIN = SQL("BEGIN ISOLATION LEVEL READ COMMITTED")
COMMIT = SQL("COMMIT")
ROLLBACK = SQL("ROLLBACK")
POSITIONS, HISTORY, LETTERS = "leasehold_positions", "leasehold_history", "leasehold_dead_letters"
GUARD = "leasehold_guard"
"""In the message of the error that a guard raises. SQL alone cannot raise; a cast of this text to a number can."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table `batch`; `type` is PostgreSQL's name for it."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of positions and, if wanted, of their history and dead letters."""

    schema: str
    history: bool = False
    keeps_letters: bool = False

    @property
    def positions(self) -> Identifier:
        return Identifier(self.schema, POSITIONS)

    @property
    def batches(self) -> Identifier:
        return Identifier(self.schema, HISTORY)

    @property
    def letters(self) -> Identifier:
        return Identifier(self.schema, LETTERS)


def users(text: str) -> SQL:
    """SQL that a user wrote, as it is."""
    return SQL(text)


def one_message(*statements: Statement) -> Composed:
    """On lines of their own, so that a comment at the end of a user's SQL swallows nothing."""
    return SQL("\n;\n").join(statements)


# Preparing


def alone(*statements: Statement) -> Composed:
    """One transaction, alone under a lock. If it fails, the lock ends with the session.

    The lock has a transaction of its own: one that had waited would still believe what it knew of the catalog before.
    """
    lock = SQL("SELECT pg_advisory_lock({})").format(_lock("setup"))
    unlock = SQL("SELECT pg_advisory_unlock({})").format(_lock("setup"))
    return one_message(BEGIN, lock, COMMIT, BEGIN, *statements, COMMIT, unlock)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Something that has to exist. exists: an expression for that; creation: what creates it."""

    exists: Statement
    creation: Statement


def wanted(tables: Tables) -> list[Wanted]:
    schema = Wanted(
        SQL("to_regnamespace(quote_ident({})) IS NOT NULL").format(Literal(tables.schema)),
        SQL("CREATE SCHEMA IF NOT EXISTS {}").format(Identifier(tables.schema)),
    )
    positions = Wanted(_table_exists(tables.schema, POSITIONS), _created_positions(tables))
    history = Wanted(_table_exists(tables.schema, HISTORY), _created_history(tables))
    letters = Wanted(_table_exists(tables.schema, LETTERS), _created_letters(tables))
    others = [(history, tables.history), (letters, tables.keeps_letters)]
    return [schema, positions, *(each for each, is_wanted in others if is_wanted)]


def existing(wanted: Iterable[Wanted]) -> Composed:
    """One row, one boolean for each."""
    return SQL("SELECT {}").format(SQL(", ").join(each.exists for each in wanted))


def checked(merge: Statement) -> Composed:
    """Parses `merge`. Sent by the extended protocol it also refuses whatever is not exactly one statement about rows."""
    return SQL("PREPARE leasehold_check AS {}").format(merge)


def unchecked() -> SQL:
    return SQL("DEALLOCATE leasehold_check")


def _table_exists(schema: str, name: str) -> Composed:
    return SQL("to_regclass(format('%I.%I', {}::text, {}::text)) IS NOT NULL").format(Literal(schema), Literal(name))


def _created_positions(tables: Tables) -> Composed:
    return SQL(
        """CREATE TABLE IF NOT EXISTS {} (
            pipeline text NOT NULL, partition text NOT NULL, generation bigint NOT NULL,
            epoch bigint NOT NULL, owner text NOT NULL, position text,
            state text NOT NULL CHECK (state IN ('open', 'closed')), updated_at timestamptz NOT NULL,
            PRIMARY KEY (pipeline, partition, generation)
        ) WITH (fillfactor = 50)"""  # every batch updates its row: with room on the page, the index need not be touched
    ).format(tables.positions)


def _created_history(tables: Tables) -> Composed:
    return SQL(
        """CREATE TABLE IF NOT EXISTS {} (
            pipeline text NOT NULL, partition text NOT NULL, generation bigint NOT NULL,
            epoch bigint NOT NULL, owner text NOT NULL, "from" text, "to" text NOT NULL,
            events bigint NOT NULL, committed_at timestamptz NOT NULL
        )"""
    ).format(tables.batches)


def _created_letters(tables: Tables) -> Composed:
    return SQL(
        """CREATE TABLE IF NOT EXISTS {} (
            id bigint GENERATED ALWAYS AS IDENTITY, pipeline text NOT NULL, partition text NOT NULL, sequence bigint NOT NULL,
            error text NOT NULL, attempts integer NOT NULL, host text NOT NULL, failed_at timestamptz NOT NULL,
            body bytea, envelope text NOT NULL, PRIMARY KEY (pipeline, partition, id)
        )"""
    ).format(tables.letters)


# Claiming


def claimed(tables: Tables, claim: Claim, *, is_known: bool) -> Composed:
    """Fences older epochs and generations, and answers three times: the lock; the position, no row where refused; the newest row.

    is_known: the row was there before, so that only what is there is claimed.
    The lock is for an older generation's first claim coming at the same time: neither would see the other's row.
    """
    ours = SQL("{} AND generation = {}").format(_of_partition(claim), Literal(claim.generation))
    return one_message(
        BEGIN,
        SQL("SELECT pg_advisory_xact_lock({})").format(_lock(f"{tables.schema}/{claim.pipeline}/{claim.partition}")),
        SQL(
            "UPDATE {} SET state = 'closed', updated_at = now() WHERE {} AND generation < {} AND state = 'open'"
        ).format(tables.positions, _of_partition(claim), Literal(claim.generation)),
        SQL(
            """INSERT INTO {table} AS known (pipeline, partition, generation, epoch, owner, position, state, updated_at)
            SELECT {pipeline}, {partition}, {generation}, {epoch}, {owner}, {position}, 'open', now()
            WHERE NOT EXISTS (SELECT FROM {table} WHERE {of_partition} AND generation > {generation})
            AND (NOT {is_known} OR EXISTS (SELECT FROM {table} WHERE {ours}))
            ON CONFLICT (pipeline, partition, generation) DO UPDATE
            SET epoch = excluded.epoch, owner = excluded.owner, updated_at = excluded.updated_at
            WHERE known.epoch <= excluded.epoch
            RETURNING position"""
        ).format(
            table=tables.positions,
            pipeline=Literal(claim.pipeline),
            partition=Literal(claim.partition),
            generation=Literal(claim.generation),
            epoch=Literal(claim.epoch),
            owner=Literal(claim.owner),
            position=Literal(claim.continuation),
            of_partition=_of_partition(claim),
            is_known=Literal(is_known),
            ours=ours,
        ),
        newest(tables, claim),
        COMMIT,
    )


def newest(tables: Tables, claim: Claim) -> Composed:
    """generation, epoch, owner, position, state of the partition's newest generation."""
    return SQL(
        "SELECT generation, epoch, owner, position, state FROM {} WHERE {} ORDER BY generation DESC LIMIT 1"
    ).format(tables.positions, _of_partition(claim))


def has_positions(tables: Tables) -> Composed:
    return SQL("SELECT {}").format(_table_exists(tables.schema, POSITIONS))


def standing(tables: Tables, pipeline: str, partition: str) -> Composed:
    """generation, position of the partition's newest generation."""
    return SQL(
        "SELECT generation, position FROM {} WHERE pipeline = {} AND partition = {} ORDER BY generation DESC LIMIT 1"
    ).format(tables.positions, Literal(pipeline), Literal(partition))


# Writing


def staged(columns: Iterable[Column]) -> Composed:
    """The table `batch`, one per session; emptied by every COMMIT and ROLLBACK."""
    definitions = SQL(", ").join(SQL("{} {}").format(Identifier(c.name), SQL(c.type)) for c in columns)
    return one_message(
        SQL("DROP TABLE IF EXISTS {}").format(STAGED),
        SQL("CREATE TEMPORARY TABLE {} ({}) ON COMMIT DELETE ROWS").format(BATCH, definitions),
    )


def loaded(columns: Iterable[Column], table: Identifier) -> Composed:
    return SQL("COPY {} ({}) FROM STDIN (FORMAT csv, ENCODING 'UTF8')").format(table, _names(columns))


def filled(columns: Iterable[Column], rows: Iterable[Iterable[str | None]]) -> Composed:
    """As `loaded`, into `batch`. The texts have no type, so each is read as its column's, as COPY reads it."""
    values = (SQL("({})").format(SQL(", ").join(map(Literal, row))) for row in rows)
    return SQL("INSERT INTO {} ({}) VALUES {}").format(STAGED, _names(columns), SQL(", ").join(values))


def takes_copies(table: Identifier, columns: Sequence[Column]) -> Composed:
    """One boolean: whether a COPY into the table means what an INSERT from `batch` means, and no other writer waits for COMMIT.

    It needs columns of just these types. Rules and row-level security do not apply to COPY, which also writes an identity column
    that is GENERATED ALWAYS. With a unique index, a foreign key or a trigger, an uncommitted row may hold up other writers for as
    long as its client stands still.
    """
    wanted = SQL(", ").join(SQL("({}, {}::regtype)").format(Literal(c.name), Literal(c.type)) for c in columns)
    return SQL(
        """SELECT EXISTS (
            SELECT FROM pg_class t WHERE t.oid = to_regclass({table}) AND t.relkind = 'r'
            AND NOT (t.relhasrules OR t.relhastriggers OR row_security_active(t.oid))
            AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = t.oid AND (i.indisunique OR i.indisexclusion))
            AND {count} = (
                SELECT count(*) FROM pg_attribute a JOIN (VALUES {wanted}) AS w (name, type)
                ON a.attname = w.name AND a.atttypid = w.type
                WHERE a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
                AND a.attidentity <> 'a'))"""
    ).format(table=Literal(table.as_string(None)), count=Literal(len(columns)), wanted=wanted)


def moved(tables: Tables, claim: Claim, start: str | None, to: str) -> Composed:
    """Moves the position from `start` to `to`, or raises GUARD: a later epoch, a later generation, an end, or another move."""
    return _guarded(
        SQL(
            "UPDATE {} SET position = {}, updated_at = now() WHERE {} AND position IS NOT DISTINCT FROM {} AND state = 'open'"
        ).format(tables.positions, Literal(to), _of_tenure(claim), Literal(start))
    )


def ended(tables: Tables, claim: Claim, position: str | None) -> Composed:
    """Closes the partition for good at `position`, or raises GUARD. It may be closed already."""
    return _guarded(
        SQL("UPDATE {} SET state = 'closed', updated_at = now() WHERE {} AND position IS NOT DISTINCT FROM {}").format(
            tables.positions, _of_tenure(claim), Literal(position)
        )
    )


def remembered(tables: Tables, claim: Claim, start: str | None, to: str, events: int) -> Composed:
    values = (claim.pipeline, claim.partition, claim.generation, claim.epoch, claim.owner, start, to, events)
    return SQL(
        """INSERT INTO {} (pipeline, partition, generation, epoch, owner, "from", "to", events, committed_at)
        VALUES ({}, now())"""
    ).format(tables.batches, SQL(", ").join(map(Literal, values)))


def appended(table: Identifier, columns: Iterable[Column]) -> Composed:
    names = _names(columns)
    return SQL("INSERT INTO {} ({}) SELECT {} FROM {}").format(table, names, names, BATCH)


def upserted(table: Identifier, columns: Sequence[Column], key: Sequence[str]) -> Composed:
    """In key order: partitions that touch the same rows then lock them in the same order, and do not deadlock."""
    keys = SQL(", ").join(map(Identifier, key))
    others = [Identifier(c.name) for c in columns if c.name not in key]
    if others:
        action: Statement = SQL("UPDATE SET ") + SQL(", ").join(SQL("{0} = excluded.{0}").format(o) for o in others)
    else:
        action = SQL("NOTHING")
    return SQL("{} ORDER BY {} ON CONFLICT ({}) DO {}").format(appended(table, columns), keys, keys, action)


def _guarded(update: Statement) -> Composed:
    return SQL(
        """WITH moved AS ({} RETURNING 1)
        SELECT CASE count(*) WHEN 1 THEN 1 ELSE ({} || count(*))::integer END FROM moved"""
    ).format(update, Literal(f"{GUARD}: rows moved: "))


def _lock(name: str) -> Composed:
    return SQL("hashtextextended({}, 0)").format(Literal(f"leasehold {name}"))


def _of_partition(claim: Claim) -> Composed:
    return SQL("pipeline = {} AND partition = {}").format(Literal(claim.pipeline), Literal(claim.partition))


def _of_tenure(claim: Claim) -> Composed:
    return SQL("{} AND generation = {} AND epoch = {}").format(
        _of_partition(claim), Literal(claim.generation), Literal(claim.epoch)
    )


def _names(columns: Iterable[Column]) -> Composed:
    return SQL(", ").join(Identifier(c.name) for c in columns)
