"""Positions, page sizes, pauses, requests and accounts of the Cosmos feed, each by itself."""

from __future__ import annotations

import base64
import random
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from leasehold.common.azure import cosmos_account_of
from leasehold.common.clock import Patience
from leasehold.pipeline.connectors.cosmos import CosmosChangeFeed, Pauses
from leasehold.pipeline.connectors.cosmos.change_feed_request import Ask, FeedAnswer, refusal
from leasehold.pipeline.connectors.cosmos.page_size import GROWS_AFTER, PageSize
from leasehold.pipeline.connectors.cosmos.ranges import (
    KeyRange,
    PhysicalRange,
    RangeSection,
    estimated,
    lsn_of,
    position_behind,
    session_lsn,
)
from leasehold.pipeline.errors import FeedError, FeedUnavailable, PositionLost

KEY = "c2VjcmV0"


# Positions


def test_a_position_is_the_etag_with_its_quotes() -> None:
    assert (lsn_of(None), lsn_of('"0"'), lsn_of('"1234"')) == (0, 0, 1234)
    assert lsn_of(position_behind(77)) == 77


@pytest.mark.parametrize(
    "text", ["", "12", '"', '""', '"-1"', '"1', '"' + "9" * 19 + '"', 'W/"1"', '"\u0661"', '"1"\n', "eJWIjoxfQ=="]
)
def test_what_is_no_etag_of_the_change_feed_is_refused(text: str) -> None:
    with pytest.raises(PositionLost, match="set a new one for the lease"):
        lsn_of(text)


@pytest.mark.parametrize(
    ("token", "lsn"), [("0:0#12#1=-1", 12), ("3:-1#7", 7), ("0:99", 99), ("", None), ("0:x#y", None), ("0:", None)]
)
def test_a_session_token_tells_how_far_the_range_has_come(token: str, lsn: int | None) -> None:
    assert session_lsn(token) == lsn


@pytest.mark.parametrize(("session", "first", "lag"), [(10, 10, 1), (10, 3, 8), (2, 3, 1), (None, 3, 1)])
def test_lag_counts_from_the_first_unread_transaction_and_is_never_0_where_there_is_one(
    session: int | None, first: int, lag: int
) -> None:
    assert estimated(session, first) == lag


# Page sizes


def test_a_page_is_halved_each_time_and_never_below_one_item() -> None:
    size = PageSize.of(5)
    assert [(size := size.shrunk()).items for _ in range(4)] == [2, 1, 1, 1]


def test_a_page_grows_again_once_some_came_in_time_and_never_beyond_its_limit() -> None:
    size = PageSize.of(5).shrunk().shrunk()
    found = [(size := size.served()).items for _ in range(4 * GROWS_AFTER)]
    assert found[GROWS_AFTER - 2 : GROWS_AFTER] == [1, 2]
    assert found[-1] == 5
    assert sorted(found) == found


def test_one_page_that_is_late_begins_the_count_anew() -> None:
    size = PageSize.of(8).shrunk()
    for _ in range(GROWS_AFTER - 1):
        size = size.served()
    assert size.shrunk().served().items == 2


# Pauses


class Sleeper:
    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def pauses(self, **more: Any) -> Pauses:
        return Pauses(rng=random.Random(1), sleep=self.sleep, monotonic=lambda: self.now, **more)


def test_a_continuation_of_java_is_named_as_such_with_the_command_that_unpacks_it() -> None:
    packed = base64.b64encode(b'{"V":1,"Rid":"q0oIALS6YvQ="}').decode()
    with pytest.raises(PositionLost, match=r"Java's .* leases import FILE --pipeline NAME --from java"):
        lsn_of(packed)


async def test_pauses_grow_with_jitter_up_to_the_longest() -> None:
    sleeper = Sleeper()
    patience = Patience(sleeper.pauses(first_s=1, longest_s=8, patience_s=1000))
    for _ in range(6):
        await patience.pause(FeedUnavailable("away"))
    assert all(limit / 2 <= pause <= limit for pause, limit in zip(sleeper.slept, (1, 2, 4, 8, 8, 8), strict=True))
    assert len(set(sleeper.slept)) == 6


async def test_a_throttled_reader_pauses_no_longer_than_one_that_polls_or_than_it_is_asked_to() -> None:
    sleeper = Sleeper()
    patience = Patience(sleeper.pauses(patience_s=1000))
    for asked_s in (*(0.05, 0.0) * 4, 4.0):
        await patience.pause(FeedUnavailable("throttled", retry_after_s=asked_s))
    assert all(0.5 <= pause <= 1 for pause in sleeper.slept[4:8])
    assert 4 <= sleeper.slept[8] <= 4.4


async def test_patience_ends_with_the_error_and_begins_anew_after_a_success() -> None:
    sleeper = Sleeper()
    patience = Patience(sleeper.pauses(first_s=1, longest_s=1, patience_s=4))
    for _ in range(10):
        patience.served()
        await patience.pause(FeedUnavailable("away"))
    last = FeedUnavailable("away for good")
    for _ in range(3):
        await patience.pause(FeedUnavailable("away"))
    sleeper.now += 3
    with pytest.raises(FeedUnavailable, match="for good"):
        await patience.pause(last)


async def test_an_account_that_asks_for_more_than_patience_is_told_at_once() -> None:
    sleeper = Sleeper()
    with pytest.raises(FeedUnavailable):
        await Patience(sleeper.pauses(patience_s=30)).pause(FeedUnavailable("throttled", retry_after_s=60))
    assert sleeper.slept == []


# Requests and answers


def ask(**more: Any) -> Ask:
    return Ask(**{"place": RangeSection("0"), "after": None, "items_max": 1, "mode": "latest", **more})


def test_a_request_says_where_from_where_and_what() -> None:
    assert ask().headers() == {"A-IM": "Incremental Feed", "x-ms-documentdb-partitionkeyrangeid": "0"}
    assert ask(after='"7"').headers()["If-None-Match"] == '"7"'
    full = ask(mode="all_versions", place=RangeSection("3", KeyRange("", "7F"))).headers()
    assert full == {
        "A-IM": "Full-Fidelity Feed",
        "x-ms-cosmos-changefeed-wire-format-version": "2021-09-15",
        "x-ms-documentdb-partitionkeyrangeid": "3",
        "x-ms-read-key-type": "EffectivePartitionKeyRange",
        "x-ms-start-epk": "",
        "x-ms-end-epk": "7F",
    }


@pytest.mark.parametrize(
    ("time", "header"),
    [
        (datetime(2026, 1, 31, 12, tzinfo=UTC), "Sat, 31 Jan 2026 11:59:59 GMT"),
        (datetime(2026, 1, 31, 12, 0, 0, 1, tzinfo=UTC), "Sat, 31 Jan 2026 12:00:00 GMT"),
        (datetime(2026, 1, 31, 12, tzinfo=timezone(timedelta(hours=2))), "Sat, 31 Jan 2026 09:59:59 GMT"),
        (datetime(1970, 1, 1, tzinfo=UTC), "Thu, 01 Jan 1970 00:00:00 GMT"),
    ],
)
def test_a_time_is_asked_for_so_that_its_own_second_is_told(time: datetime, header: str) -> None:
    """The header's second itself is left out by the service."""
    assert ask(since=time).headers()["If-Modified-Since"] == header


@pytest.mark.parametrize(
    ("status", "substatus", "kind", "says"),
    [
        (429, 3200, FeedUnavailable, "too many requests"),
        (408, 0, FeedUnavailable, "no answer in time"),
        (410, 1007, FeedUnavailable, "410/1007"),
        (449, 0, FeedUnavailable, "449"),
        (503, 0, FeedUnavailable, "503"),
        (400, 1024, PositionLost, "deleted and created again"),
        (400, 0, FeedError, "set the lease to a continuation that it takes"),
        (401, 0, FeedError, "check the key or the identity"),
        (403, 5300, FeedError, "Cosmos DB Built-in Data Reader"),
        (404, 0, FeedError, "check `database` and `container`"),
    ],
)
def test_a_refusal_says_what_to_do_next(status: int, substatus: int, kind: type[FeedError], says: str) -> None:
    headers = {"x-ms-substatus": str(substatus), "x-ms-retry-after-ms": "1500"}
    error = refusal(FeedAnswer(status, headers, b'{"code":"X","message":"it\\nis so"}'), "container c")
    assert type(error) is kind
    assert says in str(error)
    assert len(str(error).splitlines()) == 1
    assert not isinstance(error, FeedUnavailable) or error.retry_after_s == 1.5


@pytest.mark.parametrize("body", [b"", b"\xff\xfe", b"[" * 100_000, b"x" * 10_000, b'{"message":{"a":1}}'])
def test_what_an_account_says_is_cut_to_a_line(body: bytes) -> None:
    assert 0 < len(FeedAnswer(400, {"x-ms-retry-after-ms": "soon", "x-ms-substatus": "x"}, body).message) <= 300


# Where a time begins


@pytest.mark.parametrize(
    ("answers", "start"),
    [
        (FeedAnswer(304, {"etag": '"7"'}), '"7"'),
        (FeedAnswer(200, {"etag": '"12"'}, b'{"Documents":[{"id":"a","_lsn":9,"_ts":1}]}'), '"8"'),
        (FeedAnswer(200, {"etag": '"12"'}, b'{"Documents":[]}'), '"12"'),
    ],
)
async def test_a_time_begins_before_the_first_document_whether_that_comes_at_once_or_not(
    answers: FeedAnswer, start: str
) -> None:
    """The service answers 304 and where to begin; another account may send the first documents with its first answer."""

    class Container:
        name = "a/b/c"

        async def read_changes(self, ask: Ask) -> FeedAnswer:
            assert ask.since is not None
            return answers

        async def list_ranges(self) -> list[PhysicalRange]:
            return [PhysicalRange("0", KeyRange("", "FF"))]

        async def read_key_paths(self) -> tuple[str, ...]:
            return ("/id",)

        async def close(self) -> None:
            """Nothing is held."""

    feed = CosmosChangeFeed(cosmos_account_of(endpoint="https://a", key=KEY), "b", "c")
    feed._container = Container()  # type: ignore[assignment]
    feed._where._ranges = feed._container.list_ranges
    assert await feed.start_of("0", datetime(2026, 1, 31, tzinfo=UTC)) == start
    await feed.close()


# Accounts


def test_an_account_is_told_apart_without_its_secret() -> None:
    account = cosmos_account_of(endpoint="https://bank.documents.azure.com:443/", key=KEY)
    assert account.host == "bank.documents.azure.com"
    assert cosmos_account_of(endpoint="http://127.0.0.1:8081", key=KEY).host == "127.0.0.1:8081"
    assert KEY not in repr(account)


def test_a_connection_string_is_an_endpoint_and_a_key() -> None:
    text = f"AccountEndpoint=https://bank.documents.azure.com:443/; AccountKey={KEY}==;"
    assert cosmos_account_of(connection_string=text.replace("==", "")) == cosmos_account_of(
        endpoint="https://bank.documents.azure.com:443/", key=KEY
    )


def test_an_identity_is_the_default_one_or_a_client_id() -> None:
    assert cosmos_account_of(endpoint="https://a", identity="default").identity is None
    assert cosmos_account_of(endpoint="https://a", identity="11-22").identity == "11-22"


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({}, "needs `endpoint`"),
        ({"endpoint": "https://a"}, "either `key` or `identity`"),
        ({"endpoint": "https://a", "key": KEY, "identity": "default"}, "either `key` or `identity`"),
        ({"endpoint": "a.documents.azure.com", "key": KEY}, "must be an address"),
        ({"endpoint": f"https://me:{KEY}@a", "key": KEY}, "must be an address"),
        ({"endpoint": "https://a", "key": "not base64!"}, "as the portal shows it"),
        ({"connection_string": f"AccountKey={KEY}"}, "must look like"),
        ({"connection_string": "x", "endpoint": "https://a"}, "contains everything"),
    ],
)
def test_a_wrong_account_is_told_without_its_secret(fields: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        cosmos_account_of(**fields)
    assert KEY not in str(caught.value)
    assert "not base64!" not in str(caught.value)
