"""The private parts of PySpark: a release without one is refused by name, or used through public calls."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pyspark
import pytest
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark import SparkContext, java_gateway
from pyspark.sql import SparkSession

from leasehold.pipeline.errors import EngineUnavailable
from leasehold.pipeline.spark import pyspark_internals as internals
from leasehold.pipeline.spark.jvm import Running, start_jvm
from leasehold.pipeline.spark.master import defaults
from leasehold.pipeline.spark.runs import ANSWER_S
from leasehold.pipeline.spark.watch import UNKNOWN, ClusterAnswer

PACKAGE = Path(internals.__file__).parent
NO_METHOD = Py4JError("An error occurred while calling o1.sc. Trace:\npy4j.Py4JException: Method sc([]) does not exist")


PANDAS_3 = """
import pandas
pandas.__version__ = "3.0.0"
%s
from pyspark.sql.pandas.utils import require_minimum_pandas_version
for _ in range(2):
    require_minimum_pandas_version()
exec("require_minimum_pandas_version()")
"""


@pytest.mark.parametrize("imports", ["", "import leasehold.pipeline.spark"])
def test_a_start_does_not_print_that_pandas_is_newer_than_pyspark_knows(imports: str) -> None:
    ran = subprocess.run([sys.executable, "-c", PANDAS_3 % imports], capture_output=True, text=True, check=True)
    assert ("PySpark does not yet fully support pandas >= 3" in ran.stderr) is (not imports)
    assert not (imports and ran.stderr)


def test_the_pyspark_that_is_installed_has_them_all() -> None:
    assert internals.missing_parts() == []


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in internals.PARTS.items() for name in names])
def test_no_jvm_is_launched_if_a_part_is_missing(kind: type, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(kind, name)
    launched: list[object] = []
    with pytest.raises(
        EngineUnavailable, match=rf"^PySpark [0-9.]+ lacks {kind.__name__}\.{name}, .*: pip install 'pyspark=="
    ):
        start_jvm(defaults("local[1]", "512m", 1 << 20), launched.append)
    assert not launched


@pytest.mark.parametrize("version", [internals.TESTED[0], "4.2.1", internals.TESTED[-1], "4.99.0"])
def test_a_pyspark_that_can_be_used_may_follow_the_cluster(version: str) -> None:
    said = internals.same_version(version, "server", "pyspark[connect]")
    assert said == (
        f"install Spark {pyspark.__version__} on the server, or here: pip install 'pyspark[connect]=={version}'"
    )


@pytest.mark.parametrize("version", ["3.5.9", "5.0.0", "9000"])
def test_a_pyspark_that_cannot_be_used_is_not_recommended(version: str) -> None:
    assert internals.same_version(version) == f"install Spark {pyspark.__version__} on the cluster"


def test_a_driver_with_other_insides_does_not_learn_the_port_of_a_page() -> None:
    assert internals.web_port(SimpleNamespace(), {}, "127.0.0.1", 7077) is None


def test_a_driver_with_other_insides_does_not_learn_what_its_cluster_knows() -> None:
    context = cast(SparkContext, SimpleNamespace())
    assert internals.standing_at(context, "127.0.0.1", 7077) == UNKNOWN
    assert internals.standing_in_kubernetes(context) == UNKNOWN


@pytest.mark.parametrize(("place", "within_s"), [("spark://a:7077", 8), ("spark://a:7077,b:7077", 3)])
def test_a_master_may_answer_slowly_unless_others_are_asked_too(
    place: str, within_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is busy is not dead."""
    asked: list[Mapping[str, str]] = []

    @contextmanager
    def answer(jvm: object, conf: Mapping[str, str], *question: object) -> Iterator[None]:
        asked.append(conf)
        raise OSError("silent")
        yield

    monkeypatch.setattr(internals, "_master_answer", answer)
    context = SimpleNamespace(
        master=place, applicationId="app-1", _jvm=None, getConf=lambda: SimpleNamespace(getAll=dict)
    )
    assert Running(cast(Any, SimpleNamespace(sparkContext=context))).standing() == UNKNOWN
    times = {"spark.rpc.askTimeout": f"{within_s}s", "spark.rpc.lookupTimeout": f"{within_s}s"}
    assert asked == [times] * len(place.split(","))
    assert within_s < ANSWER_S


def test_an_api_server_may_answer_slowly() -> None:
    context = MagicMock(spec=SparkContext, applicationId="app-1", _jvm=MagicMock(), _jsc=MagicMock())
    internals.standing_in_kubernetes(context)
    config = context._jvm.io.fabric8.kubernetes.client.RequestConfigBuilder.return_value
    config.withRequestTimeout.assert_called_once_with(8_000)


@pytest.mark.parametrize(
    ("code", "knows"), [(403, True), (429, True), (401, None), (404, None), (500, None), (503, None)]
)
def test_an_api_server_knows_pods_only_if_it_works(
    code: int, knows: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A status may be that of a proxy whose API servers are away, or of a token that another driver would read again."""
    refuse_with(code, monkeypatch)
    standing = internals.standing_in_kubernetes(cast(SparkContext, SimpleNamespace()))
    assert standing == ClusterAnswer(knows, f"the API server answers with status {code}")


def test_an_api_server_without_a_status_has_not_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client of Kubernetes has -1 for a connection that is refused."""
    refuse_with(-1, monkeypatch)
    assert internals.standing_in_kubernetes(cast(SparkContext, SimpleNamespace())) == UNKNOWN


def refuse_with(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(context: SparkContext) -> None:
        raise Py4JJavaError("", SimpleNamespace(_target_id="o1", getCode=lambda: code))

    monkeypatch.setattr(internals, "_pods_of", refuse)


def launch_without_options(conf: object = None) -> None:
    java_gateway.Popen([str(conf)])  # type: ignore[attr-defined]


def launch_by_other_means(conf: object = None, popen_kwargs: object = None) -> None:
    pass


@pytest.mark.parametrize("launch", [launch_without_options, launch_by_other_means, None])
def test_another_way_to_launch_a_jvm_is_refused(launch: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java_gateway, "launch_gateway", launch)
    with pytest.raises(
        EngineUnavailable, match=r"lacks launch_gateway\(conf, popen_kwargs\), which calls Popen, without"
    ):
        internals.require_parts()


def test_a_context_without_a_python_of_its_own_is_refused() -> None:
    with pytest.raises(EngineUnavailable, match=r"lacks SparkContext\.pythonExec, without"):
        internals.run_python(SimpleNamespace(), "python3")  # type: ignore[arg-type]


def test_a_table_is_sent_by_the_public_call_if_the_private_one_takes_other_arguments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def send(self: object, table: object, schema: object, timezone: str) -> None:  # as in 4.0
        raise AssertionError

    monkeypatch.setattr(SparkSession, "_create_from_arrow_table", send)
    session: Any = SimpleNamespace(createDataFrame=lambda table, schema: (table, schema))
    assert internals.fallbacks() == ["SparkSession._create_from_arrow_table with a batch size"]
    table, schema = object(), object()
    sent: object = internals.sent(session, table, schema, 1)  # type: ignore[arg-type]
    assert sent == (table, schema)


def raising(error: Exception) -> Any:
    def call(*_: object) -> Any:
        raise error

    return call


@pytest.mark.parametrize("error", [NO_METHOD, AttributeError("_jdf"), TypeError("no number")])
def test_a_plan_that_has_no_such_part_is_unknown(error: Exception) -> None:
    assert internals.of_plans(raising(error), "unknown") == "unknown"


@pytest.mark.parametrize("error", [Py4JError("An error occurred"), Py4JNetworkError("it does not exist any more")])
def test_a_jvm_that_fails_is_no_other_release(error: Exception) -> None:
    with pytest.raises(type(error)):
        internals.of_plans(raising(error), "unknown")


def test_rows_are_exchanged_and_another_spark_refuses() -> None:
    kept: dict[str, object] = {}
    partition = SimpleNamespace()
    setattr(partition, "values_$eq", lambda rows: kept.update(rows=rows))
    internals.exchange_rows(partition, "rows")
    assert kept == {"rows": "rows"}
    with pytest.raises(AttributeError):
        internals.exchange_rows(SimpleNamespace(), "rows")


def test_jobs_that_this_spark_does_not_tell_are_unknown() -> None:
    context: Any = SimpleNamespace(_jsc=SimpleNamespace(sc=raising(NO_METHOD)))
    assert internals.has_run_jobs(context) is None


def test_jobs_are_cancelled_by_the_public_call_if_the_private_one_is_missing() -> None:
    cancelled: list[str] = []
    context: Any = SimpleNamespace(_jsc=SimpleNamespace(sc=raising(NO_METHOD)), cancelJobGroup=cancelled.append)
    internals.cancel_jobs(context, "group")
    assert cancelled == ["group"]


def test_no_other_module_touches_private_parts() -> None:
    found = {path.name for path in PACKAGE.glob("*.py") if any(_private_of_others(path))}
    assert found == {"pyspark_internals.py"}


def test_no_other_module_names_parts_of_scala_classes() -> None:
    assert {path.name for path in PACKAGE.glob("*.py") if "_$eq" in path.read_text()} == {"pyspark_internals.py"}


def _private_of_others(path: Path) -> Iterator[str]:
    """Attributes with an underscore that are taken of anything but `self` and `cls`."""
    for node in ast.walk(ast.parse(path.read_text())):
        is_private = isinstance(node, ast.Attribute) and re.match("_[^_]", node.attr)
        if is_private and not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")):
            yield node.attr


class Throwable:
    """One of Java's, as py4j shows it."""

    def __init__(self, kind: str, message: str | None, cause: Throwable | None = None) -> None:
        self.getClass = lambda: SimpleNamespace(getName=lambda: kind)
        self.getMessage = lambda: message
        self.getCause: Callable[[], Throwable | None] = lambda: cause


class Raised(Exception):
    def __init__(self, **thrown: object) -> None:
        vars(self).update(thrown)


@pytest.mark.parametrize("name", ["java_exception", "_origin"])
def test_the_causes_of_an_error_are_those_of_the_jvm(name: str) -> None:
    thrown = Throwable("a.Outer", "outer", Throwable("a.Inner", None))
    assert internals.java_causes(Raised(**{name: thrown})) == [("a.Outer", "outer"), ("a.Inner", "")]


def test_an_error_of_no_jvm_or_of_one_that_is_gone_has_no_causes() -> None:
    gone = Throwable("a.Outer", "outer")

    def refuse() -> Throwable | None:
        raise Py4JNetworkError("refused")

    gone.getCause = refuse
    assert internals.java_causes(ValueError("x")) == []
    assert internals.java_causes(Raised(java_exception=gone)) == []


def test_causes_in_a_circle_come_to_an_end() -> None:
    thrown = Throwable("a.Outer", "outer")
    thrown.getCause = lambda: thrown
    assert len(internals.java_causes(Raised(java_exception=thrown))) == internals.CAUSES_MAX
