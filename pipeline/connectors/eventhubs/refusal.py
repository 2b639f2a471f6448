"""What an error of the SDK or of the service means to a feed, and what to do about it. Pure."""

from __future__ import annotations

import re
from typing import Any

from leasehold.pipeline.errors import FeedError, FeedUnavailable, Fenced, PipelineError, PositionLost

REASON_CHARS_MAX = 300
BUSY_S = 4.0
"""How long to wait if the service is busy: it names no time, and its own clients wait four seconds."""
_EPOCH = re.compile(r"epoch\D{0,5}(\d{1,18})", re.IGNORECASE)
_PAUSED = {"com.microsoft:server-busy": BUSY_S}
_NEXT = {
    "amqp:not-found": "check the name of the hub and of the consumer group; a feed creates neither",
    "amqp:unauthorized-access": "check the key or the identity, which needs the right to listen, and this machine's clock",
    "com.microsoft:auth-failed": "check the key or the identity, and this machine's clock",
    "com.microsoft:entity-disabled": "enable the hub",
    "amqp:not-allowed": "see the service's answer",
}
_LOST = ("com.microsoft:argument-error", "com.microsoft:argument-out-of-range", "amqp:invalid-field")
STOLEN = "amqp:link:stolen"


class PositionRefused(PositionLost):
    """The service attaches no receiver at a position that is past the newest event, or invalid."""


def refusal(error: BaseException, what: str) -> PipelineError:
    """what: the hub or partition that the error is about."""
    if isinstance(error, PipelineError):
        return error
    if type(error) is ValueError and "`ca_file`" in str(error):
        return FeedError(f"{what}: {error}")
    if isinstance(error, TimeoutError):
        return FeedUnavailable(f"{what}: no answer in time")
    status = getattr(error, "status_code", None)
    if isinstance(status, int):
        return refused(status, _decoded(getattr(error, "status_description", "")), what)
    return _of_condition(_decoded(getattr(error, "condition", "")), error, what)


def ended(error: BaseException, what: str) -> PipelineError:
    """Why a link ended. The next attach shows whether another is possible: yes if a token expired, no if the hub is gone."""
    why = refusal(error, what)
    return FeedUnavailable(str(why)) if type(why) is FeedError else why


def is_missing(error: FeedError) -> bool:
    """Whether the hub or partition does not exist."""
    return str(error).endswith(_NEXT["amqp:not-found"])


def refused(status: int, description: str, what: str) -> FeedError:
    """The meaning of a status, which the service sends for tokens and for requests about the hub."""
    message = f"{what}: the service answers {status} ({_in_one_line(description)})"
    if status == 401:
        return FeedError(f"{message}: {_NEXT['amqp:unauthorized-access']}")
    if status == 404:
        return FeedError(f"{message}: {_NEXT['amqp:not-found']}")
    if status in (0, 408, 410, 429) or status >= 500:
        return FeedUnavailable(message, retry_after_s=BUSY_S if status in (429, 503) else None)
    return FeedError(f"{message}: see its answer")


def _of_condition(condition: str, error: BaseException, what: str) -> PipelineError:
    description = _in_one_line(_decoded(getattr(error, "description", "")) or str(error) or type(error).__name__)
    message = f"{what}: {description}" + (f" ({condition})" if condition else "")
    if condition == STOLEN:
        return Fenced(
            f"{message}: a reader with a higher epoch has the partition in this consumer group",
            epoch=max(map(int, _EPOCH.findall(description)), default=0),
        )
    if condition in _LOST:
        return PositionRefused(f"{message}: set the lease to a position that the service accepts")
    if condition in _NEXT:
        return FeedError(f"{message}: {_NEXT[condition]}")
    return FeedUnavailable(message, retry_after_s=_PAUSED.get(condition))


def _decoded(value: Any) -> str:
    if isinstance(value, bytes):
        return bytes(value).decode("utf-8", "replace")
    return "" if value is None else str(value)


def _in_one_line(text: str) -> str:
    return " ".join(text.split())[:REASON_CHARS_MAX] or "it gives no reason"
