"""What pages start with Docker: a host of the image beside an emulator of its own image.

Both share a network of their own. PostgreSQL is this machine's.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from containers import Image, Network, end, network
from pages import DOCS, examples
from patience import PATIENCE_S, until
from pods import by_tcp

pytestmark = pytest.mark.timeout(900)

LOCAL = DOCS / "examples/local"


@dataclass(kw_only=True)
class Cloud:
    """dsn: of PostgreSQL, from the network."""

    image: Image
    emulators: Image
    network: Network
    folder: Path
    dsn: str
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def emulate(self, command: str) -> None:
        self._start(
            "cosmos", self.emulators.command(self.folder, *self.emulators.config["Entrypoint"], *_words(command))
        )
        until(lambda: "AccountEndpoint=" in self.said("cosmos"), "it serves", lambda: self.said("cosmos"))

    def run(self, settings: Path, command: list[str], **environment: str) -> None:
        words = (*self.image.config["Entrypoint"], *command)
        environment["LEASEHOLD_POSTGRES_DSN"] = self.dsn
        self._start("host", self.image.command(settings, *words, state=None, **environment))

    def write(self, program: Path, **environment: str) -> None:
        command = self.network.command(sys.executable, str(program))
        subprocess.run(command, env={**os.environ, **environment}, check=True, timeout=PATIENCE_S)

    def said(self, name: str) -> str:
        return (self.folder / name).read_text(errors="replace")

    def _start(self, name: str, command: list[str]) -> None:
        with (self.folder / name).open("wb") as said:
            self.started.append(subprocess.Popen(self.network.command(*command), stdout=said, stderr=said))

    def end(self) -> None:
        for each in self.started:
            end(each)


@pytest.fixture
def cloud(throw_away: Image, emulators: Image, tmp_path: Path, postgres: Any) -> Iterator[Cloud]:
    with (throw_away.root / "etc/hosts").open("a") as hosts:
        hosts.write("127.0.0.1 cosmos\n")
    with network() as own, by_tcp(postgres.socket, own.machine) as port:
        dsn = f"postgresql://postgres@{own.machine}:{port}/{postgres.name}?sslmode=disable&gssencmode=disable"
        cloud = Cloud(image=throw_away, emulators=emulators, network=own, folder=tmp_path, dsn=dsn)
        try:
            yield cloud
        finally:
            cloud.end()


def _words(command: str) -> list[str]:
    return shlex.split(command)


def _reach(cloud: Cloud, postgres: Any, table: str, wanted: Mapping[str, float]) -> None:
    """Until the table has these amounts by name."""

    def rows() -> dict[str, float]:
        if not postgres.fetch("SELECT 1 FROM pg_tables WHERE tablename = %s", table):
            return {}
        columns = {"balances": "account, balance::float", "totals": "customer, amount::float"}[table]
        return dict(postgres.fetch(f"SELECT {columns} FROM {table}"))

    until(lambda: rows() == wanted, f"{wanted} in {table}", lambda: (rows(), cloud.said("host")))


def test_services_of_the_compose_file_work_together(cloud: Cloud, postgres: Any) -> None:
    services = yaml.safe_load((LOCAL / "compose.yaml").read_text())["services"]
    account = services["host"]["environment"]["BANK_COSMOS"]
    cloud.emulate(services["cosmos"]["command"])
    cloud.run(LOCAL, _words(services["host"]["command"]), BANK_COSMOS=account)
    cloud.write(LOCAL / "deposit.py", BANK_COSMOS=account.replace("//cosmos:", "//127.0.0.1:"))
    _reach(cloud, postgres, "balances", {"alice": 12.5, "bob": 20, "carol": 7})


def test_docker_run_of_the_readme_keeps_totals(cloud: Cloud, postgres: Any) -> None:
    page = examples("../README.md", cloud.folder)
    (run,) = re.findall(r"`docker run (.*?)`", page)
    file, inside = re.findall(r"-v \./(\S+):(\S+)", run)[0]
    account = re.findall(r"export SHOP_COSMOS='(.*?)'", page)[0]
    assert re.findall(r"-e (\S+)", run) == ["SHOP_COSMOS", "LEASEHOLD_POSTGRES_DSN"]
    settings = cloud.folder / "settings"
    settings.mkdir()
    (cloud.folder / file).rename(settings / Path(inside).name)
    cloud.emulate("emulate cosmos --container shop/orders:/customer")
    cloud.write(cloud.folder / "order.py", SHOP_COSMOS=account)
    cloud.run(settings, cloud.image.config["Cmd"], SHOP_COSMOS=account)
    _reach(cloud, postgres, "totals", {"ann": 12.5})
