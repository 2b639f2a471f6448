"""What can go wrong when something is published, in the words of the Event Hubs design proposal.

PublishError               reason, is_transient, outcome; the message says what to do
├── AlreadyPublished       the batch, or an event of the set, was published before: it cannot be published as new
└── BatchLocked            the batch is being published, or was: nothing can be added to it
"""

from __future__ import annotations

from enum import StrEnum

from leasehold.pipeline.errors import PipelineError


class Reason(StrEnum):
    """Why, for programs. The names are those of the SDKs' error reasons."""

    PRODUCER_DISCONNECTED = "ProducerDisconnected"
    """Another producer has claimed the partition with a higher owner level: stop publishing to it."""
    INVALID_CLIENT_STATE = "InvalidClientState"
    """The numbers of producer and broker do not fit together: close the producer and make a new one."""
    GENERAL_ERROR = "GeneralError"
    CLIENT_CLOSED = "ClientClosed"
    RESOURCE_NOT_FOUND = "ResourceNotFound"
    MESSAGE_SIZE_EXCEEDED = "MessageSizeExceeded"
    QUOTA_EXCEEDED = "QuotaExceeded"
    SERVICE_BUSY = "ServiceBusy"
    SERVICE_TIMEOUT = "ServiceTimeout"
    SERVICE_COMMUNICATION_PROBLEM = "ServiceCommunicationProblem"


class Outcome(StrEnum):
    """The outcome of the events: certainly not published, or unknown (so far)."""

    FAILED = "failed"
    UNKNOWN = "unknown"


ENDS_THE_PRODUCER = (Reason.PRODUCER_DISCONNECTED, Reason.INVALID_CLIENT_STATE)
"""After one of these, this producer can no longer publish to the partition."""


ADVICE = {
    Reason.PRODUCER_DISCONNECTED: "another producer has claimed the partition at a higher owner level. Stop publishing to it",
    Reason.INVALID_CLIENT_STATE: "it is not safe to continue publishing to this partition with this producer. Close it, and make"
    " a new one",
    Reason.CLIENT_CLOSED: "make a new one",
    Reason.RESOURCE_NOT_FOUND: "check the names of hub, partition and consumer group",
    Reason.MESSAGE_SIZE_EXCEEDED: "publish fewer events at once, or smaller ones",
    Reason.QUOTA_EXCEEDED: "free or raise the quota, then try again",
    Reason.SERVICE_BUSY: "try again later, and less at a time",
    Reason.SERVICE_TIMEOUT: "try again",
    Reason.SERVICE_COMMUNICATION_PROBLEM: "check the connection, and try again",
}


class PublishError(PipelineError):
    """is_transient: whether a later try may succeed. The producer has retried according to its policy."""

    def __init__(
        self, message: str, *, reason: Reason, is_transient: bool = False, outcome: Outcome = Outcome.FAILED
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.is_transient = is_transient
        self.outcome = outcome

    def with_outcome(self, outcome: Outcome, advice: str = "") -> PublishError:
        """The same error for a whole send."""
        message = f"{self}. {advice}" if advice else str(self)
        error = PublishError(message, reason=self.reason, is_transient=self.is_transient, outcome=outcome)
        error.__cause__ = self
        return error


class AlreadyPublished(PublishError):
    """To publish the same again, make a new batch or new events."""

    def __init__(self, message: str) -> None:
        super().__init__(message, reason=Reason.GENERAL_ERROR)


class BatchLocked(PublishError):
    """A failed send unlocks its batch. Otherwise make a new batch."""

    def __init__(self, message: str) -> None:
        super().__init__(message, reason=Reason.GENERAL_ERROR)


def refused(
    what: str, *, reason: Reason, is_transient: bool = False, outcome: Outcome = Outcome.FAILED
) -> PublishError:
    """what: what happened to which thing. The reason determines the advice."""
    advice = ADVICE.get(reason)
    message = f"{what}: {advice}" if advice else what
    return PublishError(message, reason=reason, is_transient=is_transient, outcome=outcome)
