"""Java: finding one that Spark runs on, before Spark fails without one in many lines, and living with its process."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
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
    version = _noted_version(java)
    if version is None:
        version = java_version(_said_version(java))
    if version is not None and version < JAVA_MIN:
        raise EngineUnavailable(f"Spark needs Java {JAVA_MIN} or newer, and {java} is Java {version}: {_REMEDY}")


def _noted_version(java: str) -> int | None:
    """By the file that Java's makers put beside it: starting one only to ask it takes a fifth of a second."""
    try:
        return java_version(Path(java).resolve().parents[1].joinpath("release").read_text(encoding="utf-8"))
    except (OSError, IndexError, UnicodeDecodeError):
        return None


def _said_version(java: str) -> str:
    """Raises EngineUnavailable. Blocks for a moment."""
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)  # noqa: S603 - the user's own Java
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineUnavailable(
            f"Spark needs Java {JAVA_MIN} or newer, and {java} does not run ({error}): {_REMEDY}"
        ) from None
    return said.stderr + said.stdout


def java_command() -> str | None:
    """The one that Spark's launcher will take."""
    if home := os.environ.get("JAVA_HOME"):
        java = Path(home, "bin", "java")
        return str(java) if java.is_file() else None
    return shutil.which("java")


def java_version(text: str) -> int | None:
    """The major version that `java -version` or its file `release` names: 8 for 1.8.0, 17 for 17.0.9. None where none is."""
    found = re.search(r'(?:version |JAVA_VERSION=)"(?:1\.)?(\d+)', text)
    return int(found[1]) if found else None


def drained() -> tuple[deque[str], int]:
    """The JVM's output must not litter ours, nor fill a disk: its last lines, and the file descriptor to write them to."""
    said: deque[str] = deque(maxlen=20)
    reading, writing = os.pipe()

    def drain() -> None:
        with open(reading, encoding="utf-8", errors="replace") as lines:
            said.extend(line.rstrip() for line in lines)

    threading.Thread(target=drain, name="spark-output", daemon=True).start()
    return said, writing


def last_words(said: Sequence[str]) -> str:
    """What a JVM said of its end, in one line, or nothing."""
    lines = (line.strip() for line in list(said))
    return next((line for line in lines if re.match(r"(Error|Exception|Caused by|java\.)[\w :.]", line)), "")


def end_process(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()  # that is how a JVM of pyspark's is told to end
    with suppress(subprocess.TimeoutExpired):
        process.wait(10)
    if process.poll() is None:
        process.kill()
        process.wait()
