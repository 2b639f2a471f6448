"""Spark's JVM: it is started, found dead, and stopped without leaving anything behind."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import pyspark
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from leasehold.pipeline.errors import EngineUnavailable
from leasehold.pipeline.spark.jre import ProcessOutput, end_process, read_output, require_jars, require_java
from leasehold.pipeline.spark.master import (
    addresses,
    is_standalone,
    read_version,
    require_image,
    require_master,
    roomy_shm,
)
from leasehold.pipeline.spark.pyspark_internals import (
    KNOWN_OF_SEVERAL_S,
    KNOWN_S,
    fallbacks,
    find_at_once,
    forget_context,
    launch_gateway,
    quieten,
    release_of,
    require_parts,
    run_python,
    same_version,
    standing_at,
    standing_in_kubernetes,
    web_port,
)
from leasehold.pipeline.spark.reason import complaint, end_reason, reason_of, start_advice, start_reason
from leasehold.pipeline.spark.watch import ClusterAnswer, TaskCounts, answer_of

# Directories for Spark's shuffles and blocks, removed with their process, or by the next start if it was killed.
#
# Each directory holds a file that its process keeps locked, and the JVM with it. The lock shows whether the directory is in use;
# the process id in its name is for people, because another process may have it tomorrow.


PREFIX = "leasehold-spark-"
_NAME = re.compile(re.escape(PREFIX) + r"\d+-\w+")
_LOCK = "lock"


@dataclass(frozen=True, slots=True)
class Scratch:
    """lock: the descriptor that holds the lock. A child that inherits it holds the lock as well."""

    path: Path
    lock: int

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self.lock)


def make_scratch(parent: str | None = None) -> Scratch:
    """parent: by default the directory for temporary files. Raises OSError."""
    folder = Path(parent or tempfile.gettempdir())
    remove_abandoned(folder)
    # It gets its name once it is locked: under that name, a directory without a lock would look abandoned.
    hidden = Path(tempfile.mkdtemp(prefix=f".{PREFIX}{os.getpid()}-", dir=folder))
    lock = os.open(hidden / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    return Scratch(hidden.rename(hidden.with_name(hidden.name[1:])), lock)


def remove_abandoned(folder: Path) -> None:
    """Remove this user's directories that no process uses. Anything else with such a name stays. Failures are ignored."""
    with suppress(OSError), os.scandir(folder) as found:
        for path in [Path(each.path) for each in found if _NAME.fullmatch(each.name)]:
            with suppress(OSError), _held(path):
                shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _held(path: Path) -> Iterator[None]:
    """Hold the lock of a directory of ours. Raises OSError if it is not ours, is a link, or is in use."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        lock = os.open(_LOCK, os.O_RDWR | os.O_NOFOLLOW, dir_fd=folder)
        try:
            if os.fstat(folder).st_uid != os.getuid():
                raise PermissionError(f"{path} belongs to another user")
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        finally:
            os.close(lock)
    finally:
        os.close(folder)


_log = logging.getLogger(__name__)
_ARGUMENTS = (
    *("spark.driver.", "spark.jars", "spark.submit.", "spark.files", "spark.archives"),
    *("spark.master", "spark.app.name"),
)
"""What a JVM has to know before it runs, or spark-submit before the JVM. All else is sent over the JVM's socket: arguments are
visible in process lists, and a setting may be a key."""
_PYTHON = "spark.pyspark.python"
"""Read by spark-submit, which does not start this driver's Python."""
REGISTRATION_S = 10.0
"""How long a standalone master that answers may take to register us, which takes milliseconds."""
VERSION_S = 15.0
"""How long a master that does not register us may take to show its version, so that the error can name it."""
LOOK_S = 0.2
END_S = 10.0
"""How long a JVM that no longer answers may take to end. What it wrote by then has the reason."""
_FAILURES = (PySparkException, Py4JError, OSError, EOFError, TypeError)
"""Errors of calls to a JVM. TypeError: if a dead JVM cannot look up a class, py4j returns a package, which cannot be called."""
_CLIENT = "org.apache.spark.deploy.client.StandaloneAppClient$ClientEndpoint"
_CONNECTING = "StandaloneAppClient$ClientEndpoint: Connecting to master"


@dataclass(eq=False, slots=True)
class Running:
    """A root session, and the JVM that serves it if this host has started one.

    last_lines: those that the JVM and its Python workers wrote. is_broken: set when a job finds that no job can run.
    """

    session: SparkSession
    process: subprocess.Popen[bytes] | None = None
    last_lines: deque[str] = field(default_factory=deque)
    scratch: Scratch | None = None
    is_broken: bool = False

    @property
    def is_remote(self) -> bool:
        return self.process is None

    @property
    def place(self) -> str:
        """Its address, for people."""
        return str(self.session.sparkContext.master)

    @property
    def is_alive(self) -> bool:
        return not self.is_broken and (self.process is None or self.process.poll() is None)

    @property
    def is_cluster(self) -> bool:
        """Whether it has executors in other processes, which may die without it."""
        return not self.place.startswith("local")

    def new_session(self) -> SparkSession:
        return self.session.newSession()

    def forget_session(self, session: SparkSession) -> None:
        """Sessions of a JVM share its context, and end with it."""

    def begin(self, group: str, session: SparkSession) -> None:
        """Note that this thread waits for a job of the group from now on. A JVM knows that by the job's own group."""

    def progress_of(self, group: str) -> TaskCounts | None:
        """Blocks until the JVM answers."""
        tracker = self.session.sparkContext.statusTracker()
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
        ids = [stage for job in jobs if job is not None and job.status == "RUNNING" for stage in job.stageIds]
        stages = [stage for stage in map(tracker.getStageInfo, ids) if stage is not None]
        if not stages:
            return None
        ended = sum(stage.numCompletedTasks for stage in stages)
        return TaskCounts(
            running=sum(stage.numActiveTasks for stage in stages),
            ended=ended + sum(stage.numFailedTasks for stage in stages),
            left=sum(stage.numTasks for stage in stages) - ended,
        )

    def standing(self) -> ClusterAnswer:
        """What the cluster answers about this application. Blocks for seconds if it is silent.

        A master that loses its connection to a driver removes the application and its executors. The driver then waits forever.
        """
        context = self.session.sparkContext
        if self.place.startswith("k8s://"):
            return standing_in_kubernetes(context)
        masters = addresses(self.place)
        within_s = KNOWN_S if len(masters) == 1 else KNOWN_OF_SEVERAL_S
        return answer_of(standing_at(context, *master, within_s) for master in masters)

    def sever(self) -> None:
        """End every call that waits for the JVM."""
        self.is_broken = True
        if self.process is not None:
            self.process.kill()

    def has_died(self) -> bool:
        """Blocks for a moment: a JVM that no longer answers may not be gone yet."""
        if self.process is None:
            return False
        return _ends(self.process, within_s=2)

    def stop(self) -> None:
        assert self.process is not None, "a session on a server is stopped by its own class"
        if self.process.poll() is None:
            with suppress(PySparkException, Py4JError, OSError):
                self.session.stop()
        end_process(self.process)
        forget_context()
        if self.scratch is not None:
            self.scratch.remove()
            self.scratch = None


def start_jvm(conf: Mapping[str, str], launched: Callable[[subprocess.Popen[bytes]], None]) -> Running:
    """Start a JVM. Blocks for seconds. launched: called with its process at once, so that it can be killed while it starts.

    Raises EngineUnavailable.
    """
    require_jars(Path(pyspark.__file__).parent)
    require_parts()
    if slower := fallbacks():
        _log.warning(
            "PySpark %s lacks %s: public calls are used, which are slower", pyspark.__version__, ", ".join(slower)
        )
    require_java()
    require_master(conf["spark.master"])
    require_image(conf)
    try:
        scratch = None if "spark.local.dir" in conf else make_scratch(roomy_shm())
    except OSError as error:
        raise EngineUnavailable(
            f"Spark has no directory for its temporary files ({error}): make room there, or set `spark.local.dir` in"
            " `spark.conf` to another one"
        ) from error
    try:
        local = {"spark.local.dir": str(scratch.path)} if scratch else {}
        return _start({**conf, **local}, scratch, launched)
    except EngineUnavailable:
        if scratch is not None:
            scratch.remove()
        raise


def _start(
    conf: Mapping[str, str], scratch: Scratch | None, launched: Callable[[subprocess.Popen[bytes]], None]
) -> Running:
    gateway, output = _launch(conf, scratch, launched)
    logging.getLogger().addFilter(_is_not_of_py4j)
    try:
        with _registration(conf, gateway, output):
            context = SparkContext(gateway=gateway, conf=_spark_conf(conf))
        if python := sys.executable if conf["spark.master"].startswith("local") else conf.get(_PYTHON):
            run_python(context, python)
        quieten(context)
        find_at_once(context)
        return Running(SparkSession(context), gateway.proc, output.lines, scratch)
    except _FAILURES as error:
        text = text_of(error)
        is_of_jvm = text is not None and isinstance(error, Py4JJavaError | PySparkException)
        has_ended = not is_of_jvm and _ends(gateway.proc, within_s=END_S)
        end_process(gateway.proc)
        forget_context()
        output.wait()
        reason = end_reason(output.lines) if has_ended or text is None else reason_of(text)
        raise _not_started(reason, conf) from error
    except BaseException:
        end_process(gateway.proc)
        forget_context()
        raise


def _launch(
    conf: Mapping[str, str], scratch: Scratch | None, launched: Callable[[subprocess.Popen[bytes]], None]
) -> tuple[Any, ProcessOutput]:
    """PySpark's gateway to a JVM, and what the JVM writes. Raises EngineUnavailable."""
    arguments = _spark_conf({name: value for name, value in conf.items() if name.startswith(_ARGUMENTS)})
    output, descriptor = read_output()
    process: _Launched | None = None

    def launch(*command: Any, **options: Any) -> _Launched:
        nonlocal process
        process = _Launched(*command, **options)
        launched(process)
        return process

    options = {
        "stdout": descriptor,
        "stderr": descriptor,
        "start_new_session": True,  # so that a terminal's Ctrl-C does not end the JVM before us
        "pass_fds": () if scratch is None else (scratch.lock,),
    }
    try:
        return launch_gateway(arguments, options, launch), output
    except (PySparkException, Py4JError, OSError) as error:
        if process is not None:
            end_process(process)
        os.close(descriptor)
        descriptor = -1
        output.wait()
        raise _not_started(start_reason(output.lines) or text_of(error) or "", conf) from error
    finally:
        if descriptor >= 0:
            os.close(descriptor)


class _Launched(subprocess.Popen[bytes]):
    def poll(self) -> int | None:
        """Never 0, because PySpark takes 0 for a running process, and waits for it forever."""
        code = super().poll()
        return 1 if code == 0 else code

    def kill(self) -> None:
        """Kill it and its children, the shell script and the Java that prepare the JVM's start."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)


def _not_started(reason: str, conf: Mapping[str, str]) -> EngineUnavailable:
    reason = reason or "its JVM ended without a word"
    advice = start_advice(reason, driver_memory=conf["spark.driver.memory"], master=conf["spark.master"])
    return EngineUnavailable(f"Spark did not start: {reason}: {advice}")


def _ends(process: subprocess.Popen[bytes], *, within_s: float) -> bool:
    """Whether the process ends. Blocks until it does, for within_s at most."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(within_s)
    return process.poll() is not None


@contextmanager
def _registration(conf: Mapping[str, str], gateway: Any, output: ProcessOutput) -> Iterator[None]:
    """Ends the JVM if a standalone master does not register it in time. Spark would wait a minute, and continue without a master.

    Only the wait for the master is bounded: on a slow machine the rest of a start may take longer. Raises EngineUnavailable.
    """
    if not is_standalone(master := conf["spark.master"]):
        yield
        return
    with suppress(*_FAILURES):  # another logger; or a JVM that is gone, which the next call notices
        log4j = gateway.jvm.org.apache.logging.log4j
        log4j.core.config.Configurator.setLevel(_CLIENT, log4j.Level.INFO)
    done, is_overdue = threading.Event(), threading.Event()
    version = None

    def watch() -> None:
        nonlocal version
        while not done.wait(LOOK_S):
            if any(_CONNECTING in line for line in list(output.lines)):
                if done.wait(REGISTRATION_S):
                    return
                version = _version_of(conf, gateway, done)
                if not done.is_set():  # the master may have registered it meanwhile
                    is_overdue.set()
                    gateway.proc.kill()
                return

    watching = threading.Thread(target=watch, name="spark-registration", daemon=True)
    watching.start()
    try:
        yield
    except Exception as error:
        if not is_overdue.is_set():
            raise
        output.wait()
        is_away = version is not None and release_of(version) == release_of(pyspark.__version__)
        why = _not_registered(master, version, complaint(output.lines))
        raise EngineUnavailable(why, is_away=is_away) from error
    finally:
        done.set()
        watching.join()


def _not_registered(master: str, version: str | None, why: str) -> str:
    """version: the master's, if it is known. why: what Spark has logged about it, or nothing. Pure."""
    reason = f" ({why})" if why else ""
    if version is None or release_of(version) == release_of(pyspark.__version__):
        return (
            f"the Spark master at '{master}' answers, but did not register this application within"
            f" {REGISTRATION_S:g} s{reason}: make sure that a Spark master of version {pyspark.__version__} answers there,"
            " or correct `spark.master`"
        )
    return (
        f"the Spark master at '{master}' has Spark {version}, and did not register this application of PySpark"
        f" {pyspark.__version__} within {REGISTRATION_S:g} s{reason}: {same_version(version)}"
    )


def _version_of(conf: Mapping[str, str], gateway: Any, done: threading.Event) -> str | None:
    """The version of a standalone master that answers; None if it is not known within VERSION_S, or `done` is set. Blocks."""
    found: SimpleQueue[str | None] = SimpleQueue()

    def learn() -> None:
        for host, port in addresses(conf["spark.master"]):
            if (at := web_port(gateway, conf, host, port)) is not None and (
                version := read_version(host, at)
            ) is not None:
                found.put(version)
        found.put(None)

    threading.Thread(target=learn, name="spark-version", daemon=True).start()
    for _ in range(round(VERSION_S / LOOK_S)):
        if done.is_set():
            break
        with suppress(Empty):
            return found.get(timeout=LOOK_S)
    return None


def _spark_conf(conf: Mapping[str, str]) -> SparkConf:
    return SparkConf(loadDefaults=False).setAll(list(conf.items()))


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return not (record.module in ("java_gateway", "clientserver") and record.name == "root")


def text_of(error: BaseException) -> str | None:
    """The text of an error; None if only a JVM that is gone could produce it. Never raises, whatever state the JVM is in."""
    try:
        return str(error)
    except Exception:  # refused connections, and assertions of PySpark's about its own gateway
        return None
