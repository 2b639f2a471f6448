"""The image: how large, how quick, as whom, and that it does its work on a file system that it cannot write."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import everything
import psutil
import pytest

ROOT = Path(__file__).parents[2]
BYTES_MAX = 900 * 1000 * 1000
TOKEN = "0123456789abcdef" * 2
SETTINGS = """
leases: {{type: sqlite, path: /var/lib/leasehold/leases.db}}
host: {{name: "${{POD_NAME}}"}}
spark: {{master: "local[2]", driver_memory: 512m}}
api: {{host: 0.0.0.0, port: {port}, readers: /etc/leasehold/readers}}
pipelines:
  - name: letters
    feed: {{type: files, path: "words-*.jsonl"}}
    schema: "word STRING NOT NULL"
    sql: >
      SELECT partition, left(word, 1) AS key, to_json(struct(count(*) AS words)) AS body
      FROM events GROUP BY partition, left(word, 1)
    sink: {{type: files, path: /var/lib/leasehold/out, format: jsonl}}
"""
BARE = """
import time; started = time.monotonic()
from pyspark.sql import SparkSession
SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate().range(3).count()
print(time.monotonic() - started)
"""


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@pytest.fixture
def settings(tmp_path: Path, port: int) -> Path:
    folder = tmp_path / "settings"
    folder.mkdir()
    (folder / "leasehold.yaml").write_text(SETTINGS.format(port=port))
    (folder / "readers").write_text(TOKEN)
    (folder / "words-1.jsonl").write_text('{"word": "apple"}\n{"word": "avocado"}\n{"word": "bean"}\n')
    folder.chmod(0o755)
    return folder


def noted(line: str) -> None:
    """For people: `make image` shows it."""
    with (ROOT / "build/image.txt").open("a") as notes:
        notes.write(line + "\n")


def asked(port: int, path: str) -> tuple[int, str]:
    request = Request(f"http://127.0.0.1:{port}{path}", headers={"Authorization": f"Bearer {TOKEN}"})
    try:
        with urlopen(request, timeout=5) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, ""
    except (URLError, OSError):
        return 0, ""


def until(port: int, path: str, within_s: float, holds=lambda text: True) -> float:
    """When, on the monotonic clock, the path was answered as wanted."""
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        status, text = asked(port, path)
        if status == 200 and holds(text):
            return time.monotonic()
        threading.Event().wait(0.02)
    pytest.fail(f"{path}: not within {within_s} s")


def test_it_is_small(image) -> None:
    noted(f"{image.bytes / 1e6:.0f} MB of files")
    assert image.bytes < BYTES_MAX


def test_it_says_as_whom_it_runs_how_it_is_and_what_it_is(image) -> None:
    assert image.config["User"] == "10001:10001"
    assert image.config["Healthcheck"]["Test"][0] == "CMD"
    assert image.config["Labels"]["org.opencontainers.image.title"] == "Leasehold"
    assert not any("machine-ca" in each for each in image.config["Env"])


def test_a_host_works_on_a_root_that_it_cannot_write_and_stops_in_order(image, settings: Path, port: int) -> None:
    started = time.monotonic()
    host = subprocess.Popen(image.command(settings, POD_NAME="pod-1"), stderr=subprocess.PIPE, text=True)
    try:
        live = until(port, "/health/live", 120)
        ready = until(port, "/health/ready", 240)
        done = until(port, "/api/lag", 120, lambda text: json.loads(text)["lag"] == 0)
        metrics = asked(port, "/metrics")[1]
        noted(
            f"live after {live - started:.1f} s, ready after {ready - started:.1f} s, all done after {done - started:.1f} s"
        )
        (lease,) = json.loads(asked(port, "/api/leases")[1])["items"]
        assert lease["owner"] == "pod-1"
        assert 'leasehold_events_delivered_total{pipeline="letters"} 3.0' in metrics
    finally:
        for process in psutil.Process(host.pid).children():
            process.terminate()
        log = host.communicate(timeout=60)[1]
    assert "host stopped" in log
    assert host.returncode == 0, log


def test_a_check_without_a_pod_leaves_nothing_behind(image, settings: Path) -> None:
    checked = (*image.config["Entrypoint"], "check", "/etc/leasehold/leasehold.yaml")
    ran = subprocess.run(
        image.command(settings, *checked, POD_NAME="x"), capture_output=True, text=True, timeout=120, check=False
    )
    assert (ran.returncode, ran.stdout) == (0, "settings: fine, 1 pipelines\n")


def test_spark_runs_everything_in_it(image, settings: Path) -> None:
    shutil.copy(everything.__file__, settings)
    command = image.command(settings, "/opt/leasehold/bin/python", "/etc/leasehold/everything.py")
    ran = subprocess.run(command, capture_output=True, text=True, timeout=290, check=False)
    *wrong, done = ran.stdout.splitlines() or [""]
    assert not wrong, "\n".join(wrong)
    assert done == f"{len(everything.VALUES) + len(everything.PYTHON)} done", ran.stderr


def test_its_archive_of_classes_fits_and_pays(image, settings: Path) -> None:
    """A bare session, as Spark starts it, with the archive and without."""
    took = {}
    for name, options in (("with", "-Xshare:on -XX:SharedArchiveFile=/opt/leasehold/spark.jsa"), ("without", "")):
        command = image.command(settings, "/opt/leasehold/bin/python", "-c", BARE, SPARK_SUBMIT_OPTS=options)
        ran = subprocess.run(command, capture_output=True, text=True, timeout=290, check=False)
        assert ran.returncode == 0, ran.stderr
        took[name] = float(ran.stdout.split()[-1])
    noted("a bare session: " + ", ".join(f"{seconds:.1f} s {name} the archive" for name, seconds in took.items()))


def test_signals_reach_the_host(image) -> None:
    assert image.config.get("StopSignal", "SIGTERM") in ("SIGTERM", str(signal.SIGTERM.value))
    assert image.config["Entrypoint"] == ["/opt/leasehold/bin/leasehold"]
