"""Leases in a container of Azure Blob Storage.

`store` implements the five calls, and `codec` maps ids and bodies to blobs (pure). `container` makes the requests. `account`
opens the connection for them, and translates the SDK's errors. `OthersBlobs` is for the blobs of other processors, and
`checkpoints` writes checkpoints that they can read.
"""

from leasehold.leases.stores.blob.account import BlobContainerAddress
from leasehold.leases.stores.blob.checkpoints import CheckpointBlobs
from leasehold.leases.stores.blob.container import LeaseBlobContainer
from leasehold.leases.stores.blob.store import BlobStore, OthersBlobs

__all__ = ["BlobStore", "CheckpointBlobs", "LeaseBlobContainer", "OthersBlobs", "BlobContainerAddress"]
