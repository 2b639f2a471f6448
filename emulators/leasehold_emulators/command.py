"""`leasehold emulate`: Cosmos DB, Event Hubs and Blob Storage on this machine, for development and tests."""

from __future__ import annotations

import asyncio
import functools
import json
import re
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import click

from leasehold.service.cli.common import USAGE, PathName, done, fail

LOOPBACK = ("127.0.0.1", "localhost", "::1")
PORT = click.IntRange(0, 65535)
MEMORY = "in memory: it is lost when the emulator stops (--data DIR keeps it)"


@click.group()
def emulate() -> None:
    """Run an emulator of an Azure service on this machine, for development and tests.

    Its keys are public, so it accepts connections from this machine only.
    """


def _common(port: int, control_port: int, file: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The options that all emulators share."""
    options = (
        click.option("--port", type=PORT, default=port, show_default=True, help="0 takes any free port."),
        click.option("--tls-port", type=PORT, help="Also serve TLS on this port, with a certificate of its own."),
        click.option(
            "--control-port", type=PORT, default=control_port, show_default=True, help="The port of the control page."
        ),
        click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on."),
        click.option("--control-host", default="127.0.0.1", show_default=True, help="The address of the control page."),
        click.option("--allow-remote", is_flag=True, help="Allow addresses that other machines can reach."),
        click.option(
            "--data",
            type=PathName(path_type=Path, file_okay=False),
            help=f"Keep the state in this directory, as {file}; by default it is in memory.",
        ),
        click.option("--json", "as_json", is_flag=True, help="Print the addresses as one line of JSON."),
    )

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        return functools.reduce(lambda decorated, option: option(decorated), reversed(options), command)

    return decorate


def _split(
    form: str, pattern: str
) -> Callable[[click.Context, click.Parameter, Iterable[str]], tuple[tuple[str, ...], ...]]:
    """A callback that splits each value of a repeatable option into its parts."""

    def split(_: click.Context, __: click.Parameter, values: Iterable[str]) -> tuple[tuple[str, ...], ...]:
        found = {value: re.fullmatch(pattern, value) for value in values}
        for value, parts in found.items():
            if parts is None:
                raise click.BadParameter(f"'{value}' must have the form {form}")
        return tuple(parts.groups() for parts in found.values() if parts)

    return split


@emulate.command()
@_common(8081, 9001, "cosmos.db")
@click.option("--ranges", type=click.IntRange(1, 100), default=4, show_default=True, help="Ranges of a new container.")
@click.option(
    "--container",
    "containers",
    callback=_split("DATABASE/CONTAINER:/KEY", r"([^/:]+)/([^/:]+):(/[^:]+)"),
    metavar="DATABASE/CONTAINER:/KEY",
    multiple=True,
    help="Create this container, with its partition key, if it does not exist; may be repeated.",
)
def cosmos(ranges: int, containers: tuple[tuple[str, ...], ...], **given: Any) -> None:
    """Emulate a Cosmos DB account (NoSQL API), with a change feed, ranges that split and merge, and patches."""
    from leasehold_emulators.cosmos.server import Options, serve

    def lines(said: dict[str, Any]) -> list[str]:
        return [
            f"  endpoint           {said['endpoint']}",
            f"  key                {said['key']}",
            f"  connection string  {said['connection_string']}",
            *_tls(said, "https"),
            "",
            "In a file for `leasehold run`:",
            f"  feed: {{type: cosmos, {_access(said)}, database: DATABASE, container: CONTAINER}}",
        ]

    _run("Cosmos DB", lambda place: serve(Options(**place, ranges=ranges, containers=containers)), lines, given)


@emulate.command()
@_common(5672, 9002, "eventhubs.db")
@click.option(
    "--hub",
    "hubs",
    callback=_split("NAME:PARTITIONS", r"([^:]+):([1-9]\d{0,3})"),
    metavar="NAME:PARTITIONS",
    multiple=True,
    default=["events:4"],
    show_default=True,
    help="A hub and its partitions, created if it does not exist; may be repeated.",
)
@click.option(
    "--group", "groups", multiple=True, help="A consumer group of new hubs, in addition to $Default; may be repeated."
)
@click.option("--events-max", type=click.IntRange(1), help="The most events that a partition keeps; by default all.")
def eventhubs(hubs: tuple[tuple[str, str], ...], groups: tuple[str, ...], events_max: int | None, **given: Any) -> None:
    """Emulate an Event Hubs namespace (AMQP 1.0), with consumer groups, epochs and idempotent producers."""
    from leasehold_emulators.eventhubs.server import Options, serve

    def serving(place: dict[str, Any]) -> AbstractAsyncContextManager[dict[str, Any]]:
        named = {name: int(partitions) for name, partitions in hubs}
        return serve(Options(**place, hubs=named, groups=frozenset(groups), events_max=events_max))

    def lines(said: dict[str, Any]) -> list[str]:
        return [
            f"  connection string  {said['connection_string']}",
            f"  hubs               {', '.join(said['hubs'])}",
            *_tls(said, "tls_port"),
            "",
            "In a file for `leasehold run`:",
            f"  feed: {{type: eventhubs, {_access(said)}, event_hub: {said['hubs'][0]}, start: earliest}}",
        ]

    _run("Event Hubs", serving, lines, given)


@emulate.command()
@_common(10000, 9003, "blob.db")
@click.option(
    "--container", "containers", multiple=True, help="Create this container if it does not exist; may be repeated."
)
def blob(containers: tuple[str, ...], **given: Any) -> None:
    """Emulate the blobs of an Azure Storage account: block and append blobs, leases, conditions, shared keys and SAS."""
    from leasehold_emulators.blob.server import Options, serve

    def lines(said: dict[str, Any]) -> list[str]:
        return [
            f"  endpoint           {said['endpoint']}",
            f"  account            {said['account']}",
            f"  key                {said['key']}",
            f"  connection string  {said['connection_string']}",
            *_tls(said, "https"),
            "",
            "In a file for `leasehold run`:",
            f"  leases: {{type: blob, {_access(said)}, container: leases}}",
        ]

    _run("Blob Storage", lambda place: serve(Options(**place, containers=containers)), lines, given)


def _access(said: dict[str, Any]) -> str:
    return f'connection_string: "{said["connection_string"]}"'


def _tls(said: dict[str, Any], name: str) -> list[str]:
    return [f"  {name:<17}  {said[name]}", f"  certificates       {said['ca']}"] if name in said else []


def _run(
    service: str,
    serving: Callable[[dict[str, Any]], AbstractAsyncContextManager[dict[str, Any]]],
    lines: Callable[[dict[str, Any]], list[str]],
    given: dict[str, Any],
) -> None:
    """Serve until Ctrl-C or SIGTERM."""
    from leasehold_emulators.hosting import PortTaken, wait_until_stopped
    from leasehold_emulators.journal import Unusable

    is_remote, as_json = given.pop("allow_remote"), given.pop("as_json")
    for option, name in (("--host", "host"), ("--control-host", "control_host")):
        if given[name] not in LOOPBACK and not is_remote:
            fail(
                f"{option} {given[name]}: the emulator's keys are public, so other machines could use it:"
                f" leave {option} out, or add --allow-remote on a network that you trust",
                code=USAGE,
            )

    async def work() -> None:
        async with serving(given) as said:
            text = json.dumps(said) if as_json else "\n".join(_greeting(service, said, lines(said), given["data"]))
            click.echo(text)
            await wait_until_stopped(None)

    try:
        done(work())
    except (PortTaken, Unusable) as error:
        fail(str(error), code=USAGE)
    except asyncio.CancelledError:
        return


def _greeting(service: str, said: dict[str, Any], lines: list[str], data: Path | None) -> list[str]:
    return [
        f"An emulator of {service} is running.",
        "",
        f"  data               {data or MEMORY}",
        f"  control page       {said['control']}",
        *lines,
        "",
        "Ctrl-C stops it.",
    ]
