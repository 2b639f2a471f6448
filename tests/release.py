"""Prepares a release: `make release VERSION=0.3.0`.

It refuses unless the working tree, the branch, the version, the changelog and the README are ready. Then it sets the version in
every place, dates the changelog, runs `CHECKS`, commits and writes an annotated tag. It pushes nothing: it prints what to push,
and which points of docs/maintainers.md are left to a person.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path

ROOT = Path(__file__).parents[1]
CHECKS = ("check", "docs")
"""Targets that have to pass before the commit. Those that take longer are left to a person."""
CHANGELOG = "CHANGELOG.md"
EMPTY = "## [Unreleased]\n"
NUMBERS = r"\d+\.\d+\.\d+"
PLACES = {
    "pyproject.toml": (rf'^version = "({NUMBERS})"$', rf'"leasehold-emulators==({NUMBERS})"'),
    "emulators/pyproject.toml": (rf'^version = "({NUMBERS})"$', rf'"leasehold-processor==({NUMBERS})"'),
    "helm/Chart.yaml": (rf"^version: ({NUMBERS})$", rf'^appVersion: "({NUMBERS})"$'),
    "docs/kubernetes.md": (rf"'leasehold-processor\[binary\]==({NUMBERS})'", rf"/[\w-]*leasehold[\w-]*:({NUMBERS})"),
    "docs/clusters.md": (rf"/leasehold-thin:({NUMBERS})",),
    "uv.lock": (
        rf'^name = "leasehold-processor"\nversion = "({NUMBERS})"$',
        rf'^name = "leasehold-emulators"\nversion = "({NUMBERS})"$',
    ),
}
"""Each file that has the version -> where: patterns, each of which matches there."""
BEFORE = {
    "README.md": "not yet on PyPI",
    "docs/configuration.md": "not yet on PyPI",
    "docs/kubernetes.md": "Nothing is released yet",
}
"""Pages -> what they may state before the first release."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What a release begins with: the branch, whether all is committed, the tags, and the texts of the files with the version."""

    branch: str
    is_clean: bool
    tags: frozenset[str]
    texts: Mapping[str, str]


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def stated(texts: Mapping[str, str]) -> Iterator[tuple[str, str | None]]:
    """Each place, and the version there: None if there is none."""
    for path, patterns in PLACES.items():
        for pattern in patterns:
            for found in re.findall(pattern, texts[path], re.MULTILINE) or [None]:
                yield f"{path}, {pattern}", found


def unreleased(changelog: str) -> str:
    """The text under this heading, up to the next one."""
    return changelog.partition(EMPTY)[2].partition("\n## ")[0].strip()


def refusals(version: str, state: State) -> Iterator[str]:
    """Why this release cannot be made now, and what to do."""
    if not re.fullmatch(NUMBERS, version):
        yield f"VERSION={version!r} is not a version: name three numbers, such as VERSION=0.3.0"
        return
    found = list(stated(state.texts))
    yield from (f"{place} matches nothing: correct tests/release.py" for place, value in found if value is None)
    if len(known := {value for _, value in found if value is not None}) > 1:
        yield f"versions disagree: {', '.join(f'{place} has {value}' for place, value in found)}"
    if any(numbers(version) <= numbers(each) for each in known):
        yield f"{version} is not newer than {max(known, key=numbers)}"
    if f"v{version}" in state.tags:
        yield f"the tag v{version} exists: name the next version"
    if state.branch != "main":
        yield f"the branch is {state.branch}: a release is made on main"
    if not state.is_clean:
        yield "the working tree has changes: commit them, or remove them"
    for path, statement in BEFORE.items():
        if statement in state.texts[path]:
            yield f"{path} states '{statement}': correct what it tells about releases"
    if not unreleased(state.texts[CHANGELOG]):
        yield f"{CHANGELOG} has nothing under Unreleased: write what users notice"


def released(texts: Mapping[str, str], version: str, day: date) -> dict[str, str]:
    """The files with the new version, and the changelog with its heading."""
    changed = {**texts, CHANGELOG: texts[CHANGELOG].replace(EMPTY, f"{EMPTY}\n## [{version}] - {day}\n", 1)}
    for path, patterns in PLACES.items():
        for pattern in patterns:
            place = re.compile(pattern, re.MULTILINE)
            changed[path] = place.sub(lambda old: old[0].replace(old[1], version), changed[path])
    return changed


def mismatches(tag: str, source: str, texts: Mapping[str, str]) -> Iterator[str]:
    """What of the files is not of this tag and this repository."""
    yield from (f"{place} has {value}, and the tag is {tag}" for place, value in stated(texts) if f"v{value}" != tag)
    for path in ("pyproject.toml", "emulators/pyproject.toml"):
        if (named := tomllib.loads(texts[path])["project"]["urls"]["Source"]) != source:
            yield f"{path} names the source {named}, and this is {source}"


def left_to_a_person(page: str) -> str:
    """The points of the checklist in docs/maintainers.md that this script does not settle."""
    points = re.findall(r"^\d+\. .+", page.partition("## Release checklist")[2], re.MULTILINE)
    return "\n".join(f"  {each}" for each in points if "make release" not in each)


def git(root: Path, *arguments: str) -> str:
    return subprocess.run(("git", *arguments), cwd=root, check=True, capture_output=True, text=True).stdout.strip()


def state_of(root: Path) -> State:
    return State(
        branch=git(root, "rev-parse", "--abbrev-ref", "HEAD"),
        is_clean=not git(root, "status", "--porcelain"),
        tags=frozenset(git(root, "tag", "--list").split()),
        texts={path: (root / path).read_text() for path in (CHANGELOG, *BEFORE, *PLACES)},
    )


def release(root: Path, version: str, day: date, *checks: str) -> str:
    """What to push. Raises SystemExit, with the files as they were if a check fails."""
    state = state_of(root)
    if found := list(refusals(version, state)):
        sys.exit("\n".join(f"release: {each}" for each in found))
    for path, text in released(state.texts, version, day).items():
        (root / path).write_text(text)
    for check in checks:
        if subprocess.run(("make", check), cwd=root, check=False).returncode != 0:
            git(root, "checkout", "--", ".")
            sys.exit(f"release: `make {check}` failed, and all files are as they were: correct it on main first")
    git(root, "commit", "--all", "--message", f"Release {version}")
    notes = f"Leasehold {version}\n\n{unreleased(state.texts[CHANGELOG])}"
    git(root, "tag", "--annotate", "--cleanup=whitespace", "--message", notes, f"v{version}")
    return f"git push origin main v{version}"


if __name__ == "__main__":
    if sys.argv[1] == "--tagged":
        sys.exit("\n".join(mismatches(sys.argv[2], sys.argv[3], state_of(ROOT).texts)) or 0)
    pushed = release(ROOT, sys.argv[1], datetime.now(UTC).date(), *CHECKS)
    left = left_to_a_person((ROOT / "docs/maintainers.md").read_text())
    sys.stdout.write(
        f"release: committed and tagged. Before you push, go through docs/maintainers.md:\n{left}\n\nThen: {pushed}\n"
    )
