"""Functions that do something are named by verbs: a participle is a pure function that returns a new value."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("leases", "pipeline", "service", "leasehold")
VERBS_IN_ED = {"embed", "feed", "need", "proceed", "seed", "shed"}
IRREGULAR = set(
    """begun bought broken brought built caught chosen done drawn driven fallen fed felt forgotten found frozen given gone gotten
    grown heard held hidden kept known laid led left lent lost made met paid proven said seen sent shown sold spent split spoken
    stolen struck taken taught thought thrown told understood woken won worn written""".split()  # noqa: SIM905
) - {"split"}


def participles(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.AsyncFunctionDef):
            first = node.name.strip("_").split("_")[0]
            if first in IRREGULAR or (first.endswith("ed") and first not in VERBS_IN_ED):
                yield node.name


@pytest.mark.parametrize("package", PACKAGES)
def test_no_coroutine_is_named_by_a_participle(package: str) -> None:
    found = {
        str(path.relative_to(ROOT)): names
        for path in sorted((ROOT / package).rglob("*.py"))
        if (names := list(participles(path.read_text())))
    }
    assert found == {}, "name it by a verb: `closed` becomes `close`"


@pytest.mark.parametrize("name", ["renewed", "_told", "written_out", "held_back"])
def test_a_participle_is_recognized(name: str) -> None:
    assert list(participles(f"class A:\n async def {name}(self): ...\n def closed(self): ...")) == [name]


@pytest.mark.parametrize("name", ["feed", "read", "need_more", "_run", "wait_until_ended", "put"])
def test_a_verb_is_not_taken_for_a_participle(name: str) -> None:
    assert list(participles(f"async def {name}(): ...")) == []
