"""Processes that share a log: they steal from each other, come late, and die in the middle of a write."""

import asyncio
import json
import signal
import sys
from pathlib import Path

import pytest

from leasehold.pipeline.connectors.log import LogFeed
from leasehold.pipeline.connectors.log.store import Log

PRELUDE = """
import asyncio, json, os, signal, sys
import pyarrow as pa
from leasehold.pipeline.connectors.log import LogSink, append
from leasehold.pipeline.errors import Fenced
from leasehold.pipeline.sink import Claim, Output

class Permit:
    def __init__(self): self.checks_left = 0
    def check(self):
        self.checks_left -= 1
        if self.checks_left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

permit = Permit()

def claim(state):
    return Claim(pipeline="bank", partition="p", owner="host", epoch=1, generation=0, continuation=None, state=state,
                 compare=lambda a, b: int(a or 0) - int(b or 0))

async def deliver(writer, events):
    start = int(writer.position or 0)
    table = pa.table({"body": [str(n) for n in range(start + 1, start + events + 1)]})
    await writer.write(Output(table=table, start=writer.position, to=str(start + events), events=events), permit)
"""

CONTENDER = """
async def main(path, to, dies_at):
    sink, state, position = LogSink(path), "", 0
    permit.checks_left = dies_at
    print("ready", flush=True)
    sys.stdin.readline()
    while position < to:
        try:
            writer = await sink.open(claim(sink.claimed(state)))
            state = writer.state
            for _ in range(7):
                position = int(writer.position or 0)
                if position < to:
                    await deliver(writer, 3)
                    print(writer.position, flush=True)
        except Fenced as fenced:
            state = fenced.state or state
    await sink.close()
asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
"""

ZOMBIE = """
async def main(path):
    sink = LogSink(path)
    writer = await sink.open(claim(sink.claimed("")))
    print(json.dumps(writer.state), flush=True)
    sys.stdin.readline()
    try:
        await deliver(writer, 1)
        print("delivered", flush=True)
    except Fenced:
        print("fenced", flush=True)
    await sink.close()
asyncio.run(main(sys.argv[1]))
"""

HEIR = """
async def main(path, state):
    sink = LogSink(path)
    writer = await sink.open(claim(sink.claimed(state)))
    await deliver(writer, 2)
    await sink.close()
asyncio.run(main(sys.argv[1], sys.argv[2]))
"""


async def started(program: str, *arguments: object) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PRELUDE + program, *map(str, arguments)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    Log(tmp_path).prepare()
    return tmp_path


def delivered(path: Path) -> list[int]:
    log = Log(path)
    try:
        _, blocks = log.partition("p").read(0, events_max=10**9, bytes_max=10**12)
        return [int(body) for block in blocks for body in block.events["body"].to_pylist()]
    finally:
        log.close()


async def test_processes_that_steal_from_each_other_and_die_deliver_each_event_once(path: Path) -> None:
    victim, *survivors = contenders = [
        await started(CONTENDER, path, to, dies_at) for to, dies_at in ((1_000_000, 3), (300, 0), (300, 0))
    ]
    for contender in contenders:
        assert contender.stdout is not None
        await contender.stdout.readline()  # a process takes a while to start; none may be done before the others begin
    for contender in contenders:
        assert contender.stdin is not None
        contender.stdin.write(b"go\n")
    outs = [(await survivor.communicate())[0] for survivor in survivors]
    assert [survivor.returncode for survivor in survivors] == [0, 0]
    assert any(outs), "somebody delivered something"
    await victim.communicate()
    assert victim.returncode == -signal.SIGKILL, "just before its third write, perhaps after the survivors' last"
    events = delivered(path)
    assert len(events) >= 300
    assert events == list(range(1, len(events) + 1))


async def test_a_zombie_s_late_append_is_refused(path: Path) -> None:
    zombie = await started(ZOMBIE, path)
    assert zombie.stdout is not None
    state = json.loads(await zombie.stdout.readline())
    heir = await started(HEIR, path, state)
    assert await heir.wait() == 0
    out, _ = await zombie.communicate(b"go on\n")
    assert out.split() == [b"fenced"]
    assert delivered(path) == [1, 2]


async def test_a_reader_is_woken_by_another_process(path: Path) -> None:
    first = await started("append(sys.argv[1], 'p', ['1'])", path)
    assert await first.wait() == 0
    feed = LogFeed(path)
    pages = feed.open("p", "0")
    waiting = asyncio.ensure_future(anext(pages))
    await feed.latest("p")
    second = await started("append(sys.argv[1], 'p', ['2'])", path)
    assert await second.wait() == 0
    assert (await waiting).events["body"].to_pylist() == [b"2"]
    await pages.aclose()  # type: ignore[attr-defined]  # readers are async generators
    await feed.close()
