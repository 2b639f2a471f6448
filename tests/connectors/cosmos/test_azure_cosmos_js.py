"""@azure/cosmos, of another house and another language, on the wire server."""

from __future__ import annotations

from plugins_cosmos import Cosmos
from plugins_node import run_script

DOCUMENTS = 40


def test_documents_queries_and_batches(cosmos: Cosmos) -> None:
    assert run_script("cosmos_documents.mjs", cosmos.endpoint, cosmos.key) == {
        "stale": 412,
        "exists": 409,
        "patched": 34,
        "gone": 404,
        "batch": [201, 201],
        "broken": [424, 409],
        "bulk": [201, 204],
        "ranges": 4,
        "prefixed": 11,
        "ordered": [{"id": "d4"}, {"id": "d3"}, {"id": "d19"}, {"id": "d18"}, {"id": "d17"}],
        "counted": [21],
        "one": [7],
        "listed": 21,
        "wrongKey": 401,
    }


def test_the_change_feed_in_both_modes_through_splits_and_a_merge(cosmos: Cosmos) -> None:
    seen = run_script("cosmos_feed.mjs", cosmos.endpoint, cosmos.key, cosmos.control.url)
    assert sum(len(lsns) for lsns in seen["byRange"]) == DOCUMENTS
    assert all(lsns == list(range(1, len(lsns) + 1)) for lsns in seen["byRange"])
    assert sorted(seen["whole"]) == sorted(f"d{n}" for n in range(DOCUMENTS))
    assert seen["later"] == [["d1", 3]]
    assert seen["now"] == 0
    assert seen["full"] == [["create", 1, None], ["replace", 2, 1], ["delete", None, 2]]
    assert [one.id for one in cosmos.control.ranges("tx")] == ["8", "1", "6", "7", "3"]


def test_https_with_the_authority_that_the_server_names(cosmos: Cosmos) -> None:
    seen = run_script("cosmos_documents.mjs", cosmos.https, cosmos.key, NODE_EXTRA_CA_CERTS=cosmos.ca)
    assert seen["counted"] == [21]
