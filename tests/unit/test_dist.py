"""What `make dist` requires of the wheel is what it is made of."""

from __future__ import annotations

import io
import re
import tarfile
import tomllib
import zipfile
from pathlib import Path
from urllib.request import urlopen

import dist
import pytest
from patience import PATIENCE_S

ROOT = Path(__file__).parents[2]


def test_the_wheel_is_made_of_the_packages_that_it_may_install() -> None:
    made = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert set(made["packages"]) == dist.PACKAGES


@pytest.mark.parametrize("path", ["pyproject.toml", "emulators/pyproject.toml"])
def test_a_later_build_uses_the_same_build_tools(path: str) -> None:
    """Each wheel names the version of hatchling."""
    required = tomllib.loads((ROOT / path).read_text())["build-system"]["requires"]
    assert [each for each in required if not re.fullmatch(r"[\w-]+==[\d.]+", each)] == []


def test_the_links_of_the_readme_lead_somewhere_on_pypi() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    hook = project["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    (change,) = hook["substitutions"]
    assert (project["project"]["dynamic"], hook["fragments"]) == (["readme"], [{"path": "README.md"}])
    readme = re.sub(change["pattern"], change["replacement"], (ROOT / "README.md").read_text())
    texts = (readme, (ROOT / "emulators/README.md").read_text())
    links = [link for text in texts for link in re.findall(r"\]\(([^)]*)\)", text)]
    assert len(links) > 20
    assert [link for link in links if not link.startswith("https://")] == []
    source = f"{project['project']['urls']['Source']}/blob/v$HFPR_VERSION/"
    assert [link for link in re.findall(re.escape(source) + r"([^)#]*)", readme) if not (ROOT / link).exists()] == []


def test_the_sdist_takes_folders_and_files_of_the_top_alone() -> None:
    """Without the slash, a name stands for whatever is called so at any depth."""
    made = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["sdist"]
    assert [each for each in made["include"] if not each.startswith("/")] == []
    assert [each for each in made["include"] if not (ROOT / each[1:]).exists()] == []


def test_whatever_else_a_wheel_installs_at_the_top_is_found(tmp_path: Path) -> None:
    wheel = tmp_path / "leasehold_processor-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as opened:
        for name in ("leases/lease.py", "tests/dist.py", "stray.py", "leasehold_processor-1.dist-info/METADATA"):
            opened.writestr(name, "")
    assert dist.top_level(wheel) == {"leases", "tests", "stray.py"}


def test_releases_take_the_place_of_those_in_the_lock() -> None:
    locked = "py4j==0.10.9.9\npyspark==4.3.0 ; python_version > '3'\npyspark-client==1\nclick==8"
    assert dist.constraints(locked, ()).split() == locked.split()
    found = dist.constraints(locked, ("pyspark==4.1.*",))
    assert found.split("\n") == ["pyspark-client==1", "click==8", "pyspark==4.1.*", ""]


def test_an_image_that_is_not_made_of_the_wheel_is_found(tmp_path: Path) -> None:
    wheel, site = tmp_path / "leasehold_processor-1-py3-none-any.whl", tmp_path / "site-packages"
    with zipfile.ZipFile(wheel, "w") as opened:
        for name in ("leasehold/a.py", "leasehold/b.py", "leasehold/c.py", "leasehold_processor-1.dist-info/METADATA"):
            opened.writestr(name, name)
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(site)
    record = site / "leasehold_processor-1.dist-info/RECORD"
    names = ("leasehold/a.py", "leasehold/b.py", "leasehold/c.py", "../../../bin/leasehold")
    installed = "".join(f"{name},,\n" for name in (*names, record.relative_to(site)))
    record.write_text(installed)
    assert dist.unlike(wheel, site) == set()
    (site / "leasehold/a.py").write_text("changed")
    (site / "leasehold/b.py").unlink()
    record.write_text(installed + "leases/lease.py,,\n")
    assert dist.unlike(wheel, site) == {"leasehold/a.py", "leasehold/b.py", "leases/lease.py"}


def chart_of(mtime: int) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name in ("leasehold/Chart.yaml", "leasehold/values.yaml"):
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(name), mtime
            archive.addfile(member, io.BytesIO(name.encode()))
    return packed.getvalue()


def test_charts_that_were_packed_at_different_times_have_the_same_bytes_once_dated() -> None:
    one, other = chart_of(1_000_000_000), chart_of(1_700_000_000)
    assert one != other
    assert dist.dated(one, 5) == dist.dated(other, 5) != dist.dated(one, 6)
    with tarfile.open(fileobj=io.BytesIO(dist.dated(one, 5))) as archive:
        assert [(each.name, each.mtime) for each in archive] == [
            ("leasehold/Chart.yaml", 5),
            ("leasehold/values.yaml", 5),
        ]
        content = archive.extractfile("leasehold/values.yaml")
        assert content is not None
        assert content.read() == b"leasehold/values.yaml"


def test_files_of_two_builds_that_differ_are_named(tmp_path: Path) -> None:
    for folder, files in (("one", {"a": "1", "b": "2", "c": "3"}), ("other", {"a": "1", "b": "two"})):
        (tmp_path / folder).mkdir()
        for name, content in files.items():
            (tmp_path / folder / name).write_text(content)
    assert dist.differing(tmp_path / "one", tmp_path / "other") == ["b", "c"]


def test_an_index_has_the_distributions_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "leasehold_processor-1-py3-none-any.whl").write_bytes(b"a wheel")
    with dist.served(tmp_path) as index, urlopen(index, timeout=PATIENCE_S) as page:
        assert b'href="leasehold_processor-1-py3-none-any.whl"' in page.read()


def test_the_wheel_has_no_files_of_others() -> None:
    """A font, an icon or a schema of somebody else would bring a licence, which the wheel then has to contain."""
    known = {".py", ".pyi", ".typed", ".js", ".css", ".html", ".svg", ".yaml"}
    folders = [ROOT / name for name in ("leasehold", "leases", "pipeline", "service", "emulators/leasehold_emulators")]
    files = [
        path for folder in folders for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    ]
    assert len(files) > 300
    assert [path.name for path in files if (path.suffix or path.name) not in known] == []
    assert [path.name for path in files if path.suffix == ".svg"] == ["icon.svg"]
    stated = [path.name for path in files if re.search(r"copyright|@license|SPDX-", path.read_text(), re.IGNORECASE)]
    assert stated == []
