"""The SQL texts, pure: what is sent to the server, never when.

Everything that has to happen together travels as one simple-protocol message. The server reads a message to its end before it
executes the first statement. So a client that is stopped, killed or cut off at any moment never leaves a lock that it alone
could release. (Drivers' pipeline modes send statement by statement: a client stopped between two of them keeps its locks.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from psycopg.sql import SQL, Composed, Identifier, Literal

from leasehold.pipeline.sink import Claim

Statement = SQL | Composed
Rows = Identifier | Composed
"""What a statement reads: a table, or a query with a name."""
BATCH = Identifier("pg_temp", "batch")
"""The temporary table of a batch, which a user's merge reads as `batch`."""
STAGED = Identifier("pg_temp", "leasehold_batch")
"""The same for our own statements: what the target's triggers call `batch` is never ours."""
BEGIN = SQL("BEGIN ISOLATION LEVEL READ COMMITTED")
COMMIT = SQL("COMMIT")
ROLLBACK = SQL("ROLLBACK")
POSITIONS, HISTORY, LETTERS = "leasehold_positions", "leasehold_history", "leasehold_dead_letters"
GUARD = "leasehold_guard"
"""Part of the message of the error that a guard raises. SQL alone cannot raise; a cast of this text to a number does."""


CHANGED = "leasehold_changed"
"""The same if the target is no longer what a statement was made for."""
LOSS = "leasehold_loss"
"""The same for a value that the type of its column in the target would change."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table of a batch; `type` is PostgreSQL's name for it.

    is_null: it has only nulls, which have no type. scale: the most digits that a numeric has after the point, if known.
    """

    name: str
    type: str
    is_null: bool = False
    scale: int | None = None


@dataclass(frozen=True, slots=True)
class Tables:
    """Our tables in a schema, which are created if absent: `leasehold_positions` and, if wanted, two more.

    - `history`: note every batch in `leasehold_history`, in the batch's transaction: pipeline, partition, generation,
      epoch, owner, from, to, events, committed_at. Only users delete there.
    - `keeps_letters`: keep dead letters in `leasehold_dead_letters`, written in their batch's transaction.
    """

    schema: str = "public"
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
    """One message. Semicolons are on lines of their own, so that a comment at the end of a user's SQL hides none."""
    return SQL("\n;\n").join(statements)


def alone(*statements: Statement) -> Composed:
    """One transaction under a lock that keeps other hosts out. If it fails, the lock ends with the session.

    The lock is taken in a transaction of its own: one that had waited for it would see the catalog as it was before.
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
    """One row, with one boolean for each."""
    return SQL("SELECT {}").format(SQL(", ").join(each.exists for each in wanted))


def resolved(name: Sequence[str]) -> Composed:
    """Schema and name of a table that a user has named; no row if there is none. Temporary tables do not count."""
    *schema, table = name
    path: Statement = SQL("{}::text[]").format(Literal(schema)) if schema else SQL("current_schemas(true)::text[]")
    return SQL(
        """SELECT n.nspname::text, t.relname::text FROM unnest({}) WITH ORDINALITY AS path (name, place)
        JOIN pg_namespace n ON n.nspname = path.name AND n.oid <> pg_my_temp_schema()
        JOIN pg_class t ON t.relnamespace = n.oid AND t.relname = {}::text::name AND t.relkind IN ('r', 'p', 'v', 'm', 'f')
        ORDER BY path.place LIMIT 1"""
    ).format(path, Literal(table))


def deferrable(table: Identifier, key: Sequence[str]) -> Composed:
    """The names of DEFERRABLE constraints on exactly these columns. No upsert can use them."""
    return SQL(
        """SELECT c.conname::text FROM pg_constraint c,
        LATERAL (SELECT array_agg(a.attname::text) AS names FROM pg_attribute a
            WHERE a.attrelid = c.conrelid AND a.attnum = ANY (c.conkey)) AS keyed
        WHERE c.conrelid = to_regclass({table}) AND c.contype IN ('p', 'u') AND c.condeferrable
        AND keyed.names @> {key}::text[] AND keyed.names <@ {key}::text[] ORDER BY 1"""
    ).format(table=Literal(table.as_string(None)), key=Literal(list(key)))


def hidden() -> Composed:
    """Begins a transaction in which `batch` can be looked up but not read, whatever tables have that name."""
    return one_message(BEGIN, unstaged(BATCH), SQL("CREATE TYPE {} AS ()").format(BATCH))


def is_batch_ours() -> SQL:
    """One boolean: whether `batch` is the temporary table, whatever others create. pg_temp is first unless the path names it."""
    return SQL(
        """SELECT path ~* '^[[:space:]]*"?pg_temp"?[[:space:]]*(,|$)' OR path !~* ',[[:space:]]*"?pg_temp'
        FROM current_setting('search_path') AS path"""
    )


def checked(merge: Statement) -> Composed:
    """Parses `merge`. Sent by the extended protocol, it also refuses anything but exactly one statement about rows."""
    return SQL("PREPARE leasehold_check AS {}").format(merge)


def unchecked() -> SQL:
    return SQL("DEALLOCATE leasehold_check")


def explained(statement: Statement) -> Composed:
    """Its plan. Send it by the extended protocol; otherwise a second statement in it would be run."""
    return SQL("EXPLAIN (VERBOSE, FORMAT JSON) {}").format(statement)


def weak(relations: Iterable[tuple[str, str]]) -> Composed:
    """Schema, name, kind and persistence of relations and partitions that may lose rows while the position stays."""
    return SQL(
        """SELECT pn.nspname::text, p.relname::text, p.relkind::text, p.relpersistence::text
        FROM ({}) AS p JOIN pg_namespace pn ON pn.oid = p.relnamespace
        WHERE p.relkind = 'f' OR p.relpersistence <> 'p' ORDER BY 1, 2"""
    ).format(_with_partitions(relations))


def state(relations: Iterable[tuple[str, str]]) -> Composed:
    """One number, which changes if relations or their partitions get another kind or persistence, rules, or views."""
    return SQL(
        """SELECT hashtextextended(coalesce(string_agg(concat(p.oid, p.relkind, p.relpersistence, p.relhasrules, (
            SELECT string_agg(concat(d.objid, ':', r.xmin), ' ' ORDER BY d.objid, d.refobjsubid) FROM pg_depend d
            JOIN pg_rewrite r ON r.oid = d.objid
            JOIN pg_class v ON v.oid = r.ev_class AND v.relkind = 'v' AND v.relpersistence = 'p'
            WHERE d.classid = 'pg_rewrite'::regclass AND d.refclassid = 'pg_class'::regclass AND d.refobjid = p.oid
        )), ' ' ORDER BY p.oid), ''), 0) FROM ({}) AS p"""
    ).format(_with_partitions(relations))


def kept(relations: Iterable[tuple[str, str]], found: int) -> Composed:
    """Raises CHANGED if the relations' state is not `found`. After the statement that locks them, nothing can change."""
    return SQL(
        "SELECT CASE found.state WHEN {} THEN 1 ELSE ({} || found.state)::integer END FROM (SELECT ({}) AS state) AS found"
    ).format(Literal(found), Literal(f"{CHANGED}: "), state(relations))


def _with_partitions(relations: Iterable[tuple[str, str]]) -> Composed:
    """The tables of these names, and their partitions."""
    named = SQL(", ").join(SQL("({}, {})").format(Literal(schema), Literal(name)) for schema, name in relations)
    return SQL(
        """SELECT p.oid, p.relname, p.relnamespace, p.relkind, p.relpersistence, p.relhasrules
        FROM (VALUES {}) AS named (schema, name)
        JOIN pg_namespace n ON n.nspname = named.schema OR (n.oid = pg_my_temp_schema() AND named.schema = 'pg_temp')
        JOIN pg_class t ON t.relnamespace = n.oid AND t.relname = named.name
        CROSS JOIN LATERAL (SELECT t.oid UNION SELECT relid FROM pg_partition_tree(t.oid)) AS parts (oid)
        JOIN pg_class p ON p.oid = parts.oid"""
    ).format(named)


def pinned(path: str | None) -> Composed:
    """Sets the search_path for the session, and returns it; None keeps it. The server's and the role's no longer count."""
    return SQL("SELECT set_config('search_path', coalesce({}, current_setting('search_path')), false)").format(
        Literal(path)
    )


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


def claimed(tables: Tables, claim: Claim, *, is_known: bool) -> Composed:
    """Fences older epochs and generations. Three answers: the lock; the position, or no row if refused; the newest row.

    is_known: the lease has seen its row, so only an existing row is claimed.
    The lock is for an older generation's first claim that arrives at the same time: neither would see the other's row.
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


def staged(table: Identifier, columns: Iterable[Column]) -> Composed:
    """The temporary table of batches, one per session; emptied by every COMMIT and ROLLBACK."""
    definitions = SQL(", ").join(SQL("{} {}").format(Identifier(c.name), SQL(c.type)) for c in columns)
    return one_message(
        unstaged(table),
        SQL("CREATE TEMPORARY TABLE {} ({}) ON COMMIT DELETE ROWS").format(table, definitions),
    )


def unstaged(table: Identifier) -> Composed:
    return SQL("DROP TABLE IF EXISTS {}").format(table)


def loaded(columns: Iterable[Column], table: Identifier) -> Composed:
    return SQL("COPY {} ({}) FROM STDIN (FORMAT csv, ENCODING 'UTF8')").format(table, column_names(columns))


def filled(table: Identifier, columns: Iterable[Column], rows: Iterable[Iterable[str | None]]) -> Composed:
    """As `loaded`. The literals have no type, so each is read as its column's type, as COPY reads it."""
    values = (SQL("({})").format(SQL(", ").join(map(Literal, row))) for row in rows)
    return SQL("INSERT INTO {} ({}) VALUES {}").format(table, column_names(columns), SQL(", ").join(values))


def moved(tables: Tables, claim: Claim, start: str | None, to: str) -> Composed:
    """Moves the position from `start` to `to`. Raises GUARD after a later epoch or generation, an end, or another move."""
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


def column_names(columns: Iterable[Column]) -> Composed:
    return SQL(", ").join(Identifier(c.name) for c in columns)
