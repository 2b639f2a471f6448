"""What the chart refuses, and with what words: before anything runs."""

from collections.abc import Callable
from typing import Any

import helm_python
import pytest
from unit.chart.releases import (
    AZURE_HUB,
    BANK,
    HUB,
    IDENTITY,
    LEASES_IN_POSTGRES,
    QUERY,
    SCRAPED,
    SQLITE,
    STATEFUL,
    Values,
    hub_of,
    merged,
    with_feed,
)

from leasehold.service.config.reference import Setting, describe

LOG = {"type": "log", "path": "/var/lib/leasehold/log"}
FILES = {"type": "files", "path": "/var/lib/leasehold/out"}
PIPELINE = BANK["config"]["pipelines"][0]
TOKEN = {"name": "A_TOKEN", "value": "hunter2"}
BY_HUB = {"autoscaling": {"by": "eventhubs"}}
BY_QUERY = {"autoscaling": {"by": "postgres", "postgres": {"query": QUERY}}}


def leases(**given: Any) -> dict[str, Any]:
    return {"config": {"leases": {"database": None, "connection_string": None, **given}}}


def door(name: str = "proxy") -> dict[str, Any]:
    """A container through which clients reach an API on loopback."""
    return {"name": name, "image": "proxy", "ports": [{"name": "api", "containerPort": 8443}]}


def pipeline(**given: Any) -> dict[str, Any]:
    return {"config": {"pipelines": [{**PIPELINE, **given}]}}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"api": {"readersSecret": ""}}, "kubectl create secret generic"),
        ({"config": {"pipelines": []}}, "config.pipelines is empty: add a pipeline"),
        (SQLITE, "of type sqlite, which 3 pods cannot share"),
        ({"config": {"leases": None}}, "of type sqlite, which 3 pods cannot share"),
        (leases(type="memory"), "of type memory, which 3 pods cannot share"),
        (merged(SQLITE, {"replicas": 1, "autoscaling": {"by": "cpu"}}), "which 8 pods cannot share"),
        (pipeline(sink=LOG), "pipeline 'balances' has a sink of type log, which 3 pods cannot share"),
        (pipeline(feed=LOG), "pipeline 'balances' has a feed of type log, which 3 pods cannot share"),
        (pipeline(dead_letters=LOG), "pipeline 'balances' has dead_letters of type log, which 3 pods cannot share"),
        (leases(type="leasehold.leases.stores.sqlite:SqliteStore", path="/tmp/l"), "which 3 pods cannot share"),
        (pipeline(sink=FILES), "the sink of pipeline 'balances' are files in a directory that 3 pods do not share"),
        (pipeline(feed=FILES), "the feed of pipeline 'balances' are files in a directory that 3 pods do not share"),
        (pipeline(dead_letters=FILES), "the dead_letters of pipeline 'balances' are files in a directory"),
        (
            pipeline(sink={**PIPELINE["sink"], "dsn": "postgresql://bank:hunter2@postgres/bank"}),
            "the sink of pipeline 'balances': its dsn holds a secret in plain text",
        ),
        (leases(type="stores:Nats", url="nats://ada:hunter2@nats"), "config.leases: its url holds a secret"),
        (pipeline(sink={"type": "http", "url": "https://bank.example/in?code=hunter2"}), "its url holds a secret in plain text"),
        ({"autoscaling": {"min": 9}}, "autoscaling.min is above autoscaling.max"),
        ({"autoscaling": {"by": "lag", "min": 0}}, "needs a running pod"),
        ({"autoscaling": {"by": "cpu", "min": 0}}, "needs a running pod"),
        ({"autoscaling": {"by": "lag"}}, "networkPolicy.ingressFrom is empty"),
        ({"monitoring": {"serviceMonitor": True}}, "networkPolicy.ingressFrom is empty"),
        ({"autoscaling": {"by": "lag"}, "monitoring": {"podMonitor": True}}, "but Prometheus, KEDA must reach the API"),
        ({"ingress": {"hosts": ["bank.example"]}}, "controller of the Ingress must reach"),
        ({"httpRoute": {"parentRefs": [{"name": "public"}]}}, "but the Gateway must reach the API"),
        ({"service": {"type": "LoadBalancer"}}, "Service of type LoadBalancer must reach"),
        ({"monitoring": {"serviceMonitor": True, "podMonitor": True}, **SCRAPED}, "scrape each pod twice: keep one"),
        ({"ingress": {"tlsSecret": "bank-tls"}}, "ingress.hosts is empty, so there is no Ingress"),
        ({"ingress": {"annotations": {"a": "b"}}}, "ingress.hosts is empty, so there is no Ingress"),
        ({"httpRoute": {"hostnames": ["bank.example"]}}, "httpRoute.parentRefs is empty, so there is no HTTPRoute"),
        ({"podClaims": {"create": True}}, "set workload to StatefulSet, or name a claim that exists"),
        ({**STATEFUL, "podClaims": {"create": True}, "dataClaim": "bank"}, "and dataClaim names another claim"),
        ({**STATEFUL, "fullnameOverride": "a" * 53}, "set fullnameOverride to a name of up to 52 characters"),
        ({"api": {"address": "127.0.0.1"}}, "but 0 containers of extraContainers have a port"),
        ({"api": {"address": "::1"}}, "which forwards to http://[::1]:8080"),
        ({"api": {"address": "127.0.0.1"}, "extraContainers": [door(), door(name="other")]}, "but 2 containers of"),
        ({"api": {"address": "127.0.0.1", "port": 8443}, "extraContainers": [door()]}, "port 8443, which is api.port"),
        ({"extraContainers": [door()]}, "set api.address to 127.0.0.1 if it is a proxy for the API"),
        ({"api": {"scheme": "https"}}, "api.scheme is https, but hosts speak HTTP: set api.address to 127.0.0.1"),
        ({"api": {"caSecret": "bank-tls"}}, "api.caSecret is for TLS, but api.scheme is http: set it to https"),
        ({"extraContainers": [{**door(), "ports": [], "env": [TOKEN]}]}, "env of the container 'proxy': its A_TOKEN"),
        ({"extraInitContainers": [{**door(), "env": [TOKEN]}]}, "env of the container 'proxy': its A_TOKEN"),
        ({"autoscaling": {"by": "cosmos"}}, "name such a pipeline (autoscaling.pipeline is '')"),
        ({"autoscaling": {"by": "eventhubs", "pipeline": "balances"}}, "whose feed has type eventhubs and checkpoint_blobs"),
        ({**BY_HUB, **with_feed({"type": "eventhubs", "namespace": "a.servicebus.windows.net"})}, "(autoscaling.pipeline is '')"),
        ({**BY_HUB, **with_feed(AZURE_HUB)}, "and set workloadIdentity.clientId"),
        ({**BY_HUB, **with_feed({**HUB, "checkpoint_blobs": AZURE_HUB["checkpoint_blobs"]}), **IDENTITY}, "in one of two ways"),
        ({"autoscaling": {"by": "postgres"}}, "set autoscaling.postgres.query"),
        (merged(pipeline(sink={"type": "http", "url": "https://a"}), BY_QUERY), "set autoscaling.postgres.connectionEnv"),
        (merged(leases(type="blob"), {"autoscaling": {"by": "cosmos", "pipeline": "balances"}}), "with leases of type cosmos"),
    ],
)  # fmt: skip
def test_what_could_not_work_is_refused_with_what_to_do(render, values: dict[str, Any], words: str) -> None:
    with pytest.raises(helm_python.HelmRenderError) as raised:
        render(values)
    assert words in str(raised.value)
    assert "hunter2" not in str(raised.value)


SINK_BY_IDENTITY = {**PIPELINE["sink"], "identity": "default"}
LEASES_BY_IDENTITY = merged(LEASES_IN_POSTGRES, {"config": {"leases": {"identity": "default"}}})
LETTERS_BY_IDENTITY = {"type": "postgres", "dsn": "${LETTERS_POSTGRES}", "identity": "default"}


@pytest.mark.parametrize(
    ("values", "variable", "place"),
    [
        (pipeline(sink=SINK_BY_IDENTITY), "", "the sink of pipeline 'balances'"),
        (pipeline(sink=SINK_BY_IDENTITY), "BANK_POSTGRES", "the sink of pipeline 'balances'"),
        (merged(pipeline(sink={"type": "http", "url": "https://a"}), LEASES_BY_IDENTITY), "", "config.leases"),
        (LEASES_BY_IDENTITY, "LEASES_POSTGRES", "config.leases"),
        (pipeline(dead_letters=LETTERS_BY_IDENTITY), "LETTERS_POSTGRES", "the dead_letters of pipeline 'balances'"),
    ],
)
def test_keda_is_not_given_a_dsn_without_a_password(render, values: Values, variable: str, place: str) -> None:
    autoscaling = {"by": "postgres", "postgres": {"query": QUERY, "connectionEnv": variable}}
    with pytest.raises(helm_python.HelmRenderError) as raised:
        render(merged(values, {"autoscaling": autoscaling}))
    assert f"{place} has `identity`" in str(raised.value)
    assert "set autoscaling.postgres.connectionEnv" in str(raised.value)


@pytest.mark.parametrize(
    "account_url",
    [
        "https://operations.example",
        "https://blobs.example:8443/operations",
        "https://operations.blob.core.windows.net:8443",
        "https://operations.blob.core.windows.net/more",
        "https://.blob.core.windows.net",
        "http://operations.blob.core.windows.net",
        "${OPERATIONS}",
        "https://${OPERATIONS}.blob.core.windows.net",
    ],
)
def test_an_address_of_blobs_that_keda_cannot_compose_is_refused(render, account_url: str) -> None:
    feed = hub_of("bank.servicebus.windows.net", account_url)
    with pytest.raises(helm_python.HelmRenderError) as raised:
        render({**BY_HUB, **with_feed(feed), **IDENTITY})
    assert "account_url of the checkpoint_blobs of pipeline 'balances' is another address" in str(raised.value)
    assert "https://ACCOUNT.blob.SUFFIX" in str(raised.value)


@pytest.mark.parametrize(
    "values",
    [
        {"replica": 2},
        {"replicas": "three"},
        {"replicas": -1},
        {"config": {"pipeline": []}},
        {"config": {"api": {"port": 1}}},
        {"config": {"host": {"name": "one-for-all"}}},
        {"config": {"host": {"stop_timeout_s": 1}}},
        {"config": {"spark": {"remote": "sc://spark"}}},
        {"config": {"pipelines": [{"name": "a"}]}},
        {"config": {"pipelines": [{**PIPELINE, "name": "Not A Name"}]}},
        {"config": {"pipelines": [{**PIPELINE, "sink": {"path": "x"}}]}},
        {"config": {"pipelines": [{**PIPELINE, "dead_letters": {"path": "x"}}]}},
        {"config": {"telemetry": {"traces": "http://ada:hunter2@otel:4318"}}},
        {"config": {"telemetry": {"metrics": "http://otel:4318?key=1"}}},
        {"config": {"telemetry": {"profiles": "http://otel:4318"}}},
        {"sparkConnect": "http://spark"},
        {"autoscaling": {"by": "magic"}},
        {"autoscaling": {"postgres": {"connectionEnv": "postgresql://ada:hunter2@db"}}},
        {"workload": "DaemonSet"},
        with_feed({**HUB, "checkpoint_blobs": {"account_url": "https://a", "key": "aHVudGVyMg==", "container": "c"}}),
        with_feed({**HUB, "checkpoint_blobs": {"connection_string": "AccountKey=hunter2;", "container": "c"}}),
        with_feed({**HUB, "checkpoint_blobs": {"account_url": "https://a"}}),
        {"autoscaling": {"lagPerReplica": 0}},
        {"image": {"tag": "no tag"}},
        {"image": {"pullPolicy": "Sometimes"}},
        {"api": {"port": 80}},
        {"api": {"metricsPartitions": 1001}},
        {"api": {"address": "10.0.0.1"}},
        {"api": {"readersKey": "a/b"}},
        {"api": {"operatorsKey": "a/b"}},
        {"api": {"operatorsSecret": "Not A Secret"}},
        {"stopTimeoutSeconds": 0},
        {"stopTimeoutSeconds": 2.5},
        {"tmpSize": "1 GB"},
        {"shmSize": 64},
        {"podDisruptionBudget": {"maxUnavailable": 0}},
        {"networkPolicy": {"egressPorts": [70000]}},
        {"networkPolicy": {"ingressFrom": [{}]}},
        {"monitoring": {"interval": "often"}},
        {"monitoring": {"serviceMonitor": "yes"}},
        {"env": [{"name": "POD_NAME", "value": "mine"}]},
        {"env": [{"value": "x"}]},
        {"secrets": ["Not A Secret"]},
        {"files": {"leasehold.yaml": "pipelines: []"}},
        {"podLabels": {"count": 3}},
        {"podLabels": {"a b": "c"}},
        {"podLabels": {"a": "c d"}},
        {"podLabels": {"app.kubernetes.io/name": "mine"}},
        {"serviceAccount": {"name": "x\nhostNetwork: true"}},
        {"dataClaim": "Not A: Name"},
        {"priorityClassName": "Not A Name"},
        {"workloadIdentity": {"clientId": "x y\nz: 1"}},
        {"api": {"readersSecret": "leasehold-api."}},
        {"api": {"readersKey": ".."}},
        {"files": {"..": "x"}},
        {"resources": {"limits": {"memory": "five"}}},
        {"image": {"repository": "https://registry.example/leasehold"}},
        {"image": {"pullSecrets": [{"nam": "a"}]}},
        {"env": [{"name": "A", "valu": "x"}]},
        {"env": [{"name": "A", "value": 1}]},
        {"extraVolumes": [{"name": "tmp", "emptyDir": {}}]},
        {"extraVolumes": [{"name": "nothing"}]},
        {"extraVolumeMounts": [{"name": "code", "mountPath": "/tmp"}]},
        {"sparkConnect": "sc://"},
        {"nameOverride": "Bank"},
        {"fullnameOverride": "-bank"},
        {"commonLabels": {"app.kubernetes.io/name": "mine"}},
        {"commonLabels": {"a": 1}},
        {"commonAnnotations": {"helm.sh/hook": "test"}},
        {"podAnnotations": {"checksum/settings": "0"}},
        {"monitoring": {"labels": {"helm.sh/chart": "mine"}}},
        {"envFrom": [{"secretRef": {"name": "bank"}, "configMapRef": {"name": "bank"}}]},
        {"envFrom": [{"prefix": "A_"}]},
        {"envFrom": [{"secretRef": {"name": "bank", "key": "a"}}]},
        {"image": {"digest": "0123"}},
        {"image": {"tag": "1@sha256:" + "0" * 64}},
        {"image": {"repository": "leasehold@sha256:" + "0" * 64}},
        {"api": {"scheme": "ftp"}},
        {"api": {"caSecret": "Not A Secret"}},
        {"service": {"type": "ExternalName"}},
        {"service": {"port": 80}},
        {"ingress": {"hosts": ["https://bank.example"]}},
        {"ingress": {"hosts": [{"host": "bank.example"}]}},
        {"ingress": {"enabled": True}},
        {"httpRoute": {"parentRefs": [{"namespace": "gateways"}]}},
        {"httpRoute": {"parentRefs": [{"name": "public", "listener": "https"}]}},
        {"probes": {"liveness": {"httpGet": {"path": "/"}}}},
        {"probes": {"readiness": {"periodSeconds": 0}}},
        {"probes": {"ready": {}}},
        {"podClaims": {"accessMode": "ReadOnlyMany"}},
        {"podClaims": {"size": "1Gi"}},
        {"podClaims": {"whenScaled": "Keep"}},
        {"podSecurityContext": {"readOnlyRootFilesystem": True}},
        {"securityContext": {"fsGroup": 1}},
        {"extraContainers": [{"name": "leasehold", "image": "a"}]},
        {"extraContainers": [{"name": "proxy"}]},
        {"extraInitContainers": [{"image": "a"}]},
        {"monitoring": {"podMonitor": "yes"}},
    ],
)
def test_nonsense_is_refused_by_the_schema(render, values: dict[str, Any]) -> None:
    with pytest.raises(helm_python.HelmValuesError):
        render(values)


LITERALS = {
    "dsn": "postgresql://bank:secret@postgres/bank",
    "listen_dsn": "postgresql://bank:secret@postgres/bank",
    "url": "https://bank.example/in?code=secret",
    "proxy": "http://bank:secret@proxy:3128",
    "headers": {"Authorization": "Bearer secret"},
}
"""What a secret looks like where it stands among other things."""
SECRETS = [row for row in describe() if "secret" in row.type or row.name == "headers"]


def with_one(row: Setting, value: object) -> dict[str, Any]:
    """A section that has what the row of the settings' reference tells of."""
    section = {"type": row.when, row.name: value, **({"container": "out"} if row.when == "files" else {})}
    where = row.parent.removeprefix("pipelines[].")
    if where == "feed.checkpoint_blobs":
        return pipeline(feed={**HUB, "checkpoint_blobs": {"container": "checkpoints", row.name: value}})
    return leases(**section) if where == "leases" else pipeline(**{where: section})


@pytest.mark.parametrize("row", SECRETS, ids=lambda row: f"{row.key} of {row.when}")
def test_no_secret_of_the_settings_is_part_of_a_config_map(render, row: Setting) -> None:
    with pytest.raises((helm_python.HelmValuesError, helm_python.HelmRenderError)):
        render(with_one(row, LITERALS.get(row.name, "c2VjcmV0")))
    from_environment = {"Authorization": "Bearer ${SECRET}"} if row.name == "headers" else "${SECRET}"
    assert render(with_one(row, from_environment))["ConfigMap"]


HEADERS = ("AUTHORIZATION", "Cookie", "X-Auth", "x-functions-key")
URLS = ("https://secret@a/b", "https://a/b?code=secret&x=${X}", "https://a/b?x=1&sig=${X}secret")
DSNS = (
    "postgresql://bank:$secret@postgres/bank",
    "postgresql://bank:@secret@postgres/bank",
    "postgresql://bank:$${SECRET}@postgres/bank",
    "postgresql://bank:${A}secret@postgres/bank",
    "postgresql://postgres/bank?password=secret",
    "host=postgres PassWord = $secret",
    "host=postgres sslkey=/certs/key sslpassword=secret",
)


@pytest.mark.parametrize(
    "values",
    [
        leases(type="cosmos", connection_string="AccountEndpoint=https://a;AccountKey=c2VjcmV0", database="d"),
        pipeline(sink={**PIPELINE["sink"], "dsn": "host=postgres password=secret"}),
        pipeline(sink={"type": "http", "url": "https://ada:secret@bank.example/in"}),
        pipeline(feed={"type": "eventhubs", "connection_string": "Endpoint=sb://a/;SharedAccessKey=c2VjcmV0"}),
        {"sparkConnect": "sc://spark:15002/;use_ssl=true;token=secret"},
        {"config": {"spark": {"conf": {"spark.hadoop.fs.azure.account.key.bank": "secret"}}}},
        {"env": [{"name": "PGPASSWORD", "value": "secret"}]},
        leases(type="blob", account_url="https://bank.blob.core.windows.net/?sv=1&sig=secret"),
        leases(type="cosmos", endpoint="https://ada:secret@bank.documents.azure.com", database="d"),
        pipeline(sink={"type": "mine:Sink", "password": "secret"}),
        pipeline(sink={"type": "mine:Sink", "login": {"api_key": "secret"}}),
        *(pipeline(sink={"type": "http", "url": "https://a/", "headers": {name: "secret"}}) for name in HEADERS),
        *(pipeline(sink={"type": "http", "url": url}) for url in URLS),
        *(pipeline(sink={**PIPELINE["sink"], "dsn": dsn}) for dsn in DSNS),
    ],
)
def test_a_secret_is_found_in_other_shapes_too(render, values: dict[str, Any]) -> None:
    with pytest.raises((helm_python.HelmValuesError, helm_python.HelmRenderError)):
        render(values)


@pytest.mark.parametrize("value", ["hunter2", "${PASSWORD}", "postgresql://bank:${PASSWORD}@postgres/bank"])
@pytest.mark.parametrize(
    "place",
    [
        lambda variable: {"env": [variable]},
        lambda variable: {"sparkExecutors": {"env": [variable]}},
        lambda variable: {"extraContainers": [{**door(), "ports": [], "env": [variable]}]},
    ],
)
def test_a_variable_with_a_secret_is_refused_with_what_works_in_a_container(
    render, place: Callable[[Values], Values], value: str
) -> None:
    """Nothing replaces `${NAME}` there."""
    with pytest.raises(helm_python.HelmRenderError) as raised:
        render(place({"name": "PGPASSWORD", "value": value}))
    assert "its PGPASSWORD holds a secret in plain text" in str(raised.value)
    assert "`valueFrom: {secretKeyRef: {name: SECRET, key: KEY}}`" in str(raised.value)
    assert "${NAME}" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TOKENIZERS_PARALLELISM", "false"),
        ("OAUTH2_PROXY_PASS_ACCESS_TOKEN", "true"),
        ("MAX_TOKENS", "4096"),
        ("TOKEN_REFRESH_S", "0.5"),
        ("PGPASSWORD", "$(PASSWORD)"),
        ("BANK_DSN", "postgresql://bank:$(PASSWORD)@postgres/bank"),
    ],
)
def test_a_variable_without_a_secret_is_not_refused(render, name: str, value: str) -> None:
    variable = {"name": name, "value": value}
    sidecar = {**door(), "ports": [], "env": [variable]}
    host, proxy = render({"env": [variable], "extraContainers": [sidecar]})["Deployment"]["spec"]["template"]["spec"][
        "containers"
    ]
    assert variable in host["env"]
    assert variable in proxy["env"]


@pytest.mark.parametrize(
    "sink",
    [
        {**PIPELINE["sink"], "dsn": "postgresql://bank@postgres/bank"},
        {**PIPELINE["sink"], "dsn": "postgresql://bank:${PASSWORD}@postgres/bank"},
        {**PIPELINE["sink"], "dsn": "service=bank", "key": ["account"]},
        {**PIPELINE["sink"], "dsn": "postgresql://bank@[::1]:5432,b:5433/bank?sslmode=require"},
        {**PIPELINE["sink"], "dsn": "host=postgres password=${PASSWORD} user=bank"},
        {**PIPELINE["sink"], "dsn": "host=postgres passfile=/secrets/pgpass sslkey=/certs/key"},
        {**PIPELINE["sink"], "setup": "CREATE TABLE t (code text CHECK (code = 'password=x'))"},
        {"type": "http", "url": "https://bank.example/in?code=${CODE}"},
        {"type": "http", "url": "https://bank.example/in?code=${CODE}&unit=eur", "key_field": "account"},
        {"type": "http", "url": "${URL}", "headers": {"Authorization": "Bearer ${TOKEN}", "Accept": "text/plain, */*"}},
    ],
)
def test_what_is_no_secret_may_stand_in_the_settings(render, sink: dict[str, Any]) -> None:
    assert render(pipeline(sink=sink))["ConfigMap"]


@pytest.mark.parametrize(
    "values",
    [
        {"sparkConnect": "sc://spark:15002/;use_ssl=true;token=${TOKEN}"},
        {
            "config": {
                "spark": {"conf": {"spark.hadoop.fs.azure.account.key.bank": "${KEY}", "spark.ui.enabled": "true"}}
            }
        },
        {"env": [{"name": "PGPASSWORD", "valueFrom": {"secretKeyRef": {"name": "bank", "key": "password"}}}]},
        {"env": [{"name": "AZURE_FEDERATED_TOKEN_FILE", "value": "/var/run/secrets/token"}]},
        {"config": {"spark": {"conf": {"spark.hadoop.hadoop.security.credential.provider.path": "jceks://file/k"}}}},
        {"config": {"spark": {"conf": {"spark.security.credentials.hive.enabled": "false"}}}},
        merged(pipeline(sink=FILES), {"dataClaim": "shared"}),
    ],
)
def test_what_is_no_secret_and_what_is_shared_is_not_refused(render, values: dict[str, Any]) -> None:
    assert render(values)["ConfigMap"]


def test_what_one_pod_may_have_is_not_refused_to_one(render) -> None:
    alone = merged(SQLITE, {"replicas": 1, **merged(pipeline(sink=LOG), SQLITE)})
    assert render(alone)["Deployment"]["spec"]["replicas"] == 1
