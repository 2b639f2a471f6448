"""What `check --probe` says of what cannot even be made."""

from __future__ import annotations

from pathlib import Path

from service.config import parse
from service.probe import probed

SETTINGS = """
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
    assert not await probed(parse(SETTINGS, {}, folder=tmp_path), said.append)
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
