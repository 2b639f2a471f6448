"""docs/handlers.md: its examples run as they are written."""

from __future__ import annotations

import json
import re
from pathlib import Path

from pages import examples, lines_of, shell
from patience import until
from plugins_cli import Commands, leases_in


def test_the_orders_are_handled_and_the_one_that_fails_is_a_dead_letter(
    open_directory: Path, leasehold: Commands
) -> None:
    page = examples("handlers.md", open_directory)
    shell(lines_of(page, "printf")[0], open_directory)
    host = leasehold(*lines_of(page, "leasehold run --until-idle")[0].split()[1:], cwd=open_directory)
    assert host.ended() == 0, host.err
    handled = re.findall(r"^handled: (.+)$", host.out, re.MULTILINE)
    assert sorted(handled) == ["ann 1", "ann 3", "bob 2", "dan 5"]
    assert handled.index("ann 1") < handled.index("ann 3")
    letters = leasehold(*lines_of(page, "dead-letters list")[0].split()[1:], cwd=open_directory)
    assert letters.ended() == 0, letters.err
    assert "ValueError: a negative amount: -4" in letters.out
    orders = open_directory / "orders.py"
    orders.write_text(orders.read_text().replace('order["amount"] < 0', 'order["amount"] < -100'))  # corrected
    replay = leasehold(*lines_of(page, "dead-letters replay")[0].split()[1:], cwd=open_directory)
    assert replay.ended() == 0, replay.err
    assert "handled: cat -4" in replay.out


def test_the_first_example_is_a_program_and_its_file_continues_where_it_ended(
    open_directory: Path, leasehold: Commands, python: Commands
) -> None:
    page = examples("handlers.md", open_directory)
    shell(lines_of(page, "printf")[0], open_directory)
    program = python(*lines_of(page, "python orders_program.py")[0].split()[1:], cwd=open_directory)
    until(lambda: program.out.count("paid: ") == 5, "five orders", lambda: program.out + program.err)
    program.process.terminate()
    assert program.ended() == 0, program.err
    assert sorted(program.out.split()[1::2]) == ["ann", "ann", "bob", "cat", "dan"]
    assert [lease.owner for lease in leases_in(open_directory / "leases.db", "orders")] == [None]
    with (open_directory / "orders-1.jsonl").open("a") as file:
        file.write('{"customer": "eve", "amount": 6}\n')
    host = leasehold("run", "--until-idle", "orders_program.yaml", cwd=open_directory)
    assert host.ended() == 0, host.err
    assert re.findall(r"^paid: (.+)$", host.out, re.MULTILINE) == ["eve"]


STORES = """
async def store(bodies: list[bytes]) -> None:
    await asyncio.sleep(0.05)
    with open("stored", "ab") as file:  # one write for each page, though hosts share the file
        file.write(b"".join(body + b"\\n" for body in bodies))
"""


def test_pages_of_two_partitions_are_stored_once_though_one_is_handed_over(
    open_directory: Path, leasehold: Commands
) -> None:
    examples("handlers.md", open_directory)
    pages, appended = open_directory / "pages.py", list[str]()
    text = pages.read_text()
    empty = "async def store(bodies: list[bytes]) -> None: ...\n"
    assert text.endswith(empty)
    pages.write_text(text.removesuffix(empty) + STORES.lstrip())

    def append(events: int) -> None:
        for name in ("orders-1.jsonl", "orders-2.jsonl"):
            lines = [json.dumps({"customer": str(n % 40), "of": name, "n": len(appended) + n}) for n in range(events)]
            appended.extend(lines)
            with (open_directory / name).open("a") as file:
                file.write("".join(f"{line}\n" for line in lines))

    def owners() -> list[str | None]:
        return [lease.owner for lease in leases_in(open_directory / "state/pages.db", "pages")]

    def stored() -> list[str]:
        file = open_directory / "stored"
        return file.read_text().splitlines() if file.exists() else []

    append(1037)
    first = leasehold("run", "pages.yaml", cwd=open_directory)
    until(lambda: len(stored()) > 300, "the first pages")
    second = leasehold("run", "pages.yaml", cwd=open_directory)
    append(1037)
    until(lambda: len({*owners(), None}) == 3, "a partition for each host")
    append(1037)
    until(lambda: len(stored()) >= len(appended), "all events are stored")
    for host in (first, second):
        host.interrupt()
        assert host.ended() == 0, host.err
        assert "reason=failed" not in host.err
    assert owners() == [None, None]
    assert sorted(stored()) == sorted(appended)
    again = leasehold("run", "--until-idle", "pages.yaml", cwd=open_directory)
    assert again.ended() == 0, again.err
    assert len(stored()) == len(appended), "the positions are behind all of it"
