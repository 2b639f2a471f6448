"""Finding a Java that Spark runs on, before Spark fails without one in many lines."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from pipeline.errors import EngineUnavailable

JAVA_MIN = 17
_REMEDY = f"apt-get install openjdk-{JAVA_MIN}-jre-headless (or newer), or set JAVA_HOME to one"


def require_java() -> None:
    """Raises EngineUnavailable where there is no Java, or one that is too old. Blocks for a moment."""
    java = java_command()
    if java is None:
        home = os.environ.get("JAVA_HOME")
        where = f"JAVA_HOME is {home}, which has no bin/java" if home else "no command `java` was found"
        raise EngineUnavailable(f"Spark needs Java {JAVA_MIN} or newer, and {where}: {_REMEDY}")
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)  # noqa: S603 - the user's own Java
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineUnavailable(
            f"Spark needs Java {JAVA_MIN} or newer, and {java} does not run ({error}): {_REMEDY}"
        ) from None
    version = java_version(said.stderr + said.stdout)
    if version is not None and version < JAVA_MIN:
        raise EngineUnavailable(f"Spark needs Java {JAVA_MIN} or newer, and {java} is Java {version}: {_REMEDY}")


def java_command() -> str | None:
    """The one that Spark's launcher will take."""
    if home := os.environ.get("JAVA_HOME"):
        java = Path(home, "bin", "java")
        return str(java) if java.is_file() else None
    return shutil.which("java")


def java_version(text: str) -> int | None:
    """The major version that `java -version` names: 8 for 1.8.0, 17 for 17.0.9. None where it names none."""
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(found[1]) if found else None
