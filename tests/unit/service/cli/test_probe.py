"""What `check --probe` says of what cannot even be made."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from pathlib import Path

import pytest
from patience import PATIENCE_S

from leasehold.leases.errors import StoreAmbiguous, StoreError, StoreUnavailable
from leasehold.leases.stores.memory import MemoryStore
from leasehold.service.cli.probe import run_probe
from leasehold.service.cli.probe_services import ServiceOptions, Targets, ask_services
from leasehold.service.config.load import parse
from leasehold.service.config.settings import Settings
from leasehold.service.telemetry.logs import logger
from leasehold.service.wiring.build import processor_of

SETTINGS = """
api: {enabled: false}
pipelines:
  - name: broken
    feed: {type: files, path: "*.jsonl"}
    sink: {type: "no_such_module:Sink"}
  - name: copy
    feed: {type: files, path: "*.jsonl"}
    sink: {type: log, path: copied}
  - name: refused
    feed: {type: files, path: "*.jsonl"}
    sink: {type: "builtins:int", base: 99}
"""


async def test_a_pipeline_that_cannot_be_made_is_told_and_the_others_are_still_probed(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n')
    said: list[str] = []
    assert not await run_probe(parse(SETTINGS, {}, folder=tmp_path), said.append)
    assert [": ".join(line.split(": ")[:2]) for line in said] == [
        "broken: FAILED",
        "refused: FAILED",
        "leases: fine, 0 there",
        "copy: feed",
        "copy: transform",
        "copy: sink",
    ]
    assert "no_such_module" in said[0]
    assert all("fine" in line for line in said[2:])


COPY = """
leases: {{type: sqlite, path: leases.db}}
api: {{port: {port}}}
pipelines:
  - name: copy
    feed: {{type: files, path: "*.jsonl"}}
    sink: {{type: log, path: {sink}}}
"""


async def test_leases_that_belong_to_another_sink_are_refused_as_run_refuses_them(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n')

    def settings(sink: str) -> Settings:
        return parse(COPY.format(sink=sink, port=0), {}, folder=tmp_path)

    with settings("before").starting_spark() as engine:
        processor = processor_of(settings("before"), host="a", log=logger(), engine=engine)
        await processor.start()
        await processor.stop()
    said: list[str] = []
    assert await run_probe(settings("before"), said.append)
    assert not await run_probe(settings("after"), said.append)
    refused = [line for line in said if "FAILED" in line]
    assert len(refused) == 1
    assert refused[0].startswith("leases: FAILED: the leases of pipeline 'copy' belong to sink")


async def test_a_port_in_use_is_reported(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n')
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said: list[str] = []
        assert not await run_probe(parse(COPY.format(sink="copied", port=port), {}, folder=tmp_path), said.append)
    assert said[-1].startswith(f"api: FAILED: the API cannot be served on 127.0.0.1:{port}: the port is taken")
    assert all("fine" in line for line in said[:-1])


# Questions to Blob Storage


class ScratchContainer(MemoryStore):
    """error: what the first write ends with, after the blob was stored; None: Ctrl-C comes before its answer."""

    place = "leases in container 'leases' of bank.blob.core.windows.net"

    def __init__(self, error: StoreError | None) -> None:
        super().__init__()
        self.error = error
        self.listed = 0

    def make(self, *_: object, **__: object) -> ScratchContainer:
        return self

    async def create(self, id: str, body: str) -> str:
        etag = await super().create(id, body)
        if self.error is not None:
            raise self.error
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()
        return etag

    async def list(self, prefix: str):  # type: ignore[no-untyped-def]
        self.listed += 1
        return await super().list(prefix)

    async def documents(self) -> list[str]:
        return [each.id for each in await super().list("")]


async def ask_blobs(container: ScratchContainer) -> list[str]:
    said: list[str] = []
    async with asyncio.timeout(PATIENCE_S):
        await ask_services(Targets(blobs=container), ServiceOptions(creates=True), said.append)  # type: ignore[arg-type]
    return said


async def test_a_blob_that_was_stored_before_ctrl_c_is_removed() -> None:
    container = ScratchContainer(None)
    said = await ask_blobs(container)
    assert said[-1] == "interrupted; nothing is left behind but events in hubs"
    assert await container.documents() == []


@pytest.mark.parametrize(
    ("error", "looks_for_blobs"), [(StoreAmbiguous("the answer was lost"), True), (StoreUnavailable("refused"), False)]
)
async def test_blobs_are_removed_if_the_first_may_have_been_stored(error: StoreError, looks_for_blobs: bool) -> None:
    container = ScratchContainer(error)
    said = await ask_blobs(container)
    assert "FAILED" in said[-1]
    assert (container.listed > 0) == looks_for_blobs
