"""Spark's JVM: started, found dead, stopped, with nothing of it left behind."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from pipeline.errors import EngineUnavailable
from pipeline.spark.conf import roomy_shm
from pipeline.spark.java import drained, end_process, last_words, require_java
from pipeline.spark.reason import reason_of

_ARGUMENTS = (
    *("spark.driver.", "spark.jars", "spark.submit.", "spark.files", "spark.archives"),
    *("spark.master", "spark.app.name"),
)
"""What a JVM has to know before it runs, and spark-submit before the JVM. All else is told over the JVM's socket: arguments stand
in process lists, and a setting may be a key."""


@dataclass(eq=False, slots=True)
class Running:
    """A root session, and the JVM that serves it where that is ours.

    said: the last lines that the JVM and its Python workers wrote. is_broken: set by whoever finds that no job can run.
    """

    session: SparkSession
    process: subprocess.Popen[bytes] | None = None
    said: deque[str] = field(default_factory=deque)
    scratch: str | None = None
    is_broken: bool = False

    @property
    def is_remote(self) -> bool:
        return self.process is None

    @property
    def is_alive(self) -> bool:
        return not self.is_broken and (self.process is None or self.process.poll() is None)

    def has_died(self) -> bool:
        """Blocks for a moment: a JVM that no longer answers may not be gone yet."""
        if self.process is None:
            return False
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(2)
        return self.process.poll() is not None

    def stop(self) -> None:
        if self.process is None:
            with suppress(PySparkException, OSError):
                self.session.stop()
            return
        if self.process.poll() is None:
            with suppress(PySparkException, Py4JError, OSError):
                self.session.stop()
        end_process(self.process)
        _forget_context()
        _forget_scratch(self.scratch)


def started(conf: Mapping[str, str], launched: Callable[[subprocess.Popen[bytes]], None]) -> Running:
    """A JVM of our own. Blocks for seconds. launched: told of its process early, so that it can be killed while it starts.

    Raises EngineUnavailable.
    """
    require_java()
    scratch = None if "spark.local.dir" in conf else tempfile.mkdtemp(prefix="leasehold-spark-", dir=roomy_shm())
    try:
        return _session_of({**conf, **({"spark.local.dir": scratch} if scratch else {})}, scratch, launched)
    except EngineUnavailable:
        _forget_scratch(scratch)
        raise


def _session_of(
    conf: Mapping[str, str], scratch: str | None, launched: Callable[[subprocess.Popen[bytes]], None]
) -> Running:
    settings = _spark_conf(conf)
    arguments = _spark_conf({name: value for name, value in conf.items() if name.startswith(_ARGUMENTS)})
    said, output = drained()
    try:
        # A session of its own, so that a terminal's Ctrl-C does not take the JVM away before we have stopped.
        gateway = launch_gateway(arguments, {"stdout": output, "stderr": output, "start_new_session": True})  # type: ignore[no-untyped-call]
    except (PySparkException, OSError) as error:
        raise EngineUnavailable(f"Spark did not start: {last_words(said) or error}") from error
    finally:
        os.close(output)
    launched(gateway.proc)
    logging.getLogger().addFilter(_is_not_of_py4j)
    try:
        context = SparkContext(gateway=gateway, conf=settings)
        if conf["spark.master"].startswith("local"):
            context.pythonExec = sys.executable  # else workers take PYSPARK_PYTHON, or another python3 from PATH
        _quieten(context)
        _find_at_once(context)
        return Running(SparkSession(context), gateway.proc, said, scratch)
    except (PySparkException, Py4JError, OSError) as error:
        end_process(gateway.proc)
        _forget_context()
        raise EngineUnavailable(f"Spark did not start: {reason_of(str(error))}") from error


def _spark_conf(conf: Mapping[str, str]) -> SparkConf:
    return SparkConf(loadDefaults=False).setAll(list(conf.items()))


def _quieten(context: SparkContext) -> None:
    """Everything that goes wrong is raised; pyspark and py4j print it as well, some of it past all logging."""
    logging.getLogger("SQLQueryContextLogger").disabled = True
    context._accumulatorServer.handle_error = lambda *_: None  # type: ignore[method-assign]  # noqa: SLF001


def _find_at_once(context: SparkContext) -> None:
    """Classes that every batch asks for by names without a package: or else the JVM looks through all jars for them each time."""
    jvm = cast(Any, context)._jvm  # noqa: SLF001
    for name in ("PythonSQLUtils", "PythonUtils"):
        setattr(jvm, name, getattr(jvm, name))


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return not (record.module in ("java_gateway", "clientserver") and record.name == "root")


def connected(remote: str) -> Running:
    """A Spark Connect server. Blocks. Raises EngineUnavailable."""
    try:
        return Running(SparkSession.builder.remote(remote).create())
    except (PySparkException, ImportError, OSError) as error:
        remedy = ". Install leasehold[connect]" if isinstance(error, ImportError) else ""
        raise EngineUnavailable(
            f"the Spark Connect server at '{remote}' cannot be used: {reason_of(str(error))}{remedy}"
        ) from error


def _forget_context() -> None:
    """Leave nothing of a context that is gone, or the next one could not start. pyspark has no other way."""
    if SparkContext._gateway is not None:  # noqa: SLF001
        with suppress(Py4JError, OSError):
            SparkContext._gateway.shutdown()  # noqa: SLF001
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None  # noqa: SLF001
    SparkSession._instantiatedSession = SparkSession._activeSession = None  # noqa: SLF001


def _forget_scratch(scratch: str | None) -> None:
    if scratch:
        shutil.rmtree(scratch, ignore_errors=True)
