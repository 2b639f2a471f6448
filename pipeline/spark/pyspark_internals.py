"""Private parts of PySpark, which it may change without notice. Only this module uses them.

PARTS are needed to end a JVM and to start another one, so without them Spark does not start. Every other function here falls back
to public calls, which are slower and keep the same guarantees; `fallbacks` names them.
"""

from __future__ import annotations

import inspect
import logging
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar, cast

import pyspark
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkConf, SparkContext, java_gateway
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from leasehold.pipeline.errors import EngineUnavailable
from leasehold.pipeline.spark.watch import KNOWN, UNKNOWN, ClusterAnswer, about_pods, about_workers

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
TESTED = ("4.0.0", "4.3.0")
"""The oldest and the newest release that `make dist` tries."""
PARTS: Mapping[type, tuple[str, ...]] = {
    SparkContext: ("_gateway", "_jvm", "_active_spark_context"),
    SparkSession: ("_instantiatedSession", "_activeSession"),
}
"""Class -> its attributes that still refer to a context that has ended."""
KNOWN_S, KNOWN_OF_SEVERAL_S = 8, 3
"""How long a master, or an API server of Kubernetes, may take to answer what it knows about an application; and each of several
masters, all but one of which may be silent."""
_ALIVE = frozenset((403, 429))
"""Statuses of an API server that works, but does not list pods: without the right to, or because it is busy. Others, such as 503,
may be a proxy's whose API servers are away, and another driver reads its token again, which 401 refuses."""
CAUSES_MAX = 20
"""How many exceptions of a chain are read. Spark's have about five."""
_SENDS = (
    *("self", "table", "schema", "timezone"),
    *("prefer_timestamp_ntz", "prefers_large_var_types", "arrow_batch_size"),
)
"""The parameters of `_create_from_arrow_table`, since PySpark 4.2."""


def require_parts() -> None:
    """Raises EngineUnavailable, which names what is missing."""
    if missing := missing_parts():
        raise _lacks(missing)


def missing_parts() -> list[str]:
    launch = getattr(java_gateway, "launch_gateway", None)
    code = getattr(launch, "__code__", None)
    is_known = code is not None and code.co_varnames[: code.co_argcount] == ("conf", "popen_kwargs")
    calls_popen = code is not None and "Popen" in code.co_names
    found = [] if is_known and calls_popen else ["launch_gateway(conf, popen_kwargs), which calls Popen"]
    return found + [
        f"{kind.__name__}.{name}" for kind, names in PARTS.items() for name in names if not hasattr(kind, name)
    ]


def fallbacks() -> list[str]:
    """The steps that use public calls, because this PySpark lacks a private part. A JVM may show more of them later."""
    return [] if _sends_at_once() else ["SparkSession._create_from_arrow_table with a batch size"]


def release_of(version: str) -> tuple[int, int]:
    """The major and the minor number. A version of another form counts as the newest."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (sys.maxsize, 0)


def same_version(version: str, of: str = "cluster", package: str = "pyspark") -> str:
    """What to do about a Spark of another version elsewhere. Only a PySpark that this code can use is recommended."""
    update = f"install Spark {pyspark.__version__} on the {of}"
    oldest, newest = map(release_of, TESTED)
    is_usable = oldest <= release_of(version) < (newest[0] + 1, 0)
    return f"{update}, or here: pip install '{package}=={version}'" if is_usable else update


def launch_gateway(conf: SparkConf, options: Mapping[str, Any], popen: Callable[..., Any]) -> Any:
    """PySpark's gateway to a JVM. popen: replaces PySpark's Popen, because PySpark returns the process only after seconds."""
    launch = java_gateway.launch_gateway
    return FunctionType(launch.__code__, {**vars(java_gateway), "Popen": popen}, argdefs=(None, None))(conf, options)


def forget_context() -> None:
    """Remove all references to a context that is gone; otherwise the next one could not start."""
    if SparkContext._gateway is not None:
        with suppress(Py4JError, OSError):
            SparkContext._gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None


def run_python(context: SparkContext, command: str) -> None:
    """Let workers run this Python instead of PYSPARK_PYTHON or a python3 from PATH. Raises EngineUnavailable."""
    if not hasattr(context, "pythonExec"):
        raise _lacks(["SparkContext.pythonExec"])
    context.pythonExec = command


def quieten(context: SparkContext) -> None:
    """Keep PySpark and py4j from printing errors that they also raise; some are printed without any logging."""
    logging.getLogger("SQLQueryContextLogger").disabled = True
    if (server := getattr(context, "_accumulatorServer", None)) is not None:
        server.handle_error = lambda *_: None


def find_at_once(context: SparkContext) -> None:
    """Look up, once, classes that every batch names without a package. Otherwise the JVM searches all jars for them each time."""
    jvm = cast(Any, context)._jvm
    for name in ("PythonSQLUtils", "PythonUtils"):
        setattr(jvm, name, getattr(jvm, name))


def web_port(gateway: Any, conf: Mapping[str, str], host: str, port: int) -> int | None:
    """The port of the standalone master's web page, from the master itself, in Spark's own protocol. None if it does not answer.

    conf: the driver's. Blocks until the master answers, which may be never. Must not run on a thread that waits in the JVM.
    """
    try:
        with _master_answer(gateway.jvm, conf, host, port, "master.MasterMessages$BoundPortsRequest$") as answer:
            return int(answer.webUIPort())
    except Exception:  # a Spark with other internals, or a JVM that is gone
        return None


def standing_at(context: SparkContext, host: str, port: int, within_s: int = KNOWN_S) -> ClusterAnswer:
    """What a standalone master answers about the driver's application. Blocks for a few times `within_s` at most."""
    in_time = dict.fromkeys(("spark.rpc.askTimeout", "spark.rpc.lookupTimeout"), f"{within_s}s")
    try:
        conf, jvm = {**dict(context.getConf().getAll()), **in_time}, context._jvm
        with _master_answer(jvm, conf, host, port, "DeployMessages$RequestMasterState$") as state:
            if context.applicationId in [each.id() for each in state.activeApps()]:  # also while the master recovers
                return ClusterAnswer(True, _about_workers(state))
            return ClusterAnswer(False if state.status().toString() == "ALIVE" else None)
    except Exception:  # as above
        return UNKNOWN


def _about_workers(state: Any) -> str:
    try:
        alive = [each for each in state.workers() if each.state().toString() == "ALIVE"]
        return about_workers(len(alive), sum(each.coresFree() for each in alive))
    except Exception:  # as above
        return ""


def standing_in_kubernetes(context: SparkContext) -> ClusterAnswer:
    """What the API server answers about the pods of the driver's executors. Blocks for a few times KNOWN_S at most."""
    try:
        pods = _pods_of(context)
    except Py4JJavaError as error:
        code = _status_of(error)
        return ClusterAnswer(code in _ALIVE or None, f"the API server answers with status {code}") if code else UNKNOWN
    except Exception:  # as above
        return UNKNOWN
    try:
        return ClusterAnswer(True, about_pods([_state_of(each) for each in pods]))
    except Exception:  # as above
        return KNOWN


def _pods_of(context: SparkContext) -> Any:
    jvm = cast(Any, context)._jvm
    config = jvm.io.fabric8.kubernetes.client.RequestConfigBuilder()
    config = config.withRequestTimeout(KNOWN_S * 1000).withRequestRetryBackoffLimit(0).build()
    own = cast(Any, context)._jsc.sc().schedulerBackend().kubernetesClient()
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    kind = jvm.java.lang.Class.forName("io.fabric8.kubernetes.client.KubernetesClient", True, loader)
    client = own.newClient(config).adapt(kind)
    pods = client.pods().inNamespace(context.getConf().get("spark.kubernetes.namespace", "default"))
    pods = pods.withLabel("spark-app-selector", context.applicationId).withLabel("spark-role", "executor")
    return pods.list().getItems()


def _state_of(pod: Any) -> tuple[str, str]:
    """The pod's phase, and why it does not run yet, if Kubernetes shows that."""
    status = pod.getStatus()
    waiting = [each.getState().getWaiting() for each in status.getContainerStatuses() if each.getState() is not None]
    unmet = [
        each for each in status.getConditions() if each.getStatus() == "False" and each.getType() == "PodScheduled"
    ]
    reasons = [each.getReason() for each in waiting if each is not None]
    reasons += [each.getMessage() or each.getReason() for each in unmet]
    return str(status.getPhase() or ""), next((str(each) for each in reasons if each), "")


def _status_of(error: Py4JJavaError) -> int:
    """The HTTP status in an error of the Kubernetes client; 0 if the server did not answer."""
    with suppress(Exception):  # an error of another kind
        return max(0, int(error.java_exception.getCode()))  # -1: no answer
    return 0


@contextmanager
def _master_answer(jvm: Any, conf: Mapping[str, str], host: str, port: int, question: str) -> Iterator[Any]:
    """question: the name of an object in `org.apache.spark.deploy`."""
    settings = jvm.org.apache.spark.SparkConf(False)
    for name, value in conf.items():
        settings.set(name, value)
    security = jvm.org.apache.spark.SecurityManager
    none = getattr(getattr(jvm, "scala.None$"), "MODULE$")
    secured = security(settings, none, getattr(security, "$lessinit$greater$default$3")())
    # A separate RpcEnv: py4j cannot call methods of SparkEnv, which has the driver's.
    rpc = getattr(getattr(jvm, "org.apache.spark.rpc.RpcEnv$"), "MODULE$")
    client = rpc.create("leasehold-asks", "127.0.0.1", 0, settings, secured, True)
    try:
        asks = getattr(getattr(jvm, f"org.apache.spark.deploy.{question}"), "MODULE$")
        master = client.setupEndpointRef(jvm.org.apache.spark.rpc.RpcAddress(host, port), "Master")
        yield master.askSync(asks, jvm.scala.reflect.ClassTag.Any())
    finally:
        client.shutdown()


def close_channel(session: SparkSession) -> None:
    """End every call that waits for a Connect server. Closing the client would first wait 10 s for some of them."""
    if (channel := getattr(cast(Any, session).client, "_channel", None)) is not None:
        channel.close()


def sent(session: SparkSession, table: pa.Table, schema: StructType, partition_rows: int) -> DataFrame:
    """The table in Spark. partition_rows: rows of each Spark partition; the public call uses that of `spark.conf` instead."""
    if not _sends_at_once():
        return session.createDataFrame(table, schema)
    # What createDataFrame does, without its two dozen calls to the JVM for these settings.
    return cast(Any, session)._create_from_arrow_table(table, schema, "UTC", True, False, partition_rows)  # type: ignore[no-any-return]


def _sends_at_once() -> bool:
    send = getattr(SparkSession, "_create_from_arrow_table", None)
    return send is not None and tuple(inspect.signature(send).parameters) == _SENDS


def java_causes(error: BaseException) -> list[tuple[str, str]]:
    """Class and message of the Java exceptions that caused an error, from the one raised to its root. Empty if they are out of
    reach: over Connect, or because the JVM is gone."""
    cause: Any = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    found: list[tuple[str, str]] = []
    try:
        while cause is not None and len(found) < CAUSES_MAX:
            found.append((str(cause.getClass().getName()), str(cause.getMessage() or "")))
            cause = cause.getCause()
    except Exception:  # whatever state the JVM is in, as in `text_of`
        return []
    return found


def plan_of(frame: DataFrame) -> Any:
    """The JVM's DataFrame, which shows its plans."""
    return frame._jdf


def explained(frame: DataFrame) -> str:
    """The text of all plans of a DataFrame. Only over Connect."""
    return cast(Any, frame)._explain_string(extended=True)  # type: ignore[no-any-return]


def rows_of(source: DataFrame) -> Any:
    """The only partition of a small batch's RDD, which holds its rows; None if `spark.conf` splits it into several.

    Raises AttributeError, TypeError or Py4JError if Spark's internals differ from those known here.
    """
    leaf = plan_of(source).queryExecution().analyzed().collectLeaves().apply(0)
    partitions = leaf.rdd().dependencies().apply(0).rdd().partitions()
    return partitions[0] if len(partitions) == 1 else None


def sent_as(schema: StructType) -> pa.Schema:
    """The Arrow schema in which Spark reads rows of this schema. Raises TypeError."""
    takes_zone = "timezone" in inspect.signature(to_arrow_schema).parameters  # or it is always UTC
    return to_arrow_schema(schema, timezone="UTC") if takes_zone else to_arrow_schema(schema)


def sent_rows(session: SparkSession, batch: pa.RecordBatch) -> Any:
    """A batch in the JVM as a partition holds it, without a DataFrame. Raises the errors of `rows_of`."""
    return cast(Any, session)._jvm.PythonUtils.toSeq([batch.serialize().to_pybytes()])


def exchange_rows(kept: Any, rows: Any) -> None:
    """Replace a partition's rows. Raises the errors of `rows_of`."""
    getattr(kept, "values_$eq")(rows)


def of_plans(read: Callable[[], T], otherwise: T) -> T:
    """What `read` finds in plans of the JVM, or `otherwise` if this Spark's plans have no such part. Raises all other errors."""
    try:
        return read()
    except (AttributeError, TypeError):
        return otherwise
    except Py4JError as error:
        if not _is_missing(error):
            raise
        return otherwise


def has_run_jobs(context: SparkContext) -> bool | None:
    """Whether this thread's group has run any jobs so far. None if this Spark does not show it."""

    def wait() -> bool:  # the tracker learns of jobs from the bus
        context._jsc.sc().listenerBus().waitUntilEmpty()
        return True

    if not of_plans(wait, False):
        return None
    return bool(context.statusTracker().getJobIdsForGroup(context.getLocalProperty("spark.jobGroup.id")))


def cancel_jobs(context: SparkContext, group: str) -> None:
    """Cancel jobs of the group, also those that it would begin later. The public call ends only those that have begun."""

    def cancel() -> bool:
        context._jsc.sc().cancelJobGroupAndFutureJobs(group)  # only Scala's API has it
        return True

    if not of_plans(cancel, False):
        context.cancelJobGroup(group)


def _is_missing(error: Py4JError) -> bool:
    """Whether the JVM has no such method or field. Otherwise a call has failed, or there is no connection."""
    return type(error) is Py4JError and "does not exist" in str(error)


def _lacks(missing: list[str]) -> EngineUnavailable:
    return EngineUnavailable(
        f"PySpark {pyspark.__version__} lacks {', '.join(missing)}, without which its JVM cannot be started and ended:"
        f" pip install 'pyspark=={TESTED[-1]}'"
    )
