"""Pages whose examples tests run as they are written: their files, and the lines that a reader types."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from patience import PATIENCE_S

DOCS = Path(__file__).parents[1] / "docs"


def examples(page: str, folder: Path) -> str:
    """Writes the example files of a page of docs/ into the folder; the page."""
    text = (DOCS / page).read_text()
    for name, example in re.findall(r"<!-- example: (\S+) -->\n```\w+\n(.*?)```", text, re.DOTALL):
        (folder / name).write_text(example)
    return text


def shell(line: str, folder: Path) -> None:
    subprocess.run(line, shell=True, cwd=folder, check=True, executable="/bin/bash", timeout=PATIENCE_S)


def lines_of(page: str, word: str) -> list[str]:
    """The lines with the word that a reader types, without their comments."""
    typed = [line.partition("  #")[0].rstrip() for line in re.findall(r"^\$ (.+)", page, re.MULTILINE)]
    return [line for line in typed if word in line]


def replace(path: Path, old: str, new: str) -> None:
    """What a file has once."""
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))
