"""Who may ask the API: tokens, how they are exchanged, and what is open without one."""

import os
from pathlib import Path

import httpx
import pytest

from leasehold.service.api import OPEN, create_app
from leasehold.service.api.auth import Access, Tokens
from leasehold.service.errors import StartFailed

FIRST, SECOND = "first-" + "f" * 32, "second-" + "s" * 32
CLOSED = ["/api/leases", "/api/lag", "/metrics", "/docs", "/openapi.json", "/nowhere", "/health/live/", "/health"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "readers"
    file.write_text(FIRST + "\n")
    return file


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@pytest.fixture
async def client(start, file: Path):
    running = await start(runs=False)
    transport = httpx.ASGITransport(create_app(running.view, Access(readers=Tokens(file))))
    async with httpx.AsyncClient(transport=transport, base_url="http://leasehold") as client:
        yield client


@pytest.mark.parametrize("path", CLOSED)
async def test_nobody_is_answered_without_a_token(client: httpx.AsyncClient, path: str) -> None:
    basic = {"authorization": f"Basic {FIRST}"}
    for headers in (
        {},
        bearer(SECOND),
        bearer(FIRST[:-1]),
        bearer(FIRST + "x"),
        bearer(""),
        {"authorization": FIRST},
        basic,
    ):
        answer = await client.get(path, headers=headers)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["detail"].startswith("authentication required")


@pytest.mark.parametrize("path", ["/api/leases", "/metrics", "/openapi.json"])
async def test_a_reader_is_answered(client: httpx.AsyncClient, path: str) -> None:
    for scheme in ("Bearer ", "bearer ", "Bearer   "):
        assert (await client.get(path, headers={"authorization": scheme + FIRST})).status_code == 200


@pytest.mark.parametrize("path", sorted(OPEN))
async def test_probes_need_no_token(client: httpx.AsyncClient, path: str) -> None:
    assert (await client.get(path)).status_code in (200, 503)


def test_tokens_are_exchanged_without_a_restart(file: Path) -> None:
    tokens = Tokens(file)
    file.write_text(f"{FIRST}\n{SECOND}\n")
    assert tokens.named(f"Bearer {FIRST}".encode())
    assert tokens.named(f"Bearer {SECOND}".encode())
    file.write_text(f"{SECOND}\n")
    assert not tokens.named(f"Bearer {FIRST}".encode())


def test_a_secret_that_is_exchanged_behind_a_link_is_seen(tmp_path: Path) -> None:
    """As Kubernetes does it: files of one size and time in another folder."""
    for name, token in (("old", FIRST), ("new", FIRST[::-1])):
        (tmp_path / name).mkdir()
        (tmp_path / name / "readers").write_text(token)
        os.utime(tmp_path / name / "readers", ns=(0, 0))
    (tmp_path / "current").symlink_to("old")
    tokens = Tokens(tmp_path / "current" / "readers")
    (tmp_path / "next").symlink_to("new")
    (tmp_path / "next").replace(tmp_path / "current")
    assert tokens.named(f"Bearer {FIRST[::-1]}".encode())
    assert not tokens.named(f"Bearer {FIRST}".encode())


def test_a_file_that_is_gone_admits_nobody_until_it_is_back(file: Path) -> None:
    tokens = Tokens(file)
    kept = file.rename(file.with_name("kept"))
    assert not tokens.named(f"Bearer {FIRST}".encode())
    kept.rename(file)
    assert tokens.named(f"Bearer {FIRST}".encode())


@pytest.mark.parametrize("content", ["", "\n\n", "short\n", "fifteen-bytes-x\n"])
def test_a_host_does_not_start_on_a_file_without_a_token_that_is_hard_to_guess(file: Path, content: str) -> None:
    file.write_text(content)
    with pytest.raises(StartFailed, match="holds no token of 16 bytes"):
        Tokens(file)


def test_a_host_does_not_start_without_the_file_that_it_was_told(tmp_path: Path) -> None:
    with pytest.raises(StartFailed, match=r"no such file.*openssl"):
        Tokens(tmp_path / "none")


def test_a_short_line_is_no_token(file: Path) -> None:
    file.write_text(f"{FIRST}\nshort\n\n")
    tokens = Tokens(file)
    assert not tokens.named(b"Bearer short")
    assert not tokens.named(b"Bearer ")
