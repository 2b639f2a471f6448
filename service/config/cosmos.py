"""How a Cosmos DB account is reached: the same words for leases and for feeds."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, model_validator

from service.config.azure import IDENTITY, Whom, whom
from service.config.section import Section
from service.config.types import Certificates, Secret, Text


class Access(Whom):
    """The arguments of `pipeline.connectors.cosmos.account_of`."""

    endpoint: str | None
    ca_file: Path | None


class CosmosAccount(Section):
    endpoint: Text | None = Field(
        default=None, description="The account's address, like https://account.documents.azure.com."
    )
    key: Secret | None = Field(
        default=None,
        description="The account's key; to read a feed a read-only one will do. By default azure-identity provides the"
        " credentials.",
    )
    connection_string: Secret | None = Field(
        default=None, description="Instead of `endpoint` and `key`, as the portal shows it."
    )
    identity: Text | None = Field(default=None, description=IDENTITY + "Cosmos DB Built-in Data Reader.")
    ca_file: Certificates | None = Field(
        default=None, description="Certificates (PEM) to trust instead of the system's, for an emulator with its own."
    )

    @model_validator(mode="after")
    def _reaches(self) -> CosmosAccount:
        from pipeline.connectors.cosmos import account_of  # here, so that only who uses it waits for its SDK

        account_of(**self.account)
        return self

    @property
    def account(self) -> Access:
        """How to reach it, secrets and all."""
        return {
            "endpoint": self.endpoint,
            "ca_file": self.ca_file,
            **whom(self.key, self.connection_string, self.identity),
        }
