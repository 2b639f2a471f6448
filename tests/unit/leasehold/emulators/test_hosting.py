"""The control port serves its own page and local clients, and no page of another site."""

from __future__ import annotations

import pytest

from leasehold.emulators.hosting import PAGE, Place, foreign

JSON = "application/json"


@pytest.mark.parametrize(
    ("method", "headers"),
    [
        ("GET", {"Host": "127.0.0.1:9001"}),
        ("GET", {"Host": "localhost:9001"}),
        ("GET", {"Host": "[::1]:9001"}),
        ("GET", {"Host": "localhost"}),
        ("POST", {"Host": "127.0.0.1:9001", "Content-Type": JSON}),
        (
            "POST",
            {"Host": "localhost:9001", "Content-Type": f"{JSON}; charset=utf-8", "Origin": "http://localhost:9001"},
        ),
    ],
)
def test_local_clients_and_the_page_may_ask(method: str, headers: dict[str, str]) -> None:
    assert foreign(method, headers) is None


@pytest.mark.parametrize(
    ("method", "headers", "problem"),
    [
        ("GET", {"Host": "evil.example:9001"}, "not 'evil.example:9001'"),
        ("GET", {"Host": "127.0.0.1.evil.example"}, "not '127"),
        ("GET", {}, "not ''"),
        ("POST", {"Host": "127.0.0.1:9001", "Content-Type": JSON, "Origin": "http://evil.example"}, "Origin"),
        ("POST", {"Host": "127.0.0.1:9001", "Content-Type": JSON, "Origin": "http://127.0.0.1:8080"}, "Origin"),
        ("POST", {"Host": "127.0.0.1:9001", "Content-Type": JSON, "Origin": "null"}, "Origin"),
        ("POST", {"Host": "127.0.0.1:9001", "Content-Type": "text/plain"}, "Content-Type"),
        ("POST", {"Host": "127.0.0.1:9001"}, "Content-Type"),
        ("PUT", {"Host": "127.0.0.1:9001"}, "GET and POST"),
    ],
)
def test_others_are_refused(method: str, headers: dict[str, str], problem: str) -> None:
    assert problem in (foreign(method, headers) or "")


@pytest.mark.parametrize(("host", "address"), [("0.0.0.0", "127.0.0.1"), ("::1", "[::1]"), ("localhost", "localhost")])
def test_clients_get_an_address_that_they_can_reach(host: str, address: str) -> None:
    assert Place(host=host).address == address


def test_the_page_needs_nothing_from_elsewhere() -> None:
    text = PAGE.read_text()
    assert "http://" not in text
    assert "https://" not in text
    assert "innerHTML" not in text
