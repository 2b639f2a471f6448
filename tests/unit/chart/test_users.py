"""The chart for twelve typical users: what each file of values in users/ makes, Kubernetes and its operators take."""

import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import helm_python
import jsonschema
import pytest
import yaml
from unit.chart.releases import CHART, ENVIRONMENT, OPENSHIFT, Values, merged, rendered_with
from unit.chart.test_chart import CUSTOM, VERSIONS, keda_problems, problem, strict

from leasehold.service.config.load import parse

HERE = Path(__file__).parent
USERS: dict[str, Values] = {
    path.stem: yaml.safe_load(path.read_text()) for path in sorted((HERE / "users").glob("*.yaml"))
}
CRDS = {path.stem: strict(json.loads(path.read_text())) for path in (HERE / "crds").glob("*.json")}
Objects = list[dict[str, Any]]


@pytest.fixture(scope="module")
def release(chart: helm_python.Chart) -> Callable[[str], Objects]:
    """The objects of a user, in the namespace `prod`, as Helm renders them without any other values."""

    @cache
    def rendered(user: str) -> Objects:
        chart.validate_schema(USERS[user])
        files = rendered_with([OPENSHIFT] if user == "openshift" else [], chart, USERS[user])
        texts = (text for name, text in files.items() if name.endswith(".yaml"))
        return [each for text in texts for each in yaml.safe_load_all(text) if each]

    return rendered


def only(objects: Objects, kind: str, suffix: str = "") -> dict[str, Any]:
    (found,) = (each for each in objects if each["kind"] == kind and each["metadata"]["name"].endswith(suffix or ""))
    return found


def workload(objects: Objects) -> dict[str, Any]:
    found = (each for each in objects if each["kind"] in ("Deployment", "StatefulSet"))
    return next(each for each in found if "spark" not in each["metadata"]["name"])


def pods(objects: Objects) -> Iterator[dict[str, Any]]:
    """All pods that the release starts: of hosts, of Spark's server, of executors, and of `helm test`."""
    for each in objects:
        if each["kind"] == "Pod":
            yield each
        elif each["kind"] in ("Deployment", "StatefulSet"):
            yield each["spec"]["template"]
        elif "executor.yaml" in each.get("data", {}):
            yield yaml.safe_load(each["data"]["executor.yaml"])


def containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [*pod["spec"]["containers"], *pod["spec"].get("initContainers", [])]


def custom_problems(objects: Objects) -> list[str]:
    """What the Gateway API and the operator of Prometheus would not take."""
    found = (
        (each["kind"], jsonschema.Draft202012Validator(CRDS[each["kind"]]).iter_errors(each))
        for each in objects
        if each["kind"] in CRDS
    )
    return [f"{kind} {list(error.path)}: {error.message}" for kind, errors in found for error in errors]


# Each user


def test_there_are_twelve_users() -> None:
    assert len(USERS) == 12


@pytest.mark.parametrize("user", USERS)
def test_kubernetes_and_its_operators_take_what_a_user_gets(release, user: str) -> None:
    objects = release(user)
    own = [json.dumps(each, sort_keys=True) for each in objects if each["kind"] not in CUSTOM | CRDS.keys()]
    for version in (VERSIONS[0], VERSIONS[-1]):
        assert [found for each in own if (found := problem(each, version))] == [], version
    assert custom_problems(objects) + keda_problems({each["kind"]: each for each in objects}) == []
    assert {each["kind"] for each in objects} - CRDS.keys() - {"ScaledObject", "TriggerAuthentication"} == {
        yaml.safe_load(each)["kind"] for each in own
    }, "there is a schema for each kind"


@pytest.mark.parametrize("user", USERS)
def test_helm_finds_nothing_to_mend_for_a_user(user: str) -> None:
    report = helm_python.lint(CHART, USERS[user], strict=True)
    assert [each for each in report["messages"] if each["severity"] > 1] + report["errors"] == []


def test_operators_would_not_take_a_misspelt_field(release) -> None:
    route, monitor = only(release("httproute"), "HTTPRoute"), only(release("prometheus"), "PodMonitor")
    spoilt = [
        {**route, "spec": {**route["spec"], "host": "a"}},
        {**monitor, "spec": {**monitor["spec"], "endpoints": []}},
    ]
    assert [each.partition(" ")[0] for each in custom_problems(spoilt)] == ["HTTPRoute", "PodMonitor"]


@pytest.mark.parametrize("user", USERS)
def test_a_host_takes_the_settings_of_a_user(release, user: str) -> None:
    objects = release(user)
    (text,) = (each["data"]["leasehold.yaml"] for each in objects if "leasehold.yaml" in each.get("data", {}))
    settings = parse(
        text, {**ENVIRONMENT, "POD_NAME": "bank-0", "DRIVER_POD_IP": "10.0.0.7"}, folder=Path("/etc/leasehold")
    )
    assert [each.name for each in settings.pipelines] == [each["name"] for each in USERS[user]["config"]["pipelines"]]


@pytest.mark.parametrize("user", USERS)
def test_what_a_user_gets_fits_together(release, user: str) -> None:
    """Selectors select pods, volumes and mounts are the same, and one port of a host's pod is that of the API."""
    objects = release(user)
    host = workload(objects)["spec"]["template"]
    ports = [port["name"] for each in containers(host) for port in each.get("ports", [])]
    assert ports.count("api") == 1
    assert workload(objects)["spec"]["selector"]["matchLabels"].items() <= host["metadata"]["labels"].items()
    labels = [each["metadata"]["labels"] for each in pods(objects)]
    for each in objects:
        if each["kind"] in ("Service", "NetworkPolicy", "PodMonitor", "PodDisruptionBudget"):
            selector = each["spec"].get("podSelector") or each["spec"]["selector"]
            wanted = selector.get("matchLabels", selector)
            assert any(wanted.items() <= own.items() for own in labels), each["metadata"]["name"]
    claims = {each["metadata"]["name"] for each in workload(objects)["spec"].get("volumeClaimTemplates", [])}
    for pod in pods(objects):
        mounted = {mount["name"] for each in containers(pod) for mount in each.get("volumeMounts", [])}
        volumes = {each["name"] for each in pod["spec"].get("volumes", [])}
        assert mounted == volumes | (claims if pod is host else set())
    names = {(each["kind"], each["metadata"]["name"]) for each in objects}
    assert len(names) == len(objects)
    assert all(name.startswith(workload(objects)["metadata"]["name"]) for _, name in names)


@pytest.mark.parametrize("user", USERS)
def test_all_containers_of_a_user_s_chart_are_restricted(release, user: str) -> None:
    given = {each["name"] for key in ("extraContainers", "extraInitContainers") for each in USERS[user].get(key, [])}
    for pod in pods(release(user)):
        assert (pod["spec"]["securityContext"]["runAsNonRoot"], pod["spec"]["securityContext"]["seccompProfile"]) == (
            True,
            {"type": "RuntimeDefault"},
        )
        for each in (each for each in containers(pod) if each["name"] not in given):
            assert each["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


def test_kubernetes_takes_what_the_examples_of_the_docs_make(render) -> None:
    page = (CHART.parent / "docs/kubernetes.md").read_text()
    sections = page.partition("### OpenShift")[2].partition("## Monitoring")[0]
    examples = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", sections, re.DOTALL)]
    assert [next(iter(each)) for each in examples] == ["podSecurityContext", "ingress", "httpRoute", "api"]
    for each in examples:
        objects = [one for one in render(each).values() if one["kind"] not in CRDS]
        assert [found for one in objects if (found := problem(json.dumps(one, sort_keys=True), VERSIONS[-1]))] == []


# What is special about some


def scc_problems(pod: dict[str, Any]) -> Iterator[str]:
    """What OpenShift's `restricted-v2` refuses: ids outside the namespace's range, other volumes, ports of nodes, more rights."""
    spec = pod["spec"]
    for where in (spec, *containers(pod)):
        security = where.get("securityContext", {})
        yield from (
            f"{key} is fixed"
            for key in ("runAsUser", "fsGroup", "supplementalGroups", "seLinuxOptions")
            if key in security
        )
        yield from (f"{key} is set" for key in ("privileged", "allowPrivilegeEscalation") if security.get(key))
        yield from (
            f"{each} is added" for each in security.get("capabilities", {}).get("add", []) if each != "NET_BIND_SERVICE"
        )
        if security.get("seccompProfile", {"type": "RuntimeDefault"}) != {"type": "RuntimeDefault"}:
            yield "another seccomp profile"
    allowed = {
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
    }
    yield from (kind for volume in spec.get("volumes", []) for kind in volume.keys() - {"name"} if kind not in allowed)
    yield from (key for key in ("hostNetwork", "hostPID", "hostIPC") if spec.get(key))
    yield from (
        f"port {port['hostPort']} of the node"
        for each in containers(pod)
        for port in each.get("ports", [])
        if "hostPort" in port
    )


def test_openshift_admits_all_pods_and_chooses_their_users(release) -> None:
    assert [list(scc_problems(pod)) for pod in pods(release("openshift"))] == [[], [], [], []]
    assert [set(scc_problems(pod)) for pod in pods(release("minimal"))] == [
        {"runAsUser is fixed", "fsGroup is fixed"}
    ] * 2


def test_pods_of_any_user_write_home_into_a_volume(release) -> None:
    """OpenShift's runtime takes `HOME` into /etc/passwd for a user that the image does not know, and Java asks there."""
    for pod in pods(release("openshift")):
        (container,) = pod["spec"]["containers"]
        places = {each["mountPath"] for each in container.get("volumeMounts", [])}
        if "spark" in pod["metadata"]["labels"]["app.kubernetes.io/name"]:
            assert {each["name"]: each.get("value") for each in container["env"]}["HOME"] in places


def test_common_labels_and_annotations_are_on_all_objects_and_pods_and_select_nothing(release) -> None:
    for user in ("eventhubs-keda", "executors"):
        given = USERS[user]["commonLabels"].items()
        notes = USERS[user].get("commonAnnotations", {}).items()
        for each in (*release(user), *pods(release(user))):
            assert given <= each["metadata"]["labels"].items(), each["metadata"]
            assert notes <= each["metadata"].get("annotations", {}).items(), each["metadata"]
        selectors = [json.dumps(each.get("spec", {}).get("selector", {})) for each in release(user)]
        assert not any(key in text for text in selectors for key, _ in given)


def test_a_pod_of_a_stateful_set_has_a_claim_of_its_own_for_data(release) -> None:
    spec = workload(release("stateful"))["spec"]
    (claim,) = spec["volumeClaimTemplates"]
    (mounted,) = (
        each
        for each in spec["template"]["spec"]["containers"][0]["volumeMounts"]
        if each["name"] == claim["metadata"]["name"]
    )
    assert mounted["mountPath"] == "/var/lib/leasehold"
    assert claim["spec"] == {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "fast",
        "resources": {"requests": {"storage": "20Gi"}},
    }
    assert claim["metadata"]["name"] not in {each["name"] for each in spec["template"]["spec"]["volumes"]}
    assert spec["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Delete", "whenScaled": "Retain"}


def test_an_ingress_leads_to_the_service_with_tls(release) -> None:
    service, ingress = only(release("ingress"), "Service"), only(release("ingress"), "Ingress")
    (port,) = service["spec"]["ports"]
    (rule,) = ingress["spec"]["rules"]
    (path,) = rule["http"]["paths"]
    assert path["backend"]["service"] == {"name": service["metadata"]["name"], "port": {"name": port["name"]}}
    assert ingress["spec"]["tls"] == [{"hosts": [rule["host"]], "secretName": "bank-tls"}]
    assert only(release("openshift"), "Ingress")["spec"]["tls"] == [{"hosts": ["bank.apps.example.com"]}]


EDGE = {"route.openshift.io/termination": "edge"}
REENCRYPT = {"route.openshift.io/termination": "reencrypt"}


@pytest.mark.parametrize(
    ("apis", "given", "annotations"),
    [
        ([OPENSHIFT], {}, EDGE),
        ([OPENSHIFT], {"annotations": {"a": "b"}}, {"a": "b", **EDGE}),
        ([OPENSHIFT], {"annotations": REENCRYPT}, REENCRYPT),
        ([OPENSHIFT], {"tlsSecret": "bank-tls"}, None),
        ([], {}, None),
        ([], {"annotations": None}, None),
    ],
)
def test_a_route_of_openshift_always_has_tls(
    chart: helm_python.Chart, apis: list[str], given: dict[str, Any], annotations: dict[str, str] | None
) -> None:
    """OpenShift makes a Route of plain HTTP for an Ingress that has hosts for TLS, but neither a Secret nor this annotation."""
    files = rendered_with(apis, chart, merged(USERS["openshift"], {"ingress": given}))
    ingress = yaml.safe_load(files["leasehold/templates/routes.yaml"])
    assert ingress["metadata"].get("annotations") == annotations


def test_a_route_leads_from_the_gateway_to_the_service(release) -> None:
    service, route = only(release("httproute"), "Service"), only(release("httproute"), "HTTPRoute")
    (rule,) = route["spec"]["rules"]
    assert rule["backendRefs"] == [{"name": service["metadata"]["name"], "port": service["spec"]["ports"][0]["port"]}]
    assert route["spec"]["parentRefs"] == USERS["httproute"]["httpRoute"]["parentRefs"]


def test_an_image_is_named_by_its_digest(release) -> None:
    image = USERS["private-registry"]["image"]
    objects = release("private-registry")
    for pod in (workload(objects)["spec"]["template"], only(objects, "Pod")):
        assert pod["spec"]["containers"][0]["image"] == f"{image['repository']}@{image['digest']}"
        assert pod["spec"]["imagePullSecrets"] == image["pullSecrets"]


def test_variables_are_read_from_config_maps_too(release) -> None:
    (host,) = workload(release("private-registry"))["spec"]["template"]["spec"]["containers"]
    assert host["envFrom"] == [
        {"secretRef": {"name": "bank"}},
        {"configMapRef": {"name": "platform"}, "prefix": "PLATFORM_"},
    ]


def test_times_of_probes_may_be_changed_one_by_one(release) -> None:
    (host,) = workload(release("spark-connect"))["spec"]["template"]["spec"]["containers"]
    assert host["startupProbe"] == {
        "httpGet": {"path": "/health/live", "port": "api"},
        "periodSeconds": 2,
        "failureThreshold": 150,
        "timeoutSeconds": 5,
    }


def test_a_pod_monitor_scrapes_the_port_of_the_pods_with_the_token(release) -> None:
    objects = release("prometheus")
    monitor = only(objects, "PodMonitor")["spec"]
    assert (
        monitor["selector"]["matchLabels"].items()
        <= workload(objects)["spec"]["template"]["metadata"]["labels"].items()
    )
    assert monitor["podMetricsEndpoints"] == [
        {
            "port": "api",
            "path": "/metrics",
            "interval": "15s",
            "scheme": "http",
            "authorization": {"type": "Bearer", "credentials": {"name": "leasehold-api", "key": "prometheus"}},
        }
    ]


# A proxy as the only door


def test_a_proxy_is_the_only_door(release) -> None:
    objects = release("proxy")
    host, proxy = workload(objects)["spec"]["template"]["spec"]["containers"]
    (text,) = (each["data"]["leasehold.yaml"] for each in objects if "leasehold.yaml" in each.get("data", {}))
    assert yaml.safe_load(text)["api"]["host"] == "127.0.0.1"
    assert "ports" not in host
    (door,) = proxy["ports"]
    (offered,) = only(objects, "Service")["spec"]["ports"]
    (rule,) = next(each for each in objects if each["kind"] == "NetworkPolicy")["spec"]["ingress"]
    assert (offered["targetPort"], rule["ports"]) == (door["name"], [{"port": door["name"]}])


def test_clients_of_a_proxy_verify_its_certificate(release) -> None:
    objects = release("proxy")
    name = "bank-leasehold.prod.svc"
    (endpoint,) = only(objects, "ServiceMonitor")["spec"]["endpoints"]
    assert (endpoint["scheme"], endpoint["tlsConfig"]) == (
        "https",
        {"serverName": name, "ca": {"secret": {"name": "bank-tls", "key": "ca.crt"}}},
    )
    (trigger,) = only(objects, "ScaledObject")["spec"]["triggers"]
    assert trigger["metadata"]["url"] == f"https://{name}:8080/api/lag"
    assert {"parameter": "ca", "name": "bank-tls", "key": "ca.crt"} in only(objects, "TriggerAuthentication")["spec"][
        "secretTargetRef"
    ]
    test = only(objects, "Pod")["spec"]
    assert test["containers"][0]["args"][1:] == [
        f"https://{name}:8080/health/ready",
        "/run/secrets/leasehold-ca/ca.crt",
    ]
    assert test["volumes"][0]["secret"]["secretName"] == "bank-tls"
