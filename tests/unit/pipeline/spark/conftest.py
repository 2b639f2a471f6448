"""Tests of Spark's part without a Spark."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from unit.pipeline.spark.connect_server import Server, connect_server


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with connect_server(monkeypatch) as server:
        yield server
