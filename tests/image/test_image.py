"""The image: how large, as whom, and that it does its work on a file system that it cannot write."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from pathlib import Path

import in_spark
import pytest
import starts
from containers import Image, Pod, noted

BYTES_MAX = 900 * 1000 * 1000


@pytest.fixture
def letters(tmp_path: Path) -> starts.Letters:
    return starts.Letters(tmp_path / "settings")


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=290, check=False)


def test_it_is_small(image: Image) -> None:
    size_bytes = image.size_bytes()
    noted(f"{size_bytes / 1e6:.0f} MB of files")
    assert size_bytes < BYTES_MAX


def test_it_says_as_whom_it_runs_how_it_is_and_what_it_is(image: Image) -> None:
    assert image.config["User"] == "10001:10001"
    assert image.config["Healthcheck"]["Test"][0] == "CMD"
    assert image.config["Labels"]["org.opencontainers.image.title"] == "Leasehold"
    assert not any("machine-ca" in each for each in image.config["Env"])


@pytest.mark.parametrize("user", [None, "54321:54321"], ids=["its own user", "a user that it does not know"])
def test_a_host_works_on_a_root_that_it_cannot_write_and_stops_in_order(
    image: Image, letters: starts.Letters, tmp_path: Path, user: str | None
) -> None:
    pod = Pod(image, letters.folder, port=letters.port, output=tmp_path / "said", user=user)
    try:
        live, ready = pod.until("/health/live", 240), pod.until("/health/ready", 240)
        done = pod.until("/api/lag", 240, lambda text: json.loads(text)["lag"] == 0)
        noted(f"live after {live:.1f} s, ready after {ready:.1f} s, all done after {done:.1f} s")
        (lease,) = pod.items("/api/leases")
        assert lease["owner"] == pod.host
        assert 'leasehold_events_delivered_total{pipeline="letters"} 3.0' in pod.asked("/metrics")[1]
        pod.send(signal.SIGTERM)
        assert pod.ended() == 0, pod.said
        assert "host stopped" in pod.said
    finally:
        pod.end()


def test_its_health_check_tells_a_host_that_lives_from_none(image: Image, letters: starts.Letters) -> None:
    """On the port of the settings' defaults, where nobody is."""
    ran = run(image.command(letters.folder, *image.config["Healthcheck"]["Test"][1:]))
    assert ran.returncode != 0
    assert "Connection refused" in ran.stderr


def test_a_check_without_a_pod_leaves_nothing_behind(image: Image, letters: starts.Letters) -> None:
    checked = (*image.config["Entrypoint"], "check", "/etc/leasehold/leasehold.yaml")
    ran = run(image.command(letters.folder, *checked, POD_NAME="x"))
    assert (ran.returncode, ran.stdout.splitlines()[0]) == (0, "settings: fine, 1 pipeline"), ran.stderr


def test_spark_runs_everything_in_it(image: Image, letters: starts.Letters) -> None:
    shutil.copy(in_spark.__file__, letters.folder)
    ran = run(image.command(letters.folder, "/opt/leasehold/bin/python", "/etc/leasehold/in_spark.py"))
    *wrong, done = ran.stdout.splitlines() or [""]
    assert not wrong, "\n".join(wrong)
    assert done == f"{len(in_spark.VALUES) + len(in_spark.PYTHON)} done", ran.stderr


def test_its_archive_of_classes_fits_and_pays(image: Image, letters: starts.Letters) -> None:
    """`on`: a Java that cannot use it says so and ends."""
    archive = "-Xshare:on -XX:SharedArchiveFile=/opt/leasehold/spark.jsa"
    took = {name: starts.bare_s(image, letters, options) for name, options in (("with", archive), ("without", ""))}
    noted("a bare session: " + ", ".join(f"{seconds:.1f} s {name} the archive" for name, seconds in took.items()))


def test_programs_and_handlers_find_the_public_interface(image: Image, letters: starts.Letters) -> None:
    ran = run(image.command(letters.folder, "/opt/leasehold/bin/python", "-c", "from leasehold import *; Pipeline"))
    assert ran.returncode == 0, ran.stderr


def test_signals_reach_the_host(image: Image) -> None:
    assert image.config.get("StopSignal", "SIGTERM") in ("SIGTERM", str(signal.SIGTERM.value))
    assert image.config["Entrypoint"] == ["/opt/leasehold/bin/leasehold"]
