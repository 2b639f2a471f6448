"""The list of licences in the image: every package, jar and library has a row, and no text that a row needs may go."""

from __future__ import annotations

import importlib.util
import re
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

IMAGE = Path(__file__).parents[2] / "image"
DEBIAN = """Package: bash
Status: install ok installed
Version: 5.2

Package: gone
Status: deinstall ok config-files
Version: 1
"""


@pytest.fixture(scope="module")
def listing() -> ModuleType:
    spec = importlib.util.spec_from_file_location("third_party", IMAGE / "third_party.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """An environment of one package of others, ours, and a jar."""
    for name, more in (
        ("other-name", "License-File: LICENSE\nLicense-Expression: LGPL-3.0-only\n"),
        ("leasehold-processor", ""),
    ):
        folder = tmp_path / f"site/{name.replace('-', '_')}-2.1.dist-info"
        (folder / "licenses").mkdir(parents=True)
        (folder / "licenses/LICENSE").write_text("You may.")
        (folder / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {name}\nVersion: 2.1\n{more}\n")
        (folder / "RECORD").write_text(f"{folder.name}/METADATA,,\n")
    jars = tmp_path / "site/pyspark/jars"
    jars.mkdir(parents=True)
    with zipfile.ZipFile(jars / "jackson-core-2.18.2.jar", "w") as jar:
        jar.writestr(
            "META-INF/MANIFEST.MF",
            "Bundle-License: https://www.apache.org/licen\r\n ses/LICENSE-2.0.txt\r\nOther: a\r\n",
        )
    (tmp_path / "doc/bash").mkdir(parents=True)
    (tmp_path / "doc/bash/copyright").write_text("Files: *\nLicense: GPL-3+\n text\n\nLicense: GPL-3+\n")
    (tmp_path / "status").write_text(DEBIAN)
    (tmp_path / "java").mkdir()
    (tmp_path / "java/release").write_text('IMPLEMENTOR="Debian"\nJAVA_VERSION="21.0.5"\n')
    return tmp_path / "site"


def rows(text: str) -> list[list[str]]:
    return [line.split("\t") for line in text.splitlines() if "\t" in line]


def test_each_package_jar_and_library_of_others_has_a_row(listing: ModuleType, site: Path, capsys) -> None:
    there = site.parent
    listing.main(site, there / "status", there / "doc", str(there / "java"))
    assert [row[:3] for row in rows(capsys.readouterr().out)] == [
        ["other-name", "2.1", "LGPL-3.0-only"],
        ["OpenJDK", "21.0.5", "GPL-2.0-only WITH Classpath-exception-2.0"],
        ["jackson-core", "2.18.2", "https://www.apache.org/licenses/LICENSE-2.0.txt"],
        ["bash", "5.2", "GPL-3+"],
    ]


@pytest.mark.parametrize("text", ["site/other_name-2.1.dist-info/licenses/LICENSE", "doc/bash/copyright"])
def test_a_text_that_is_gone_ends_the_build(listing: ModuleType, site: Path, text: str) -> None:
    (site.parent / text).unlink()
    with pytest.raises(SystemExit, match="let it stay"):
        listing.main(site, site.parent / "status", site.parent / "doc", "-")


def test_a_folder_without_jars_ends_the_build(listing: ModuleType, site: Path) -> None:
    (site / "pyspark/jars/jackson-core-2.18.2.jar").unlink()
    with pytest.raises(SystemExit, match="found nothing for 'Jars of Spark"):
        listing.main(site, site.parent / "status", site.parent / "doc", str(site.parent / "java"))


def test_what_is_taken_out_of_the_image_names_no_text_of_a_licence() -> None:
    listed = [line for path in IMAGE.glob("unused*.txt") for line in path.read_text().splitlines()]
    patterns = [line for line in listed if line and not line.startswith("#")]
    assert len(patterns) > 50
    texts = re.compile(r"licen[cs]e|copying|notice|copyright|legal|share/doc|dist-info", re.IGNORECASE)
    assert [each for each in patterns if texts.search(each)] == []
