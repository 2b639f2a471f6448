"""What no well-behaved client asks, or only in a race: the answers to it, without a socket."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import pytest

from leasehold_emulators.cosmos import auth
from leasehold_emulators.cosmos.account import Account
from leasehold_emulators.cosmos.answers import answer
from leasehold_emulators.cosmos.call import Call, Reply
from leasehold_emulators.cosmos.faults import Faults
from leasehold_emulators.cosmos.refused import Refused

KEY = "a2V5"
DOCS = "dbs/bank/colls/tx/docs"


def call(method: str, path: str, body: Any = None, **headers: str) -> Call:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    content = b"" if body is None else json.dumps(body).encode()
    return Call(method=method, path=tuple(path.split("/")), headers=named, body=content, endpoint="http://here/")


class Here:
    """An account with one container of two ranges; `ask` answers as if over the wire."""

    def __init__(self) -> None:
        self.account = Account(ranges=2)
        self.ask("POST", "dbs", {"id": "bank"})
        key = {"paths": ["/account"], "kind": "Hash", "version": 2}
        self.ask("POST", "dbs/bank/colls", {"id": "tx", "partitionKey": key})

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Reply:
        return answer(self.account, call(method, path, body, **headers), 1000.0)

    def refused(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, int]:
        with pytest.raises(Refused) as caught:
            self.ask(method, path, body, **headers)
        return caught.value.status, caught.value.substatus


@pytest.fixture
def here() -> Here:
    return Here()


def feed(**headers: str) -> dict[str, str]:
    return {"a_im": "Incremental Feed", **headers}


def test_a_document_goes_nowhere_but_to_its_own_partition(here: Here) -> None:
    key = {"x_ms_documentdb_partitionkey": '["b"]'}
    assert here.refused("POST", DOCS, {"id": "1", "account": "a"}, **key) == (400, 1001)
    assert here.refused("POST", DOCS, {"id": "a/b", "account": "b"}, **key) == (400, 0)


def test_documents_of_a_container_that_is_not_there_have_no_owner(here: Here) -> None:
    assert here.refused("GET", "dbs/bank/colls/gone/docs") == (404, 1003)
    assert here.refused("GET", "dbs/bank/colls/gone") == (404, 0)
    assert here.refused("GET", DOCS, x_ms_cosmos_intended_collection_rid="other") == (400, 1024)


def test_names_and_resource_ids_lead_to_the_same(here: Here) -> None:
    made = here.ask("POST", DOCS, {"id": "1", "account": "a"}, x_ms_documentdb_partitionkey='["a"]').content
    _, database, _, container, _, document, _ = made["_self"].split("/")
    path = f"dbs/{database}/colls/{container}/docs/{document}"
    assert here.ask("GET", path, x_ms_documentdb_partitionkey='["a"]').content == made


def test_a_feed_is_asked_of_one_range(here: Here) -> None:
    assert here.refused("GET", DOCS, **feed()) == (400, 0)
    wide = feed(x_ms_documentdb_partitionkeyrangeid="0", x_ms_start_epk="", x_ms_end_epk="FF")
    assert here.refused("GET", DOCS, **wide) == (410, 1002)
    assert here.refused("GET", DOCS, **feed(x_ms_documentdb_partitionkeyrangeid="7")) == (410, 1002)


def test_a_feed_of_all_versions_has_no_beginning(here: Here) -> None:
    full = {"a_im": "Full-Fidelity Feed", "x_ms_documentdb_partitionkeyrangeid": "0"}
    assert here.refused("GET", DOCS, **full) == (400, 0)
    reply = here.ask("GET", DOCS, **full, if_none_match="*")
    assert (reply.status, reply.headers["etag"]) == (304, '"0"')


def test_a_time_is_answered_with_a_continuation_first(here: Here) -> None:
    here.ask("POST", DOCS, {"id": "1", "account": "a"}, x_ms_documentdb_partitionkey='["a"]')
    range_id = next(p.range.id for p in here.account.container("bank", "tx").partitions.values() if p.lsn)
    since = feed(x_ms_documentdb_partitionkeyrangeid=range_id, if_modified_since="Thu, 01 Jan 1970 00:16:39 GMT")
    first = here.ask("GET", DOCS, **since)
    assert (first.status, first.headers["etag"]) == (304, '"0"')
    assert here.ask("GET", DOCS, **since, if_none_match='"0"').documents == 1


def test_a_session_that_has_seen_more_than_there_is_is_not_available(here: Here) -> None:
    ahead = feed(x_ms_documentdb_partitionkeyrangeid="0", x_ms_session_token="0:0#5#1=-1")
    assert here.refused("GET", DOCS, **ahead) == (404, 1002)


def test_ranges_have_a_feed_of_their_own(here: Here) -> None:
    path = "dbs/bank/colls/tx/pkranges"
    first = here.ask("GET", path)
    assert [one["id"] for one in first.content["PartitionKeyRanges"]] == ["0", "1"]
    assert here.ask("GET", path, if_none_match=first.headers["etag"]).status == 304
    here.account.container("bank", "tx").split("0")
    new = here.ask("GET", path, if_none_match=first.headers["etag"]).content["PartitionKeyRanges"]
    assert [(one["id"], one["parents"]) for one in new] == [("2", ["0"]), ("3", ["0"])]


def test_a_query_over_ranges_that_has_to_be_put_together_asks_for_a_plan(here: Here) -> None:
    query = {"query": "SELECT * FROM c ORDER BY c.id"}
    head = {"x_ms_documentdb_isquery": "True", "x_ms_documentdb_query_enablecrosspartition": "True"}
    assert here.refused("POST", DOCS, query, **head) == (400, 1004)
    assert here.refused("POST", DOCS, {"query": "SELECT * FROM c"}, x_ms_documentdb_isquery="True") == (400, 0)


def test_a_query_that_has_to_be_put_together_asks_for_a_plan_even_over_one_range(here: Here) -> None:
    here.account.ranges = 1
    here.ask(
        "POST", "dbs/bank/colls", {"id": "one", "partitionKey": {"paths": ["/account"], "kind": "Hash", "version": 2}}
    )
    query = {"query": "SELECT * FROM c ORDER BY c.id"}
    head = {"x_ms_documentdb_isquery": "True", "x_ms_documentdb_query_enablecrosspartition": "True"}
    docs = "dbs/bank/colls/one/docs"
    assert here.refused("POST", docs, query, **head) == (400, 1004)
    assert here.ask("POST", docs, query, **head, x_ms_documentdb_partitionkeyrangeid="0").status == 200
    assert here.ask("POST", docs, query, **head, x_ms_documentdb_partitionkey='["a"]').status == 200


def test_a_document_needs_all_values_of_a_hierarchical_key(here: Here) -> None:
    paths = ["/tenant", "/account"]
    here.ask(
        "POST", "dbs/bank/colls", {"id": "deep", "partitionKey": {"paths": paths, "kind": "MultiHash", "version": 2}}
    )
    docs = "dbs/bank/colls/deep/docs"
    body = {"id": "1", "tenant": "t", "account": "a"}
    assert here.ask("POST", docs, body, x_ms_documentdb_partitionkey='["t", "a"]').status == 201
    for part in ('["t"]', "[]"):
        assert here.refused("GET", f"{docs}/1", x_ms_documentdb_partitionkey=part) == (400, 1001)
    operations = [{"operationType": "Read", "id": "1", "partitionKey": '["t"]'}]
    batch = {"x_ms_cosmos_is_batch_request": "True", "x_ms_documentdb_partitionkey": '["t"]'}
    assert here.refused("POST", docs, operations, **batch, x_ms_documentdb_partitionkeyrangeid="0") == (400, 1001)
    query = {"query": "SELECT * FROM c"}
    head = {"x_ms_documentdb_isquery": "True", "x_ms_documentdb_query_enablecrosspartition": "True"}
    assert here.refused("POST", docs, query, **head, x_ms_documentdb_partitionkey="[]") == (400, 0)
    assert here.ask("POST", docs, query, **head, x_ms_documentdb_partitionkey='["t"]').status == 200


def test_a_hierarchical_key_has_three_levels_at_most(here: Here) -> None:
    made = {"id": "deep", "partitionKey": {"paths": ["/a", "/b", "/c", "/d"], "kind": "MultiHash", "version": 2}}
    assert here.refused("POST", "dbs/bank/colls", made) == (400, 0)


def test_a_partition_key_that_is_an_object_is_undefined(here: Here) -> None:
    key = {"x_ms_documentdb_partitionkey": "[{}]"}
    assert here.ask("POST", DOCS, {"id": "1", "account": {"deep": 1}}, **key).status == 201
    assert here.ask("GET", f"{DOCS}/1", **key).content["account"] == {"deep": 1}


def test_a_quoted_path_may_contain_slashes(here: Here) -> None:
    here.ask(
        "POST", "dbs/bank/colls", {"id": "q", "partitionKey": {"paths": ['/"le/vel"/x'], "kind": "Hash", "version": 2}}
    )
    body = {"id": "1", "le/vel": {"x": "a"}}
    assert here.ask("POST", "dbs/bank/colls/q/docs", body, x_ms_documentdb_partitionkey='["a"]').status == 201


def signed(date: datetime, key: str = KEY) -> Call:
    text = date.strftime("%a, %d %b %Y %H:%M:%S GMT")
    plain = call("GET", "dbs/bank", x_ms_date=text)
    signature = auth.signature(plain, "dbs/bank", text, key)
    return call("GET", "dbs/bank", x_ms_date=text, authorization=quote(f"type=master&ver=1.0&sig={signature}", safe=""))


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        (signed(datetime(2026, 3, 4, 12, tzinfo=UTC), "d3Jvbmc="), 401),
        (signed(datetime(2026, 3, 4, 13, tzinfo=UTC)), 403),
        (call("GET", "dbs/bank"), 401),
        (call("GET", "dbs/bank", authorization=quote("type=aad&ver=1.0&sig=other")), 401),
    ],
)
def test_who_has_no_key_or_a_wrong_time_is_refused(asked: Call, status: int) -> None:
    now = datetime(2026, 3, 4, 12, 10, tzinfo=UTC)
    auth.check(signed(datetime(2026, 3, 4, 12, tzinfo=UTC)), KEY, "token", now)
    auth.check(call("GET", "dbs/bank", authorization=quote("type=aad&ver=1.0&sig=token")), KEY, "token", now)
    with pytest.raises(Refused) as caught:
        auth.check(asked, KEY, "token", now)
    assert caught.value.status == status


def test_a_fault_takes_the_requests_that_it_names_as_often_as_it_says() -> None:
    faults = Faults()
    faults.add(do="throttle", of="document.*", container="tx", after=1, times=2)
    read = call("GET", f"{DOCS}/1")
    assert faults.taking(call("GET", "dbs/bank/colls/other/docs/1"), None) is None
    assert faults.taking(call("GET", DOCS), None) is None
    assert [faults.taking(read, None) is not None for _ in range(4)] == [False, True, True, False]


def test_a_share_of_requests_is_the_same_in_every_run() -> None:
    def taken() -> list[bool]:
        faults = Faults()
        faults.add(do="cut", range_id="1", share=0.3)
        return [faults.taking(call("GET", DOCS), "1") is not None for _ in range(200)]

    assert taken() == taken()
    assert 30 < sum(taken()) < 90
