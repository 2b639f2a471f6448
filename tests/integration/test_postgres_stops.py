"""The sink `postgres` when its owner stops: cancelled, without trust, or frozen with SIGSTOP at any message of a write."""

from __future__ import annotations

import asyncio
import signal
import sys
from dataclasses import dataclass, field

import psycopg
import pytest
from patience import PATIENCE_S, until, until_async
from plugins_bank import DECISIVE, MERGE, MESSAGES, Bank, Pause, batch, claim, write
from plugins_pg import Line, Network

from leasehold.pipeline.connectors.postgres import Timeouts
from leasehold.pipeline.errors import Ambiguous, NotTrusted, SinkUnavailable


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
    async with asyncio.timeout(PATIENCE_S):  # though nothing comes through the network any more
        await asyncio.wait({request})
    assert request.cancelled()
    pause.go.set()
    await until_async(lambda: bank.sessions("xact_start IS NOT NULL") == 0)
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
        await until_async(lambda: bank.sessions("wait_event_type = 'Lock'") == 1)
        request.cancel()
        await asyncio.wait({request})
        await until_async(lambda: bank.sessions("xact_start IS NOT NULL") == 0)
    assert (await sink.open(claim(2))).position == "1"
    assert bank.counted() == 1


async def test_trust_that_ends_during_the_load_sends_nothing(bank: Bank) -> None:
    class Closing:
        def check(self) -> None:
            assert bank.sessions("state = 'idle in transaction'") == 1
            raise NotTrusted("the window has closed")

        async def wait_until_granted(self) -> None: ...

    writer = await (await bank.sink()).open(claim(1))
    with pytest.raises(NotTrusted):
        await writer.write(batch(None), Closing())
    await until_async(lambda: bank.sessions("xact_start IS NOT NULL") == 0)
    await write(writer)
    assert bank.counted() == 1


HOST = """
import asyncio, sys
import pyarrow as pa
from leasehold.pipeline.connectors.postgres import Connections, PostgresOutputSink, Tables, Timeouts
from leasehold.pipeline.errors import Ambiguous, SinkUnavailable
from leasehold.pipeline.sink import Claim, Output

class Open:
    def check(self): ...
    async def wait_until_granted(self): ...

async def main(dsn, merge, batches, forever_s):
    timeouts = Timeouts(**dict.fromkeys(("lock_s", "statement_s", "idle_s", "transaction_s"), float(forever_s)))
    sink = PostgresOutputSink(dsn, merge=merge, tables=Tables(history=True), connections=Connections(timeouts=timeouts))
    await sink.prepare()
    position, epoch = None, 0
    while int(position or 0) < batches:
        epoch += 1
        writer = await sink.open(Claim(pipeline="balances", partition="stopped", owner=f"host-{epoch}", epoch=epoch,
            generation=0, continuation=None, state="", compare=lambda a, b: 0))
        try:
            while int((position := writer.position) or 0) < batches:
                accounts = [f"account-{i}" for i in range(60)]
                to = str(int(position or 0) + 1)
                table = pa.table({"account": accounts, "value": [1] * len(accounts)})
                await writer.write(Output(table=table, start=position, to=to, events=len(accounts)), Open())
        except (Ambiguous, SinkUnavailable):
            continue
    await sink.close()

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]))
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
    """Its transaction would stay for longer than a lock is waited for, and than the test is patient."""
    other = await (await bank.sink()).open(claim(1, "other"))
    await write(other)
    host = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOST, postgres_network.dsn, MERGE, "4", str(10 * PATIENCE_S)
    )
    stopper = Stopper(host, message)
    postgres_network.before = stopper.before
    try:
        async with asyncio.timeout(PATIENCE_S):
            await stopper.reached.wait()
            for _ in range(3):
                await write(other)
            stopper.go.set()
            host.send_signal(signal.SIGCONT)
            assert await host.wait() == 0
    finally:
        if host.returncode is None:
            host.kill()
    assert bank.counted() == 4 + 4


async def test_a_host_stopped_inside_a_transaction_loses_it_after_the_idle_timeout(bank: Bank) -> None:
    sink = await bank.sink(timeouts=Timeouts(idle_s=4))

    class Stopped:
        def check(self) -> None:
            """The whole process stands still until the server has ended the transaction."""
            until(lambda: not bank.sessions("xact_start IS NOT NULL"), "the transaction is gone")

        async def wait_until_granted(self) -> None: ...

    writer = await sink.open(claim(1))
    await write(writer)
    with pytest.raises((Ambiguous, SinkUnavailable)):
        await writer.write(batch(writer.position), Stopped())
    heir = await sink.open(claim(2))
    assert heir.position == "1"
    await write(heir)
    assert bank.counted() == 2
