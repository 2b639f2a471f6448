"""A day of pods: three containers of the image share the bank, a fourth joins, one is killed, one is told to stop as a rolling
update tells it. Seen through REST and on the dashboard; balances and logs are exact, and the position history has every batch
once.

All run as a user such as OpenShift chooses, that neither the image nor a runtime has put in /etc/passwd. Leases are blobs in
Azurite, PostgreSQL is reached by TCP, and the logs lie on a volume that all pods mount.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from containers import HOSTS, TOKEN, Image
from onlooker import Onlooker, onlooker
from patience import PATIENCE_S, until
from pods import LEASES, TIMING, USER, BankInPods, served_bank

pytestmark = pytest.mark.timeout(1800)

GRACE_S = 60
PICTURE = Path(__file__).parents[2] / "build" / "dashboard" / "pods.png"
FIRST, STAYS, NEXT, JOINS = HOSTS
"""The first is killed and the next one stops in order: both after the fourth has joined."""


@dataclass(kw_only=True)
class Day(BankInPods):
    """What was seen. took: seconds from what happened to when it showed. shown: what the dashboard then told of moves, newest
    first."""

    dashboard: Onlooker
    took: dict[str, float] = field(default_factory=dict)
    shown: dict[str, list[str]] = field(default_factory=dict)
    hosts: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    owned_by_next: dict[tuple[str, str], int] = field(default_factory=dict)
    code: int | None = None

    def see(self, what: str, *names: str) -> None:
        """That these have all leases, evenly: as they tell, and as the dashboard shows."""
        self.took[what] = until(lambda: self.is_shared_by(*names), what)
        self.shown[what] = self.dashboard.sees(dict.fromkeys(names, LEASES // len(names)), PATIENCE_S)


@pytest.fixture(scope="module")
def day(image: Image, tmp_path_factory: pytest.TempPathFactory, postgres_of_module: Any) -> Iterator[Day]:
    folder = tmp_path_factory.mktemp("pods")
    with served_bank(folder, postgres_of_module, USER) as (bank, environment), onlooker() as dashboard:
        day = Day(bank=bank, image=image, folder=folder, environment=environment, user=USER, dashboard=dashboard)
        try:
            _lived(day)
            yield day
        finally:
            day.close()


def _lived(day: Day) -> None:
    bank = day.bank
    bank.write(40)
    day.start(FIRST, STAYS, NEXT)
    day.dashboard.open(f"http://127.0.0.1:{day.pods[STAYS].port}/", TOKEN)
    day.see("three share", FIRST, STAYS, NEXT)
    bank.keep_writing(20, every_s=0.5)
    day.delivers()
    day.start(JOINS)
    day.see("the fourth shares", *HOSTS)
    day.hosts["joined"] = day.pods[JOINS].items("/api/hosts")
    day.delivers()
    day.pods[FIRST].send(signal.SIGKILL)
    day.see("the dead one's leases are taken", STAYS, NEXT, JOINS)
    day.hosts["killed"] = day.pods[JOINS].items("/api/hosts")
    day.delivers()
    day.owned_by_next = {key: each["epoch"] for key, each in day.leases(JOINS).items() if each["owner"] == NEXT}
    day.pods[NEXT].send(signal.SIGTERM)
    day.see("the stopped one's leases are taken", STAYS, JOINS)
    day.code = day.pods[NEXT].ended(GRACE_S)
    day.delivers()
    day.settle()
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    day.dashboard.picture(PICTURE)


def test_every_pod_answers_for_the_group(day: Day) -> None:
    assert {each["name"] for each in day.hosts["joined"]} == set(HOSTS)
    assert [each["name"] for each in day.hosts["joined"] if each["this"]] == [JOINS]


def test_a_pod_that_was_killed_is_seen_to_be_dead(day: Day) -> None:
    assert {each["name"] for each in day.hosts["killed"] if each["live"]} == {STAYS, NEXT, JOINS}


def test_the_dashboard_of_one_pod_shows_what_moves_without_being_loaded_again(day: Day) -> None:
    assert day.dashboard.complaints == []
    joined, killed, stopped = (day.shown[what] for what in list(day.shown)[1:])
    assert any(move.endswith(f"→ {JOINS}") for move in joined), joined
    assert any(move.startswith(f"{FIRST} →") for move in Counter(killed) - Counter(joined)), killed
    assert any(move.startswith(f"{NEXT} →") for move in Counter(stopped) - Counter(killed)), stopped


def test_what_a_stopped_pod_owned_moves_once_and_before_it_would_expire(day: Day) -> None:
    assert day.code == 0, day.pods[NEXT].said
    assert day.owned_by_next
    now = day.leases(JOINS)
    assert {key: now[key]["epoch"] - epoch for key, epoch in day.owned_by_next.items()} == dict.fromkeys(
        day.owned_by_next, 1
    )
    assert day.took["the stopped one's leases are taken"] < TIMING.duration_s


def test_no_pod_but_the_killed_one_was_stolen_from(day: Day) -> None:
    for name in (STAYS, NEXT, JOINS):
        assert '"reason": "stolen"' not in day.pods[name].said
        assert '"reason": "lost"' not in day.pods[name].said


def test_balances_are_exact_and_no_batch_is_repeated_or_dropped(day: Day) -> None:
    day.assert_no_batch_twice_or_dropped(*HOSTS)


def test_every_transaction_is_in_both_logs_once(day: Day) -> None:
    day.assert_each_transaction_once_in_both_logs()
