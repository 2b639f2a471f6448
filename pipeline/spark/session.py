"""A pipeline's own Spark session, and what it keeps: the plan of a small batch, which is run again over the next ones.

Planning a query and generating its code takes Spark longer than running it over a few events. A DataFrame can be run any number
of times, and a plan without state (`runs_again`) reads its source again each time; so the source's rows are exchanged between
runs. While the kept plan runs, the query is optimized again, and the output counts only if nothing has changed. So parts of a
query may depend on the current time. Spark has no public name for the rows. If its internals differ from those known here,
nothing is kept, and each batch has a plan of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyspark
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from leasehold.common.nesting import parsed_json
from leasehold.pipeline.errors import EngineUnavailable, TransformError
from leasehold.pipeline.limits import JSON_LEVELS_MAX
from leasehold.pipeline.ranges import RangeReads
from leasehold.pipeline.spark.connect import Connected, is_expired, lost_server, lost_session, require_version
from leasehold.pipeline.spark.executors import RETURNED, OutputTask, RangeTask
from leasehold.pipeline.spark.jvm import Running
from leasehold.pipeline.spark.master import INVARIANTS
from leasehold.pipeline.spark.partition_contract import PARTITION, Contract, read_contract
from leasehold.pipeline.spark.plan_text import ROW_BY_ROW, may_shuffle, read_text, read_why_again
from leasehold.pipeline.spark.pyspark_internals import (
    cancel_jobs,
    exchange_rows,
    explained,
    has_run_jobs,
    of_plans,
    plan_of,
    rows_of,
    sent,
    sent_as,
    sent_rows,
)
from leasehold.pipeline.transform import TransformSpec

# The plans of a DataFrame, and what is read off them. Handles objects of Spark's JVM, which have no types here.


_BY_REFERENCE = frozenset(
    (
        "Aggregate",
        "Filter",
        "Generate",
        "GlobalLimit",
        "Join",
        "LocalLimit",
        "Project",
        "Sort",
        "SubqueryAlias",
        "View",
        "Window",
    )
)
"""Nodes that use only the columns that their expressions name, and pass the other columns through under the same ids."""
_STATELESS = frozenset(
    (
        "CoalesceExec",
        "FilterExec",
        "GenerateExec",
        "HashAggregateExec",
        "InputAdapter",
        "ObjectHashAggregateExec",
        "ProjectExec",
        "SortAggregateExec",
        "SortExec",
        "UnionExec",
        "WholeStageCodegenExec",
        "WindowExec",
    )
)
"""Physical nodes that compute their output from their input whenever they are run."""
_IN_ONE_TASK = ROW_BY_ROW | {
    "CTERelationDef",
    "CTERelationRef",
    "LogicalRDD",
    "MapInArrow",
    "MapInPandas",
    "PythonMapInArrow",
    "Range",
    "WithCTE",
}
"""Nodes that send no row to another task, and the leaves that read events."""


def contract_of(source: Any, output: Any) -> Contract:
    """source, output: the JVM's DataFrames of the events and of what a transform makes of them."""
    plan = _optimized(output)
    return read_contract(
        parsed_json(plan.toJSON(), JSON_LEVELS_MAX),
        sources=_partitions_of(plan, _rdd_of(_optimized(source))),
        output=next(column for name, column in _attributes(plan) if name == PARTITION),
        is_deterministic=plan.deterministic(),
    )


def columns_read(source: Any, output: Any) -> frozenset[str]:
    """All columns of the events from which the output is made, perhaps more. source, output: as in `contract_of`.

    Read off the analyzed plan: an optimized one may lack columns that matter on another day (`current_date()`).
    """
    plan = output.queryExecution().analyzed()
    read = {column for _, column in _attributes(plan)}
    for node in _nodes(plan):
        read.update(_ids(node.references()))
        if node.getClass().getSimpleName() not in _BY_REFERENCE:
            read.update(column for child in _each(node.children()) for _, column in _attributes(child))
    rdd = _rdd_of(source.queryExecution().analyzed())
    leaves = [node for node in _nodes(plan) if _rdd_of(node) == rdd]
    return frozenset(name for leaf in leaves for name, column in _attributes(leaf) if column in read)


def range_reads_of(source: Any, output: Any) -> RangeReads:
    """How a job would read ranges in place of the source. source, output: as in `contract_of`.

    Read off the analyzed plan, as above.
    """
    rdd = _rdd_of(source.queryExecution().analyzed())
    times = _count_leaves(output.queryExecution().analyzed(), lambda leaf: _rdd_of(leaf) == rdd)
    return RangeReads(max(1, times), why_read_again(output))


def why_read_again(output: Any) -> str | None:
    """Why a job may use two reads of one leaf; None if each row is made by the task that read its event. output: as above."""
    plan = output.queryExecution().analyzed()
    if other := [kind for kind in map(_kind_of, _nodes(plan)) if kind not in _IN_ONE_TASK]:
        return may_shuffle(other[0])
    times = _count_leaves(plan, lambda leaf: True)
    return None if times <= 1 else f"the transform reads `{VIEW}` {times} times"


def _count_leaves(plan: Any, is_counted: Callable[[Any], bool]) -> int:
    """How often counted leaves are read. Those of a common table expression count as often as the query names it."""
    defined = {int(node.id()): node for node in _nodes(plan) if _kind_of(node) == "CTERelationDef"}
    known: dict[int, int] = {}

    def count(node: Any) -> int:
        kind = _kind_of(node)
        if kind == "CTERelationRef":
            return count_named(int(node.cteId()))
        children = _each(node.children())
        own = int(not children and is_counted(node))
        if kind == "WithCTE":
            children = [child for child in children if _kind_of(child) != "CTERelationDef"]
        return own + sum(map(count, (*children, *_each(node.subqueries()))))

    def count_named(name: int) -> int:
        if name not in known:
            known[name] = 0  # within itself, if it is recursive
            known[name] = count(defined[name])
        return known[name]

    return count(plan)


def _kind_of(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def is_same(output: Any, other: Any) -> bool:
    """Whether two outputs of one query over one source are the same to Spark, after it has folded what depends on the time."""
    is_alike = _optimized(output).sameResult(_optimized(other))
    return bool(is_alike) and bool(output.schema().equals(other.schema()))


def runs_again(source: Any, output: Any) -> bool:
    """Whether running output again over other rows of source yields what a new plan would. source, output: as above.

    A plan may keep computed results: shuffles, broadcasts, subqueries. So only nodes that are known to keep none are
    accepted.
    """
    rdd = _rdd_of(source.queryExecution().analyzed().collectLeaves().apply(0))
    return rdd is not None and all(_is_stateless(node, rdd) for node in _nodes(output.queryExecution().executedPlan()))


def _is_stateless(node: Any, rdd: int) -> bool:
    name = node.getClass().getSimpleName()
    return int(node.rdd().id()) == rdd if name == "RDDScanExec" else name in _STATELESS


def _nodes(plan: Any) -> Iterator[Any]:
    """All nodes of a plan, also those of subqueries."""
    yield plan
    for below in (*_each(plan.children()), *_each(plan.subqueries())):
        yield from _nodes(below)


def _each(sequence: Any) -> list[Any]:
    return [sequence.apply(i) for i in range(sequence.size())]


def _ids(attributes: Any) -> list[int]:
    return [each.exprId().id() for each in _each(attributes.toSeq())]


def _rdd_of(node: Any) -> int | None:
    return int(node.rdd().id()) if node.getClass().getSimpleName() == "LogicalRDD" else None


def _optimized(frame: Any) -> Any:
    return frame.queryExecution().optimizedPlan()


def _attributes(node: Any) -> list[tuple[str, int]]:
    return [(each.name(), each.exprId().id()) for each in _each(node.output())]


def _partitions_of(plan: Any, rdd: int | None) -> frozenset[int]:
    """The ids of `partition` in every leaf that reads the events: a plan that reads them twice has two."""
    leaves = [leaf for leaf in _each(plan.collectLeaves()) if _rdd_of(leaf) == rdd]
    return frozenset(column for leaf in leaves for name, column in _attributes(leaf) if name == PARTITION)


VIEW = "events"
PLAINLY = {"spark.sql.debug.maxToStringFields": "10000"}
"""Plans are shown whole, since a Connect server shows nothing else of them."""
SMALL_BATCH_EVENTS = 10_000
"""Up to this many events, Arrow's rows are one Spark partition anyway; stating that saves every shuffle after it."""
KEPT_BYTES_MAX = 1024 * 1024
"""The largest batch that a kept plan runs over, because it holds the events of its last run in memory."""


@dataclass(eq=False, slots=True)
class CachedPlan:
    """A query over one source, whose rows are exchanged between runs. One run at a time."""

    query: Callable[[DataFrame], DataFrame]
    source: DataFrame
    """A DataFrame in a session of its own, in which the view `events` always means this source."""
    rows: Any
    """The JVM's partition of the source's RDD, which holds the rows."""
    output: DataFrame
    """The query's output, as it was last planned."""
    schema: pa.Schema
    """The schema of the events."""
    is_free: threading.Lock = field(default_factory=threading.Lock)
    _sent_as: pa.Schema = field(init=False)
    _beside: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "spark-plan"))

    def __post_init__(self) -> None:
        self._sent_as = sent_as(_schema_of(self.schema))

    def run(self, events: pa.Table) -> pa.Table | None:
        """The output of the query as it is planned now; None if that plan cannot be run again."""
        self.exchange(events)
        planned = self.output
        planning = self._beside.submit(self._plan)
        try:
            output = planned.toArrow()
        finally:
            wait([planning])
        if (now := planning.result()) is None:
            return None
        self.output = now  # not earlier: after an error, the kept plan is one that is known to run again
        return output if now is planned else now.toArrow()

    def exchange(self, events: pa.Table) -> None:
        (batch,) = events.cast(self._sent_as).combine_chunks().to_batches()
        exchange_rows(self.rows, sent_rows(self.source.sparkSession, batch))

    def _plan(self) -> DataFrame | None:
        """The query as it is planned now: the kept output if that is the same. None if it cannot be run again."""
        now = self.query(self.source)
        if is_same(plan_of(self.output), plan_of(now)):
            return self.output
        return now if runs_again(plan_of(self.source), plan_of(now)) else None


@dataclass(eq=False, slots=True)
class PipelineSession:
    """A pipeline's own session: no other pipeline sees its views and temporary functions."""

    running: Running
    session: SparkSession = field(init=False)
    kept: CachedPlan | None = None
    is_looked_at: bool = False
    """Whether a plan has been examined for keeping."""
    views: threading.Lock = field(default_factory=threading.Lock)
    """Held while the view `events` means one batch."""
    is_closed: bool = False
    lost: EngineUnavailable | None = None
    """Why this session is lost; others may still be used."""
    has_expired: bool = False
    """Whether it is lost because it was idle."""

    def __post_init__(self) -> None:
        self.session = self.running.new_session()
        settings = {**INVARIANTS, **PLAINLY} if self.running.is_remote else INVARIANTS
        try:
            if isinstance(self.running, Connected):  # the server may have been replaced since the host connected
                require_version(self.running.remote, self.session.version)
            for name, value in settings.items():
                self.session.conf.set(name, value)
        except Exception as error:
            self.abandon(error)
            raise

    def begin(self, group: str, name: str) -> None:
        """Assign this thread's jobs to the group from now on."""
        if self.running.is_remote:
            self.running.begin(group, self.session)
            self.session.clearTags()
            self.session.addTag(group)
        else:
            self.session.sparkContext.setJobGroup(group, f"micro-batch of {name}", interruptOnCancel=True)

    def share_with(self, pool: str | None) -> None:
        """Put this thread's jobs into a pool. Pools take turns on the cores. None: the pool of all other jobs.

        A Connect server decides that itself (docs/clusters.md).
        """
        if not self.running.is_remote:
            self.session.sparkContext.setLocalProperty("spark.scheduler.pool", pool)  # type: ignore[arg-type]

    def close(self) -> None:
        """Close it for good. Only a Connect server needs this: sessions of a JVM end with the JVM."""
        self.is_closed = True
        self.running.forget_session(self.session)

    def lose(self, error: BaseException) -> EngineUnavailable | None:
        """What a call's error means if only this session is lost; it is then closed. None if it is not lost."""
        if self.lost is None and (lost := lost_session(error, self.running)) is not None:
            self.has_expired, self.lost = is_expired(error), lost
            self.close()
        return self.lost

    def abandon(self, error: Exception) -> None:
        """Close it because a call failed while it was being opened. A server that is away does not have to end it."""
        lost_server(error, self.running)
        self.close()

    def add_module(self, path: Path) -> None:
        """Send a zip file of Python modules to the workers. The file has to exist as long as Spark runs."""
        if self.running.is_remote:
            self.session.addArtifacts(str(path), pyfile=True)
        else:
            self.session.sparkContext.addPyFile(str(path))

    def has_run_jobs(self) -> bool | None:
        """Whether this thread's group has run any jobs so far. None if this Spark does not show it. Not over Connect."""
        return has_run_jobs(self.session.sparkContext)

    def cancel(self, group: str) -> None:
        with suppress(PySparkException, Py4JError, OSError, ValueError):  # it has ended, or all of Spark has
            if self.running.is_remote:
                self.session.interruptTag(group)
            else:
                cancel_jobs(self.session.sparkContext, group)

    def events(self, table: pa.Table) -> DataFrame:
        """The events as the transform sees them."""
        frame = self._sent(table)
        return frame.coalesce(1) if table.num_rows <= SMALL_BATCH_EVENTS else frame

    def ranged(self, task: RangeTask, columns: Sequence[str]) -> DataFrame:
        """The events of the task's ranges, with these columns. A Spark task of its own reads each range."""
        count = len(task.ranges)
        numbers = self.session.range(0, count, 1, count)
        read = numbers.mapInArrow(cast(Any, task), _schema_of(task.schema))
        partition = lit(task.partition).alias(PARTITION)  # a constant: no task sends it, and no query groups by it
        return read.select(*(name if name in task.schema.names else partition for name in columns))

    def returned(self, output: DataFrame, task: OutputTask) -> pa.Table:
        """What executors send back of an output: RETURNED."""
        return output.mapInArrow(cast(Any, task), _schema_of(RETURNED)).toArrow()

    @property
    def looks_views_up_late(self) -> bool:
        """Whether a query uses the view as it is when the query runs, because a Connect server resolves names only then."""
        return self.running.is_remote

    def forget_view(self) -> None:
        """Drop the view; otherwise the events of this batch stay in the JVM until the next batch."""
        if not self.looks_views_up_late:
            self.session.catalog.dropTempView(VIEW)

    def keep(self, events: pa.Table, query: Callable[[DataFrame], DataFrame]) -> None:
        """Keep the plan of a query over the view, if it can be run again and is the same a moment later."""
        if self.is_looked_at or not _is_small(events) or self.running.is_remote:
            return
        self.is_looked_at = True
        with suppress(Py4JError, AttributeError, TypeError):  # a Spark with other internals
            source = PipelineSession(self.running).events(events)
            source.createOrReplaceTempView(VIEW)
            first, second = query(source), query(source)
            is_alike = is_same(plan_of(first), plan_of(second)) and runs_again(plan_of(source), plan_of(second))
            if is_alike and (rows := rows_of(source)) is not None:
                kept = CachedPlan(query, source, rows, second, events.schema)
                kept.exchange(events)  # if this fails, nothing is kept
                self.kept = kept

    def run_again(self, events: pa.Table) -> pa.Table | None:
        """The output of the kept plan; None if there is none, if it does not fit these events, or if it is busy."""
        kept = self.kept
        if kept is None or events.schema != kept.schema or not _is_small(events):
            return None
        if not kept.is_free.acquire(blocking=False):
            return None
        try:
            if (output := kept.run(events)) is None:
                self.kept = None
            return output
        finally:
            kept.is_free.release()

    def _sent(self, table: pa.Table) -> DataFrame:
        """Send the table in one chunk: Spark takes several times as long for many."""
        table = table.combine_chunks()
        schema = _schema_of(table.schema)
        if self.running.is_remote:
            return self.session.createDataFrame(table, schema)
        rows = SMALL_BATCH_EVENTS
        if table.num_rows > rows:  # a task for each core, since tasks of Spark's usual size cost half as much again
            rows = max(rows, -(-table.num_rows // self.session.sparkContext.defaultParallelism))
        return sent(self.session, table, schema, rows)

    def unknown(self, none: pa.Table) -> DataFrame:
        """As `events`, but the optimizer cannot know that the source is empty."""
        schema = _schema_of(none.schema)  # sending it and asking Spark would take a tenth of a host's start
        if self.running.is_remote:
            return self.session.createDataFrame([], schema)
        return self.session.createDataFrame(self.session.sparkContext.emptyRDD(), schema)

    def contract(self, source: DataFrame, output: DataFrame, sql: str | None) -> Contract:
        """sql: what makes the output of the source; None for a function."""
        unknown = Contract(None, f"the plans of PySpark {pyspark.__version__} cannot be read")
        if self.running.is_remote:
            if sql is None:
                return Contract(None, "over Spark Connect, what a function makes of the events is not known")
            return of_plans(lambda: read_text(sql, explained(output)), unknown)
        return of_plans(lambda: contract_of(plan_of(source), plan_of(output)), unknown)

    def range_reads(self, source: DataFrame, output: DataFrame, spec: TransformSpec) -> RangeReads:
        """spec: of the transform that makes the output of the source."""
        if not self.running.is_remote:
            return of_plans(lambda: range_reads_of(plan_of(source), plan_of(output)), _UNKNOWN)
        if spec.function is not None:
            return RangeReads(why_again="over Spark Connect, what a function makes of the events is not known")
        if (sql := spec.sql) is None:
            return RangeReads()
        return RangeReads(why_again=of_plans(lambda: read_why_again(sql, explained(output)), _UNKNOWN.why_again))

    def check_reads_once(self, output: DataFrame) -> None:
        """Check that this thread reads no event twice, for its output or in jobs that a function has run. Not over Connect.

        Raises TransformError.
        """
        why = of_plans(lambda: why_read_again(plan_of(output)), _UNKNOWN.why_again)
        if why is None and self.has_run_jobs() is not False:
            why = "the transform's function may have run Spark jobs of its own"
        if why is not None:
            raise TransformError(f"{why}: set `executors_read: false`")


_UNKNOWN = RangeReads(why_again=f"the plans of PySpark {pyspark.__version__} cannot be read")


def _schema_of(events: pa.Schema) -> StructType:
    return from_arrow_schema(events, prefer_timestamp_ntz=True)  # a timestamp without zone has none


def _is_small(events: pa.Table) -> bool:
    return 0 < events.num_rows <= SMALL_BATCH_EVENTS and bool(events.nbytes <= KEPT_BYTES_MAX)
