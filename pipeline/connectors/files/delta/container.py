"""A Delta table in a container of Azure Blob Storage: what deltalake's own client needs of the account.

deltalake creates an entry of the log by Put Blob with If-None-Match: *, which the service answers with 409 if it exists.
Only the credentials of the settings are used. deltalake also reads variables such as AZURE_STORAGE_TOKEN, and prefers some of
them to the settings: if one of these is set, a table is not opened. An identity's token comes from azure-identity, as for all
other requests, and a table is opened again with each new one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from leasehold.common.azure import REFUSED_BY_STORAGE, STORAGE_REMEDIES, StorageAccount
from leasehold.pipeline.connectors.files.delta.table import Location
from leasehold.pipeline.connectors.files.sink.storage import FilesRefused, FilesUnavailable

RETRIES = 2
"""How many times deltalake repeats a request. A merge or compaction makes many, and starts over if one of them fails."""
_PLAIN = re.compile(r"[A-Za-z0-9_=.-]+")
_ANSWER = re.compile(r"non-2xx status code\W+(\d{3})\b")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_KEYS = frozenset(f"azure_storage_{name}_key" for name in ("account", "access", "master"))
_OF_FABRIC = frozenset(
    f"azure_fabric_{name}" for name in ("token_service_url", "workload_host", "session_token", "cluster_identifier")
)


def container_location(
    account: StorageAccount,
    container: str,
    *,
    prefix: str = "",
    timeout_s: float = 20.0,
    token: Callable[[], str] | None = None,
    read: Callable[[str], bytes | None] = lambda name: None,
    delete: Callable[[str], None] | None = None,
) -> Location:
    """token: gets a token of the account's identity, for an account without key and signature. read, delete: `get` and `delete`
    of a place with the same container and prefix. Raises ValueError.
    """
    check_prefix(prefix)
    folder = f"{container}/{prefix.strip('/')}".rstrip("/")
    known = options_of(account, timeout_s)
    address = f"{account.endpoint}/{folder}"

    def options() -> Mapping[str, str]:
        if (preferred := preferred_variables(account, os.environ)) is not None:
            raise FilesRefused(f"the Delta table {address} cannot be opened: {preferred}")
        return known if token is None else {**known, "azure_storage_token": token()}

    return Location(
        uri=f"az://{folder}",
        address=address,
        options=options,
        emulator=_root_of(account.endpoint) if account.is_emulator else None,
        read=read,
        delete=delete,
        explain=unavailable,
    )


def check_prefix(prefix: str) -> None:
    """With characters outside `_PLAIN` in the address, deltalake looks elsewhere for the last checkpoint. Raises ValueError."""
    parts = prefix.strip("/").split("/") if prefix.strip("/") else []
    if any(not _PLAIN.fullmatch(part) or part in (".", "..") for part in parts):
        raise ValueError(
            "`prefix` of a Delta table must consist of letters, digits and `-`, `_`, `.` or `=` (ASCII), in parts separated by"
            " one `/`: use another one"
        )


def options_of(account: StorageAccount, timeout_s: float) -> dict[str, str]:
    """deltalake's `storage_options`, without the token of an identity. They hold secrets."""
    wait = f"{max(1, round(timeout_s * 1000))}ms"
    options = {
        "azure_storage_account_name": account.name,
        "azure_storage_use_emulator": "true" if account.is_emulator else "false",
        "azure_skip_signature": "false",
        "azure_use_fabric_endpoint": "false",
        "timeout": wait,
        "connect_timeout": wait,
        "max_retries": str(RETRIES),
        "retry_timeout": wait,
    }
    if not account.is_emulator:
        options["azure_storage_endpoint"] = account.endpoint
        options["allow_http"] = "true" if account.endpoint.startswith("http:") else "false"
    if account.account_key is not None:
        options["azure_storage_account_key"] = account.account_key
    elif account.signature is not None:
        options["azure_storage_sas_token"] = account.signature
    return options


def preferred_variables(account: StorageAccount, environment: Mapping[str, str]) -> str | None:
    """What is wrong with the environment, and the next step: deltalake would use these variables instead of the settings.

    object_store looks for credentials in this order: all four variables of Fabric, a token, a key, an identity, a signature; with
    an emulator, for a key first. An option cannot be unset, and deltalake gets missing ones from the environment.
    """
    found = {name.lower(): name for name in environment if name.startswith("AZURE_")}
    if found.keys() >= _OF_FABRIC and not account.is_emulator:
        names = ", ".join(sorted(found[each] for each in _OF_FABRIC))
        return f"deltalake uses the environment variables {names} instead of the settings: unset one of them for this process"
    has_signature = account.signature is not None
    if account.account_key is None and (has_signature or account.is_emulator) and (keys := _KEYS & found.keys()):
        setting = "the signature of `connection_string`" if has_signature else "`identity`"
        name = found[min(keys)]
        return (
            f"deltalake uses the key in the environment variable {name} instead of {setting}: unset it for this process"
        )
    return None


def unavailable(what: str, error: str) -> FilesUnavailable:
    """error: deltalake's, which shows the service's answer."""
    if (found := _ANSWER.search(error)) is None:
        return FilesUnavailable(f"{what}: {error}")
    status, code = int(found[1]), _CODE.search(error)
    answer = f"{what}: Azure Storage answered {status}" + (f" ({code[1]})" if code else "")
    kind = FilesRefused if status in REFUSED_BY_STORAGE else FilesUnavailable
    return kind(f"{answer}: {STORAGE_REMEDIES.get(status, 'try again later')}")


def _root_of(endpoint: str) -> str:
    parts = urlsplit(endpoint)
    return f"{parts.scheme}://{parts.netloc}"
