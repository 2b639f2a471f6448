"""The dashboard's files: who is given them, under which policy, and that nothing in them makes markup of data."""

import re
from pathlib import Path

import httpx
import pytest

from leasehold.service import dashboard
from leasehold.service.api import create_app
from leasehold.service.api.auth import Access, Tokens

FOLDER = Path(dashboard.__file__).parent
SOURCES = sorted(path for path in FOLDER.iterdir() if path.suffix in (".html", ".js", ".css", ".svg"))
MARKUP = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\b|new Function|srcdoc|localStorage"
ELSEWHERE = r"(?:https?:)?//(?!www\.w3\.org/2000/svg)[\w.-]+\.\w"


@pytest.fixture
async def client(start, tmp_path: Path):
    """Of a host that has readers; it sends no token."""
    (tmp_path / "readers").write_text("a-token-for-readers\n")
    running = await start(runs=False)
    app = create_app(running.view, Access(readers=Tokens(tmp_path / "readers")))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        yield client


@pytest.mark.parametrize("path", sorted(dashboard.PATHS))
async def test_the_page_is_for_everybody_and_its_data_is_not(client, path: str) -> None:
    answer = await client.get(path)
    assert answer.status_code == 200
    assert answer.headers.get_list("content-security-policy") == [dashboard.POLICY]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert (await client.get("/api/leases")).status_code == 401


async def test_scripts_and_styles_come_with_their_types(client) -> None:
    """Under `nosniff` a browser runs nothing else."""
    for path, kind in (
        ("/", "text/html"),
        ("/dashboard/app.js", "text/javascript"),
        ("/dashboard/style.css", "text/css"),
    ):
        assert (await client.get(path)).headers["content-type"].split(";")[0] == kind


@pytest.mark.parametrize(
    "path", ["/dashboard", "/dashboard/", "/dashboard/x.js", "/dashboard/../api.py", "/dashboard/__init__.py"]
)
async def test_no_other_file_is_served(client, path: str) -> None:
    assert (await client.get(path)).status_code in (401, 404)


def test_every_file_that_lies_there_is_served() -> None:
    assert {dashboard.path_of(path.name) for path in SOURCES} == dashboard.PATHS


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_files_make_no_markup_of_data_and_ask_nobody_else(path: Path) -> None:
    source = re.sub(r"^\s*//.*$", "", path.read_text(), flags=re.MULTILINE)
    assert re.findall(MARKUP, source) == []
    assert re.findall(ELSEWHERE, source) == []
    assert len(path.read_text().splitlines()) < 400


def test_the_page_has_nothing_inline_that_its_policy_would_refuse() -> None:
    page = (FOLDER / "index.html").read_text()
    assert "unsafe" not in dashboard.POLICY
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", page)


def test_scripts_name_only_elements_that_the_page_has() -> None:
    page = (FOLDER / "index.html").read_text()
    made = set(re.findall(r'id: "([\w-]+)"', "".join(path.read_text() for path in SOURCES)))
    there = set(re.findall(r'\sid="([\w-]+)"', page)) | made
    asked = {name for path in SOURCES for name in re.findall(r'byId\("([\w-]+)"\)', path.read_text())}
    assert asked - there == set()
