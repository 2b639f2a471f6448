"""Readers of standard output leave when they like; the work of a command and other broken pipes do not depend on them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import TextIO

import click
import pytest
from rich.console import Console

from leasehold.service.cli.common import Interruptible, OutputLost, open_closed_streams, unread_is_fine, watched_output

FULL = Path("/dev/full")


def exit_code(command: Callable[[], object], stdout: TextIO | None = None) -> object:
    """What ends a process whose standard output is `stdout`: by default a pipe whose reader has left."""
    with _unread() if stdout is None else stdout as stream, redirect_stdout(stream), pytest.raises(SystemExit) as ended:
        _run(command)
    return ended.value.code


def _unread() -> TextIO:
    reader, writer = os.pipe()
    os.close(reader)
    return open(writer, "w")


def _run(command: Callable[[], object]) -> None:
    with watched_output():
        command()
        sys.exit(0)


def lines() -> None:
    for _ in range(100_000):
        click.echo("a line")


def one_line() -> None:
    """It stays in the buffer until the end."""
    sys.stdout.write("a line")


@pytest.mark.parametrize(
    "command",
    [
        lines,
        one_line,
        lambda: sys.stdout.buffer.write(b"bytes"),
        lambda: Console(file=sys.stdout).print("a table"),
    ],
    ids=["many lines", "one line", "bytes", "a table"],
)
def test_a_command_whose_reader_left_ends_with_the_exit_code_of_sigpipe(command: Callable[[], object]) -> None:
    assert exit_code(command) == 141


def test_no_handler_of_errors_takes_a_reader_that_left_for_a_failure_of_the_work() -> None:
    def read() -> None:
        try:
            lines()
        except Exception as error:
            sys.exit(str(error))

    assert exit_code(read) == 141


def test_what_runs_is_closed_when_the_reader_leaves() -> None:
    closed = []

    async def work() -> None:
        try:
            lines()
        finally:
            closed.append("connection")

    assert exit_code(lambda: asyncio.run(work())) == 141
    assert closed == ["connection"]


def test_the_exit_code_of_the_work_is_kept_when_nobody_reads_its_report() -> None:
    def report() -> None:
        with unread_is_fine():
            click.echo("1 written, 1 failed")
        sys.exit(3)

    assert exit_code(report) == 3


def test_a_failure_keeps_its_exit_code_when_its_output_was_buffered() -> None:
    def fail() -> None:
        one_line()
        sys.exit(3)

    assert exit_code(fail) == 3


def test_nothing_more_is_lost_once_the_reader_has_left() -> None:
    def go_on() -> None:
        with pytest.raises(OutputLost):
            click.echo("lost")
        click.echo("discarded")

    assert exit_code(go_on) == 0


def test_a_broken_pipe_of_a_connection_is_reported_and_not_taken_for_a_reader_that_left(
    capsys: pytest.CaptureFixture[str],
) -> None:
    @click.group(cls=Interruptible)
    def group() -> None: ...

    @group.command()
    def sends() -> None:
        raise BrokenPipeError(32, "Broken pipe")

    assert exit_code(lambda: group(["sends"])) == 1
    assert capsys.readouterr().err.startswith("leasehold: a connection broke ([Errno 32] Broken pipe): ")


@pytest.mark.skipif(not FULL.exists(), reason="a device of Linux")
def test_a_disk_that_is_full_is_named() -> None:
    said = exit_code(lines, FULL.open("w"))
    assert said == "leasehold: standard output cannot be written (No space left on device): write it elsewhere"


def test_a_standard_output_that_was_closed_from_the_start_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    open_closed_streams()
    with pytest.raises(SystemExit) as ended:
        _run(one_line)
    assert ended.value.code == 0


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_process_that_is_started_without_a_standard_stream_has_an_empty_one(number: int) -> None:
    """Also what it starts itself; and no file that it opens takes the stream's number."""
    program = (
        "import os, sys; from leasehold.service.cli.common import open_closed_streams; open_closed_streams();"
        f"held = os.fstat({number}).st_rdev == os.stat(os.devnull).st_rdev and os.get_inheritable({number});"
        "sys.exit(0 if held and not sys.stdin.isatty() and not sys.stderr.closed else 1)"
    )
    command = f'exec "$0" -c "$1" {number}{"<" if number == 0 else ">"}&-'
    done = subprocess.run(["sh", "-c", command, sys.executable, program], stdin=subprocess.DEVNULL, check=False)
    assert done.returncode == 0
