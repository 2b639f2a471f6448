"""Shared access signatures, checked as the service checks them."""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import dataclass, field
from urllib.parse import unquote

from leasehold_emulators.eventhubs.addresses import path_of

SAS = "SharedAccessSignature "


class Unauthorized(Exception):
    """The reason, in the service's words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """keys: name -> key. jwt: accepted in place of an access token of Entra, for any hub."""

    keys: dict[str, str]
    jwt: str | None = None

    def granted(self, token: str, now_s: float) -> Grant:
        """Raises Unauthorized."""
        if not token.startswith(SAS):
            if self.jwt is not None and hmac.compare_digest(token.encode(), self.jwt.encode()):
                return Grant(path="", until_s=now_s + 3600)
            raise Unauthorized("InvalidToken: The access token is not supported.")
        raw = dict(part.partition("=")[::2] for part in token.removeprefix(SAS).split("&"))
        fields = {name: unquote(value) for name, value in raw.items()}
        if not {"sr", "sig", "se", "skn"} <= set(fields):
            raise Unauthorized("InvalidSignature: A field of the token is missing.")
        if not self._is_signed(raw, fields):
            raise Unauthorized("InvalidSignature: The token has an invalid signature.")
        if not fields["se"].isdigit() or int(fields["se"]) <= now_s:
            raise Unauthorized("ExpiredToken: The token is expired.")
        return Grant(path=path_of(fields["sr"]).lower(), until_s=float(fields["se"]))

    def _is_signed(self, raw: dict[str, str], fields: dict[str, str]) -> bool:
        key = self.keys.get(fields["skn"])
        if key is None:
            return False
        signed = f"{raw['sr']}\n{raw['se']}".encode()
        signature = base64.b64encode(hmac.digest(key.encode(), signed, hashlib.sha256)).decode()
        return hmac.compare_digest(signature, fields["sig"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """path: begins with the hub that it covers; empty for the whole namespace."""

    path: str
    until_s: float

    def covers(self, hub: str, now_s: float) -> bool:
        return now_s < self.until_s and (not self.path or self.path.split("/")[0] == hub.lower())


@dataclass(slots=True)
class Grants:
    """The grants of one connection, by their paths."""

    given: dict[str, Grant] = field(default_factory=dict)

    def put(self, grant: Grant) -> None:
        self.given[grant.path] = grant

    def cover(self, hub: str, now_s: float) -> bool:
        return any(grant.covers(hub, now_s) for grant in self.given.values())


def plain(response: bytes) -> tuple[str, str]:
    """Name and key of SASL PLAIN."""
    parts = response.split(b"\0")
    return (parts[1].decode(), parts[2].decode()) if len(parts) == 3 else ("", "")
