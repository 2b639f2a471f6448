"""Requests for leases of blobs and containers, and what answers show of a lease. Pure, except that new ids are random."""

from __future__ import annotations

import uuid

from leasehold_emulators.blob.call import Call, Reply
from leasehold_emulators.blob.lease import FOREVER, Lease, acquired, broken, changed, released, renewed
from leasehold_emulators.blob.refused import Refused


def act(lease: Lease, call: Call, now: float) -> tuple[Lease, Reply]:
    """The lease after the requested action, and the reply. Raises Refused."""
    given, proposed = (_id(call, name) for name in ("x-ms-lease-id", "x-ms-proposed-lease-id"))
    match call.headers.get("x-ms-lease-action", "").lower():
        case "acquire":
            duration_s = call.number("x-ms-lease-duration")
            if duration_s is None:
                raise Refused("MissingRequiredHeader", "x-ms-lease-duration")
            new = acquired(lease, proposed or str(uuid.uuid4()), duration_s, now)
            return new, Reply(status=201, headers={"x-ms-lease-id": new.id})
        case "renew":
            new = renewed(lease, _required(given, "x-ms-lease-id"), now)
            return new, Reply(headers={"x-ms-lease-id": new.id})
        case "change":
            ids = _required(given, "x-ms-lease-id"), _required(proposed, "x-ms-proposed-lease-id")
            new = changed(lease, *ids, now)
            return new, Reply(headers={"x-ms-lease-id": new.id})
        case "release":
            return released(lease, _required(given, "x-ms-lease-id")), Reply()
        case "break":
            new, remaining_s = broken(lease, call.number("x-ms-lease-break-period"), now)
            return new, Reply(status=202, headers={"x-ms-lease-time": str(remaining_s)})
    raise Refused("InvalidHeaderValue", "x-ms-lease-action")


def _id(call: Call, header: str) -> str | None:
    value = call.headers.get(header)
    if not value:
        return None
    try:
        return str(uuid.UUID(value))
    except ValueError:
        raise Refused("InvalidHeaderValue", f"{header} has to be a GUID.") from None


def _required(value: str | None, header: str) -> str:
    if value is None:
        raise Refused("MissingRequiredHeader", header)
    return value


def status(lease: Lease, now: float) -> str:
    return "locked" if lease.is_held(now) else "unlocked"


def lease_headers(lease: Lease, now: float) -> dict[str, str]:
    headers = {"x-ms-lease-status": status(lease, now), "x-ms-lease-state": lease.state(now)}
    if lease.state(now) == "leased":
        headers["x-ms-lease-duration"] = "infinite" if lease.duration_s == FOREVER else "fixed"
    return headers
