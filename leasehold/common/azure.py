"""Accounts of Azure, their credentials, and what their answers mean, shared by leases, feeds and sinks.

    account = cosmos_account_of(endpoint="https://account.documents.azure.com", identity="default")
    credential = credential_of(account.identity)

identity: the client id of a managed identity, or a credential that a program has made; None for what azure-identity finds.
ca_file: certificates to trust instead of the system's, for an emulator with its own.
"""

from __future__ import annotations

import base64
import binascii
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from leasehold.common.given_credential import BlockingCredential, GivenCredential

Identity = str | object
"""A client id, or a credential."""
DEFAULT = "default"
"""As an `identity` in settings: what azure-identity finds."""
_COSMOS = "https://account.documents.azure.com"
_STORAGE = "https://account.blob.core.windows.net"
_IN_CLOUD = re.compile(r"\.blob\.(core|storage\.azure)\.")
"""Found in the names of Azure Storage's servers. Such a name contains the account's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CosmosAccount:
    """A Cosmos DB account and its credentials. Without a key, azure-identity finds them."""

    endpoint: str
    key: str | None = field(default=None, repr=False)
    identity: Identity | None = None
    ca_file: Path | None = None

    @property
    def host(self) -> str:
        """For people, and to tell accounts apart: without secrets, scheme and default port."""
        parts = urlsplit(self.endpoint)
        port = f":{parts.port}" if parts.port not in (None, 443) else ""
        return f"{parts.hostname}{port}"


def cosmos_account_of(
    *,
    endpoint: str | None = None,
    key: str | None = None,
    connection_string: str | None = None,
    identity: Identity | None = None,
    ca_file: Path | None = None,
) -> CosmosAccount:
    """identity: DEFAULT, a client id, or a credential. Raises ValueError, whose text omits the values: they may be secrets."""
    if connection_string is not None:
        _check_alone("endpoint", endpoint, key, identity)
        endpoint, key = _endpoint_and_key(connection_string)
    endpoint = _checked("endpoint", endpoint, key, identity, example=_COSMOS)
    return CosmosAccount(
        endpoint=endpoint, key=key, identity=None if identity == DEFAULT else identity, ca_file=ca_file
    )


def _endpoint_and_key(connection_string: str) -> tuple[str, str]:
    fields = dict(part.split("=", 1) for part in connection_string.strip().split(";") if "=" in part)
    found = {name.strip().lower(): value.strip() for name, value in fields.items()}
    try:
        return found["accountendpoint"], found["accountkey"]
    except KeyError:
        raise ValueError("`connection_string` must look like AccountEndpoint=https://...;AccountKey=...;") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageAccount:
    """A storage account and its credentials. Without a key and a connection string, azure-identity finds them."""

    url: str | None = None
    key: str | None = field(default=None, repr=False)
    connection_string: str | None = field(default=None, repr=False)
    identity: Identity | None = None
    ca_file: Path | None = None

    @property
    def host(self) -> str:
        """The name of the server for blobs, without the port."""
        fields = _fields_of(self.connection_string or "")
        url = self.url or fields.get("blobendpoint")
        if url is not None:
            return urlsplit(url).hostname or ""
        return f"{fields['accountname']}.blob.{fields.get('endpointsuffix', 'core.windows.net')}"

    @property
    def endpoint(self) -> str:
        """The address of the account's blobs, without credentials."""
        fields = _fields_of(self.connection_string or "")
        url = self.url or fields.get("blobendpoint")
        if url is None:
            url = f"{fields.get('defaultendpointsprotocol', 'https')}://{self.host}"
        return url.partition("?")[0].rstrip("/")

    @property
    def is_emulator(self) -> bool:
        """Whether the address has the account in its path, like Azurite's, instead of in the host's name."""
        return bool(urlsplit(self.endpoint).path)

    @property
    def name(self) -> str:
        fields = _fields_of(self.connection_string or "")
        path = urlsplit(self.endpoint).path.strip("/")
        return fields.get("accountname") or path or self.host.partition(".")[0]

    @property
    def account_key(self) -> str | None:
        """A secret."""
        return self.key or _fields_of(self.connection_string or "").get("accountkey")

    @property
    def signature(self) -> str | None:
        """The shared access signature (SAS), which is used if there is no key. A secret."""
        return _fields_of(self.connection_string or "").get("sharedaccesssignature")


def storage_account_of(
    *,
    account_url: str | None = None,
    key: str | None = None,
    connection_string: str | None = None,
    identity: Identity | None = None,
    ca_file: Path | None = None,
) -> StorageAccount:
    """identity: DEFAULT, a client id, or a credential. Raises ValueError, whose text omits the values: they may be secrets."""
    if connection_string is not None:
        _check_alone("account_url", account_url, key, identity)
        _check_storage(connection_string)
        return StorageAccount(connection_string=connection_string.strip(), ca_file=ca_file)
    account_url = _checked("account_url", account_url, key, identity, example=_STORAGE)
    if ".dfs." in (urlsplit(account_url).hostname or ""):
        raise ValueError(
            f"`account_url` must be the address of the account's blobs: {account_url.replace('.dfs.', '.blob.', 1)}"
        )
    _check_path("`account_url`", account_url)
    return StorageAccount(url=account_url, key=key, identity=None if identity == DEFAULT else identity, ca_file=ca_file)


def _check_path(setting: str, address: str) -> None:
    """Only an emulator's address has a path: the account. Raises ValueError."""
    parts = urlsplit(address)
    path = parts.path.strip("/")
    if path and (_IN_CLOUD.search(parts.hostname or "") or "/" in path):
        alone = f"{parts.scheme}://{parts.netloc}" + (
            "" if _IN_CLOUD.search(parts.netloc) else f"/{path.split('/')[0]}"
        )
        raise ValueError(
            f"{setting} must be the address of the account alone, {alone}: name a container by `container`"
        )


def _fields_of(connection_string: str) -> dict[str, str]:
    """The fields of a connection string, by their names in lower case."""
    parts = dict(part.split("=", 1) for part in connection_string.strip().split(";") if "=" in part)
    return {name.strip().lower(): value.strip() for name, value in parts.items()}


def _check_storage(connection_string: str) -> None:
    fields = _fields_of(connection_string)
    has_place = "blobendpoint" in fields or "accountname" in fields
    has_key = "accountname" in fields and _is_base64(fields.get("accountkey", ""))
    if not (has_place and (has_key or "sharedaccesssignature" in fields)):
        raise ValueError(
            "`connection_string` must look like DefaultEndpointsProtocol=https;AccountName=...;AccountKey=...;, or hold a"
            " BlobEndpoint and a SharedAccessSignature"
        )
    _check_path("the BlobEndpoint of `connection_string`", fields.get("blobendpoint", ""))


def _check_alone(setting: str, *others: Identity | None) -> None:
    if any(other is not None for other in others):
        raise ValueError(
            f"has `connection_string`, which contains everything: remove `{setting}`, `key` and `identity`"
        )


def _checked(setting: str, address: str | None, key: str | None, identity: Identity | None, *, example: str) -> str:
    """The address. Raises ValueError."""
    if address is None:
        raise ValueError(f"needs `{setting}`, like {example}, or `connection_string`")
    parts = urlsplit(address)
    if parts.scheme not in ("https", "http") or not parts.hostname or parts.username or parts.query:
        raise ValueError(f"`{setting}` must be an address like {example}")
    if (key is None) == (identity is None):
        raise ValueError("needs either `key` or `identity`: give one of them")
    if identity is not None and parts.scheme != "https":
        raise ValueError(f"`{setting}` must begin with https with `identity`: tokens are never sent unencrypted")
    if key is not None and not _is_base64(key):
        raise ValueError("`key` must be one of the account's keys, as the portal shows it (base64)")
    return address


def _is_base64(text: str) -> bool:
    try:
        return bool(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError):
        return False


def credential_of(identity: Identity | None) -> Any:
    """A credential for asyncio: azure-identity's, or the program's own. Nothing is sent yet."""
    if not isinstance(identity, str | None):
        return GivenCredential(identity)
    from azure.identity.aio import DefaultAzureCredential  # takes half a second to import, and few need it

    return DefaultAzureCredential(**_identity_options(identity))


def blocking_credential_of(identity: Identity | None) -> Any:
    """As `credential_of`, for threads."""
    if not isinstance(identity, str | None):
        return BlockingCredential(identity)
    from azure.identity import DefaultAzureCredential  # takes half a second to import, and few need it

    return DefaultAzureCredential(**_identity_options(identity))


def _identity_options(identity: str | None) -> dict[str, str]:
    return {} if identity in (None, DEFAULT) else {"managed_identity_client_id": identity}


def tls_of(ca_file: Path | None) -> ssl.SSLContext:
    """Raises ValueError if the file cannot be used."""
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ValueError(f"ca_file '{ca_file}' holds no certificates ({error}): name a PEM file") from error


# What the services answer, and the errors of their SDKs. Pure.


RETRY_AFTER_MAX_S = 3600.0
WRONG_KEY = "look at the key or the identity, and at this machine's clock, which may be 15 minutes off at most"
"""What to do about a 401."""
NO_STORAGE_ROLE = (
    "look at the key or the role of this identity ('Storage Blob Data Contributor'), and at the account's firewall"
)
"""What to do about a 403 of Azure Storage."""
STORAGE_REMEDIES = {
    401: WRONG_KEY,
    403: NO_STORAGE_ROLE,
    404: "create the container, or correct its name",
    429: "the account is throttled: wait, or give it less to do",
    503: "the account is throttled: wait, or give it less to do",
}
"""What to do about an answer of Azure Storage."""
REFUSED_BY_STORAGE = (400, 401, 403, 404, 405)
"""Answers that are due to settings or permissions."""
_NEVER_DONE_BY_STORAGE = frozenset((400, 401, 403, 404, 405, 409, 411, 412, 413, 416, 429))
_TLS_OBJECT = re.compile(r" ssl:(?:<[^>]*>|\w+)")


def is_refused_by_storage(status: int, code: str) -> bool:
    """Whether Azure Storage has certainly not carried out this write. After any other failure it may have.

    A 503 from an intermediary may come after the work was done; the service's own means that it was not started.
    """
    return status in _NEVER_DONE_BY_STORAGE or (status == 503 and code == "ServerBusy")


def storage_code_of(error: Exception) -> str:
    """The code of Azure Storage, like BlobNotFound; empty if it gave none."""
    found = getattr(error, "error_code", None)
    if found is None:
        found = headers_of(error).get("x-ms-error-code")
    return str(getattr(found, "value", found) or "")


def headers_of(error: Exception) -> Mapping[str, str]:
    """The headers of the answer that the error is about."""
    return getattr(getattr(error, "response", None), "headers", {})


def storage_retry_after_s(headers: Mapping[str, str]) -> float | None:
    """None for a date instead of seconds, because it refers to another machine's clock."""
    try:
        return min(max(0.0, float(headers.get("Retry-After", ""))), RETRY_AFTER_MAX_S)
    except ValueError:
        return None


def cosmos_retry_after_s(headers: Mapping[str, str]) -> float | None:
    try:
        return min(max(0.0, float(headers["x-ms-retry-after-ms"]) / 1000), RETRY_AFTER_MAX_S)
    except (KeyError, ValueError):
        return None


def first_line(error: Exception) -> str:
    text = without_tls_object(error).strip()
    return (text.splitlines() or [type(error).__name__])[0][:300]


def without_tls_object(error: Exception) -> str:
    """The error's text, without the TLS object that aiohttp shows in it."""
    return _TLS_OBJECT.sub("", str(error))
