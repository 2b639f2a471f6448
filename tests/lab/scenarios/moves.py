"""The duplicated consumer as Pulsar has it: the owner is slow and has read ahead, and a second host joins.

Host a owns all partitions of a role; its sink waits, its buffer is full. Host b takes half of them: by handoff, where a goes on
once it knows that it was asked, finishes the batches in hand and releases; or by steal, where a does not go on until b has
delivered. What a had buffered of them is discarded: b delivers it.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable

from lab.scenarios.bank import TRANSACTIONS, Bank
from lab.scenarios.grounds import PARTITIONS, behind
from lab.scenarios.host import Batch, Host
from patience import Failed, until

MOVED = PARTITIONS // 2
Batches = dict[str, list[Batch]]
"""By partition, oldest first."""


def handoff(bank: Bank, role: str) -> None:
    """a is asked, and releases. Raises Failed."""
    _moved(
        bank,
        role,
        "handed over",
        delivered_by_a=2,
        has_come=lambda a, b, moved: a.said("handoff request received") == MOVED,
    )


def steal(bank: Bank, role: str) -> None:
    """a renews and does not answer within a lease duration. Raises Failed."""
    _moved(bank, role, "stolen", delivered_by_a=1, has_come=lambda a, b, moved: moved <= _by_partition(b, role).keys())


def _moved(
    bank: Bank, role: str, how: str, *, delivered_by_a: int, has_come: Callable[[Host, Host, set[str]], bool]
) -> None:
    """delivered_by_a: how many batches of a partition that moves; the second is in hand when b asks. has_come: a goes on then."""
    with bank.running("a", role, slow=True, until_idle=False) as a:
        _see_full(bank, role, a)
        with bank.running("b", role, *behind(role), until_idle=False) as b:
            moved: set[str] = set()

            def is_asked_for() -> set[str]:
                moved.update(_asked_for(bank, role))
                return moved

            until(is_asked_for, "host b asks for its share")
            until(lambda: has_come(a, b, moved), f"leases are {how}")
            bank.gate.touch()
            until(lambda: bank.counted() >= TRANSACTIONS, "everything is delivered")
            until(lambda: _logged(a, b, role) >= TRANSACTIONS, "the hosts have logged what they delivered")
            by_a, by_b = _by_partition(a, role), _by_partition(b, role)
            _assert_moved_once(by_a, by_b, moved, delivered_by_a)
            if bank.ground.begins_nowhere and (firsts := [each[0] for each in by_a.values() if each[0].start]):
                raise Failed(f"the first batches do not begin where their partitions do: {firsts}")
            until(lambda: a.leases_owned(role) == PARTITIONS - MOVED, "host a has let go of what moved")
            for host in (a, b):
                host.send(signal.SIGTERM)
            for host in (a, b):
                bank.see_end(host)


def _see_full(bank: Bank, role: str, a: Host) -> None:
    """a has delivered a batch of every partition, is stuck with the second, and has read as far ahead as it may."""
    until(lambda: a.is_ready, "host a is ready")
    until(lambda: len(_by_partition(a, role)) == PARTITIONS, "host a delivers a batch of every partition")
    full_bytes = bank.ground.full * PARTITIONS * bank.ground.buffer_bytes[role]
    until(
        lambda: full_bytes <= a.buffer_bytes == _a_second_later(a),
        "the buffer of host a is full",
    )
    if any(len(batches) > 1 for batches in _by_partition(a, role).values()):
        raise Failed("host a is not slow")


def _a_second_later(host: Host) -> float:
    """What it holds by then: where it goes on reading, that is more."""
    threading.Event().wait(1)
    return host.buffer_bytes


def _asked_for(bank: Bank, role: str) -> set[str]:
    asked = {lease.partition for lease in bank.leases(role) if lease.handoff_to == "b"}
    return asked if len(asked) == MOVED else set()


def _logged(a: Host, b: Host, role: str) -> int:
    return sum(batch.events for host in (a, b) for batch in host.batches(role))


def _by_partition(host: Host, role: str) -> Batches:
    found: Batches = {}
    for batch in host.batches(role):
        found.setdefault(batch.partition, []).append(batch)
    return found


def _assert_moved_once(by_a: Batches, by_b: Batches, moved: set[str], delivered_by_a: int) -> None:
    """b goes on exactly where a left off, under a higher epoch, and a delivers none of what it had buffered. Raises Failed."""
    if by_b.keys() != moved:
        raise Failed(f"host b delivered of {sorted(by_b)}, and asked for {sorted(moved)}")
    for partition, before in by_a.items():
        after = by_b.get(partition, [])
        chain = [*before, *after]
        if partition in moved and len(before) != delivered_by_a:
            raise Failed(f"host a delivered {len(before)} batches of {partition}, which moved: not {delivered_by_a}")
        if [batch.start for batch in chain[1:]] != [batch.to for batch in chain[:-1]]:
            raise Failed(f"the batches of {partition} do not follow each other: {chain}")
        if sum(batch.events for batch in chain) != TRANSACTIONS // PARTITIONS:
            raise Failed(f"the batches of {partition} are not its {TRANSACTIONS // PARTITIONS} events: {chain}")
        if after and not max(batch.epoch for batch in before) < min(batch.epoch for batch in after):
            raise Failed(f"the epoch of {partition} was not raised: {chain}")
