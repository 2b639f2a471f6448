"""Spark elsewhere than in each pod: a server that exists, one of the release, and executors that each pod drives."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from itertools import product
from typing import Any
from xml.etree import ElementTree

import helm_python
import kubernetes_validate
import pytest
import yaml
from unit.chart.dockerfile import ROOT
from unit.chart.releases import BANK, CHART, ENVIRONMENT, EXECUTORS, READING, SERVER, STAGING, Values, merged
from unit.chart.test_chart import SWITCHES, VERSIONS

from leasehold.service.config.load import parse

ADDRESS: Values = {"sparkConnect": "sc://spark:15002"}
WAYS = {"inside": {}, "address": ADDRESS, "server": SERVER, "executors": EXECUTORS}
DRIVERS = {"server": ("Deployment-spark", SERVER), "executors": ("Deployment", EXECUTORS)}
"""Way -> what drives executors, and the values."""
STRANGER = {"app.kubernetes.io/name": "shop", "app.kubernetes.io/instance": "bank"}
ANYWHERE = {"app.kubernetes.io/name": "anywhere"}
"""No pod of the release: Azure, the API server of Kubernetes."""


@pytest.fixture(params=DRIVERS)
def driven(render, request) -> tuple[dict[str, Any], dict[str, Any]]:
    """The objects of a release with executors, and the pod that drives them."""
    name, values = DRIVERS[request.param]
    objects = render(values)
    return objects, objects[name]["spec"]["template"]


def executor(objects: dict[str, Any]) -> dict[str, Any]:
    return dict(yaml.safe_load(objects["ConfigMap-spark-executor"]["data"]["executor.yaml"]))


def conf_of(objects: dict[str, Any]) -> dict[str, str]:
    """The settings of the driver."""
    if (server := objects.get("ConfigMap-spark")) is not None:
        lines = server["data"]["spark.properties"].splitlines()
        return dict(line.split("=", 1) for line in lines)
    return dict(yaml.safe_load(objects["ConfigMap"]["data"]["leasehold.yaml"])["spark"]["conf"])


def pods(objects: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, each in objects.items():
        if each["kind"] == "Deployment":
            yield name, each["spec"]["template"]["spec"]
    if "ConfigMap-spark-executor" in objects:
        yield "executor", executor(objects)["spec"]


# What there is


@pytest.mark.parametrize("way", ["inside", "address"])
def test_without_executors_there_is_nothing_of_spark(render, way: str) -> None:
    objects = render(WAYS[way])
    assert not {"Role", "RoleBinding", "ClusterRole"} & {each["kind"] for each in objects.values()}
    assert not any("spark" in name for name in objects)


def test_hosts_use_the_server_that_exists_or_that_of_the_release(render) -> None:
    def spark(values: Values) -> dict[str, Any]:
        return dict(yaml.safe_load(render(values)["ConfigMap"]["data"]["leasehold.yaml"])["spark"])

    assert spark(ADDRESS) == {"driver_memory": "1g", "remote": "sc://spark:15002"}
    service = render(SERVER)["Service-spark"]
    (port,) = service["spec"]["ports"]
    assert spark(SERVER)["remote"] == f"sc://{service['metadata']['name']}:{port['port']}"
    assert "master" not in spark(SERVER)


def test_a_long_name_of_a_release_makes_names_that_services_may_have(chart) -> None:
    files = chart.render(merged(BANK, SERVER), name="a" * 53, namespace="prod")
    objects = [
        each for name, text in files.items() if name.endswith(".yaml") for each in yaml.safe_load_all(text) if each
    ]
    names = [each["metadata"]["name"] for each in objects if each["kind"] == "Service"]
    assert len(set(names)) == 3
    assert max(map(len, names)) <= 63


def test_there_is_one_server_and_never_two(render) -> None:
    spec = render(SERVER)["Deployment-spark"]["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})


def test_the_server_has_the_spark_of_the_lock(render) -> None:
    packages = tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    (locked,) = (each["version"] for each in packages if each["name"] == "pyspark")
    objects = render(SERVER)
    (container,) = objects["Deployment-spark"]["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"apache/spark:{locked}-python3"
    assert conf_of(objects)["spark.kubernetes.container.image"] == container["image"]


def test_executors_may_have_an_image_of_their_own(render) -> None:
    assert (
        conf_of(render(merged(SERVER, {"sparkExecutors": {"image": "mine:1"}})))["spark.kubernetes.container.image"]
        == "mine:1"
    )
    assert conf_of(render(EXECUTORS))["spark.kubernetes.container.image"] == "registry.example/spark:4.3.0"


def test_executors_are_as_many_and_as_large_as_the_values_ask(driven) -> None:
    objects, _ = driven
    found = conf_of(objects)
    sizes = {"spark.executor.instances": "2", "spark.executor.cores": "1", "spark.executor.memory": "1g"}
    assert found | sizes | {"spark.sql.shuffle.partitions": "2"} == found


def test_the_server_runs_in_the_foreground_with_its_settings(render) -> None:
    (container,) = render(SERVER)["Deployment-spark"]["spec"]["template"]["spec"]["containers"]
    mounted = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    assert container["command"] == ["/opt/spark/bin/spark-submit"]
    assert container["args"] == [
        "--class",
        "org.apache.spark.sql.connect.service.SparkConnectServer",
        "--properties-file",
        f"{mounted['settings']}/spark.properties",
        "--conf",
        "spark.kubernetes.driver.pod.name=$(POD_NAME)",
        "spark-internal",
    ]
    assert {container[f"{name}Probe"]["tcpSocket"]["port"] for name in ("startup", "liveness", "readiness")} == {
        "connect"
    }


def test_a_driver_counts_failed_executors_of_ten_minutes_and_not_since_its_start(driven) -> None:
    """Spark exits once more than max(3, twice `count`) have failed."""
    objects, _ = driven
    assert conf_of(objects)["spark.executor.failuresValidityInterval"] == "10m"


def test_hosts_share_the_cores_of_the_server(render) -> None:
    """Without a file that gives its default pool that mode, Spark runs jobs in the order in which they come."""
    objects = render(SERVER)
    conf, data = conf_of(objects), objects["ConfigMap-spark"]["data"]
    (container,) = objects["Deployment-spark"]["spec"]["template"]["spec"]["containers"]
    mounted = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    assert conf["spark.scheduler.mode"] == "FAIR"
    assert conf["spark.scheduler.allocation.file"] == f"file://{mounted['settings']}/pools.xml"
    pools = ElementTree.fromstring(data["pools.xml"])
    assert [(each.get("name"), each.findtext("schedulingMode")) for each in pools] == [("default", "FAIR")]


def test_a_server_is_ready_before_its_executors_are(render) -> None:
    """So that the jobs of hosts wait for them, and show that. Hosts have this setting without the chart."""
    assert conf_of(render(SERVER))["spark.scheduler.minRegisteredResourcesRatio"] == "0"


def test_settings_of_spark_are_added_or_override_what_only_helps(render) -> None:
    given = {
        "spark.sql.shuffle.partitions": "8",
        "spark.executor.memoryOverhead": "1g",
        "spark.a": "C:\\b",
        "spark.scheduler.mode": "FIFO",
        "spark.executor.failuresValidityInterval": "1h",
    }
    found = conf_of(render(merged(SERVER, {"sparkServer": {"conf": given}})))
    assert found | given | {"spark.a": "C:\\\\b"} == found  # in properties, a backslash is written twice
    conf = {
        "spark.sql.shuffle.partitions": "8",
        "spark.executor.memoryOverhead": "1g",
        "spark.executor.failuresValidityInterval": "1h",
    }
    found = conf_of(render(merged(EXECUTORS, {"config": {"spark": {"conf": conf}}})))
    assert found | conf == found


def test_changed_settings_roll_what_drives_executors(render) -> None:
    def checksum(way: str, **executors: Any) -> str:
        name, values = DRIVERS[way]
        template = render(merged(values, {"sparkExecutors": executors}))[name]["spec"]["template"]
        return str(template["metadata"]["annotations"]["checksum/settings"])

    for way in DRIVERS:
        assert len({checksum(way), checksum(way, count=5), checksum(way, tmpSize="9Gi")}) == 3


# Rights


def test_the_driver_may_manage_pods_and_nothing_else(driven) -> None:
    objects, _ = driven
    verbs = ["create", "delete", "deletecollection", "get", "list", "watch"]
    assert objects["Role-spark-driver"]["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": verbs}]
    assert not {each["kind"] for each in objects.values()} & {"ClusterRole", "ClusterRoleBinding"}


def test_the_rights_are_those_of_the_driver_alone(driven) -> None:
    objects, driver = driven
    (binding,) = (each for each in objects.values() if each["kind"] == "RoleBinding")
    (role,) = (each for each in objects.values() if each["kind"] == "Role")
    account = driver["spec"]["serviceAccountName"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account, "namespace": "prod"}]
    assert binding["roleRef"] == {
        "apiGroup": "rbac.authorization.k8s.io",
        "kind": "Role",
        "name": role["metadata"]["name"],
    }
    others = [spec["serviceAccountName"] for _, spec in pods(objects) if spec is not driver["spec"]]
    assert account not in others


def test_an_account_of_yours_gets_the_rights(render) -> None:
    objects = render(merged(EXECUTORS, {"serviceAccount": {"create": False, "name": "mine"}}))
    assert objects["RoleBinding-spark-driver"]["subjects"][0]["name"] == "mine"


def test_spark_uses_nothing_that_needs_other_rights(driven) -> None:
    objects, _ = driven
    off = {
        "spark.kubernetes.executor.disableConfigMap": "true",
        "spark.kubernetes.driver.service.deleteOnTermination": "false",
        "spark.kubernetes.driver.ownPersistentVolumeClaim": "false",
    }
    assert conf_of(objects) | off == conf_of(objects)


@pytest.mark.parametrize("switch", SWITCHES)
def test_a_token_is_mounted_where_executors_are_driven_and_nowhere_else(render, switch: str) -> None:
    objects = render(SWITCHES[switch])
    accounts = [each for each in objects.values() if each["kind"] == "ServiceAccount"]
    assert not any(each["automountServiceAccountToken"] for each in accounts)
    driver = "Deployment-spark" if "server" in switch else "Deployment" if "executors" in switch else None
    assert {name for name, spec in pods(objects) if spec["automountServiceAccountToken"]} == {driver} - {None}


@pytest.mark.parametrize("way", WAYS)
def test_all_pods_are_restricted(render, way: str) -> None:
    """As in the Pod Security Standard `restricted`, with file systems that are read-only besides."""
    for name, spec in pods(render(WAYS[way])):
        security, (container,) = spec["securityContext"], spec["containers"]
        assert security["runAsNonRoot"], name
        assert security["runAsUser"] > 0, name
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }, name
        assert not spec["enableServiceLinks"], name
        kinds = {kind for volume in spec["volumes"] for kind in volume if kind != "name"}
        assert kinds <= {"configMap", "secret", "emptyDir", "projected"}, name


def test_kubernetes_takes_the_pod_of_an_executor(driven) -> None:
    objects, _ = driven
    pod = executor(objects)
    pod["spec"]["containers"][0]["image"] = "spark"  # as Spark does
    for version in VERSIONS:
        kubernetes_validate.validate({**pod, "metadata": {**pod["metadata"], "name": "a"}}, version, strict=True)


def test_executors_write_where_spark_s_image_works(driven) -> None:
    objects, _ = driven
    spec = executor(objects)["spec"]
    places = {each["mountPath"]: each["name"] for each in spec["containers"][0]["volumeMounts"]}
    assert places.keys() == {"/tmp", "/opt/spark/work-dir"}
    assert places["/tmp"].startswith("spark-local-dir-")
    assert all("sizeLimit" in volume["emptyDir"] for volume in spec["volumes"])


# Who reaches whom


def test_ports_and_names_are_those_that_spark_is_given(driven) -> None:
    objects, driver = driven
    found, (container,) = conf_of(objects), driver["spec"]["containers"]
    ports = {each["name"]: str(each["containerPort"]) for each in container["ports"]}
    assert ports["driver"] == found["spark.driver.port"]
    assert ports["blocks"] == found["spark.driver.blockManager.port"] == found["spark.blockManager.port"]
    assert found["spark.port.maxRetries"] == "0"  # or Spark would take another port, which is closed
    assert found["spark.kubernetes.namespace"] == "prod"
    template = found["spark.kubernetes.executor.podTemplateFile"]
    assert template.rpartition("/")[0] in {each["mountPath"] for each in container["volumeMounts"]}


def test_executors_find_the_server_by_a_name_that_exists_before_it_is_ready(render) -> None:
    objects = render(SERVER)
    service, deployment = objects["Service-spark-driver"], objects["Deployment-spark"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"]
    assert conf_of(objects)["spark.driver.host"] == f"{service['metadata']['name']}.prod.svc"
    assert conf_of(objects)["spark.driver.bindAddress"] == "0.0.0.0"
    for each in (service, objects["Service-spark"]):
        assert each["spec"]["selector"] == deployment["spec"]["template"]["metadata"]["labels"]
        assert each["spec"]["selector"] != objects["Deployment"]["spec"]["selector"]["matchLabels"]


def test_executors_find_a_pod_by_its_own_address(render) -> None:
    objects = render(EXECUTORS)
    text = objects["ConfigMap"]["data"]["leasehold.yaml"]
    environment = objects["Deployment"]["spec"]["template"]["spec"]["containers"][0]["env"]
    fields = {each["name"]: each["valueFrom"]["fieldRef"]["fieldPath"] for each in environment}
    assert fields == {"POD_NAME": "metadata.name", "DRIVER_POD_IP": "status.podIP"}
    given = {
        "POD_NAME": "bank-0",
        "DRIVER_POD_IP": "10.0.0.7",
        "BANK_COSMOS": "x",
        "LEASES_COSMOS": "x",
        "BANK_POSTGRES": "x",
    }
    given |= dict.fromkeys(("BANK_COSMOS", "LEASES_COSMOS"), "AccountEndpoint=https://a/;AccountKey=YmFuaw==;")
    conf = parse(text, given | {"BANK_POSTGRES": "postgresql://postgres/bank"}, folder=ROOT).spark.conf
    assert (conf["spark.driver.host"], conf["spark.kubernetes.driver.pod.name"]) == ("10.0.0.7", "bank-0")


def ports_of(objects: dict[str, Any], pod: dict[str, str]) -> dict[str, int]:
    """The named ports of the pods of a Deployment with these labels."""
    templates = [each["spec"]["template"] for each in objects.values() if each["kind"] == "Deployment"]
    ports = [
        port
        for template in templates
        if template["metadata"]["labels"] == pod
        for port in template["spec"]["containers"][0]["ports"]
    ]
    return {each["name"]: each["containerPort"] for each in ports}


def permits(objects: dict[str, Any], way: str, pod: dict[str, str], other: dict[str, str], port: int) -> bool:
    """Whether the NetworkPolicies of a pod permit what arrives from the other (way: Ingress) or leaves for it (Egress)."""
    policies = [each["spec"] for each in objects.values() if each["kind"] == "NetworkPolicy"]
    of_pod = [spec for spec in policies if way in spec["policyTypes"] and is_selected(spec, pod)]
    names = ports_of(objects, pod if way == "Ingress" else other)
    return not of_pod or any(
        port in [names.get(each["port"], each["port"]) for each in rule.get("ports", [{"port": port}])]
        and any(is_selected(peer, other) for peer in rule.get("from", rule.get("to", [{"podSelector": {}}])))
        for spec in of_pod
        for rule in spec.get(way.lower(), [])
    )


def is_selected(by: dict[str, Any], pod: dict[str, str]) -> bool:
    return bool(by["podSelector"].get("matchLabels", {}).items() <= pod.items())


CONNECT, DRIVER, BLOCKS, API, API_SERVER = 15002, 7078, 7079, 8080, 6443
PERMITTED = {
    "server": {
        ("host", "driver", CONNECT),
        ("executor", "driver", DRIVER),
        ("executor", "driver", BLOCKS),
        ("driver", "executor", BLOCKS),
        ("executor", "executor", BLOCKS),
        ("driver", "anywhere", API_SERVER),
    },
    "executors": {
        ("executor", "host", DRIVER),
        ("executor", "host", BLOCKS),
        ("host", "executor", BLOCKS),
        ("executor", "executor", BLOCKS),
        ("host", "anywhere", API_SERVER),
    },
}
"""Way -> source, target and port of all that may be reached, of the ports above. (To ports of Azure, hosts always may.)"""


@pytest.mark.parametrize("way", PERMITTED)
def test_only_hosts_reach_the_server_and_only_executors_their_driver(render, way: str) -> None:
    objects = render(WAYS[way])
    labels = {
        "host": objects["Deployment"]["spec"]["template"]["metadata"]["labels"],
        "executor": executor(objects)["metadata"]["labels"],
        "stranger": STRANGER,
        "anywhere": ANYWHERE,
    }
    if way == "server":
        labels["driver"] = objects["Deployment-spark"]["spec"]["template"]["metadata"]["labels"]
    of_release = labels.keys() - {"stranger", "anywhere"}
    ports = (CONNECT, DRIVER, BLOCKS, API, API_SERVER)
    arriving = {
        (source, target, port)
        for source, target, port in product(labels, of_release, ports)
        if permits(objects, "Ingress", labels[target], labels[source], port)
    }
    leaving = {
        (source, target, port)
        for source, target, port in product(of_release, {*of_release, "anywhere"}, ports)
        if permits(objects, "Egress", labels[source], labels[target], port)
    }
    assert arriving == {each for each in PERMITTED[way] if each[1] in of_release}
    assert {each for each in leaving if each[1] == "anywhere" or each[2] != API_SERVER} == PERMITTED[way]


def test_the_ports_of_the_api_server_are_a_value(render) -> None:
    for name, values in (("NetworkPolicy-spark", SERVER), ("NetworkPolicy", EXECUTORS)):
        egress = render(merged(values, {"networkPolicy": {"apiServerPorts": [8443]}}))[name]["spec"]["egress"]
        ports = [each["port"] for rule in egress for each in rule["ports"]]
        assert 8443 in ports
        assert 6443 not in ports


# Executors that read


@pytest.mark.parametrize("way", DRIVERS)
def test_executors_get_variables_from_secrets_that_spark_s_settings_do_not_name(render, way: str) -> None:
    driver, values = DRIVERS[way]
    bare, reading = render(values), render(merged(values, READING))
    (container,) = executor(reading)["spec"]["containers"]
    (before,) = executor(bare)["spec"]["containers"]
    assert container["env"] == [*before["env"], STAGING]
    assert container["envFrom"] == [{"secretRef": {"name": "bank-executors"}}]
    assert conf_of(reading) == conf_of(bare)
    assert [each["name"] for each in before["env"]] == ["HOME"]
    assert "envFrom" not in before
    assert "bank-executors" not in str(reading[driver])


def test_changed_variables_roll_what_drives_executors(render) -> None:
    for name, values in DRIVERS.values():
        templates = [render(each)[name]["spec"]["template"] for each in (values, merged(values, READING))]
        assert len({each["metadata"]["annotations"]["checksum/settings"] for each in templates}) == 2


@pytest.mark.parametrize("way", DRIVERS)
def test_executors_reach_what_a_value_lists_and_nothing_else(render, way: str) -> None:
    _, values = DRIVERS[way]

    def reached(objects: dict[str, Any]) -> set[int]:
        pod = executor(objects)["metadata"]["labels"]
        ports = (443, 5432, 5671, API_SERVER)
        return {port for port in ports if permits(objects, "Egress", pod, ANYWHERE, port)}

    assert reached(render(values)) == set()
    assert reached(render(merged(values, READING))) == {443, 5432}


REFERENCES = {
    "spark.kubernetes.executor.secretKeyRef.BANK_STAGING_DSN": "bank-staging:dsn",
    "spark.kubernetes.driver.secretKeyRef.TOKEN": "bank.staging:api_token",
    "spark.kubernetes.executor.secrets.bank-staging": "/etc/bank/staging",
}


@pytest.mark.parametrize(("way", "where"), [("server", ("sparkServer",)), ("executors", ("config", "spark"))])
def test_spark_s_own_names_of_secrets_are_accepted(render, way: str, where: tuple[str, ...]) -> None:
    assert conf_of(render(merged(WAYS[way], under(where, REFERENCES)))).items() >= REFERENCES.items()


def under(where: tuple[str, ...], conf: dict[str, str]) -> Values:
    """Values with these settings of Spark's."""
    values: Values = {"conf": conf}
    for name in reversed(where):
        values = {name: values}
    return values


EXECUTOR_ENV = "spark.executorEnv.BANK_STAGING_DSN"
STORED = f"its {EXECUTOR_ENV} would store a secret in Spark's configuration"


@pytest.mark.parametrize(("way", "where"), [("server", ("sparkServer",)), ("executors", ("config", "spark"))])
@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        (EXECUTOR_ENV, "${BANK_DSN}", STORED),
        (EXECUTOR_ENV, "postgresql://${USER}@postgres/bank", STORED),
        (EXECUTOR_ENV, "postgresql://bank:hunter2@postgres/bank", STORED),
        ("spark.kubernetes.executor.secretKeyRef.DSN", "hunter2", "does not name a Secret: write SECRET:KEY"),
        ("spark.kubernetes.executor.secretKeyRef.DSN", "AccountKey=hunter2:==", "does not name a Secret: write SECRET:KEY"),
        ("spark.kubernetes.executor.secrets.bank", "hunter2:a", "does not name a Secret"),
        ("spark.hadoop.secretKeyRef.DSN", "bank:hunter2", "holds a secret in plain text"),
    ],
)  # fmt: skip
def test_secrets_in_the_settings_of_spark_are_refused_with_the_value_to_use(
    render, way: str, where: tuple[str, ...], name: str, value: str, words: str
) -> None:
    with pytest.raises(helm_python.HelmRenderError) as raised:
        render(merged(WAYS[way], under(where, {name: value})))
    assert words in str(raised.value)
    assert "hunter2" not in str(raised.value)
    if name == EXECUTOR_ENV:
        assert "name a Secret that has BANK_STAGING_DSN in `sparkExecutors.secrets`" in str(raised.value)


def test_a_variable_without_a_secret_may_be_in_the_settings_of_spark(render) -> None:
    conf = {"spark.executorEnv.TZ": "UTC", "spark.executorEnv.PRICE": "$$5"}
    assert conf_of(render(merged(EXECUTORS, under(("config", "spark"), conf)))).items() >= conf.items()


def test_the_server_s_settings_take_nothing_from_the_environment(render) -> None:
    with pytest.raises(
        helm_python.HelmRenderError, match=r"its spark\.app\.owner holds .* does not replace: remove it"
    ):
        render(merged(SERVER, under(("sparkServer",), {"spark.app.owner": "${OWNER}"})))


def test_a_secret_in_a_variable_of_executors_is_refused(render) -> None:
    given = {"sparkExecutors": {"env": [{"name": "BANK_DSN", "value": "postgresql://bank:hunter2@postgres/bank"}]}}
    with pytest.raises(
        helm_python.HelmRenderError, match=r"sparkExecutors\.env: its BANK_DSN holds a secret in plain text"
    ):
        render(merged(SERVER, given))


# What contradicts itself

MASTER = "config.spark.master is k8s://https://kubernetes.default.svc"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({**SERVER, **ADDRESS}, "sparkServer.create is true, and sparkConnect names another server: keep one of them"),
        ({**EXECUTORS, **SERVER}, f"{MASTER}, but sparkServer.create has transforms run on a Spark Connect server"),
        ({**EXECUTORS, **ADDRESS}, f"{MASTER}, but sparkConnect has transforms run on a Spark Connect server"),
        (merged(EXECUTORS, {"sparkExecutors": {"image": ""}}), f"{MASTER}, but sparkExecutors.image is empty"),
        ({**EXECUTORS, "serviceAccount": {"create": False}}, f"{MASTER}, so pods need a ServiceAccount"),
        ({**EXECUTORS, "api": {"port": 7078}}, "api.port is 7078, where Spark's driver listens"),
        (
            merged(EXECUTORS, {"config": {"spark": {"conf": {"spark.driver.port": "1"}}}}),
            "config.spark.conf sets spark.driver.port, which the chart sets itself",
        ),
        (
            merged(SERVER, {"sparkServer": {"conf": {"spark.executor.memory": "8g"}}}),
            "sparkServer.conf sets spark.executor.memory, which the chart sets itself",
        ),
        (
            merged(SERVER, {"sparkServer": {"conf": {"spark.hadoop.fs.azure.account.key.bank": "hunter2"}}}),
            "sparkServer.conf: its spark.hadoop.fs.azure.account.key.bank holds a secret in plain text",
        ),
    ],
)
def test_what_contradicts_itself_is_refused_with_the_values_to_change(render, values: Values, words: str) -> None:
    with pytest.raises(helm_python.HelmRenderError) as raised:
        render(values)
    assert words in str(raised.value)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    "values",
    [
        {"config": {"spark": {"remote": "sc://spark"}}},
        merged(SERVER, {"config": {"spark": {"remote": "sc://spark"}}}),
        {"sparkServer": {"create": "yes"}},
        {"sparkServer": {"address": "sc://spark"}},
        {"sparkServer": {"image": ""}},
        {"sparkServer": {"image": "https://registry.example/spark"}},
        {"sparkServer": {"memory": "lots"}},
        {"sparkServer": {"conf": {"spark.executor.instances": 2}}},
        {"sparkServer": {"conf": {"executors": "2"}}},
        {"sparkServer": {"conf": {"spark.a": "b\nspark.c=d"}}},
        {"sparkExecutors": {"count": 0}},
        {"sparkExecutors": {"image": "a b"}},
        {"sparkExecutors": {"tmpSize": "2 GB"}},
        {"sparkExecutors": {"secrets": ["Not A Secret"]}},
        {"sparkExecutors": {"env": [{"name": "A", "secret": "bank", "key": "a"}]}},
        {"sparkExecutors": {"egress": [{}]}},
        {"networkPolicy": {"apiServerPorts": []}},
        {"extraVolumeMounts": [{"name": "code", "mountPath": "/etc/leasehold-spark"}]},
    ],
)
def test_nonsense_about_spark_is_refused_by_the_schema(render, values: Values) -> None:
    with pytest.raises(helm_python.HelmValuesError):
        render(values)


def test_the_notes_warn_of_an_open_server(chart) -> None:
    def notes(values: Values) -> str:
        return str(chart.render(merged(BANK, values), name="bank", namespace="prod")["leasehold/templates/NOTES.txt"])

    warning = "Every pod of the cluster can run code on it"
    assert warning in notes({**SERVER, "networkPolicy": {"enabled": False}})
    assert warning not in notes(SERVER)
    assert "deployment/bank-leasehold-spark" in notes(SERVER)
    assert "Spark" not in notes({})


def test_every_way_of_the_docs_is_taken(chart) -> None:
    page = (ROOT / "docs/kubernetes.md").read_text().split("## Spark elsewhere", 1)[1]
    examples = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)]
    for values in examples:
        chart.validate_schema(merged(BANK, values))
        assert chart.render(merged(BANK, values), name="bank", namespace="prod")
        assert helm_python.lint(CHART, merged(BANK, values), strict=True)["errors"] == []
    assert [sorted(each) for each in examples] == [
        ["image", "resources", "sparkConnect"],
        ["image", "resources", "sparkServer"],
        ["config", "sparkExecutors"],
        ["config", "image", "resources", "secrets", "sparkExecutors", "sparkServer"],
    ]


def test_the_pipeline_of_the_docs_lets_executors_read_with_variables_that_the_chart_gives_them(chart) -> None:
    page = (ROOT / "docs/kubernetes.md").read_text().split("### Executors that read", 1)[1]
    values = merged(BANK, yaml.safe_load(page.split("```yaml\n", 1)[1].split("```", 1)[0]))
    files = chart.render(values, name="bank", namespace="prod")
    settings = yaml.safe_load(files["leasehold/templates/configmap.yaml"])["data"]["leasehold.yaml"]
    (pipeline,) = parse(settings, {**ENVIRONMENT, "POD_NAME": "bank-0"}, folder=ROOT).pipelines
    assert pipeline.executors_read
    (secret,) = values["sparkExecutors"]["secrets"]
    (listed,) = re.findall(rf"`{secret}` has (.*)\.\n", page)
    assert re.findall(r"`(\w+)`", listed) == [pipeline.feed.executors_env, pipeline.sink.executors_env]
    assert secret in values["secrets"]
