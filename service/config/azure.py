"""Azure credentials, shared by leases, feeds and sinks."""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict

from pydantic import Field, SecretStr

from leasehold.common.azure import Identity
from leasehold.service.config.section import Section
from leasehold.service.config.types import NONE, Certificates, Credential, SecretOrNone, Text

IDENTITY = (
    "Instead of a key: `default` for the identity that azure-identity finds (this is also the default), or the client"
    " id of a managed identity. It needs the role "
)


class AzureCredentials(TypedDict):
    """The credentials that the connectors take, with secrets."""

    key: str | None
    connection_string: str | None
    identity: Identity | None


class WithCredential(Section):
    """A credential object, which only a program can give, instead of settings."""

    credential: Credential | None = Field(default=None, exclude=True, repr=False)

    def identity_or(self, name: str | None) -> Identity | None:
        """The identity or the credential. Raises ValueError if there are both."""
        if name is not None and self.credential is not None:
            raise ValueError("has both `identity` and `credential`: keep one of them")
        return name if self.credential is None else self.credential


def azure_credentials(
    key: SecretStr | None, connection_string: SecretStr | None, identity: Identity | None
) -> AzureCredentials:
    """Without a key, azure-identity finds the credentials."""
    is_anybody = identity is None and key is None and connection_string is None
    return {
        "key": None if key is None else key.get_secret_value(),
        "connection_string": None if connection_string is None else connection_string.get_secret_value(),
        "identity": "default" if is_anybody else identity,
    }


class StorageAccess(AzureCredentials):
    """The arguments of `storage_account_of`."""

    account_url: str | None
    ca_file: Path | None


class StorageAccountSettings(WithCredential):
    account_url: Text | None = Field(
        default=None, description="The address of the account's blobs, like https://account.blob.core.windows.net."
    )
    key: SecretOrNone = Field(
        default=NONE, description="One of the account's keys. By default azure-identity provides the credentials."
    )
    connection_string: SecretOrNone = Field(
        default=NONE,
        description="Instead of `account_url` and `key`, as the portal shows it; it may contain a signature (SAS).",
    )
    identity: Text | None = Field(default=None, description=IDENTITY + "Storage Blob Data Contributor.")
    ca_file: Certificates = Field(
        default=NONE, description="Certificates (PEM) to trust instead of the system's, for an emulator with its own."
    )

    @property
    def account(self) -> StorageAccess:
        """How to reach the account, with secrets."""
        return {
            "account_url": self.account_url,
            "ca_file": self.ca_file,
            **azure_credentials(self.key, self.connection_string, self.identity_or(self.identity)),
        }
