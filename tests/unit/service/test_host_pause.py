"""A paused pipeline: nobody works on it, nothing is lost, and it goes on where it stood; on virtual time."""

from __future__ import annotations

import asyncio

import pytest
from lab.simulation.group import Group, Running, until

from leasehold.leases.pause_orders import Control, control_id, encode_control

PAUSED = Control(pipeline="bank", paused=True, by="alice", at="2026-01-31T12:00:00Z")


def pause(group: Group, body: str = encode_control(PAUSED)) -> None:
    group.put(control_id("bank"), body)


def resume(group: Group) -> None:
    group.put(control_id("bank"), encode_control(Control(pipeline="bank", paused=False)))


def append(group: Group) -> None:
    for partition in "abcd":
        group.append(partition, 5)


async def settled(group: Group, *names: str) -> list[Running]:
    hosts = [await group.start(name) for name in names]
    await until(group.is_balanced)
    return hosts


def is_at_rest(group: Group) -> bool:
    return set(group.owners.values()) == {None} and not any(group.shares.values())


@pytest.mark.virtual
async def test_a_pause_releases_every_lease_within_a_scan_and_nobody_takes_one() -> None:
    group = Group("abcd")
    hosts = await settled(group, "host-a", "host-b")
    append(group)
    await until(group.is_delivered)
    epochs = group.epochs
    pause(group)
    await until(lambda: is_at_rest(group), within_s=group.timing.balance_s + 2)
    append(group)
    await asyncio.sleep(10 * group.timing.patience_s)
    assert group.epochs == epochs
    assert [group.delivered(partition) for partition in "abcd"] == [list(range(5))] * 4
    assert [len(host.said("pipeline paused")) for host in hosts] == [1, 1]
    for host in hosts:
        await host.stop()


@pytest.mark.virtual
async def test_a_resumed_pipeline_goes_on_where_it_stood_and_nothing_is_lost_or_repeated() -> None:
    group = Group("abcd")
    a, b = await settled(group, "host-a", "host-b")
    append(group)
    pause(group)  # with batches in hand
    append(group)
    await until(lambda: is_at_rest(group), within_s=60)
    append(group)
    await asyncio.sleep(600)
    resume(group)
    await until(group.is_balanced, within_s=60)
    await until(group.is_delivered, within_s=60)
    assert a.said("pipeline resumed")
    await a.stop()
    await b.stop()


@pytest.mark.virtual
async def test_a_host_that_starts_into_a_pause_makes_leases_and_takes_none() -> None:
    group = Group("abcd")
    pause(group)
    a = await group.start("host-a")
    append(group)
    await asyncio.sleep(300)
    assert dict(group.owners) == dict.fromkeys("abcd")
    resume(group)
    await until(group.is_delivered, within_s=60)
    await a.stop()


@pytest.mark.virtual
async def test_a_dead_owners_leases_stay_as_they_are_until_the_pipeline_is_resumed() -> None:
    group = Group("abcd")
    a, b = await settled(group, "host-a", "host-b")
    append(group)
    await until(group.is_delivered)
    await b.kill()
    pause(group)
    await asyncio.sleep(10 * group.timing.patience_s)
    assert set(group.owners.values()) == {None, "host-b"}
    assert a.host.balancer.expired
    append(group)
    resume(group)
    await until(lambda: set(group.owners.values()) == {"host-a"}, within_s=60)
    await until(group.is_delivered, within_s=60)
    await a.stop()


@pytest.mark.virtual
async def test_a_host_that_comes_back_under_its_name_leaves_its_leases_alone_while_paused() -> None:
    group = Group("ab")
    [a] = await settled(group, "host-a")
    await a.kill()
    pause(group)
    again = await group.start("host-a")
    await asyncio.sleep(300)
    assert not again.host.workers
    resume(group)
    await until(group.is_balanced, within_s=60)
    await again.stop()


@pytest.mark.virtual
async def test_an_order_that_nobody_can_read_pauses_and_is_told() -> None:
    group = Group("ab")
    [a] = await settled(group, "host-a")
    pause(group, '{"version": 7}')
    await until(lambda: is_at_rest(group), within_s=60)
    assert any("_control/bank" in entry["what"] for entry in a.said("needs attention"))
    resume(group)
    await until(group.is_balanced, within_s=60)
    await a.stop()


@pytest.mark.virtual
async def test_a_frozen_owner_that_wakes_into_a_pause_sends_nothing_that_another_has_sent() -> None:
    group = Group("abcd")
    a, b = await settled(group, "host-a", "host-b")
    append(group)
    b.process.stop()
    pause(group)
    await asyncio.sleep(3 * group.timing.patience_s)
    b.process.resume()
    await until(lambda: is_at_rest(group), within_s=120)
    resume(group)
    await until(group.is_balanced, within_s=120)
    await until(group.is_delivered, within_s=120)
    await a.stop()
    await b.stop()
