"""How to reach a storage account: a connection string, or its address with a key or an identity. Pure.

`leases` and `pipeline` do not know each other, and both reach one: this stands in leases/stores/blob and in
pipeline/connectors/files/sink, word for word, which a test sees to.
"""

from __future__ import annotations

import base64
import binascii
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from azure.identity.aio import DefaultAzureCredential
from azure.storage.blob.aio import BlobServiceClient, ContainerClient

from leases.stores.azure.http import OnceOverTls, PatientCredential
from leases.stores.blob.error_mapping import pause_s

DEFAULT = "default"
_EXAMPLE = "https://account.blob.core.windows.net"


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """url: of its blobs; None where the connection string says it all.

    Without key and connection string we come as whom azure-identity finds; identity: the client id of a managed identity to be.
    ca_file: certificates to trust instead of the system's, for an emulator with one of its own.
    """

    url: str | None = None
    key: str | None = field(default=None, repr=False)
    connection_string: str | None = field(default=None, repr=False)
    identity: str | None = None
    ca_file: Path | None = None


def account_of(
    *,
    account_url: str | None = None,
    key: str | None = None,
    connection_string: str | None = None,
    identity: str | None = None,
    ca_file: Path | None = None,
) -> Account:
    """identity: DEFAULT, or a client id. Raises ValueError, without what was given: it may be a secret."""
    if connection_string is not None:
        if account_url is not None or key is not None or identity is not None:
            raise ValueError("has `connection_string`, which says it all: remove `account_url`, `key` and `identity`")
        _check(connection_string)
        return Account(connection_string=connection_string.strip(), ca_file=ca_file)
    if account_url is None:
        raise ValueError(f"needs `account_url`, like {_EXAMPLE}, or `connection_string`")
    parts = urlsplit(account_url)
    if parts.scheme not in ("https", "http") or not parts.hostname or parts.username or parts.query:
        raise ValueError(f"`account_url` must be an address like {_EXAMPLE}")
    if (key is None) == (identity is None):
        raise ValueError("needs either `key` or `identity`: give one of them")
    if identity is not None and parts.scheme != "https":
        raise ValueError(
            "`account_url` must begin with https where `identity` says who we are: tokens are not sent in the clear"
        )
    if key is not None and not _is_base64(key):
        raise ValueError("`key` must be one of the account's keys, as the portal shows it (base64)")
    return Account(url=account_url, key=key, identity=None if identity == DEFAULT else identity, ca_file=ca_file)


def _check(connection_string: str) -> None:
    parts = dict(part.split("=", 1) for part in connection_string.strip().split(";") if "=" in part)
    fields = {name.strip().lower(): value.strip() for name, value in parts.items()}
    has_place = "blobendpoint" in fields or "accountname" in fields
    has_key = "accountname" in fields and _is_base64(fields.get("accountkey", ""))
    if not (has_place and (has_key or "sharedaccesssignature" in fields)):
        raise ValueError(
            "`connection_string` must look like DefaultEndpointsProtocol=https;AccountName=...;AccountKey=...;, or hold a"
            " BlobEndpoint and a SharedAccessSignature"
        )


def _is_base64(text: str) -> bool:
    try:
        return bool(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError):
        return False


# How the container is reached: as whom, over which TLS, and that the SDK repeats nothing by itself.


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """container: its name. creates: whether it is made where it is missing."""

    container: str
    creates: bool = True

    def __str__(self) -> str:
        return f"blob container '{self.container}'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    service: BlobServiceClient
    container: ContainerClient
    credential: PatientCredential | None

    async def close(self) -> None:
        await self.service.close()
        if self.credential is not None:
            await self.credential.close()


def connect(account: Account, place: Place, tls: ssl.SSLContext, timeout_s: float) -> Connection:
    """Nothing is sent yet. Raises ValueError where the SDK does not take the connection string."""
    # Left alone, the SDK would send a request three times again, 15 to 40 s later.
    transport = OnceOverTls(tls, pause_s, connection_timeout=timeout_s / 2, read_timeout=timeout_s)
    credential = None
    if account.connection_string is not None:
        service = BlobServiceClient.from_connection_string(
            account.connection_string, transport=transport, retry_total=0
        )
    else:
        assert account.url is not None
        credential = None if account.key else PatientCredential(_identity(account.identity))
        who: Any = account.key or credential
        service = BlobServiceClient(account.url, credential=who, transport=transport, retry_total=0)
    return Connection(service=service, container=service.get_container_client(place.container), credential=credential)


def _identity(client_id: str | None) -> DefaultAzureCredential:
    return DefaultAzureCredential(**({"managed_identity_client_id": client_id} if client_id else {}))
