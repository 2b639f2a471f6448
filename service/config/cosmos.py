"""Azure Cosmos DB: as a feed, as a sink, and for leases."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from pydantic import Field, model_validator

from leasehold.common.azure import cosmos_account_of
from leasehold.leases import dotnet
from leasehold.leases.errors import StoreUnavailable
from leasehold.pipeline.errors import FeedError
from leasehold.service.config.azure import IDENTITY, AzureCredentials, WithCredential, azure_credentials
from leasehold.service.config.leases import Feeds, LeaseSettings
from leasehold.service.config.section import Buffering, FeedContext, FeedSettings
from leasehold.service.config.types import (
    NONE,
    Certificates,
    Count,
    ProcessorName,
    Seconds,
    SecretOrNone,
    Text,
    Variable,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from leasehold.leases.store import LeaseStore
    from leasehold.leases.timing import Timing
    from leasehold.pipeline.connectors.cosmos import CosmosChangeFeed
    from leasehold.pipeline.feed import ChangeFeed
    from leasehold.pipeline.sink import Sink


class CosmosAccess(AzureCredentials):
    """The arguments of `cosmos_account_of`."""

    endpoint: str | None
    ca_file: Path | None


class CosmosAccountSettings(WithCredential):
    endpoint: Text | None = Field(
        default=None, description="The account's address, like https://account.documents.azure.com."
    )
    key: SecretOrNone = Field(
        default=NONE,
        description="The account's key; for a feed, a read-only key is enough. By default azure-identity provides the"
        " credentials.",
    )
    connection_string: SecretOrNone = Field(
        default=NONE, description="Instead of `endpoint` and `key`, as the portal shows it."
    )
    identity: Text | None = Field(default=None, description=IDENTITY + "Cosmos DB Built-in Data Reader.")
    ca_file: Certificates = Field(
        default=NONE, description="Certificates (PEM) to trust instead of the system's, for an emulator with its own."
    )

    @model_validator(mode="after")
    def _reaches(self) -> CosmosAccountSettings:
        cosmos_account_of(**self.account)
        return self

    @property
    def account(self) -> CosmosAccess:
        """How to reach the account, with secrets."""
        return {
            "endpoint": self.endpoint,
            "ca_file": self.ca_file,
            **azure_credentials(self.key, self.connection_string, self.identity_or(self.identity)),
        }


class CosmosFeed(CosmosAccountSettings, FeedSettings):
    """The change feed of a container in Cosmos DB. Each of its physical ranges is a partition."""

    type: Literal["cosmos"] = Field(
        default="cosmos",
        description="The change feed of a Cosmos DB container; each of its physical ranges is a partition.",
    )
    database: Text = Field(description="The database's name.")
    container: Text = Field(description="The container's name.")
    mode: Literal["latest", "all_versions"] = Field(
        default="latest",
        description="`latest`: the latest version of each changed document. `all_versions`: all versions and deletes"
        " from the start of the pipeline on (`start: latest`).",
    )
    page_items_max: Count = Field(
        default=1000,
        description="The most documents to ask for at once; halved if the account does not answer in time.",
    )
    poll_interval_s: Seconds = Field(default=1.0, description="How often to look for changes if there were none.")
    timeout_s: Seconds = Field(default=20.0, description="How long one request may take.")
    processor_name: ProcessorName | None = Field(
        default=None,
        description="The name in the leases' ids, if they are in Cosmos DB too, as in .NET and in KEDA: set the name of a .NET"
        " processor to take over its leases. By default the pipeline's name.",
    )
    executors_env: Variable | None = Field(
        default=None,
        description="With `executors_read` and a key: the environment variable of Spark's executors that holds a key of the"
        " account; a read-only one is enough.",
    )

    @model_validator(mode="after")
    def _fits(self) -> CosmosFeed:
        if self.mode == "all_versions" and any(start != "latest" for start in (self.start, *self.starts.values())):
            raise ValueError("`mode: all_versions` requires `start: latest`, and in `starts` for each partition too")
        return self

    @property
    def executors_lack(self) -> str | None:
        if self.executors_env is None and (self.key is not None or self.connection_string is not None):
            return "the feed's `executors_env`, the environment variable of the executors that holds the account's key"
        return None

    def monitored(self, pipeline: str, feed: ChangeFeed) -> MonitoredContainer:
        return MonitoredContainer(feed, pipeline if self.processor_name is None else self.processor_name)

    def make(self, context: FeedContext) -> ChangeFeed:
        from leasehold.pipeline.connectors.cosmos import CosmosChangeFeed, PageLimits

        return CosmosChangeFeed(
            cosmos_account_of(**self.account),
            self.database,
            self.container,
            mode=self.mode,
            pages=PageLimits(items_max=self.page_items_max),
            poll_interval_s=self.poll_interval_s,
            timeout_s=self.timeout_s,
            executors_env=self.executors_env,
        )


class CosmosSink(CosmosAccountSettings, Buffering):
    """A container of Cosmos DB, into which rows are written as documents, at least once."""

    type: Literal["cosmos"] = Field(
        default="cosmos",
        description="A Cosmos DB container, whose documents are upserted, patched or deleted; every row at least once.",
    )
    key: SecretOrNone = Field(
        default=NONE, description="The account's key. By default azure-identity provides the credentials."
    )
    identity: Text | None = Field(default=None, description=IDENTITY + "Cosmos DB Built-in Data Contributor.")
    database: Text = Field(description="The database's name.")
    container: Text = Field(description="The container's name. It has to exist.")
    content: Literal["row", "body"] = Field(
        default="row", description="A document: all columns but `operation`, or the JSON object in the column `body`."
    )
    operation: Text = Field(
        default="operation",
        description="The column with the operation for a row's document: null, `create`, `replace` or `upsert`,"
        " `patch`, `delete`. Without such a column, all rows are upserted.",
    )
    patch_missing: Literal["stop", "skip"] = Field(
        default="stop", description="What to do about a patch whose document does not exist."
    )
    batch_entries_max: Count = Field(default=25, description="The most documents in one group of writes.")
    batch_bytes_max: Count = Field(default=8 * 1024 * 1024, description="The most bytes in one group of writes.")
    entry_bytes_max: Count = Field(
        default=2 * 1024 * 1024, description="A larger document stops its partition; at most `batch_bytes_max`."
    )
    in_flight_max: Count = Field(
        default=4, description="The most groups of writes of one partition at a time, if all goes well."
    )
    buffered_entries_max: Count = Field(
        default=5_000,
        description="The most documents of one partition from the first that is not acknowledged to the last that was taken."
        " Reading pauses at this limit. At least `batch_entries_max`.",
    )

    def make(self, timing: Timing, *, letters: bool = False) -> Sink:
        from leasehold.pipeline.connectors.cosmos import cosmos_sink

        return cosmos_sink(
            cosmos_account_of(**self.account),
            self.database,
            self.container,
            content=self.content,
            operation=self.operation,
            patch_missing=self.patch_missing,
            limits=self.limits,
        )

    def check_output(self, table: pa.Table) -> None:
        """Checks everything but the container's partition key, which only the service knows."""
        from leasehold.pipeline.async_sink.json_rows import check_rows
        from leasehold.pipeline.connectors.cosmos.point_operations import Writing

        writing = Writing(content=self.content, operation=self.operation, key_paths=())
        check_rows(table, writing, "the container")


class CosmosLeases(CosmosAccountSettings, LeaseSettings):
    """Leases in a container of Cosmos DB, for hosts anywhere, in the documents of the .NET processor."""

    type: Literal["cosmos"] = Field(
        default="cosmos",
        description="A container in Cosmos DB, for hosts anywhere; leases of Cosmos feeds as the .NET processor keeps them.",
    )
    identity: Text | None = Field(default=None, description=IDENTITY + "Cosmos DB Built-in Data Contributor.")
    database: Text = Field(description="The database's name.")
    container: Text = Field(
        default="leases",
        description="The container's name. It is created if it does not exist and Leasehold has permission, with the"
        " partition key /id.",
    )

    @property
    def place(self) -> str:
        host = cosmos_account_of(**self.account).host
        return f"Cosmos DB container '{self.database}/{self.container}' at {host}"

    def make(self, feeds: Feeds, *, creates: bool) -> LeaseStore:
        from leasehold.leases.stores.cosmos import CosmosContainerAddress, CosmosStore, LeaseContainer

        found = {name: settings.monitored(name, feed) for name, (settings, feed) in feeds.items()}
        monitored = {name: container for name, container in found.items() if container is not None}
        place = CosmosContainerAddress(database=self.database, container=self.container, creates=creates)
        container = LeaseContainer(cosmos_account_of(**self.account), place, call_timeout_s=self.timing.call_timeout_s)
        return CosmosStore(container, monitored)


class MonitoredContainer:
    """`leasehold.leases.stores.cosmos.Monitored` of a feed: leases are named after processor, account and container."""

    def __init__(self, feed: ChangeFeed, processor: str) -> None:
        self._feed = cast("CosmosChangeFeed", feed)
        self._processor = processor

    @property
    def mode(self) -> str:
        return dotnet.FULL_FIDELITY if self._feed.mode == "all_versions" else dotnet.INCREMENTAL

    async def read_lease_prefix(self) -> str:
        """Raises StoreUnavailable."""
        try:
            rid = await self._feed.read_container_rid()
            return dotnet.lease_prefix(self._processor, self._feed.endpoint_host, dotnet.database_rid(rid), rid)
        except (FeedError, ValueError) as error:
            raise StoreUnavailable(f"leases are named after the container that is read, and: {error}") from error
