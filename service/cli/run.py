"""`leasehold run`: a processor, its REST API, and an orderly end.

The first SIGTERM or SIGINT asks for a graceful stop, the second ends the process at once.
"""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress

import pyarrow as pa
from structlog.typing import FilteringBoundLogger as Log

from leasehold.leases.errors import StoreError
from leasehold.service.api import create_app
from leasehold.service.api.app import METRICS_LAG_AGE_MAX_S
from leasehold.service.api.auth import Access, Tokens
from leasehold.service.api.masking import Mask
from leasehold.service.api.metrics import Metrics
from leasehold.service.api.server import serve
from leasehold.service.config.settings import Api, Settings
from leasehold.service.lag.backlog import Backlog
from leasehold.service.processor import ProcessorCore
from leasehold.service.telemetry.figures import Figure, figure_of, figures_of
from leasehold.service.telemetry.signals import metrics_of

# Arrow's memory in a host: an allocator that gives back what was freed.
#
# Its default, mimalloc, keeps it: in a host that drains a log, as much as a third of all its memory.


ALLOCATOR = "jemalloc"
CHOSEN_BY_USER = "ARROW_DEFAULT_MEMORY_POOL"


def use_thrifty_allocator(environment: Mapping[str, str] = os.environ) -> None:
    """For the whole process, if this build of Arrow has it and the environment names no other."""
    if ALLOCATOR in pa.supported_memory_backends() and CHOSEN_BY_USER not in environment:
        pa.set_memory_pool(pa.jemalloc_memory_pool())


OPEN_FILES = 65_536
"""Enough for any host. An embedded log has three for each partition, and many systems let a process begin with 1,024."""


def allow_open_files() -> None:
    """For the whole process, OPEN_FILES or as many as the system permits; never fewer than before."""
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if most == resource.RLIM_INFINITY else min(OPEN_FILES, most)
    if limit != resource.RLIM_INFINITY and limit < wanted:
        with suppress(ValueError, OSError):  # macOS may refuse a limit that it reports
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


COLLECTION_S_MAX = 0.02
"""What survives a full collection of garbage that took longer is frozen."""
THAW_S = 3600.0
"""After this, the next full collection looks at frozen objects again. Until then, garbage in cycles among them stays."""


@contextmanager
def short_collections(clock: Callable[[], float]) -> Iterator[None]:
    """Keeps full collections of garbage short, for the whole process: they look at frozen objects only once an hour.

    A host with a thousand partitions has a million objects that live for ever. A collection that looks at all of them stops
    every thread for a fifth of a second, and happens about once a minute.
    """
    began = thawed_at = clock()

    def freeze_survivors(phase: str, info: Mapping[str, int]) -> None:
        nonlocal began, thawed_at
        if info["generation"] < 2:
            return
        if phase == "start":
            began = clock()
            if began - thawed_at >= THAW_S:
                thawed_at = began
                gc.unfreeze()
        elif clock() - began > COLLECTION_S_MAX:
            gc.freeze()

    gc.callbacks.append(freeze_survivors)
    try:
        yield
    finally:
        gc.callbacks.remove(freeze_survivors)
        gc.unfreeze()


SIGNALS = (signal.SIGTERM, signal.SIGINT)


async def run(processor: ProcessorCore, api: Api, *, until_idle: bool, log: Log) -> Backlog | None:
    """Run until a signal, or (`until_idle`) until the whole group has nothing left to do. Then return the last backlog.

    Raises StartFailed, GroupMismatch, DuplicateHost.
    """
    stop = asyncio.Event()

    def log_stop() -> None:
        log.info("stopping: a second signal ends the process at once")
        stop.set()

    with stopping(log_stop):
        return await process(processor, api, stop, until_idle=until_idle, log=log)


async def process(
    processor: ProcessorCore,
    api: Api,
    stop: asyncio.Event,
    *,
    until_idle: bool,
    log: Log,
    listening: Callable[[int], None] = lambda port: None,
) -> Backlog | None:
    """`run` for a caller that sets `stop`. listening: called with the port of the API once it answers."""
    use_thrifty_allocator()
    allow_open_files()
    with short_collections(asyncio.get_running_loop().time):
        async with serve_api(processor, api, log, listening), run_processor(processor, stop):
            if stop.is_set():
                return None
            return await wait_until_over(stop, processor, until_idle=until_idle)


async def wait_until_over(stop: asyncio.Event, processor: ProcessorCore, *, until_idle: bool) -> Backlog | None:
    stopped = asyncio.create_task(stop.wait(), name="stop")
    ended = asyncio.create_task(processor.wait_until_ended(), name="ended")
    waiting: set[asyncio.Task[object]] = {stopped, ended}
    idle = asyncio.create_task(processor.idle(), name="idle") if until_idle else None
    if idle is not None:
        waiting.add(idle)
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            await ended
        return idle.result() if idle is not None and idle.done() else None
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


@asynccontextmanager
async def run_processor(processor: ProcessorCore, stop: asyncio.Event) -> AsyncIterator[None]:
    """Start the processor, and stop it at the end; a stop during its start ends the start."""
    starting = asyncio.create_task(processor.start(), name="start")
    stopped = asyncio.create_task(stop.wait(), name="stop")
    try:
        await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            await starting
        yield
    finally:
        stopped.cancel()
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await processor.stop()


@asynccontextmanager
async def serve_api(
    processor: ProcessorCore, api: Api, log: Log, listening: Callable[[int], None]
) -> AsyncIterator[None]:
    """The REST API, from before the first lease to after the last."""
    if not api.enabled:
        yield
        return
    tap_mask = None if api.tap_mask is None else Mask(api.tap_mask)
    app = create_app(
        processor.view,
        access_of(api),
        log=log,
        metrics_partitions=api.metrics_partitions,
        tap_mask=tap_mask,
    )
    async with serve(app, host=api.host, port=api.port, log=log) as port:
        listening(port)
        yield


def add_metrics(processor: ProcessorCore, settings: Settings, *, host: str, log: Log) -> None:
    """If it is configured, send what /metrics answers by OTLP, too. Raises StartFailed."""
    metrics = Metrics(processor.host, partitions_max=settings.api.metrics_partitions)

    async def read() -> list[Figure]:
        try:
            metrics.lag = await processor.view.read_lag(METRICS_LAG_AGE_MAX_S)
        except StoreError:
            metrics.lag = None
        return [*map(figure_of, metrics.families()), *figures_of(processor.host)]

    exporter = metrics_of(settings.telemetry, os.environ, host=host, log=log, read=read)
    if exporter is not None:
        processor.add_exporter(exporter)


def access_of(api: Api) -> Access:
    """Raises StartFailed."""
    return Access(
        readers=None if api.readers is None else Tokens(api.readers),
        operators=None if api.operators is None else Tokens(api.operators, "api.operators"),
    )


SENT_TWICE_S = 0.5
"""The same signal within this time is the first one again: `timeout` and others send it to a process, and to its group."""


@contextmanager
def stopping(stop: Callable[[], None]) -> Iterator[None]:
    """The first signal calls `stop`; a second one ends the process at once, without releasing leases."""
    loop = asyncio.get_running_loop()
    first: tuple[int, float] | None = None

    def on_signal(number: int) -> None:
        nonlocal first
        if first is None:
            first = number, loop.time()
            stop()
        elif number != first[0] or loop.time() - first[1] > SENT_TWICE_S:
            os._exit(128 + number)

    for number in SIGNALS:
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
