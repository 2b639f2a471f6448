"""How an account of Azure Storage is reached: the same words for leases and for files."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from service.config.azure_credentials import IDENTITY, Whom, whom
from service.config.section import Section
from service.config.types import Certificates, Secret, Text


class Access(Whom):
    """The arguments of the connectors' `account_of`."""

    account_url: str | None
    ca_file: Path | None


class StorageAccount(Section):
    account_url: Text | None = Field(
        default=None, description="The address of the account's blobs, like https://account.blob.core.windows.net."
    )
    key: Secret | None = Field(
        default=None, description="One of the account's keys. By default azure-identity provides the credentials."
    )
    connection_string: Secret | None = Field(
        default=None,
        description="Instead of `account_url` and `key`, as the portal shows it; one with a signature (SAS) too.",
    )
    identity: Text | None = Field(default=None, description=IDENTITY + "Storage Blob Data Contributor.")
    ca_file: Certificates | None = Field(
        default=None, description="Certificates (PEM) to trust instead of the system's, for an emulator with its own."
    )

    @property
    def account(self) -> Access:
        """How to reach it, secrets and all."""
        return {
            "account_url": self.account_url,
            "ca_file": self.ca_file,
            **whom(self.key, self.connection_string, self.identity),
        }
