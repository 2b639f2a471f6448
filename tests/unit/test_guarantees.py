"""docs/guarantees.md speaks of what there is: every connector, and files and targets that can be looked up."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from leasehold.service.config.reference import types_of
from leasehold.service.probing import blob, cosmos, eventhubs

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guarantees.md").read_text()


@pytest.mark.parametrize("kind", ["feed", "sink"])
def test_every_connector_of_the_settings_has_a_row(kind: str) -> None:
    known = sorted(name for name in types_of(f"pipelines[].{kind}") if name.isalpha())
    assert len(known) >= 4
    assert [name for name in known if f"| {kind} `{name}` |" not in PAGE] == []


def test_every_question_of_the_probe_is_named_by_what_it_asks_and_no_other() -> None:
    ids = {question.id for question in (*eventhubs.QUESTIONS, *cosmos.QUESTIONS, *blob.QUESTIONS)}
    section = PAGE[PAGE.index("## What is assumed of the services") :]
    assert set(re.findall(r"`((?:hub|cosmos|blob)-[a-z0-9-]+)`", section)) == ids


def test_every_file_that_is_named_is_there() -> None:
    named = set(re.findall(r"`(tests/[^`]+)`", PAGE))
    assert len(named) > 10
    assert [name for name in sorted(named) if not (ROOT / name).is_file()] == []


def test_every_target_that_is_named_is_there() -> None:
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    named = set(re.findall(r"`make (\w+)", PAGE))
    assert {"sim", "mutants", "scenarios", "chaos"} <= named <= set(targets)
