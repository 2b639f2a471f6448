"""Authorization: every request carries a signature with the account's key, or a token in place of one of Entra."""

from __future__ import annotations

import base64
import hashlib
import hmac
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from urllib.parse import parse_qs, unquote

from leasehold_emulators.cosmos.call import Call
from leasehold_emulators.cosmos.refused import Refused

SKEW_MAX = timedelta(minutes=15)


def check(call: Call, key: str, token: str, now: datetime) -> None:
    """Raises Refused: 401 without a signature or with a wrong one, 403 if its date is too far off."""
    header = call.header("authorization")
    if not header:
        raise Refused(401, "Required Header authorization is missing. Ensure a valid Authorization token is passed.")
    fields = {name: values[0] for name, values in parse_qs(unquote(header).replace("+", "%2B")).items()}
    if fields.get("type") == "aad":
        if not hmac.compare_digest(fields.get("sig", ""), token):
            raise Refused(401, "The access token is not one of this account.")
        return
    date = call.header("x-ms-date") or call.header("date") or ""
    if not any(
        hmac.compare_digest(fields.get("sig", ""), signature(call, link, date, key)) for link in links(call.path)
    ):
        message = "The input authorization token can't serve the request. The wrong key is being used or the expected "
        raise Refused(401, message + "payload is not built as per the protocol.")
    if abs(when(date) - now) > SKEW_MAX:
        raise Refused(403, "The authorization token is not valid at the current time.")


def when(date: str) -> datetime:
    try:
        return parsedate_to_datetime(date).astimezone(UTC)
    except ValueError:
        raise Refused(401, "The date of the request cannot be read.") from None


def links(path: tuple[str, ...]) -> list[str]:
    """How a request may sign its resource: by its path, or, if it is addressed by resource id, by that id in lower case."""
    owner = path if len(path) % 2 == 0 else path[:-1]
    return ["/".join(owner), owner[-1].lower() if owner else ""]


def signature(call: Call, link: str, date: str, key: str) -> str:
    kind = (call.path[-1] if len(call.path) % 2 else call.path[-2]) if call.path else ""
    http_date = "" if call.header("x-ms-date") else date.lower()
    text = f"{call.method.lower()}\n{kind}\n{link}\n{(call.header('x-ms-date') or '').lower()}\n{http_date}\n"
    return base64.b64encode(hmac.new(base64.b64decode(key), text.encode(), hashlib.sha256).digest()).decode()
