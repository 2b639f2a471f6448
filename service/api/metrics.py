"""This host's metrics for Prometheus, read from the host and its Stats at each scrape.

    metrics = Metrics(host)
    metrics.lag = await view.read_lag(age_max_s=15)    # optional: the group's lag, as last measured
    metrics.text()                                # what /metrics answers

Every name is explained in docs/metrics.md. Labels are pipelines and words of `leasehold.service.stats`, so that the number of
series does not depend on partitions, hosts or errors; partitions are labels only up to a number that is a setting. Each
series starts at 0, because Prometheus sees no increase in one that starts with its first event. Unknown figures are left out.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from functools import cache
from heapq import nlargest
from importlib.metadata import PackageNotFoundError, distribution, version

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from leasehold.common.distribution import NAME
from leasehold.common.nesting import parsed_json
from leasehold.leases.session import Session
from leasehold.pipeline.histogram import Histogram
from leasehold.service.host import Host
from leasehold.service.lag.measurement import Lag
from leasehold.service.notifier import NOTIFICATION_OUTCOMES
from leasehold.service.stats import (
    ACTION_OUTCOMES,
    ACTIONS,
    CAUSES,
    MOVES,
    OPERATIONS,
    OUTSIDE_OUTCOMES,
    REQUEST_OUTCOMES,
    STAGES,
)

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
LEVELS_MAX = 10
"""How deeply an installer's note (`direct_url.json`) may nest."""


class Metrics(Collector):
    """The metrics of one host, with their own registry, so that several hosts can live in one process.

    lag: the group's, if it is known. partitions_max: for how many of the host's partitions it is shown: those furthest behind.
    """

    def __init__(self, host: Host, *, partitions_max: int = 0) -> None:
        self.lag: Lag | None = None
        self._host = host
        self._partitions_max = partitions_max
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def families(self) -> Iterator[Metric]:
        """The same figures, for other formats."""
        return iter(self._registry.collect())

    def collect(self) -> Iterator[Metric]:
        yield from self._now()
        yield from self._work()
        yield from self._handlers()
        yield from self._requests()
        yield from self._leases()
        yield from self._session(self._host.session)
        yield from self._store()
        yield from self._operators()
        yield self._notifications()
        yield from self._traces()
        if self.lag is not None:
            yield from self._lag(self.lag)

    def _now(self) -> Iterator[Metric]:
        host, build = self._host, build_info()
        info = GaugeMetricFamily("leasehold_build_info", "1; the labels are versions.", labels=list(build))
        info.add_metric(list(build.values()), 1)
        yield info
        yield GaugeMetricFamily("leasehold_ready", "1 once the host has read the container.", int(host.ready.is_set()))
        yield GaugeMetricFamily("leasehold_draining", "1 while the host releases its leases.", int(host.is_draining))
        yield GaugeMetricFamily(
            "leasehold_buffer_bytes", "Bytes that are read and not delivered yet.", host.budget.held
        )
        owned = GaugeMetricFamily("leasehold_leases_owned", "Leases this host works on.", labels=["pipeline"])
        failing = GaugeMetricFamily(
            "leasehold_partitions_failing", "Partitions left alone after a failure.", labels=["pipeline"]
        )
        suspended = GaugeMetricFamily(
            "leasehold_leases_suspended", "Owned leases that are not trusted now.", labels=["pipeline"]
        )
        paused = GaugeMetricFamily("leasehold_pipeline_paused", "1 while no host works on it.", labels=["pipeline"])
        waited = GaugeMetricFamily(
            "leasehold_executors_wait_seconds",
            "How long a job has waited for executors; 0: none waits.",
            labels=["pipeline"],
        )
        unfit = GaugeMetricFamily(
            "leasehold_pipeline_unfit", "1 while the host cannot process it.", labels=["pipeline"]
        )
        for name, pipeline in host.pipelines.items():
            workers = [worker for key, worker in host.workers.items() if key.pipeline == name]
            owned.add_metric([name], len(workers))
            failing.add_metric([name], sum(key.pipeline == name and key not in host.workers for key in host.failures))
            suspended.add_metric([name], sum(not worker.owned.is_trusted for worker in workers))
            paused.add_metric([name], int(name in host.balancer.paused))
            unfit.add_metric([name], int(host.fitness.is_unfit(name)))
            wait = pipeline.transform.executors_wait
            waited.add_metric([name], 0.0 if wait is None else wait.for_s)
        yield from (owned, failing, suspended, paused, unfit, waited)

    def _work(self) -> Iterator[Metric]:
        stats = self._host.stats
        events = CounterMetricFamily("leasehold_events_delivered", "Events whose output is safe.", labels=["pipeline"])
        batches = CounterMetricFamily("leasehold_batches_delivered", "Batches that are safe.", labels=["pipeline"])
        dead = CounterMetricFamily("leasehold_dead_letters", "Events that could not be processed.", labels=["pipeline"])
        retries = CounterMetricFamily(
            "leasehold_retries", "Failures after which work continued.", labels=["pipeline", "cause"]
        )
        seconds = HistogramMetricFamily("leasehold_batch_seconds", "Time by stage.", labels=["pipeline", "stage"])
        ages = HistogramMetricFamily(
            "leasehold_event_age_seconds", "Age of events when their output was safe.", labels=["pipeline"]
        )
        for name in self._host.pipelines:
            events.add_metric([name], stats.events[name])
            batches.add_metric([name], stats.batches[name])
            dead.add_metric([name], stats.dead_letters[name])
            for cause in CAUSES:
                retries.add_metric([name, cause], stats.retries[name, cause])
            for stage in STAGES:
                _add(seconds, [name, stage], stats.seconds[name, stage])
            _add(ages, [name], stats.event_ages[name])
        yield from (events, batches, dead, retries, seconds, ages)

    def _handlers(self) -> Iterator[Metric]:
        """Handlers that are called side by side."""
        labels = ["pipeline"]
        calls = GaugeMetricFamily("leasehold_handler_calls", "Calls of the handler that run now.", labels=labels)
        parked = GaugeMetricFamily("leasehold_handler_keys_parked", "Keys that are parked now.", labels=labels)
        retries = CounterMetricFamily("leasehold_handler_retries", "Failed calls that were repeated.", labels=labels)
        seconds = HistogramMetricFamily("leasehold_handler_seconds", "Time of calls of the handler.", labels=labels)
        for name, pipeline in self._host.pipelines.items():
            if (stats := pipeline.sink.handler_stats) is not None:
                calls.add_metric([name], stats.in_flight)
                parked.add_metric([name], stats.parked_keys)
                retries.add_metric([name], stats.retries)
                _add(seconds, [name], stats.seconds)
        yield from (calls, parked, retries, seconds)

    def _requests(self) -> Iterator[Metric]:
        """The requests of asynchronous sinks."""
        labels = ["pipeline"]
        in_flight = GaugeMetricFamily("leasehold_sink_entries_in_flight", "Entries in flight.", labels=labels)
        limit = GaugeMetricFamily("leasehold_sink_entries_limit", "How many may be in flight now.", labels=labels)
        again = CounterMetricFamily("leasehold_sink_entries_queued_again", "Failed entries, sent again.", labels=labels)
        throttled = CounterMetricFamily(
            "leasehold_sink_requests_throttled", "Requests that lowered the rate.", labels=labels
        )
        for name, pipeline in self._host.pipelines.items():
            if (stats := pipeline.sink.request_stats) is not None:
                in_flight.add_metric([name], stats.in_flight)
                limit.add_metric([name], stats.limit)
                again.add_metric([name], stats.queued_again)
                throttled.add_metric([name], stats.throttled)
        yield from (in_flight, limit, again, throttled)

    def _leases(self) -> Iterator[Metric]:
        stats = self._host.stats
        moves = CounterMetricFamily(
            "leasehold_lease_moves", "Leases gained, given up and taken away.", labels=["pipeline", "move"]
        )
        suspensions = CounterMetricFamily("leasehold_suspensions", "Trust windows that closed.", labels=["pipeline"])
        for name in self._host.pipelines:
            suspensions.add_metric([name], stats.suspensions[name])
            for move in MOVES:
                moves.add_metric([name, move], stats.moves[name, move])
        yield from (moves, suspensions)
        outside = CounterMetricFamily(
            "leasehold_outside_checkpoints", "Checkpoints for readers outside.", labels=["pipeline", "outcome"]
        )
        for name in (each.name for each in self._host.pipelines.values() if each.outside_checkpoints is not None):
            for outcome in OUTSIDE_OUTCOMES:
                outside.add_metric([name, outcome], stats.outside_checkpoints[name, outcome])
        yield outside

    def _session(self, session: Session) -> Iterator[Metric]:
        yield GaugeMetricFamily("leasehold_host_beat_age_seconds", "Time since the last heartbeat.", session.beat_age_s)
        yield GaugeMetricFamily("leasehold_host_lasts_seconds", "How long it may be silent.", session.timing.duration_s)
        yield CounterMetricFamily("leasehold_host_lapses", "How often its trust lapsed.", session.lapses)

    def _store(self) -> Iterator[Metric]:
        stats = self._host.stats
        requests = CounterMetricFamily(
            "leasehold_store_requests", "Calls to the lease store.", labels=["operation", "outcome"]
        )
        seconds = HistogramMetricFamily(
            "leasehold_store_request_seconds", "Time of calls to the lease store.", labels=["operation"]
        )
        for operation in OPERATIONS:
            _add(seconds, [operation], stats.request_seconds[operation])
            for outcome in REQUEST_OUTCOMES:
                requests.add_metric([operation, outcome], stats.requests[operation, outcome])
        yield from (requests, seconds)

    def _operators(self) -> Iterator[Metric]:
        actions = CounterMetricFamily(
            "leasehold_operator_actions", "Actions that operators requested of this host.", labels=["action", "outcome"]
        )
        for action in ACTIONS:
            for outcome in ACTION_OUTCOMES:
                actions.add_metric([action, outcome], self._host.stats.actions[action, outcome])
        yield actions

    def _notifications(self) -> Metric:
        notifications = CounterMetricFamily(
            "leasehold_notifications", "Notifications of the program, by outcome.", labels=["outcome"]
        )
        counts = self._host.stats.notifications
        for outcome in NOTIFICATION_OUTCOMES:
            notifications.add_metric([outcome], counts[outcome])
        return notifications

    def _traces(self) -> Iterator[Metric]:
        stats = self._host.stats
        yield CounterMetricFamily("leasehold_spans_made", "Spans for traces.", stats.spans_made)
        yield CounterMetricFamily("leasehold_spans_exported", "Spans that a collector accepted.", stats.spans_exported)

    def _lag(self, lag: Lag) -> Iterator[Metric]:
        events = GaugeMetricFamily("leasehold_lag_events", "Events the group is behind.", labels=["pipeline"])
        seconds = GaugeMetricFamily(
            "leasehold_lag_seconds", "Age of the oldest undelivered event.", labels=["pipeline"]
        )
        unknown = GaugeMetricFamily("leasehold_lag_unknown", "Partitions of unknown lag.", labels=["pipeline"])
        for name in self._host.pipelines:
            of = lag.of(name)
            if of.is_known:
                events.add_metric([name], of.events)
            if (age_s := of.seconds) is not None:
                seconds.add_metric([name], age_s)
            unknown.add_metric([name], of.unknown)
        yield from (events, seconds, unknown)
        if self._partitions_max:
            yield self._lag_of_partitions(lag)

    def _lag_of_partitions(self, lag: Lag) -> Metric:
        found = GaugeMetricFamily(
            "leasehold_partition_lag_seconds",
            "Age of the oldest undelivered event, in the worst partitions of this host.",
            labels=["pipeline", "partition"],
        )
        ages = [
            (one.seconds, one.key)
            for one in lag.partitions
            if one.seconds is not None and one.key in self._host.workers
        ]
        for age_s, key in nlargest(self._partitions_max, ages):
            found.add_metric([key.pipeline, key.partition], age_s)
        return found


@cache
def build_info() -> Mapping[str, str]:
    """The versions that run, without importing anything. pyspark, revision: empty if there is none, or if it is unknown."""
    packages = (_version_of(name) for name in ("pyspark", "pyspark-connect", "pyspark-client"))
    return {
        "version": _version_of(NAME),
        "python": platform.python_version(),
        "pyspark": next(filter(None, packages), ""),
        "revision": _revision_in(distribution(NAME).read_text("direct_url.json")),
    }


def _version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _revision_in(direct_url: str | None) -> str:
    """The commit that an installer noted if it installed from a repository (PEP 610)."""
    found = parsed_json(direct_url or "{}", LEVELS_MAX)
    details = found.get("vcs_info") if isinstance(found, dict) else None
    return str(details.get("commit_id", "")) if isinstance(details, dict) else ""


def _add(family: HistogramMetricFamily, labels: list[str], histogram: Histogram) -> None:
    bounds = [*map(str, histogram.bounds_s), "+Inf"]
    buckets = list(zip(bounds, map(float, histogram.cumulative), strict=True))
    family.add_metric(labels, buckets, histogram.sum_s)
