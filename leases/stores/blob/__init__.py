"""Leases in a container of Azure Blob Storage.

`store` implements the five calls; `codec` maps ids and bodies to blobs (pure); `container` makes the requests over what `account`
opens, which also translates the SDK's errors. `OthersBlobs` reads what other processors left, and `checkpoints` writes for them.
"""

from leasehold.leases.stores.blob.account import BlobContainerAddress
from leasehold.leases.stores.blob.checkpoints import CheckpointBlobs
from leasehold.leases.stores.blob.container import LeaseBlobContainer
from leasehold.leases.stores.blob.store import BlobStore, OthersBlobs

__all__ = ["BlobStore", "CheckpointBlobs", "LeaseBlobContainer", "OthersBlobs", "BlobContainerAddress"]
