"""The API server of Kubernetes, as far as Spark's driver uses it: pods, and the rights of one Role. Executors are processes here.

A request that the Role does not permit is refused, and noted. A pod that is created runs the executor that its container would
run, with PySpark's jars. Watches are answered over HTTP, as a server does that has no WebSockets.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pyspark

HOST = "127.0.0.1"
JARS = Path(pyspark.__file__).parent / "jars"
BACKEND = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
END_S = 20
WHY_PENDING = "0/3 nodes are available: 3 Insufficient cpu."
PENDING = {
    "phase": "Pending",
    "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": WHY_PENDING}],
    "containerStatuses": [],
}
RUNNING = {"phase": "Running", "containerStatuses": []}

Pod = dict[str, Any]
Query = Mapping[str, Sequence[str]]


class Kubernetes:
    """rules: those of the Role that the caller has in its namespace."""

    def __init__(self, rules: list[dict[str, Any]], directory: Path) -> None:
        self._rules = rules
        self._directory = directory
        self._lock = threading.RLock()
        self._version = 1
        self._pods: dict[str, Pod] = {}
        self._executors: dict[str, subprocess.Popen[bytes]] = {}
        self._watches: list[tuple[Query, SimpleQueue[str | None]]] = []
        self._is_closed = False
        self.asked: set[tuple[str, str]] = set()
        """Verb and resource of every request."""
        self.refused: set[tuple[str, str]] = set()
        self.created: list[Pod] = []
        """The pods as the driver sent them."""
        self.is_full = False
        """Whether pods that are created stay pending, until `grant`."""
        self._server = ThreadingHTTPServer((HOST, 0), self._handler())
        self._server.daemon_threads = True

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._server.server_address[1]}"

    def open(self) -> None:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            running = list(self._executors.values())
            for _, events in self._watches:
                events.put(None)
        self._server.shutdown()
        self._server.server_close()
        for process in running:
            process.kill()
            process.wait(END_S)

    def add(self, pod: Pod) -> None:
        """One that runs already: the driver's own."""
        with self._lock:
            self._pods[pod["metadata"]["name"]] = pod

    def executors(self) -> list[str]:
        """The names of those that run."""
        with self._lock:
            return [name for name, process in self._executors.items() if process.poll() is None]

    def grant(self) -> None:
        """A node has come: pending pods run, and so do those that are created from now on."""
        with self._lock:
            self.is_full = False
            for pod in [each for each in self._pods.values() if each["status"]["phase"] == "Pending"]:
                pod["status"] = json.loads(json.dumps(RUNNING))
                self._start(pod)
                self._publish("MODIFIED", pod)

    def kill(self, name: str) -> None:
        """As if the container had used too much memory."""
        with self._lock:
            self._executors[name].kill()
            ended = {"name": "executor", "state": {"terminated": {"exitCode": 137}}}
            self._pods[name]["status"] |= {"phase": "Failed", "containerStatuses": [ended]}
            self._publish("MODIFIED", self._pods[name])

    def answer(self, verb: str, resource: str, name: str | None, query: Query, sent: Any) -> tuple[int, Any]:
        with self._lock:
            self.asked.add((verb, resource))
            if not any(verb in rule["verbs"] and resource in rule["resources"] for rule in self._rules):
                self.refused.add((verb, resource))
                return 403, status(403, f'pods is forbidden: cannot {verb} resource "{resource}"')
            if verb == "create":
                return 201, self._create(sent)
            if verb == "get":
                return (200, self._pods[name]) if name in self._pods else (404, status(404, "not found"))
            chosen = [
                pod for pod in self._pods.values() if is_chosen(pod, query) and name in (None, pod["metadata"]["name"])
            ]
            if verb in ("delete", "deletecollection"):
                for pod in chosen:
                    self._delete(pod)
                return 200, {"kind": "Status", "status": "Success"}
            return 200, {"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": chosen}

    def watch(self, query: Query) -> Iterator[str]:
        events: SimpleQueue[str | None] = SimpleQueue()
        with self._lock:
            if self._is_closed:
                return
            self._watches.append((query, events))
        while (event := events.get()) is not None:
            yield event

    def _create(self, sent: Pod) -> Pod:
        self.created.append(json.loads(json.dumps(sent)))
        made = {"uid": str(uuid.uuid4()), "creationTimestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}
        pod = {
            **sent,
            "metadata": {**sent["metadata"], **made},
            "status": json.loads(json.dumps(PENDING if self.is_full else RUNNING)),
        }
        self._pods[pod["metadata"]["name"]] = pod
        self._publish("ADDED", pod)
        if not self.is_full:
            self._start(pod)
        return pod

    def _start(self, pod: Pod) -> None:
        name, (container,) = pod["metadata"]["name"], pod["spec"]["containers"]
        given = {
            each["name"]: each.get("value", HOST if each["name"].endswith("_IP") else name) for each in container["env"]
        }
        scratch = self._directory / name
        scratch.mkdir()
        arguments = {
            "--driver-url": given["SPARK_DRIVER_URL"],
            "--executor-id": given["SPARK_EXECUTOR_ID"],
            "--cores": given["SPARK_EXECUTOR_CORES"],
            "--app-id": given["SPARK_APPLICATION_ID"],
            "--hostname": given["SPARK_EXECUTOR_POD_IP"],
            "--resourceProfileId": given["SPARK_RESOURCE_PROFILE_ID"],
            "--podName": given["SPARK_EXECUTOR_POD_NAME"],
        }
        java = f"{os.environ['JAVA_HOME']}/bin/java" if os.environ.get("JAVA_HOME") else "java"
        options = [value for key, value in given.items() if key.startswith("SPARK_JAVA_OPT_")]
        heap = f"-Xmx{given['SPARK_EXECUTOR_MEMORY']}"
        words = [word for argument in arguments.items() for word in argument]
        with (scratch / "log").open("wb") as log:
            self._executors[name] = subprocess.Popen(
                [java, *options, heap, "-cp", f"{JARS}/*", BACKEND, *words],
                env={**os.environ, **given, "SPARK_CONF_DIR": str(scratch), "SPARK_LOCAL_DIRS": str(scratch)},
                cwd=scratch,
                stdout=log,
                stderr=log,
            )

    def _delete(self, pod: Pod) -> None:
        del self._pods[pod["metadata"]["name"]]
        if (process := self._executors.get(pod["metadata"]["name"])) is not None:
            process.terminate()
        self._publish("DELETED", pod)

    def _publish(self, kind: str, pod: Pod) -> None:
        self._version += 1
        pod["metadata"]["resourceVersion"] = str(self._version)
        for query, events in self._watches:
            if is_chosen(pod, query):
                events.put(json.dumps({"type": kind, "object": pod}) + "\n")

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: Any) -> None:
                """Nothing."""

            def _serve(self) -> None:
                url = urlsplit(self.path)
                query = parse_qs(url.query)
                _, _, _, _, resource, *rest = url.path.strip("/").split("/")  # api/v1/namespaces/prod/pods/NAME
                name = rest[0] if rest else None
                sent = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "null")
                verb = verb_of(self.command, name, is_watch="watch" in query)
                if verb == "watch" and self.headers.get("Upgrade"):
                    self._send(503, status(503, "no WebSockets"))
                    return
                code, body = server.answer(verb, resource, name, query, sent)
                if verb == "watch" and code == 200:
                    self._stream(query)
                else:
                    self._send(code, body)

            def _send(self, code: int, body: Any) -> None:
                data = json.dumps(body).encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def _stream(self, query: Query) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Connection", "close")
                self.end_headers()
                self.close_connection = True
                try:
                    for event in server.watch(query):
                        self.wfile.write(event.encode())
                        self.wfile.flush()
                except OSError:
                    return  # the driver is gone

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815 - names of the standard library

        return Handler


def verb_of(method: str, name: str | None, *, is_watch: bool) -> str:
    """As Kubernetes names it in a Role."""
    if method == "GET":
        return "get" if name else "watch" if is_watch else "list"
    if method == "DELETE":
        return "delete" if name else "deletecollection"
    return {"POST": "create", "PUT": "update", "PATCH": "patch"}[method]


def is_chosen(pod: Pod, query: Query) -> bool:
    """By the labels, and by the name, as selectors ask."""
    terms = [term for selector in query.get("labelSelector", ()) for term in selector.split(",")]
    labels = pod["metadata"].get("labels", {})
    for term in terms:
        key, _, value = term.partition("!=" if "!=" in term else "=")
        if (labels.get(key) == value) == ("!=" in term):
            return False
    names = [each.partition("=")[2] for each in query.get("fieldSelector", ()) if each.startswith("metadata.name=")]
    return all(name == pod["metadata"]["name"] for name in names)


def status(code: int, message: str) -> dict[str, Any]:
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": message}


@contextmanager
def running(rules: list[dict[str, Any]], directory: Path) -> Iterator[Kubernetes]:
    server = Kubernetes(rules, directory)
    server.open()
    try:
        yield server
    finally:
        server.close()
