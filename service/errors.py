"""Errors that stop a host, keep it from starting, or refuse an operator's action.

ServiceError
├── ConfigurationError    the settings are wrong; every problem is listed
├── StartFailed           a feed, sink, store or Spark was not ready when the host started
├── NotNow                the lease's state does not allow an operator's action
├── NothingToImport       the input of an import has no leases of the pipeline and its feed
└── BatchHung             a batch made no progress for batch_timeout_s
"""

from __future__ import annotations


class ServiceError(Exception):
    """Base of all errors of this package."""


class ConfigurationError(ServiceError, ValueError):
    """The settings of a file or of a program are wrong. `problems`: one line each, with place, problem and remedy."""

    def __init__(self, source: str, problems: list[str]) -> None:
        super().__init__(
            "\n".join(
                (f"{source}: {len(problems)} problem{'s' * (len(problems) != 1)}", *(f"  {each}" for each in problems))
            )
        )
        self.problems = tuple(problems)


class StartFailed(ServiceError):
    """Something that the host needs is not available. Nothing was processed."""


class NotNow(ServiceError):
    """The state of the lease, or of the host that should get it, forbids the action. Nothing was written; the message says what
    would help."""


class NothingToImport(ServiceError):
    """The input is missing, of another pipeline or feed, or holds no leases."""


class BatchHung(ServiceError):
    """A transform, sink or handler hung: the batch was cancelled and its lease released."""
