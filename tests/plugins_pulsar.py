"""A Pulsar broker for tests (`pulsar_server`): the real one, standalone, from Maven's jars, as a process of its own.

Its jars are kept in the user's cache, so that only the first run on a machine fetches them. A test is skipped where Java or, for
that first run, Maven is missing.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme
from cryptography.hazmat.primitives import serialization
from maven import jars_of
from patience import PATIENCE_S, until
from plugins_node import free_port

FOLDER = Path(__file__).parent / "pulsar-broker"
SECRET = b"a secret of 32 bytes for tokens.."
"""With which the broker verifies tokens."""
LOOK_TIMEOUT_S = 2.0
"""Of a look whether the broker serves, which may hang while it starts."""
ANYONE = "anyone"
"""The role of a client that shows no token. It may do everything."""
OPENED = (
    "java.base/java.nio",
    "java.base/jdk.internal.misc",
    "java.base/sun.net",
    "java.base/jdk.internal.platform",
    "java.base/java.util.zip",
    "java.management/sun.management",
    "jdk.management/com.sun.management.internal",
)
JAVA = (
    "-Xms64m",
    "-Xmx640m",
    "-XX:MaxDirectMemorySize=640m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xlog:disable",
    *(part for name in OPENED for part in ("--add-opens", f"{name}=ALL-UNNAMED")),
)
SETTINGS = {
    "clusterName": "standalone",
    "advertisedAddress": "127.0.0.1",
    "managedLedgerDefaultEnsembleSize": "1",
    "managedLedgerDefaultWriteQuorum": "1",
    "managedLedgerDefaultAckQuorum": "1",
    "managedLedgerMaxEntriesPerLedger": "50000",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    "defaultRetentionTimeInMinutes": "-1",
    "defaultRetentionSizeInMB": "-1",
    "brokerDeduplicationEnabled": "true",
    "brokerDeduplicationEntriesInterval": "1",
    "loadBalancerEnabled": "false",
    "allowAutoTopicCreation": "false",
    "functionsWorkerEnabled": "false",
    "systemTopicEnabled": "false",
    "topicLevelPoliciesEnabled": "false",
    "nettyMaxFrameSizeBytes": "5253120",
    "numIOThreads": "2",
    "numHttpServerThreads": "4",
    "authenticationEnabled": "true",
    "authenticationProviders": "org.apache.pulsar.broker.authentication.AuthenticationProviderToken",
    "tokenSecretKey": f"data:;base64,{base64.b64encode(SECRET).decode()}",
    "anonymousUserRole": ANYONE,
    "authorizationEnabled": "true",
    "superUserRoles": ANYONE,
    "tlsRequireTrustedClientCertOnConnect": "false",
}


def token_of(role: str, *, secret: bytes = SECRET) -> str:
    """A token that the broker takes for this role, if it was made with its secret."""
    parts = [json.dumps(each, separators=(",", ":")).encode() for each in ({"alg": "HS256"}, {"sub": role})]
    text = b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in parts)
    seal = hmac.new(secret, text, hashlib.sha256).digest()
    return (text + b"." + base64.urlsafe_b64encode(seal).rstrip(b"=")).decode()


class PulsarMachine:
    """A broker that can be killed, frozen and started again, at the same ports, with the topics that it had.

    url: without TLS. tls_url: with it. ca: the authority, a file (PEM). A client without a token may do everything.
    """

    def __init__(self, directory: Path, *, port: int | None = None, **settings: str) -> None:
        self._directory = directory
        self._jars = jars_of(FOLDER, "Pulsar")
        self._process: subprocess.Popen[bytes] | None = None
        plain, tls, web = port or free_port(), free_port(), free_port()
        self.url, self.tls_url, self.admin_url = (
            f"pulsar://127.0.0.1:{plain}",
            f"pulsar+ssl://localhost:{tls}",
            f"http://127.0.0.1:{web}",
        )
        self.ca = directory / "ca.pem"
        self._http = httpx.Client(base_url=f"{self.admin_url}/admin/v2/", timeout=PATIENCE_S, trust_env=False)
        ports = {"brokerServicePort": str(plain), "brokerServicePortTls": str(tls), "webServicePort": str(web)}
        self._settings = {**SETTINGS, **ports, **self._certificates(), **settings}

    def _certificates(self) -> dict[str, str]:
        authority = trustme.CA()
        authority.cert_pem.write_to_path(self.ca)
        shown = authority.issue_cert("localhost", "127.0.0.1")
        key = serialization.load_pem_private_key(shown.private_key_pem.bytes(), None)
        pkcs8 = serialization.PrivateFormat.PKCS8  # the only one that Java reads
        chain, private = self._directory / "chain.pem", self._directory / "key.pem"
        chain.write_bytes(b"".join(each.bytes() for each in shown.cert_chain_pems))
        private.write_bytes(key.private_bytes(serialization.Encoding.PEM, pkcs8, serialization.NoEncryption()))
        return {"tlsCertificateFilePath": str(chain), "tlsKeyFilePath": str(private)}

    @property
    def servers(self) -> str:
        """`HOST:PORT`, without TLS."""
        return self.url.removeprefix("pulsar://")

    @property
    def tls_servers(self) -> str:
        return self.tls_url.removeprefix("pulsar+ssl://")

    @property
    def _log(self) -> Path:
        return self._directory / "server.log"

    def start(self) -> None:
        file = self._directory / "standalone.conf"
        file.write_text("".join(f"{name}={value}\n" for name, value in self._settings.items()))
        self._log.write_bytes(b"")
        starter = ("org.apache.pulsar.PulsarStandaloneStarter", "--config", str(file), "-nss", "-nfw")
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                ["java", *JAVA, "-cp", f"{self._jars}/*", *starter], stdout=log, stderr=log, cwd=self._directory
            )

    def await_serving(self) -> None:
        until(self._serves, "the broker serves", lambda: self._log.read_text()[-3000:])

    def _serves(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text()[-3000:]
        try:
            return self._http.get("namespaces/public", timeout=LOOK_TIMEOUT_S).json() == ["public/default"]
        except (httpx.HTTPError, ValueError):
            return False

    def admin(self, method: str, path: str, what: Any = None) -> Any:
        """A request to the broker's own administration, below /admin/v2/."""
        answer = self._http.request(method, path, json=what)
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None

    def make_topic(self, name: str, partitions: int, namespace: str = "public/default") -> None:
        self.admin("PUT", f"persistent/{namespace}/{name}/partitions", partitions)

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None, "it was started"
        self._process.send_signal(number)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE_S)


@contextmanager
def pulsar_machine(*, port: int | None = None, **settings: str) -> Iterator[PulsarMachine]:
    """settings: of standalone.conf."""
    with tempfile.TemporaryDirectory(prefix="leasehold-pulsar-") as directory:
        machine = PulsarMachine(Path(directory), port=port, **settings)
        try:
            machine.start()
            machine.await_serving()
            yield machine
        finally:
            machine.kill()


@pytest.fixture(scope="session")
def pulsar_server() -> Iterator[PulsarMachine]:
    with pulsar_machine() as machine:
        yield machine
