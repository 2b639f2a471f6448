"""What stops a host, or keeps it from starting.

ServiceError
├── ConfigurationError    the settings are wrong; every problem is listed (leasehold.service.config.load)
├── StartFailed           a feed, sink, store or Spark was not ready when the host started
├── NotNow                the lease's state does not allow an operator's action
├── NothingToImport       the input of an import is not of the announced kind
└── BatchHung             a batch made no progress for batch_timeout_s
"""

from __future__ import annotations


class ServiceError(Exception):
    """Base of all errors of this package."""


class StartFailed(ServiceError):
    """Something that the host needs is not there. Nothing was processed."""


class NotNow(ServiceError):
    """The lease, or the host that it was to go to, is not in a state for it. Nothing was written; the message says what would."""


class NothingToImport(ServiceError):
    """The input is missing, of another pipeline or feed, or holds no leases."""


class BatchHung(ServiceError):
    """A transform, sink or handler hung: the batch was cancelled and its lease released."""
