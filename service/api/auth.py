"""Access to the API: readers and operators send a token from a file. The file is read again when it has changed, so tokens are
exchanged without a restart.

    access = Access(readers=Tokens(Path("readers")), operators=Tokens(Path("operators"), setting="api.operators"))
    access.of(b"Bearer 3f9c...")      # Caller("alice", may_operate=True), or None: an unknown token

A file has a token on each line, which may begin with a name: `alice 3f9c...`. Logs contain names, never tokens.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path
from typing import Annotated

from fastapi import Depends, Request, Security
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException
from structlog.typing import FilteringBoundLogger as Log

from leases.lease import Lease
from service.errors import StartFailed
from service.stats import Action, ActionOutcome, Tally

FOR_OPERATORS = "this is for operators: send one of the tokens in the file api.operators"

TOKEN_BYTES_MIN = 16
"""What is shorter can be guessed."""
FILE_BYTES_MAX = 64 * 1024
NAME_CHARACTERS_MAX = 64

_Stamp = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Caller:
    """name: of the token, or its file and line; never the token."""

    name: str
    may_operate: bool


ANYONE = Caller("anyone", may_operate=True)
"""Where there are no tokens: then the API listens on loopback alone."""


@dataclass(frozen=True, slots=True)
class _Known:
    name: str
    digest: bytes


class Tokens:
    """The tokens of one file. While it cannot be read, no client is admitted."""

    def __init__(self, file: Path, setting: str = "api.readers") -> None:
        """Raises StartFailed where there are none."""
        self._file = file
        try:
            self._stamp, self._known = _stamp(file), _known(file)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise StartFailed(f"{setting} is '{file}', which cannot be read ({reason}): {_REMEDY}") from None
        if not self._known:
            raise StartFailed(f"{setting} is '{file}', which holds no token of {TOKEN_BYTES_MIN} bytes: {_REMEDY}")

    def named(self, authorization: bytes | None) -> str | None:
        """Whose token it is. authorization: the header's value. Every token is compared, whole, however early one fits."""
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
    """None: there is no such file. An operator's token also reads. Without operators, no client operates."""

    readers: Tokens | None = None
    operators: Tokens | None = None

    @property
    def is_open(self) -> bool:
        return self.readers is None and self.operators is None

    def of(self, authorization: bytes | None) -> Caller | None:
        """None: an unknown client."""
        if self.is_open:
            return ANYONE
        operator, reader = (
            None if tokens is None else tokens.named(authorization) for tokens in (self.operators, self.readers)
        )
        name = operator or reader
        return None if name is None else Caller(name, may_operate=operator is not None)


_REMEDY = "name a file with a token on each line, like `openssl rand -hex 32` writes one"


def _stamp(file: Path) -> _Stamp:
    """Kubernetes exchanges a secret's files behind a link, so that all of this changes."""
    found = file.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def _known(file: Path) -> tuple[_Known, ...]:
    with file.open("rb") as content:
        lines = content.read(FILE_BYTES_MAX).splitlines()
    found = (_in_line(line, f"{file.name} line {number}") for number, line in enumerate(lines, 1))
    return tuple(known for known in found if known is not None)


def _in_line(line: bytes, unnamed: str) -> _Known | None:
    """The last word is the token, what comes before it the name."""
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
"""For the description alone: `service.api.middleware` has judged before."""


def _operator(request: Request, scheme: Annotated[object, Security(_OPERATE)]) -> Caller:
    """What the guard took for reading may be a route of operators. Raises HTTPException."""
    caller = request.state.caller
    if not isinstance(caller, Caller) or not caller.may_operate:
        raise HTTPException(HTTPStatus.FORBIDDEN, FOR_OPERATORS)
    return caller


Operator = Annotated[Caller, Depends(_operator)]


# The log of what operators did: one line for each action, also for one that was refused, and a count.
#
# The log contains the name of the token, never the token.


TEXT_CHARACTERS_MAX = 200

_ACTIONS: Mapping[tuple[str, str], Action] = {
    ("POST", r"/api/leases/([^/]+)/([\s\S]+)/release"): "release",
    ("POST", r"/api/leases/([^/]+)/([\s\S]+)/handoff"): "handoff",
    ("PUT", r"/api/leases/([^/]+)/([\s\S]+)/continuation"): "reset",
    ("POST", r"/api/leases/([^/]+)/([\s\S]+)/close"): "close",
    ("POST", r"/api/pipelines/([^/]+)()/pause"): "pause",
    ("POST", r"/api/pipelines/([^/]+)()/resume"): "resume",
    ("POST", r"/api/leases()()/import"): "import",
    ("GET", r"/api/leases()()/export"): "export",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorAction:
    """An operator's request and its result. before, after: of a lease or an order; is_change: whether anything was done."""

    action: Action
    pipeline: str = ""
    partition: str = ""
    before: Mapping[str, object] | None = None
    after: Mapping[str, object] | None = None
    is_change: bool = True


def operator_action_of(method: str, path: str) -> OperatorAction | None:
    """None: nothing that an operator does."""
    for (verb, pattern), action in _ACTIONS.items():
        if verb == method and (found := re.fullmatch(pattern, path)):
            return OperatorAction(action=action, pipeline=found[1], partition=found[2])
    return None


def lease_facts(lease: Lease) -> dict[str, object]:
    """The fields of a lease that actions change."""
    return {
        "owner": lease.owner,
        "handoff_to": lease.handoff_to,
        "epoch": lease.epoch,
        "generation": lease.generation,
        "continuation": lease.continuation and _cut(lease.continuation),
        **({"closed": True} if lease.closed else {}),
    }


def outcome_of(status: int, *, is_change: bool) -> ActionOutcome:
    """done, unchanged, denied (who), refused (what), failed (we could not)."""
    if status < 300:
        return "done" if is_change else "unchanged"
    if status in (401, 403):
        return "denied"
    return "refused" if status < 500 else "failed"


class Audit:
    """Records actions in the log, and in the stats of this host."""

    def __init__(self, log: Log, tally: Tally) -> None:
        self._log = log
        self._tally = tally

    def note(self, action: OperatorAction, *, caller: Caller | None, client: str, status: int, why: str = "") -> None:
        outcome = outcome_of(status, is_change=action.is_change)
        self._tally.acted(action.action, outcome)
        cut = replace(action, pipeline=_cut(action.pipeline), partition=_cut(action.partition))
        told = {"pipeline": cut.pipeline, "partition": cut.partition, "before": cut.before, "after": cut.after}
        level = self._log.info if status < 300 else self._log.warning
        level(
            "operator action",
            action=action.action,
            outcome=outcome,
            status=status,
            who=caller.name if caller else "nobody known",
            client=client,
            **{name: value for name, value in told.items() if value},
            **({"why": _cut(why)} if why else {}),
        )


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_CHARACTERS_MAX else text[:TEXT_CHARACTERS_MAX] + "..."
