"""Java: find one that Spark runs on, and Spark's jars, because without them Spark fails with many lines; read the output of its
process, and end it."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import threading
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from leasehold.pipeline.errors import EngineUnavailable
from leasehold.pipeline.spark.reason import one_line

JAVA_MIN = 17
LINES_MAX = 200
"""Enough to keep the first line of an error with the stack trace or the list of options that follows it."""


def require_jars(package: Path, environment: Mapping[str, str] = os.environ) -> None:
    """Raises EngineUnavailable if PySpark is installed without Spark itself. package: PySpark's folder."""
    if not environment.get("SPARK_HOME") and not (package / "jars").is_dir():
        raise EngineUnavailable(
            f"there is no Spark here, as in the thin image ({package} has no jars): set `spark.remote` to a Spark"
            " Connect server, or use the image that has Spark"
        )


def require_java() -> None:
    """Raises EngineUnavailable if there is no Java, or one that is too old. Blocks for a moment."""
    java = java_command()
    if java is None:
        home = os.environ.get("JAVA_HOME")
        where = f"JAVA_HOME is {home}, which has no bin/java" if home else "no command `java` was found"
        raise EngineUnavailable(f"Spark needs Java {JAVA_MIN} or newer, and {where}: {_remedy()}")
    version = _read_noted_version(java)
    if version is None:
        version = java_version(_read_version(java))
    if version is not None and version < JAVA_MIN:
        raise EngineUnavailable(f"Spark needs Java {JAVA_MIN} or newer, and {java} is Java {version}: {_remedy()}")


def _remedy() -> str:
    try:
        text = Path("/etc/os-release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    return f"{java_advice(text, platform.system())}, or set JAVA_HOME to an existing one"


def _read_noted_version(java: str) -> int | None:
    """The version in the file `release` of this Java, or None. Starting Java only to ask it takes a fifth of a second."""
    try:
        return java_version(Path(java).resolve().parents[1].joinpath("release").read_text(encoding="utf-8"))
    except (OSError, IndexError, UnicodeDecodeError):
        return None


def _read_version(java: str) -> str:
    """The output of `java -version`. Raises EngineUnavailable. Blocks for a moment."""
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)  # noqa: S603 - the user's own Java
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineUnavailable(
            f"Spark needs Java {JAVA_MIN} or newer, and {java} does not run ({error}): {_remedy()}"
        ) from None
    if answer.returncode != 0:  # macOS has a `java` that only reports that there is none
        raise EngineUnavailable(
            f"Spark needs Java {JAVA_MIN} or newer, and {java} does not run ({one_line(answer.stderr)}): {_remedy()}"
        )
    return answer.stderr + answer.stdout


def java_command() -> str | None:
    """The Java that Spark's launcher will take."""
    if home := os.environ.get("JAVA_HOME"):
        java = Path(home, "bin", "java")
        return str(java) if java.is_file() else None
    return shutil.which("java")


def java_version(text: str) -> int | None:
    """The major version that `java -version` or its file `release` names: 8 for 1.8.0, 17 for 17.0.9. None if there is none."""
    found = re.search(r'(?:version |JAVA_VERSION=)"(?:1\.)?(\d+)', text)
    return int(found[1]) if found else None


@dataclass(frozen=True, slots=True)
class ProcessOutput:
    """The last lines that a JVM and its Python workers wrote, which must neither mix with the host's output nor fill a disk."""

    lines: deque[str]
    thread: threading.Thread

    def wait(self) -> None:
        """Block until all output of an ended JVM is read, for a second at most: its children may still run."""
        self.thread.join(1)


def read_output() -> tuple[ProcessOutput, int]:
    """The output, which is read on a thread of its own, and the file descriptor to write it to."""
    lines: deque[str] = deque(maxlen=LINES_MAX)
    reading, writing = os.pipe()

    def read() -> None:
        with open(reading, encoding="utf-8", errors="replace") as output:
            lines.extend(line.rstrip() for line in output)

    thread = threading.Thread(target=read, name="spark-output", daemon=True)
    thread.start()
    return ProcessOutput(lines, thread), writing


def end_process(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()  # this makes PySpark's JVM end
    with suppress(subprocess.TimeoutExpired):
        process.wait(10)
    if process.poll() is None:
        process.kill()
        process.wait()


ANY = "install Java 17 or newer, from https://adoptium.net for example"
_MACOS = 'brew install openjdk@21, and set JAVA_HOME to "$(brew --prefix openjdk@21)"'
_BY_ID = {
    "amzn": "dnf install java-21-amazon-corretto-headless",
    "debian": "apt-get install openjdk-21-jre-headless",
    "ubuntu": "apt-get install openjdk-21-jre-headless",
    "fedora": "dnf install java-21-openjdk-headless",
    "rhel": "dnf install java-21-openjdk-headless",
    "suse": "zypper install java-21-openjdk-headless",
    "opensuse": "zypper install java-21-openjdk-headless",
    "arch": "pacman -S jre21-openjdk-headless",
    "alpine": "apk add openjdk21-jre-headless",
}
_OLDER = {("debian", "11"), ("debian", "12")}
"""Their newest Java is 17."""
_OLD = "apt-get install openjdk-17-jre-headless"


def java_advice(os_release: str, system: str = "Linux") -> str:
    """The command that installs a Java that Spark runs on. Pure.

    os_release: the text of /etc/os-release, empty without one. system: as `platform.system` returns it.
    """
    if system == "Darwin":
        return _MACOS
    fields = {name: value.strip("\"'") for name, value in re.findall(r"^([A-Z_]+)=(.*?)\s*$", os_release, re.MULTILINE)}
    ids = [fields.get("ID", ""), *fields.get("ID_LIKE", "").split()]
    if any((each, fields.get("VERSION_ID", "")) in _OLDER for each in ids):
        return _OLD
    return next((_BY_ID[each] for each in ids if each in _BY_ID), ANY)
