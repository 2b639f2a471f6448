"""Release 0.2.0 and this tree in one group: a rolling upgrade under load, an old host that comes later, the way back.

The hosts are processes, and those of release 0.2.0 run its own code. The group lives once, and every test looks at one part
of that.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from lab.scenarios import previous_release
from lab.scenarios.previous_release import FILES, ROOT, Bank, Host, imported_from, unpacked
from patience import Failed, until

from leasehold.leases.lease import Lease

pytestmark = pytest.mark.timeout(900)

DURATION_S = 10.0
INTERVALS = {"duration_s": DURATION_S, "renew_s": 3.0, "balance_s": 2.0}
OWNERLESS_S_MAX = 20.0
STAYS_S = 1.5 * DURATION_S
"""An old host has judged all leases by then."""


@dataclass
class Life:
    """What was seen of the group, part by part."""

    bank: Bank
    old: Path
    exits: dict[str, int] = field(default_factory=dict)
    documents: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    leases: dict[str, dict[str, Lease]] = field(default_factory=dict)
    commands: dict[str, subprocess.CompletedProcess[str]] = field(default_factory=dict)
    reports: list[dict[str, Any]] = field(default_factory=list)
    took_over_s: float = 0.0

    def stop(self, host: Host) -> None:
        self.exits[host.name] = host.stop()

    def see(self, what: str) -> None:
        self.leases[what] = self.bank.leases()
        self.documents[what] = self.bank.documents("_")

    def delivers(self) -> None:
        before = self.bank.delivered()
        until(lambda: self.bank.delivered() > before + 10 * FILES, "more events are delivered")

    def downgrade(self, what: str) -> None:
        leasehold = str(Path(sys.executable).with_name("leasehold"))
        command = [leasehold, "leases", "downgrade", "n1.yaml", "--json"]
        self.commands[what] = subprocess.run(
            command, cwd=self.bank.directory, capture_output=True, text=True, timeout=120, check=False
        )


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Life]:
    life = Life(Bank(tmp_path_factory.mktemp("group"), INTERVALS), unpacked())
    try:
        _upgrade(life)
        _meet(life)
        _go_back(life)
        yield life
    finally:
        life.bank.close()


def _upgrade(life: Life) -> None:
    """Three old hosts leave one by one, as new ones join; the last old one is killed."""
    bank = life.bank
    for name in ("o1", "o2", "o3"):
        bank.start(name, life.old)
    bank.write()
    until(lambda: bank.is_shared("o1", "o2", "o3"), "the old hosts share the leases")
    life.see("old")
    for n, leaving in enumerate(("o1", "o2", "o3"), 1):
        bank.start(f"n{n}")
        until(lambda n=n: f"n{n}" in {each.owner for each in bank.leases().values()}, f"n{n} has a share")
        life.delivers()
        life.see(f"n{n} beside {leaving}")
        if n < 3:
            life.stop(bank.hosts[leaving])
        else:
            bank.hosts[leaving].kill()
    until(lambda: bank.is_shared("n1", "n2", "n3"), "the new hosts share the leases")
    until(lambda: all(each.by_session for each in bank.leases().values()), "sessions judge all leases")
    life.delivers()
    bank.is_rolling = False
    life.see("new")


def _meet(life: Life) -> None:
    """An old host comes into the upgraded group."""
    bank = life.bank
    late = bank.start("o4", life.old)
    until(lambda: late.said("needs attention"), "the old host reports what it cannot read")
    ends = time.monotonic() + STAYS_S
    until(lambda: time.monotonic() > ends, "the old host has judged all leases")
    life.delivers()
    life.see("old host in a new group")
    life.reports = late.said("needs attention")
    bank.hosts["n3"].kill()
    killed_at = time.monotonic()
    until(lambda: bank.is_shared("n1", "n2"), "the other new hosts have the leases of n3")
    life.took_over_s = time.monotonic() - killed_at
    life.stop(late)


def _go_back(life: Life) -> None:
    """All new hosts end, one of them killed; old ones continue."""
    bank = life.bank
    life.downgrade("refused")
    life.see("refused")
    life.stop(bank.hosts["n1"])
    bank.hosts["n2"].kill()
    life.see("stopped")
    life.downgrade("done")
    life.see("downgraded")
    life.downgrade("again")
    for name in ("o5", "o6"):
        bank.start(name, life.old)
    until(lambda: bank.is_shared("o5", "o6"), "the old hosts share the leases again")
    life.delivers()
    bank.settle()
    for name in ("o5", "o6"):
        life.stop(bank.hosts[name])
    life.see("back")


def test_old_hosts_run_the_code_of_their_release_and_new_ones_that_of_this_tree(life: Life) -> None:
    assert imported_from(life.old, life.bank.directory) == {life.old}
    assert not (life.old / "leases/session.py").exists()
    assert imported_from(None, life.bank.directory) == {ROOT}
    documents = life.documents["n3 beside o3"]
    assert {name: "sessions" in body for name, body in documents.items() if name.startswith("_hosts/")} == {
        "_hosts/n1": True,
        "_hosts/n2": True,
        "_hosts/n3": True,
        "_hosts/o3": False,
    }
    assert {name for name in documents if name.startswith("_sessions/")} == {f"_sessions/n{n}" for n in (1, 2, 3)}


def test_leases_are_judged_by_sessions_only_after_the_last_old_host_is_gone(life: Life) -> None:
    assert life.bank.seen.early == []
    for n, leaving in enumerate(("o1", "o2", "o3"), 1):
        assert not any(lease.by_session for lease in life.leases[f"n{n} beside {leaving}"].values())
    assert all(lease.by_session for lease in life.leases["new"].values())


def test_no_lease_is_without_an_owner_for_long(life: Life) -> None:
    assert life.bank.seen.looks > 50
    assert max(life.bank.seen.ownerless_s.values()) <= OWNERLESS_S_MAX


def test_an_old_host_in_an_upgraded_group_reports_the_leases_and_takes_none(life: Life) -> None:
    before, after = life.leases["new"], life.leases["old host in a new group"]
    assert {name: (lease.owner, lease.epoch) for name, lease in after.items()} == {
        name: (lease.owner, lease.epoch) for name, lease in before.items()
    }
    assert all(lease.by_session for lease in after.values())
    assert len([each for each in life.reports if "reads up to 1" in str(each)]) == FILES


def test_leases_of_a_new_host_that_dies_beside_an_old_one_are_taken(life: Life) -> None:
    assert life.took_over_s <= OWNERLESS_S_MAX


def test_a_downgrade_is_refused_while_hosts_live(life: Life) -> None:
    refused = life.commands["refused"]
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "alive, so nothing was changed: stop all hosts" in refused.stderr
    assert all(lease.by_session for lease in life.leases["refused"].values())


def test_a_downgrade_puts_all_leases_back_where_they_were(life: Life) -> None:
    done = life.commands["done"]
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert len(told["downgraded"]) == FILES
    assert told["unchanged"] == {}
    before = {"_hosts/o3", "_hosts/n3", "_sessions/n3"}
    assert {*told["removed"]} - before == {"_hosts/n2", "_sessions/n2"}, "others may have been cleared away before"
    places = {name: (lease.continuation, lease.epoch) for name, lease in life.leases["stopped"].items()}
    after = life.leases["downgraded"]
    assert {name: (lease.continuation, lease.epoch) for name, lease in after.items()} == places
    assert {(lease.owner, lease.by_session) for lease in after.values()} == {(None, False)}
    again = json.loads(life.commands["again"].stdout)
    assert (again["downgraded"], again["unchanged"], again["removed"]) == ([], {"copy": FILES}, [])


def test_nothing_is_lost_or_duplicated_on_the_way_there_and_back(life: Life) -> None:
    life.bank.assert_exact()
    assert life.bank.written > 100 * FILES


def test_hosts_that_are_told_to_stop_end_well(life: Life) -> None:
    assert life.exits == dict.fromkeys(("o1", "o2", "o4", "n1", "o5", "o6"), 0)


def test_a_clone_without_that_commit_is_told_what_to_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(previous_release, "COMMIT", "0" * 40)
    with pytest.raises(Failed, match="git fetch --unshallow"):
        unpacked()
