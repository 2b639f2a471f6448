"""Jars of real brokers for tests, fetched once by Maven into the user's cache."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from hashlib import blake2b
from pathlib import Path

import pytest


def jars_of(folder: Path, name: str) -> Path:
    """The directory with the jars that the folder's pom.xml names. Skips the test if they cannot be had."""
    if shutil.which("java") is None:
        pytest.skip(f"java is missing: install Java 17, and run the tests of {name} again")
    wanted = blake2b((folder / "pom.xml").read_bytes(), digest_size=6).hexdigest()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "leasehold"
    jars = cache / f"{name.lower()}-{wanted}"
    return jars if jars.is_dir() else _fetched(folder, name, jars)


def _fetched(folder: Path, name: str, jars: Path) -> Path:
    maven = shutil.which("mvn")
    if maven is None:
        pytest.skip(
            f"{name}'s jars are missing: install Maven 3.8, which fetches them, and run the tests of {name} again"
        )
    jars.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=jars.parent) as part:
        line = [maven, "-q", "-B", "-f", str(folder / "pom.xml"), f"-Ddirectory={part}/jars", "process-classes"]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(
                f"{name}'s jars are missing, and Maven cannot fetch them: {done.stdout[-500:]}{done.stderr[-500:]}"
            )
        try:
            (Path(part) / "jars").rename(jars)
        except OSError:  # another process was quicker
            assert jars.is_dir()
    return jars
