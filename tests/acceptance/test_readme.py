"""README's examples, run as they are written: over the emulator that it starts, and into a PostgreSQL."""

from __future__ import annotations

import re
import shlex
from decimal import Decimal
from pathlib import Path

import click
from pages import examples, lines_of
from patience import until
from plugins_cli import Command, Commands
from plugins_node import free_port
from plugins_pg import Postgres

from leasehold.service.cli.main import main

ROOT = Path(__file__).parents[2]
LINES_MAX = 130


def test_it_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= LINES_MAX


def test_the_first_commands_are_the_demo_with_its_output_and_the_tests() -> None:
    readme = (ROOT / "README.md").read_text()
    assert lines_of(readme, "")[:2] == ["make demo", "make test"]
    demo = (ROOT / "tests/acceptance/test_demo.py").read_text()
    (last,) = re.findall(r'^LAST_LINE = "(.+)"', demo, re.MULTILINE)
    assert f"\n{last}\n$ make test\n" in readme


def test_changes_are_processed_with_a_function_and_with_sql_as_it_shows(
    tmp_path: Path, leasehold: Commands, python: Commands, postgres: Postgres
) -> None:
    page = examples("../README.md", tmp_path)
    port = str(free_port())
    (emulate,) = lines_of(page, "emulate cosmos")
    emulator = leasehold(*emulate.split()[1:], "--port", port, "--control-port", "0")
    until(lambda: emulator.found(r"(Ctrl-C)") or emulator.process.poll() is not None, "the account serves")
    account = shlex.split(lines_of(page, "export SHOP_COSMOS")[0])[1].partition("=")[2]
    assert account in emulator.out.replace(port, "8081")
    environment = {"SHOP_COSMOS": account.replace("8081", port), "LEASEHOLD_POSTGRES_DSN": postgres.dsn}
    order, orders = [line.split()[1] for line in lines_of(page, "python ") if line.startswith("python ")]
    assert python(order, env=environment).ended() == 0

    def handled(program: Command) -> str:
        until(lambda: program.found(r"(\d order-1\n)") or program.process.poll() is not None, "the order is handled")
        program.process.terminate()
        assert program.ended() == 0, program.err
        return program.out

    assert handled(python(orders, env=environment)).count("order-1") == 1

    totals = tmp_path / "totals.yaml"
    totals.write_text(totals.read_text() + "api: {port: 0}\n")  # 8080 may be in use here
    run = leasehold("run", "--until-idle", totals.name, env=environment)
    assert run.ended() == 0, run.err
    assert postgres.fetch("SELECT * FROM totals") == [("ann", Decimal("12.5"))]
    emulator.interrupt()
    assert emulator.ended() == 0, emulator.err


def test_every_command_that_a_page_names_is_there() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("service/**/*.yaml"), ROOT / "Makefile"]
    named = {
        (page.name, found)
        for page in pages
        for found in re.findall(
            r"(?<!from )(?<!/)\bleasehold ((?:[a-z][a-z-]*|--[a-z-]+)(?: (?:[a-z][a-z-]*\b|--[a-z-]+))*)",
            page.read_text(),
        )
    }
    assert len(named) > 10
    assert [(page, words) for page, words in sorted(named) if not _is_command(words.split())] == []


def _is_command(words: list[str]) -> bool:
    command: click.Command = main
    while words and isinstance(command, click.Group):
        name, *words = words
        if name not in command.commands:
            return False
        command = command.commands[name]
    known = {option for parameter in command.params for option in parameter.opts}
    return all(word in known for word in words if word.startswith("--"))
