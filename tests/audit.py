"""What is known against the packages of uv.lock: `make audit`. Advisories come by network, from whoever answers.

    python tests/audit.py [SERVICE ...]

Exit code 0 if `tests/advisories.txt` answers all that is known, 1 if not, and 2 if nobody could tell: then nothing was checked.
Whether a service tells anything is tried with a package that everybody knows to be bad.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
UV = str(Path(sys.executable).with_name("uv"))
PIP_AUDIT = "pip-audit==2.10.0"
SERVICES = {"pypi": "PyPI's JSON API", "osv": "the OSV database"}
SAID_CHARACTERS_MAX = 160
KNOWN_TO_BE_BAD = "jinja2==2.11.2\n"
LOCKED = ("--locked", "--all-extras", "--all-groups", "--no-hashes", "--no-emit-workspace")
PINNED = re.compile(r"^([\w.-]+)(?:\[.*?\])?==([^\s;]+)", re.MULTILINE)
ANSWERS = ROOT / "tests/advisories.txt"


class NotTold(Exception):
    """A service did not answer, or not for every package."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advisory:
    """names: its id and its aliases."""

    names: frozenset[str]
    text: str


def bad(required: str, service: str) -> list[Advisory]:
    """Of the requirements: what is known against them. Raises NotTold."""
    file = ROOT / "build/audited.txt"
    file.write_text(required)
    asked = ("--strict", "--no-deps", "--disable-pip", "--progress-spinner", "off", "--format", "json")
    command = (UV, "tool", "run", "--quiet", PIP_AUDIT, *asked, "--vulnerability-service", service)
    ran = subprocess.run(
        [*command, "--requirement", str(file)], capture_output=True, text=True, timeout=900, check=False
    )
    if ran.returncode not in (0, 1) or not ran.stdout.strip():
        last = (ran.stderr.strip().splitlines() or [f"exit code {ran.returncode}"])[-1]
        raise NotTold(last.rpartition("pip_audit._cli:")[2][:SAID_CHARACTERS_MAX])
    return list(advisories(json.loads(ran.stdout), PINNED.findall(required)))


def advisories(report: dict[str, Any], required: Iterable[tuple[str, str]]) -> Iterator[Advisory]:
    """Of pip-audit's report. Raises NotTold if it has left out a package."""
    packages = report["dependencies"]
    if left_out := {name for name, _ in required} - {package["name"] for package in packages}:
        raise NotTold(f"{', '.join(sorted(left_out))}: left out")
    for package in packages:
        if "vulns" not in package:
            raise NotTold(f"{package['name']}: {package.get('skip_reason', 'left out')}")
        for found in package["vulns"]:
            mended = ", ".join(found["fix_versions"]) or "no version yet"
            text = f"{package['name']} {package['version']}: {found['id']}, mended in {mended}"
            yield Advisory(names=frozenset({found["id"], *found.get("aliases", ())}), text=text)


def rounds(exported: str) -> list[str]:
    """The requirements of all Pythons: pip-audit would leave out those of others, and takes one version of a package. Pure."""
    found: list[dict[str, str]] = []
    for name, version in PINNED.findall(exported):
        free = next((each for each in found if name not in each), None)
        if free is None:
            found.append(free := {})
        free[name] = version
    return ["".join(f"{name}=={version}\n" for name, version in each.items()) for each in found]


def answers(text: str) -> dict[str, str]:
    """By the id of an advisory. Pure."""
    lines = (line.partition(" ") for line in text.splitlines() if line and not line.startswith("#"))
    return {name: answer for name, _, answer in lines}


def tells(service: str) -> None:
    """Raises NotTold if it has nothing against what everybody knows to be bad."""
    if not bad(KNOWN_TO_BE_BAD, service):
        raise NotTold(f"it has nothing against {KNOWN_TO_BE_BAD.strip()}, so it has no advisories")


def audited(locked: str, services: Sequence[str], answered: dict[str, str]) -> int:
    required = rounds(locked)
    count = len(PINNED.findall(locked))
    silent = []
    for service in services:
        try:
            tells(service)
            found = [each for text in required for each in bad(text, service)]
        except NotTold as error:
            silent.append(f"{service} ({SERVICES[service]}): {error}")
            continue
        return judged(found, answered, f"the {count} packages of uv.lock, says {service}")
    say(
        f"audit: NOTHING WAS CHECKED. Nobody tells from here what is known against the {count} packages of uv.lock:",
        *(f"  {line}" for line in silent),
        "  Run `make audit` on a machine that reaches one of them (ADVISORIES=osv asks that one alone).",
    )
    return 2


def judged(found: Sequence[Advisory], answered: dict[str, str], against: str) -> int:
    unanswered = 0
    for each in found:
        names = sorted(each.names & answered.keys())
        unanswered += not names
        say(f"{each.text}; {answered[names[0]] if names else 'upgrade, or answer it in tests/advisories.txt'}")
    for name in sorted(answered.keys() - {name for each in found for name in each.names}):
        say(f"{name}: nobody reports it any more; take it out of tests/advisories.txt")
    say(
        f"audit: {len(found) or 'nothing'} known{f', {unanswered} without an answer,' if found else ''} against {against}"
    )
    return int(unanswered > 0)


def say(*lines: str) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def main(services: Sequence[str]) -> int:
    (ROOT / "build").mkdir(exist_ok=True)
    exported = subprocess.run(
        [UV, "export", "--quiet", *LOCKED], cwd=ROOT, capture_output=True, text=True, check=True, timeout=300
    )
    return audited(exported.stdout, services or tuple(SERVICES), answers(ANSWERS.read_text()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
