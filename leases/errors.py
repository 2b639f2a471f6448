"""Everything that can go wrong with a lease.

LeasesError
├── StoreError                 the container did not confirm a call
│   ├── StoreConflict          412, 409: another writer was first; read again
│   ├── StoreMissing           404: the document does not exist
│   ├── StoreUnavailable       refused, throttled or too slow, and certainly not carried out; may be retried
│   └── StoreAmbiguous         sent, but the answer was lost; read again before anything else
├── Undecided                  it is not known yet where a partition begins; other partitions do not wait for it
├── InvalidDocument            a document that this version cannot trust
├── Incomparable               a position that the feed cannot compare with another
├── OwnershipLost              this host no longer holds the lease: stop, deliver nothing
│   └── LeaseReset             an operator moved its position: stop, and take the lease again
├── DuplicateHost              two live processes use the same host name
└── GroupMismatch              the leases were made for another feed or sink
    └── GroupMoved             the leases are in another lease store, or on their way
"""

from __future__ import annotations

RETRY_AFTER_MAX_S = 40.0
"""The longest pause that a store can demand: a wrong answer must not silence a host for an hour."""


class LeasesError(Exception):
    """Base of all errors of this package."""


class StoreError(LeasesError):
    """A call to the lease store that did not succeed."""


class StoreConflict(StoreError):
    """The ETag no longer matches, or the document to create exists. Read it again; never retry blindly with a new ETag."""


class StoreMissing(StoreError):
    """The document does not exist."""


class StoreUnavailable(StoreError):
    """The call was certainly not carried out. It may be retried, after `retry_after_s` if the container specified it.

    More than RETRY_AFTER_MAX_S counts as RETRY_AFTER_MAX_S.
    """

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = None if retry_after_s is None else min(retry_after_s, RETRY_AFTER_MAX_S)


class StoreAmbiguous(StoreError):
    """The write was sent and its answer lost: it may have happened, or may still happen. Read again."""


class Undecided(LeasesError):
    """It is not known yet where a partition begins, so the partition gets no lease in this round.

    is_slow: this has lasted for a while. needs_person: it will probably last until an operator acts.
    """

    def __init__(self, message: str, *, is_slow: bool = False, needs_person: bool = False) -> None:
        super().__init__(message)
        self.is_slow = is_slow
        self.needs_person = needs_person


class InvalidDocument(LeasesError):
    """A document that this version would not write: truncated, edited by hand, too large, or from a newer version."""


class Incomparable(LeasesError):
    """The feed does not know this position, so it cannot be compared with another."""


class OwnershipLost(LeasesError):
    """The lease has another owner, incarnation or epoch. Stop processing, and do not deliver anything in hand.

    taken_by: the new owner, if there is one.
    """

    def __init__(self, message: str, *, taken_by: str | None = None) -> None:
        super().__init__(message)
        self.taken_by = taken_by


class LeaseReset(OwnershipLost):
    """An operator moved the position (a new generation). Stop the work, then take the lease again."""


class DuplicateHost(LeasesError):
    """Another live process runs under this host's name. Give every host a name of its own (`host.name`)."""


class GroupMismatch(LeasesError):
    """These leases belong to a pipeline with another feed or sink. Use another pipeline name, or the old settings."""


class GroupMoved(GroupMismatch):
    """The leases of a pipeline were copied to another lease store, or are being copied. Use the configuration with that store."""
