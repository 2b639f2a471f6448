"""How to connect, as the driver reads it: a postgresql:// address or key=value pairs. Nothing of it is ever quoted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from psycopg import Error, pq
from psycopg.conninfo import conninfo_to_dict

PORT_MAX = 65_535
_ENCRYPTED = ("require", "verify-ca", "verify-full")


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


def read_dsn_without_password(dsn: str) -> dict[str, Any]:
    """Its parameters, for an access token as the password, and TLS for it. Raises ValueError."""
    given = read_dsn(dsn)
    if "password" in given:
        raise ValueError("`identity` provides the password, and `dsn` has one too: remove one of them")
    if given.get("sslmode", _ENCRYPTED[0]) not in _ENCRYPTED:
        raise ValueError("`identity` sends a token, which needs TLS: set `sslmode` in `dsn` to require or verify-full")
    return {"sslmode": _usual_sslmode(given), **given}


def _usual_sslmode(given: Mapping[str, Any]) -> str:
    """As the environment (PGSSLMODE) has it, but not without TLS."""
    if given.get("sslrootcert") == "system":
        return "verify-full"  # libpq takes nothing less with it
    known = {option.keyword: option.val for option in pq.Conninfo.get_defaults()}
    usual = (known.get(b"sslmode") or b"").decode()
    return usual if usual in _ENCRYPTED else _ENCRYPTED[0]


def _is_port(text: str) -> bool:
    """An empty one stands for the usual port."""
    return not text or (text.isascii() and text.isdigit() and 1 <= int(text[:6]) <= PORT_MAX)
