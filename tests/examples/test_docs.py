"""Examples of pages for newcomers, run as they are written: a fail-over, PostgreSQL for trying, a host in a program."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
from base64 import b64decode
from collections import Counter
from contextlib import suppress
from pathlib import Path

import psycopg
from pages import examples, lines_of, shell
from patience import PATIENCE_S, until
from plugins_cli import Command, Commands, leases_in

DOCS = Path(__file__).parents[2] / "docs"


def test_a_fail_over_goes_as_operations_says(tmp_path: Path, leasehold: Commands) -> None:
    page = examples("operations.md", tmp_path)
    shell(lines_of(page, "for n in")[0], tmp_path)
    runs = lines_of(page, "run failover.yaml")
    assert runs == ["leasehold run failover.yaml &"] * 2

    def owners() -> Counter[str | None]:
        return Counter(lease.owner for lease in leases_in(tmp_path / "state/failover.db", "words"))

    hosts = [leasehold("run", "failover.yaml") for _ in runs]
    until(lambda: sorted(owners().values()) == [2, 2] and None not in owners(), "two leases for each host")
    assert not any(host.has_java() for host in hosts)
    hosts[0].process.send_signal(signal.SIGKILL)
    hosts[0].process.wait()
    shell(lines_of(page, "cherry")[0], tmp_path)
    until(lambda: list(owners().values()) == [4], "the survivor has all leases")

    def words() -> Counter[str]:
        read = leasehold("files", "read", "failover.yaml", "words")
        assert read.ended() == 0, read.err
        bodies = [b64decode(json.loads(line)["body"]) for line in read.out.splitlines()]
        return Counter(json.loads(body)["word"] for body in bodies)

    until(lambda: words().total() >= 14, "the words that were added")
    assert words() == {"apple": 4, "avocado": 4, "banana": 4, "cherry": 2}
    assert "`files read` counts 14:" in page
    hosts[1].interrupt()
    assert hosts[1].ended() == 0, hosts[1].err


def test_postgresql_for_trying_counts_the_words_as_its_page_says(open_directory: Path, leasehold: Commands) -> None:
    page = examples("try-postgres.md", open_directory)
    shell(lines_of(page, "printf")[0], open_directory)
    server = leasehold(*lines_of(page, "leasehold postgres state/postgres")[0].split()[1:], cwd=open_directory)
    until(lambda: server.found(r"(--query)") or server.process.poll() is not None, "PostgreSQL runs")
    dsn = shlex.split(server.found(r"export (LEASEHOLD_POSTGRES_DSN=.*)") or "")[0].partition("=")[2]

    def typed(line: str) -> Command:
        command = leasehold(*shlex.split(line)[1:], cwd=open_directory, env={"LEASEHOLD_POSTGRES_DSN": dsn})
        assert command.ended() == 0, command.err
        return command

    check, run = lines_of(page, "totals.yaml")[:2]
    assert "check --probe" in check
    typed(check)
    typed(run)
    (query,) = lines_of(page, "state/postgres --query")
    promised = page.partition(f"$ {query}\n")[2].partition("```")[0].strip("\n")
    assert typed(query).out.strip("\n") == promised
    server.interrupt()
    assert server.ended() == 0, server.err
    assert typed(query).out.strip("\n") == promised, "without a server as well"
    assert server.left_behind() == []


def test_two_hosts_share_their_leases_in_postgresql_as_its_page_says(open_directory: Path, leasehold: Commands) -> None:
    page = examples("leases-postgres.md", open_directory)
    server = leasehold(*lines_of(page, "leasehold postgres state/postgres")[0].split()[1:], cwd=open_directory)
    until(lambda: server.found(r"(--query)") or server.process.poll() is not None, "PostgreSQL runs")
    dsn = shlex.split(server.found(r"export (LEASEHOLD_POSTGRES_DSN=.*)") or "")[0].partition("=")[2]
    environment = {"LEASEHOLD_POSTGRES_DSN": dsn}

    def start(line: str) -> Command:
        return leasehold(*shlex.split(line.removesuffix(" &"))[1:], cwd=open_directory, env=environment)

    def owners() -> list[int]:
        with psycopg.connect(dsn) as connection, suppress(psycopg.errors.UndefinedTable):
            rows = connection.execute(
                "SELECT body ->> 'owner', count(*) FROM leasehold_leases WHERE id LIKE '%/leases/%' GROUP BY 1"
            )
            return sorted(0 if owner is None else count for owner, count in rows)
        return []

    shell(lines_of(page, "for n in")[0], open_directory)
    runs = lines_of(page, "run shared.yaml")
    assert runs == ["leasehold run shared.yaml &"] * 2
    hosts = [start(line) for line in runs]
    until(lambda: owners() == [2, 2], "two leases for each host")
    (query,) = lines_of(page, "state/postgres --query")
    shown = start(query)
    assert shown.ended() == 0, shown.err
    assert shown.out.strip("\n") == page.partition(f"$ {query}\n")[2].partition("\n$ ")[0].strip("\n")
    assert lines_of(page, "kill") == ["kill %1"]
    hosts[0].process.terminate()
    assert hosts[0].ended() == 0, hosts[0].err
    until(lambda: owners() == [4], "the other host has all leases")
    listed = start(lines_of(page, "leases list")[0])
    assert listed.ended() == 0, listed.err
    hosts[1].interrupt()
    assert hosts[1].ended() == 0, hosts[1].err
    server.interrupt()
    assert server.ended() == 0, server.err


def test_a_query_where_no_postgresql_is_creates_none(tmp_path: Path, leasehold: Commands) -> None:
    query = leasehold("postgres", "state/none", "--query", "SELECT 1")
    assert query.ended() == 2
    assert query.err == (
        "leasehold: there is no PostgreSQL in 'state/none': `leasehold postgres state/none` creates one\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_program_is_notified_as_its_page_describes(tmp_path: Path) -> None:
    examples("handlers.md", tmp_path)
    (tmp_path / "words-1.jsonl").write_text('{"word": "apple"}\n')
    command = [sys.executable, "notified.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert (said[0], said[-1]) == ("words-1.jsonl: acquired under epoch 1", "1 events delivered")
    (lease,) = leases_in(tmp_path / "state/leases.db", "copy")
    assert said[1:-1] == [f"words-1.jsonl: released (stopped) after {lease.continuation}"]


def test_a_configuration_names_a_class_that_is_notified(tmp_path: Path, leasehold: Commands) -> None:
    examples("handlers.md", tmp_path)
    (tmp_path / "words-1.jsonl").write_text('{"word": "apple"}\n')
    program = (tmp_path / "notified.py").read_text()
    program = program.partition("async def main()")[0]
    (tmp_path / "my_notifications.py").write_text(program)
    check = leasehold("check", "notified.yaml")
    assert check.ended() == 0, check.err
    run = leasehold("run", "notified.yaml", "--until-idle")
    assert run.ended() == 0, run.err
    assert "words-1.jsonl: acquired under epoch 1\n" in run.out
    (tmp_path / "my_notifications.py").write_text(program.replace("on_lease_acquired", "on_lease_aquired"))
    for command in (leasehold("check", "notified.yaml"), leasehold("run", "notified.yaml", "--until-idle")):
        assert command.ended() == 2
        assert "`Watch.on_lease_aquired` is never called: did you mean `on_lease_acquired`?" in command.err
