"""Conditional headers. Pure."""

from __future__ import annotations

from email.utils import parsedate_to_datetime

from leasehold_emulators.blob.call import Call
from leasehold_emulators.blob.refused import Refused


class NotModified(Exception):
    """304: the client already has this version."""


def check(
    call: Call, etag: str | None, modified: float, *, is_read: bool, exists_code: str = "ConditionNotMet"
) -> None:
    """etag: None if the blob or container does not exist. Raises Refused, and NotModified for reads."""
    wanted, unwanted = call.headers.get("if-match"), call.headers.get("if-none-match")
    if wanted is not None and (etag is None or not _matches(wanted, etag)):
        raise Refused("ConditionNotMet")
    if unwanted is not None and etag is not None and _matches(unwanted, etag):
        if is_read:
            raise NotModified
        raise Refused(exists_code if unwanted == "*" else "ConditionNotMet")
    if etag is None:
        return
    since, until = call.headers.get("if-modified-since"), call.headers.get("if-unmodified-since")
    if until and int(modified) > _seconds(until):
        raise Refused("ConditionNotMet")
    if since and unwanted is None and int(modified) <= _seconds(since):
        if is_read:
            raise NotModified
        raise Refused("ConditionNotMet")


def _matches(header: str, etag: str) -> bool:
    given = (each.strip().removeprefix("W/").strip('"') for each in header.split(","))
    return any(each in ("*", etag.strip('"')) for each in given)


def _seconds(date: str) -> float:
    try:
        return parsedate_to_datetime(date).timestamp()
    except ValueError:
        raise Refused("InvalidHeaderValue", f"The date {date} cannot be read.") from None
