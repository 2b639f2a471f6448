"""The list of licences in the image: every package, jar and library has a row, and no text that a row needs may go."""

from __future__ import annotations

import importlib.util
import re
import zipfile
from pathlib import Path
from types import ModuleType

import psycopg_binary
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
    """An environment of one package of others, ours, a jar, a library of psycopg-binary, and one of the image."""
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
    for library in ("site/psycopg_binary.libs/libssl-6a9b88ec.so.3", "java/lib/libnss_wrapper.so"):
        (tmp_path / library).parent.mkdir(parents=True)
        (tmp_path / library).touch()
    for package in ("libssl3t64", "libnss-wrapper"):
        (tmp_path / "texts" / package).mkdir(parents=True)
        (tmp_path / "texts" / package / "copyright").write_text(f"You may use {package}.")
    (tmp_path / "java/release").write_text('IMPLEMENTOR="Debian"\nJAVA_VERSION="21.0.5"\n')
    return tmp_path / "site"


def write(listing: ModuleType, site: Path, *, has_java: bool = True) -> None:
    there = site.parent
    folders = (site, there / "status", there / "doc", there / "texts", there / "licenses")
    listing.main(*folders, str(there / "java") if has_java else "-")


def rows(text: str) -> list[list[str]]:
    return [line.split("\t") for line in text.splitlines() if "\t" in line]


def test_each_package_jar_and_library_of_others_has_a_row(listing: ModuleType, site: Path, capsys) -> None:
    write(listing, site)
    found = rows(capsys.readouterr().out)
    assert [row[:3] for row in found] == [
        ["other-name", "2.1", "LGPL-3.0-only"],
        ["libnss_wrapper", "", "BSD-3-Clause"],
        ["libssl", "3", "Apache-2.0"],
        ["OpenJDK", "21.0.5", "GPL-2.0-only WITH Classpath-exception-2.0"],
        ["jackson-core", "2.18.2", "https://www.apache.org/licenses/LICENSE-2.0.txt"],
        ["bash", "5.2", "GPL-3+"],
    ]
    assert found[0][4] == "https://pypi.org/project/other-name/2.1/"
    assert [Path(row[3]).read_text() for row in found[1:3]] == [
        "You may use libnss-wrapper.",
        "You may use libssl3t64.",
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("site/other_name-2.1.dist-info/licenses/LICENSE", "let it stay"),
        ("doc/bash/copyright", "let it stay"),
        ("texts/libssl3t64/copyright", "install that package"),
    ],
)
def test_a_text_that_is_gone_ends_the_build(listing: ModuleType, site: Path, text: str, why: str) -> None:
    (site.parent / text).unlink()
    with pytest.raises(SystemExit, match=why):
        write(listing, site, has_java=False)


def test_a_library_that_nobody_has_listed_ends_the_build(listing: ModuleType, site: Path) -> None:
    (site / "psycopg_binary.libs/libnew-0a1b2c3d.so.1").touch()
    with pytest.raises(SystemExit, match=r"libnew-0a1b2c3d\.so\.1 is not known"):
        write(listing, site)


def test_each_library_of_the_installed_psycopg_is_listed(listing: ModuleType) -> None:
    (folder,) = {each.with_name("psycopg_binary.libs") for each in map(Path, psycopg_binary.__path__)}
    if not folder.is_dir():
        pytest.skip("the wheel of this system has no such folder")
    names = [listing.LIBRARY.fullmatch(each.name)["name"] for each in folder.iterdir()]
    assert len(names) > 10
    assert set(names) - listing.LIBRARIES.keys() == set()


def test_a_folder_without_jars_ends_the_build(listing: ModuleType, site: Path) -> None:
    (site / "pyspark/jars/jackson-core-2.18.2.jar").unlink()
    with pytest.raises(SystemExit, match="found nothing for 'Jars of Spark"):
        write(listing, site)


def test_what_is_taken_out_of_the_image_names_no_text_of_a_licence() -> None:
    listed = [line for path in IMAGE.glob("unused*.txt") for line in path.read_text().splitlines()]
    patterns = [line for line in listed if line and not line.startswith("#")]
    assert len(patterns) > 50
    texts = re.compile(r"licen[cs]e|copying|notice|copyright|legal|share/doc|dist-info", re.IGNORECASE)
    assert [each for each in patterns if texts.search(each)] == []
