"""Drives the programs of hub_memory.py, and says by how much they grow."""

from __future__ import annotations

import json

from hub_sides import BODY_BYTES, Order, started
from plugins_eventhubs import EventHubs
from results import say

HUB = "memory"
STEPS = 4
PIECES = 5


def growth(server: EventHubs, who: str, events: int) -> float:
    """The resident set after all events, by that after the first quarter of them."""
    step = events // STEPS
    server.control.make_hub(HUB, 1, events_max=step if who == "receiver" else 1000)
    order = Order(side=who, connection_string=server.connection_string, hub=HUB, events=events, size=step)
    held: list[int] = []
    with started("hub_memory.py", order) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for _ in range(STEPS):
            if who == "receiver":
                for _ in range(PIECES):
                    server.control.fill(HUB, "0", step // PIECES, BODY_BYTES)
                process.stdin.write("\n" if held else "")
                process.stdin.flush()
            said = json.loads(process.stdout.readline())
            held.append(said["rss_bytes"])
            say(f"memory    {who:12}{said['events']:>12,} events{said['rss_bytes'] / 1e6:>9.1f} MB")
        if who == "receiver":
            process.stdin.write("\n")
            process.stdin.flush()
        process.wait(60)
    return held[-1] / held[0]
