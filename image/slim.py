"""Takes out of a folder what lists name, and out of Spark's jars what other systems would load:
python image/slim.py FOLDER LIST...

LIST: a file beside this one, with a path below the folder on each line. A path behind `!` stays, whatever else names it.
"""

from __future__ import annotations

import platform
import re
import shutil
import sys
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

NATIVE = ("zstd-jni-*.jar", "snappy-java-*.jar", "lz4-java-*.jar")
"""Jars that bring a library for every system there is."""
MACHINES = {"x86_64": "amd64|x86_64", "aarch64": "aarch64"}


def unused(folder: Path, patterns: Iterable[str]) -> Iterator[Path]:
    """Raises SystemExit where a pattern matches nothing: then the list is no longer right."""
    for pattern in patterns:
        found = sorted(folder.glob(pattern))
        if not found:
            sys.exit(f"a list of image/unused*.txt has {pattern}, and {folder} has nothing like it: correct the list")
        yield from found


def listed(*names: str) -> list[str]:
    texts = [Path(__file__).with_name(name).read_text(encoding="utf-8") for name in names]
    lines = [line.strip() for text in texts for line in text.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def is_foreign(entry: str, machine: str) -> bool:
    """Of a jar's entry: a library that this machine's Linux does not load."""
    is_library = re.search(r"\.(so|dll|dylib|jnilib)$", entry) is not None
    return is_library and re.search(rf"/linux/({MACHINES.get(machine, machine)})/", f"/{entry}", re.IGNORECASE) is None


def keep_own(jar: Path, machine: str) -> None:
    """Raises SystemExit where the jar has nothing for this machine: then it is laid out otherwise than is known here."""
    part = jar.with_suffix(".part")
    with zipfile.ZipFile(jar) as whole, zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as kept:
        own = [entry for entry in whole.infolist() if not is_foreign(entry.filename, machine)]
        if not any(entry.filename.endswith(".so") for entry in own):
            sys.exit(f"{jar.name} has no library for Linux on {machine} where slim.py looks for it")
        for entry in own:
            kept.writestr(entry, whole.read(entry))
    part.replace(jar)


def main(folder: Path, *lists: str) -> None:
    lines = listed(*lists)
    kept = {*unused(folder, [line[1:] for line in lines if line.startswith("!")])}
    for path in sorted({*unused(folder, [line for line in lines if not line.startswith("!")])} - kept):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)  # some are in directories that went before
    if (folder / "pyspark/jars").exists():
        for jar in unused(folder, [f"pyspark/jars/{name}" for name in NATIVE]):
            keep_own(jar, platform.machine())


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
