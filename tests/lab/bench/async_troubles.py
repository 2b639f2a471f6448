"""The sink `http` before an endpoint that throttles 80% of requests, fails items, stalls, is dead for a minute, and well again.

In real time, over sockets, to a process of its own. Rows are written as fast as the sink takes them. Targets: nothing is
missing; no more entries are held than `buffered_entries_max`; memory does not grow with what is not taken; ten seconds after the
end of the troubles nine tenths of the first rate are reached. Prints, writes build/bench/requests-in-trouble.json, and draws the
run into build/async_troubles.svg. Exit code 1 where a target is missed. Some three minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import psutil
from async_sink import Trusted, batch, claim
from plugins_endpoint import Endpoint, endpoint_served
from rate_limiter import Look, Phase, drawn
from results import BUILD, Figure, finish, say

from leasehold.pipeline.async_sink import Limits
from leasehold.pipeline.async_sink.writer import AsyncWriter
from leasehold.pipeline.connectors.http import http_sink

TAKES_S, LOOK_S, BATCH = 0.05, 0.25, 1000
LIMITS = Limits(batch_entries_max=20, in_flight_max=8, buffered_entries_max=2000, request_timeout_s=2.0)
WELL = LIMITS.in_flight_entries_max / TAKES_S
TROUBLES: tuple[tuple[float, str, dict[str, Any]], ...] = (
    (10, "is well", {}),
    (25, "throttles 80 %", {"throttle": 0.8}),
    (15, "20 % of items fail", {"items": 0.2}),
    (15, "half stalls", {"stall": 0.5}),
    (60, "is dead", {"is_dead": True}),
    (0, "is well again", {}),
)
"""For how many seconds, what to call it, and what to order of the endpoint."""
BACK_S, AFTER_S = 10.0, 20.0
"""When the first rate has to be back, and how long to look on."""
PICTURE = BUILD / "async_troubles.svg"


@dataclass(slots=True)
class Run:
    """looks: at the limit and the rate, every LOOK_S. held, rss_mb: at each of them."""

    looks: list[Look]
    held: list[int]
    rss_mb: list[float]
    phases: list[Phase]
    written: int = 0

    def rate(self, start: float, end: float) -> float:
        rates = [look.rate for look in self.looks if start <= look.at < end]
        return sum(rates) / len(rates)

    def memory_mb(self, start: float, end: float) -> list[float]:
        return [mb for mb, look in zip(self.rss_mb, self.looks, strict=True) if start <= look.at < end]


@asynccontextmanager
async def opened(endpoint: Endpoint) -> AsyncIterator[AsyncWriter]:
    sink = http_sink(f"{endpoint.url}/entries?items=1", results="items", limits=LIMITS)
    await sink.prepare()
    writer = await sink.open(claim())
    try:
        yield writer
    finally:
        await writer.close("shutdown")
        await sink.close()


async def write_on(writer: AsyncWriter, run: Run, ending: asyncio.Event) -> None:
    while not ending.is_set():
        await writer.write(batch(run.written // BATCH, BATCH), Trusted())
        run.written += BATCH


async def look_on(writer: AsyncWriter, run: Run) -> None:
    process, began, before = psutil.Process(), time.monotonic(), 0
    last = 0.0
    while True:
        await asyncio.sleep(LOOK_S)
        at, acknowledged, desk = time.monotonic() - began, writer.acknowledged, writer._desk
        run.looks.append(Look(at, desk.limiter.entries, (acknowledged - before) / (at - last)))
        run.held.append(desk.unsettled)
        run.rss_mb.append(process.memory_info().rss / 2**20)
        before, last = acknowledged, at


async def ran(endpoint: Endpoint, scale: float) -> Run:
    """scale: of how long each trouble lasts."""
    run, ending = Run([], [], [], []), asyncio.Event()
    async with opened(endpoint) as writer:
        began = time.monotonic()
        writing = asyncio.create_task(write_on(writer, run, ending))
        looking = asyncio.create_task(look_on(writer, run))
        for lasts_s, name, trouble in TROUBLES:
            run.phases.append(Phase(time.monotonic() - began, name, takes=WELL))
            await asyncio.to_thread(endpoint.order, "trouble", **({"takes_s": TAKES_S} | trouble))
            say(f"{run.phases[-1].start:6.1f} s  {name}")
            await asyncio.wait(
                {writing, looking}, timeout=lasts_s * scale or AFTER_S, return_when=asyncio.FIRST_COMPLETED
            )
        looking.cancel()
        ending.set()
        await writing
        await writer.flush()
    return run


def figures(run: Run, entries: Sequence[Any]) -> list[Figure]:
    """Shares of all that was written, of `buffered_entries_max`, and of the first rate, ten seconds after the troubles."""
    first, trouble, well = run.phases[0].start, run.phases[1].start, run.phases[-1].start
    before, during = run.memory_mb(first, trouble), run.memory_mb(trouble, well)
    delivered = len({entry["sequence"] for entry in entries}) / run.written
    held = max(run.held) / LIMITS.buffered_entries_max
    back = run.rate(well + BACK_S, run.looks[-1].at) / run.rate(first + (trouble - first) / 2, trouble)
    return [
        Figure(name="in trouble: delivered", unit="share of all entries", ours=delivered, bound=1.0),
        Figure(name="in trouble: held", unit="share of `buffered_entries_max`", ours=held, bound=1.0, is_most=True),
        Figure(name="in trouble: more memory", unit="MB", ours=max(during) - max(before), bound=32, is_most=True),
        Figure(name="after trouble: rate", unit="relative to the rate before the trouble", ours=back, bound=0.9),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="of how long each trouble lasts (%(default)s)")
    scale = parser.parse_args().scale
    with endpoint_served() as endpoint:
        run = asyncio.run(ran(endpoint, scale))
        entries = endpoint.entries
    again = len(entries) - run.written
    BUILD.mkdir(parents=True, exist_ok=True)
    PICTURE.write_text(drawn(run.looks, run.phases))
    say(f"{run.written:,} entries, {again:,} came again; drawn into {PICTURE}")
    return finish("requests-in-trouble", figures(run, entries), again=again)


if __name__ == "__main__":
    sys.exit(main())
