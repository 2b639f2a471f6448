"""Metrics: what Prometheus is told, and that docs/metrics.md explains all of it."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import fields, replace
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import get_args

import numpy as np
import pyarrow as pa
import pytest
from patience import until_async
from prometheus_client.parser import text_string_to_metric_families
from unit.service.conftest import NOW, SOON_EXPIRED

from leasehold.common.clock import BootClock
from leasehold.leases.errors import (
    StoreAmbiguous,
    StoreConflict,
    StoreError,
    StoreMissing,
    StoreUnavailable,
)
from leasehold.leases.host_record import HOSTS_PREFIX
from leasehold.leases.lease import Lease
from leasehold.leases.store import Hint, Stored
from leasehold.leases.stores.memory import MemoryStore
from leasehold.pipeline.async_sink import AsyncSink, Destination
from leasehold.pipeline.connectors.handlers import HandlerSink
from leasehold.pipeline.connectors.memory import MemoryChangeFeed, MemoryOutputSink
from leasehold.pipeline.errors import (
    Ambiguous,
    EngineUnavailable,
    FeedUnavailable,
    Fenced,
    SinkRejected,
    SinkUnavailable,
)
from leasehold.pipeline.executors_wait import ExecutorsWait
from leasehold.pipeline.histogram import BUCKETS_S, Histogram
from leasehold.pipeline.limits import ParallelLimits
from leasehold.pipeline.pump.progress import NO_TIMES, TimedEvents, microseconds
from leasehold.pipeline.pump.run_parts import DeliveredBatch
from leasehold.pipeline.sink import CloseReason, Output
from leasehold.pipeline.transform import NoTransform
from leasehold.service.api.metrics import Metrics, _revision_in, build_info
from leasehold.service.fitness import PipelineHealth
from leasehold.service.lag.measurement import Lag, PartitionLag
from leasehold.service.notifications import LeaseLoss, Notifications
from leasehold.service.notifier import NOTIFICATION_OUTCOMES, Notifier
from leasehold.service.stats import (
    ACTION_OUTCOMES,
    ACTIONS,
    CAUSES,
    MOVES,
    OPERATIONS,
    REQUEST_OUTCOMES,
    STAGES,
    CountingStore,
    Stats,
)

DOCS = Path(__file__).parents[4] / "docs" / "metrics.md"


def samples(metrics: Metrics) -> dict[tuple[str, ...], float]:
    """(name, label values in the order of the labels' names) -> value."""
    families = text_string_to_metric_families(metrics.text().decode())
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


async def test_every_metric_is_explained_in_the_docs_and_nothing_else(start) -> None:
    running = await start()
    running.feeds["bank"].append("a", [b"{}"])
    await until_async(lambda: running.host.stats.batches["bank"])
    metrics = Metrics(running.host, partitions_max=10)
    metrics.lag = await running.view.read_lag()
    told = re.findall(r"^# TYPE (leasehold_\w+) (\w+)$", metrics.text().decode(), re.MULTILINE)
    documented = re.findall(r"^\| `(leasehold_\w+)` \| (\w+) \|", DOCS.read_text(), re.MULTILINE)
    assert sorted(told) == sorted(documented)


async def test_deliveries_are_counted_with_their_stages(start) -> None:
    running = await start()
    running.feeds["bank"].append("a", [b"{}"] * 3)
    running.feeds["bank"].append("b", [b"{}"] * 4)
    await until_async(lambda: running.host.stats.events["bank"] == 7)
    told = samples(Metrics(running.host))
    batches = told["leasehold_batches_delivered_total", "bank"]
    assert told["leasehold_events_delivered_total", "bank"] == 7
    for stage in ("wait", "transform", "queue", "deliver"):
        assert told["leasehold_batch_seconds_count", "bank", stage] == batches
        assert told["leasehold_batch_seconds_bucket", "+Inf", "bank", stage] == batches
    await until_async(lambda: samples(Metrics(running.host))["leasehold_batch_seconds_count", "bank", "checkpoint"])


async def test_calls_of_handlers_show_how_many_run_how_long_they_take_and_what_fails(start) -> None:
    release, failures = asyncio.Event(), [ValueError("once")]

    async def handle(event) -> None:
        if event["body"] == b"slow":
            await release.wait()
        elif failures:
            raise failures.pop()

    limits = ParallelLimits(backoff_s=0.001, timeout_s=60)
    running = await start(sinks={"bank": HandlerSink(handle, key="key", limits=limits)})
    running.feeds["bank"].append("a", [b"slow", b"quick"])
    await until_async(lambda: samples(Metrics(running.host))["leasehold_handler_seconds_count", "bank"] == 2)
    await until_async(lambda: samples(Metrics(running.host))["leasehold_handler_calls", "bank"] == 1)
    told = samples(Metrics(running.host))
    assert told["leasehold_handler_retries_total", "bank"] == 1
    assert told["leasehold_handler_keys_parked", "bank"] == 0
    release.set()
    await until_async(lambda: samples(Metrics(running.host))["leasehold_handler_calls", "bank"] == 0)
    assert samples(Metrics(running.host))["leasehold_handler_seconds_count", "bank"] == 3


class Busy(Destination):
    """Fails once, then waits until it is released."""

    def __init__(self) -> None:
        self.release, self.failures = asyncio.Event(), [SinkUnavailable("throttled")]

    async def submit(self, entries):
        if self.failures:
            raise self.failures.pop()
        await self.release.wait()
        return []


async def test_requests_of_an_asynchronous_sink_show_what_is_on_its_way_and_what_came_back(start) -> None:
    busy = Busy()
    running = await start(sinks={"bank": AsyncSink(busy, identity="busy")})
    running.feeds["bank"].append("a", [b"{}"] * 3)

    def figure(name: str) -> float | None:
        return samples(Metrics(running.host)).get((f"leasehold_sink_{name}", "bank"))

    await until_async(lambda: figure("requests_throttled_total") == 1 and figure("entries_in_flight") == 3)
    assert figure("entries_queued_again_total") == 3
    limit = figure("entries_limit")
    assert limit is not None
    assert limit < sum(800 for key in running.host.workers), "it was halved for one partition"
    busy.release.set()
    await until_async(lambda: figure("entries_in_flight") == 0)
    running.host.stop()
    await until_async(lambda: figure("entries_limit") == 0)
    assert figure("requests_throttled_total") == 1, "a counter does not fall when a lease is released"


async def test_counters_do_not_go_back_when_a_lease_moves(start) -> None:
    first = await start("host-a")
    first.feeds["bank"].append("a", [b"{}"] * 3)
    first.feeds["bank"].append("b", [b"{}"] * 3)
    await until_async(lambda: first.host.stats.events["bank"] == 6)
    await start("host-b", feeds=first.feeds)
    await until_async(lambda: len(first.host.workers) == 1)
    told = samples(Metrics(first.host))
    assert told["leasehold_events_delivered_total", "bank"] == 6
    assert told["leasehold_leases_owned", "bank"] == 1
    assert told["leasehold_lease_moves_total", "acquired", "bank"] == 2
    assert told["leasehold_lease_moves_total", "released", "bank"] == 1


async def test_a_failing_partition_shows_until_it_is_taken_again(start) -> None:
    class Refusing(MemoryOutputSink):
        async def open(self, claim):
            raise SinkRejected("no such table")

    running = await start(feeds={"bank": MemoryChangeFeed(["a"])}, sinks={"bank": Refusing()})
    await until_async(lambda: samples(Metrics(running.host))["leasehold_partitions_failing", "bank"] == 1)
    assert samples(Metrics(running.host))["leasehold_lease_moves_total", "failed", "bank"] >= 1


async def test_a_wait_for_executors_is_shown_while_it_lasts(start, monkeypatch: pytest.MonkeyPatch) -> None:
    waits = [ExecutorsWait(95.0, "no executor runs a task"), None]
    monkeypatch.setattr(NoTransform, "executors_wait", property(lambda self: waits.pop(0)))
    metrics = Metrics((await start(runs=False)).host)
    assert [samples(metrics)["leasehold_executors_wait_seconds", "bank"] for _ in range(2)] == [95.0, 0.0]


async def test_a_host_that_cannot_process_a_pipeline_shows_that_it_is_unfit(start) -> None:
    running = await start(feeds={"bank": MemoryChangeFeed(["a"])}, runs=False)
    assert samples(Metrics(running.host))["leasehold_pipeline_unfit", "bank"] == 0
    running.host.fitness._watched["bank"].health = PipelineHealth(state="renounced")
    assert samples(Metrics(running.host))["leasehold_pipeline_unfit", "bank"] == 1


async def test_a_host_that_cannot_renew_shows_its_suspended_leases(start, store) -> None:
    class Frozen(MemoryStore):
        is_frozen = False

        async def replace(self, id: str, body: str, etag: str) -> str:
            if self.is_frozen and ("/leases/" in id or id.startswith(HOSTS_PREFIX)):
                raise StoreUnavailable("throttled")
            return await super().replace(id, body, etag)

    frozen = Frozen()
    running = await start(store=frozen, feeds={"bank": MemoryChangeFeed(["a"])}, timing=SOON_EXPIRED)
    running.feeds["bank"].append("a", [b"{}"])
    await until_async(lambda: running.host.stats.events["bank"] == 1)
    frozen.is_frozen = True
    metrics = Metrics(running.host)
    await until_async(lambda: samples(metrics)["leasehold_leases_suspended", "bank"] == 1)
    running.feeds["bank"].append("a", [b"{}"])
    await until_async(lambda: samples(metrics)["leasehold_suspensions_total", "bank"] >= 1)
    assert samples(metrics)["leasehold_store_requests_total", "replace", "unavailable"] > 0
    frozen.is_frozen = False  # or its end would try to release the lease for a while


async def test_draining_and_readiness_show(start) -> None:
    running = await start(runs=False)
    metrics = Metrics(running.host)
    before = samples(metrics)
    running.host.ready.set()
    running.host.stop()
    after = samples(metrics)
    assert [told["leasehold_ready",] for told in (before, after)] == [0, 1]
    assert [told["leasehold_draining",] for told in (before, after)] == [0, 1]


async def test_what_is_read_and_not_delivered_shows(start) -> None:
    running = await start(runs=False)
    metrics = Metrics(running.host)
    assert samples(metrics)["leasehold_buffer_bytes",] == 0
    running.host.budget.share().hold(1000)
    assert samples(metrics)["leasehold_buffer_bytes",] == 1000


async def test_an_unknown_lag_is_left_out_and_never_told_as_none(start) -> None:
    metrics = Metrics((await start(runs=False)).host)
    metrics.lag = Lag((PartitionLag(pipeline="bank", partition="a", events=None, error="away"),))
    told = samples(metrics)
    assert ("leasehold_lag_events", "bank") not in told
    assert told["leasehold_lag_unknown", "bank"] == 1
    known = [PartitionLag(pipeline="bank", partition=str(n), events=50) for n in range(9)]
    metrics.lag = Lag((*known[:8], *metrics.lag.partitions))
    assert ("leasehold_lag_events", "bank") not in samples(metrics)
    metrics.lag = Lag((*known, *metrics.lag.partitions[8:]))
    assert samples(metrics)["leasehold_lag_events", "bank"] == 451
    metrics.lag = None
    assert ("leasehold_lag_unknown", "bank") not in samples(metrics)


async def test_an_unknown_age_is_left_out_and_never_told_as_none(start) -> None:
    def lag(*seconds: float | None) -> Lag:
        return Lag(
            tuple(
                PartitionLag(pipeline="bank", partition=str(n), events=1, seconds=each)
                for n, each in enumerate(seconds)
            )
        )

    metrics = Metrics((await start(runs=False)).host)
    for seconds, told in (
        ([0.0, 0.0], 0.0),
        ([0.0, 2.5], 2.5),
        ([None], None),
        ([None, *[3.0] * 8], None),  # more than a tenth
        ([None, *[3.0] * 9], 3.0),
        ([None, *[0.0] * 9], None),  # it may be old
    ):
        metrics.lag = lag(*seconds)
        assert samples(metrics).get(("leasehold_lag_seconds", "bank")) == told


async def test_single_partitions_show_if_that_is_wanted_the_worst_of_this_host_first(start) -> None:
    running = await start(partitions="abc")
    await until_async(lambda: len(running.host.workers) == 3)
    ages = {"a": 7.0, "b": None, "c": 9.0, "of another host": 99.0}
    lag = Lag(tuple(PartitionLag(pipeline="bank", partition=name, events=1, seconds=age) for name, age in ages.items()))
    for most, told in ((0, {}), (1, {"c": 9.0}), (9, {"a": 7.0, "c": 9.0})):
        metrics = Metrics(running.host, partitions_max=most)
        metrics.lag = lag
        found = {labels[0]: age for (name, *labels), age in samples(metrics).items() if "partition_lag" in name}
        assert found == told


async def test_the_age_of_every_event_is_counted_once_it_is_safe(start) -> None:
    running = await start()
    running.feeds["bank"].append("a", [b"{}"] * 3, at=NOW - timedelta(seconds=2))
    running.feeds["bank"].append("a", [b"{}"] * 2, at=NOW - timedelta(seconds=200))
    running.feeds["bank"].append("b", [b"{}"], at=NOW + timedelta(seconds=5))  # the source's clock is ahead
    await until_async(lambda: running.host.stats.events["bank"] == 6)
    told = samples(Metrics(running.host))
    counted = {
        bound: told["leasehold_event_age_seconds_bucket", bound, "bank"] for bound in ("0.1", "2.5", "60.0", "300.0")
    }
    assert counted == {"0.1": 1, "2.5": 4, "60.0": 4, "300.0": 6}
    assert told["leasehold_event_age_seconds_count", "bank"] == 6
    assert told["leasehold_event_age_seconds_sum", "bank"] == 406


def test_ages_are_counted_for_each_event_and_never_below_0(clock: BootClock) -> None:
    stats, now_us = Stats(clock, now=lambda: NOW), microseconds(NOW)
    several = np.array([now_us - 3_000_000, now_us + 9_000_000, now_us - 1_000_000])
    delivered = [TimedEvents(3, several), TimedEvents(4, np.array([now_us - 20_000_000])), TimedEvents(7, NO_TIMES)]
    stats.record_event_ages(Lease(pipeline="bank", partition="a"), delivered)
    found = stats.event_ages["bank"]
    assert (found.cumulative[-1], found.sum_s) == (7, 84)
    silent = Stats(clock)
    silent.record_event_ages(Lease(pipeline="bank", partition="a"), delivered)
    assert silent.event_ages == {}


async def test_what_runs_shows_without_being_imported(start) -> None:
    metrics = Metrics((await start(runs=False)).host)
    (labels,) = [labels for name, *labels in samples(metrics) if name == "leasehold_build_info"]
    assert labels == [build_info()[name] for name in ("pyspark", "python", "revision", "version")]
    assert build_info()["version"] == version("leasehold-processor")
    assert build_info()["pyspark"] == version("pyspark")


@pytest.mark.parametrize(
    ("note", "revision"),
    [
        (None, ""),
        ('{"url": "file:///src", "dir_info": {}}', ""),
        ('{"url": "https://host/r.git", "vcs_info": {"vcs": "git", "commit_id": "4fe1"}}', "4fe1"),
        ("[]", ""),
    ],
)
def test_the_revision_is_the_commit_that_an_installer_has_noted(note: str | None, revision: str) -> None:
    assert _revision_in(note) == revision


async def test_hosts_of_one_process_keep_their_metrics_apart(start) -> None:
    one, two = await start("host-a", runs=False), await start("host-b", runs=False)
    one.host.stats.record_suspension(Lease(pipeline="bank", partition="a"))
    assert samples(Metrics(one.host))["leasehold_suspensions_total", "bank"] == 1
    assert samples(Metrics(two.host))["leasehold_suspensions_total", "bank"] == 0


async def test_how_many_series_there_are_depends_on_pipelines_alone(start) -> None:
    """Every label is a pipeline or one of our words, and every series is there before its first event."""
    running = await start(runs=False)
    metrics, stats = Metrics(running.host), running.host.stats
    before = set(samples(metrics))
    for number in range(100):
        lease = Lease(pipeline="bank", partition=f"partition {number}", owner=f"host {number}", epoch=number)
        stats.record_acquisition(lease, before=replace(lease, owner="somebody"), took_s=0.1)
        batch = DeliveredBatch(start=None, to=str(number), events=1, waited_s=0.1, transform_s=0.1, deliver_s=0.1)
        stats.record_batch(lease, batch)
        stats.record_checkpoint(lease, 0.1)
        for error in (Ambiguous(f"{number}"), ValueError(f"{number}")):
            stats.record_work_failure(lease, str(number), error)
        for reason in get_args(CloseReason):
            stats.record_release(lease, reason)
        for outcome in REQUEST_OUTCOMES:
            stats.record_store_call("replace", outcome, 0.1)
        stats.record_action("reset", "refused")
    after = samples(metrics)
    assert set(after) == before
    assert after["leasehold_retries_total", "other", "bank"] == 100
    words = {
        "bank",
        *build_info().values(),
        *STAGES,
        *MOVES,
        *CAUSES,
        *OPERATIONS,
        *REQUEST_OUTCOMES,
        *ACTIONS,
        *ACTION_OUTCOMES,
        *NOTIFICATION_OUTCOMES,
    }
    assert {value for name, *values in after for value in values if not name.endswith("_bucket")} <= words


@pytest.mark.parametrize("words", [STAGES, MOVES, CAUSES, OPERATIONS, REQUEST_OUTCOMES, ACTIONS, ACTION_OUTCOMES])
def test_every_word_of_a_label_is_explained(words: tuple[str, ...]) -> None:
    assert {f"`{word}`" for word in words} <= set(re.findall(r"`\w+`", DOCS.read_text()))


async def test_names_with_quotes_and_newlines_stay_labels(start) -> None:
    name = 'ba"nk\n\\ü'
    running = await start(runs=False, feeds={name: MemoryChangeFeed(["a"])})
    assert samples(Metrics(running.host))["leasehold_leases_owned", name] == 0


# The counts


def test_a_histogram_counts_what_took_at_most_so_long() -> None:
    histogram = Histogram()
    for seconds in (0.0, 0.005, 0.0051, 1000.0):
        histogram.observe(seconds)
    assert histogram.cumulative[:2] == [2, 3]
    assert histogram.cumulative[-2:] == [3, 4]
    assert len(histogram.cumulative) == len(BUCKETS_S) + 1


def test_a_histogram_counts_many_as_it_counts_each() -> None:
    times = np.array([0.0, 0.005, 0.0051, 1.0, 1000.0])
    one, all_ = Histogram(), Histogram()
    for seconds in times:
        one.observe(float(seconds))
    all_.observe_all(times)
    all_.observe(2.0, 3)
    for _ in range(3):
        one.observe(2.0)
    assert (one.counts, one.sum_s) == (all_.counts, pytest.approx(all_.sum_s))


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (StoreConflict("x"), "conflict"),
        (StoreMissing("x"), "missing"),
        (StoreUnavailable("x"), "unavailable"),
        (StoreAmbiguous("x"), "ambiguous"),
        (StoreError("x"), "error"),
    ],
)
async def test_every_call_to_the_store_is_counted_by_its_outcome(
    clock: BootClock, error: StoreError, outcome: str
) -> None:
    class Failing(MemoryStore):
        async def _fail(self, *args: object) -> None:
            raise error

        list = read_changes = count = read = create = replace = delete = notify = _fail

    stats = Stats(clock)
    for call in _calls(CountingStore(Failing(), stats)):
        with pytest.raises(type(error)):
            await call
    assert stats.requests == {(operation, outcome): 1 for operation in OPERATIONS}


async def test_calls_to_the_store_that_succeed_are_counted_too(clock: BootClock) -> None:
    stats = Stats(clock)
    for call in _calls(CountingStore(MemoryStore(), stats)):
        await call
    assert stats.requests == {(operation, "ok"): 1 for operation in OPERATIONS}


def _calls(store: CountingStore) -> list[Awaitable[object]]:
    return [
        store.create("a", "{}"),
        store.read("a"),
        store.replace("a", "{}", "1"),
        store.delete("a", "2"),
        store.list("a"),
        store.read_changes("a"),
        store.count("a"),
        store.notify([Hint("host-a")]),
    ]


async def test_how_long_the_store_took_is_counted_by_operation(clock: BootClock) -> None:
    class Slow(MemoryStore):
        async def list(self, prefix: str) -> list[Stored]:
            await clock.sleep(0.02)
            return []

    stats = Stats(clock)
    await CountingStore(Slow(), stats).list("a")
    assert stats.request_seconds["list"].cumulative[-1] == 1
    assert stats.request_seconds["list"].sum_s >= 0.02
    assert stats.request_seconds.keys() == {"list"}


@pytest.mark.parametrize(
    ("owner", "move"),
    [(None, "acquired"), ("host-a", "acquired"), ("host-b", "seized")],
    ids=["free", "own", "other's"],
)
def test_a_lease_taken_from_somebody_else_counts_as_seized(clock: BootClock, owner: str | None, move: str) -> None:
    stats, before = Stats(clock), Lease(pipeline="bank", partition="a", owner=owner, incarnation="1")
    stats.record_acquisition(before.acquired("host-a", "2", ""), before=before, took_s=0.1)
    assert stats.moves == {("bank", move): 1}


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (FeedUnavailable("x"), "feed"),
        (EngineUnavailable("x"), "engine"),
        (SinkUnavailable("x"), "sink"),
        (Ambiguous("x"), "ambiguous"),
        (Fenced("x", epoch=7), "fenced"),
        (StoreConflict("x"), "store"),
        (SinkRejected("x"), "other"),
    ],
)
def test_what_is_tried_again_counts_by_what_failed(clock: BootClock, error: Exception, cause: str) -> None:
    stats = Stats(clock)
    stats.record_work_failure(Lease(pipeline="bank", partition="a"), None, error)
    assert stats.retries == {("bank", cause): 1}


def test_stats_keep_the_last_batches_of_each_pipeline_and_none_of_their_data(clock: BootClock) -> None:
    stats = Stats(clock)
    for pipeline, count in (("quiet", 1), ("busy", 1000)):
        for number in range(count):
            batch = DeliveredBatch(start=None, to=str(number), events=1, waited_s=0.1, transform_s=0.1, deliver_s=0.1)
            stats.record_batch(Lease(pipeline=pipeline, partition="a"), batch)
    assert [delivery.batch.to for delivery in stats.recent["quiet"]] == ["0"]
    assert [delivery.batch.to for delivery in stats.recent["busy"]][-1] == "999"
    assert len(stats.recent["busy"]) < 100
    kept = stats.recent["busy"][0].batch
    assert not any(isinstance(getattr(kept, field.name), pa.Table | Output) for field in fields(kept))


async def test_notifications_are_counted_by_what_became_of_them(start, clock: BootClock) -> None:
    host = (await start()).host
    metrics = Metrics(host)
    assert {samples(metrics)["leasehold_notifications_total", outcome] for outcome in NOTIFICATION_OUTCOMES} == {0}

    class Raising(Notifications):
        async def on_lease_lost(self, event: LeaseLoss) -> None:
            if event.epoch == 2:
                raise LookupError

    async def run_plain(call: Callable[[], object]) -> object:
        return call()

    notifier = Notifier(Raising(), host="a", clock=clock, now=lambda: NOW, log=host._log, run_plain=run_plain)
    host.stats._notifier = notifier
    for epoch in (1, 2, 3):
        host.stats.record_release(Lease(pipeline="bank", partition="a", epoch=epoch), "lost")
    await notifier.close()
    host.stats.record_release(Lease(pipeline="bank", partition="a", epoch=4), "lost")
    found = [samples(metrics)["leasehold_notifications_total", outcome] for outcome in NOTIFICATION_OUTCOMES]
    assert dict(zip(NOTIFICATION_OUTCOMES, found, strict=True)) == {"delivered": 2, "failed": 1, "dropped": 1}
