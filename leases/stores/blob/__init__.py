"""Leases in a container of Azure Blob Storage.

`store` is the five calls; `names` says which blob stands for which id and `codec` how a body lies in one (both pure);
`container` makes the requests over what `connection` opens, and `error_mapping` says what the SDK's errors mean (pure).
`others` reads what other processors left.
"""

from leases.stores.blob.account import Account, account_of
from leases.stores.blob.connection import Place
from leases.stores.blob.container import Container
from leases.stores.blob.others import OthersBlobs
from leases.stores.blob.store import BlobStore

__all__ = ["Account", "BlobStore", "Container", "OthersBlobs", "Place", "account_of"]
