"""As whom an Azure account is come to: the same words for leases, feeds and sinks."""

from __future__ import annotations

from typing import TypedDict

from service.config.types import Secret

IDENTITY = (
    "Instead of a key: `default` for the identity that azure-identity finds (this is also the default), or the client"
    " id of a managed identity. It needs the role "
)
POSTGRES_IDENTITY = (
    "Instead of a password in `dsn`, for Azure Database for PostgreSQL: `default` for the identity that azure-identity"
    " finds, or the client id of a managed identity. It needs a role in the database, which `dsn` names as its"
    " user."
)


class Whom(TypedDict):
    """Secrets and all: what the connectors take."""

    key: str | None
    connection_string: str | None
    identity: str | None


def whom(key: Secret | None, connection_string: Secret | None, identity: str | None) -> Whom:
    """Who says nothing comes as whom azure-identity finds."""
    is_anybody = identity is None and key is None and connection_string is None
    return {
        "key": None if key is None else key.get_secret_value(),
        "connection_string": None if connection_string is None else connection_string.get_secret_value(),
        "identity": "default" if is_anybody else identity,
    }


def check_postgres_identity(dsn: Secret, identity: str | None) -> None:
    """Raises ValueError."""
    if identity is not None:
        from pipeline.connectors.postgres import read_dsn_without_password  # its driver takes a while to import

        read_dsn_without_password(dsn.get_secret_value())
