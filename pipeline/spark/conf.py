"""The Spark settings that the fast path stands on, and what no setting may change."""

from __future__ import annotations

import os
import re
import sys

INVARIANTS = {"spark.sql.ansi.enabled": "true", "spark.sql.session.timeZone": "UTC"}
"""No setting changes these: without ANSI mode Spark answers with nulls where it should fail."""
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
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC",
        "spark.log.level": "ERROR",
        "spark.buffer.pageSize": "1m",  # else every aggregate of every small job begins with some 16 MB of zeros
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
    """Memory for shuffles and events on their way to the JVM, where there is enough of it."""
    try:
        found = os.statvfs(_SHM)
    except OSError:
        return None
    return _SHM if found.f_bavail * found.f_frsize >= bytes_min and os.access(_SHM, os.W_OK) else None
