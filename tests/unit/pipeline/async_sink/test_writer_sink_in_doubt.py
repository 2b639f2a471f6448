"""Which answers of HTTP endpoints and of Cosmos DB leave a failed request in doubt: it may still be carried out."""

from __future__ import annotations

import json
from typing import cast

import aiohttp
import pytest
from aiohttp.client_reqrep import ConnectionKey

from leasehold.pipeline.async_sink import Entry
from leasehold.pipeline.connectors.cosmos.change_feed_request import FeedAnswer as CosmosAnswer
from leasehold.pipeline.connectors.cosmos.client import CosmosContainer
from leasehold.pipeline.connectors.cosmos.point_operations import Write
from leasehold.pipeline.connectors.cosmos.sink import CosmosDestination
from leasehold.pipeline.connectors.http import HttpDestination
from leasehold.pipeline.connectors.http_exchange import HttpAnswer, failed_of
from leasehold.pipeline.errors import Ambiguous, FeedUnavailable, SinkUnavailable


def entries(*values: object) -> list[Entry]:
    return [Entry(number=n, key=f"k{n}", value=value, bytes=1) for n, value in enumerate(values)]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        *((status, Ambiguous) for status in (408, 502, 504)),
        *((status, SinkUnavailable) for status in (425, 429, 500, 503)),
    ],
)
def test_a_gateway_that_lost_a_request_or_gave_up_leaves_it_in_doubt(status: int, kind: type[Exception]) -> None:
    with pytest.raises(kind) as caught:
        failed_of(HttpAnswer(status, {"retry-after": "7"}), entries(b"1"), "whole", "http://there")
    assert isinstance(caught.value, Ambiguous | SinkUnavailable)
    assert caught.value.retry_after_s == 7.0
    items = failed_of(
        HttpAnswer(200, {}, json.dumps([201, status]).encode()), entries(b"1", b"2"), "items", "http://there"
    )
    assert [entry.number for entry in items.entries] == [1]
    assert items.may_land is (kind is Ambiguous)


CONNECTION = ConnectionKey("there", 80, False, True, None, None, None)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (aiohttp.ServerDisconnectedError(), Ambiguous),
        (ConnectionResetError(104, "reset"), Ambiguous),
        (aiohttp.ClientConnectorError(CONNECTION, OSError(111, "refused")), SinkUnavailable),
    ],
)
async def test_a_request_is_in_doubt_once_there_was_a_connection(
    error: Exception, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def post(*_: object, **__: object) -> None:
        raise error

    destination = HttpDestination("http://127.0.0.1/", headers={}, format="json", results="whole")
    await destination.prepare()
    monkeypatch.setattr(aiohttp.ClientSession, "post", post)
    with pytest.raises(kind):
        await destination.submit(entries(b"1"))
    await destination.close()


@pytest.mark.parametrize(
    ("status", "may_land"),
    [(408, True), (503, True), (None, True), (410, False), (429, False), (449, False), (201, False)],
)
async def test_a_write_to_cosmos_db_is_in_doubt_unless_it_was_refused(status: int | None, may_land: bool) -> None:
    class Scripted:
        async def write(self, write: Write) -> CosmosAnswer:
            if status is None:
                raise FeedUnavailable("no answer")
            return CosmosAnswer(status, {})

    to = cast(CosmosContainer, Scripted())
    destination = CosmosDestination(to, content="row", operation="operation", patch_missing="stop")
    failed = await destination.submit(entries(Write(kind="upsert", id="a", key=("x",))))
    assert (len(failed.entries), failed.may_land) == (int(status != 201), may_land)
