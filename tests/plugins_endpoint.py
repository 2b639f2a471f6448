"""An HTTP endpoint (`endpoint`) as a process of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from patience import PATIENCE_S
from plugins_servers import served


class Endpoint:
    """url, https: without a path. ca: whom to trust for the latter."""

    def __init__(self, *, url: str, https: str, ca: str) -> None:
        self.url, self.https, self.ca = url, https, ca
        self._http = httpx.Client(base_url=url, timeout=PATIENCE_S, trust_env=False)

    def order(self, name: str, **what: Any) -> Any:
        return self._http.post(f"/control/{name}", json=what).raise_for_status().json()

    def answers(self, *answers: dict[str, Any]) -> None:
        """What to answer to the next requests; those with `takes` take the entries after their `stall`."""
        self.order("answers", answers=answers)

    @property
    def entries(self) -> list[Any]:
        return list(self.order("taken")["entries"])

    @property
    def requests(self) -> list[dict[str, Any]]:
        return list(self.order("taken")["requests"])


@contextmanager
def endpoint_served(*arguments: str) -> Iterator[Endpoint]:
    with served("lab.servers.endpoint", *arguments) as (said, _):
        yield Endpoint(**said)


@pytest.fixture(scope="session")
def endpoint_server() -> Iterator[Endpoint]:
    with endpoint_served() as endpoint:
        yield endpoint


@pytest.fixture
def endpoint(endpoint_server: Endpoint) -> Iterator[Endpoint]:
    endpoint_server.order("reset")
    yield endpoint_server
    endpoint_server.order("reset")
