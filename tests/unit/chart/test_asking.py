"""What asks the API in a pod, run as it is rendered: the probes of an API on loopback, and `helm test`."""

import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from unit.chart.dockerfile import dockerfile
from unit.chart.releases import EXECUTORS, Values, merged

from leasehold_emulators.hosting import Authority, certified

PYTHON = "/opt/leasehold/bin/python"
PROXY: Values = {
    "api": {"address": "127.0.0.1"},
    "extraContainers": [{"name": "proxy", "image": "proxy", "ports": [{"name": "api", "containerPort": 8443}]}],
}


@contextmanager
def api(*statuses: int, tls: ssl.SSLContext | None = None) -> Iterator[tuple[int, list[str]]]:
    """A server that answers with these statuses, the last one again and again: its port, and the paths that it was asked for."""
    asked: list[str] = []

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(statuses[min(len(asked), len(statuses)) - 1])
            self.end_headers()
            self.wfile.write(b"why")

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        try:
            yield server.server_port, asked
        finally:
            server.shutdown()


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    """A command of the image, by this Python."""
    assert command[0] == PYTHON
    return subprocess.run([sys.executable, *command[1:]], capture_output=True, text=True, timeout=60, check=False)


def test_the_image_has_the_python_that_asks() -> None:
    assert dockerfile()[""].last("HEALTHCHECK").split('"')[1] == PYTHON


@pytest.mark.parametrize("name", ["startup", "liveness", "readiness"])
def test_a_probe_on_loopback_passes_if_the_host_answers_well_and_else_fails(
    render: Callable[..., Any], name: str
) -> None:
    path = "/health/ready" if name == "readiness" else "/health/live"
    with api(200, 503) as (port, asked):
        host, _ = render(merged(PROXY, {"api": {"port": port}}))["Deployment"]["spec"]["template"]["spec"]["containers"]
        probe = host[f"{name}Probe"]
        assert "httpGet" not in probe
        assert run(probe["exec"]["command"]).returncode == 0
        failed = run(probe["exec"]["command"])
    assert (failed.returncode, asked) == (1, [path, path])
    assert "503" in failed.stderr
    assert "Connection refused" in run(probe["exec"]["command"]).stderr


def test_a_probe_asks_on_the_loopback_of_the_settings(render: Callable[..., Any]) -> None:
    host, _ = render(merged(PROXY, {"api": {"address": "::1"}}))["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert "'http://[::1]:8080/health/live'" in host["livenessProbe"]["exec"]["command"][-1]


def test_a_host_on_loopback_has_no_port_but_those_for_its_executors(render: Callable[..., Any]) -> None:
    objects = render(merged(PROXY, EXECUTORS))
    host, _ = objects["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert [each["name"] for each in host["ports"]] == ["driver", "blocks"]


def asking(objects: dict[str, Any], *arguments: str) -> list[str]:
    """The command of `helm test`, with other arguments."""
    (container,) = objects["Pod-test"]["spec"]["containers"]
    return [*container["command"], container["args"][0], *arguments]


def test_helm_asks_the_service_until_a_host_is_ready(render: Callable[..., Any]) -> None:
    objects = render()
    service = objects["Service"]["metadata"]["name"]
    assert objects["Pod-test"]["spec"]["containers"][0]["args"][1:] == [f"http://{service}.prod.svc:8080/health/ready"]
    with api(503, 503, 200) as (port, asked):
        done = run(asking(objects, f"http://127.0.0.1:{port}/health/ready"))
    assert (done.returncode, asked) == (0, ["/health/ready"] * 3)
    assert done.stdout.splitlines() == [
        f"not ready: http://127.0.0.1:{port}/health/ready: HTTP Error 503: Service Unavailable why",
        f"ready: http://127.0.0.1:{port}/health/ready",
    ]


def test_a_test_of_helm_that_finds_no_host_fails_with_what_to_do(render: Callable[..., Any]) -> None:
    command = asking(render(), "http://127.0.0.1:1/health/ready")
    program = command[3].replace("range(120)", "range(1)")
    failed = run([*command[:3], program, *command[4:]])
    assert program != command[3]
    assert failed.returncode == 1
    assert "no host is ready. Read the logs of the pods" in failed.stderr


def test_helm_verifies_the_certificate_of_a_proxy(render: Callable[..., Any], tmp_path: Path) -> None:
    ca, other = tmp_path / "ca.crt", tmp_path / "other.crt"
    served = certified("127.0.0.1", Authority(ca))
    certified("127.0.0.1", Authority(other))
    with api(200, tls=served) as (port, asked):
        command = asking(render(), f"https://127.0.0.1:{port}/health/ready")
        command[3] = command[3].replace("range(120)", "range(1)")
        assert run([*command, str(ca)]).returncode == 0
        refused = [run(command), run([*command, str(other)])]
    assert asked == ["/health/ready"]
    assert all("CERTIFICATE_VERIFY_FAILED" in each.stderr for each in refused)


def test_the_pod_of_a_test_may_reach_the_api_and_only_while_it_runs(render: Callable[..., Any]) -> None:
    objects = render()
    pod, policy = objects["Pod-test"], objects["NetworkPolicy-test"]
    (rule,) = policy["spec"]["ingress"]
    (peer,) = rule["from"]
    assert peer["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert policy["spec"]["podSelector"]["matchLabels"] == objects["Deployment"]["spec"]["selector"]["matchLabels"]
    assert {each["metadata"]["annotations"]["helm.sh/hook"] for each in (pod, policy)} == {"test"}
    assert "hook-succeeded" in policy["metadata"]["annotations"]["helm.sh/hook-delete-policy"]
    assert int(policy["metadata"]["annotations"]["helm.sh/hook-weight"]) < 0
    assert "NetworkPolicy-test" not in render({"networkPolicy": {"enabled": False}})
    assert pod["metadata"]["labels"]["app.kubernetes.io/name"] != "leasehold", "the Service does not select it"
