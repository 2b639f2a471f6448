"""What all commands have in common."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from leasehold.service import __main__
from leasehold.service.cli import main as cli
from leasehold.service.cli.common import INTERRUPTED, Interruptible


def test_an_interrupt_before_there_is_anything_to_stop_ends_a_command_without_a_word() -> None:
    @click.group(cls=Interruptible)
    def group() -> None: ...

    @group.command()
    def waits() -> None:
        raise KeyboardInterrupt

    told = CliRunner().invoke(group, ["waits"])
    assert (told.exit_code, told.output) == (INTERRUPTED, "")


def test_an_interrupt_while_a_command_is_still_imported_leaves_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "main", interrupted)
    with pytest.raises((SystemExit, KeyboardInterrupt)) as ended:  # the latter would end the test run, and fail nothing
        __main__.main()
    assert ended.value.args == (INTERRUPTED,)
