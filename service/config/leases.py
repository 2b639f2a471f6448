"""Settings of the lease stores, and of how long leases last."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from leasehold.common.azure import storage_account_of
from leasehold.leases.timing import Timing, derived_timing
from leasehold.service.config.azure import StorageAccess, StorageAccountSettings
from leasehold.service.config.section import Section
from leasehold.service.config.types import BlobContainerName, FilePath, LeaseSeconds, Seconds

if TYPE_CHECKING:
    from leasehold.leases.store import LeaseStore
    from leasehold.pipeline.feed import ChangeFeed
    from leasehold.service.config.section import FeedSettings


Feeds = Mapping[str, tuple["FeedSettings", "ChangeFeed"]]
"""The settings and the feed of each pipeline."""
DEFAULT_FILE: Any = Path("leases.db")


class LeaseSettings(Section):
    duration_s: LeaseSeconds = Field(
        default=Timing().duration_s, description="How long a host may be silent before others take its leases."
    )
    balance_s: LeaseSeconds | None = Field(
        default=None,
        description="The longest interval between two rounds, which notice new partitions. By default 13/7 of `duration_s`, at"
        " most 13.",
    )
    call_timeout_s: Seconds | None = Field(
        default=None,
        description="How long one call about leases may take: a store that is slower counts as out of reach. By default 5/7 of"
        " `duration_s`, at most 5.",
    )

    @property
    def timing(self) -> Timing:
        return derived_timing(self.duration_s, balance_s=self.balance_s, call_timeout_s=self.call_timeout_s)

    @property
    def place(self) -> str:
        """The store's place, for people, and to tell lease stores apart; without secrets."""
        return f"the lease store '{getattr(self, 'type', '')}'"

    @property
    def is_place_unique(self) -> bool:
        """Whether no other lease store has this place."""
        return True

    @property
    def is_shared(self) -> bool:
        """Whether other processes see the leases, even those that start later."""
        return True

    @property
    def blobs(self) -> tuple[StorageAccess, str] | None:
        """The account and the container of leases in Azure Blob Storage."""
        return None

    @abstractmethod
    def make(self, feeds: Feeds, *, creates: bool) -> LeaseStore:
        """feeds: by pipeline; feeds of Cosmos DB determine the names of their leases.

        creates: whether a missing container may be created; otherwise reading it raises StoreMissing.

        Raises ValueError, StartFailed.
        """


class SqliteLeases(LeaseSettings):
    """Leases in a file on a local disk, for the processes of one machine."""

    type: Literal["sqlite"] = Field(
        default="sqlite", description="A file on a local disk, for the processes of one machine."
    )
    path: FilePath = Field(default=DEFAULT_FILE, description="The file. It is created if missing.")

    @property
    def place(self) -> str:
        return str(self.path)

    def make(self, feeds: Feeds, *, creates: bool) -> LeaseStore:
        from leasehold.leases.stores.sqlite import SqliteStore

        return SqliteStore(self.path, busy_timeout_s=self.timing.call_timeout_s / 2, creates=creates)


class BlobLeases(StorageAccountSettings, LeaseSettings):
    """Leases in a container of Azure Blob Storage, for hosts anywhere."""

    type: Literal["blob"] = Field(default="blob", description="A container in Azure Blob Storage, for hosts anywhere.")
    container: BlobContainerName = Field(
        default="leases",
        description="The container's name. It is created if it does not exist and Leasehold has permission.",
    )

    @model_validator(mode="after")
    def _reaches_it(self) -> BlobLeases:
        storage_account_of(**self.account)
        return self

    @property
    def place(self) -> str:
        address = urlsplit(storage_account_of(**self.account).endpoint)
        server = address.netloc.rpartition("@")[2].lower().removesuffix(":443")
        return f"blob container '{self.container}' at {server}{address.path}"

    @property
    def blobs(self) -> tuple[StorageAccess, str]:
        return self.account, self.container

    def make(self, feeds: Feeds, *, creates: bool) -> LeaseStore:
        from leasehold.leases.stores.blob import BlobContainerAddress, BlobStore, LeaseBlobContainer

        place = BlobContainerAddress(container=self.container, creates=creates)
        account, timeout_s = storage_account_of(**self.account), self.timing.call_timeout_s
        return BlobStore(LeaseBlobContainer(account, place, call_timeout_s=timeout_s))


class MemoryLeases(LeaseSettings):
    """Leases in the memory of this process, for tests."""

    type: Literal["memory"] = Field(
        default="memory", description="This process's memory: nothing is shared, nothing survives."
    )

    @property
    def is_shared(self) -> bool:
        return False

    def make(self, feeds: Feeds, *, creates: bool) -> LeaseStore:
        from leasehold.leases.stores.memory import MemoryStore

        return MemoryStore()
