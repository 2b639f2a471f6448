"""A host inside a program: the ten lines, what is refused, and what the program hears."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from patience import PATIENCE_S, until_async

from leasehold import (
    Api,
    BatchDelivered,
    ConfigurationError,
    Context,
    Event,
    FilesFeed,
    Handler,
    HostSettings,
    LeaseLoss,
    LeaseLost,
    LogLetters,
    LogSink,
    MemoryFeed,
    MemoryLeases,
    MemorySink,
    Notifications,
    PartitionFailing,
    Pipeline,
    Processor,
    Retry,
    SqliteLeases,
    StartFailed,
)
from leasehold.leases.stores.memory import MemoryStore
from leasehold.pipeline.connectors.memory import MemoryChangeFeed, MemoryOutputSink

FEED = MemoryFeed(changes={"0": tuple({"id": number} for number in range(5))})


def keyed_feed(events: int) -> MemoryChangeFeed:
    """Of three keys, one after the other."""
    feed = MemoryChangeFeed(["0"])
    for number in range(events):
        feed.append("0", [json.dumps({"id": number}).encode()], key=str(number % 3))
    return feed


class Kept:
    def __init__(self) -> None:
        self.ids: list[int] = []
        self.contexts: list[Context] = []
        self.threads: set[threading.Thread] = set()

    def keep(self, changes: list[Event], context: Context) -> None:
        self.ids += [change.json()["id"] for change in changes]
        self.contexts.append(context)
        self.threads.add(threading.current_thread())


def processor_of(handler: Any, *, on: Notifications | None = None, feed: Any = FEED, **settings: Any) -> Processor:
    return Processor(Pipeline("orders", feed=feed, handler=handler, **settings), leases=MemoryLeases(), on=on)


async def drained(processor: Processor) -> None:
    async with processor:
        backlog = await processor.idle()
    assert (backlog.failed, backlog.held) == ({}, {})
    await processor.wait()


async def test_an_async_function_gets_events_on_the_loop_of_the_program() -> None:
    kept = Kept()

    async def on_changes(changes: list[Event], context: Context) -> None:
        kept.keep(changes, context)

    await drained(processor_of(on_changes))
    assert kept.ids == [0, 1, 2, 3, 4]
    assert kept.threads == {threading.current_thread()}
    (context,) = kept.contexts
    assert (context.pipeline, context.partition, context.epoch, context.position) == ("orders", "0", 1, None)


async def test_a_plain_function_runs_in_a_thread() -> None:
    kept = Kept()

    def on_changes(changes: list[Event], context: Context) -> None:
        kept.keep(changes, context)

    await drained(processor_of(on_changes))
    assert kept.ids == [0, 1, 2, 3, 4]
    assert threading.current_thread() not in kept.threads


@pytest.mark.parametrize("is_factory", [False, True])
async def test_a_handler_is_opened_and_closed_once_for_each_lease(is_factory: bool) -> None:
    calls: list[Any] = []

    class OnChanges(Handler):
        def __init__(self) -> None:
            calls.append("made")

        async def open(self, context: Context) -> None:
            calls.append(("open", context.partition))

        async def process(self, changes: list[Event], context: Context) -> None:
            calls.append(len(changes))

        def close(self, context: Context, reason: str) -> None:
            calls.append(("close", reason))

    def make() -> Handler:
        return OnChanges()

    await drained(processor_of(make if is_factory else OnChanges))
    assert calls == ["made", ("open", "0"), 5, ("close", "shutdown")]


async def test_events_of_a_key_come_in_order_side_by_side() -> None:
    kept = Kept()

    async def on_changes(changes: list[Event], context: Context) -> None:
        kept.keep(changes, context)

    await drained(processor_of(on_changes, parallel={"key": "partition", "max": 4}))
    assert kept.ids == [0, 1, 2, 3, 4]
    assert {context.key for context in kept.contexts} == {"0"}


@pytest.mark.parametrize("is_factory", [False, True])
async def test_a_handler_of_keys_side_by_side_is_opened_and_closed_around_all_of_them(is_factory: bool) -> None:
    calls: list[Any] = []
    together, failed = asyncio.Event(), set[int]()

    class OnChanges(Handler):
        async def open(self, context: Context) -> None:
            self.running = 0
            calls.append(("open", context.partition))

        async def process(self, changes: list[Event], context: Context) -> None:
            (change,) = changes
            self.running += 1
            if self.running == 3:
                together.set()
            await together.wait()
            number = change.json()["id"]
            if number in (1, 4) and number not in failed:
                failed.add(number)
                raise (Retry() if number == 1 else ValueError("the first call"))
            calls.append((context.key, number, context.attempt))

        def close(self, context: Context, reason: str) -> None:
            calls.append(("close", reason, context.position))

    def make() -> Handler:
        return OnChanges()

    handler = make if is_factory else OnChanges
    parallel = {"key": "key", "max": 3, "backoff_s": 0.01}
    await drained(processor_of(handler, feed=keyed_feed(9), parallel=parallel))
    assert calls[0] == ("open", "0")
    assert calls[-1] == ("close", "shutdown", "9")
    by_key = {key: [call[1:] for call in calls[1:-1] if call[0] == key] for key in "012"}
    assert by_key == {"0": [(0, 1), (3, 1), (6, 1)], "1": [(1, 2), (4, 2), (7, 1)], "2": [(2, 1), (5, 1), (8, 1)]}


async def test_a_key_of_a_handler_s_that_keeps_failing_is_parked_and_its_error_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    done: list[tuple[str | None, int]] = []

    class OnChanges(Handler):
        async def process(self, changes: list[Event], context: Context) -> None:
            if changes[0].json()["id"] == 1:
                raise ValueError("a negative amount")
            done.append((context.key, changes[0].json()["id"]))

    parallel = {"key": "key", "max": 3, "backoff_s": 0.01, "attempts": 2}
    with caplog.at_level(logging.ERROR, "leasehold.pipeline.connectors.python"):
        await drained(
            processor_of(
                OnChanges,
                feed=keyed_feed(9),
                parallel=parallel,
                dead_letters=LogLetters(path=tmp_path / "dead"),
            )
        )
    assert {key for key, _ in done} == {"0", "2"}
    assert [number for key, number in done if key == "0"] == [0, 3, 6]
    (record,) = [each for each in caplog.records if each.name == "leasehold.pipeline.connectors.python"]
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], ValueError)


@pytest.mark.parametrize("parallel", [None, {"key": "partition", "events_max": 9}])
async def test_a_checkpoint_by_hand_after_the_end_of_the_lease_raises_lease_lost(
    parallel: dict[str, Any] | None,
) -> None:
    contexts: list[tuple[list[Event], Context]] = []

    class OnChanges(Handler):
        async def process(self, changes: list[Event], context: Context) -> None:
            contexts.append((changes, context))

    given = {} if parallel is None else {"parallel": parallel}
    async with processor_of(OnChanges, checkpoint_s="manual", **given) as processor:
        await until_async(lambda: contexts)
        changes, context = contexts[0]
        assert not context.is_lost
        await context.checkpoint(changes[0])
        await processor.stop()
        assert context.is_lost
        with pytest.raises(LeaseLost, match="partition '0'"):
            await context.checkpoint(changes[-1])


async def test_documents_come_as_dicts_and_a_body_that_is_none_stops_its_partition_by_name() -> None:
    found: list[Any] = []

    async def on_changes(changes: list[dict[str, Any]], context: Context) -> None:
        found.extend(changes)

    await drained(processor_of(on_changes, gets="documents"))
    assert found == [{"id": number} for number in range(5)]
    processor = processor_of(on_changes, gets="documents", feed=MemoryFeed(changes={"0": (b"x",)}))
    async with processor:
        (why,) = (await processor.idle()).failed.values()
    assert "the event with sequence 0 of partition '0' cannot be a document" in why


async def test_lines_of_files_come_as_documents(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": 0}\n')
    (tmp_path / "b.csv").write_text("id\n1\n")
    found: list[Any] = []

    async def on_changes(changes: list[dict[str, Any]], context: Context) -> None:
        found.extend(changes)

    for name in ("a.jsonl", "b.csv"):
        await drained(processor_of(on_changes, gets="documents", feed=FilesFeed(path=str(tmp_path / name))))
    assert found == [{"id": 0}, {"id": "1"}]


async def why_it_fails(handler: Any, **settings: Any) -> str:
    async with processor_of(handler, **settings) as processor:
        (why, *_) = (await processor.idle()).failed.values()
    return why


class Whole(Handler):
    async def process(self, changes: list[Event], context: Context) -> None: ...


@pytest.mark.parametrize("settings", [{}, {"parallel": {"key": "key", "max": 2}}], ids=["by batches", "side by side"])
async def test_a_factory_that_does_not_make_an_object_for_each_lease_stops_its_partitions(
    settings: dict[str, Any],
) -> None:
    whole = Whole()
    feed = MemoryFeed(changes={"0": (1,), "1": (2,)})
    why = await why_it_fails(lambda: whole, feed=feed, **settings)
    assert "returned one object twice, and each lease needs its own: let it make another each time" in why
    why = await why_it_fails(lambda: Whole, **settings)
    assert "returned the class Whole: let it return an object of it" in why
    why = await why_it_fails(lambda: Pipeline, **settings)
    assert "returned the class Pipeline" in why


@pytest.mark.parametrize("settings", [{}, {"parallel": {"key": "key", "max": 2}}], ids=["by batches", "side by side"])
async def test_changes_for_code_that_has_not_run_are_not_processed(settings: dict[str, Any]) -> None:
    async def on_changes(changes: list[Event], context: Context) -> None: ...

    def numbers(changes: list[Event], context: Context) -> Any:
        yield 1

    async def unawaited(changes: list[Event], context: Context) -> Any:
        return on_changes(changes, context)

    why = await why_it_fails(lambda changes, context: on_changes(changes, context), **settings)
    assert "returned an awaitable: define the handler with `async def`, and `await` what it calls" in why
    why = await why_it_fails(unawaited, **settings)
    assert "returned an awaitable" in why
    why = await why_it_fails(lambda changes, context: numbers(changes, context), **settings)
    assert "returned a generator, whose code has not run" in why


@pytest.mark.parametrize("settings", [{}, {"parallel": {"key": "key", "max": 2}}], ids=["by batches", "side by side"])
async def test_an_exit_of_a_handler_stops_its_partition_and_not_the_program(settings: dict[str, Any]) -> None:
    async def leave(changes: list[Event], context: Context) -> None:
        sys.exit(3)

    def interrupt(changes: list[Event], context: Context) -> None:
        raise KeyboardInterrupt  # as a pool of processes passes it on at Ctrl-C

    assert "SystemExit: 3" in await why_it_fails(leave, **settings)
    assert "KeyboardInterrupt" in await why_it_fails(interrupt, **settings)


async def test_a_retry_is_called_again_with_the_same_changes() -> None:
    calls: list[int] = []

    async def on_changes(changes: list[Event], context: Context) -> None:
        calls.append(len(changes))
        if len(calls) < 3:
            raise Retry(after_s=0.01)

    await drained(processor_of(on_changes))
    assert calls == [5, 5, 5]


async def test_a_failure_is_logged_once_with_its_traceback_and_heard(caplog: pytest.LogCaptureFixture) -> None:
    failing: list[PartitionFailing] = []

    class Watch(Notifications):
        async def on_partition_failing(self, event: PartitionFailing) -> None:
            failing.append(event)

    async def on_changes(changes: list[Event], context: Context) -> None:
        raise ValueError("a negative amount")

    with caplog.at_level(logging.ERROR, "leasehold.pipeline.connectors.python"):
        async with processor_of(on_changes, on=Watch()) as processor:
            await until_async(lambda: len(failing) > 1)
            (why,) = (await processor.idle()).failed.values()
    assert "on_changes' failed in 'process' for partition '0'" in why
    assert "ValueError: a negative amount" in failing[0].error
    (record,) = [each for each in caplog.records if each.name == "leasehold.pipeline.connectors.python"]
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], ValueError)


class Naming(logging.Handler):
    """Sets `named` at the line that names the handler."""

    def __init__(self) -> None:
        super().__init__()
        self.named = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if "on_changes' blocks the event loop" in record.getMessage():
            self.named.set()


async def test_a_handler_that_blocks_the_loop_is_named_and_loses_no_lease() -> None:
    naming, lost = Naming(), []

    class Watch(Notifications):
        def on_lease_lost(self, event: LeaseLoss) -> None:
            lost.append(event)

    async def on_changes(changes: list[Event], context: Context) -> None:
        naming.named.wait()

    log = logging.getLogger("leasehold.pipeline.connectors.handler_loop")
    log.addHandler(naming)
    try:
        await drained(processor_of(on_changes, on=Watch()))
    finally:
        log.removeHandler(naming)
    assert naming.named.is_set()
    assert lost == []


async def test_checkpoints_by_hand_move_the_position_and_what_is_left_comes_again(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"id": number}) + "\n" for number in range(4)))
    seen: list[list[int]] = []
    ever: list[Event] = []

    async def on_changes(changes: list[Event], context: Context) -> None:
        seen.append([change.json()["id"] for change in changes])
        ever.extend(changes)
        if len(seen) > 1:
            await context.checkpoint(changes[-1])

    def made() -> Processor:
        feed, leases = FilesFeed(path=str(tmp_path / "*.jsonl")), SqliteLeases(path=tmp_path / "leases.db")
        return Processor(Pipeline("orders", feed=feed, handler=on_changes, checkpoint_s="manual"), leases=leases)

    async with made():
        await until_async(lambda: ever)
    await drained(made())
    assert seen == [[0, 1, 2, 3], [0, 1, 2, 3]]
    await drained(made())
    assert len(seen) == 2


async def test_checkpoint_by_hand_needs_the_setting() -> None:
    async def on_changes(changes: list[Event], context: Context) -> None:
        await context.checkpoint(changes[-1])

    async with processor_of(on_changes) as processor:
        (why,) = (await processor.idle()).failed.values()
    assert "`context.checkpoint` needs `checkpoint_s: manual`" in why


async def test_positions_belong_to_no_handler_s_name(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": 0}\n')
    ids: list[int] = []

    async def one(changes: list[Event], context: Context) -> None:
        ids.extend(change.json()["id"] for change in changes)

    async def other(changes: list[Event], context: Context) -> None:
        await one(changes, context)

    for handler in (one, other):
        feed, leases = FilesFeed(path=str(tmp_path / "*.jsonl")), SqliteLeases(path=tmp_path / "leases.db")
        await drained(Processor(Pipeline("orders", feed=feed, handler=handler), leases=leases))
    assert ids == [0]


async def test_objects_of_a_plugin_are_taken_where_sections_are() -> None:
    feed, sink = MemoryChangeFeed(["0"]), MemoryOutputSink()
    feed.append("0", [b"a", b"b"])
    await drained(Processor(Pipeline("copy", feed=feed, sink=sink), leases=MemoryStore()))
    assert [row["body"] for row in sink.destination.rows("0")] == [b"a", b"b"]


async def test_output_in_memory_can_be_looked_at() -> None:
    sink = MemorySink()
    await drained(Processor(Pipeline("copy", feed=FEED, sink=sink), leases=MemoryLeases()))
    assert [json.loads(row["body"])["id"] for row in sink.rows] == [0, 1, 2, 3, 4]


async def test_the_api_is_that_of_the_command_and_lag_is_told() -> None:
    async def on_changes(changes: list[Event], context: Context) -> None: ...

    pipeline = Pipeline("orders", feed=FEED, handler=on_changes)
    async with (
        Processor(pipeline, leases=MemoryLeases(), api=Api(port=0)) as processor,
        aiohttp.ClientSession() as client,
    ):
        await processor.idle()
        async with client.get(f"http://127.0.0.1:{processor.port}/health/live") as answer:
            assert answer.status == 200
        (lag,) = await processor.lag()
    assert (lag.pipeline, lag.partition, lag.events, lag.seconds, lag.why) == ("orders", "0", 0, 0.0, None)


async def test_the_estimate_names_the_owner_and_why_a_partition_stands_still() -> None:
    async def on_changes(changes: list[Event], context: Context) -> None:
        if context.partition == "1":
            raise ValueError("a negative amount")

    feed = MemoryFeed(changes={"0": (), "1": (1, 2, 3)})
    pipeline = Pipeline("orders", feed=feed, handler=on_changes)
    async with Processor(pipeline, leases=MemoryLeases(), host="here") as processor:
        await processor.idle()
        well, failing = await processor.lag()
    assert (well.partition, well.events, well.seconds, well.owner, well.why) == ("0", 0, 0.0, "here", None)
    assert (failing.partition, failing.events, failing.seconds is None or failing.seconds >= 0) == ("1", 3, True)
    assert failing.why is not None
    assert "is failing" in failing.why
    assert "ValueError: a negative amount" in failing.why


@pytest.mark.parametrize("settings", [{}, {"parallel": {"key": "key", "max": 2}}], ids=["by batches", "side by side"])
async def test_a_handler_that_stops_the_processor_is_not_waited_for_by_itself(settings: dict[str, Any]) -> None:
    handled: list[int] = []

    async def on_changes(changes: list[Event], context: Context) -> None:
        await processor.stop()
        handled.extend(change.json()["id"] for change in changes)

    processor = processor_of(on_changes, **settings)
    await processor.run()
    assert handled, "the call was not cancelled"


@pytest.mark.parametrize("settings", [{}, {"parallel": {"key": "key", "max": 2}}], ids=["by batches", "side by side"])
@pytest.mark.parametrize("way", ["a loop of its own", "the loop of the program", "a task"])
async def test_a_handler_that_waits_for_the_stop_ends_before_it(way: str, settings: dict[str, Any]) -> None:
    program, had_ended = asyncio.get_running_loop(), list[bool]()

    def plain(changes: list[Event], context: Context) -> None:
        if way == "a loop of its own":
            asyncio.run(processor.stop())
        else:
            asyncio.run_coroutine_threadsafe(processor.stop(), program).result()
        had_ended.append(processor._started().done())

    async def in_a_task(changes: list[Event], context: Context) -> None:
        await asyncio.create_task(processor.stop())
        had_ended.append(processor._started().done())

    handler = in_a_task if way == "a task" else plain
    pipeline = Pipeline("orders", feed=FEED, handler=handler, **settings)
    processor = Processor(pipeline, leases=MemoryLeases(), host=HostSettings(stop_timeout_s=PATIENCE_S))
    await processor.run()
    assert had_ended[0] is False, "the stop waited for the handler, which waited for the stop"


async def test_an_observer_hears_on_the_loop_of_the_program() -> None:
    heard: list[Any] = []

    class Watch(Notifications):
        async def on_batch_delivered(self, event: BatchDelivered) -> None:
            heard.append((event.events, threading.current_thread()))

    async def on_changes(changes: list[Event], context: Context) -> None: ...

    await drained(processor_of(on_changes, on=Watch()))
    assert heard == [(5, threading.current_thread())]


async def test_a_second_start_is_refused_and_so_is_work_before_the_first() -> None:
    async def on_changes(changes: list[Event], context: Context) -> None: ...

    processor = processor_of(on_changes)
    with pytest.raises(RuntimeError, match="was not started: await `start`"):
        await processor.wait()
    async with processor:
        with pytest.raises(RuntimeError, match="starts once: make another one"):
            await processor.run()
        assert not (await processor.idle()).failed  # it still runs
    with pytest.raises(RuntimeError, match="starts once: make another one"):
        await processor.start()


async def test_what_keeps_it_from_starting_is_raised(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    pipeline = Pipeline("copy", feed=FEED, sink=LogSink(path=tmp_path / "file/log"))
    processor = Processor(pipeline, leases=MemoryLeases())
    with pytest.raises(StartFailed, match="file/log"):
        await processor.run()
    with pytest.raises(StartFailed, match="file/log"):
        await processor.wait()


ENDING = """
import asyncio
from leasehold import MemoryFeed, MemoryLeases, Notifications, Pipeline, Processor

class Watch(Notifications):
    def on_lease_released(self, event):
        print("released:", event.reason, flush=True)

async def on_changes(changes, context):
    await asyncio.sleep(0)

feed = MemoryFeed(changes={"0": (1, 2)})
processor = Processor(Pipeline("orders", feed=feed, handler=on_changes), leases=MemoryLeases(), on=Watch())
%s
try:
    asyncio.run(processor.wait())
except RuntimeError as error:
    print("ended:", error)
"""
ENDED = "the event loop that started the processor has ended, and the host ends with it: write `asyncio.run(processor.run())`"


@pytest.mark.parametrize(
    "way",
    [
        "asyncio.run(processor.start())",
        "loop = asyncio.new_event_loop(); loop.run_until_complete(processor.start()); loop.close()",
    ],
    ids=["run", "close"],
)
def test_a_host_ends_with_the_loop_that_started_it_and_releases_its_leases(way: str) -> None:
    program = [sys.executable, "-c", ENDING % way]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    released, error = ended.stdout.splitlines()
    assert released == "released: stopped"
    assert error.startswith(f"ended: {ENDED}")
    assert ended.stderr.count(ENDED) == 1, ended.stderr
    assert "partition failing" not in ended.stderr


async def on_nothing(changes: list[Event], context: Context) -> None: ...


PIPELINE = Pipeline("orders", feed=FEED, handler=on_nothing)


PROGRAM = """
import asyncio
from leasehold import MemoryFeed, MemoryLeases, Pipeline, Processor

async def on_changes(changes, context):
    print(len(changes), flush=True)

asyncio.run(Processor(Pipeline("a", feed=MemoryFeed(changes={"0": [1, 2]}), handler=on_changes), leases=MemoryLeases()).run())
print("ended", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_run_ends_in_order_at_a_signal(number: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "2\n"
        program.send_signal(number)
        out, log = program.communicate(timeout=240)
    assert (out, program.returncode) == ("ended\n", 0), log
    assert "lease released" in log


async def test_a_file_and_functions_of_the_program_are_one_processor(tmp_path: Path) -> None:
    kept = Kept()

    async def on_changes(changes: list[Event], context: Context) -> None:
        kept.keep(changes, context)

    (tmp_path / "a.jsonl").write_text('{"id": 7}\n')
    file = tmp_path / "orders.yaml"
    file.write_text(
        "leases: {type: memory}\napi: {enabled: false}\npipelines:\n"
        "  - {name: orders, feed: {type: files, path: '*.jsonl'}, sink: {type: python, handler: on_changes}}\n"
    )
    await drained(Processor.from_yaml(file, handlers={"on_changes": on_changes}))
    assert kept.ids == [7]
    with pytest.raises(ConfigurationError, match="`handlers` has 'on_change', and no sink has `handler: on_change`"):
        Processor.from_yaml(file, handlers={"on_changes": on_changes, "on_change": on_changes})


def test_a_processor_is_written_as_a_file_without_secrets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from leasehold import CosmosFeed, CosmosLeases

    shop = {"connection_string": "AccountEndpoint=https://a.b/;AccountKey=c2VjcmV0;", "database": "shop"}
    monkeypatch.setenv("SHOP_COSMOS", shop["connection_string"])
    pipeline = Pipeline("orders", feed=CosmosFeed(**shop, container="orders"), handler=on_nothing)  # type: ignore[arg-type]
    processor = Processor(pipeline, leases=CosmosLeases(**shop), host="a")  # type: ignore[arg-type]
    text = processor.to_yaml()
    assert "c2VjcmV0" not in text
    assert text.count("${SHOP_COSMOS}") == 2
    (tmp_path / "shop.yaml").write_text(text)
    again = Processor.from_yaml(tmp_path / "shop.yaml", handlers={f"{__name__}:on_nothing": on_nothing})
    assert again.settings == processor.settings


def test_a_processor_with_relative_paths_is_the_same_from_its_file_elsewhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made, read = tmp_path / "m[a]de", tmp_path / "read"
    made.mkdir()
    read.mkdir()
    monkeypatch.chdir(made)
    pipeline = Pipeline("orders", feed=FilesFeed(path="*.jsonl"), sink=LogSink(path="log"))
    processor = Processor(pipeline)
    monkeypatch.chdir(read)
    text = processor.to_yaml()
    assert "log: {}" not in text
    (read / "orders.yaml").write_text(text)
    again = Processor.from_yaml(read / "orders.yaml")
    assert again.settings == processor.settings
    assert again.to_yaml() == text
    assert again.settings.leases.path == made / "leases.db"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: Processor(Pipeline("a", feed=FEED, handler=lambda changes, context: None)), "which no file can name"),
        (
            lambda: Processor(Pipeline("a", feed=MemoryChangeFeed(["0"]), sink=LogSink(path="a"))),
            "`pipelines.a.feed` is an object",
        ),  # type: ignore[arg-type]
        (lambda: Processor(PIPELINE, on=Notifications()), "`on` is an object: name its class in `notifications`"),
    ],
)
def test_what_a_file_cannot_name_is_refused(make: Any, problem: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        make().to_yaml()
    assert problem in str(refused.value)
