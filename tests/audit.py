"""What is known against the packages of uv.lock: `make audit`. Advisories come by network, from whoever answers.

    python tests/audit.py [SERVICE ...]

Exit code 0 where nothing is known, 1 where something is, and 2 where nobody could tell: then nothing was checked. Whether a
service tells anything is tried with a package that everybody knows to be bad.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
UV = str(Path(sys.executable).with_name("uv"))
PIP_AUDIT = "pip-audit==2.10.0"
SERVICES = {"pypi": "PyPI's JSON API", "osv": "the OSV database"}
SAID_CHARACTERS_MAX = 160
KNOWN_TO_BE_BAD = "jinja2==2.11.2\n"
LOCKED = ("--locked", "--all-extras", "--all-groups", "--no-hashes", "--no-emit-project")


class NotTold(Exception):
    """A service did not answer, or not for every package."""


def bad(requirements: Path, service: str) -> list[str]:
    """Of what is required: what is known against it. Raises NotTold."""
    asked = ("--strict", "--no-deps", "--disable-pip", "--progress-spinner", "off", "--format", "json")
    command = (UV, "tool", "run", "--quiet", PIP_AUDIT, *asked, "--vulnerability-service", service)
    ran = subprocess.run(
        [*command, "--requirement", str(requirements)], capture_output=True, text=True, timeout=900, check=False
    )
    if ran.returncode not in (0, 1) or not ran.stdout.strip():
        last = (ran.stderr.strip().splitlines() or [f"exit code {ran.returncode}"])[-1]
        raise NotTold(last.rpartition("pip_audit._cli:")[2][:SAID_CHARACTERS_MAX])
    return list(advisories(json.loads(ran.stdout)))


def advisories(report: dict[str, Any]) -> Iterator[str]:
    """Of pip-audit's report. Raises NotTold where it has left out a package."""
    for package in report["dependencies"]:
        if "vulns" not in package:
            raise NotTold(f"{package['name']}: {package.get('skip_reason', 'left out')}")
        for found in package["vulns"]:
            mended = ", ".join(found["fix_versions"]) or "no version yet"
            yield f"{package['name']} {package['version']}: {found['id']}, mended in {mended}"


def tells(folder: Path, service: str) -> None:
    """Raises NotTold where it has nothing against what everybody knows to be bad."""
    known = folder / "known-to-be-bad.txt"
    known.write_text(KNOWN_TO_BE_BAD)
    if not bad(known, service):
        raise NotTold(f"it has nothing against {KNOWN_TO_BE_BAD.strip()}, so it has no advisories")


def audited(locked: Path, services: Sequence[str]) -> int:
    count = sum("==" in line for line in locked.read_text().splitlines())
    silent = []
    for service in services:
        try:
            tells(locked.parent, service)
            found = bad(locked, service)
        except NotTold as error:
            silent.append(f"{service} ({SERVICES[service]}): {error}")
            continue
        say(*found, f"audit: {len(found) or 'nothing'} known against the {count} packages of uv.lock, says {service}")
        return int(bool(found))
    say(
        f"audit: NOTHING WAS CHECKED. Nobody tells from here what is known against the {count} packages of uv.lock:",
        *(f"  {line}" for line in silent),
        "  Run `make audit` on a machine that reaches one of them (ADVISORIES=osv asks that one alone).",
    )
    return 2


def say(*lines: str) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def main(services: Sequence[str]) -> int:
    locked = ROOT / "build" / "locked.txt"
    locked.parent.mkdir(exist_ok=True)
    subprocess.run([UV, "export", "--quiet", *LOCKED, "--output-file", str(locked)], cwd=ROOT, check=True, timeout=300)
    return audited(locked, services or tuple(SERVICES))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
