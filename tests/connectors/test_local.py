"""docs/local.md: its example of Cosmos DB runs as it is written."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

from pages import DOCS, examples, lines_of, shell
from patience import PATIENCE_S, until
from plugins_cli import Commands
from plugins_node import free_port


def test_a_local_cloud_counts_deposits_as_its_page_says(open_directory: Path, leasehold: Commands) -> None:
    page = examples("local.md", open_directory)
    for name in ("bank.yaml", "deposit.py"):
        example = (DOCS / "examples/local" / name).read_text()
        assert example.endswith((open_directory / name).read_text()), f"{name} is the page's"
    ports = {"8081": str(free_port()), "9001": str(free_port())}
    emulate = [
        *shlex.split(lines_of(page, "emulate cosmos")[0])[1:],
        "--port",
        ports["8081"],
        "--control-port",
        ports["9001"],
    ]
    emulator = leasehold(*emulate, cwd=open_directory)
    server = leasehold(*lines_of(page, "leasehold postgres state/postgres")[0].split()[1:], cwd=open_directory)
    until(lambda: server.found(r"(--query)") or server.process.poll() is not None, "PostgreSQL runs")
    until(lambda: emulator.found(r"(Ctrl-C)") or emulator.process.poll() is not None, "the account serves")
    account = shlex.split(lines_of(page, "export BANK_COSMOS")[0])[1].partition("=")[2]
    assert account in emulator.out.replace(ports["8081"], "8081")
    dsn = shlex.split(server.found(r"export (LEASEHOLD_POSTGRES_DSN=.*)") or "")[0].partition("=")[2]
    environment = {"LEASEHOLD_POSTGRES_DSN": dsn, "BANK_COSMOS": account.replace("8081", ports["8081"])}

    def typed(line: str) -> str:
        command = leasehold(*shlex.split(line)[1:], cwd=open_directory, env=environment)
        assert command.ended() == 0, command.err
        return command.out.strip("\n")

    def deposit() -> None:
        program = [sys.executable, "deposit.py"]
        subprocess.run(program, cwd=open_directory, env=os.environ | environment, check=True, timeout=PATIENCE_S)

    deposit()
    typed(lines_of(page, "run --until-idle")[0])
    (query,) = lines_of(page, "state/postgres --query")
    assert typed(query) == page.partition(f"$ {query}\n")[2].partition("```")[0].strip("\n")

    shell(lines_of(page, "curl -X POST")[0].replace("9001", ports["9001"]), open_directory)
    emulator.process.send_signal(signal.SIGKILL)
    emulator.process.wait()
    emulator = leasehold(*emulate, cwd=open_directory)
    until(lambda: emulator.found(r"(Ctrl-C)") or emulator.process.poll() is not None, "it serves again")
    deposit()
    typed(lines_of(page, "run --until-idle")[0])
    assert " alice   |   25.00 |        4\n" in typed(query)
    emulator.interrupt()
    assert emulator.ended() == 0, emulator.err
