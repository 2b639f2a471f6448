"""Takes out of a Python environment what image/unused.txt lists: python image/slim.py SITE-PACKAGES"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

UNUSED = Path(__file__).with_name("unused.txt")


def unused(site: Path, patterns: Iterable[str]) -> Iterator[Path]:
    """Raises SystemExit where a pattern matches nothing: then the list is no longer right."""
    for pattern in patterns:
        found = sorted(site.glob(pattern))
        if not found:
            sys.exit(f"image/unused.txt lists {pattern}, and {site} has nothing like it: mend the list")
        yield from found


def listed() -> list[str]:
    lines = map(str.strip, UNUSED.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def main(site: Path) -> None:
    for path in list(unused(site, listed())):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
