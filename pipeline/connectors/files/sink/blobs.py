"""A container of Azure Blob Storage as a place for files; the only module that uses azure-storage-blob.

`put` is Put Blob with If-None-Match: *, which the service answers with 409 if the blob exists. The SDK sends each request once:
if it repeated a put whose answer was lost, the put would look like another writer's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import urlsplit

from azure.core.credentials import AccessToken
from azure.core.exceptions import AzureError, ClientAuthenticationError, HttpResponseError, ServiceRequestError
from azure.storage.blob import BlobServiceClient, ContainerClient

from leasehold.common.addresses import is_nowhere_at_once
from leasehold.common.azure import (
    REFUSED_BY_STORAGE,
    STORAGE_REMEDIES,
    StorageAccount,
    blocking_credential_of,
    first_line,
    headers_of,
    is_refused_by_storage,
    storage_code_of,
    storage_retry_after_s,
)
from leasehold.pipeline.connectors.files.sink.storage import (
    FilesError,
    FilesNowhere,
    FilesRefused,
    FilesUnavailable,
    FilesUncertain,
)

T = TypeVar("T")
_IS_THERE = frozenset(("BlobAlreadyExists", "ConditionNotMet", "BlobImmutableDueToPolicy"))
_SCOPE = "https://storage.azure.com/.default"
TOKEN_LEFT_S = 300
"""A token that is valid for less is replaced by a new one, as azure-identity does."""
_SINGLE_PUT_BYTES_MAX = 256 * 1024 * 1024


class BlobContainer:
    """prefix: the beginning of all names, like a folder. timeout_s: how long a request may remain without an answer."""

    def __init__(self, account: StorageAccount, container: str, *, prefix: str = "", timeout_s: float = 20.0) -> None:
        self._account = account
        self._container = container
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._timeout_s = timeout_s
        self._connecting = threading.Lock()
        self._service: BlobServiceClient | None = None
        self._credential: Any = None
        self._getting_token = threading.Lock()
        self._token: AccessToken | None = None

    @property
    def identity(self) -> str:
        """Distinguishes accounts by their address, without a request."""
        return f"files:{self._to().url.partition('?')[0]}/{self._prefix}".rstrip("/")

    def prepare(self) -> None:
        try:
            self._create()
        except FilesRefused:
            raise
        except FilesUnavailable as error:
            if is_nowhere_at_once(urlsplit(self._to().url).hostname or ""):
                raise FilesNowhere(f"{error}: its host does not exist") from error
            raise

    def _create(self) -> None:
        try:
            self._run("creating it", lambda to: to.create_container(), is_write=False)
        except FilesUnavailable as error:
            if "ContainerAlreadyExists" not in str(error):
                self._run("looking for it", _look, is_write=False)

    def token(self) -> str:
        """A token of the identity, for another client of the account.

        It is kept until shortly before it expires: for the login of `az`, azure-identity starts a program for each token.
        """
        self._to()
        assert self._credential is not None, "an account without a key has an identity"
        try:
            with self._getting_token:
                if self._token is None or self._token.expires_on - time.time() < TOKEN_LEFT_S:
                    self._token = self._credential.get_token(_SCOPE)
                return str(self._token.token)
        except AzureError as error:
            container = f"blob container '{self._container}'"
            if isinstance(error, ClientAuthenticationError):
                raise FilesRefused(f"{container}: {_without_credentials(error)}") from error
            raise FilesUnavailable(
                f"{container}: no token for the identity ({first_line(error)}): check that its service can be reached"
            ) from error

    def put(self, name: str, content: bytes) -> bool:
        try:
            self._run(f"putting '{name}'", lambda to: self._put(to, name, content), is_write=True)
        except _Exists:
            return False
        return True

    def get(self, name: str) -> bytes | None:
        try:
            return self._run(f"reading '{name}'", lambda to: self._got(to, name), is_write=False)
        except _Missing:
            return None

    def size(self, name: str) -> int | None:
        def asked(to: ContainerClient) -> int:
            return int(to.get_blob_client(self._prefix + name).get_blob_properties().size)

        try:
            return self._run(f"looking for '{name}'", asked, is_write=False)
        except _Missing:
            return None

    def names(self, folder: str) -> list[str]:
        start = f"{self._prefix}{folder}/"

        def listed(to: ContainerClient) -> list[str]:
            return [found[len(self._prefix) :] for found in to.list_blob_names(name_starts_with=start)]

        return self._run(f"listing '{folder}'", listed, is_write=False)

    def delete(self, name: str) -> None:
        try:
            # what is deleted is never named again, so a lost answer does not matter
            self._run(f"deleting '{name}'", lambda to: to.delete_blob(self._prefix + name), is_write=False)
        except _Missing:
            return

    def locate(self, name: str) -> str:
        return str(self._to().get_blob_client(self._prefix + name).url).partition("?")[0]

    def for_executors(self, mark: str) -> None:
        """None: only the host has the credentials of the account."""
        return

    def close(self) -> None:
        with self._connecting:
            service, self._service = self._service, None
            credential, self._credential = self._credential, None
        if service is not None:
            service.close()
        if credential is not None:
            credential.close()

    def _put(self, to: ContainerClient, name: str, content: bytes) -> None:
        to.upload_blob(self._prefix + name, content, overwrite=False, max_concurrency=1)

    def _got(self, to: ContainerClient, name: str) -> bytes:
        return bytes(to.download_blob(self._prefix + name, max_concurrency=1).readall())

    def _run(self, doing: str, call: Callable[[ContainerClient], T], *, is_write: bool) -> T:
        what = f"blob container '{self._container}', {doing}"
        try:
            return call(self._to())
        except (AzureError, OSError) as error:
            raise _translated(error, what, is_write) from error

    def _to(self) -> ContainerClient:
        with self._connecting:
            if self._service is None:
                try:
                    self._service = self._connected()
                except ValueError as error:
                    raise FilesRefused(
                        f"blob container '{self._container}' cannot be reached ({error}): look at its settings"
                    ) from error
            return self._service.get_container_client(self._container)

    def _connected(self) -> BlobServiceClient:
        account = self._account
        options: dict[str, Any] = {
            "retry_total": 0,
            "connection_timeout": self._timeout_s,
            "read_timeout": self._timeout_s,
            "max_single_put_size": _SINGLE_PUT_BYTES_MAX,
        }
        if account.ca_file is not None:
            options["connection_verify"] = str(account.ca_file)
        if account.connection_string is not None:
            return BlobServiceClient.from_connection_string(account.connection_string, **options)
        assert account.url is not None
        self._credential = None if account.key else blocking_credential_of(account.identity)
        return BlobServiceClient(account.url, credential=account.key or self._credential, **options)


class _Exists(FilesError):
    """There is such a blob."""


class _Missing(FilesError):
    """There is no such blob."""


def _look(to: ContainerClient) -> None:
    """Any signature or role that lets the sink work also permits a listing."""
    next(iter(to.list_blob_names(results_per_page=1)), None)


def _without_credentials(error: ClientAuthenticationError) -> str:
    return f"no Azure credentials found ({first_line(error)}): run `az login`, or set `key`"


def _translated(error: Exception, what: str, is_write: bool) -> FilesError:
    if isinstance(error, HttpResponseError) and error.status_code:
        return _answered(error, what, is_write)
    if isinstance(error, ClientAuthenticationError):
        return FilesRefused(f"{what}: {_without_credentials(error)}")
    if is_write and not isinstance(error, ServiceRequestError):
        return FilesUncertain(f"{what}: the answer was lost ({first_line(error)}): it may or may not have been done")
    if is_write and not _is_unreached(error):
        return FilesUncertain(f"{what}: the connection broke ({first_line(error)}): it may or may not have been done")
    return FilesUnavailable(f"{what}: the account cannot be reached ({first_line(error)}): look at its address")


def _answered(error: HttpResponseError, what: str, is_write: bool) -> FilesError:
    status, code = error.status_code or 0, storage_code_of(error)
    if is_write and status in (409, 412) and code in _IS_THERE:
        return _Exists(what)
    if status == 404 and code in ("BlobNotFound", "ResourceNotFound"):
        return _Missing(what)
    answer = f"{what}: Azure Storage answered {status}" + (f" ({code})" if code else "")
    if is_write and not is_refused_by_storage(status, code):
        return FilesUncertain(f"{answer}: it may or may not have been done")
    kind = FilesRefused if status in REFUSED_BY_STORAGE else FilesUnavailable
    remedy = STORAGE_REMEDIES.get(status) or first_line(error)
    return kind(f"{answer}: {remedy}", retry_after_s=storage_retry_after_s(headers_of(error)))


def _is_unreached(error: Exception) -> bool:
    """Whether no connection was established, so nothing was sent. The SDK raises the same error for broken connections."""
    inner = str(getattr(error, "inner_exception", "") or error)
    return any(sign in inner for sign in ("NewConnectionError", "Failed to establish", "Name or service not known"))
