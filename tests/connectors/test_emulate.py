"""`leasehold emulate` as users run it: third-party clients work with it, and continue after it was killed and started again."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from azure.core.exceptions import AzureError
from azure.cosmos import CosmosClient
from azure.cosmos.exceptions import CosmosHttpResponseError
from azure.eventhub import EventData, EventHubConsumerClient, EventHubProducerClient
from azure.eventhub.exceptions import EventHubError
from azure.storage.blob import BlobServiceClient
from patience import PATIENCE_S, until
from plugins_cli import LEASEHOLD
from plugins_node import free_port, run_script

WRITES_BEFORE_KILL = 30


class Emulator:
    """One that is killed and started again, on the same ports and directory."""

    def __init__(self, kind: str, data: Path, *options: str) -> None:
        self._command = [LEASEHOLD, "emulate", kind, "--json", "--data", str(data), *options]
        self._command += ["--port", str(free_port()), "--control-port", str(free_port())]
        self.process: subprocess.Popen[str] | None = None
        self.said: dict[str, Any] = {}

    def start(self) -> dict[str, Any]:
        self.process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.said = json.loads(self.process.stdout.readline())
        return self.said

    def end(self, by: signal.Signals) -> int:
        assert self.process is not None
        self.process.send_signal(by)
        code = self.process.wait(timeout=PATIENCE_S)
        if self.process.stdout:
            self.process.stdout.close()
        return code

    def restart(self) -> None:
        self.end(signal.SIGKILL)
        self.start()

    def order(self, name: str, **what: Any) -> Any:
        return httpx.post(self.said["control"] + name, json=what, trust_env=False).raise_for_status().json()

    def state(self) -> Any:
        return httpx.get(self.said["control"] + "state", trust_env=False).json()


@contextmanager
def running(kind: str, data: Path, *options: str) -> Iterator[Emulator]:
    emulator = Emulator(kind, data, *options)
    emulator.start()
    try:
        yield emulator
    finally:
        if emulator.process is not None and emulator.process.poll() is None:
            assert emulator.end(signal.SIGTERM) == 0


def write_through_a_kill(
    emulator: Emulator, write: Callable[[int], None], errors: tuple[type[Exception], ...]
) -> list[int]:
    """Numbers that were acknowledged, one after another; the emulator is killed and started again in their midst."""
    acknowledged: list[int] = []
    enough, stop = threading.Event(), threading.Event()

    def work() -> None:
        number = 0
        while not stop.is_set():
            try:
                write(number)
            except errors:
                number += 1
                continue
            acknowledged.append(number)
            number += 1
            if len(acknowledged) in (WRITES_BEFORE_KILL, 2 * WRITES_BEFORE_KILL):
                enough.set()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert enough.wait(PATIENCE_S)
        emulator.end(signal.SIGKILL)
        enough.clear()
        emulator.start()
        before = len(acknowledged)
        until(lambda: stop.is_set() or len(acknowledged) >= before + 5, "writes after the restart")
        assert not stop.is_set()
    finally:
        stop.set()
        thread.join(PATIENCE_S)
    return acknowledged


def test_cosmos_loses_nothing_that_it_acknowledged(tmp_path: Path) -> None:
    with running("cosmos", tmp_path, "--ranges", "2", "--container", "bank/tx:/account") as emulator:
        client = CosmosClient(emulator.said["endpoint"], emulator.said["key"])
        container = client.get_database_client("bank").get_container_client("tx")

        def write(number: int) -> None:
            container.create_item({"id": f"d{number}", "account": f"a{number % 7}", "n": number})

        acknowledged = write_through_a_kill(emulator, write, (CosmosHttpResponseError, AzureError))
        seen = {item["n"] for item in container.query_items_change_feed(start_time="Beginning")}
        assert set(acknowledged) <= seen


def test_a_feed_of_cosmos_continues_after_a_restart_and_a_split(tmp_path: Path) -> None:
    with running("cosmos", tmp_path, "--ranges", "1", "--container", "bank/tx:/account") as emulator:
        client = CosmosClient(emulator.said["endpoint"], emulator.said["key"])
        container = client.get_database_client("bank").get_container_client("tx")
        for number in range(10):
            container.create_item({"id": f"d{number}", "account": f"a{number}"})
        container.replace_item("d3", {"id": "d3", "account": "a3", "changed": True})
        first = [item["id"] for item in container.query_items_change_feed(start_time="Beginning")]
        continuation = container.client_connection.last_response_headers["etag"]
        emulator.order("split", container="bank/tx", range_id="0")
        before = emulator.state()["containers"]
        emulator.restart()
        assert emulator.state()["containers"] == before
        container.delete_item("d4", "a4")
        container.create_item({"id": "later", "account": "a1"})
        then = [item["id"] for item in container.query_items_change_feed(continuation=continuation)]
        assert sorted(first) == sorted(f"d{n}" for n in range(10))
        assert then == ["later"]
        with pytest.raises(CosmosHttpResponseError, match="already exists"):
            container.create_item({"id": "d5", "account": "a5"})


def test_event_hubs_lose_nothing_that_they_acknowledged(tmp_path: Path) -> None:
    with running("eventhubs", tmp_path, "--hub", "tx:1", "--hub", "other:2") as emulator:
        connection = emulator.said["connection_string"]
        producer = EventHubProducerClient.from_connection_string(connection, eventhub_name="tx", retry_total=0)

        def write(number: int) -> None:
            producer.send_batch([EventData(json.dumps(number))], partition_id="0")

        with producer:
            acknowledged = write_through_a_kill(emulator, write, (EventHubError,))
        (hub,) = (one for one in emulator.state()["hubs"] if one["hub"] == "tx")
        events = emulator.order("truth", hub="tx", partition="0")
        assert set(acknowledged) <= {int(event["body"]) for event in events}
        assert [event["sequence"] for event in events] == list(range(hub["partitions"][0]["end"]))


def test_a_consumer_of_event_hubs_continues_after_a_restart(tmp_path: Path) -> None:
    with running("eventhubs", tmp_path, "--hub", "tx:1") as emulator:
        connection = emulator.said["connection_string"]
        producer = EventHubProducerClient.from_connection_string(connection, eventhub_name="tx")
        consumer = EventHubConsumerClient.from_connection_string(connection, "$Default", eventhub_name="tx")
        seen: list[tuple[int, str]] = []
        arrived = threading.Condition()

        def on_event(_: Any, event: EventData | None) -> None:
            if event is not None:
                with arrived:
                    seen.append((event.sequence_number or 0, event.body_as_str()))
                    arrived.notify()

        def send(text: str) -> None:
            producer.send_batch([EventData(text)], partition_id="0")
            with arrived:
                assert arrived.wait_for(lambda: seen and seen[-1][1] == text, PATIENCE_S)

        receiving = threading.Thread(target=consumer.receive, args=(on_event,), kwargs={"starting_position": "-1"})
        receiving.start()
        try:
            send("before")
            emulator.restart()
            send("after")
        finally:
            consumer.close()
            receiving.join(PATIENCE_S)
            producer.close()
        assert [body for _, body in sorted(set(seen))] == ["before", "after"]
        assert sorted({number for number, _ in seen}) == [0, 1]


PUBLISH = """
leases: {{type: sqlite, path: leases.db}}
api: {{port: 0}}
pipelines:
  - name: publish
    feed: {{type: files, path: "numbers-*.jsonl"}}
    sink: {{type: eventhubs, connection_string: "{connection_string}", event_hub: tx, consumer_group: published, timeout_s: 2}}
    batch_events_max: 100
"""


def test_a_host_publishes_each_event_once_through_a_kill_of_the_namespace(tmp_path: Path) -> None:
    """Idempotent producers and the markers of batches survive, or the host would repeat or lose events."""
    count = 2000
    for name in "ab":
        lines = (json.dumps({"number": number}) + "\n" for number in range(count))
        (tmp_path / f"numbers-{name}.jsonl").write_text("".join(lines))
    with running("eventhubs", tmp_path / "data", "--hub", "tx:2", "--group", "published") as emulator:
        (tmp_path / "publish.yaml").write_text(PUBLISH.format(**emulator.said))
        emulator.order("fault", do="delay", of="send", delay_s=0.02)

        def stored() -> list[dict[str, Any]]:
            return [each for partition in "01" for each in emulator.order("truth", hub="tx", partition=partition)]

        host = subprocess.Popen([LEASEHOLD, "run", "--until-idle", "publish.yaml"], cwd=tmp_path)
        try:
            until(lambda: len(stored()) >= count // 4, "some events are published")
            emulator.end(signal.SIGKILL)
            emulator.start()
            assert len(stored()) < 2 * count
            assert host.wait(timeout=2 * PATIENCE_S) == 0
        finally:
            host.kill()
            host.wait()
        events = stored()
        sources = sorted({each["properties"]["leasehold-lease"] for each in events})
        numbers = [
            [json.loads(each["body"])["number"] for each in events if each["properties"]["leasehold-lease"] == source]
            for source in sources
        ]
        assert numbers == [list(range(count))] * 2


def test_blobs_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    with running("blob", tmp_path, "--container", "files") as emulator:
        service = BlobServiceClient.from_connection_string(emulator.said["connection_string"], retry_total=0)
        container = service.get_container_client("files")
        log = container.get_blob_client("log")
        log.create_append_blob()

        def write(number: int) -> None:
            container.upload_blob(f"b{number}", str(number).encode(), metadata={"n": str(number)})
            log.append_block(b"%d\n" % number)

        acknowledged = write_through_a_kill(emulator, write, (AzureError,))
        names = {blob.name for blob in container.list_blobs(name_starts_with="b")}
        assert {f"b{number}" for number in acknowledged} <= names
        lines = log.download_blob().readall().split()
        assert {b"%d" % number for number in acknowledged} <= set(lines)
        assert len(lines) == len(set(lines))
        last = container.get_blob_client(f"b{acknowledged[-1]}").get_blob_properties()
        assert last.metadata == {"n": str(acknowledged[-1])}
        service.close()


def test_clients_of_node_work_with_the_installed_command(tmp_path: Path) -> None:
    with running("cosmos", tmp_path / "cosmos", "--ranges", "4") as cosmos:
        said = cosmos.said
        seen = run_script("cosmos_feed.mjs", said["endpoint"], said["key"], said["control"])
        assert seen["full"] == [["create", 1, None], ["replace", 2, 1], ["delete", None, 2]]
        before = cosmos.state()["containers"]
        cosmos.restart()
        assert cosmos.state()["containers"] == before
        cosmos.order("reset")
        assert run_script("cosmos_documents.mjs", said["endpoint"], said["key"])["batch"] == [201, 201]
    with running("eventhubs", tmp_path / "eventhubs", "--hub", "raw-event:4", "--group", "sinks") as hubs:
        said = hubs.said
        hubs.restart()
        seen = run_script("eventhubs_basics.mjs", said["connection_string"], "raw-event", "")
        assert seen


def test_what_cannot_start_names_the_reason(tmp_path: Path) -> None:
    with running("cosmos", tmp_path) as emulator:
        port = emulator.said["endpoint"].rstrip("/").rpartition(":")[2]
        for options, reason in (
            (
                ["--port", port, "--control-port", "0"],
                f"cannot serve on 127.0.0.1:{port}: another process listens there",
            ),
            (
                ["--port", "0", "--control-port", "0", "--data", str(tmp_path)],
                "cosmos.db is in use: stop the other emulator",
            ),
            (["--host", "0.0.0.0"], "the emulator's keys are public"),
            (["--container", "bank"], "'bank' must have the form DATABASE/CONTAINER:/KEY"),
        ):
            done = subprocess.run(
                [LEASEHOLD, "emulate", "cosmos", *options], capture_output=True, text=True, check=False
            )
            assert (done.returncode, done.stdout) == (2, "")
            assert reason in done.stderr


@pytest.mark.parametrize("kind", ["cosmos", "blob"])
def test_another_name_that_points_to_this_machine_is_refused(tmp_path: Path, kind: str) -> None:
    with running(kind, tmp_path) as emulator:
        answers = [
            httpx.get(emulator.said["endpoint"], headers={"Host": host}, trust_env=False).status_code
            for host in ("evil.example", "localhost:8081")
        ]
    assert answers == [403, 401]


@pytest.mark.parametrize("kind", ["cosmos", "eventhubs", "blob"])
def test_the_control_page_is_served_and_other_sites_cannot_send_orders(tmp_path: Path, kind: str) -> None:
    with (
        running(kind, tmp_path) as emulator,
        httpx.Client(base_url=emulator.said["control"], trust_env=False) as client,
    ):
        page = client.get("/")
        assert "<title>Emulator</title>" in page.text
        assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
        assert client.get("/state").json()["kind"] == kind
        assert client.post("/heal", json={}).json() == {}
        for headers in ({"Origin": "http://evil.example"}, {"Host": "evil.example"}, {"Content-Type": "text/plain"}):
            refused = client.post("/heal", content="{}", headers={"Content-Type": "application/json"} | headers)
            assert refused.status_code == 403, headers
        assert client.get("/state", headers={"Host": "evil.example"}).status_code == 403
