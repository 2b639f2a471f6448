"""How to connect, as the driver reads it: a postgresql:// address or key=value pairs. Nothing of it is ever quoted."""

from __future__ import annotations

from typing import Any

from psycopg import Error
from psycopg.conninfo import conninfo_to_dict

PORT_MAX = 65_535


def read_dsn(dsn: str) -> dict[str, Any]:
    """Its parameters by their names. Raises ValueError, whose text begins where "`dsn` ..." would go on."""
    try:
        given = conninfo_to_dict(dsn)
    except (Error, UnicodeError):  # their texts quote the DSN, password and all
        raise ValueError(
            "is no PostgreSQL connection string: write postgresql://user@host:5432/database, where a %, @, :, /, ? or # inside"
            " a user or password is written %25, %40, %3A, %2F, %3F or %23, or write key=value pairs that libpq knows, with"
            " blanks and quotes inside a value as libpq wants them"
        ) from None
    if not all(_is_port(port) for port in str(given.get("port", "")).split(",")):
        raise ValueError(
            f"has a port that is no number from 1 to {PORT_MAX}: mend it, or, where it is a part of the password, write"
            " a / in the password as %2F"
        )
    return given


def _is_port(text: str) -> bool:
    """An empty one stands for the usual port."""
    return not text or (text.isascii() and text.isdigit() and 1 <= int(text[:6]) <= PORT_MAX)
