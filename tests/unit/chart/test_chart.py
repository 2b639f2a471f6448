"""The chart as Kubernetes takes it: rendered with every switch, linted, and held against the schemas of four versions."""

import json
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import helm_python
import jsonschema
import kubernetes_validate
import pytest
import yaml
from unit.chart.releases import (
    AZURE_HUB,
    BANK,
    CHART,
    COSMOS,
    EXECUTORS,
    HUB,
    IDENTITY,
    LEASES_IN_POSTGRES,
    QUERY,
    READING,
    SCRAPED,
    SERVER,
    SQLITE,
    STATEFUL,
    hub_of,
    merged,
    with_feed,
)

VERSIONS = ("1.29", "1.33", "1.35", "1.37")
CUSTOM = {"ScaledObject", "TriggerAuthentication", "ServiceMonitor", "PrometheusRule"}
"""Kinds of operators, whose schemas are not Kubernetes'."""

SWITCHES: dict[str, dict[str, Any]] = {
    "the least": {},
    "one replica on SQLite": {"replicas": 1, **SQLITE},
    "a claim for data": {"dataClaim": "bank-data"},
    "no service account": {"serviceAccount": {"create": False}},
    "a service account that exists": {"serviceAccount": {"create": False, "name": "bank"}},
    "a service account's annotations": {"serviceAccount": {"annotations": {"a/b": "c"}}},
    "a workload identity": {"workloadIdentity": {"clientId": "2f1d6c1e-0000-4000-8000-000000000000"}},
    "CPU": {"autoscaling": {"by": "cpu"}},
    "lag": {"autoscaling": {"by": "lag"}, **SCRAPED},
    "lag of a pipeline": {"autoscaling": {"by": "lag", "pipeline": "balances"}, **SCRAPED},
    "age": {"autoscaling": {"by": "lag", "lagSeconds": 60}, **SCRAPED},
    "age of a pipeline": {"autoscaling": {"by": "lag", "lagSeconds": 60, "pipeline": "balances"}, **SCRAPED},
    "Cosmos DB": {"autoscaling": {"by": "cosmos", "pipeline": "balances", "min": 0}},
    "Cosmos DB by identity": {
        "autoscaling": {"by": "cosmos", "pipeline": "balances"},
        "workloadIdentity": {"clientId": "2f1d6c1e-0000-4000-8000-000000000000"},
    },
    "Event Hubs": {"autoscaling": {"by": "eventhubs", "min": 0}, **with_feed(HUB)},
    "Event Hubs by identity": {"autoscaling": {"by": "eventhubs", "min": 0}, **with_feed(AZURE_HUB), **IDENTITY},
    "PostgreSQL": {"autoscaling": {"by": "postgres", "min": 0, "postgres": {"query": QUERY}}},
    "leases in PostgreSQL": LEASES_IN_POSTGRES,
    "a StatefulSet": STATEFUL,
    "a StatefulSet, CPU": {**STATEFUL, "autoscaling": {"by": "cpu"}},
    "a StatefulSet, Event Hubs": {**STATEFUL, "autoscaling": {"by": "eventhubs", "min": 0}, **with_feed(HUB)},
    "a StatefulSet of one on SQLite": {**STATEFUL, "replicas": 1, **SQLITE},
    "a server, executors that read": merged(SERVER, READING),
    "executors that read": merged(EXECUTORS, READING),
    "no budget": {"podDisruptionBudget": {"enabled": False}},
    "a budget in percent": {"podDisruptionBudget": {"maxUnavailable": "25%"}},
    "no spread": {"topologySpread": {"enabled": False}},
    "no network policy": {"networkPolicy": {"enabled": False}},
    "more ways out": {"networkPolicy": {"egressPorts": [], "egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}]}},
    "Spark Connect": {"sparkConnect": "sc://spark:15003/;use_ssl=true"},
    "a Spark Connect server": {"sparkServer": {"create": True}},
    "all about a Spark Connect server": {
        "sparkServer": {"create": True, "image": "registry.example/spark:4.3.0", "memory": "2g", "conf": {"spark.a": "1"}},
        "sparkExecutors": {"image": "registry.example/executor@sha256:" + "0" * 64, "count": 3, "cores": 2, "memory": "4g"},
        "image": {"pullSecrets": [{"name": "registry"}]},
        "nodeSelector": {"kubernetes.io/arch": "amd64"},
        "tolerations": [{"key": "a", "operator": "Exists"}],
        "priorityClassName": "high",
    },
    "a Spark Connect server, no network policy": {
        "sparkServer": {"create": True},
        "networkPolicy": {"enabled": False},
    },
    "executors of each pod": EXECUTORS,
    "executors of each pod, no network policy": {**EXECUTORS, "networkPolicy": {"enabled": False}},
    "traces": {"config": {"telemetry": {"traces": "http://collector.observed:4318"}}},
    "all monitoring": {
        "monitoring": {"serviceMonitor": True, "alerts": True, "dashboard": True, "labels": {"release": "prometheus"}},
        **SCRAPED,
    },
    "everything about pods": {
        "image": {"repository": "registry.example/leasehold", "tag": "1.2.3", "pullSecrets": [{"name": "registry"}]},
        "env": [{"name": "PYTHONPATH", "value": "/code"}],
        "files": {"rules.py": "def rule(df):\n    return df\n"},
        "podLabels": {"team": "bank"},
        "podAnnotations": {"a/b": "c"},
        "nodeSelector": {"kubernetes.io/arch": "amd64"},
        "tolerations": [{"key": "a", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "high",
        "extraVolumes": [{"name": "code", "configMap": {"name": "code"}}],
        "extraVolumeMounts": [{"name": "code", "mountPath": "/code"}],
    },
}  # fmt: skip


@cache
def problem(text: str, version: str) -> str | None:
    """Of one object; most are the same whatever is switched on."""
    try:
        kubernetes_validate.validate(json.loads(text), version, strict=True)
    except kubernetes_validate.ValidationError as error:
        return f"{list(error.path)}: {error.message}"
    return None


@pytest.mark.parametrize("switch", SWITCHES)
def test_kubernetes_takes_what_every_switch_makes(render, switch: str) -> None:
    objects = render(SWITCHES[switch])
    own = {name: each for name, each in objects.items() if each["kind"] not in CUSTOM}
    assert {SWITCHES[switch].get("workload", "Deployment"), "Service", "ConfigMap"} <= objects.keys()
    for version in VERSIONS:
        found = {name: problem(json.dumps(each, sort_keys=True), version) for name, each in own.items()}
        assert not any(found.values()), (version, found)


def test_the_oldest_version_that_may_have_the_chart_is_one_of_the_schemas() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["kubeVersion"] == f">={VERSIONS[0]}.0-0"
    assert f"| Kubernetes | {VERSIONS[0]} or newer" in (CHART.parent / "docs/versions.md").read_text()
    assert f"a cluster ({VERSIONS[0]} or later)" in (CHART.parent / "docs/kubernetes.md").read_text()


def test_kubernetes_would_not_take_a_misspelt_field(render) -> None:
    deployment = render()["Deployment"]
    deployment["spec"]["template"]["spec"]["terminationGracePeriod"] = 1
    assert all("terminationGracePeriod" in str(problem(json.dumps(deployment), version)) for version in VERSIONS)


@pytest.mark.parametrize("switch", SWITCHES)
def test_helm_finds_nothing_to_mend(switch: str) -> None:
    report = helm_python.lint(CHART, merged(BANK, SWITCHES[switch]), strict=True)
    assert [each for each in report["messages"] if each["severity"] > 1] == []
    assert report["errors"] == []


def test_objects_of_operators_are_of_the_right_kind_and_select_the_pods(render) -> None:
    lag, cosmos = render(SWITCHES["lag"]), render(SWITCHES["Cosmos DB by identity"])
    monitoring = render(SWITCHES["all monitoring"])
    kinds = {**lag, **cosmos, **monitoring}
    assert kinds.keys() >= CUSTOM
    assert {kinds[kind]["apiVersion"] for kind in CUSTOM} == {"keda.sh/v1alpha1", "monitoring.coreos.com/v1"}
    assert lag["ScaledObject"]["spec"]["scaleTargetRef"]["name"] == lag["Deployment"]["metadata"]["name"]
    selected = monitoring["ServiceMonitor"]["spec"]["selector"]["matchLabels"]
    assert selected.items() <= monitoring["Service"]["metadata"]["labels"].items()
    for kind in ("ServiceMonitor", "PrometheusRule"):
        assert monitoring[kind]["metadata"]["labels"]["release"] == "prometheus"


def test_who_scales_the_group_alone_says_how_many_pods_there_are(render) -> None:
    assert render()["Deployment"]["spec"]["replicas"] == 3
    for switch in ("CPU", "lag", "Cosmos DB", "Event Hubs", "PostgreSQL", "a StatefulSet, CPU"):
        objects = render(SWITCHES[switch])
        workload = objects.get("Deployment") or objects["StatefulSet"]
        assert "replicas" not in workload["spec"]
        scaler = objects.get("ScaledObject") or objects["HorizontalPodAutoscaler"]
        assert scaler["spec"]["scaleTargetRef"] == {
            "apiVersion": workload["apiVersion"],
            "kind": workload["kind"],
            "name": workload["metadata"]["name"],
        }


def test_keda_asks_one_host_for_the_lag_of_the_group_with_the_token(render) -> None:
    objects = render(SWITCHES["lag of a pipeline"])
    (trigger,) = objects["ScaledObject"]["spec"]["triggers"]
    assert trigger["metadata"] == {
        "url": "http://bank-leasehold.prod.svc:8080/api/lag?pipeline=balances",
        "valueLocation": "lag",
        "targetValue": "10000",
        "authMode": "bearer",
    }
    (token,) = objects["TriggerAuthentication"]["spec"]["secretTargetRef"]
    assert token == {"parameter": "token", "name": "leasehold-api", "key": "readers"}


def test_keda_reads_the_leases_that_the_settings_name(render) -> None:
    by_key, by_identity = COSMOS | {"endpoint": "https://bank.example"}, {"endpoint": "https://leases.example"}
    feed = {key: value for key, value in by_key.items() if key != "connection_string"}
    pipeline = {**BANK["config"]["pipelines"][0], "feed": {**feed, "processor_name": "old", "key": "${BANK_KEY}"}}
    scaling = {"autoscaling": {"by": "cosmos", "pipeline": "balances"}, "config": {"pipelines": [pipeline]}}
    usual = {
        "databaseId": "bank",
        "containerId": "transactions",
        "leaseDatabaseId": "operations",
        "leaseContainerId": "leases",
        "changeFeedLagThreshold": "10000",
    }
    (first,) = render(SWITCHES["Cosmos DB"])["ScaledObject"]["spec"]["triggers"]
    assert first["metadata"] == usual | {
        "processorName": "balances",
        "connectionFromEnv": "BANK_COSMOS",
        "leaseConnectionFromEnv": "LEASES_COSMOS",
    }
    leases = {"config": {"leases": {"connection_string": None, **by_identity}}}
    (second,) = render(merged(scaling, leases))["ScaledObject"]["spec"]["triggers"]
    assert second["metadata"] == usual | {
        "processorName": "old",
        "endpoint": "https://bank.example",
        "cosmosDBKeyFromEnv": "BANK_KEY",
        "leaseEndpoint": "https://leases.example",
    }


KEDA = {
    kind: Path(__file__).parent / "keda" / f"{kind.lower()}s.yaml" for kind in ("ScaledObject", "TriggerAuthentication")
}


@cache
def keda_schema(kind: str) -> dict[str, Any]:
    """KEDA's own, in which no field is unknown."""
    (version,) = yaml.safe_load(KEDA[kind].read_text())["spec"]["versions"]
    return strict(version["schema"]["openAPIV3Schema"])


def strict(schema: dict[str, Any]) -> dict[str, Any]:
    """As `kubectl --validate=strict` takes it: no other field than those named."""
    if "properties" not in schema:
        return schema | ({"items": strict(schema["items"])} if "items" in schema else {})
    named = {name: strict(each) for name, each in schema["properties"].items()}
    return schema | {
        "properties": named,
        "additionalProperties": named.keys() == {"name"} or schema.get("type") is None,
    }


def keda_problems(objects: dict[str, Any]) -> list[str]:
    found = [(kind, objects[kind]) for kind in KEDA if kind in objects]
    errors = ((kind, jsonschema.Draft202012Validator(keda_schema(kind)).iter_errors(each)) for kind, each in found)
    return [f"{kind} {list(error.path)}: {error.message}" for kind, each in errors for error in each]


@pytest.mark.parametrize(
    "switch", [name for name in SWITCHES if SWITCHES[name].get("autoscaling", {}).get("by") not in (None, "cpu")]
)
def test_keda_takes_what_every_switch_makes(render, switch: str) -> None:
    objects = render(SWITCHES[switch])
    assert keda_problems(objects) == []
    objects["ScaledObject"]["spec"]["minReplicas"] = 1
    objects["ScaledObject"]["spec"]["triggers"][0]["metadata"]["lag"] = 7
    assert len(keda_problems(objects)) == 2


def test_keda_reads_the_checkpoints_that_the_settings_name(render) -> None:
    objects = render(SWITCHES["Event Hubs"])
    (trigger,) = objects["ScaledObject"]["spec"]["triggers"]
    assert trigger == {
        "type": "azure-eventhub",
        "metadata": {
            "consumerGroup": "balances",
            "blobContainer": "checkpoints",
            "checkpointStrategy": "blobMetadata",
            "unprocessedEventThreshold": "10000",
            "eventHubName": "transactions",
            "connectionFromEnv": "BANK_EVENTHUBS",
            "storageConnectionFromEnv": "BANK_BLOBS",
        },
    }
    assert "TriggerAuthentication" not in objects
    assert objects["ScaledObject"]["spec"]["minReplicaCount"] == 0


@pytest.mark.parametrize(
    ("feed", "more"),
    [
        (AZURE_HUB, {}),
        (
            hub_of("bank.servicebus.chinacloudapi.cn", "https://operations.blob.core.chinacloudapi.cn/"),
            {
                "cloud": "Private",
                "endpointSuffix": "servicebus.chinacloudapi.cn",
                "storageEndpointSuffix": "core.chinacloudapi.cn",
            },
        ),
        (hub_of("bank.servicebus.windows.net", "HTTPS://operations.BLOB.core.windows.net:443/"), {}),
        (
            hub_of("bank.servicebus.windows.net", "https://operations.z12.blob.storage.azure.net"),
            {
                "cloud": "Private",
                "endpointSuffix": "servicebus.windows.net",
                "storageAccountName": "operations.z12",
                "storageEndpointSuffix": "storage.azure.net",
            },
        ),
    ],
)
def test_keda_reads_checkpoints_by_the_identity_of_the_pods(render, feed: dict[str, Any], more: dict[str, str]) -> None:
    objects = render({**SWITCHES["Event Hubs by identity"], **with_feed(feed)})
    (trigger,) = objects["ScaledObject"]["spec"]["triggers"]
    assert trigger["authenticationRef"] == {"name": "bank-leasehold"}
    assert trigger["metadata"] == {
        "consumerGroup": "$Default",
        "blobContainer": "checkpoints",
        "checkpointStrategy": "blobMetadata",
        "unprocessedEventThreshold": "10000",
        "eventHubName": "transactions",
        "eventHubNamespace": "bank",
        "storageAccountName": "operations",
        **more,
    }
    assert objects["TriggerAuthentication"]["spec"] == {
        "podIdentity": {"provider": "azure-workload", "identityId": IDENTITY["workloadIdentity"]["clientId"]}
    }
    found = trigger["metadata"]
    composed = f"{found['storageAccountName']}.blob.{found.get('storageEndpointSuffix', 'core.windows.net')}"
    assert composed == urlsplit(feed["checkpoint_blobs"]["account_url"]).hostname


def test_an_identity_of_the_pods_alone_does_not_change_how_keda_reads_a_hub(render) -> None:
    objects = render({**SWITCHES["Event Hubs"], **IDENTITY})
    assert (
        objects["ScaledObject"]["spec"]["triggers"]
        == render(SWITCHES["Event Hubs"])["ScaledObject"]["spec"]["triggers"]
    )
    assert "TriggerAuthentication" not in objects


@pytest.mark.parametrize(("given", "variable"), [({}, "BANK_POSTGRES"), ({"connectionEnv": "OUTBOX"}, "OUTBOX")])
def test_keda_sends_the_query_to_the_database_of_the_sink_or_another_one(
    render, given: dict[str, str], variable: str
) -> None:
    (trigger,) = render({"autoscaling": {"by": "postgres", "postgres": {"query": QUERY, **given}}})["ScaledObject"][
        "spec"
    ]["triggers"]
    assert trigger == {
        "type": "postgresql",
        "metadata": {"connectionFromEnv": variable, "query": QUERY, "targetQueryValue": "10000"},
    }


def test_keda_sends_the_query_to_the_database_of_the_leases_if_the_sink_has_none(render) -> None:
    sink = {**BANK["config"]["pipelines"][0], "sink": {"type": "http", "url": "https://bank.example"}}
    given = merged({"config": {"pipelines": [sink]}}, LEASES_IN_POSTGRES)
    objects = render(merged(given, {"autoscaling": {"by": "postgres", "postgres": {"query": QUERY}}}))
    (trigger,) = objects["ScaledObject"]["spec"]["triggers"]
    assert trigger["metadata"]["connectionFromEnv"] == "LEASES_POSTGRES"


def test_keda_may_have_a_password_of_its_own_where_pods_have_an_identity(render) -> None:
    given = merged(LEASES_IN_POSTGRES, {"config": {"leases": {"identity": "default"}}})
    autoscaling = {"by": "postgres", "postgres": {"query": QUERY, "connectionEnv": "KEDA_POSTGRES"}}
    (trigger,) = render(merged(given, {"autoscaling": autoscaling}))["ScaledObject"]["spec"]["triggers"]
    assert trigger["metadata"]["connectionFromEnv"] == "KEDA_POSTGRES"


def test_three_pods_share_leases_in_postgresql_and_reach_its_port(render) -> None:
    objects = render(LEASES_IN_POSTGRES)
    assert objects["Deployment"]["spec"]["replicas"] == 3
    assert {"ports": [{"port": 5432}]} in objects["NetworkPolicy"]["spec"]["egress"]


def test_a_stateful_set_is_the_deployment_under_names_that_stay(render) -> None:
    plain, stateful = render(), render(STATEFUL)
    before, after = plain["Deployment"]["spec"], stateful["StatefulSet"]["spec"]
    kept = ("template", "selector", "replicas", "minReadySeconds")
    assert {name: after[name] for name in kept} == {name: before[name] for name in kept}
    assert after["podManagementPolicy"] == "Parallel"
    assert after.keys() - before.keys() == {"serviceName", "podManagementPolicy", "updateStrategy"}
    headless = stateful["Service-hosts"]
    assert headless["metadata"]["name"] == after["serviceName"]
    assert (headless["spec"]["clusterIP"], headless["spec"]["selector"]) == ("None", after["selector"]["matchLabels"])
    assert stateful.keys() - plain.keys() == {"StatefulSet", "Service-hosts"}


def test_prometheus_scrapes_each_pod_of_a_stateful_set_once(render) -> None:
    objects = render({**STATEFUL, **SWITCHES["all monitoring"]})
    wanted = objects["ServiceMonitor"]["spec"]["selector"]["matchLabels"]
    services = {name: each["metadata"]["labels"] for name, each in objects.items() if each["kind"] == "Service"}
    assert [name for name, labels in services.items() if wanted.items() <= labels.items()] == ["Service"]


def test_nobody_reaches_the_pods_but_whom_the_policy_names(render) -> None:
    closed, scraped = render()["NetworkPolicy"]["spec"], render(SWITCHES["lag"])["NetworkPolicy"]["spec"]
    assert closed["policyTypes"] == ["Ingress", "Egress"]
    assert "ingress" not in closed
    assert [each["port"] for rule in closed["egress"] for each in rule["ports"]] == [
        53,
        53,
        5353,
        5353,
        443,
        5432,
        5671,
    ]
    assert scraped["ingress"] == [{"from": SCRAPED["networkPolicy"]["ingressFrom"], "ports": [{"port": "api"}]}]
    connected = render(SWITCHES["Spark Connect"])["NetworkPolicy"]["spec"]
    assert connected["egress"][-1] == {"ports": [{"port": 15003}]}


@pytest.mark.parametrize(
    ("collector", "port"), [("http://otel:4318", 4318), ("https://otel.example/v1/traces", 443), ("http://otel", 80)]
)
def test_pods_reach_the_collector_of_their_traces(render, collector: str, port: int) -> None:
    policy = render({"config": {"telemetry": {"traces": collector}}})["NetworkPolicy"]["spec"]
    assert policy["egress"][-1] == {"ports": [{"port": port}]}


def test_pods_reach_the_collectors_of_all_signals_each_port_once(render) -> None:
    collectors = {"traces": "http://otel:4318", "metrics": "https://other/v1/metrics", "logs": "http://otel:4318"}
    policy = render({"config": {"telemetry": collectors}})["NetworkPolicy"]["spec"]
    usual = render()["NetworkPolicy"]["spec"]["egress"]
    added = [rule["ports"][0]["port"] for rule in policy["egress"][len(usual) :]]
    assert sorted(added) == [443, 4318]


def test_pods_that_cannot_share_leases_are_never_two(render) -> None:
    assert render(SWITCHES["one replica on SQLite"])["Deployment"]["spec"]["strategy"] == {"type": "Recreate"}
    assert render()["Deployment"]["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}


def test_changed_settings_or_files_roll_the_pods(render) -> None:
    def checksum(**values: Any) -> str:
        annotations = render(values)["Deployment"]["spec"]["template"]["metadata"]["annotations"]
        return str(annotations["checksum/settings"])

    same = checksum()
    assert same == checksum(dataSize="2Gi")
    assert len({same, checksum(config={"log": {"level": "debug"}}), checksum(files={"a.py": ""})}) == 3


def test_the_chart_s_version_is_that_of_the_project() -> None:
    project = (CHART.parent / "pyproject.toml").read_text()
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert f'version = "{chart["appVersion"]}"' in project
