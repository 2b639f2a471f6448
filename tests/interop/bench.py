"""A hub, the bank's pipeline over it as the chart deploys it, and programs of others beside its host."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import helm_python
import structlog
import yaml
from click.testing import CliRunner
from patience import PATIENCE_S, until_async
from plugins_cli import events_in
from plugins_eventhubs import Control

from leasehold.service.cli.main import main
from leasehold.service.config.load import parse
from leasehold.service.processor import ProcessorCore
from leasehold.service.wiring.build import processor_of

CHART = Path(__file__).parents[2] / "helm"
HUB, GROUP = "raw-event", "bank"
PARTITIONS = ("0", "1", "2", "3")


class Bench:
    """A release of the chart without pods: its settings, which a host runs with, and its trigger, which KEDA's scaler gets.

    - `leases`, `feed`: sections of the settings.
    - `env`: the variables of the pods.
    - `scaling`: more of the chart's values for autoscaling.
    """

    def __init__(
        self,
        by: str,
        leases: dict[str, Any],
        feed: dict[str, Any],
        env: dict[str, str],
        folder: Path,
        scaling: dict[str, Any] | None = None,
    ) -> None:
        self.env = {**env, "POD_NAME": "host-a"}
        self._folder = folder
        sink = {"type": "http", "url": "https://bank.example"}
        self._values: dict[str, Any] = {
            "api": {"readersSecret": "readers"},
            "secrets": ["bank"],
            "autoscaling": {"by": by, "pipeline": "bank", "min": 0, "lagPerReplica": 1000, **(scaling or {})},
            "config": {
                "leases": {**leases, "duration_s": 3, "balance_s": 0.3},
                "pipelines": [{"name": "bank", "feed": feed, "sink": sink}],
            },
        }
        self._rendered = self._render()
        self.file = folder / "bank.yaml"
        self.file.write_text(yaml.safe_dump(self._settings()))

    # What the chart renders

    def _render(self) -> dict[str, Any]:
        with helm_python.Chart.load(CHART) as chart:
            chart.validate_schema(self._values)
            files = chart.render(self._values, name="bank", namespace="bank")
        texts = [text for name, text in files.items() if name.endswith(".yaml")]
        objects = [each for text in texts for each in yaml.safe_load_all(text) if each]
        return {each["kind"]: each for each in objects}

    def _settings(self) -> dict[str, Any]:
        found = dict(yaml.safe_load(self._rendered["ConfigMap"]["data"]["leasehold.yaml"]))
        del found["api"]
        sink = {"type": "log", "path": str(self._folder / "out")}
        return {**found, "pipelines": [{**each, "sink": sink} for each in found["pipelines"]]}

    @property
    def trigger(self) -> dict[str, Any]:
        (found,) = self._rendered["ScaledObject"]["spec"]["triggers"]
        return dict(found)

    # KEDA

    async def lag(self, go: str) -> int:
        """What KEDA's scaler counts. It is active, which starts the first pod, exactly if that is above 0."""
        given = json.dumps({**self.trigger, "env": self.env})
        done = await asyncio.to_thread(
            subprocess.run, [go, "keda"], input=given, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)
        lag, rest = divmod(answer["milli"], 1000)
        assert (rest, answer["is_active"]) == (0, lag > 0)
        return int(lag)

    async def until_lag(self, go: str, lag: int) -> None:
        async def is_told() -> bool:
            return await self.lag(go) == lag

        await until_async(is_told)

    # Leasehold

    @asynccontextmanager
    async def host(self) -> AsyncIterator[ProcessorCore]:
        settings = parse(self.file.read_text(), {**os.environ, **self.env}, folder=self._folder)
        processor = processor_of(settings, host="host-a", log=structlog.wrap_logger(None, processors=[_drop]))
        await processor.start()
        try:
            yield processor
        finally:
            await processor.stop()

    async def drain(self) -> None:
        async with self.host() as host, asyncio.timeout(PATIENCE_S):
            await host.idle()

    async def run(self, *line: str) -> str:
        told = await asyncio.to_thread(CliRunner().invoke, main, list(line), env=self.env)
        assert told.exit_code == 0, told.output
        return told.output

    async def delivered(self) -> list[str]:
        found = await asyncio.to_thread(events_in, self._folder / "out", lambda row: row["body"].decode())
        return sorted(body for bodies in found.values() for body in bodies)


class Hub(Bench):
    """The pipeline over an event hub, with checkpoint blobs.

    - `hubs`, `blobs`: connection strings.
    - `name`: what the names of its containers begin with.
    """

    def __init__(self, control: Control, *, hubs: str, blobs: str, name: str, folder: Path) -> None:
        self.control = control
        self.container = f"{name}-checkpoints"
        account = {"connection_string": "${BLOBS}"}
        feed = {
            "type": "eventhubs",
            "connection_string": "${HUBS}",
            "event_hub": HUB,
            "consumer_group": GROUP,
            "checkpoint_blobs": {**account, "container": self.container, "interval_s": 0.2},
        }
        leases = {"type": "blob", **account, "container": f"{name}-leases"}
        super().__init__("eventhubs", leases, feed, {"HUBS": hubs, "BLOBS": blobs}, folder)

    async def append(self, numbers: range) -> None:
        for partition in PARTITIONS:
            bodies = [f"{partition}-{number}" for number in numbers]
            await asyncio.to_thread(self.control.append, HUB, partition, bodies)

    async def consume(self, program: Sequence[str], events: int) -> list[str]:
        """The next events that a processor of an SDK gets, with a checkpoint for each. It ends in good order."""
        line = [*program, self.env["HUBS"], HUB, GROUP, self.env["BLOBS"], self.container]
        errors = self._folder / "errors.txt"
        with errors.open("w") as err:
            process = await asyncio.create_subprocess_exec(
                *line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err
            )
            assert process.stdin is not None
            assert process.stdout is not None
            found: list[str] = []
            try:
                async with asyncio.timeout(PATIENCE_S):
                    while len(found) < events and (read := await process.stdout.readline()):
                        found.append("-".join(read.decode().split()))
                    process.stdin.close()
                    rest = await process.stdout.read()
                    await process.wait()
            except TimeoutError:
                raise AssertionError(f"{len(found)} of {events} events: {errors.read_text()[-2000:]}") from None
            finally:
                if process.returncode is None:
                    process.kill()
        assert not rest, f"more than {events} events: {rest.decode()}"
        return sorted(found)


def numbered(*numbers: range) -> list[str]:
    return sorted(f"{partition}-{number}" for partition in PARTITIONS for each in numbers for number in each)


def _drop(logger: object, level: str, event: Any) -> str:
    raise structlog.DropEvent
