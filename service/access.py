"""Who may ask the API: whoever sends a token of a file, which is read again when it has changed, so that tokens are
exchanged without a restart.

    readers = Tokens(Path("/run/secrets/readers"))    # a token a line; raises StartFailed where there are none
    readers.admit(b"Bearer 3f9c...")
"""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

from service.errors import StartFailed

TOKEN_BYTES_MIN = 16
"""What is shorter can be guessed."""
FILE_BYTES_MAX = 64 * 1024

_Stamp = tuple[int, int, int]


class Tokens:
    """Those of one file. While it cannot be read, nobody is admitted."""

    def __init__(self, file: Path) -> None:
        self._file = file
        try:
            self._stamp, self._digests = _stamp(file), _digests(file)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise StartFailed(f"api.readers is '{file}', which cannot be read ({reason}): {_REMEDY}") from None
        if not self._digests:
            raise StartFailed(f"api.readers is '{file}', which holds no token of {TOKEN_BYTES_MIN} bytes: {_REMEDY}")

    def admit(self, authorization: bytes | None) -> bool:
        """authorization: the header's value. Every token is compared, whole, however early one fits."""
        scheme, _, token = (authorization or b"").partition(b" ")
        if scheme.lower() != b"bearer":
            return False
        sent = hashlib.sha256(token.strip()).digest()
        return any([hmac.compare_digest(sent, each) for each in self._current()])  # noqa: C419 - none is passed over

    def _current(self) -> tuple[bytes, ...]:
        try:
            if (stamp := _stamp(self._file)) != self._stamp:
                self._stamp, self._digests = stamp, _digests(self._file)
        except OSError:
            return ()
        return self._digests


_REMEDY = "name a file with a token on each line, like `openssl rand -hex 32` writes one"


def _stamp(file: Path) -> _Stamp:
    """Kubernetes exchanges a secret's files behind a link, so that all of this changes."""
    found = file.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def _digests(file: Path) -> tuple[bytes, ...]:
    with file.open("rb") as lines:
        tokens = [line.strip() for line in lines.read(FILE_BYTES_MAX).splitlines()]
    return tuple(hashlib.sha256(token).digest() for token in tokens if len(token) >= TOKEN_BYTES_MIN)
