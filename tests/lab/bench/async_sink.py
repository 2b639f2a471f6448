"""What an asynchronous sink gets out of a destination that takes 20 ms per request, 8 in flight, batches of 100: of 40,000/s.

The destination is a coroutine in this process, so that what is measured is the sink: rows (two columns, from memory) become
JSON, requests, acknowledgements and positions. Prints, and writes build/bench/requests.json. Exit code 1 where less than nine
tenths is reached.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import sys
import time
from collections.abc import Sequence

import pyarrow as pa
from results import Figure, finish

from leasehold.pipeline.async_sink import AsyncSink, Entry, Limits
from leasehold.pipeline.async_sink import Destination as RequestDestination
from leasehold.pipeline.sink import Claim, Output

TAKES_S, IN_FLIGHT, ENTRIES = 0.02, 8, 100
IDEAL = IN_FLIGHT * ENTRIES / TAKES_S
BATCH = 10_000


class Trusted:
    def check(self) -> None: ...

    async def wait_until_granted(self) -> None: ...


class Destination(RequestDestination):
    taken = 0

    async def submit(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        await asyncio.sleep(TAKES_S)
        self.taken += len(entries)
        return ()


def batch(number: int, size: int = BATCH) -> Output:
    first = number * size
    table = pa.table({"sequence": pa.array(range(first, first + size), pa.int64()), "account": ["a-123456"] * size})
    return Output(table=table, start=str(first), to=str(first + size), events=size)


def claim() -> Claim:
    return Claim(
        pipeline="bench",
        partition="0",
        owner="bench",
        epoch=1,
        generation=0,
        continuation=None,
        state="",
        compare=lambda a, b: int(a or 0) - int(b or 0),
    )


async def measured(seconds: float) -> dict[str, float]:
    destination = Destination()
    limits = Limits(batch_entries_max=ENTRIES, in_flight_max=IN_FLIGHT)
    writer = await AsyncSink(destination, identity="bench", limits=limits).open(claim())
    await writer.write(batch(0), Trusted())  # what is imported with the first one is no part of it
    await writer.flush()
    destination.taken, number = 0, 1
    began, cpu = time.monotonic(), time.process_time()
    while time.monotonic() - began < seconds:
        await writer.write(batch(number), Trusted())
        number += 1
    await writer.flush()
    took_s = time.monotonic() - began
    await writer.close("shutdown")
    return {
        "entries": destination.taken,
        "entries_per_s": round(destination.taken / took_s),
        "cpu_us_per_entry": round((time.process_time() - cpu) / destination.taken * 1e6, 1),
        "rss_max_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    result = asyncio.run(measured(parser.parse_args().seconds))
    figure = Figure(
        name="asynchronous sink",
        unit="entries/s",
        ours=result["entries_per_s"],
        others={"what the destination takes": IDEAL},
        beside="what the destination takes",
        cpu_us={"leasehold": result["cpu_us_per_entry"]},
        bound=0.9,
    )
    return finish("requests", [figure], measured=result)


if __name__ == "__main__":
    sys.exit(main())
