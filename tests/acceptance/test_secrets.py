"""A host with secrets in every place that takes one shows none of them: not in its log, its metrics, its API, its files, the list
of processes, nor in Spark's settings and pages. Most of what it is to reach refuses it, so that errors are told too.

(What a chart renders is looked at in tests/unit/chart/test_refusals.py.)
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import psutil
import pytest
from patience import PATIENCE_S, until
from plugins_cli import Command
from plugins_node import free_port

pytestmark = pytest.mark.xdist_group("secrets")

NAMES = ("reader", "operator", "postgres", "header", "signature", "hub", "account", "blobs")
SECRETS = {name: f"never-shown-{name}-0123456789" for name in NAMES}
ACCOUNT_KEY, BLOB_KEY = (base64.b64encode(SECRETS[name].encode()).decode() for name in ("account", "blobs"))
HIDDEN = {**SECRETS, "account's key": ACCOUNT_KEY, "blobs' key": BLOB_KEY}
LETTERS = {
    "feed": {"type": "files", "path": "words-*.jsonl"},
    "schema": "word STRING NOT NULL",
    "sql": "SELECT partition, sequence, word FROM events",
}
ASKED = {
    "letters": "accepts nothing for partition",
    "from-hub": "listing partitions failed, retrying",
    "from-cosmos": "listing partitions failed, retrying",
}
"""Pipelines that get nowhere, and what is logged of each."""


def environment(nowhere: int, socket: str, database: str) -> dict[str, str]:
    """nowhere: a port on which nobody listens."""
    return {
        "POSTGRES": f"postgresql://postgres:{SECRETS['postgres']}@/{database}?host={socket}",
        "URL": f"http://127.0.0.1:{nowhere}/entries?sig={SECRETS['signature']}",
        "HEADER": f"Bearer {SECRETS['header']}",
        "HUB": f"Endpoint=sb://127.0.0.1:{nowhere};SharedAccessKeyName=all;SharedAccessKey={SECRETS['hub']};"
        "UseDevelopmentEmulator=true;EntityPath=orders",
        "ACCOUNT": f"AccountEndpoint=http://127.0.0.1:{nowhere}/;AccountKey={ACCOUNT_KEY};",
        "BLOBS": "DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;"
        f"AccountKey={BLOB_KEY};BlobEndpoint=http://127.0.0.1:{nowhere}/devstoreaccount1;",
    }


def settings(api: int, ui: int) -> dict[str, Any]:
    nowhere = {
        "from-hub": {"type": "eventhubs", "connection_string": "${HUB}", "timeout_s": 2},
        "from-cosmos": {"type": "cosmos", "connection_string": "${ACCOUNT}", "database": "d", "container": "c"},
    }
    post = {"type": "http", "url": "${URL}", "headers": {"Authorization": "${HEADER}"}}
    table = {
        "type": "postgres",
        "dsn": "${POSTGRES}",
        "table": "words",
        "setup": "CREATE TABLE IF NOT EXISTS words (partition text, word text)",
    }
    return {
        "leases": {"type": "sqlite", "path": "leases.db"},
        "host": {"name": "a"},
        "spark": {"master": "local[1]", "conf": {"spark.ui.enabled": "true", "spark.ui.port": str(ui)}},
        "api": {"port": api, "readers": "readers", "operators": "operators"},
        "log": {"level": "debug", "format": "json", "file": "host.log"},
        "pipelines": [
            {"name": "letters", **LETTERS, "sink": post},
            {"name": "rows", **LETTERS, "sql": "SELECT partition, word FROM events", "sink": table},
            *({"name": name, "feed": feed, "sink": {"type": "log", "path": name}} for name, feed in nowhere.items()),
        ],
    }


class Host:
    """directory: of its files. text: what each place shows."""

    def __init__(self, directory: Path, postgres: Any) -> None:
        self.directory = directory
        self.api, self.ui = free_port(), free_port()
        (directory / "readers").write_text(SECRETS["reader"])
        (directory / "operators").write_text(SECRETS["operator"])
        (directory / "words-1.jsonl").write_text('{"word": "apple"}\n{"word": "bean"}\n')
        (directory / "host.yaml").write_text(json.dumps(settings(self.api, self.ui)))
        self.environment = environment(free_port(), postgres.socket_dir, postgres.name)
        self.command = Command("run", directory / "host.yaml", cwd=directory, env=self.environment)
        self.text: dict[str, str] = {}

    def look(self) -> None:
        """Once everything has been tried."""
        until(self._has_tried, f"it fails at {sorted(ASKED)}: {self.command.err}")
        known = json.loads(self._get(self.api, "/openapi.json"))["paths"]
        paths = [path for path, methods in known.items() if "get" in methods and "{" not in path]
        answered = {path: self._get(self.api, path) for path in (*paths, "/openapi.json") if path != "/api/events"}
        assert {"/metrics", "/api/leases", "/api/pipelines"} <= answered.keys()
        for lease in json.loads(answered["/api/leases"])["items"]:
            path = f"/api/leases/{lease['pipeline']}/{lease['partition']}"
            answered[path] = self._get(self.api, path)
        self.text |= answered
        self.text |= {"ps": "\n".join(self._processes()), **self._spark()}

    def end(self) -> None:
        self.command.process.terminate()
        assert self.command.ended() == 0, self.command.err
        self.text |= {"output": self.command.out + self.command.err}
        files = [
            file for file in self.directory.rglob("*") if file.is_file() and file.name not in ("readers", "operators")
        ]
        assert {"host.log", "leases.db"} <= {file.name for file in files}
        self.text |= {file.name: file.read_bytes().decode(errors="replace") for file in files}

    def _has_tried(self) -> bool:
        assert self.command.process.poll() is None, self.command.err
        log = self.directory / "host.log"
        lines = [line for line in log.read_text().splitlines() if line.endswith("}")] if log.exists() else []
        told = [json.loads(line) for line in lines]
        fails = [
            name for name, words in ASKED.items() if any(words in one["event"] and name in str(one) for one in told)
        ]
        return len(fails) == len(ASKED) and self._delivered()

    def _delivered(self) -> bool:
        return 'leasehold_events_delivered_total{pipeline="rows"} 2.0' in self._get(self.api, "/metrics")

    def _get(self, port: int, path: str) -> str:
        request = Request(f"http://127.0.0.1:{port}{path}", headers={"Authorization": f"Bearer {SECRETS['operator']}"})
        try:
            with urlopen(request, timeout=PATIENCE_S) as answer:
                return str(answer.headers) + answer.read().decode() if path == "/metrics" else answer.read().decode()
        except HTTPError as refusal:  # `/api/lag` is 503 here, with a body of its own: most feeds do not answer
            with refusal:
                return refusal.read().decode()

    def _processes(self) -> Iterator[str]:
        """Their command lines, as `ps` tells them to everybody."""
        host = psutil.Process(self.command.process.pid)
        for process in (host, *host.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):  # it has just ended, and shows nothing any more
                yield " ".join(process.cmdline())

    def _spark(self) -> dict[str, str]:
        (application,) = json.loads(self._get(self.ui, "/api/v1/applications"))
        paths = ("/environment/", f"/api/v1/applications/{application['id']}/environment", "/jobs/", "/SQL/")
        return {f"Spark's {path}": self._get(self.ui, path) for path in paths}


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory, postgres_of_module: Any) -> Iterator[Host]:
    host = Host(tmp_path_factory.mktemp("secrets"), postgres_of_module)
    try:
        host.look()
        host.end()
        yield host
    finally:
        host.command.end()


def shown(text: str) -> list[str]:
    return [name for name, secret in HIDDEN.items() if secret in text]


def test_no_place_shows_a_secret(host: Host) -> None:
    assert {place: found for place, text in host.text.items() if (found := shown(text))} == {}


def test_what_was_looked_at_is_where_secrets_would_be(host: Host) -> None:
    assert "org.apache.spark" in host.text["ps"]
    assert "spark.ui.port" in host.text["Spark's /environment/"]
    assert "http://127.0.0.1" in host.text["host.log"]


def test_a_lease_container_that_cannot_be_reached_is_told_without_a_secret(host: Host) -> None:
    file = host.directory / "blobs.yaml"
    leases = {"type": "blob", "connection_string": "${BLOBS}", "container": "leases", "call_timeout_s": 1}
    given = {**settings(0, 0), "leases": {**leases, "balance_s": 2}}
    file.write_text(json.dumps(given))
    command = Command("leases", "list", file, cwd=host.directory, env=host.environment)
    assert command.ended() == 1
    assert command.err
    assert shown(command.out + command.err) == []
