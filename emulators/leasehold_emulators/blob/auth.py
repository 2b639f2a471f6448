"""Authorization: a signature with the account's key, a shared access signature (SAS), or the token that replaces one of Entra."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from urllib.parse import unquote

from leasehold_emulators.blob.call import Call
from leasehold_emulators.blob.refused import Refused

SKEW_MAX = timedelta(minutes=15)
SIGNED = (
    "content-encoding",
    "content-language",
    "content-length",
    "content-md5",
    "content-type",
    "date",
    "if-modified-since",
    "if-match",
    "if-none-match",
    "if-unmodified-since",
    "range",
)
PERMISSIONS = {
    "blob.get": "r",
    "blob.head": "r",
    "blob.blocks": "r",
    "blob.append": "aw",
    "blob.delete": "d",
    "container.blobs": "l",
    "container.create": "cw",
    "container.delete": "d",
    "container.read": "r",
    "account.containers": "l",
    "account.read": "r",
}
"""Kind -> any of these letters permits it. All other kinds need `w`, but `c` also permits `blob.put` of a new blob."""


def check(call: Call, key: str, token: str, now: datetime, *, exists: Callable[[], bool]) -> None:
    """exists: whether the blob exists. Raises Refused: 401 without a signature, 403 with a wrong or expired one."""
    header = call.headers.get("authorization", "")
    if header.startswith("SharedKey "):
        _check_key(call, header, key, now)
    elif header.startswith("Bearer "):
        if not hmac.compare_digest(header.removeprefix("Bearer "), token):
            raise Refused("AuthenticationFailed", "The access token is unknown.")
    elif "sig" in call.query:
        _check_sas(call, key, now, exists)
    else:
        raise Refused("NoAuthenticationInformation", headers={"WWW-Authenticate": "Bearer"})


def _check_key(call: Call, header: str, key: str, now: datetime) -> None:
    account, _, given = header.removeprefix("SharedKey ").partition(":")
    text = shared_key_text(call)
    if account != call.account or not hmac.compare_digest(given, signature(text, key)):
        raise Refused("AuthenticationFailed", f"The string to sign is {text!r}.")
    date = call.headers.get("x-ms-date") or call.headers.get("date") or ""
    try:
        when = parsedate_to_datetime(date).astimezone(UTC)
    except ValueError:
        raise Refused("AuthenticationFailed", "The date of the request cannot be read.") from None
    if abs(when - now) > SKEW_MAX:
        raise Refused("AuthenticationFailed", f"The date {date} is too far from the server's time.")


def shared_key_text(call: Call) -> str:
    values = dict(call.headers)
    if values.get("content-length") == "0":
        values["content-length"] = ""
    if "x-ms-date" in values:
        values["date"] = ""
    standard = "\n".join(values.get(name, "") for name in SIGNED)
    own = sorted((name, " ".join(value.split())) for name, value in values.items() if name.startswith("x-ms-"))
    named = "".join(f"{name}:{value}\n" for name, value in own)
    query = "".join(f"\n{name.lower()}:{value}" for name, value in sorted(call.query.items()))
    return f"{call.method}\n{standard}\n{named}/{call.account}{call.raw_path}{query}"


def signature(text: str, key: str) -> str:
    return base64.b64encode(hmac.new(base64.b64decode(key), text.encode(), hashlib.sha256).digest()).decode()


def _check_sas(call: Call, key: str, now: datetime, exists: Callable[[], bool]) -> None:
    query = call.query
    text = account_sas_text(call.account, query) if "ss" in query else service_sas_text(call, query)
    if not hmac.compare_digest(query["sig"], signature(text, key)):
        raise Refused("AuthenticationFailed", f"The signature of the SAS is wrong: the string to sign is {text!r}.")
    starts, ends = (_time(query[name]) if query.get(name) else None for name in ("st", "se"))
    if (starts and starts > now + SKEW_MAX) or (ends and ends <= now):
        raise Refused("AuthenticationFailed", f"The SAS is not valid now: it begins at {starts} and ends at {ends}.")
    if "ss" in query and ("b" not in query["ss"] or _level(call) not in query.get("srt", "")):
        raise Refused("AuthorizationPermissionMismatch", "The account SAS is for other services or resource types.")
    wanted = PERMISSIONS.get(call.kind, "cw" if call.kind == "blob.put" and not exists() else "w")
    if not set(wanted) & set(query.get("sp", "")):
        detail = f"The SAS permits {query.get('sp')!r}, and {call.kind} needs one of {wanted!r}."
        raise Refused("AuthorizationPermissionMismatch", detail)


def _level(call: Call) -> str:
    return "o" if call.blob else "c" if call.container else "s"


def account_sas_text(account: str, query: Mapping[str, str]) -> str:
    names = ["sp", "ss", "srt", "st", "se", "sip", "spr", "sv"]
    if query.get("sv", "") >= "2020-12-06":
        names.append("ses")
    return "".join(f"{value}\n" for value in (account, *(query.get(name, "") for name in names)))


def service_sas_text(call: Call, query: Mapping[str, str]) -> str:
    is_blob = query.get("sr") == "b"
    place = f"/blob/{call.account}/{call.container}" + (f"/{call.blob}" if is_blob else "")
    first = [query.get(name, "") for name in ("sp", "st", "se")]
    then = [query.get(name, "") for name in ("si", "sip", "spr", "sv", "sr", "snapshot")]
    if query.get("sv", "") >= "2020-12-06":
        then.append(query.get("ses", ""))
    last = [query.get(name, "") for name in ("rscc", "rscd", "rsce", "rscl", "rsct")]
    return "\n".join((*first, place, *then, *last))


def _time(text: str) -> datetime:
    try:
        when = datetime.fromisoformat(unquote(text))
    except ValueError:
        raise Refused("AuthenticationFailed", f"The time {text} of the SAS cannot be read.") from None
    return when if when.tzinfo else when.replace(tzinfo=UTC)
