"""What releases of the chart are given."""

import json
from pathlib import Path
from typing import Any

import helm_python
from helm_python import _native

CHART = Path(__file__).parents[3] / "helm"
Values = dict[str, Any]

COSMOS = {"type": "cosmos", "connection_string": "${BANK_COSMOS}", "database": "bank", "container": "transactions"}
BANK: Values = {
    "api": {"readersSecret": "leasehold-api"},
    "secrets": ["bank"],
    "config": {
        "leases": {"type": "cosmos", "connection_string": "${LEASES_COSMOS}", "database": "operations"},
        "host": {"buffer_bytes_max": 268435456},
        "pipelines": [
            {
                "name": "balances",
                "feed": COSMOS,
                "sql": "SELECT partition, sequence, body FROM events",
                "sink": {"type": "postgres", "dsn": "${BANK_POSTGRES}", "merge": "INSERT INTO balances SELECT 1"},
            }
        ],
    },
}
"""What somebody has to say, and no more."""
ENVIRONMENT = {
    "BANK_COSMOS": "AccountEndpoint=https://bank.documents.azure.com:443/;AccountKey=YmFuaw==;",
    "LEASES_COSMOS": "AccountEndpoint=https://operations.documents.azure.com:443/;AccountKey=YmFuaw==;",
    "BANK_POSTGRES": "postgresql://bank@postgres/bank",
    "LEASES_POSTGRES": "postgresql://leasehold@postgres/leases",
    "BANK_EVENTHUBS": "Endpoint=sb://bank.servicebus.windows.net/;SharedAccessKeyName=a;SharedAccessKey=YmFuaw==",
    "BANK_BLOBS": "DefaultEndpointsProtocol=https;AccountName=bank;AccountKey=YmFuaw==;EndpointSuffix=core.windows.net",
}
SCRAPED = {"networkPolicy": {"ingressFrom": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]}}
"""Whoever is to ask the API, as Prometheus and KEDA do, is let in."""
SQLITE = {"config": {"leases": {"type": "sqlite", "connection_string": None, "database": None}}}
LEASES_IN_POSTGRES = {
    "config": {"leases": {"type": "postgres", "dsn": "${LEASES_POSTGRES}", "connection_string": None, "database": None}}
}
HUB: Values = {
    "type": "eventhubs",
    "connection_string": "${BANK_EVENTHUBS}",
    "event_hub": "Transactions",
    "consumer_group": "balances",
    "checkpoint_blobs": {"connection_string": "${BANK_BLOBS}", "container": "checkpoints"},
}
"""A feed whose positions KEDA reads."""
IDENTITY: Values = {"workloadIdentity": {"clientId": "2f1d6c1e-0000-4000-8000-000000000000"}}


def with_feed(feed: Values) -> Values:
    """The values that give the bank this feed."""
    return {"config": {"pipelines": [{**BANK["config"]["pipelines"][0], "feed": feed}]}}


def hub_of(namespace: str, account_url: str) -> Values:
    """A feed that is reached by identity, and so are its checkpoint blobs."""
    blobs = {"account_url": account_url, "container": "checkpoints"}
    return {"type": "eventhubs", "namespace": namespace, "event_hub": "Transactions", "checkpoint_blobs": blobs}


AZURE_HUB = hub_of("Bank.servicebus.windows.net", "https://Operations.blob.core.windows.net")
STATEFUL: Values = {"workload": "StatefulSet"}
QUERY = "SELECT count(*) FROM outbox WHERE NOT delivered"
SERVER: Values = {"sparkServer": {"create": True}}
EXECUTORS: Values = {
    "config": {"spark": {"master": "k8s://https://kubernetes.default.svc"}},
    "sparkExecutors": {"image": "registry.example/spark:4.3.0"},
}
"""Each pod drives executors of its own."""
STAGING = {"name": "BANK_STAGING_DSN", "valueFrom": {"secretKeyRef": {"name": "bank-staging", "key": "dsn"}}}
READING: Values = {
    "sparkExecutors": {
        "secrets": ["bank-executors"],
        "env": [STAGING],
        "egress": [{"ports": [{"port": 443}, {"port": 5432}]}],
    }
}
"""What executors that read need besides."""


def merged(base: Values, over: Values) -> Values:
    """None takes a key away, as for Helm."""
    both = {**base, **over}
    shared = [key for key in base.keys() & over.keys() if isinstance(base[key], dict) and isinstance(over[key], dict)]
    both |= {key: merged(base[key], over[key]) for key in shared}
    return {key: value for key, value in both.items() if value is not None}


OPENSHIFT = "route.openshift.io/v1"


def rendered_with(apis: list[str], chart: helm_python.Chart, values: Values) -> dict[str, str]:
    """The files of a release `bank` in the namespace `prod` of a cluster with these APIs, as by `helm template --api-versions`.

    `Chart.render` has no such argument, but the library beneath it has."""
    options = {"name": "bank", "namespace": "prod", "api_versions": apis}
    files: dict[str, str] = json.loads(
        _native.call_string("helm_render", chart._raw(), json.dumps(values), json.dumps(options))
    )
    return files
