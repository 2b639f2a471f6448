"""Access to the API: readers and operators send a token from a file. The file is read again when it has changed, so tokens can be
replaced without a restart.

    access = Access(readers=Tokens(Path("readers")), operators=Tokens(Path("operators"), setting="api.operators"))
    access.of(b"Bearer 3f9c...")      # Caller("alice", may_operate=True), or None: an unknown token

A file has a token on each line, which may begin with a name: `alice 3f9c...`. Logs contain names, never tokens.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Annotated

from fastapi import Depends, Request, Security
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException

from leasehold.service.errors import StartFailed

FOR_OPERATORS = "this is for operators: send one of the tokens in the file api.operators"

TOKEN_BYTES_MIN = 16
"""Shorter tokens could be guessed."""
FILE_BYTES_MAX = 64 * 1024
NAME_CHARACTERS_MAX = 64

_Stamp = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Caller:
    """name: the token's name, or its file and line; never the token."""

    name: str
    may_operate: bool


ANYONE = Caller("anyone", may_operate=True)
"""The caller if there are no token files: then the API listens only on loopback."""


@dataclass(frozen=True, slots=True)
class _Known:
    name: str
    digest: bytes


class Tokens:
    """The tokens of one file. While it cannot be read, no client is admitted."""

    def __init__(self, file: Path, setting: str = "api.readers") -> None:
        """Raises StartFailed if the file has no token."""
        self._file = file
        try:
            self._stamp, self._known = _stamp(file), _known(file)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise StartFailed(f"{setting} is '{file}', which cannot be read ({reason}): {_REMEDY}") from None
        if not self._known:
            raise StartFailed(f"{setting} is '{file}', which holds no token of {TOKEN_BYTES_MIN} bytes: {_REMEDY}")

    def named(self, authorization: bytes | None) -> str | None:
        """The name of the token that was sent, if it is known. authorization: the header's value.

        Every token is compared in full, even after one has matched.
        """
        scheme, _, token = (authorization or b"").partition(b" ")
        if scheme.lower() != b"bearer":
            return None
        sent = hashlib.sha256(token.strip()).digest()
        fitting = [known.name for known in self._current() if hmac.compare_digest(sent, known.digest)]
        return fitting[0] if fitting else None

    def _current(self) -> tuple[_Known, ...]:
        try:
            if (stamp := _stamp(self._file)) != self._stamp:
                self._stamp, self._known = stamp, _known(self._file)
        except OSError:
            return ()
        return self._known


@dataclass(frozen=True, slots=True)
class Access:
    """readers, operators: None if there is no such file. An operator may also read. Without operators, no client may operate."""

    readers: Tokens | None = None
    operators: Tokens | None = None

    @property
    def is_open(self) -> bool:
        return self.readers is None and self.operators is None

    def of(self, authorization: bytes | None) -> Caller | None:
        """The caller; None if the client is unknown."""
        if self.is_open:
            return ANYONE
        operator, reader = (
            None if tokens is None else tokens.named(authorization) for tokens in (self.operators, self.readers)
        )
        name = operator or reader
        return None if name is None else Caller(name, may_operate=operator is not None)


_REMEDY = "name a file with a token on each line, such as `openssl rand -hex 32` prints"


def _stamp(file: Path) -> _Stamp:
    """What changes with the file's content: Kubernetes replaces a secret's files behind a link, so all of these values change."""
    found = file.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def _known(file: Path) -> tuple[_Known, ...]:
    with file.open("rb") as content:
        lines = content.read(FILE_BYTES_MAX).splitlines()
    found = (_in_line(line, f"{file.name} line {number}") for number, line in enumerate(lines, 1))
    return tuple(known for known in found if known is not None)


def _in_line(line: bytes, unnamed: str) -> _Known | None:
    """The last word is the token. The words before it are the name."""
    name, _, token = b" ".join(line.split()).rpartition(b" ")
    if len(token) < TOKEN_BYTES_MIN:
        return None
    shown = name.decode("utf-8", "replace")[:NAME_CHARACTERS_MAX]
    return _Known(shown or unnamed, hashlib.sha256(token).digest())


# The token that a route requires, for OpenAPI. Operators' routes check it once more, after the routing.


_READ = HTTPBearer(
    auto_error=False, scheme_name="reader", description="A token of the file `api.readers`, or an operator's."
)
_OPERATE = HTTPBearer(auto_error=False, scheme_name="operator", description="A token of the file `api.operators`.")

READING = [Security(_READ)]
"""Only for the description: `leasehold.service.api.middleware` has already checked the token."""


def _operator(request: Request, scheme: Annotated[object, Security(_OPERATE)]) -> Caller:
    """Check the caller again: a request that the guard took for reading may be an operator's. Raises HTTPException."""
    caller = request.state.caller
    if not isinstance(caller, Caller) or not caller.may_operate:
        raise HTTPException(HTTPStatus.FORBIDDEN, FOR_OPERATORS)
    return caller


Operator = Annotated[Caller, Depends(_operator)]
