"""docs/configuration.md: both forms of a section, in a file and in a program, are the same section."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from pydantic import BaseModel

import leasehold
from leasehold.service.config.load import parse
from leasehold.service.config.pipeline import Pipeline
from leasehold.service.config.settings import Settings

PAGE = Path(__file__).parents[4] / "docs/configuration.md"
ROWS = re.findall(r"^\| [^|]+ \| `(\w+: \{.*\})` \| `(\w+\(.*\))` \|$", PAGE.read_text(), re.MULTILINE)
SECRETS = {
    "DSN": "postgresql://db.example/bank?sslmode=verify-full",
    "COSMOS": "AccountEndpoint=https://a/;AccountKey=a2V5;",
}
OF_PIPELINE = {
    "feed": "feed: {type: log, path: in}",
    "sink": "sink: {type: log, path: out}",
}


def in_a_file(section: str) -> Settings:
    key = section.partition(":")[0]
    if key not in {*OF_PIPELINE, "dead_letters"}:
        return parse(
            f"{section}\npipelines: [{{name: p, {', '.join(OF_PIPELINE.values())}}}]", SECRETS, folder=Path.cwd()
        )
    given = {**OF_PIPELINE, key: section}
    return parse(
        "pipelines:\n  - name: p\n" + "".join(f"    {each}\n" for each in given.values()), SECRETS, folder=Path.cwd()
    )


def in_a_program(code: str, monkeypatch: pytest.MonkeyPatch) -> BaseModel:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    name = code.partition("(")[0]
    made = eval(code, {"os": os, name: getattr(leasehold, name)})  # our own page
    assert isinstance(made, BaseModel)
    return made


@pytest.mark.parametrize(("section", "code"), ROWS, ids=[code.partition("(")[0] for _, code in ROWS])
def test_a_file_and_a_program_make_the_same_section(section: str, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, key = in_a_file(section), section.partition(":")[0]
    found = getattr(settings.pipelines[0] if key in {*OF_PIPELINE, "dead_letters"} else settings, key)
    assert found == in_a_program(code, monkeypatch)


def test_every_section_has_a_row() -> None:
    classes = {name for name in leasehold.__all__ if isinstance(getattr(leasehold, name), type(BaseModel))}
    unlike = {Pipeline.__name__, "MemoryFeed", "MemorySink"}  # a pipeline is above the table, the others are for tests
    assert {code.partition("(")[0] for _, code in ROWS} == classes - unlike
