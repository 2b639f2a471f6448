"""Builds the wheel into dist/ and lives with it as a stranger would: `make dist`.

It is installed in an empty environment outside of the tree, with the dependencies that uv.lock names; it brings the packages that
are named below, and nothing else at the top; and its demo runs there.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
UV = str(Path(sys.executable).with_name("uv"))
PACKAGES = {"leasehold", "leases", "pipeline", "service"}
"""Of those names, no other package can be imported beside this one: README says so."""
DEMO_S = 600


def run(*command: str, cwd: Path, timeout_s: float = 900) -> str:
    """What it prints. An environment of its own, so that nothing of ours is found. Raises SystemExit."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(command, cwd=cwd, env=kept, stdout=subprocess.PIPE, text=True, timeout=timeout_s, check=False)
    if done.returncode != 0:
        sys.exit(f"dist: {' '.join(command)} ended with {done.returncode}: {done.stdout}")
    return done.stdout


def built(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    run(UV, "build", "--quiet", "--out-dir", str(folder), cwd=ROOT)
    (wheel,) = folder.glob("*.whl")
    return wheel


def top_level(wheel: Path) -> set[str]:
    """The names that it installs, but for its own description."""
    with zipfile.ZipFile(wheel) as opened:
        names = {name.partition("/")[0] for name in opened.namelist()}
    return {name for name in names if not name.endswith(".dist-info")}


def installed(wheel: Path, folder: Path) -> Path:
    """The Python of an environment that has nothing but the wheel and what it needs."""
    python, locked = folder / "environment/bin/python", folder / "locked.txt"
    what = ("--locked", "--all-extras", "--no-dev", "--no-hashes", "--no-emit-project")
    run(UV, "export", "--quiet", *what, "--output-file", str(locked), cwd=ROOT)
    run(UV, "venv", "--quiet", "--python", sys.executable, str(folder / "environment"), cwd=folder)
    needed = ("--constraint", str(locked), f"leasehold[demo] @ {wheel.as_uri()}")
    run(UV, "pip", "install", "--quiet", "--python", str(python), *needed, cwd=folder)
    return python


def main() -> None:
    wheel = built(ROOT / "dist")
    if (found := top_level(wheel)) != PACKAGES:
        sys.exit(f"dist: {wheel.name} installs {sorted(found)}, and is to install {sorted(PACKAGES)}")
    with tempfile.TemporaryDirectory(prefix="leasehold-dist-") as directory:
        folder = Path(directory)
        python = installed(wheel, folder)
        place = run(str(python), "-c", "import service; print(service.__path__[0])", cwd=folder).strip()
        if not Path(place).is_relative_to(folder / "environment"):
            sys.exit(f"dist: `service` is imported from {place}, not from the wheel")
        told = json.loads(run(str(python.with_name("leasehold")), "demo", "--json", cwd=folder, timeout_s=DEMO_S))
        if not told["balances"] or told["lost"] or told["duplicated"]:
            sys.exit(f"dist: the demo's balances are wrong: {told}")
    sys.stdout.write(f"dist/{wheel.name}: {', '.join(sorted(found))}; installed elsewhere, its demo's balances match\n")


if __name__ == "__main__":
    main()
