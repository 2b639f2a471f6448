"""The first example of docs/kubernetes.md: three pods of the image, with their leases in the database of the sink.

Helm renders the settings from the values of the page. PostgreSQL is reached by TCP, and all pods mount the volume of the files.
"""

from __future__ import annotations

import json
import random
import signal
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import helm_python
import pytest
import yaml
from containers import HOSTS, TOKEN, Image, Pod, noted
from pages import examples
from patience import PATIENCE_S, until
from plugins_node import free_port
from pods import by_tcp

from leasehold.leases.document import lease_prefix
from leasehold.leases.stores.postgres import LeaseTable

pytestmark = pytest.mark.timeout(1800)

CHART = Path(__file__).parents[2] / "helm"
SECRETS = {"leasehold/readers": TOKEN, "leasehold-operators/operators": f"alice {TOKEN[::-1]}"}
FILES = 6
GRACE_S = 55
"""That the chart gives pods."""
KILLED, STOPPED, STAYS = HOSTS[:3]


@dataclass(kw_only=True)
class Release:
    """values: of the page. folder: of what this test writes. dsn: for pods. took: seconds until each thing showed."""

    image: Image
    values: dict[str, Any]
    folder: Path
    postgres: Any
    dsn: str
    pods: dict[str, Pod] = field(default_factory=dict)
    expected: defaultdict[str, Decimal] = field(default_factory=lambda: defaultdict(Decimal))
    written: int = 0
    took: dict[str, float] = field(default_factory=dict)
    numbers: random.Random = field(default_factory=lambda: random.Random(1))

    @property
    def volume(self) -> Path:
        return self.folder / "volume"

    def write(self, count: int) -> None:
        """Appends as many transactions to each file."""
        for number in range(FILES):
            with (self.volume / f"in/transactions-{number}.jsonl").open("a") as file:
                file.writelines(self._line() for _ in range(count))

    def _line(self) -> str:
        account = f"account-{self.numbers.randrange(5)}"
        value = Decimal(self.numbers.randrange(-100_000, 100_000)) / 100
        self.expected[account] += value
        self.written += 1
        return f'{{"account": "{account}", "value": {value}}}\n'

    def start(self, *names: str) -> None:
        for name in names:
            self._begin(name)
        for name in names:
            self.took[f"{name} is ready"] = self.pods[name].until("/health/ready", PATIENCE_S)

    def _begin(self, name: str) -> None:
        port, settings = free_port(), self.folder / name
        settings.mkdir()
        (settings / "leasehold.yaml").write_text(self._rendered(port))
        output, environment = self.folder / f"{name}.said", {"BANK_POSTGRES": self.dsn}
        self.pods[name] = Pod(
            self.image, settings, port=port, output=output, host=name, state=self.volume, environment=environment
        )

    def _rendered(self, port: int) -> str:
        """The settings that Helm renders. Pods share the machine's network here, so each has a port of its own."""
        given = self.values | {"api": self.values["api"] | {"port": port}}
        with helm_python.Chart.load(CHART) as chart:
            chart.validate_schema(given)
            files = chart.render(given, name="bank", namespace="bank")
        return str(yaml.safe_load(files["leasehold/templates/configmap.yaml"])["data"]["leasehold.yaml"])

    def is_shared_by(self, *names: str) -> bool:
        """Evenly, by the database and by the API of each."""
        share = dict.fromkeys(names, FILES // len(names))
        return self.owners() == share and all(self._owners_for(name) == share for name in names)

    def owners(self) -> Counter[str | None]:
        """In the table of leases."""
        return Counter(owner for _, owner, _ in self.leases())

    def leases(self) -> list[tuple[str, str | None, int]]:
        """Id, owner and epoch of each."""
        query = (
            f"SELECT id, body ->> 'owner', (body ->> 'epoch')::int FROM {LeaseTable().name} WHERE id LIKE %s ORDER BY 1"
        )
        return [(id_, owner, epoch) for id_, owner, epoch in self.postgres.fetch(query, f"{lease_prefix('balances')}%")]

    def _owners_for(self, name: str) -> Counter[str | None]:
        return Counter(each["owner"] for each in self.pods[name].items("/api/leases"))

    def see_shared(self, what: str, *names: str) -> None:
        self.took[what] = until(lambda: self.is_shared_by(*names), what, self.owners)

    def deliver(self) -> None:
        """Everything that was written: seen in the balances, which are exact."""
        until(lambda: self.delivered() >= self.written, f"{self.written} events delivered", self.delivered)
        rows = self.postgres.fetch("SELECT account, balance, events FROM balances")
        assert {account: balance for account, balance, _ in rows} == dict(self.expected)
        assert self.delivered() == self.written

    def delivered(self) -> int:
        return int(self.postgres.fetch("SELECT coalesce(sum(events), 0) FROM balances")[0][0])

    def close(self) -> None:
        for pod in self.pods.values():
            pod.end()


@pytest.fixture
def release(throw_away: Image, tmp_path: Path, postgres: Any) -> Iterator[Release]:
    examples("kubernetes.md", tmp_path)
    values = yaml.safe_load((tmp_path / "bank-values.yaml").read_text())
    (tmp_path / "volume/in").mkdir(parents=True)
    throw_away.give(tmp_path / "volume")
    for name, text in SECRETS.items():
        file = throw_away.root / "run/secrets" / name
        file.parent.mkdir(parents=True)
        file.write_text(text)
    with by_tcp(postgres.socket) as port:
        dsn = f"postgresql://postgres@127.0.0.1:{port}/{postgres.name}?sslmode=disable&gssencmode=disable"
        release = Release(image=throw_away, values=values, folder=tmp_path, postgres=postgres, dsn=dsn)
        try:
            yield release
        finally:
            release.close()


def test_three_pods_share_the_first_example_and_hand_over_what_one_loses(release: Release) -> None:
    release.write(50)
    release.start(KILLED, STOPPED, STAYS)
    release.see_shared("three share", KILLED, STOPPED, STAYS)
    release.deliver()
    release.write(50)
    release.pods[KILLED].send(signal.SIGKILL)
    release.see_shared("the killed one's leases are taken", STOPPED, STAYS)
    release.write(50)
    release.deliver()
    before = release.leases()
    release.pods[STOPPED].send(signal.SIGTERM)
    release.see_shared("the stopped one's leases are taken", STAYS)
    assert release.pods[STOPPED].ended(GRACE_S) == 0, release.pods[STOPPED].said
    assert release.leases() == [(id_, STAYS, epoch + (owner == STOPPED)) for id_, owner, epoch in before]
    release.write(50)
    release.deliver()
    for name in (STOPPED, STAYS):
        levels = {json.loads(line)["level"] for line in release.pods[name].said.splitlines()}
        assert levels <= {"info", "warning"}, release.pods[name].said
    noted(
        f"the first example of kubernetes.md: {', '.join(f'{what} after {s:.1f} s' for what, s in release.took.items())}"
    )
