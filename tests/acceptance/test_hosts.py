"""Two hosts on one configuration: joining, dying, pausing and leaving, with balances that stay exact."""

from __future__ import annotations

import json
import signal
import urllib.request

import pytest
from conftest import START_S, TIMING, Bank, HostProcess, until

pytestmark = pytest.mark.timeout(400)

TAKEOVER_S = TIMING.duration_s + TIMING.renew_s + 2
"""docs/protocol.md: a dead owner's lease is taken within lease duration + renew interval + 2 s."""


@pytest.fixture
def alone(bank: Bank) -> HostProcess:
    """Host a, which owns everything while transactions keep coming."""
    host = bank.run("a")
    bank.write(40)
    until(lambda: bank.owns_all("a"), START_S, "host a owns all leases")
    bank.keep_writing(40, every_s=0.2)
    until(lambda: bank.delivered() > 200, START_S, "host a delivers")
    return host


@pytest.fixture
def both(bank: Bank, alone: HostProcess) -> tuple[HostProcess, HostProcess]:
    other = bank.run("b")
    until(lambda: other.has_logged("host started"), START_S, "host b starts")
    until(lambda: bank.is_shared_evenly("a", "b"), 2 * TIMING.balance_s, "shares that differ by at most one")
    return alone, other


def test_a_newcomer_gets_its_share_by_handoff_and_no_batch_is_repeated_or_dropped(
    bank: Bank, both: tuple[HostProcess, HostProcess]
) -> None:
    a, b = both
    until(lambda: bank.delivered() > 1000, 60, "both deliver")
    bank.settle()
    assert {step.owner for step in bank.steps()} == {"a", "b"}
    assert a.has_logged("handoff asked for")
    for host in both:
        let_go = [event["reason"] for event in host.events if event["event"] == "lease let go"]
        assert set(let_go) <= {"shutdown"}, let_go
    assert b.has_logged("handoff requested")


def test_what_a_killed_host_owned_is_taken_in_time(bank: Bank, both: tuple[HostProcess, HostProcess]) -> None:
    a, _ = both
    a.send(signal.SIGKILL)
    a.wait(10)
    until(lambda: bank.owns_all("b"), TAKEOVER_S, "host b owns all leases")
    delivered = bank.delivered()
    until(lambda: bank.delivered() > delivered + 400, 60, "host b delivers for all")
    bank.settle()


def test_a_host_that_was_paused_past_its_leases_finds_out_delivers_nothing_and_carries_on(
    bank: Bank, both: tuple[HostProcess, HostProcess]
) -> None:
    a, _ = both
    a.send(signal.SIGSTOP)
    until(lambda: bank.owns_all("b"), TAKEOVER_S, "host b owns all leases")
    taken = {lease.partition: lease.epoch for lease in bank.leases if lease.pipeline == "balances"}
    delivered = bank.delivered()
    until(lambda: bank.delivered() > delivered + 200, 60, "host b delivers for all")
    a.send(signal.SIGCONT)
    until(lambda: bank.is_shared_evenly("a", "b"), 30, "host a carries on with its share")
    assert any(event["event"] == "lease let go" and event["reason"] in ("stolen", "lost") for event in a.events)
    bank.settle()
    paused_tenures = [step for step in bank.steps() if step.owner == "a" and step.epoch < taken[step.partition]]
    taken_over_at = {step.partition: int(step.start or -1) for step in reversed(bank.steps()) if step.owner == "b"}
    assert all(
        int(step.to) <= taken_over_at[step.partition] for step in paused_tenures if step.partition in taken_over_at
    )


def test_a_host_that_is_told_to_stop_gives_its_leases_back_and_exits_with_0(
    bank: Bank, both: tuple[HostProcess, HostProcess]
) -> None:
    a, b = both
    a.send(signal.SIGTERM)
    assert a.wait(25) == 0, a.errors
    until(lambda: bank.owns_all("b"), 2 * TIMING.balance_s, "host b owns all leases")
    assert {event["reason"] for event in a.events if event["event"] == "lease let go"} == {"shutdown"}
    bank.settle()
    b.send(signal.SIGTERM)
    assert b.wait(25) == 0, b.errors
    assert {lease.owner for lease in bank.leases} == {None}


def test_a_second_signal_ends_the_process_at_once_and_loses_nothing(bank: Bank, alone: HostProcess) -> None:
    alone.send(signal.SIGSTOP)  # both signals are there when it goes on
    alone.send(signal.SIGTERM)
    alone.send(signal.SIGINT)
    alone.send(signal.SIGCONT)
    assert alone.wait(10) in (128 + signal.SIGTERM, 128 + signal.SIGINT)
    bank.run("a")  # under its name, it takes its own leases back at once
    delivered = bank.delivered()
    until(lambda: bank.delivered() > delivered + 200, START_S, "host a goes on")
    bank.settle()


def test_any_host_answers_for_the_group(bank: Bank, both: tuple[HostProcess, HostProcess]) -> None:
    for host in both:
        url = next(event["url"] for event in host.events if "url" in event)
        hosts = _get(f"{url}/api/hosts")
        leases = _get(f"{url}/api/leases?pipeline=balances")
        assert sorted(item["name"] for item in hosts["items"]) == ["a", "b"]
        assert {item["owner"] for item in leases["items"]} == {"a", "b"}
        assert _get(f"{url}/health/ready")
    bank.settle()


def _get(url: str) -> dict:  # type: ignore[type-arg]  # of whatever the route answers
    with urllib.request.urlopen(url, timeout=10) as answer:
        return dict(json.load(answer))
