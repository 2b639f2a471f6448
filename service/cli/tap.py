"""`leasehold tap`: prints what the owner of a partition reads and delivers, from the stream of its REST API."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import quote, urlencode, urlsplit

import click

from leasehold.common.nesting import parsed_json
from leasehold.service.cli.common import USAGE, fail, warn
from leasehold.service.config.settings import Api
from leasehold.service.texts import counted

SILENCE_S_MAX = 40.0
"""A host writes something every 15 seconds."""
PROBLEM_BYTES_MAX = 64 * 1024
LEVELS_MAX = 100
LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - the key is where a host listens


@dataclass(frozen=True, slots=True, kw_only=True)
class TapRequest:
    pipeline: str
    partition: str
    side: str
    limit: int
    seconds: float
    rows_per_s: int

    @property
    def path(self) -> str:
        query = {"side": self.side, "limit": self.limit, "seconds": self.seconds, "rows_per_s": self.rows_per_s}
        return f"/api/tap/{quote(self.pipeline, safe='')}/{quote(self.partition, safe='')}?{urlencode(query)}"


def show_tap(api: Api, wanted: TapRequest, *, as_json: bool, url: str | None, token_file: Path | None) -> None:
    """Show a tap until the host ends it, or Ctrl-C. Exits with a message if the host cannot show it, or refuses."""
    token = _read_token(token_file or api.operators)
    left_out: Mapping[str, int] = {}
    why, shown = "interrupted", 0
    try:
        for name, data in _read_events(url or _own_url(api), wanted.path, token):
            if as_json:
                click.echo(json.dumps({"event": name, **data}, ensure_ascii=False))
            elif name in ("input", "output"):
                click.echo(line_of(name, data))
            elif name == "ready":
                warn(
                    f"host '{data['host']}' works on '{wanted.partition}' of '{wanted.pipeline}' (epoch {data['epoch']})"
                )
            shown += name in ("input", "output")
            left_out = data if name == "left_out" else left_out
            why = WHY[data["why"]] if name == "end" else why
    except KeyboardInterrupt:
        pass
    warn(summary_of(shown, left_out, why))


WHY = {
    "limit": "--limit is reached",
    "time": "--seconds are over",
    "lease": "the host gave the lease up: ask its next owner",
}


def summary_of(shown: int, left_out: Mapping[str, int], why: str) -> str:
    """Pure."""
    counts = ", ".join(f"{left_out.get(side, 0):,} of {side}" for side in ("input", "output"))
    return f"{counted(shown, 'row')} shown; left out: {counts} ({why})"


def line_of(name: str, data: Mapping[str, Any]) -> str:
    """A row for people. Pure."""
    fields = [f"{key}={_printable(value)}" for key, value in data["values"].items() if value is not None]
    return f"{data['at']} {name:6} {' '.join(fields)}"


def _printable(value: object) -> str:
    """On one line, and without anything that a terminal would obey."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text)


def _own_url(api: Api) -> str:
    if not api.enabled or api.port == 0:
        lack = "has `api.enabled: false`" if not api.enabled else "lets each host choose a port (`api.port: 0`)"
        fail(f"FILE {lack}: name the owner's API with --url", code=USAGE)
    host = LOOPBACK.get(api.host, api.host)
    return f"http://[{host}]:{api.port}" if ":" in host else f"http://{host}:{api.port}"


def _read_token(file: Path | None) -> str | None:
    """The last word of the first line that has one."""
    if file is None:
        return None
    try:
        words = file.read_text().split("\n")
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        fail(f"the token cannot be read from '{file}' ({reason}): name another file with --token-file", code=USAGE)
    tokens = [line.split()[-1] for line in words if line.split()]
    if not tokens or not (tokens[0].isascii() and tokens[0].isprintable()):
        fail(f"'{file}' holds no token: name another file with --token-file", code=USAGE)
    return tokens[0]


def _read_events(url: str, path: str, token: str | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """What the host sends, until its last event."""
    with closing(_connection(url)) as connection:
        try:
            answer = _ask(connection, urlsplit(url).path.rstrip("/") + path, token)
            if answer.status != 200:
                _refuse(url, answer)
            yield from _events(answer)
        except (OSError, HTTPException, ValueError) as error:
            fail(f"{url} does not answer ({error}): check that a host listens there, or name another with --url")


def _connection(url: str) -> HTTPConnection:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
        fail("--url must be an address like http://10.0.0.7:8080, without a user", code=USAGE)
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    return kind(parts.hostname, port, timeout=SILENCE_S_MAX)


def _ask(connection: HTTPConnection, path: str, token: str | None) -> HTTPResponse:
    connection.request("GET", path, headers={} if token is None else {"authorization": f"Bearer {token}"})
    return connection.getresponse()


def _refuse(url: str, answer: HTTPResponse) -> NoReturn:
    try:
        why = str(parsed_json(answer.read(PROBLEM_BYTES_MAX), LEVELS_MAX)["detail"])
    except (ValueError, KeyError, TypeError):
        why = f"{answer.reason}: check that a host of Leasehold listens there"
    fail(f"{url} answers {answer.status}: {why}")


def _events(answer: HTTPResponse) -> Iterator[tuple[str, dict[str, Any]]]:
    name = ""
    while line := answer.readline().decode():
        field, _, value = line.rstrip("\r\n").partition(": ")
        if field == "event":
            name = value
        elif field == "data":
            yield name, parsed_json(value, LEVELS_MAX)
            if name == "end":
                return
    fail("the host ended before the tap did: ask the lease's next owner")
