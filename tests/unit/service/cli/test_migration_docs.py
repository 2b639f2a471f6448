"""docs/migration.md: its commands are there, its settings load, and its documents are imported as they stand."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
from unit.service.cli.test_migration import Place

from leasehold.leases.import_.export_format import groups_in, lines_of
from leasehold.pipeline.connectors.memory import MemoryFeed
from leasehold.service.cli.main import main
from leasehold.service.config.load import load

ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs/migration.md").read_text()


def blocks(kind: str) -> list[str]:
    """What stands in the fences of that kind, however far they are indented."""
    found = re.findall(rf"^( *)```{kind}\n(.*?)^\1```$", PAGE, re.MULTILINE | re.DOTALL)
    return [re.sub(rf"^{indent}", "", text, flags=re.MULTILINE) for indent, text in found]


COMMANDS = [line.removeprefix("$ ") for text in blocks("console") for line in text.splitlines()]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_takes_what_the_page_gives_it(line: str, tmp_path: Path) -> None:
    name, *words = shlex.split(line)
    assert name == "leasehold"
    command: click.Command = main
    with click.Context(main) as context:
        while isinstance(command, click.Group):
            found = command.get_command(context, words.pop(0))
            assert found is not None
            command = found
        command.make_context(str(command.name), words, parent=context).close()


def test_the_page_shows_each_command_that_moves_positions() -> None:
    assert len(COMMANDS) > 8
    for name in ("leases export", "leases import", "leases reset"):
        assert any(line.startswith(f"leasehold {name} ") for line in COMMANDS)


@pytest.mark.parametrize("kind", ["yaml", "yaml eventhubs"])
def test_the_settings_load(tmp_path: Path, kind: str) -> None:
    if kind == "yaml eventhubs":
        pytest.importorskip("leasehold.pipeline.connectors.eventhubs.feed.feed")
    [text] = blocks(kind)
    (tmp_path / "orders.yaml").write_text(text)
    [pipeline] = load(tmp_path / "orders.yaml", {}).pipelines
    assert pipeline.name == "orders"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("dotnet", {"0": '"1234"', "7F-FF": '"77"', "5": '"9"'}),
        ("java", {"-FF": '"500"'}),
        ("leasehold", {"0": '"1234"', "1": '"1250"'}),
    ],
)
def test_its_documents_are_imported_as_they_stand(place: Place, source: str, expected: dict[str, str]) -> None:
    [text] = blocks(f"jsonl {source}")
    told = place("import", "-", "--pipeline", "orders", "--from", source, "--apply", input=text)
    assert told.exit_code == 0, told.output
    assert {name: lease.continuation for name, lease in place.leases.items()} == expected


class Hub(MemoryFeed):
    """A feed whose positions are those of an event hub."""

    identity = "eventhubs:bank/raw-event"

    def __init__(self) -> None:
        super().__init__(["0", "1"])

    def compare(self, a: str | None, b: str | None) -> int:
        return int(a != b)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("checkpointstore", {"0": "41@4294967296", "1": "@8589934592"}),
        ("eventprocessorhost", {"0": "41@4294967296", "1": "77@8589934592"}),
    ],
)
def test_its_blobs_are_imported_as_they_stand(place: Place, source: str, expected: dict[str, str]) -> None:
    [text] = blocks(f"jsonl {source}")
    settings = place.folder / "orders.yaml"
    settings.write_text(settings.read_text().replace("test_migration:Etags", "test_migration_docs:Hub"))
    told = place("import", "-", "--pipeline", "orders", "--from", source, "--apply", input=text)
    assert told.exit_code == 0, told.output
    assert {name: lease.continuation for name, lease in place.leases.items()} == expected


def test_its_export_is_what_leasehold_writes() -> None:
    [text] = blocks("jsonl leasehold")
    assert lines_of(groups_in(text).values()) == text.splitlines()
