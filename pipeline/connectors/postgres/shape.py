"""What the server knows about the target table, and the statements that follow from that. Pure.

The server decides what a value becomes in its column, which keys are equal in a unique index, and whether a COPY has the effect
of an INSERT. We ask it about the table by schema and name, and each transaction refuses statements for another state of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from psycopg.sql import SQL, Composed, Identifier, Literal

from leasehold.common.nesting import parsed_json
from leasehold.pipeline.connectors.postgres.sql import CHANGED, LOSS, STAGED, Column, Rows, Statement, column_names
from leasehold.pipeline.connectors.postgres.staging_sql import PART, ROW
from leasehold.pipeline.limits import JSON_LEVELS_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """How a column of the output fits that of the table. type: of the table's column; None if it has no such column.

    - `way`: "same" if no value can change; "assigned" if the server takes or refuses a value; "checked" if it could change one;
      "cut" if it certainly does.
    - `order`: the one by which a unique index compares values, if that is not the type's own.
    """

    type: str | None
    way: str
    order: str | None = None


PLAIN = Fit(type=None, way="assigned")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A table as the target of output with certain columns. version: changes if a column, rule, trigger or unique index changes,
    and if the name means another table.

    fits: of the output's columns, in their order. copies: whether rows may be copied directly into the table.
    is_keyed: whether one unique index alone decides which keys are equal.

    locks: whether this role may lock the table. That takes a right on the whole table. A view is never locked.
    """

    version: str
    kind: str
    persistence: str
    copies: bool
    is_keyed: bool
    locks: bool
    fits: tuple[Fit, ...]

    @property
    def cut(self) -> list[int]:
        """The places of columns whose values the table surely cuts."""
        return [place for place, fit in enumerate(self.fits) if fit.way == "cut"]


NO_SHAPE = Shape(version="", kind="", persistence="p", copies=False, is_keyed=False, locks=False, fits=())
"""For a user's merge, whose targets may have any shape."""


def shape_query(table: Identifier, columns: Sequence[Column], key: Sequence[str] = ()) -> Composed:
    """One row with one text for `shape_of`, or none if there is no such table.

    A COPY has the effect of an INSERT if the table's columns have exactly these types, and the table has neither rules nor
    row-level security, which do not apply to COPY. Unlike INSERT, COPY also writes identity columns that are GENERATED ALWAYS.
    With a unique index, a foreign key or a trigger, an uncommitted row may block other writers for as long as its client hangs.
    """
    wanted = SQL(", ").join(
        SQL("({}, {}::text::name, {}::regtype, {}::integer)").format(
            Literal(place), Literal(c.name), Literal(c.type), Literal(c.scale)
        )
        for place, c in enumerate(columns)
    )
    return SQL(
        """SELECT json_build_object(
            'version', {version}, 'kind', t.relkind, 'persistence', t.relpersistence,
            'is_plain', t.relkind = 'r' AND NOT (t.relhasrules OR t.relhastriggers OR row_security_active(t.oid))
                AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = t.oid AND (i.indisunique OR i.indisexclusion)),
            'is_keyed', t.relkind = 'r' AND NOT t.relhasrules
                AND NOT EXISTS (SELECT FROM pg_trigger g WHERE g.tgrelid = t.oid AND NOT g.tgisinternal)
                AND 1 = (SELECT count(*) FROM pg_index i WHERE i.indrelid = t.oid AND (i.indisunique OR i.indisexclusion)),
            'locks', t.relkind IN ('r', 'p') AND has_table_privilege(t.oid, 'INSERT, UPDATE, DELETE, TRUNCATE'),
            'fits', (SELECT json_agg(json_build_object(
                'type', format_type(a.atttypid, a.atttypmod),
                'is_written', a.attgenerated = '' AND a.attidentity <> 'a',
                'way', CASE
                    WHEN a.atttypid = w.type AND (a.atttypmod = -1 OR w.scale <= {scale}) THEN 'same'
                    WHEN b.type = 'bpchar'::regtype THEN 'assigned'
                    WHEN b.type IN ('time'::regtype, 'timetz'::regtype)
                        AND w.type IN ('timestamp'::regtype, 'timestamptz'::regtype) THEN 'cut'
                    WHEN b.type = w.type THEN 'checked'
                    WHEN EXISTS (SELECT FROM pg_cast c WHERE (c.castsource, c.casttarget) = (b.type, w.type))
                        AND EXISTS (SELECT FROM pg_cast c
                            WHERE (c.castsource, c.casttarget) = (w.type, b.type) AND c.castcontext <> 'e') THEN 'checked'
                    ELSE 'assigned' END,
                'order', (SELECT concat(
                        (SELECT format('COLLATE %I.%I', n.nspname, l.collname) FROM pg_collation l
                            JOIN pg_namespace n ON n.oid = l.collnamespace WHERE l.oid = k.rule),
                        (SELECT format(' USING OPERATOR(%I.%s)', n.nspname, o.oprname) FROM pg_opclass s
                            JOIN pg_amop p ON (p.amopfamily, p.amoplefttype, p.amoprighttype, p.amopstrategy)
                                = (s.opcfamily, s.opcintype, s.opcintype, 1)
                            JOIN pg_operator o ON o.oid = p.amopopr JOIN pg_namespace n ON n.oid = o.oprnamespace
                            WHERE s.oid = k.class AND NOT s.opcdefault))
                    FROM pg_index i CROSS JOIN unnest(i.indkey::int2[], i.indcollation::oid[], i.indclass::oid[])
                        WITH ORDINALITY AS k (number, rule, class, place)
                    WHERE i.indrelid = t.oid AND i.indisunique AND i.indpred IS NULL AND i.indnkeyatts = {keys}
                    AND k.place <= i.indnkeyatts AND k.number = a.attnum AND w.name = ANY ({key}::name[]) LIMIT 1)
                ) ORDER BY w.place)
                FROM (VALUES {wanted}) AS w (place, name, type, scale)
                LEFT JOIN pg_attribute a ON a.attrelid = t.oid AND a.attname = w.name AND a.attnum > 0 AND NOT a.attisdropped
                LEFT JOIN LATERAL (WITH RECURSIVE d (type, kind, base) AS (
                    SELECT y.oid, y.typtype, y.typbasetype FROM pg_type y WHERE y.oid = a.atttypid
                    UNION ALL SELECT y.oid, y.typtype, y.typbasetype FROM d JOIN pg_type y ON y.oid = d.base WHERE d.kind = 'd'
                ) SELECT type FROM d WHERE kind <> 'd') b ON true)
        )::text FROM pg_class t WHERE t.oid = to_regclass({table})"""
    ).format(
        version=_VERSION,
        scale=_SCALE,
        keys=Literal(len(key)),
        key=Literal(list(key)),
        wanted=wanted,
        table=Literal(table.as_string(None)),
    )


_SCALE = SQL("(((a.atttypmod - 4) & 2047) # 1024) - 1024")
"""The digits after the point of a numeric column that limits them."""
_COLUMNS = SQL(
    "SELECT string_agg(concat(a.attnum, ':', a.xmin), ' ' ORDER BY a.attnum) FROM pg_attribute a WHERE a.attrelid = t.oid"
)
_RULES = SQL(
    "SELECT string_agg(concat(r.oid, ':', r.xmin), ' ' ORDER BY r.oid) FROM pg_rewrite r WHERE r.ev_class = t.oid"
)
_TRIGGERS = SQL(
    "SELECT string_agg(g.oid::text, ' ' ORDER BY g.oid) FROM pg_trigger g WHERE g.tgrelid = t.oid AND NOT g.tgisinternal"
)
_INDEXES = SQL(
    """SELECT string_agg(i.indexrelid::text, ' ' ORDER BY i.indexrelid) FROM pg_index i
    WHERE i.indrelid = t.oid AND (i.indisunique OR i.indisexclusion)"""
)
_VERSION = SQL("concat_ws('/', t.oid, t.relkind, t.relpersistence, ({}), ({}), ({}), ({}))").format(
    _COLUMNS, _RULES, _TRIGGERS, _INDEXES
)
"""A changed row of the catalog has another transaction (`xmin`)."""


def shape_of(found: str | None, columns: Sequence[Column]) -> Shape:
    """found: the answer to `shape_query`. A missing table or column is left for the server to report."""
    if found is None:
        return replace(NO_SHAPE, fits=(PLAIN,) * len(columns))
    known = parsed_json(found, JSON_LEVELS_MAX)
    fits = tuple(Fit(type=each["type"], way=each["way"], order=each["order"]) for each in known["fits"] or ())
    is_same = all(fit.way == "same" for fit in fits) and all(each["is_written"] for each in known["fits"] or ())
    return Shape(
        version=known["version"],
        kind=known["kind"],
        persistence=known["persistence"],
        locks=known["locks"],
        is_keyed=known["is_keyed"],
        copies=known["is_plain"]
        and known["locks"]
        and known["persistence"] == "p"
        and is_same
        and not any(column.is_null for column in columns),
        fits=fits,
    )


def locked(table: Identifier, shape: Shape) -> list[Statement]:
    """A lock that keeps the table as it is until the end of the transaction, if this role may lock it."""
    return [SQL("LOCK TABLE ONLY {} IN ROW EXCLUSIVE MODE").format(table)] if shape.locks else []


def unchanged(table: Identifier, shape: Shape) -> list[Statement]:
    """Statements that raise CHANGED if the table has changed since."""
    if not shape.version:
        return []
    check = SQL(
        """SELECT CASE WHEN found.version = {version} THEN 1 ELSE ({changed} || found.version)::integer END
        FROM (SELECT (SELECT {now} FROM pg_class t WHERE t.oid = to_regclass({table})) AS version) AS found"""
    ).format(
        version=Literal(shape.version),
        changed=Literal(f"{CHANGED}: "),
        now=_VERSION,
        table=Literal(table.as_string(None)),
    )
    return [*locked(table, shape), check]


def appended(table: Identifier, columns: Sequence[Column], shape: Shape, rows: Rows | None = None) -> Composed:
    return SQL("{} SELECT {} FROM {}").format(
        _into(table, columns), SQL(", ").join(_values(columns, shape)), rows or STAGED
    )


def upserted(
    table: Identifier, columns: Sequence[Column], key: Sequence[str], shape: Shape, rows: Rows | None = None
) -> Composed:
    """As if the rows arrived one by one: a unique index decides which keys are equal, and an upsert cannot touch a row twice.

    Rows are upserted in the order of their keys: partitions that touch the same rows then lock them in the same order, and do
    not deadlock. If this would touch a row twice, rows are upserted one by one, in order of arrival. A trigger or a second
    index may make keys equal that this order distinguishes. If the output has only the key, the first row of a key stays, so the
    rows keep their order of arrival, unless one index alone decides which keys are equal.

    rows: numbered as executors staged them; None for the table of the batch.
    """
    conflict = SQL("ON CONFLICT ({}) DO {}").format(SQL(", ").join(map(Identifier, key)), _action(columns, key))
    places: Statement = SQL("ctid") if rows is None else SQL("{}, {}").format(Identifier(PART), Identifier(ROW))
    by_key = SQL(", ").join([*_order(columns, key, shape), places])
    into = _into(table, columns)
    taken = SQL(", ").join(
        SQL("{} AS {}").format(value, Identifier(column.name))
        for column, value in zip(columns, _values(columns, shape), strict=True)
    )
    given = SQL("SELECT {} FROM {}").format(taken, rows or STAGED)
    if {c.name for c in columns} <= set(key):
        return SQL("{} {} ORDER BY {} {}").format(into, given, by_key if shape.is_keyed else places, conflict)
    one = SQL(", ").join(SQL("leasehold_one.{}").format(Identifier(c.name)) for c in columns)
    block = SQL(
        """#variable_conflict use_column
        DECLARE leasehold_one record;
        BEGIN
            {into} {given} ORDER BY {by_key} {conflict};
        EXCEPTION WHEN cardinality_violation THEN
            FOR leasehold_one IN {given} ORDER BY {places} LOOP
                {into} VALUES ({one}) {conflict};
            END LOOP;
        END"""
    ).format(into=into, given=given, by_key=by_key, places=places, conflict=conflict, one=one)
    return SQL("DO {}").format(Literal(block.as_string(None)))


def preparable(table: Identifier, columns: Sequence[Column], key: Sequence[str], shape: Shape) -> Composed:
    """The same as one statement, which the server can check without running it."""
    statement = appended(table, columns, shape)
    if not key:
        return statement
    return SQL("{} ON CONFLICT ({}) DO {}").format(
        statement, SQL(", ").join(map(Identifier, key)), _action(columns, key)
    )


def _action(columns: Sequence[Column], key: Sequence[str]) -> Statement:
    others = [Identifier(c.name) for c in columns if c.name not in key]
    if not others:
        return SQL("NOTHING")
    return SQL("UPDATE SET ") + SQL(", ").join(SQL("{0} = excluded.{0}").format(other) for other in others)


def _values(columns: Sequence[Column], shape: Shape) -> list[Composed]:
    has_sequence = any(c.name == "sequence" and c.type in ("smallint", "integer", "bigint") for c in columns)
    event: Statement = SQL("coalesce({}::text, '')").format(Identifier("sequence")) if has_sequence else SQL("''")
    return [
        _value(column, fit, place, event) for place, (column, fit) in enumerate(zip(columns, shape.fits, strict=True))
    ]


def _value(column: Column, fit: Fit, place: int, event: Statement) -> Composed:
    """What the table gets of a column. A cast raises LOSS if the table would get another value."""
    name = SQL("{}").format(Identifier(column.name))
    if column.is_null and fit.type is not None:
        return SQL("CAST(NULL AS {})").format(SQL(fit.type))
    if fit.way != "checked" or fit.type is None:
        return name
    return SQL(
        """CASE WHEN {name} IS NULL OR CAST(CAST({name} AS {taken}) AS {given}) = {name} THEN {name}
        WHEN ({loss} || {event} || CASE WHEN {name} IS NULL THEN '' ELSE '' END)::integer = 0 THEN {name} END"""
    ).format(
        name=name,
        taken=SQL(fit.type),
        given=SQL(column.type),
        loss=Literal(f"{LOSS}: {place}/"),
        event=event,
    )


def _order(columns: Sequence[Column], key: Sequence[str], shape: Shape) -> list[Composed]:
    """The keys in the order of a unique index: by the table's types, and the index's collations and operators."""
    found = dict(zip((c.name for c in columns), shape.fits, strict=True))
    return [_as_indexed(name, found[name]) for name in key]


def _as_indexed(name: str, fit: Fit) -> Composed:
    value = SQL("{}").format(Identifier(name))
    if fit.type is not None:
        value = SQL("CAST({} AS {})").format(value, SQL(fit.type))
    return value if not fit.order else SQL("{} {}").format(value, SQL(fit.order))


def _into(table: Identifier, columns: Sequence[Column]) -> Composed:
    """With an alias, because the table may be called `excluded`."""
    return SQL("INSERT INTO {} AS leasehold_target ({})").format(table, column_names(columns))
