"""A Kafka broker for tests (`kafka_server`): the real one, from Maven's jars, as a process of its own.

Its jars are kept in the user's cache, so that only the first run on a machine fetches them. A test is skipped where Java or, for
that first run, Maven is missing.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import trustme
from confluent_kafka import KafkaException, admin
from cryptography.hazmat.primitives import serialization
from maven import jars_of
from patience import PATIENCE_S, until
from plugins_node import free_port

FOLDER = Path(__file__).parent / "kafka"
USER, PASSWORD = "bank", "not-in-any-log"
JAVA = (
    "-Xms64m",
    "-Xmx384m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xlog:disable",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
)
SETTINGS = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL",
    "auto.create.topics.enable": "false",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "log.cleaner.enable": "false",
    "num.network.threads": "2",
    "num.io.threads": "3",
    "background.threads": "2",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,OAUTHBEARER",
    "listener.name.sasl_ssl.plain.sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required"
    f' user_{USER}="{PASSWORD}";',
    "listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config": (
        "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    ),
    "listener.name.sasl_ssl.oauthbearer.sasl.jaas.config": (
        "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;"
    ),
    "ssl.keystore.type": "PEM",
    "ssl.truststore.type": "PEM",
}
"""One broker in one process; quick to start, and small."""


def spark_jars() -> Path:
    """The directory with Spark's own source and sink for Kafka. Skips the test if they cannot be had."""
    return jars_of(FOLDER / "spark", "Kafka-Spark")


class KafkaMachine:
    """A broker that can be killed, frozen and started again, at the same ports, with the topics that it had.

    servers: without TLS or authentication. sasl_servers: with both, as USER with PASSWORD. ca: the authority, a file (PEM).
    data: where its topics are. controllers: the ports of all brokers of its cluster for each other, by number.
    """

    def __init__(
        self, directory: Path, number: int, controllers: Mapping[int, int], *, port: int | None, **settings: str
    ) -> None:
        directory.mkdir()
        self.number = number
        self._directory = directory
        self.data = directory / "data"
        self._jars = jars_of(FOLDER, "Kafka")
        self._process: subprocess.Popen[bytes] | None = None
        plain, sasl = port or free_port(), free_port()
        self.servers, self.sasl_servers = f"127.0.0.1:{plain}", f"localhost:{sasl}"
        self.ca = directory / "ca.pem"
        listeners = f"PLAINTEXT://127.0.0.1:{plain},SASL_SSL://localhost:{sasl}"
        self._settings = {
            **SETTINGS,
            **self._certificates(),
            "node.id": str(number),
            "listeners": f"{listeners},CONTROLLER://127.0.0.1:{controllers[number]}",
            "advertised.listeners": listeners,
            "controller.quorum.voters": ",".join(f"{each}@127.0.0.1:{port}" for each, port in controllers.items()),
            "log.dirs": str(self.data),
            **{name.replace("_", "."): value for name, value in settings.items()},
        }

    @property
    def _file(self) -> Path:
        return self._directory / "server.properties"

    def _certificates(self) -> dict[str, str]:
        authority = trustme.CA()
        authority.cert_pem.write_to_path(self.ca)
        keys = self._directory / "keys.pem"
        shown = authority.issue_cert("localhost")
        key = serialization.load_pem_private_key(shown.private_key_pem.bytes(), None)
        pkcs8 = serialization.PrivateFormat.PKCS8  # the only one that Java reads
        pem = key.private_bytes(serialization.Encoding.PEM, pkcs8, serialization.NoEncryption())
        keys.write_bytes(pem + b"".join(each.bytes() for each in shown.cert_chain_pems))
        return {"ssl.keystore.location": str(keys), "ssl.truststore.location": str(self.ca)}

    def format(self) -> None:
        """Make its empty directory, as once before the first start."""
        self._file.write_text("".join(f"{name}={value}\n" for name, value in self._settings.items()))
        scram = f"SCRAM-SHA-256=[name={USER},password={PASSWORD},iterations=4096]"
        tool = ("kafka.tools.StorageTool", "format", "-t", "bGVhc2Vob2xkLWthZmthIQ", "-c", str(self._file))
        done = subprocess.run([*self._java, *tool, "--add-scram", scram], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    @property
    def _java(self) -> tuple[str, ...]:
        return ("java", *JAVA, "-cp", f"{self._jars}/*")

    def start(self) -> None:
        log = (self._directory / "server.log").open("ab")
        self._process = subprocess.Popen([*self._java, "kafka.Kafka", str(self._file)], stdout=log, stderr=log)
        log.close()

    def await_serving(self) -> None:
        until(self._serves, "the broker serves", lambda: (self._directory / "server.log").read_text()[-2000:])

    def _serves(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._directory / "server.log").read_text()[-2000:]
        host, _, port = self.servers.rpartition(":")
        with socket.socket() as client:
            if client.connect_ex((host, int(port))):
                return False
        try:
            return bool(self.admin().list_topics(timeout=5).brokers)
        except KafkaException:
            return False

    def admin(self) -> admin.AdminClient:
        return admin.AdminClient({"bootstrap.servers": self.servers, "log_level": 0})

    def make_topic(self, name: str, partitions: int, replicas: int = 1, **settings: str) -> None:
        new = admin.NewTopic(
            name, partitions, replicas, config={key.replace("_", "."): value for key, value in settings.items()}
        )
        client = self.admin()  # which ends its requests when it is forgotten
        client.create_topics([new], operation_timeout=PATIENCE_S)[name].result(PATIENCE_S)
        self._await_partitions(name, partitions)

    def add_partitions(self, name: str, partitions: int) -> None:
        client = self.admin()
        client.create_partitions([admin.NewPartitions(name, partitions)])[name].result(PATIENCE_S)
        self._await_partitions(name, partitions)

    def _await_partitions(self, name: str, partitions: int) -> None:
        client = self.admin()

        def led() -> int:
            found = client.list_topics(name, timeout=PATIENCE_S).topics[name].partitions
            return sum(each.leader >= 0 for each in found.values())

        until(lambda: led() == partitions, f"topic '{name}' has {partitions} partitions")

    def delete_topic(self, name: str) -> None:
        client = self.admin()
        client.delete_topics([name], operation_timeout=PATIENCE_S)[name].result(PATIENCE_S)
        until(lambda: name not in client.list_topics(timeout=PATIENCE_S).topics, f"topic '{name}' is gone")

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None, "it was started"
        self._process.send_signal(number)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE_S)


@contextmanager
def kafka_machines(count: int = 1, *, port: int | None = None, **settings: str) -> Iterator[list[KafkaMachine]]:
    """One cluster. port: of the first one. settings: of all brokers, with underscores instead of dots."""
    controllers = {number: free_port() for number in range(1, count + 1)}
    with tempfile.TemporaryDirectory(prefix="leasehold-kafka-") as directory, ExitStack() as stack:
        machines = [
            KafkaMachine(Path(directory) / str(each), each, controllers, port=port if each == 1 else None, **settings)
            for each in controllers
        ]
        for machine in machines:
            machine.format()
            stack.callback(machine.kill)
            machine.start()
        for machine in machines:
            machine.await_serving()
        yield machines


@pytest.fixture(scope="session")
def kafka_server() -> Iterator[KafkaMachine]:
    with kafka_machines() as [machine]:
        yield machine
