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
from leasehold.service.config.section import Section, StorageAccess, StorageAccount
from leasehold.service.config.types import BlobContainerName, FilePath, LeaseSeconds, Seconds, SecondsOrNone

if TYPE_CHECKING:
    from leasehold.leases.store import LeaseStore
    from leasehold.pipeline.feed import ChangeFeed
    from leasehold.service.config.section import FeedSettings


Feeds = Mapping[str, tuple["FeedSettings", "ChangeFeed"]]
"""The settings and the feed of each pipeline."""
DEFAULT_FILE: Any = Path("leases.db")


class LeaseSettings(Section):
    duration_s: LeaseSeconds = Field(
        default=Timing().duration_s, description="How long a lease stays valid without being renewed."
    )
    renew_s: LeaseSeconds | None = Field(
        default=None,
        description="The longest time between two renewals. By default 17/60 of `duration_s`, at most 17.",
    )
    balance_s: LeaseSeconds | None = Field(
        default=None,
        description="The longest interval between two scans of all leases; at most `renew_s`. By default 13/17 of"
        " `renew_s`, at most 13.",
    )
    call_timeout_s: Seconds | None = Field(
        default=None,
        description="How long one call to the lease store may take. By default a sixth of `duration_s`, at most 5.",
    )
    margin_s: SecondsOrNone | None = Field(
        default=None,
        description="How long before its lease expires an owner stops sending; it covers clocks of different speed."
        " By default a twelfth of `duration_s`, at most 5.",
    )
    sessions: Literal["auto", "off"] = Field(
        default="auto",
        description="Whether each host shows by one small document that it lives, so that idle leases need no writes. `auto`:"
        " yes, as soon as every host of the group can. `off`: every lease is renewed by itself.",
    )
    session_s: LeaseSeconds | None = Field(
        default=None,
        description="How long a host with a session may be silent before others take its leases. By default `duration_s`, at"
        " most 7.",
    )

    @property
    def timing(self) -> Timing:
        return derived_timing(
            self.duration_s,
            renew_s=self.renew_s,
            balance_s=self.balance_s,
            call_timeout_s=self.call_timeout_s,
            margin_s=self.margin_s,
            sessions=self.sessions == "auto",
            session_s=self.session_s,
        )

    @model_validator(mode="after")
    def _fits(self) -> LeaseSettings:
        fields = LeaseSettings.model_fields
        unset = {name for name in fields if name not in self.model_fields_set or getattr(self, name) is None}
        problems = self.timing.problems(unset)
        if self.sessions == "off" and self.session_s is not None:
            problems.append("session_s has no effect with sessions = off: remove one of them")
        if problems:
            raise ValueError("\n".join(problems))
        return self

    @property
    def place(self) -> str:
        """For people, and to tell lease stores apart; without secrets."""
        return f"the lease store '{getattr(self, 'type', '')}'"

    @property
    def is_place_unique(self) -> bool:
        """Whether no other lease store has this place."""
        return True

    @property
    def is_shared(self) -> bool:
        """Whether other processes see the leases, also those that start later."""
        return True

    @property
    def blobs(self) -> tuple[StorageAccess, str] | None:
        """The account and the container of leases in Azure Blob Storage."""
        return None

    @abstractmethod
    def make(self, feeds: Feeds, *, creates: bool) -> LeaseStore:
        """feeds: by pipeline; those of Cosmos DB give their leases their names.

        creates: whether a container that is missing may be made; otherwise looking into it raises StoreMissing.

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


class BlobLeases(StorageAccount, LeaseSettings):
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
