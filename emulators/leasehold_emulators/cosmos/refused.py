"""Refusals of requests, with Cosmos DB's status, substatus, code and message."""

from __future__ import annotations


class Refused(Exception):
    """An answer that is an error."""

    def __init__(self, status: int, message: str, substatus: int = 0, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.substatus = substatus
        self.message = message
        self.headers = headers or {}


CODES = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    408: "RequestTimeout",
    409: "Conflict",
    410: "Gone",
    412: "PreconditionFailed",
    413: "RequestEntityTooLarge",
    424: "FailedDependency",
    429: "TooManyRequests",
    449: "RetryWith",
    500: "InternalServerError",
    503: "ServiceUnavailable",
}

# Substatus codes, as the SDKs know them.
PARTITION_KEY_MISMATCH = 1001
RANGE_GONE = 1002
READ_SESSION_NOT_AVAILABLE = 1002
OWNER_NOT_FOUND = 1003
CROSS_PARTITION_QUERY_NOT_SERVABLE = 1004
COMPLETING_SPLIT = 1007
CONTAINER_RID_MISMATCH = 1024
THROTTLED = 3200


def bad(message: str, substatus: int = 0) -> Refused:
    return Refused(400, message, substatus)


def missing(what: str, substatus: int = 0) -> Refused:
    return Refused(404, f"Entity with the specified id does not exist in the system: {what}", substatus)


def range_gone(range_id: str) -> Refused:
    return Refused(410, f"The requested partition key range {range_id} has been split or merged.", RANGE_GONE)
