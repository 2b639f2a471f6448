"""How to reach an account: an endpoint, and a key or an identity. Pure."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

DEFAULT = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """key: the account's, in base64. Without one azure-identity finds who we are; identity: the client id that it has to take.

    ca_file: certificates to trust instead of the system's, for an emulator with one of its own.
    """

    endpoint: str
    key: str | None = field(default=None, repr=False)
    identity: str | None = None
    ca_file: Path | None = None

    @property
    def host(self) -> str:
        """For people and for telling accounts apart: no secret, no scheme, no usual port."""
        parts = urlsplit(self.endpoint)
        port = f":{parts.port}" if parts.port not in (None, 443) else ""
        return f"{parts.hostname}{port}"


def account_of(
    *,
    endpoint: str | None = None,
    key: str | None = None,
    connection_string: str | None = None,
    identity: str | None = None,
    ca_file: Path | None = None,
) -> Account:
    """identity: DEFAULT, or a client id. Raises ValueError, without what was given: it may be a secret."""
    if connection_string is not None:
        if endpoint is not None or key is not None or identity is not None:
            raise ValueError("has `connection_string`, which says it all: remove `endpoint`, `key` and `identity`")
        endpoint, key = _parts(connection_string)
    if endpoint is None:
        raise ValueError("needs `endpoint`, like https://account.documents.azure.com, or `connection_string`")
    parts = urlsplit(endpoint)
    if parts.scheme not in ("https", "http") or not parts.hostname or parts.username or parts.query:
        raise ValueError("`endpoint` must be an address like https://account.documents.azure.com")
    if (key is None) == (identity is None):
        raise ValueError("needs either `key` or `identity`: give one of them")
    if key is not None and not _is_base64(key):
        raise ValueError("`key` must be the account's key, as the portal shows it (base64)")
    return Account(endpoint=endpoint, key=key, identity=None if identity == DEFAULT else identity, ca_file=ca_file)


def _parts(connection_string: str) -> tuple[str, str]:
    fields = dict(part.split("=", 1) for part in connection_string.strip().split(";") if "=" in part)
    found = {name.strip().lower(): value.strip() for name, value in fields.items()}
    try:
        return found["accountendpoint"], found["accountkey"]
    except KeyError:
        raise ValueError("`connection_string` must look like AccountEndpoint=https://...;AccountKey=...;") from None


def _is_base64(text: str) -> bool:
    try:
        return bool(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError):
        return False
