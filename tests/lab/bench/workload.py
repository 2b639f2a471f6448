"""The work both sides do: JSON events of some 170 bytes in a log of four partitions, summed per account into PostgreSQL."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from leasehold.pipeline.connectors.log import append

PARTITIONS = 4
ACCOUNTS = 10_000
BLOCK_EVENTS = 1_000
BATCH_EVENTS = 100_000
"""Per partition and batch, the default of our side; the other may take as many of each partition."""
SETUP = """
    CREATE TABLE IF NOT EXISTS balances (account text PRIMARY KEY, balance numeric NOT NULL, events bigint NOT NULL)
    WITH (fillfactor = 50)
"""
"""With room on its pages: docs/sizing.md."""
MERGE = """
    INSERT INTO balances (account, balance, events) SELECT account, value, events FROM batch ORDER BY account
    ON CONFLICT (account) DO UPDATE SET balance = balances.balance + excluded.balance, events = balances.events + excluded.events
"""

Cents = Counter[str]
"""What every account is worth."""


def body_of(number: int, account: str, cents: int) -> bytes:
    """An amount with cents, and fields that nobody asks for."""
    return (
        f'{{"transaction_id":{number},"account":"{account}","kind":"transfer","value":{cents // 100}.{cents % 100:02},'
        f'"currency":"EUR","branch":"branch-{number % 97:03}","occurred_at":"2026-01-01T00:00:00.{number % 1000:03}Z"}}'
    ).encode()


def write_log(path: Path, events: int, seed: int, partitions: int = PARTITIONS) -> Cents:
    """Its blocks are as a busy producer's, and go to the partitions in turn."""
    sums = Cents()
    for number, bodies in enumerate(blocks(events, seed, sums)):
        append(path, str(number % partitions), bodies)
    return sums


def blocks(events: int, seed: int, sums: Cents) -> Iterator[list[bytes]]:
    """BLOCK_EVENTS bodies at a time. sums: what they add up to."""
    chance = random.Random(seed)

    def bodies() -> Iterator[bytes]:
        for number in range(events):
            account, cents = f"account-{chance.randrange(ACCOUNTS):06}", chance.randrange(1, 1_000_000)
            sums[account] += cents
            yield body_of(number, account, cents)

    remaining = bodies()
    while block := list(islice(remaining, BLOCK_EVENTS)):
        yield block
