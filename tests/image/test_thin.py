"""The thin image: without Java and Spark, small, ready soon, and frugal. Three of its pods share the bank beside one Connect
server.

Its server and the server's executors run from the PySpark of this checkout. The pods of the bank run as a user such as OpenShift
chooses.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import starts
import yaml
from containers import HOSTS, Image, Pod, noted
from lab.servers.spark_cluster import SparkCluster
from patience import PATIENCE_S, until
from plugins_cluster import settings_on
from pods import USER, BankInPods, served_bank

pytestmark = pytest.mark.timeout(1800)

ROOT = Path(__file__).parents[2]
BYTES_MAX = 350 * 1000 * 1000
READY_S_MAX = 2.0
MEMORY_BYTES_MAX = 250 * 1000 * 1000
STARTS = 7
"""The fastest counts: what else the machine does makes starts slower, and none faster."""
FIRST, *STAY = HOSTS[:3]
FUNCTION = """
from pyspark.sql import DataFrame, functions as F

def letters(events: DataFrame) -> DataFrame:
    counted = events.groupBy("partition", F.substring("word", 1, 1).alias("key")).agg(F.count("*").alias("words"))
    return counted.select("partition", "key", F.to_json(F.struct("words")).alias("body"))
"""


@pytest.fixture
def letters(tmp_path: Path) -> starts.Letters:
    return starts.Letters(tmp_path / "settings")


@pytest.fixture(scope="module")
def bank(
    thin: Image, own_cluster: SparkCluster, postgres_of_module: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BankInPods]:
    folder = tmp_path_factory.mktemp("pods")
    spark = settings_on(own_cluster, "connect")
    with served_bank(folder, postgres_of_module, USER) as (bank, environment):
        pods = BankInPods(bank=bank, image=thin, folder=folder, environment=environment, spark=spark, user=USER)
        try:
            yield pods
        finally:
            pods.close()


def test_it_is_small(thin: Image) -> None:
    size_bytes = thin.size_bytes()
    noted(f"{size_bytes / 1e6:.0f} MB of files")
    assert size_bytes <= BYTES_MAX


def test_it_has_neither_java_nor_jars(thin: Image) -> None:
    files = [Path(folder, name) for folder, _, names in os.walk(thin.root) for name in names]
    assert len(files) > 1000
    found = [file for file in files if re.fullmatch(r"java|libjvm\.so|.*\.(jar|jsa)", file.name)]
    assert found == []
    assert not any(each.startswith(("JAVA_HOME=", "SPARK_")) for each in thin.config["Env"])


def test_it_is_run_as_the_image_with_spark_is() -> None:
    """By the same user, with the same probes and command. What differs are the files, and where Java is."""
    *_, of_thin, of_full = (ROOT / "Dockerfile").read_text().split("\nFROM ")
    assert of_thin.startswith("scratch AS thin\n")
    is_shared = re.compile(r"(LABEL|WORKDIR|USER|EXPOSE|STOPSIGNAL|HEALTHCHECK|ENTRYPOINT|CMD) (?:.*\\\n)*.*")
    thin, full = ([found[0] for found in is_shared.finditer(text)] for text in (of_thin, of_full))
    assert thin == full
    assert len(thin) == 8
    is_variable = re.compile(r"(?:ENV|   ) (\w+=.*?)(?: \\)?$", re.MULTILINE)
    of_glibc = {"MALLOC_ARENA_MAX=2", "MALLOC_TRIM_THRESHOLD_=131072", "ARROW_DEFAULT_MEMORY_POOL=system"}
    own = {*of_glibc, "PATH=/opt/leasehold/bin:/usr/local/bin:/usr/bin:/bin"}
    assert set(is_variable.findall(of_thin)) - own < set(is_variable.findall(of_full))


def test_settings_without_a_server_are_refused_in_one_line(
    thin: Image, letters: starts.Letters, tmp_path: Path
) -> None:
    pod = Pod(thin, letters.folder, port=letters.port, output=tmp_path / "said")
    try:
        assert pod.ended() == 2, pod.said
    finally:
        pod.end()
    assert "there is no Spark here, as in the thin image" in pod.said
    assert "set `spark.remote`" in pod.said
    assert "Traceback" not in pod.said


def test_a_python_function_makes_a_query_of_the_server(
    thin: Image, own_cluster: SparkCluster, letters: starts.Letters, tmp_path: Path
) -> None:
    file = letters.folder / "leasehold.yaml"
    settings = yaml.safe_load(file.read_text()) | {"spark": settings_on(own_cluster, "connect")}
    (pipeline,) = settings["pipelines"]
    del pipeline["sql"]
    pipeline["function"] = "counting:letters"
    file.write_text(yaml.safe_dump(settings))
    (letters.folder / "counting.py").write_text(FUNCTION)
    command = thin.command(
        letters.folder,
        *(*thin.config["Entrypoint"], "run", "--until-idle", "/etc/leasehold/leasehold.yaml"),
        POD_NAME=HOSTS[0],
        PYTHONPATH="/etc/leasehold",
    )
    ran = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "letters: 3 events in, 2 rows out" in ran.stdout


def put_first(processes: Iterable[psutil.Process], policy: int = os.SCHED_RR) -> None:
    """Before everything else that the machine does, with all that they start from now on: as if nothing else ran."""
    for thread in [thread.id for process in processes for thread in process.threads()]:
        with suppress(ProcessLookupError):
            os.sched_setscheduler(thread, policy, os.sched_param(int(policy == os.SCHED_RR)))


@pytest.fixture
def idle_machine(bank: BankInPods) -> Iterator[None]:
    """For this process and those that it has started: the cluster with its Connect server, Azurite, and pods from now on."""
    own = psutil.Process()
    put_first([own, *own.children(recursive=True)])
    yield
    put_first([own, *own.children(recursive=True)], os.SCHED_OTHER)


def test_a_pod_is_ready_soon(bank: BankInPods, idle_machine: None) -> None:
    """From its start, with a server that runs already."""
    bank.bank.write(40)
    took = []
    for _ in range(STARTS):
        pod = bank.begin(FIRST)
        took.append(pod.until("/health/ready", PATIENCE_S, every_s=starts.READY_ASKED_EVERY_S))
        pod.send(signal.SIGTERM)
        assert pod.ended() == 0, pod.said
    noted(f"ready after {min(took):.2f} s; all starts: {', '.join(f'{each:.2f}' for each in took)} s")
    assert min(took) < READY_S_MAX


def test_three_pods_share_the_bank_and_one_is_killed(bank: BankInPods) -> None:
    bank.bank.write(40)
    bank.start(FIRST, *STAY)
    until(lambda: bank.is_shared_by(FIRST, *STAY), "three share")
    bank.bank.keep_writing(20, every_s=0.5)
    bank.delivers()
    bank.pods[FIRST].send(signal.SIGKILL)
    took = until(lambda: bank.is_shared_by(*STAY), "the dead one's leases are taken")
    bank.delivers()
    bank.settle()
    for name in STAY:
        assert '"level": "error"' not in bank.pods[name].said
    noted(f"the leases of a killed pod are shared again after {took:.1f} s")
    bank.assert_no_batch_twice_or_dropped(FIRST, *STAY)
    bank.assert_each_transaction_once_in_both_logs()


def test_pods_that_have_worked_hold_little_memory(bank: BankInPods) -> None:
    held = [bank.pods[name].memory_bytes() for name in STAY]
    noted(f"{', '.join(f'{each / 1e6:.0f}' for each in held)} MB of memory")
    assert min(held) > 0
    assert max(held) <= MEMORY_BYTES_MAX
