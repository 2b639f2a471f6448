"""What a server's or a connection's error means for the batch: not applied and worth another try, refused, or unknown. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

import psycopg

from leasehold.common.postgres import TokenRefused, cause_of, words_of
from leasehold.pipeline.connectors.postgres.sql import CHANGED, GUARD, LOSS
from leasehold.pipeline.connectors.postgres.staging_sql import MISSING, STAGING
from leasehold.pipeline.errors import Ambiguous, OutputRefused, SinkError, SinkNotFound, SinkRejected, SinkUnavailable

_COLLISIONS = ("40001", "40P01")
_PASSING = (
    *("08", "40", "53", "57", "58"),  # connection, rollback, resources (disk full, too many clients), operator, system
    *("55P03", "25006"),  # a lock was not granted in time; a standby, or a primary that was just demoted
)
_OF_ALL_ROWS = (
    *(
        "0A",
        "25",
        "26",
        "28",
        "2B",
        "2D",
        "34",
        "3D",
        "3F",
        "42",
    ),  # SQL, names, types, rights, and what is not supported
    *("55", "72", "F0", "HV", "XX"),  # states of objects, foreign servers, faults of the server
)
"""Codes of errors that concern all rows. Others (of values, constraints and limits, and what a trigger raises) concern some."""
_OF_TEXTS = ("42601", "42602", "42P01", "3F000")
"""Codes that a cast to tsquery, jsonpath or regclass raises for a value, and the parser for a statement."""
_OF_A_ROW = ("ExecWithCheckOptions", "exec_stmt_raise")
"""The server's functions that refuse a row because of a policy or a trigger, with any code."""
_LOSS = re.compile(rf"{LOSS}: (?P<place>[0-9]+)/(?P<sequence>-?[0-9]*)")
_REMEDIES = {
    "23": "change the transform or the merge so that the table takes the output, or change the table",
    "22": "change the transform or the merge so that the table takes the output, or change the table",
    "42501": "grant the role what it lacks (and leave out a `setup` that another role runs)",
    "42": "correct the SQL, or create what it names",
}


def is_guard(error: psycopg.Error) -> bool:
    """Whether the position could not be moved, because its row is not as this claim left it."""
    return error.sqlstate == "22P02" and GUARD in (error.diag.message_primary or "")


def is_missing(error: psycopg.Error) -> bool:
    """Whether rows that executors staged, or their table, are missing."""
    message = error.diag.message_primary or ""
    return (error.sqlstate == "22P02" and MISSING in message) or (error.sqlstate == "42P01" and STAGING in message)


def is_changed(error: psycopg.Error) -> bool:
    """Whether the target is no longer what this statement was made for."""
    return error.sqlstate == "22P02" and CHANGED in (error.diag.message_primary or "")


class Loss(NamedTuple):
    """A value that its column would change. place: of the column in the output. sequence: of the row, if it has one."""

    place: int
    sequence: int | None


def loss_of(error: psycopg.Error) -> Loss | None:
    found = _LOSS.search(error.diag.message_primary or "") if error.sqlstate == "22P02" else None
    return None if found is None else Loss(int(found["place"]), int(found["sequence"]) if found["sequence"] else None)


def is_timeout(error: psycopg.Error) -> bool:
    """Whether the statement took too long, or an operator cancelled it."""
    return error.sqlstate == "57014"


def is_collision(error: psycopg.Error) -> bool:
    """Whether it is a deadlock or serialization failure: the server rolled this transaction back, and the next may succeed."""
    return error.sqlstate in _COLLISIONS


def may_be_of_value(error: psycopg.Error) -> bool:
    """Whether the fault may be in a text of the output, read as a query or a table's name, and not in the statement.

    Such an error names no position in the statement. Others without a position also appear if the statement is only explained.
    """
    return error.sqlstate in _OF_TEXTS and error.diag.statement_position is None and error.diag.context is None


def refused(
    error: psycopg.Error,
    address: str,
    doing: str,
    *,
    is_lost: bool = False,
    is_sent: bool = False,
    is_of_value: bool = False,
) -> SinkError:
    """is_lost: the connection is gone. is_sent: the server may have had everything it needs to commit. is_of_value: the
    statement itself is right."""
    prefix = f"PostgreSQL {address}: {doing}"
    if is_lost:
        if is_sent:
            return Ambiguous(f"{prefix} was sent, and the connection was lost before the answer: {words_of(error)}")
        return SinkUnavailable(f"{prefix} failed because the connection was lost: {words_of(error)}")
    if is_changed(error):
        return SinkUnavailable(f"{prefix} failed and was rolled back: the table was changed again and again meanwhile")
    if (error.sqlstate or "").startswith(_PASSING):
        return SinkUnavailable(f"{prefix} failed and was rolled back: {words_of(error)}")
    if is_of_value:
        return OutputRefused(f"{prefix} was refused: {words_of(error)}: {_remedy('22')}")
    kind = OutputRefused if _is_of_rows(error) else SinkRejected
    return kind(f"{prefix} was refused: {words_of(error)}: {_remedy(error.sqlstate or '')}")


def _is_of_rows(error: psycopg.Error) -> bool:
    """Whether other rows might be taken. An error without a code is psycopg's own."""
    if error.diag.source_function in _OF_A_ROW:
        return True
    return error.sqlstate is not None and not error.sqlstate.startswith(_OF_ALL_ROWS)


def not_connected(error: psycopg.Error, address: str, setting: str = "`dsn`") -> SinkError:
    """setting: what has the DSN."""
    words, cause = words_of(error), cause_of(error)
    if cause == "settings":
        return SinkRejected(
            f"PostgreSQL {address} refused the connection: {words}: correct {setting}, or the server's settings"
        )
    if cause == "host":
        return SinkNotFound(f"PostgreSQL {address} cannot be reached: {words}: check the host in {setting}")
    return SinkUnavailable(f"PostgreSQL {address} cannot be reached: {words}")


def token_refused(error: TokenRefused, address: str) -> SinkError:
    """The token may have expired, or the service cannot verify it for a while: a later try may succeed."""
    return SinkUnavailable(
        f"PostgreSQL {address} refused the access token: {error}: if this persists, check that the role in `dsn`"
        " belongs to this `identity`"
    )


def _remedy(sqlstate: str) -> str:
    return next((remedy for prefix, remedy in _REMEDIES.items() if sqlstate.startswith(prefix)), "see the server's log")
