"""The sink `postgres` when owners overlap and hosts, network or server fail: no event is lost, none counts twice.

Every batch carries one event for each account. So the balances tell what was counted, the history tells in which steps.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from pipeline.connectors.postgres import PostgresSink, Timeouts
from pipeline.connectors.postgres.sink import PostgresWriter
from pipeline.errors import Ambiguous, Fenced, NotTrusted, SinkUnavailable
from pipeline.sink import Claim, Output
from tests.plugins_pg import Line, Network, Postgres

ACCOUNTS = [f"account-{i}" for i in range(5)]
SETUP = "CREATE TABLE IF NOT EXISTS balances (account text PRIMARY KEY, value bigint NOT NULL)"
MERGE = """INSERT INTO balances (account, value) SELECT account, value FROM batch ORDER BY account
    ON CONFLICT (account) DO UPDATE SET value = balances.value + excluded.value"""
SLOWLY = """INSERT INTO balances (account, value) SELECT account, value FROM batch ORDER BY account {}
    ON CONFLICT (account) DO UPDATE SET value = balances.value + excluded.value + (SELECT 0 FROM pg_sleep(0.05))"""
DECISIVE = b"leasehold_guard"
PATIENCE_S = 20


class Open:
    def check(self) -> None: ...

    async def granted(self) -> None: ...


def claim(epoch: int, partition: str = "0", *, generation: int = 0) -> Claim:
    return Claim(
        pipeline="balances",
        partition=partition,
        owner=f"host-{epoch}",
        epoch=epoch,
        generation=generation,
        continuation=None,
        state="",
        compare=lambda a, b: int(a or 0) - int(b or 0),
    )


def batch(position: str | None, accounts: Sequence[str] = ACCOUNTS) -> Output:
    """The next event of every account, worth 1."""
    table = pa.table({"account": list(accounts), "value": [1] * len(accounts)})
    return Output(table=table, start=position, to=str(int(position or 0) + 1), events=len(accounts))


async def write(writer: PostgresWriter) -> None:
    await writer.write(batch(writer.position), Open())


@dataclass
class Bank:
    """Balances and the hosts that keep them; `counted` is the third party's view."""

    postgres: Postgres
    stack: AsyncExitStack

    async def sink(self, dsn: str | None = None, merge: str = MERGE, **settings: Any) -> PostgresSink:
        sink = PostgresSink(dsn or self.postgres.dsn, setup=SETUP, merge=merge, history=True, **settings)
        self.stack.push_async_callback(sink.close)
        await sink.prepare()
        return sink

    def counted(self) -> int:
        """Batches in the balances; all accounts agree, and so do history and positions."""
        values = {value for (value,) in self.postgres.fetch("SELECT value FROM balances")} or {0}
        positions = self.postgres.fetch("SELECT partition, coalesce(position, '0')::int FROM leasehold_positions")
        for partition, position in positions:
            steps = self.postgres.fetch(
                'SELECT coalesce("from", \'0\')::int, "to"::int, epoch FROM leasehold_history WHERE partition = %s'
                ' ORDER BY "to"::int',
                partition,
            )
            assert [(start, to) for start, to, _ in steps] == [(n, n + 1) for n in range(position)]
            assert [epoch for *_, epoch in steps] == sorted(epoch for *_, epoch in steps)
        assert values == {sum(position for _, position in positions)}
        return values.pop()

    def sessions(self, where: str) -> int:
        query = (
            f"SELECT count(*) FROM pg_stat_activity WHERE application_name = 'leasehold' AND datname = %s AND {where}"
        )
        return int(self.postgres.fetch(query, self.postgres.name)[0][0])


@pytest.fixture
async def bank(postgres: Postgres) -> AsyncIterator[Bank]:
    async with AsyncExitStack() as stack:
        yield Bank(postgres, stack)


async def eventually(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not is_so():  # noqa: ASYNC110  # it becomes so at the server, which sends no event
            await asyncio.sleep(0.01)


class Pause:
    """Holds up the n-th message (from 0) that a client sends after `armed`, until `go` is set."""

    def __init__(self, network: Network, message: int) -> None:
        self._left = message
        self.reached = asyncio.Event()
        self.go = asyncio.Event()
        self.line: Line | None = None
        network.before = self._before

    async def _before(self, line: Line, message: bytes) -> None:
        self._left -= 1
        if self._left < 0 and not self.go.is_set():
            self.line = line
            self.reached.set()
            await self.go.wait()


def at_the_end(network: Network, interfere: Callable[[Line], Awaitable[None]]) -> None:
    """Interferes once, with the message that carries guard, merge and COMMIT, before it is passed on."""

    async def before(line: Line, message: bytes) -> None:
        if DECISIVE in message:
            network.before = None
            await interfere(line)

    network.before = before


MESSAGES = range(5)
"""Of a write after the first: BEGIN, COPY, rows, end of rows, and the one that decides."""


# Owners that overlap


async def test_a_write_is_decided_by_one_message(bank: Bank, postgres_network: Network) -> None:
    writer = await (await bank.sink(postgres_network.dsn)).open(claim(1))
    await write(writer)
    messages: list[bytes] = []

    async def before(line: Line, message: bytes) -> None:
        messages.append(message)

    postgres_network.before = before
    await write(writer)
    assert [message[:1] for message in messages] == [b"Q", b"Q", b"d", b"c", b"Q"]
    *loading, decisive = messages
    for word in (b"leasehold_positions", b"INSERT INTO balances", b"leasehold_history", b"\nCOMMIT"):
        assert word in decisive
        assert not any(word in message for message in loading)


@pytest.mark.parametrize("message", MESSAGES)
async def test_a_later_owner_wins_whatever_the_earlier_one_was_at(
    bank: Bank, postgres_network: Network, message: int
) -> None:
    slow, fast = await bank.sink(postgres_network.dsn), await bank.sink()
    older = await slow.open(claim(1))
    await write(older)
    pause = Pause(postgres_network, message)
    late = asyncio.create_task(write(older))
    await pause.reached.wait()
    newer = await fast.open(claim(2))
    await write(newer)
    pause.go.set()
    with pytest.raises(Fenced) as fenced:
        await late
    assert fenced.value.epoch == 2
    await write(newer)
    assert bank.counted() == 3


async def test_a_late_request_of_a_dead_owner_counts_for_nothing(bank: Bank, postgres_network: Network) -> None:
    older = await (await bank.sink(postgres_network.dsn)).open(claim(1))
    await write(older)
    pause = Pause(postgres_network, 4)
    request = asyncio.create_task(write(older))
    await pause.reached.wait()  # the decisive message is on the way
    request.cancel()
    await asyncio.wait({request})
    newer = await (await bank.sink()).open(claim(2))
    await write(newer)
    pause.go.set()
    await eventually(lambda: bank.sessions("state <> 'idle'") == 0)
    await write(newer)
    assert bank.counted() == 3


async def test_owners_that_take_turns_at_random_count_each_event_once(bank: Bank) -> None:
    chance = random.Random(7)
    sinks = [await bank.sink(connections_max=2) for _ in range(3)]
    epoch = 0

    async def own(sink: PostgresSink) -> None:
        nonlocal epoch
        for _ in range(12):
            epoch += 1
            try:
                writer = await sink.open(claim(epoch))
                for _ in range(chance.randrange(4)):
                    await write(writer)
                    await asyncio.sleep(0)
            except Fenced:
                continue

    await asyncio.gather(*(own(sink) for sink in sinks))
    writer = await sinks[0].open(claim(epoch + 1))
    assert bank.counted() == int(writer.position or 0)


async def test_a_twin_with_the_same_epoch_is_fenced_too(bank: Bank) -> None:
    sinks = [await bank.sink() for _ in range(2)]
    twins = [await sink.open(claim(1)) for sink in sinks]
    results = await asyncio.gather(*(write(twin) for twin in twins), return_exceptions=True)
    assert sorted(type(result).__name__ for result in results) == ["Fenced", "NoneType"]
    assert bank.counted() == 1


async def test_two_first_claims_of_different_generations_do_not_miss_each_other(bank: Bank) -> None:
    sink = await bank.sink()
    bank.postgres.fetch(
        """CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN IF NEW.generation = 0 THEN PERFORM pg_advisory_xact_lock(42); END IF; RETURN NEW; END $$;
        CREATE TRIGGER dawdle BEFORE INSERT ON leasehold_positions FOR EACH ROW EXECUTE FUNCTION dawdle()"""
    )
    with psycopg.connect(bank.postgres.dsn) as holder:
        holder.execute("SELECT pg_advisory_lock(42)")
        older = asyncio.create_task(sink.open(claim(1)))
        await eventually(lambda: bank.sessions("wait_event_type = 'Lock'") == 1)  # it has not seen the newer one
        newer = asyncio.create_task(sink.open(claim(2, generation=1)))
        await eventually(lambda: newer.done() or bank.sessions("wait_event_type = 'Lock'") == 2)
    await write(await newer)
    with pytest.raises(Fenced):
        await write(await older)
    assert bank.postgres.fetch("SELECT DISTINCT value FROM balances") == [(1,)]


# Partitions that touch the same accounts


async def test_partitions_that_touch_the_same_accounts_do_not_disturb_each_other(bank: Bank) -> None:
    sinks = [await bank.sink(connections_max=2) for _ in range(2)]

    async def run(sink: PostgresSink, partition: str) -> None:
        writer = await sink.open(claim(1, partition))
        for _ in range(8):
            await write(writer)

    async with asyncio.timeout(60), asyncio.TaskGroup() as hosts:
        for i in range(8):
            hosts.create_task(run(sinks[i % 2], str(i)))
    assert bank.counted() == 64


async def test_a_deadlock_is_tried_again_by_the_one_who_gave_way(bank: Bank) -> None:
    bank.postgres.fetch(f"ALTER DATABASE {bank.postgres.name} SET deadlock_timeout = '5ms'")
    writers = [await (await bank.sink(merge=SLOWLY.format(order))).open(claim(1, order)) for order in ("ASC", "DESC")]
    await write(writers[0])
    await asyncio.gather(*(write(writer) for writer in writers))
    assert bank.counted() == 3
    deadlocks = "SELECT deadlocks > 0 FROM pg_stat_database WHERE datname = %s"
    await eventually(lambda: bank.postgres.fetch(deadlocks, bank.postgres.name) == [(True,)])


# Answers and connections that get lost


async def test_a_lost_answer_is_ambiguous_and_the_position_tells(bank: Bank, postgres_network: Network) -> None:
    sink = await bank.sink(postgres_network.dsn)
    writer = await sink.open(claim(1))
    await write(writer)

    async def lose(line: Line) -> None:
        line.lose_replies()

    at_the_end(postgres_network, lose)
    with pytest.raises(Ambiguous, match="connection lost before the answer"):
        await write(writer)
    again = await sink.open(claim(2))
    assert (again.position, bank.counted()) == ("2", 2)
    await write(again)
    assert bank.counted() == 3


async def test_a_lost_request_is_ambiguous_and_the_position_tells(bank: Bank, postgres_network: Network) -> None:
    sink = await bank.sink(postgres_network.dsn)
    writer = await sink.open(claim(1))
    await write(writer)

    async def lose(line: Line) -> None:
        line.cut()

    at_the_end(postgres_network, lose)
    with pytest.raises(Ambiguous):
        await write(writer)
    again = await sink.open(claim(2))
    assert (again.position, bank.counted()) == ("1", 1)
    await write(again)
    assert bank.counted() == 2


@pytest.mark.parametrize("message", MESSAGES[:-1])
async def test_a_connection_lost_before_the_end_is_replaced_unnoticed(
    bank: Bank, postgres_network: Network, message: int
) -> None:
    writer = await (await bank.sink(postgres_network.dsn)).open(claim(1))
    await write(writer)
    pause = Pause(postgres_network, message)
    late = asyncio.create_task(write(writer))
    await pause.reached.wait()
    assert pause.line is not None
    pause.line.cut()
    pause.go.set()
    await late
    assert bank.counted() == 2


async def test_a_connection_that_is_always_lost_is_unavailable(bank: Bank, postgres_network: Network) -> None:
    writer = await (await bank.sink(postgres_network.dsn)).open(claim(1))

    async def before(line: Line, message: bytes) -> None:
        if b"COPY" in message:
            line.cut()

    postgres_network.before = before
    with pytest.raises(SinkUnavailable, match="the connection was lost"):
        await write(writer)
    assert writer.position is None


@pytest.mark.parametrize(("message", "expected"), [(0, SinkUnavailable), (2, SinkUnavailable), (4, Ambiguous)])
async def test_a_network_that_goes_silent_is_given_up_in_time(
    bank: Bank, postgres_network: Network, message: int, expected: type[Exception]
) -> None:
    sink = await bank.sink(postgres_network.dsn, timeouts=Timeouts(transaction_s=1.0))
    writer = await sink.open(claim(1))
    await write(writer)
    pause = Pause(postgres_network, message)
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(expected, match="got no answer in 1 s"):
            await write(writer)
    pause.go.set()
    heir = await sink.open(claim(2))
    await write(heir)
    assert bank.counted() == 2


async def test_a_server_that_restarts_in_mid_run_costs_nothing(bank: Bank) -> None:
    sinks = [await bank.sink(connections_max=2) for _ in range(2)]
    epochs = dict.fromkeys("0123", 0)
    writes = restarts = 0

    async def run(sink: PostgresSink, partition: str) -> None:
        nonlocal writes
        while restarts < 2:
            try:
                epochs[partition] += 1
                writer = await sink.open(claim(epochs[partition], partition))
                while restarts < 2:
                    await write(writer)
                    writes += 1
            except (SinkUnavailable, Ambiguous):
                await asyncio.sleep(0.05)

    async with asyncio.timeout(60), asyncio.TaskGroup() as hosts:
        for i, partition in enumerate(epochs):
            hosts.create_task(run(sinks[i % 2], partition))
        for _ in range(2):
            before = writes
            await eventually(lambda before=before: writes > before + 20)
            await asyncio.to_thread(bank.postgres.stop)
            await asyncio.to_thread(bank.postgres.start)
            before = writes
            await eventually(lambda before=before: writes > before + 20)
            restarts += 1
    assert bank.counted() >= writes


async def test_idle_connections_that_a_restart_cut_are_replaced_unnoticed(bank: Bank) -> None:
    sink = await bank.sink(connections_max=6)
    writers = [await sink.open(claim(1, str(partition))) for partition in range(6)]
    await asyncio.gather(*(write(writer) for writer in writers))
    await asyncio.to_thread(bank.postgres.stop)
    await asyncio.to_thread(bank.postgres.start)
    for writer in writers:
        await write(writer)
    assert bank.counted() == 12


# Owners that stop


@pytest.mark.parametrize("message", MESSAGES)
async def test_a_cancelled_write_leaves_no_transaction_behind(
    bank: Bank, postgres_network: Network, message: int
) -> None:
    sink = await bank.sink(postgres_network.dsn)
    writer = await sink.open(claim(1))
    await write(writer)
    pause = Pause(postgres_network, message)
    request = asyncio.create_task(write(writer))
    await pause.reached.wait()
    request.cancel()
    async with asyncio.timeout(1):  # though nothing comes through the network any more
        await asyncio.wait({request})
    assert request.cancelled()
    pause.go.set()
    await eventually(lambda: bank.sessions("xact_start IS NOT NULL") == 0)
    heir = await sink.open(claim(2))
    await write(heir)
    assert bank.counted() == int(heir.position or 0)


async def test_a_cancelled_write_that_waits_for_a_lock_is_ended_at_the_server(bank: Bank) -> None:
    sink = await bank.sink(timeouts=Timeouts(lock_s=60, statement_s=60, transaction_s=60))
    writer = await sink.open(claim(1))
    await write(writer)
    with psycopg.connect(bank.postgres.dsn) as holder:
        holder.execute("UPDATE balances SET value = value")
        request = asyncio.create_task(write(writer))
        await eventually(lambda: bank.sessions("wait_event_type = 'Lock'") == 1)
        request.cancel()
        await asyncio.wait({request})
        await eventually(lambda: bank.sessions("xact_start IS NOT NULL") == 0)
    assert (await sink.open(claim(2))).position == "1"
    assert bank.counted() == 1


async def test_trust_that_ends_during_the_load_sends_nothing(bank: Bank) -> None:
    class Closing:
        def check(self) -> None:
            assert bank.sessions("state = 'idle in transaction'") == 1
            raise NotTrusted("the window has closed")

        async def granted(self) -> None: ...

    writer = await (await bank.sink()).open(claim(1))
    with pytest.raises(NotTrusted):
        await writer.write(batch(None), Closing())
    await eventually(lambda: bank.sessions("xact_start IS NOT NULL") == 0)
    await write(writer)
    assert bank.counted() == 1


HOST = """
import asyncio, sys
import pyarrow as pa
from pipeline.connectors.postgres import PostgresSink
from pipeline.errors import Ambiguous, SinkUnavailable
from pipeline.sink import Claim, Output

class Open:
    def check(self): ...
    async def granted(self): ...

async def main(dsn, merge, batches):
    sink = PostgresSink(dsn, merge=merge, history=True)
    await sink.prepare()
    position, epoch = None, 0
    while int(position or 0) < batches:
        epoch += 1
        writer = await sink.open(Claim(pipeline="balances", partition="stopped", owner=f"host-{epoch}", epoch=epoch,
            generation=0, continuation=None, state="", compare=lambda a, b: 0))
        try:
            while int((position := writer.position) or 0) < batches:
                accounts = [f"account-{i}" for i in range(5)]
                to = str(int(position or 0) + 1)
                await writer.write(Output(table=pa.table({"account": accounts, "value": [1] * 5}), start=position, to=to,
                    events=5), Open())
        except (Ambiguous, SinkUnavailable):
            continue
    await sink.close()

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


@dataclass
class Stopper:
    """Stops a process with SIGSTOP at its n-th message after its first batch, and lets nothing more of it through."""

    process: asyncio.subprocess.Process
    message: int
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    go: asyncio.Event = field(default_factory=asyncio.Event)
    batches: int = 0

    async def before(self, line: Line, message: bytes) -> None:
        if self.reached.is_set():
            await self.go.wait()
        elif self.batches:
            self.message -= 1
            if self.message < 0:
                self.process.send_signal(signal.SIGSTOP)
                self.reached.set()  # this message still goes to the server, as the kernel would send it
        self.batches += DECISIVE in message


@pytest.mark.parametrize("message", MESSAGES)
async def test_a_stopped_host_keeps_nobody_waiting(bank: Bank, postgres_network: Network, message: int) -> None:
    other = await (await bank.sink()).open(claim(1, "other"))
    await write(other)
    host = await asyncio.create_subprocess_exec(sys.executable, "-c", HOST, postgres_network.dsn, MERGE, "4")
    stopper = Stopper(host, message)
    postgres_network.before = stopper.before
    try:
        async with asyncio.timeout(PATIENCE_S):
            await stopper.reached.wait()
            started = time.monotonic()
            for _ in range(3):
                await write(other)
            took_s = time.monotonic() - started
            stopper.go.set()
            host.send_signal(signal.SIGCONT)
            assert await host.wait() == 0
    finally:
        if host.returncode is None:
            host.kill()
    assert took_s < Timeouts().lock_s / 2
    assert bank.counted() == 4 + 4


async def test_a_host_stopped_inside_a_transaction_loses_it_after_the_idle_timeout(bank: Bank) -> None:
    sink = await bank.sink(timeouts=Timeouts(idle_s=0.2))

    class Stopped:
        def check(self) -> None:
            time.sleep(1)  # the whole process stands still

        async def granted(self) -> None: ...

    writer = await sink.open(claim(1))
    await write(writer)
    with pytest.raises((Ambiguous, SinkUnavailable)):
        await writer.write(batch(writer.position), Stopped())
    heir = await sink.open(claim(2))
    assert heir.position == "1"
    await write(heir)
    assert bank.counted() == 2
