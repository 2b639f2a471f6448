from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from connectors.nats.streams import Made
from plugins_nats import NatsMachine


@pytest.fixture
async def made(nats_server: NatsMachine) -> AsyncIterator[Made]:
    made = Made(nats_server)
    await made.stream.create(1)
    yield made
    await made.connection.ask(f"STREAM.DELETE.{made.stream.name}")
    await made.connection.close()
