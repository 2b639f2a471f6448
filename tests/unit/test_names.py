"""Functions that do something are named by verbs: a participle is a pure function that returns a new value."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.once

ROOT = Path(__file__).parents[2]
PACKAGES = ("leases", "pipeline", "service", "leasehold")
DECISION = ROOT / "docs/decisions/0020-interfaces-keep-their-nouns.md"
VERBS_IN_ED = {"embed", "feed", "need", "proceed", "seed", "shed"}
IRREGULAR = set(
    """begun bought broken brought built caught chosen done drawn driven fallen fed felt forgotten found frozen given gone gotten
    grown heard held hidden kept known laid led left lent lost made met paid proven said seen sent shown shut slept sold spent
    spoken stolen struck swept taken taught thought thrown told understood woken won worn written""".split()  # noqa: SIM905
)
VERBS = set(
    """ack announce append apply ask attach await beat begin call cancel carry check checkpoint clear close collect complete
    connect copy count create delete disconnect downgrade draw end ensure execute export fetch find flush follow forget get
    give hand idle import judge keep kill leave list listen load look make measure move note notify open order pause plan
    poll prepare probe process publish put query raise read receive reconcile recover refresh release remove renew replace
    replenish report reset resume retry rewrite run scan send serve settle sift sleep start stop stream submit switch take
    talk try use wait watch work write""".split()  # noqa: SIM905
)
"""The first words of public coroutines. Add a verb if none of these is right."""
INTERFACES = {
    "ChangeFeed": {"partitions", "start_of", "latest", "lag"},
    "Sink": {"standing"},
    "LeaseStore": {"documents"},
    "IdempotentProducer": {"hub_properties", "partition_ids", "partition_properties", "publishing_properties"},
    "SinkHarness": {"rows", "sink"},
    "leasehold": {"heeding", "insisting"},
}
"""Of third parties: decision 0020 names each."""
OF_LIBRARIES = {"json"}
"""Overrides a method of Starlette's `Request`."""
NOT_VERBS = OF_LIBRARIES.union(*INTERFACES.values())


def coroutines(source: str) -> Iterator[str]:
    """Without tests, which are named by what they promise."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.AsyncFunctionDef) and not node.name.startswith("test_"):
            yield node.name


def public_coroutines(source: str) -> Iterator[str]:
    """Of modules and classes. Handlers within functions are named by their routes."""
    within = list(ast.parse(source).body)
    while within:
        node = within.pop()
        if isinstance(node, ast.AsyncFunctionDef) and not node.name.startswith(("_", "test_")):
            yield node.name
        elif isinstance(node, ast.ClassDef | ast.If | ast.Try):
            within.extend(node.body)


def is_participle(word: str) -> bool:
    return word in IRREGULAR or (word.endswith("ed") and word not in VERBS_IN_ED)


def participles(source: str) -> Iterator[str]:
    """Also `lease_renewed` and `is_renewed`. What follows a verb is its object: `find_held_back`, `wait_until_ended`."""
    for name in coroutines(source):
        words = name.strip("_").split("_")
        if is_participle(words[0]) or (words[0] not in VERBS and is_participle(words[-1])):
            yield name


def nouns(source: str) -> Iterator[str]:
    return (name for name in public_coroutines(source) if name.split("_")[0] not in VERBS and name not in NOT_VERBS)


def test_no_verb_is_a_participle() -> None:
    assert {verb for verb in VERBS if is_participle(verb)} == set()


@pytest.mark.parametrize("package", PACKAGES)
def test_no_coroutine_is_named_by_a_participle(package: str) -> None:
    found = {
        str(path.relative_to(ROOT)): names
        for path in sorted((ROOT / package).rglob("*.py"))
        if (names := list(participles(path.read_text())))
    }
    assert found == {}, "name it by a verb: `closed` becomes `close`"


@pytest.mark.parametrize("package", PACKAGES)
def test_each_public_coroutine_begins_with_a_verb(package: str) -> None:
    found = {
        str(path.relative_to(ROOT)): names
        for path in sorted((ROOT / package).rglob("*.py"))
        if (names := list(nouns(path.read_text())))
    }
    assert found == {}, "name it by what it does: `partitions` becomes `list_partitions`"


def test_each_verb_is_used() -> None:
    texts = [path.read_text() for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    assert {name.strip("_").split("_")[0] for text in texts for name in coroutines(text)} >= VERBS


@pytest.mark.parametrize("owner", INTERFACES)
def test_the_decision_names_each_interface_that_keeps_its_nouns(owner: str) -> None:
    text = DECISION.read_text()
    assert {name for name in {owner} | INTERFACES[owner] if f"`{name}`" not in text} == set()


@pytest.mark.parametrize(
    "name", ["renewed", "_told", "written_out", "held_back", "lease_renewed", "is_renewed", "_swept", "slept", "shut"]
)
def test_a_participle_is_recognized(name: str) -> None:
    assert list(participles(f"class A:\n async def {name}(self): ...\n def closed(self): ...")) == [name]


@pytest.mark.parametrize("name", ["feed", "read", "take_more", "_run", "wait_until_ended", "put", "find_held_back"])
def test_a_verb_is_not_taken_for_a_participle(name: str) -> None:
    assert list(participles(f"async def {name}(): ...")) == []


@pytest.mark.parametrize("name", ["ranges", "lease_prefix", "is_nowhere", "within"])
def test_a_noun_is_recognized(name: str) -> None:
    source = f"class A:\n async def {name}(self):\n  async def ranges(): ...\n async def _ranges(self): ..."
    assert list(nouns(source)) == [name]
