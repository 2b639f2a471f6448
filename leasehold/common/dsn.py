"""DSNs of PostgreSQL, read as libpq reads them, but without its driver: settings check them before anything connects. Pure.

A DSN is a postgresql:// address or key=value pairs. Nothing of it is ever quoted.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from urllib.parse import unquote_to_bytes

PORT_MAX = 65_535
NAME_BYTES_MAX = 63
KEYWORDS = frozenset(
    [
        "service",
        "user",
        "password",
        "passfile",
        "channel_binding",
        "connect_timeout",
        "dbname",
        "host",
        "hostaddr",
        "port",
        "client_encoding",
        "options",
        "application_name",
        "fallback_application_name",
        "keepalives",
        "keepalives_idle",
        "keepalives_interval",
        "keepalives_count",
        "tcp_user_timeout",
        "sslmode",
        "sslnegotiation",
        "sslcompression",
        "sslcert",
        "sslkey",
        "sslcertmode",
        "sslpassword",
        "sslrootcert",
        "sslcrl",
        "sslcrldir",
        "sslsni",
        "requirepeer",
        "require_auth",
        "min_protocol_version",
        "max_protocol_version",
        "ssl_min_protocol_version",
        "ssl_max_protocol_version",
        "gssencmode",
        "krbsrvname",
        "gsslib",
        "gssdelegation",
        "replication",
        "target_session_attrs",
        "load_balance_hosts",
        "scram_client_key",
        "scram_server_key",
        "oauth_issuer",
        "oauth_client_id",
        "oauth_client_secret",
        "oauth_scope",
        "sslkeylogfile",
        "servicefile",
    ]
)
_ENCRYPTED = ("require", "verify-ca", "verify-full")
_SCHEMES = ("postgresql://", "postgres://")
_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})|%00")
_HOST = re.compile(r"(?:\[(?P<literal>[^\]]+)\]|(?P<host>(?!\[)[^:/?,]*))(?::(?P<port>[^/?,]*))?")
_PAIR = re.compile(
    r"\s*(?P<name>[^=\s]+)\s*=\s*(?:'(?P<quoted>(?:[^'\\]|\\.)*)'|(?P<plain>(?:[^\s'\\]|\\.)(?:[^\s\\]|\\.)*|))",
    re.DOTALL,
)
_NOT_ONE = (
    "is not a PostgreSQL connection string: write postgresql://user@host:5432/database, or libpq's key=value pairs."
    " In an address, write %, @, :, /, ? and # inside a user or password as %25, %40, %3A, %2F, %3F and %23. In pairs,"
    " quote values with blanks as libpq wants"
)


def read_dsn(dsn: str) -> dict[str, str]:
    """The DSN's parameters, by name. Raises ValueError, whose text continues "`dsn` ..."."""
    given = _read(dsn)
    if given is None or not given.keys() <= KEYWORDS or "\0" in dsn or not _is_text(dsn):
        raise ValueError(_NOT_ONE)
    if not all(_is_port(port) for port in given.get("port", "").split(",")):
        raise ValueError(
            f"has a port that is not a number from 1 to {PORT_MAX}: correct it; if it belongs to the password, write each"
            " / of the password as %2F"
        )
    return given


def read_dsn_without_password(dsn: str) -> dict[str, str]:
    """The DSN's parameters, for an access token as the password, and with TLS, which it needs. Raises ValueError."""
    given = read_dsn(dsn)
    if "password" in given:
        raise ValueError("`identity` provides the password, and `dsn` has one too: remove one of them")
    if given.get("sslmode", _ENCRYPTED[0]) not in _ENCRYPTED:
        raise ValueError("`identity` sends a token, which needs TLS: set `sslmode` in `dsn` to require or verify-full")
    return {"sslmode": _usual_sslmode(given, os.environ), **given}


def check_table(schema: str, name: str) -> None:
    """Raises ValueError for a name that PostgreSQL would cut short, or the driver would take for a parameter."""
    for setting, each in (("schema", schema), ("table", name)):
        if not each or len(each.encode()) > NAME_BYTES_MAX or set("%\0") & set(each):
            raise ValueError(f"`{setting}` must be a name of 1 to {NAME_BYTES_MAX} bytes, without %")


def _usual_sslmode(given: Mapping[str, str], environment: Mapping[str, str]) -> str:
    """The environment's mode (PGSSLMODE) if that needs TLS; otherwise the weakest one that does."""
    if given.get("sslrootcert") == "system":
        return "verify-full"  # libpq accepts nothing weaker with it
    usual = environment.get("PGSSLMODE", "")
    return usual if usual in _ENCRYPTED else _ENCRYPTED[0]


def _read(dsn: str) -> dict[str, str] | None:
    """The parameters; None if this is not a DSN."""
    for scheme in _SCHEMES:
        if dsn.startswith(scheme):
            return _of_address(dsn[len(scheme) :])
    return _of_pairs(dsn)


def _of_pairs(text: str) -> dict[str, str] | None:
    given, place = {}, 0
    while text[place:].strip():
        found = _PAIR.match(text, place)
        if found is None:
            return None
        value = found["quoted"] if found["quoted"] is not None else found["plain"]
        given[found["name"]] = re.sub(r"\\(.)", r"\1", value, flags=re.DOTALL)
        place = found.end()
    return given


def _of_address(text: str) -> dict[str, str] | None:
    if _PERCENT.search(text) or set(text) & set(" \t\n\r\v\f"):
        return None
    given: dict[str, str] = {}
    before = re.split(r"/", text, maxsplit=1)[0]
    if "@" in before:
        login, _, text = text.partition("@")
        given["user"], _, given["password"] = login.partition(":")
    hosts, ports = [], []
    while True:
        found = _HOST.match(text)
        if found is None:
            return None
        hosts.append(found["literal"] or found["host"] or "")
        ports.append(found["port"] or "")
        text = text[found.end() :]
        if not text.startswith(","):
            break
        text = text[1:]
    if text[:1] not in ("", "/", "?"):
        return None
    given |= {"host": ",".join(hosts), "port": ",".join(ports)}
    path, question, query = text.partition("?")
    given["dbname"] = path.removeprefix("/")
    given = {name: value for name, value in given.items() if value}
    for pair in query.split("&") if question and query else ():
        name, equals, value = pair.partition("=")
        if not equals or "=" in value or not name:
            return None
        given[name] = value
    if given.pop("ssl", None) == "true":
        given["sslmode"] = "require"
    return dict(_decoded(given)) if all(map(_is_decodable, given.values())) else None


def _decoded(given: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name, value in given.items():
        yield unquote_to_bytes(name).decode(), unquote_to_bytes(value).decode()


def _is_decodable(value: str) -> bool:
    try:
        unquote_to_bytes(value).decode()
    except UnicodeError:
        return False
    return True


def _is_text(dsn: str) -> bool:
    try:
        dsn.encode()
    except UnicodeError:
        return False
    return True


def _is_port(text: str) -> bool:
    """An empty text is the default port."""
    return not text or (text.isascii() and text.isdigit() and 1 <= int(text[:6]) <= PORT_MAX)
