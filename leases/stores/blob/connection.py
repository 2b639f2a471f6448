"""How the container is reached: as whom, over which TLS, and that the SDK repeats nothing by itself."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Any

from azure.identity.aio import DefaultAzureCredential
from azure.storage.blob.aio import BlobServiceClient, ContainerClient

from leases.stores.azure.http import OnceOverTls, PatientCredential
from leases.stores.blob.account import Account
from leases.stores.blob.error_mapping import pause_s


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
