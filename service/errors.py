"""What stops a host, or keeps it from starting.

ServiceError
├── ConfigurationError    the settings are wrong; every problem is listed (service.config)
├── StartFailed           a feed, sink, store or Spark was not ready when the host started
└── BatchHung             a batch made no progress for batch_timeout_s
"""

from __future__ import annotations


class ServiceError(Exception):
    """Base of all errors of this package."""


class StartFailed(ServiceError):
    """Something that the host needs is not there. Nothing was processed."""


class BatchHung(ServiceError):
    """A transform, sink or handler hung: the batch was cancelled and its lease released."""
