"""Spark's settings and its master. Addresses are tried first: a JVM takes seconds to start, and waits a minute for a master."""

from __future__ import annotations

import http.client
import os
import re
import socket
import struct
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from queue import SimpleQueue

from leasehold.common.addresses import is_unknown_name
from leasehold.pipeline.errors import EngineUnavailable

# The Spark settings that the fast path needs, and those that users cannot change.


INVARIANTS = {"spark.sql.ansi.enabled": "true", "spark.sql.session.timeZone": "UTC"}
"""No setting changes these: without ANSI mode, Spark returns nulls instead of failing."""
_CALLS = {"Invocation": 50_000, "MinInvocation": 6_000, "Compile": 150_000, "BackEdge": 400_000}
JAVA_OPTIONS = " ".join(["-XX:+UseSerialGC", *(f"-XX:Tier4{name}Threshold={calls}" for name, calls in _CALLS.items())])
"""Java's optimizing compiler waits ten times as long as by default. To plan and begin a job, Spark runs thousands of methods a
few times each; compiling them costs more than it saves. Code that runs for every row is still compiled after some 50,000 rows."""
_SHM = "/dev/shm"  # noqa: S108 - only a directory of our own is made there


def defaults(master: str, driver_memory: str, result_bytes_max: int) -> dict[str, str]:
    local = re.fullmatch(r"local(?:\[(\d+|\*)(?:,\d+)?\])?", master)
    cores = (os.cpu_count() or 2) if local and local[1] == "*" else int(local[1] or 1) if local else 8
    here = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(filter(None, sys.path)),  # Python workers import what we can
    }
    return {
        "spark.master": master,
        "spark.app.name": "leasehold",
        "spark.driver.memory": driver_memory,
        "spark.driver.maxResultSize": str(result_bytes_max),
        "spark.driver.extraJavaOptions": JAVA_OPTIONS,
        "spark.executor.extraJavaOptions": "-XX:+UseSerialGC",  # its code runs for every row
        "spark.log.level": "ERROR",
        "spark.scheduler.mode": "FAIR",  # between pools: small jobs do not wait for a long one in which executors read
        "spark.scheduler.minRegisteredResourcesRatio": "0",  # or its start waits for executors of Kubernetes, which is not shown
        "spark.buffer.pageSize": "1m",  # or every aggregate of every small job zeroes about 16 MB
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.ui.explainMode": "simple",  # written for every job, though there is no UI to show it
        "spark.eventLog.enabled": "false",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.shuffle.partitions": str(cores),
        "spark.sql.execution.arrow.localRelationThreshold": "0",
        "spark.python.unix.domain.socket.enabled": "true",
        **(here if local else {}),
    }


def roomy_shm(bytes_min: int = 1 << 30) -> str | None:
    """The directory in memory for shuffles and events on their way to the JVM; None if it has too little room."""
    try:
        found = os.statvfs(_SHM)
    except OSError:
        return None
    return _SHM if found.f_bavail * found.f_frsize >= bytes_min and os.access(_SHM, os.W_OK) else None


REACH_S = 5.0
ANSWER_S = 10.0
"""How long a server may take to answer. A master takes milliseconds."""
REMEDY = "start it, or correct `spark.master`"
_STANDALONE = "spark://"
_ABSENT = b"/files/leasehold"
_REQUEST = struct.pack(f">qBi{len(_ABSENT)}s", 8 + 1 + 4 + len(_ABSENT), 6, len(_ABSENT), _ABSENT)
"""A StreamRequest of Spark's network protocol, for a file that no master has. A master answers it, also with authentication."""
_ADDRESS = re.compile(r"\[?([^\[\]]+)\]?:(\d{1,5})")

Address = tuple[str, int]


def is_standalone(master: str) -> bool:
    return master.startswith(_STANDALONE)


def addresses(master: str) -> list[Address]:
    """The addresses in `spark://a:7077,b:7077`; none for other kinds of masters. Raises ValueError."""
    if not is_standalone(master):
        return []
    found = [_ADDRESS.fullmatch(part.strip()) for part in master.removeprefix(_STANDALONE).split(",")]
    if not all(each and int(each[2]) < 65536 for each in found):  # a resolver wraps a larger port around
        raise ValueError(f"`spark.master` is '{master}': write it as spark://HOST:PORT, spark://spark:7077 for example")
    return [(each[1], int(each[2])) for each in found if each]


def require_master(master: str, probe: Callable[[Address], str | None] | None = None) -> None:
    """Return once one of the addresses answers. Blocks, for REACH_S + ANSWER_S at most.

    probe: returns why an address does not answer, or None. Raises EngineUnavailable.
    """
    try:
        wanted = addresses(master)
    except ValueError as error:
        raise EngineUnavailable(str(error)) from None
    if not wanted:
        return
    answers: SimpleQueue[tuple[Address, str | None] | None] = SimpleQueue()
    for address in wanted:  # daemons, because nothing ends a wait for a silent name server
        threading.Thread(target=_answer, args=(probe or _probe, address, answers), daemon=True).start()
    deadline = threading.Timer(REACH_S + ANSWER_S, answers.put, (None,))
    deadline.daemon = True
    deadline.start()
    refusals = dict.fromkeys(wanted, f"no answer within {REACH_S + ANSWER_S:g} s")
    try:
        for _ in wanted:
            if (answer := answers.get()) is None:
                break
            address, refusal = answer
            if refusal is None:
                return
            refusals[address] = refusal
    finally:
        deadline.cancel()
    reasons = "; ".join(f"{host}:{port}: {why}" for (host, port), why in refusals.items())
    raise EngineUnavailable(
        f"the Spark master at '{master}' cannot be reached ({reasons}): {REMEDY}",
        is_away=not all(isinstance(why, _Lasting) for why in refusals.values()),
    )


class _Lasting(str):
    """Why an address does not answer, if waiting changes nothing."""


PAGE_S = 10.0
"""How long a master's page may take. The first one takes seconds on a busy machine."""
_PAGE_BYTES_MAX = 64 * 1024
_VERSION = re.compile(rb'class="version\b[^"]*"[^>]*>\s*(\d[\w.+-]{1,30})\s*<')


def read_version(host: str, port: int) -> str | None:
    """The version of Spark on the page of a standalone master; None if there is no such page, or no version on it. Blocks."""
    try:
        connection = http.client.HTTPConnection(host, port, timeout=PAGE_S)
        with closing(connection):
            connection.request("GET", "/")
            page = connection.getresponse().read(_PAGE_BYTES_MAX)
    except (OSError, http.client.HTTPException):
        return None
    found = _VERSION.search(page)
    return found[1].decode() if found else None


_IMAGES = ("spark.kubernetes.container.image", "spark.kubernetes.executor.container.image")


def require_image(conf: Mapping[str, str]) -> None:
    """Raises EngineUnavailable if executors on Kubernetes have no image. Spark would start, and keep trying to create them."""
    if conf["spark.master"].startswith("k8s://") and not any(conf.get(name) for name in _IMAGES):
        raise EngineUnavailable(
            f"`spark.master` is '{conf['spark.master']}', but `spark.conf` has no `{_IMAGES[0]}`: name an image with the"
            " minor version of Spark that this host has"
        )


def _answer(
    probe: Callable[[Address], str | None], address: Address, answers: SimpleQueue[tuple[Address, str | None] | None]
) -> None:
    answers.put((address, probe(address)))


def _probe(address: Address) -> str | None:
    try:
        connection = socket.create_connection(address, timeout=REACH_S)
    except TimeoutError:
        return f"no answer within {REACH_S:g} s"
    except (OSError, UnicodeError) as error:  # UnicodeError: a name that DNS cannot carry
        is_lasting = isinstance(error, UnicodeError) or is_unknown_name(error)
        return (_Lasting if is_lasting else str)((getattr(error, "strerror", None) or str(error)).lower())
    with connection:
        return _first_answer(connection)


def _first_answer(connection: socket.socket) -> str | None:
    """Why the server is not a master, or None. It may close the connection, because a master with TLS does that."""
    connection.settimeout(ANSWER_S)
    try:
        connection.sendall(_REQUEST)
        answer = connection.recv(16)
    except TimeoutError:
        return f"it accepts connections, but answers nothing within {ANSWER_S:g} s"
    except OSError:
        return None
    return _Lasting("it speaks HTTP, so it is at best a master's web page") if answer.startswith(b"HTTP/") else None


def address(remote: str) -> str:
    """The address of a Spark Connect server, for people: without its parameters, which may include a token."""
    return remote.partition(";")[0].rstrip("/")
