"""Refusals of Event Hubs, as the reasons of publishing. Pure."""

from __future__ import annotations

from typing import NamedTuple

from leasehold.pipeline.producer import Outcome, PublishError, Reason
from leasehold.pipeline.producer.errors import refused

OUT_OF_ORDER = "com.microsoft:out-of-order-sequence"
STOLEN = "com.microsoft:producer-epoch-stolen"
ARGUMENTS = ("com.microsoft:argument-out-of-range", "com.microsoft:argument-error", "amqp:invalid-field")


class Meaning(NamedTuple):
    """is_sure: whether a batch that the service refused in this way is surely not stored."""

    reason: Reason
    is_transient: bool = False
    is_sure: bool = True


MEANINGS = {
    OUT_OF_ORDER: Meaning(Reason.INVALID_CLIENT_STATE),
    STOLEN: Meaning(Reason.PRODUCER_DISCONNECTED),
    "amqp:link:stolen": Meaning(Reason.PRODUCER_DISCONNECTED),
    "amqp:not-found": Meaning(Reason.RESOURCE_NOT_FOUND),
    "amqp:resource-deleted": Meaning(Reason.RESOURCE_NOT_FOUND),
    "amqp:link:message-size-exceeded": Meaning(Reason.MESSAGE_SIZE_EXCEEDED),
    "amqp:resource-limit-exceeded": Meaning(Reason.QUOTA_EXCEEDED),
    "com.microsoft:server-busy": Meaning(Reason.SERVICE_BUSY, is_transient=True),
    "com.microsoft:timeout": Meaning(Reason.SERVICE_TIMEOUT, is_transient=True, is_sure=False),
    "com.microsoft:operation-cancelled": Meaning(
        Reason.SERVICE_COMMUNICATION_PROBLEM, is_transient=True, is_sure=False
    ),
    "amqp:internal-error": Meaning(Reason.GENERAL_ERROR, is_transient=True, is_sure=False),
    "com.microsoft:entity-disabled": Meaning(Reason.GENERAL_ERROR),
    "com.microsoft:auth-failed": Meaning(Reason.GENERAL_ERROR),
    "amqp:unauthorized-access": Meaning(Reason.GENERAL_ERROR),
    "amqp:not-allowed": Meaning(Reason.GENERAL_ERROR),
    "amqp:not-implemented": Meaning(Reason.GENERAL_ERROR),
    "amqp:decode-error": Meaning(Reason.GENERAL_ERROR),
    **dict.fromkeys(ARGUMENTS, Meaning(Reason.GENERAL_ERROR)),
}
BROKEN = Meaning(Reason.SERVICE_COMMUNICATION_PROBLEM, is_transient=True, is_sure=False)
"""Whatever else ends a link: forced detaches, closed connections, broken sockets. A batch on it may have been stored."""
TOKEN_ENDED = ("amqp:unauthorized-access", "com.microsoft:auth-failed")
EXPIRED = Meaning(Reason.GENERAL_ERROR, is_transient=True)
"""The service ends an attached link when its token expires. The next attach shows whether another link is possible."""
NAMED = {
    "com.microsoft:auth-failed": "check key or identity, and that it may send",
    "amqp:unauthorized-access": "check key or identity, and that it may send",
    "com.microsoft:entity-disabled": "enable the hub",
}


def attach_refused(place: str, condition: str, description: str, *, asks: bool) -> PublishError:
    """asks: whether the client named a state of its own. If the service refuses that, the client is wrong."""
    if asks and condition in ARGUMENTS:
        return refused(_message(place, "refused our state", condition, description), reason=Reason.INVALID_CLIENT_STATE)
    meaning = MEANINGS.get(condition, BROKEN)
    text = _message(place, "cannot be attached", condition, description)
    return refused(text, reason=meaning.reason, is_transient=meaning.is_transient)


def batch_refused(place: str, condition: str, description: str) -> PublishError:
    """The error of a batch that the service refused."""
    meaning = MEANINGS.get(condition, BROKEN)
    return refused(
        _message(place, "refused a batch", condition, description),
        reason=meaning.reason,
        is_transient=meaning.is_transient,
        outcome=Outcome.FAILED if meaning.is_sure else Outcome.UNKNOWN,
    )


def link_ended(place: str, condition: str, description: str, *, is_in_air: bool) -> PublishError:
    """The error of a link, session or connection that ended, perhaps with a batch in the air."""
    meaning = EXPIRED if condition in TOKEN_ENDED else MEANINGS.get(condition, BROKEN)
    return refused(
        _message(place, "ended the link", condition, description),
        reason=meaning.reason,
        is_transient=meaning.is_transient,
        outcome=Outcome.UNKNOWN if is_in_air else Outcome.FAILED,
    )


def _message(place: str, what: str, condition: str, description: str) -> str:
    named = f" ({NAMED[condition]})" if condition in NAMED else ""
    return f"{place} {what}: {condition or 'no reason given'}{f', {description}' if description else ''}{named}"
