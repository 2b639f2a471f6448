"""Everything that can go wrong with a lease.

LeasesError
├── StoreError                 the container said something other than yes
│   ├── StoreConflict          412, 409: somebody else wrote first; read again
│   ├── StoreMissing           404: there is no such document
│   ├── StoreUnavailable       refused, throttled or too slow, and surely not carried out; may be tried again
│   └── StoreAmbiguous         sent, and the answer lost; read again before anything else
├── Undecided                  where a partition begins is not known yet; others need not wait for it
├── InvalidDocument            a document that this version cannot trust
├── Incomparable               a position that the feed cannot place beside another
├── LeaseLost                  the lease is no longer ours: stop, deliver nothing
│   └── LeaseReset             an operator moved its position: stop, and take it again
├── DuplicateHost              two live processes under one host name
└── GroupMismatch              the leases were made for another feed or sink
"""

from __future__ import annotations


class LeasesError(Exception):
    """Base of all errors of this package."""


class StoreError(LeasesError):
    """A call to the lease container that did not succeed."""


class StoreConflict(StoreError):
    """The ETag no longer matches, or the document to create exists. Read it again; never retry blindly with a new ETag."""


class StoreMissing(StoreError):
    """There is no such document."""


class StoreUnavailable(StoreError):
    """The call was surely not carried out. It may be tried again, after `retry_after_s` where the container said so."""

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class StoreAmbiguous(StoreError):
    """The write was sent and its answer lost: it may have happened, and may even still happen. Read again."""


class Undecided(LeasesError):
    """Where a partition begins is not known yet: it gets no lease in this round. is_slow: it has been so for a while."""

    def __init__(self, message: str, *, is_slow: bool = False) -> None:
        super().__init__(message)
        self.is_slow = is_slow


class InvalidDocument(LeasesError):
    """A document that is not what this version writes: truncated, hand-edited, too large, or from the future."""


class Incomparable(LeasesError):
    """The feed does not know such a position, so nobody can tell whether it lies before another."""


class LeaseLost(LeasesError):
    """The lease has another owner, incarnation or epoch. Stop the work; whatever is in hand must not be delivered.

    taken_by: the new owner, where there is one.
    """

    def __init__(self, message: str, *, taken_by: str | None = None) -> None:
        super().__init__(message)
        self.taken_by = taken_by


class LeaseReset(LeaseLost):
    """An operator moved the position (a new generation). Stop the work, then take the lease again."""


class DuplicateHost(LeasesError):
    """Another live process runs under this host's name. Give every host a name of its own (`host.name`)."""


class GroupMismatch(LeasesError):
    """These leases belong to a pipeline with another feed or sink. Use another pipeline name, or the old settings."""
