"""Azure credentials, shared by leases, feeds and sinks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

from pydantic import AfterValidator, Field, model_validator

from leasehold.common.azure import cosmos_account_of
from service.config.section import Section
from service.config.types import Certificates, Secret, Text

# How an event hub is reached: the same words for feed and sink.


def _consumer_group(name: str) -> str:
    from pipeline.connectors.eventhubs import is_consumer_group  # here, so that only who uses it waits for its SDK

    if not is_consumer_group(name):
        raise ValueError("must be the name of a consumer group, like $Default")
    return name


ConsumerGroup = Annotated[Text, AfterValidator(_consumer_group)]


Seat = tuple[str, str]


class EventHub(Section):
    connection_string: Secret | None = Field(
        default=None,
        description="As the portal shows it, of the namespace or of the hub (`EntityPath=...`); a sink's has to allow sending and"
        " listening. With `UseDevelopmentEmulator=true` it is spoken to without TLS.",
    )
    namespace: Text | None = Field(
        default=None, description="Instead of a connection string: NAMESPACE.servicebus.windows.net."
    )
    event_hub: Text | None = Field(
        default=None, description="The hub's name, where the connection string does not say it."
    )
    identity: Text | None = Field(
        default=None,
        description="With `namespace`: `default` for the identity that azure-identity finds (this is also the"
        " default), or the client id of a managed identity. It needs the role Azure Event Hubs Data Receiver, and for"
        " a sink Data Sender too.",
    )
    transport: Literal["amqp", "websockets"] = Field(
        default="amqp",
        description="AMQP on port 5671, or in WebSockets on port 443, where a firewall lets nothing else through.",
    )
    ca_file: Certificates | None = Field(
        default=None,
        description="Authorities (PEM) to trust instead of the usual ones, for a namespace behind a proxy.",
    )

    @model_validator(mode="after")
    def _reaches(self) -> EventHub:
        from pipeline.connectors.eventhubs import account_of  # here, so that only who uses it waits for its SDK

        account_of(**self.account)
        return self

    @property
    def account(self) -> dict[str, Any]:
        """How to reach it, secrets and all."""
        secret = self.connection_string
        is_anybody = self.identity is None and secret is None and self.namespace is not None
        return {
            "connection_string": None if secret is None else secret.get_secret_value(),
            "namespace": self.namespace,
            "event_hub": self.event_hub,
            "identity": "default" if is_anybody else self.identity,
            "transport": self.transport,
            "ca_file": None if self.ca_file is None else str(self.ca_file),
        }

    def seat(self, consumer_group: str) -> Seat:
        """Hub and consumer group: a reader with an epoch excludes other readers of its partition there."""
        from pipeline.connectors.eventhubs import account_of

        return account_of(**self.account).name.lower(), consumer_group.lower()


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
    """Without a key, azure-identity finds the credentials."""
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


# How an account of Azure Storage is reached: the same words for leases and for files.


class StorageAccess(Whom):
    """The arguments of `storage_account_of`."""

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
    def account(self) -> StorageAccess:
        """How to reach it, secrets and all."""
        return {
            "account_url": self.account_url,
            "ca_file": self.ca_file,
            **whom(self.key, self.connection_string, self.identity),
        }


# How a Cosmos DB account is reached: the same words for leases and for feeds.


class CosmosAccess(Whom):
    """The arguments of `cosmos_account_of`."""

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
        cosmos_account_of(**self.account)
        return self

    @property
    def account(self) -> CosmosAccess:
        """How to reach it, secrets and all."""
        return {
            "endpoint": self.endpoint,
            "ca_file": self.ca_file,
            **whom(self.key, self.connection_string, self.identity),
        }
