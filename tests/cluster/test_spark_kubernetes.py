"""Spark's driver on Kubernetes with what the chart gives it: its settings, the template of executors, and the rights of its Role.

The API server is one of ours, and executors are processes. Images, the network and a ServiceAccount's token are not tried.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helm_python
import kubernetes_validate
import pytest
import yaml
from cluster.engines import until_it_waits
from jobs import MakeBatch, keyed
from lab.servers.kubernetes import HOST, WHY_PENDING, Kubernetes, running
from lab.servers.spark_cluster import HOME, Part, free_port
from patience import until
from unit.chart.releases import BANK, CHART, EXECUTORS, READING, SERVER, Values, merged

from leasehold.pipeline.errors import EngineUnavailable
from leasehold.pipeline.spark.engine import SparkEngine
from leasehold.pipeline.spark.transform import SparkTransform

pytestmark = pytest.mark.timeout(300)

DRIVER = "bank-0"
SMALL: Values = merged(READING, {"sparkExecutors": {"count": 1, "memory": "512m"}})

Objects = dict[str, dict[str, Any]]


def release(values: Values) -> Objects:
    """By kind and name."""
    given = merged(merged(BANK, values), SMALL)
    with helm_python.Chart.load(CHART) as chart:
        texts = chart.render(given, name="bank", namespace="prod")
    files = [text for name, text in texts.items() if name.endswith(".yaml")]
    found = [each for text in files for each in yaml.safe_load_all(text) if each]
    return {f"{each['kind']}/{each['metadata']['name']}": each for each in found}


def rules(objects: Objects) -> list[dict[str, Any]]:
    return list(objects["Role/bank-leasehold-spark-driver"]["rules"])


@pytest.fixture
def kubernetes(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kubernetes]:
    monkeypatch.setenv("KUBECONFIG", "/dev/null")
    with running(rules(release(request.param)), tmp_path) as server:
        server.add(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": DRIVER, "namespace": "prod", "uid": "driver-uid", "resourceVersion": "1"},
                "spec": {"containers": []},
                "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
            }
        )
        yield server


def on_this_machine(conf: dict[str, str], server: Kubernetes, objects: Objects, directory: Path) -> dict[str, str]:
    """The chart's settings of a driver, except for what only a cluster has."""
    template = directory / "executor.yaml"
    template.write_text(objects["ConfigMap/bank-leasehold-spark-executor"]["data"]["executor.yaml"])
    here = {
        "spark.kubernetes.driver.pod.name": DRIVER,
        "spark.kubernetes.executor.podTemplateFile": str(template),
        "spark.driver.host": HOST,
        "spark.driver.port": str(free_port()),
        "spark.driver.blockManager.port": str(free_port()),
        "spark.blockManager.port": "0",  # an executor has its own address in a cluster
        "spark.local.dir": str(directory),
    }
    return {**conf, **here}


def sum_on(engine: SparkEngine) -> int:
    rows = engine.running().new_session().sql("SELECT sum(id) FROM range(0, 1000, 1, 4)").collect()
    return int(rows[0][0])


def assert_executors_are_those_of_the_chart(server: Kubernetes, objects: Objects) -> None:
    template = yaml.safe_load(objects["ConfigMap/bank-leasehold-spark-executor"]["data"]["executor.yaml"])
    for pod in server.created:
        kubernetes_validate.validate(pod, "1.35", strict=True)
        spec, (container,) = pod["spec"], pod["spec"]["containers"]
        assert spec["serviceAccountName"] == "bank-leasehold-spark-executor"
        assert f"ServiceAccount/{spec['serviceAccountName']}" in objects
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"] == template["spec"]["securityContext"]
        assert container["securityContext"] == template["spec"]["containers"][0]["securityContext"]
        given = template["spec"]["containers"][0]
        assert all(variable in container["env"] for variable in given["env"])
        assert container["envFrom"] == given["envFrom"]
        assert template["metadata"]["labels"].items() <= pod["metadata"]["labels"].items()
        assert [each["uid"] for each in pod["metadata"]["ownerReferences"]] == ["driver-uid"]
        assert {volume["name"] for volume in spec["volumes"]} == {"spark-local-dir-1", "work"}
        assert {"name": "SPARK_LOCAL_DIRS", "value": "/tmp"} in container["env"]


@pytest.mark.parametrize("kubernetes", [EXECUTORS], indirect=True)
def test_a_host_drives_executors_with_the_rights_of_its_role_and_uses_each_of_them(
    kubernetes: Kubernetes, tmp_path: Path
) -> None:
    objects = release(EXECUTORS)
    spark = yaml.safe_load(objects["ConfigMap/bank-leasehold"]["data"]["leasehold.yaml"])["spark"]
    conf = on_this_machine(spark["conf"], kubernetes, objects, tmp_path)
    engine = SparkEngine(master=f"k8s://{kubernetes.url}", driver_memory="512m", conf=conf)
    try:
        assert sum_on(engine) == 499_500
        (first,) = kubernetes.executors()
        kubernetes.kill(first)
        assert sum_on(engine) == 499_500
        until(lambda: ("delete", "pods") in kubernetes.asked)
    finally:
        engine.stop()
    until(lambda: not kubernetes.executors())
    assert kubernetes.refused == set()
    (rule,) = rules(objects)
    assert kubernetes.asked == {(verb, "pods") for verb in rule["verbs"]}
    assert len(kubernetes.created) >= 2
    assert_executors_are_those_of_the_chart(kubernetes, objects)


def driving(kubernetes: Kubernetes, directory: Path) -> SparkEngine:
    objects = release(EXECUTORS)
    spark = yaml.safe_load(objects["ConfigMap/bank-leasehold"]["data"]["leasehold.yaml"])["spark"]
    conf = on_this_machine(spark["conf"], kubernetes, objects, directory)
    return SparkEngine(master=f"k8s://{kubernetes.url}", driver_memory="512m", conf=conf)


@pytest.mark.parametrize("kubernetes", [EXECUTORS], indirect=True)
async def test_a_job_runs_when_pending_pods_do_and_their_driver_stays(
    kubernetes: Kubernetes, tmp_path: Path, batch: MakeBatch
) -> None:
    """A driver that is started again would end its pods, and their place in the queue."""
    kubernetes.is_full = True
    engine = driving(kubernetes, tmp_path)
    transform = SparkTransform(engine, "tried", sql="SELECT partition, key FROM events")
    preparing = asyncio.create_task(transform.prepare())
    try:
        why = await until_it_waits(transform, preparing)
        assert f"(its executors have 1 pod Pending: {WHY_PENDING})" in why
        driver = engine.running()
        kubernetes.grant()
        await preparing
        assert (await transform.apply(batch("0", keyed("a")))).column("key").to_pylist() == ["a"]
        assert engine.running() is driver
        assert kubernetes.refused == set()
    finally:
        preparing.cancel()
        await asyncio.wait({preparing})
        await transform.close()


@pytest.mark.parametrize("kubernetes", [EXECUTORS], indirect=True)
async def test_an_api_server_that_is_away_while_a_job_waits_is_noticed(
    kubernetes: Kubernetes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leasehold.pipeline.spark.watch.SILENT_S", 12.0)
    kubernetes.is_full = True
    transform = SparkTransform(driving(kubernetes, tmp_path), "tried", sql="SELECT partition, key FROM events")
    preparing = asyncio.create_task(transform.prepare())
    try:
        await until_it_waits(transform, preparing)
        kubernetes.close()
        with pytest.raises(EngineUnavailable, match=r"the API server of Kubernetes at .* has not answered for 12 s"):
            await preparing
    finally:
        preparing.cancel()
        await asyncio.wait({preparing})
        await transform.close()


@pytest.mark.parametrize("kubernetes", [SERVER], indirect=True)
def test_a_server_of_the_release_drives_executors_with_the_rights_of_its_role(
    kubernetes: Kubernetes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    objects, port = release(SERVER), free_port()
    files = objects["ConfigMap/bank-leasehold-spark"]["data"]
    lines = files["spark.properties"].splitlines()
    conf = on_this_machine(dict(line.split("=", 1) for line in lines), kubernetes, objects, tmp_path)
    conf |= {
        "spark.master": f"k8s://{kubernetes.url}",
        "spark.connect.grpc.binding.port": str(port),
        "spark.log.level": "INFO",
    }
    assert conf["spark.scheduler.allocation.file"] == "file:///etc/leasehold-spark/pools.xml"
    pools = tmp_path / "pools.xml"
    pools.write_text(files["pools.xml"])
    conf["spark.scheduler.allocation.file"] = pools.as_uri()
    properties = tmp_path / "spark.properties"
    properties.write_text("".join(f"{name}={value}\n" for name, value in conf.items()))
    (container,) = objects["Deployment/bank-leasehold-spark"]["spec"]["template"]["spec"]["containers"]
    replaced = {
        "/etc/leasehold-spark/spark.properties": str(properties),
        "$(POD_NAME)": DRIVER,
        "/opt/spark": str(HOME),
    }
    command = [*container["command"], *container["args"]]
    for old, new in replaced.items():
        command = [word.replace(old, new) for word in command]
    environment = {"SPARK_HOME": str(HOME), "PYSPARK_PYTHON": sys.executable}
    server = Part("connect", command, "Spark Connect server started at", tmp_path / "server.log", environment)
    engine = SparkEngine(remote=f"sc://{HOST}:{port}")
    try:
        server.start()
        assert sum_on(engine) == 499_500
        assert "Created pool: default, schedulingMode: FAIR" in server.said
        engine.stop()
    finally:
        server.kill()
    assert kubernetes.refused == set()
    assert kubernetes.asked <= {(verb, "pods") for verb in rules(objects)[0]["verbs"]}
    assert_executors_are_those_of_the_chart(kubernetes, objects)


def test_an_api_server_that_is_away_is_named_at_the_start() -> None:
    conf = {"spark.kubernetes.container.image": "spark", "spark.driver.host": HOST}
    master = f"k8s://http://{HOST}:{free_port()}"
    engine = SparkEngine(master=master, driver_memory="512m", conf={**conf, "spark.kubernetes.driver.pod.name": DRIVER})
    with pytest.raises(EngineUnavailable, match="make sure that the API server of Kubernetes answers"):
        engine.running()
    engine.stop()


def test_an_image_is_missed_before_a_jvm_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[object] = []
    engine = SparkEngine(master="k8s://https://a", driver_memory="512m")
    monkeypatch.setattr(engine, "_launched", launched.append)
    with pytest.raises(EngineUnavailable, match=r"`spark\.conf` has no `spark\.kubernetes\.container\.image`"):
        engine.running()
    assert launched == []
