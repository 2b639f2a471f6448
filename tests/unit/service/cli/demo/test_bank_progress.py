"""What the demo shows: where each pipeline stands, what was done in earlier runs included."""

from __future__ import annotations

import io
from pathlib import Path

from patience import until_async
from rich.console import Console

from leasehold.leases.stores.sqlite import SqliteStore
from leasehold.leases.timing import Timing
from leasehold.pipeline.connectors.files.feed import FilesChangeFeed
from leasehold.pipeline.connectors.log import LogChangeFeed, LogOutputSink
from leasehold.service.cli.demo.view import DemoView, count_done
from leasehold.service.pipeline import PipelineParts
from leasehold.service.processor import ProcessorCore


def processor_in(folder: Path) -> ProcessorCore:
    """Copies words into a log, and that log into another."""
    pipelines = [
        PipelineParts(
            name="copy", feed=FilesChangeFeed(str(folder / "words-*.jsonl")), sink=LogOutputSink(folder / "words")
        ),
        PipelineParts(name="again", feed=LogChangeFeed(folder / "words"), sink=LogOutputSink(folder / "words-again")),
    ]
    return ProcessorCore(pipelines, SqliteStore(folder / "leases.db"), host="demo", timing=Timing(balance_s=0.5))


def write(folder: Path, *counts: int) -> None:
    for number, count in enumerate(counts):
        (folder / f"words-{number}.jsonl").write_text("".join(f'{{"word": "{n}"}}\n' for n in range(count)))


async def run(folder: Path) -> dict[str, int]:
    """Until it is idle; what had been done before."""
    processor = processor_in(folder)
    before = await count_done(processor)
    await processor.start()
    await processor.idle()
    await processor.stop()
    return before


async def first_line(folder: Path, total: int) -> str:
    processor, text = processor_in(folder), io.StringIO()
    screen = Console(file=text)
    async with DemoView(processor, total, await count_done(processor), screen).draw():
        await until_async(text.getvalue)
    await processor.stop()
    return text.getvalue().splitlines()[0]


async def test_the_first_run_begins_at_nothing_and_the_next_where_that_one_ended(tmp_path: Path) -> None:
    write(tmp_path, 5, 3)
    assert await run(tmp_path) == {"copy": 0, "again": 0}
    write(tmp_path, 6, 3, 2)
    assert await run(tmp_path) == {"copy": 8, "again": 8}
    assert await first_line(tmp_path, 20) == "copy 11/20, again 11/20"
