"""docs/first-pipeline.md: its pipeline runs as it is written."""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from patience import until
from plugins_cli import Commands

PAGE = (Path(__file__).parents[2] / "docs/first-pipeline.md").read_text()
(INPUT,) = re.findall(r"^\$ (printf .*)$", PAGE, re.MULTILINE)
WORDS = {"words-1.jsonl": ["apple", "avocado", "bean"], "words-2.jsonl": ["cat", "Curry", "éclair", "dates"]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Words in JSON lines, and the page's examples beside them."""
    for name, words in WORDS.items():
        (tmp_path / name).write_text("".join(f'{{"word": "{word}"}}\n' for word in words))
    for name, text in re.findall(r"<!-- example: (\S+) -->\n```\w+\n(.*?)```", PAGE, re.DOTALL):
        (tmp_path / name).write_text(text)
    return tmp_path


def test_the_pipeline_of_letters_is_run_as_written_and_shows_what_the_page_shows(
    folder: Path, leasehold: Commands
) -> None:
    for words in WORDS:
        (folder / words).unlink()  # the page makes its own
    subprocess.run(["sh", "-c", INPUT], cwd=folder, check=True)
    steps = shown("letters.yaml")
    assert len(steps) == 7
    for arguments, output in steps:
        command = leasehold(*arguments)
        if arguments == ["run", "letters.yaml"]:
            until(lambda: command.found("(lease acquired)"), "a first lease")  # noqa: B023
            command.interrupt()
        assert command.ended() == 0, command.err
        assert "FAILED" not in command.out
        assert command.left_behind() == []
        if output:
            assert sorted(command.out.splitlines()) == sorted(output)
    assert [bool(output) for _, output in steps] == [False, True, True, False, False, False, False]


def test_the_pipeline_of_letters_counts_every_word_by_its_first_letter(folder: Path, leasehold: Commands) -> None:
    run = leasehold("run", "--until-idle", "letters.yaml")
    assert (run.ended(), run.out) == (0, "letters: 7 events in, 5 rows out\n"), run.err
    read = leasehold("files", "read", "letters.yaml", "letters")
    assert read.ended() == 0, read.err
    counted: dict[str, Counter[str]] = {name: Counter() for name in WORDS}
    for row in map(json.loads, read.out.splitlines()):
        counted[row["partition"]][row["letter"]] += row["words"]
    assert counted == {name: Counter(word[0].upper() for word in words) for name, words in WORDS.items()}


def shown(settings: str) -> list[tuple[list[str], list[str]]]:
    """The arguments of each `leasehold` command that the page runs with these settings, and the output that it shows."""
    blocks = "".join(re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL))
    steps = [(line.partition("\n")[0], line.splitlines()[1:]) for line in re.split(r"^\$ ", blocks, flags=re.MULTILINE)]
    return [
        (command.partition("#")[0].split()[1:], output)
        for command, output in steps
        if command.startswith("leasehold") and settings in command
    ]
