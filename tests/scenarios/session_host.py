"""A host with a session: python -m scenarios.session_host FILE does as `leasehold run FILE`, with sessions' defaults."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import replace
from pathlib import Path

from leases.timing import SessionTiming
from service.cli.run import run
from service.config.load import load
from service.processor import Processor
from service.telemetry import logs
from service.wiring.build import pipelines_of, store_of


async def processed(file: Path) -> None:
    settings = load(file, os.environ)
    name = settings.host.name
    assert name is not None
    logs.configure(settings.log, name)
    pipelines = pipelines_of(settings)
    processor = Processor(
        pipelines,
        store_of(settings, pipelines),
        host=name,
        timing=replace(settings.leases.timing, session=SessionTiming()),
        log=logs.logger(),
    )
    await run(processor, settings.api, until_idle=False, log=logs.logger())


if __name__ == "__main__":
    asyncio.run(processed(Path(sys.argv[1])))
