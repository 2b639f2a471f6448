"""The sink `postgres` when owners overlap and network or server fail: no event is lost, none counts twice."""

from __future__ import annotations

import asyncio
import random

import psycopg
import pytest
from patience import PATIENCE_S, until_async
from plugins_bank import ACCOUNTS, DECISIVE, MESSAGES, Bank, Pause, at_the_end, claim, write
from plugins_pg import Line, Network

from leasehold.pipeline.connectors.postgres import PostgresOutputSink, Timeouts
from leasehold.pipeline.errors import Ambiguous, Fenced, SinkUnavailable

FEW = ACCOUNTS[:5]
HALTING = """INSERT INTO balances (account, value) SELECT account, value FROM batch ORDER BY account {}
    ON CONFLICT (account) DO UPDATE SET
        value = balances.value + excluded.value + (SELECT 0 FROM pg_advisory_xact_lock_shared(1))"""
"""Has one of the rows, and waits for a lock of the test before it takes the other."""


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


async def test_a_few_rows_travel_in_the_message_that_decides(bank: Bank, postgres_network: Network) -> None:
    writer = await (await bank.sink(postgres_network.dsn)).open(claim(1))
    await write(writer, FEW)
    messages: list[bytes] = []

    async def before(line: Line, message: bytes) -> None:
        messages.append(message)

    postgres_network.before = before
    await write(writer, FEW)
    assert [DECISIVE in message for message in messages] == [True]
    assert bank.counted() == 2


async def test_a_later_owner_wins_over_a_message_of_few_rows(bank: Bank, postgres_network: Network) -> None:
    slow, fast = await bank.sink(postgres_network.dsn), await bank.sink()
    older = await slow.open(claim(1))
    await write(older, FEW)
    pause = Pause(postgres_network, 0)
    late = asyncio.create_task(write(older, FEW))
    await pause.reached.wait()
    newer = await fast.open(claim(2))
    await write(newer, FEW)
    pause.go.set()
    with pytest.raises(Fenced):
        await late
    assert bank.counted() == 2


@pytest.mark.parametrize("is_applied", [False, True])
async def test_a_message_of_few_rows_whose_answer_is_lost_is_in_doubt(
    bank: Bank, postgres_network: Network, is_applied: bool
) -> None:
    sink = await bank.sink(postgres_network.dsn)
    writer = await sink.open(claim(1))
    await write(writer, FEW)

    async def interfere(line: Line) -> None:
        if is_applied:
            line.lose_replies()
        else:
            line.cut()

    at_the_end(postgres_network, interfere)
    with pytest.raises(Ambiguous):
        await write(writer, FEW)
    heir = await sink.open(claim(2))
    assert heir.position == ("2" if is_applied else "1")
    await write(heir, FEW)
    assert bank.counted() == int(heir.position)


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
    await until_async(lambda: bank.sessions("state <> 'idle'") == 0)
    await write(newer)
    assert bank.counted() == 3


async def test_owners_that_take_turns_at_random_count_each_event_once(bank: Bank) -> None:
    chance = random.Random(7)
    sinks = [await bank.sink(connections_max=2) for _ in range(3)]
    epoch = 0

    async def own(sink: PostgresOutputSink) -> None:
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
        await until_async(lambda: bank.sessions("wait_event_type = 'Lock'") == 1)  # it has not seen the newer one
        newer = asyncio.create_task(sink.open(claim(2, generation=1)))
        await until_async(lambda: newer.done() or bank.sessions("wait_event_type = 'Lock'") == 2)
    await write(await newer)
    with pytest.raises(Fenced):
        await write(await older)
    assert bank.postgres.fetch("SELECT DISTINCT value FROM balances") == [(1,)]


# Partitions that touch the same accounts


async def test_partitions_that_touch_the_same_accounts_do_not_disturb_each_other(bank: Bank) -> None:
    sinks = [await bank.sink(connections_max=2) for _ in range(2)]

    async def run(sink: PostgresOutputSink, partition: str) -> None:
        writer = await sink.open(claim(1, partition))
        for _ in range(8):
            await write(writer)

    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as hosts:
        for i in range(8):
            hosts.create_task(run(sinks[i % 2], str(i)))
    assert bank.counted() == 64


async def test_a_deadlock_is_tried_again_by_the_one_who_gave_way(bank: Bank) -> None:
    bank.postgres.fetch(f"ALTER DATABASE {bank.postgres.name} SET deadlock_timeout = '5ms'")
    writers = [await (await bank.sink(merge=HALTING.format(order))).open(claim(1, order)) for order in ("ASC", "DESC")]
    await write(writers[0])
    with psycopg.connect(bank.postgres.dsn, autocommit=True) as gate:
        gate.execute("SELECT pg_advisory_lock(1)")
        writes = asyncio.gather(*(write(writer) for writer in writers))
        halted = "SELECT count(*) = 2 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        await until_async(lambda: bank.postgres.fetch(halted) == [(True,)])
    await writes
    assert bank.counted() == 3
    deadlocks = "SELECT deadlocks > 0 FROM pg_stat_database WHERE datname = %s"
    await until_async(lambda: bank.postgres.fetch(deadlocks, bank.postgres.name) == [(True,)])


# Answers and connections that get lost


async def test_a_lost_answer_is_ambiguous_and_the_position_tells(bank: Bank, postgres_network: Network) -> None:
    sink = await bank.sink(postgres_network.dsn)
    writer = await sink.open(claim(1))
    await write(writer)

    async def lose(line: Line) -> None:
        line.lose_replies()

    at_the_end(postgres_network, lose)
    with pytest.raises(Ambiguous, match="connection was lost before the answer"):
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
    sink = await bank.sink(postgres_network.dsn, timeouts=Timeouts(transaction_s=4.0))
    writer = await sink.open(claim(1))
    await write(writer)
    pause = Pause(postgres_network, message)
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(expected, match="got no answer in 4 s"):
            await write(writer)
    pause.go.set()
    heir = await sink.open(claim(2))
    assert heir.position == "1" or (expected is Ambiguous and heir.position == "2")  # the late COMMIT may still count
    applied = int(heir.position)
    await write(heir)
    assert bank.counted() == applied + 1


async def test_a_server_that_restarts_in_mid_run_costs_nothing(bank: Bank) -> None:
    sinks = [await bank.sink(connections_max=2) for _ in range(2)]
    epochs = dict.fromkeys("0123", 0)
    writes = restarts = 0
    is_up = asyncio.Event()
    is_up.set()

    async def run(sink: PostgresOutputSink, partition: str) -> None:
        nonlocal writes
        while restarts < 2:
            try:
                epochs[partition] += 1
                writer = await sink.open(claim(epochs[partition], partition))
                while restarts < 2:
                    await write(writer)
                    writes += 1
            except (SinkUnavailable, Ambiguous):
                await is_up.wait()

    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as hosts:
        for i, partition in enumerate(epochs):
            hosts.create_task(run(sinks[i % 2], partition))
        for _ in range(2):
            before = writes
            await until_async(lambda before=before: writes > before + 20)
            is_up.clear()
            await asyncio.to_thread(bank.postgres.stop)
            await asyncio.to_thread(bank.postgres.start)
            is_up.set()
            before = writes
            await until_async(lambda before=before: writes > before + 20)
            restarts += 1
    assert bank.counted() >= writes


@pytest.mark.parametrize("accounts", [ACCOUNTS, FEW])
async def test_idle_connections_that_a_restart_cut_are_replaced_unnoticed(bank: Bank, accounts: list[str]) -> None:
    sink = await bank.sink(connections_max=6)
    writers = [await sink.open(claim(1, str(partition))) for partition in range(6)]
    await asyncio.gather(*(write(writer, accounts) for writer in writers))
    await asyncio.to_thread(bank.postgres.stop)
    await asyncio.to_thread(bank.postgres.start)
    for writer in writers:
        await write(writer, accounts)
    assert bank.counted() == 12
