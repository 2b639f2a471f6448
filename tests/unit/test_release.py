"""`make release` in a repository of its own: it refuses with all reasons, and a release has its version in every place."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
import release
from release import BEFORE, CHANGELOG, PLACES, State, git, mismatches, numbers, refusals, released, stated

ROOT = Path(__file__).parents[2]
SOURCE = "https://github.com/leasehold/leasehold"
DAY = date(2026, 12, 1)
READY = State(
    branch="main",
    is_clean=True,
    tags=frozenset({"v0.1.0"}),
    texts={path: (ROOT / path).read_text().replace(BEFORE.get(path, "\0"), "released") for path in (*BEFORE, *PLACES)}
    | {
        CHANGELOG: "# Changelog\n\n## [Unreleased]\n\n### Added\n\n- A door.\n\n## [0.1.0] - 2026-01-01\n\n- A house.\n"
    },
)
KUBERNETES = (ROOT / "docs/kubernetes.md").read_text()
NOW = str(tomllib.loads(READY.texts["pyproject.toml"])["project"]["version"])
NEXT = f"{numbers(NOW)[0]}.{numbers(NOW)[1] + 1}.0"


def written(path: str, text: str) -> dict[str, object]:
    """A state with another text of this file."""
    return {"texts": {**READY.texts, path: text}}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for path, text in READY.texts.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    (tmp_path / "Makefile").write_text("good:\n\t@test ! -e absent\nbad:\n\t@false\n")
    git(tmp_path, "init", "--quiet", "--initial-branch=main")
    for name, value in (("user.name", "Ada"), ("user.email", "ada@example.org")):
        git(tmp_path, "config", name, value)
    git(tmp_path, "add", "--all")
    git(tmp_path, "commit", "--quiet", "--message", "Begin")
    return tmp_path


def test_every_place_of_this_repository_has_the_same_version() -> None:
    assert len(dict(stated(READY.texts))) == sum(map(len, PLACES.values()))
    elsewhere = [path.name for path in (*ROOT.glob("docs/*.md"), ROOT / "README.md") if NOW in path.read_text()]
    assert sorted(elsewhere) == sorted(Path(path).name for path in PLACES if path.startswith("docs/"))
    assert list(refusals(NEXT, READY)) == []


@pytest.mark.parametrize(
    ("version", "changed", "why"),
    [
        ("0.3", {}, "VERSION='0.3' is not a version"),
        ("", {}, "VERSION='' is not a version"),
        ("v0.3.0", {}, "VERSION='v0.3.0' is not a version"),
        (NOW, {}, f"{NOW} is not newer than {NOW}"),
        ("0.0.9", {}, f"0.0.9 is not newer than {NOW}"),
        (NEXT, {"tags": frozenset({f"v{NEXT}"})}, f"the tag v{NEXT} exists"),
        (NEXT, {"branch": "next"}, "the branch is next"),
        (NEXT, {"is_clean": False}, "the working tree has changes"),
        (NEXT, written(CHANGELOG, "## [Unreleased]\n\n## [0.1.0] - 2026-01-01\n\n- A house.\n"), "nothing under Unreleased"),
        (NEXT, written("helm/Chart.yaml", 'version: 0.0.8\nappVersion: "0.0.1"\n'), "versions disagree: .*has 0.0.8"),
        (NEXT, written("README.md", "Alpha: not yet on PyPI."), "README.md states 'not yet on PyPI'"),
        (NEXT, written("docs/kubernetes.md", KUBERNETES), "docs/kubernetes.md states 'Nothing is released yet'"),
        (NEXT, written("docs/kubernetes.md", ""), "docs/kubernetes.md, .* matches nothing"),
    ],
)  # fmt: skip
def test_a_release_that_is_not_ready_is_refused_with_the_reason(
    version: str, changed: dict[str, object], why: str
) -> None:
    found = list(refusals(version, replace(READY, **changed)))  # type: ignore[arg-type]  # of any field
    assert [each for each in found if re.search(why, each)] == found != []


def test_all_reasons_are_named_at_once() -> None:
    state = replace(READY, branch="next", is_clean=False, tags=frozenset({f"v{NEXT}"}))
    assert len(list(refusals(NEXT, state))) == 3


def test_a_released_version_is_in_every_place_and_nothing_else_changes() -> None:
    texts = released(READY.texts, NEXT, DAY)
    assert {version for _, version in stated(texts)} == {NEXT}
    for path in PLACES:
        assert texts[path].replace(NEXT, NOW) == READY.texts[path]
    assert texts[CHANGELOG].startswith(
        f"# Changelog\n\n## [Unreleased]\n\n## [{NEXT}] - 2026-12-01\n\n### Added\n\n- A door.\n"
    )


def test_a_release_is_one_commit_with_an_annotated_tag_and_is_not_pushed(repository: Path) -> None:
    assert release.release(repository, NEXT, DAY, "good") == f"git push origin main v{NEXT}"
    assert git(repository, "log", "--format=%s") == f"Release {NEXT}\nBegin"
    assert git(repository, "cat-file", "-t", f"v{NEXT}") == "tag"
    assert git(repository, "for-each-ref", "--format=%(contents)", f"refs/tags/v{NEXT}").splitlines()[2:] == [
        "### Added",
        "",
        "- A door.",
    ]
    assert git(repository, "status", "--porcelain") == ""
    with pytest.raises(SystemExit, match=f"{NEXT} is not newer than {NEXT}"):
        release.release(repository, NEXT, DAY)


def test_a_check_that_fails_leaves_all_files_as_they_were(repository: Path) -> None:
    with pytest.raises(SystemExit, match="`make bad` failed"):
        release.release(repository, NEXT, DAY, "good", "bad")
    assert git(repository, "log", "--format=%s") == "Begin"
    assert git(repository, "status", "--porcelain") == ""
    assert git(repository, "tag") == ""


def test_a_change_that_is_not_committed_is_not_lost(repository: Path) -> None:
    (repository / "helm/Chart.yaml").write_text(READY.texts["helm/Chart.yaml"] + "# mine\n")
    with pytest.raises(SystemExit, match="the working tree has changes"):
        release.release(repository, NEXT, DAY, "bad")
    assert (repository / "helm/Chart.yaml").read_text().endswith("# mine\n")


@pytest.mark.parametrize(
    ("tag", "source", "why"),
    [
        ("v9.0.0", SOURCE, f"pyproject.toml, .* has {NOW}, and the tag is v9.0.0"),
        (
            f"v{NOW}",
            "https://github.com/somebody/fork",
            "names the source .*, and this is https://github.com/somebody/fork",
        ),
    ],
)
def test_a_tag_of_another_version_or_repository_is_not_published(tag: str, source: str, why: str) -> None:
    assert list(mismatches(f"v{NOW}", SOURCE, READY.texts)) == []
    assert any(re.search(why, each) for each in mismatches(tag, source, READY.texts))


def test_what_is_left_to_a_person_is_the_rest_of_the_checklist() -> None:
    page = (ROOT / "docs/maintainers.md").read_text()
    left = release.left_to_a_person(page)
    assert "make image" in left
    assert "make release" not in left
    assert "make release VERSION=" in page
