"""What `check --probe` says of what cannot even be made."""

from __future__ import annotations

import socket
from pathlib import Path

from service.cli.probe import run_probe
from service.config.load import parse
from service.config.settings import Settings
from service.telemetry.logs import logger
from service.wiring.build import processor_of

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
