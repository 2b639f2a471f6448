"""A pod of the first example of docs/kubernetes.md behind the proxy of the same page: a network of its own, with one door.

The proxy is HAProxy, and curl asks as a client in the cluster does: by the Service's name, with the authority that it trusts.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import helm_python
import pytest
import trustme
import yaml
from containers import TOKEN, Image, Network, Pod, network
from pages import examples
from patience import PATIENCE_S, until
from pods import by_tcp

pytestmark = pytest.mark.timeout(1800)

CHART = Path(__file__).parents[2] / "helm"
SERVICE = "bank-leasehold.bank.svc"
PORT, DOOR = 8080, 8443
LOGIN = f"Authorization: Bearer {TOKEN}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarded:
    """folder: of what the proxy reads. host: its container, as the chart renders it."""

    pod: Pod
    network: Network
    folder: Path
    host: dict[str, Any]

    def ask(self, url: str, *options: str) -> subprocess.CompletedProcess[str]:
        """From outside the pod. The output is the body, and the status and the version of HTTP on a line behind it."""
        port = url.rpartition(":")[2].partition("/")[0]
        where = ["--resolve", f"{SERVICE}:{port}:{self.network.pod}", "--cacert", str(self.folder / "tls/ca.crt")]
        command = [
            "curl",
            "--silent",
            "--show-error",
            "--max-time",
            "60",
            "--write-out",
            r"\n%{http_code} %{http_version}",
        ]
        return subprocess.run([*command, *where, *options, url], capture_output=True, text=True, check=False)

    def answered(self, path: str, *options: str) -> tuple[str, str]:
        """Through the door: the body, and the status with the version of HTTP."""
        body, _, end = self.ask(f"https://{SERVICE}:{DOOR}{path}", *options).stdout.rpartition("\n")
        return body, end


@pytest.fixture
def guarded(throw_away: Image, tmp_path: Path, postgres: Any) -> Iterator[Guarded]:
    if lacking := [tool for tool in ("haproxy", "curl", "ip", "nsenter") if shutil.which(tool) is None]:
        pytest.skip(f"needs {', '.join(lacking)}")
    _write_certificate(tmp_path / "tls")
    examples("kubernetes.md", tmp_path)
    config = (tmp_path / "haproxy.cfg").read_text()
    (tmp_path / "haproxy.cfg").write_text(config.replace("/tls/", f"{tmp_path}/tls/"))
    settings, container = _rendered(tmp_path)
    (tmp_path / "settings").mkdir()
    (tmp_path / "settings/leasehold.yaml").write_text(settings)
    (tmp_path / "volume/in").mkdir(parents=True)
    (tmp_path / "volume/in/transactions-0.jsonl").write_text('{"account": "a", "value": 1.5}\n')
    throw_away.give(tmp_path / "volume")
    readers = throw_away.root / "run/secrets/leasehold/readers"
    readers.parent.mkdir(parents=True)
    readers.write_text(TOKEN)
    operators = throw_away.root / "run/secrets/leasehold-operators/operators"
    operators.parent.mkdir(parents=True)
    operators.write_text(f"alice {TOKEN[::-1]}")
    with network() as own, by_tcp(postgres.socket, own.machine) as port:
        dsn = f"postgresql://postgres@{own.machine}:{port}/{postgres.name}?sslmode=disable&gssencmode=disable"
        proxy = subprocess.Popen(own.command("haproxy", "-db", "-f", str(tmp_path / "haproxy.cfg")))
        pod = Pod(
            throw_away,
            tmp_path / "settings",
            port=PORT,
            output=tmp_path / "said",
            state=tmp_path / "volume",
            environment={"BANK_POSTGRES": dsn},
            network=own,
        )
        try:
            yield Guarded(pod=pod, network=own, folder=tmp_path, host=container)
        finally:
            pod.end()
            proxy.kill()
            proxy.wait(PATIENCE_S)


def _write_certificate(folder: Path) -> None:
    """As cert-manager writes a Secret: ca.crt, tls.crt and tls.key."""
    folder.mkdir()
    authority = trustme.CA()
    issued = authority.issue_cert(SERVICE)
    authority.cert_pem.write_to_path(str(folder / "ca.crt"))
    issued.private_key_pem.write_to_path(str(folder / "tls.key"))
    for certificate in issued.cert_chain_pems:
        certificate.write_to_path(str(folder / "tls.crt"), append=True)


def _rendered(folder: Path) -> tuple[str, dict[str, Any]]:
    """The settings, and the host's container, of both examples together."""
    first, proxy = (yaml.safe_load((folder / f"{name}-values.yaml").read_text()) for name in ("bank", "proxy"))
    given = first | proxy | {"api": first["api"] | proxy["api"]}
    with helm_python.Chart.load(CHART) as chart:
        chart.validate_schema(given)
        files = chart.render(given, name="bank", namespace="bank")
    workload = yaml.safe_load(files["leasehold/templates/workload.yaml"])
    settings = yaml.safe_load(files["leasehold/templates/configmap.yaml"])["data"]["leasehold.yaml"]
    return str(settings), workload["spec"]["template"]["spec"]["containers"][0]


def test_a_proxy_with_tls_is_the_only_door_of_a_pod(guarded: Guarded, postgres: Any) -> None:
    until(lambda: guarded.answered("/health/ready")[1] == "200 2", "ready, by HTTP/2", lambda: guarded.pod.said)
    until(lambda: postgres.fetch("SELECT balance FROM balances"), "delivered", lambda: guarded.pod.said)
    assert guarded.pod.opens_to_others() == {DOOR}
    refused = guarded.ask(f"http://{SERVICE}:{PORT}/health/live")
    assert "refused" in refused.stderr or "connect to server" in refused.stderr, refused
    assert guarded.ask(f"http://{SERVICE}:{DOOR}/health/live").stdout.rpartition("\n")[2] != "200 1.1"
    assert guarded.answered("/api/leases")[1] == "401 2"
    leases, status = guarded.answered("/api/leases", "--header", LOGIN)
    assert (status, json.loads(leases)["items"][0]["owner"]) == ("200 2", guarded.pod.host)


def test_probes_of_a_host_behind_a_proxy_pass_in_its_pod(guarded: Guarded) -> None:
    until(lambda: guarded.answered("/health/ready")[1] == "200 2", "ready", lambda: guarded.pod.said)
    for name in ("startup", "liveness", "readiness"):
        ran = guarded.pod.run(*guarded.host[f"{name}Probe"]["exec"]["command"])
        assert ran.returncode == 0, ran.stderr


def test_a_proxy_passes_the_stream_of_events_on_as_it_comes(guarded: Guarded) -> None:
    until(lambda: guarded.answered("/health/ready")[1] == "200 2", "ready", lambda: guarded.pod.said)
    events, status = guarded.answered("/api/events?seconds=20", "--header", LOGIN)
    assert status == "200 2"
    assert events.startswith("event: ready\n")
