"""docs/nats.md: its examples run as they are written, over the server that docs/local.md starts."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import nkeys
import pytest
from connectors.nats.streams import Made
from pages import DOCS, examples, lines_of
from patience import until_async
from plugins_cli import Commands
from plugins_nats import NATS_SERVER, NatsMachine, configured

from leasehold.pipeline.connectors.nats.connection import Forbidden, NatsAccess, NatsConnection, NatsError

PARTITIONS = 4


@pytest.fixture
async def orders(nats_server: NatsMachine) -> AsyncIterator[Made]:
    made = Made(nats_server, name="orders")
    await made.stream.create(1)
    yield made
    for name in ("orders", "orders-eur"):
        with suppress(NatsError):  # a test that failed may have made none
            await made.connection.ask(f"STREAM.DELETE.{name}")
    await made.connection.close()


@pytest.fixture
def nats_users() -> Iterator[NatsMachine]:
    """With one user, who may do what the page lists, and nothing else."""
    rows = re.findall(r"^\| (?:both|feed|sink) \| (.*?) \| (.*?) ?\|$", (DOCS / "nats.md").read_text(), re.MULTILINE)
    publish, subscribe = (
        json.dumps(re.findall(r"`([^ `]*\.[^ `]*)`", " ".join(column))) for column in zip(*rows, strict=True)
    )
    permissions = f"{{publish: {publish}, subscribe: {subscribe}}}"
    with configured(
        f'authorization {{ users: [{{user: "feed and sink", password: "p", permissions: {permissions}}}] }}'
    ) as machine:
        yield machine


async def sell(orders: Made, first: int) -> None:
    for number in range(first, first + 20):
        body = json.dumps({"order": str(number), "currency": "EUR" if number % 2 else "USD"}).encode()
        await orders.append(str(number % PARTITIONS), [body])


async def sold(orders: Made) -> list[int]:
    """In euros."""
    target = Made(orders.server, name="orders-eur")
    try:
        found = [each for partition in range(PARTITIONS) for each in await target.messages(str(partition))]
    finally:
        await target.connection.close()
    return sorted(int(json.loads(message.body)["order"]) for message in found)


async def test_orders_in_euros_reach_their_stream_once(orders: Made, tmp_path: Path, leasehold: Commands) -> None:
    page, environment = examples("nats.md", tmp_path), {"NATS": orders.server.servers}
    [run] = lines_of(page, "run --until-idle")
    await sell(orders, 0)
    for line in (*lines_of(page, "check orders.yaml"), run):
        done = leasehold(*line.split()[1:], cwd=tmp_path, env=environment)
        assert done.ended() == 0, done.out + done.err
    await sell(orders, 20)
    again = leasehold(*run.split()[1:], cwd=tmp_path, env=environment)
    assert again.ended() == 0, again.out + again.err
    assert await sold(orders) == list(range(1, 40, 2))


async def test_the_same_as_a_program_delivers_until_it_is_stopped(
    orders: Made, tmp_path: Path, python: Commands
) -> None:
    examples("nats.md", tmp_path)
    await sell(orders, 0)
    program = python("orders.py", cwd=tmp_path, env={"NATS": orders.server.servers})
    wanted = list(range(1, 20, 2))

    async def are_sold() -> bool:
        assert program.process.poll() is None, program.out + program.err
        streams = (await orders.connection.ask("STREAM.NAMES"))["streams"]
        return "orders-eur" in streams and await sold(orders) == wanted

    await until_async(are_sold, "orders are sold", lambda: program.err[-500:])
    program.interrupt()
    assert program.ended() == 0, program.err
    assert await sold(orders) == wanted


def test_the_secure_settings_are_right_and_their_secrets_are_not_shown(tmp_path: Path, leasehold: Commands) -> None:
    examples("nats.md", tmp_path)
    seed = nkeys.encode_seed(bytes(32), nkeys.PREFIX_BYTE_USER).decode()
    done = leasehold("check", "secure.yaml", cwd=tmp_path, env={"NATS_SEED": seed, "NATS_PASSWORD": "hunter2"})
    assert done.ended() == 0, done.err
    assert not any(secret in done.out + done.err for secret in (seed, "hunter2"))


async def test_the_page_s_permissions_are_all_that_feed_and_sink_need(nats_users: NatsMachine) -> None:
    """The server refuses all other subjects."""
    access = NatsAccess(servers=nats_users.servers, login={"user": "feed and sink", "password": "p"})
    made = Made(nats_users, access, name="STREAM", subject="SUBJECT")
    sink, feed = made.sink(timeout_s=2), made.feed(timeout_s=2)
    await sink.prepare()
    assert await sink.standing("orders", "0") is None
    await made.append("0", [b"1"])
    assert (await anext(feed.open("0", None))).events["body"].to_pylist() == [b"1"]
    assert await feed.lag("0", None) == 1
    with pytest.raises(Forbidden, match="permissions violation"):
        await NatsConnection(access, timeout_s=2).ask("STREAM.DELETE.STREAM")
    for part in (sink, feed, made.connection):
        await part.close()


def test_the_page_s_command_starts_a_server() -> None:
    [line] = lines_of((DOCS / "local.md").read_text(), "nats-server -")
    assert line.split()[0] == NATS_SERVER.name
