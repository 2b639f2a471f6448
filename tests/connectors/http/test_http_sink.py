"""The sink `http` against an endpoint of another process: the contract, its requests, its answers, TLS and secrets."""

from __future__ import annotations

import asyncio
import gzip
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from patience import PATIENCE_S, until_async
from plugins_node import free_port
from plugins_servers import served
from unit.pipeline.destinations import Trusted
from writers import delivered, writing

from leasehold.pipeline.async_sink import Limits
from leasehold.pipeline.async_sink.rate_limiter import RateLimiter
from leasehold.pipeline.async_sink.writer import AsyncWriter
from leasehold.pipeline.connectors.http import ANSWER_BYTES_MAX, HttpDestination, http_sink
from leasehold.pipeline.contract import Row, SinkContract, SinkHarness, body, event_table
from leasehold.pipeline.errors import SinkError, SinkRejected
from leasehold.pipeline.sink import Output
from leasehold.pipeline.tracing import TraceContext

QUICK = Limits(buffer_age_max_s=0.01, request_timeout_s=5.0)


def opened(url: str, **given: Any) -> AbstractAsyncContextManager[AsyncWriter]:
    return writing(http_sink(url, **{"limits": QUICK, **given}))


def rows(*numbers: int) -> Output:
    table = pa.table({"sequence": list(numbers), "account": [f"a{number % 3}" for number in numbers]})
    return Output(table=table, start=None, to=str(numbers[-1]), events=len(numbers))


class HttpHarness(SinkHarness):
    def __init__(self, endpoint: Any, stack: AsyncExitStack) -> None:
        self.partitions = ("a", "b")
        self._endpoint = endpoint
        self._stack = stack

    async def sink(self) -> Any:
        sink = http_sink(f"{self._endpoint.url}/entries?items=1", results="items", order_by="key", limits=QUICK)
        await sink.prepare()
        self._stack.push_async_callback(sink.close)
        return sink

    async def rows(self, partition: str) -> list[Row]:
        return [Row(entry["sequence"]) for entry in self._endpoint.entries if entry["partition"] == partition]


class TestHttpSink(SinkContract):
    @pytest.fixture
    async def harness(self, endpoint: Any) -> AsyncIterator[SinkHarness]:
        async with AsyncExitStack() as stack:
            yield HttpHarness(endpoint, stack)


@pytest.mark.parametrize(("format", "path"), [("json", "/entries"), ("lines", "/lines")])
async def test_entries_are_posted_as_json_with_their_keys(endpoint: Any, format: Any, path: str) -> None:
    async with opened(endpoint.url + path, format=format, key_field="id", headers={"X-Team": "bank"}) as writer:
        await delivered(writer, rows(1, 2))
    assert endpoint.entries == [
        {"sequence": 1, "account": "a1", "id": "bank/7/1/0"},
        {"sequence": 2, "account": "a2", "id": "bank/7/2/0"},
    ]
    headers = endpoint.requests[0]["headers"]
    assert headers["Content-Type"] == {"json": "application/json", "lines": "application/x-ndjson"}[format]
    assert headers["X-Team"] == "bank"


async def test_a_column_that_the_key_field_would_replace_is_refused_at_the_start_and_in_a_batch(endpoint: Any) -> None:
    sink = http_sink(f"{endpoint.url}/entries", key_field="account")
    with pytest.raises(SinkRejected, match="'account', which `key_field` would replace"):
        await sink.check_columns(rows(1).table.schema)
    await sink.close()
    async with opened(f"{endpoint.url}/entries", key_field="account") as writer:
        with pytest.raises(SinkRejected, match="'account', which `key_field` would replace"):
            await delivered(writer, rows(1))
    assert endpoint.entries == []


async def test_a_request_bears_the_context_of_its_first_entry_s_batch(endpoint: Any) -> None:
    first, second = TraceContext(f"00-{7:032x}-{1:016x}-01", "k=v"), TraceContext(f"00-{8:032x}-{1:016x}-01")
    async with opened(f"{endpoint.url}/entries") as writer:
        for trace, number in ((first, 1), (second, 2), (None, 3)):
            await delivered(writer, replace(rows(number), trace=trace))
    headers = [request["headers"] for request in endpoint.requests]
    assert [each.get("traceparent") for each in headers] == [first.parent, second.parent, None]
    assert [each.get("tracestate") for each in headers] == ["k=v", None, None]


async def test_headers_of_the_settings_count_more_than_a_trace(endpoint: Any) -> None:
    async with opened(f"{endpoint.url}/entries", headers={"traceparent": "own"}) as writer:
        await delivered(writer, replace(rows(1), trace=TraceContext(f"00-{7:032x}-{1:016x}-01")))
    assert endpoint.requests[0]["headers"]["traceparent"] == "own"


async def test_bodies_are_posted_as_they_are(endpoint: Any) -> None:
    async with opened(f"{endpoint.url}/lines", format="lines", content="body") as writer:
        await delivered(writer, Output(table=event_table("7", [1, 2]), start=None, to="2", events=2))
        assert endpoint.requests[0]["bytes"] == sum(len(body(n)) + 1 for n in (1, 2))
        with pytest.raises(SinkRejected, match="row bank/7/0/0, which has a `body` that is not JSON"):
            await writer.write(
                Output(table=pa.table({"sequence": [0], "body": [b"{"]}), start="2", to="3", events=1), Trusted()
            )


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
async def test_what_may_succeed_later_is_sent_again(endpoint: Any, status: int) -> None:
    endpoint.answers({"status": status}, {"status": status})
    async with opened(f"{endpoint.url}/entries") as writer:
        await delivered(writer, rows(1, 2, 3))
    assert [entry["sequence"] for entry in endpoint.entries] == [1, 2, 3]
    keys = {request["headers"]["Idempotency-Key"] for request in endpoint.requests}
    assert (len(endpoint.requests), len(keys)) == (3, 1)


@pytest.mark.parametrize("status", [301, 400, 401, 403, 404, 405, 409, 413, 415, 422, 501])
async def test_what_will_be_refused_again_is_fatal_and_said(endpoint: Any, status: int) -> None:
    endpoint.answers({"status": status, "body": "no such\nthing"})
    async with opened(f"{endpoint.url}/entries") as writer:
        with pytest.raises(
            SinkRejected, match=rf"/entries answers {status} to entry bank/7/1/0 \(no such thing\): [`\w]"
        ):
            await delivered(writer, rows(1))
    assert len(endpoint.requests) == 1


async def test_retry_after_is_kept_to(endpoint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """For as long as it says, nothing is sent: a limiter on virtual time shows that."""
    endpoint.answers({"status": 429, "headers": {"Retry-After": "2"}})
    asked = []
    failed = RateLimiter.failed

    def noted(self: RateLimiter, **given: Any) -> RateLimiter:
        asked.append(given["retry_after_s"])
        return failed(self, **given)

    monkeypatch.setattr(RateLimiter, "failed", noted)
    async with opened(f"{endpoint.url}/entries") as writer:
        await delivered(writer, rows(1))
    assert asked == [2]


async def test_only_the_items_that_failed_are_sent_again(endpoint: Any) -> None:
    endpoint.answers({"status": 207, "body": '{"items": [{"status": 201}, {"status": 503}, {"status": 200}]}'})
    async with opened(f"{endpoint.url}/entries?items=1", results="items") as writer:
        await delivered(writer, rows(1, 2, 3))
    assert [entry["sequence"] for entry in endpoint.entries] == [2]


async def test_an_item_that_is_refused_is_named(endpoint: Any) -> None:
    endpoint.answers({"status": 200, "body": "[201, 422, 429]"})
    async with opened(f"{endpoint.url}/entries?items=1", results="items") as writer:
        with pytest.raises(SinkRejected, match=r"refuses 1 of 3 entries, the first of them bank/7/2/0 with 422"):
            await delivered(writer, rows(1, 2, 3))
        assert writer.position is None


@asynccontextmanager
async def answering(body: bytes, **headers: str) -> AsyncIterator[str]:
    """The address of an endpoint that answers every request so, in the very bytes."""
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    head = "\r\n".join(["HTTP/1.1 200 OK", f"Content-Length: {len(body)}", *lines, "", ""])

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(head.encode() + body)
            await writer.drain()
            await reader.read()  # whoever asked hangs up
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        yield f"http://{host}:{port}"


async def test_an_answer_is_never_inflated_to_more_than_is_read_of_one() -> None:
    bomb = gzip.compress(bytes(256 * 1024 * 1024))
    async with answering(bomb, Content_Encoding="gzip") as url:
        destination = HttpDestination(url, headers={}, format="json", results="whole")
        await destination.prepare()
        tracemalloc.start()
        answer = await destination._post(b"[]", "key")
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        await destination.close()
    assert (answer.status, len(answer.body)) == (200, ANSWER_BYTES_MAX)
    assert most < 4 * ANSWER_BYTES_MAX


@pytest.mark.parametrize(
    ("body", "encoding"),
    [
        pytest.param(gzip.compress(b"[201, 201]"), "gzip", id="as it was asked for"),
        pytest.param(gzip.compress(b"[201, 201]"), "GZIP", id="in capitals"),
        pytest.param(b"[201, 201]", "identity", id="not at all"),
    ],
)
async def test_results_may_be_compressed(body: bytes, encoding: str) -> None:
    async with answering(body, Content_Encoding=encoding) as url, opened(url, results="items") as writer:
        await delivered(writer, rows(1, 2))
        assert writer.position == "2"


@pytest.mark.parametrize("encoding", ["gzip", "br", "gzip, gzip"])
async def test_results_that_cannot_be_read_are_fatal_where_they_count(encoding: str) -> None:
    async with answering(b"[201, 201]", Content_Encoding=encoding) as url:
        async with opened(url) as writer:
            await delivered(writer, rows(1, 2))
        async with opened(url, results="items") as writer:
            with pytest.raises(SinkRejected, match="does not answer with results"):
                await delivered(writer, rows(1, 2))


async def test_only_compression_that_is_understood_is_asked_for(endpoint: Any) -> None:
    async with opened(f"{endpoint.url}/entries") as writer:
        await delivered(writer, rows(1))
    assert endpoint.requests[0]["headers"]["Accept-Encoding"] == "gzip"


async def test_most_of_it_throttled_and_items_failing_all_arrives(endpoint: Any) -> None:
    endpoint.order("trouble", throttle=0.8, items=0.2)
    limits = replace(QUICK, batch_entries_max=50, buffered_entries_max=200)
    async with opened(f"{endpoint.url}/entries?items=1", results="items", limits=limits) as writer:
        write = asyncio.create_task(delivered(writer, rows(*range(1, 201))))
        await until_async(lambda: len(endpoint.requests) >= 12)
        endpoint.order("trouble")
        await write
    assert sorted(entry["sequence"] for entry in endpoint.entries) == list(range(1, 201))


async def test_rows_of_one_key_share_requests_in_their_order(endpoint: Any) -> None:
    endpoint.answers({"status": 200}, {"status": 503}, {"status": 200, "stall": 600})
    limits = replace(QUICK, request_timeout_s=3)
    async with opened(f"{endpoint.url}/entries", order_by="account", limits=limits) as writer:
        await delivered(writer, rows(*range(0, 3000, 3)))
    assert [entry["sequence"] for entry in endpoint.entries] == list(
        range(300, 3000, 3)
    )  # 100 went with the first answer
    assert len(endpoint.requests) < 40


async def test_where_each_item_has_its_result_a_request_has_one_row_of_a_key(endpoint: Any) -> None:
    """One that is refused for now would otherwise arrive behind the next one, which was taken."""
    endpoint.order("trouble", items=0.3)
    async with opened(f"{endpoint.url}/entries?items=1", results="items", order_by="account") as writer:
        await delivered(writer, rows(*range(60)))
    for account in range(3):
        arrived = [entry["sequence"] for entry in endpoint.entries if entry["sequence"] % 3 == account]
        assert arrived == list(range(account, 60, 3))


async def test_an_answer_that_does_not_come_is_waited_for_no_longer_than_said(endpoint: Any) -> None:
    endpoint.answers({"stall": 10 * PATIENCE_S, "status": 200})
    limits = replace(QUICK, request_timeout_s=4)
    async with opened(f"{endpoint.url}/entries", limits=limits) as writer:
        await delivered(writer, rows(1))
    assert len(endpoint.requests) == 2


async def test_an_endpoint_that_is_killed_gets_the_rest_once_it_is_back() -> None:
    port = free_port()
    async with opened(f"http://127.0.0.1:{port}/entries") as writer:
        with served("lab.servers.endpoint", "--port", str(port)) as (_, process):
            await delivered(writer, rows(1, 2))
            process.kill()
            process.wait()
        write = asyncio.create_task(delivered(writer, rows(3, 4)))
        await until_async(lambda: writer._desk.limiter.failures >= 2)
        with served("lab.servers.endpoint", "--port", str(port)):
            await write
        assert writer.position == "4"


async def test_certificates_are_verified(endpoint: Any) -> None:
    async with opened(f"{endpoint.https}/entries", ca_file=Path(endpoint.ca)) as writer:
        await delivered(writer, rows(1))
    assert len(endpoint.entries) == 1
    async with opened(f"{endpoint.https}/entries") as writer:
        with pytest.raises(SinkRejected, match=r"certificate that is not trusted.*ca_file"):
            await delivered(writer, rows(2))
    assert len(endpoint.entries) == 1


@pytest.mark.parametrize("status", [400, 503])
async def test_no_message_holds_a_secret(endpoint: Any, status: int, caplog: pytest.LogCaptureFixture) -> None:
    told = []
    said = "you sent Bearer Secret-1, that is Secret-1, to ?code=Secret%202&sig=Secret-3, that is Secret 2"
    endpoint.answers({"status": status, "body": said}, {"status": 400, "body": "Secret-1"})
    url = f"{endpoint.url}/entries?code=Secret%202&sig=Secret-3"
    async with opened(url, headers={"Authorization": "Bearer Secret-1"}) as writer:
        with pytest.raises(SinkError) as caught:
            await delivered(writer, rows(1))
        told.append(str(caught.value))
    assert "***" in told[0]
    assert not [text for text in (*told, caplog.text, http_sink(url).identity) if "Secret" in text]


@pytest.mark.parametrize("url", ["ftp://a/b", "https://", "https://user:secret@a/b", "a/b", "http://a:99999/"])
def test_an_address_that_cannot_be_meant_is_refused_without_being_told(url: str) -> None:
    with pytest.raises(ValueError, match="must be an address like") as caught:
        http_sink(url)
    assert "secret" not in str(caught.value)
