"""A host inside a program: `leasehold.Processor`.

The host has an event loop and a thread of its own, so a program that blocks its own loop loses no lease. Handlers and observers
that are `async def` run on the program's loop.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from inspect import iscoroutinefunction
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar

from leasehold.common.cancellation import await_shielded
from leasehold.service.config.leases import LeaseSettings
from leasehold.service.config.pipeline import Pipeline
from leasehold.service.config.settings import Api, HostSettings, LogSettings, Settings, Spark
from leasehold.service.config.telemetry import TelemetrySettings
from leasehold.service.errors import ConfigurationError
from leasehold.service.notifications import METHODS, Notifications, problems_of

if TYPE_CHECKING:
    from leasehold.leases.store import LeaseStore
    from leasehold.service.group.estimate import Estimate
    from leasehold.service.lag.backlog import Backlog
    from leasehold.service.processor import ProcessorCore

T = TypeVar("T")
NAME = "Processor"
FROM_YAML = "Processor.from_yaml"
LOOP_ENDED = (
    "the event loop that started the processor has ended, and the host ends with it: write `asyncio.run(processor.run())`, or"
    " stop the processor before its loop ends, as `async with processor:` does"
)
CLOSED_S = 1.0
"""How often the host checks whether that loop was closed. With `asyncio.run`, a cancellation shows it earlier."""


class Processor:
    """One host over some pipelines and a lease store: `asyncio.run(Processor(Pipeline(...), leases=...).run())`.

    A processor starts once. Constructing it opens nothing.
    """

    def __init__(
        self,
        *pipelines: Pipeline,
        leases: LeaseSettings | LeaseStore | None = None,
        host: str | HostSettings = "auto",
        spark: Spark | None = None,
        api: Api | None = None,
        on: Notifications | None = None,
        log: LogSettings | None = None,
        telemetry: TelemetrySettings | None = None,
        **unknown: object,
    ) -> None:
        """- `leases`: by default a file `leases.db`.
        - `host`: a name that is unique on these leases; `auto` is the machine's name, with a number if that is in use here.
        - `api`: serves the REST API and the dashboard.
        - `on`: an observer of leases, partitions and batches (`leasehold.Notifications`).
        - `log`: by default, the program's configuration of structlog, or if there is none, level `info` to standard error.

        Raises ConfigurationError with all problems.
        """
        given = {"leases": leases, "spark": spark, "log": log, "telemetry": telemetry}
        sections = {
            "api": Api(enabled=False) if api is None else api,
            **{name: section for name, section in given.items() if section is not None},
        }
        problems = [*_misuse(pipelines, unknown), *_take_host(host, sections), *_problems_of_observer(on)]
        self._begin(_settings(pipelines, sections, problems), on)

    @classmethod
    def from_yaml(
        cls, path: str | Path, *, handlers: Mapping[str, object] | None = None, on: Notifications | None = None
    ) -> Self:
        """A processor from a file of settings. handlers: a function for each value of `handler` in the file; such a value need
        not be importable.

        Raises ConfigurationError.
        """
        from leasehold.pipeline.imports import search_in

        problems = [*_problems_of_path(path), *_problems_of_handlers(handlers), *_problems_of_observer(on)]
        settings, file = _loaded(path, {} if handlers is None else handlers, problems)
        self = cls.__new__(cls)
        self._begin(settings, on)
        search_in(file.absolute().parent)
        return self

    def to_yaml(self) -> str:
        """The settings as a file. Secrets become `${NAME}`. Raises ConfigurationError for what a file cannot express."""
        from leasehold.service.config.written import yaml_of

        return yaml_of(self.settings, os.environ, has_observer=self._on is not None)

    def _begin(self, settings: Settings, on: Notifications | None) -> None:
        self.settings = settings
        self._on = on
        self._host = _HostThread()
        self._life: Future[None] | None = None
        self._ready: Future[None] = Future()
        self._stopping: asyncio.Event | None = None
        self._following: asyncio.Task[None] | None = None
        self._is_asked = False
        """Whether a stop was requested."""
        self._is_orphan = False
        """Whether the program's loop ended before a stop was requested."""
        self._core: ProcessorCore | None = None
        self.port: int | None = None
        """The port of the REST API. None until it listens."""

    def __enter__(self) -> NoReturn:
        raise TypeError("a processor starts and stops in `async with`: write `async with processor:`")

    def __exit__(self, *error: object) -> None: ...

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    async def run(self) -> None:
        """Run the host until Ctrl-C, SIGTERM or `stop`. Raises an error that ends it earlier. Signals work only in the main
        thread."""
        self._check_new()
        with self._heeding_signals():
            try:
                await self.start()
                await self.wait()
            finally:
                await self.stop()

    async def start(self) -> None:
        """Start the host, and return once leases exist and work has begun. Raises StartFailed, GroupMismatch, DuplicateHost. The
        host ends with the event loop that started it."""
        self._check_new()
        program = asyncio.get_running_loop()
        self._life = self._host.begin(lambda: self._live(program))
        self._following = asyncio.create_task(self._follow(self._life), name="leasehold follows its program")
        ready, life = asyncio.wrap_future(self._ready), _on_this_loop(self._life)
        try:
            await asyncio.wait({ready, life}, return_when=asyncio.FIRST_COMPLETED)
            if life.done():
                await life
        except BaseException:
            await self.stop()
            raise

    async def wait(self) -> None:
        """Wait until the host has ended, by an error or by `stop`. Raises the error that ended it."""
        await _outcome_of(self._started())

    async def stop(self) -> None:
        """Stop gracefully, within `host.stop_timeout_s`: leases are released with their positions. `wait` raises what went wrong
        before. In a handler, `stop` returns at once, and the host stops when the handler has returned. A plain `def` handler
        calls `asyncio.run(processor.stop())`. In a thread that a handler has started, `stop` waits for the handler, which must
        not wait for that thread."""
        from leasehold.pipeline.connectors.handler_loop import is_in_call

        if self._life is None:
            return
        self._request_stop()
        if is_in_call():
            return
        with suppress(Exception):
            await _outcome_of(self._life)
        self._host.end()

    async def idle(self) -> Backlog:
        """Wait until the whole group has nothing left to do. `failed` and `held` of the result name partitions that stand still.

        Raises the error that ended the host before.
        """
        life = _on_this_loop(self._started())
        idle = asyncio.ensure_future(self._there(lambda core: core.idle()))
        waiting: set[asyncio.Future[Any]] = {idle, life}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if not idle.done():
            idle.cancel()
            await life
            raise RuntimeError("the processor was stopped before it was idle")
        return await idle

    async def lag(self) -> tuple[Estimate, ...]:
        """How many events and seconds each partition is behind, who owns it, and why it stands still if it does."""
        return await self._there(_estimated)

    async def _there(self, call: Callable[[ProcessorCore], Awaitable[T]]) -> T:
        """Run the call on the host's loop, and return its answer."""
        core = self._core
        if self._started().done():
            raise RuntimeError("this processor has ended: make another one")
        if core is None:
            raise RuntimeError("this processor has not begun to work: await `start` first")

        async def made() -> T:
            return await call(core)

        return await asyncio.wrap_future(self._host.begin(made))

    def _check_new(self) -> None:
        if self._life is not None:
            raise RuntimeError("this processor was started before, and starts once: make another one")

    def _started(self) -> Future[None]:
        if self._life is None:
            raise RuntimeError("this processor was not started: await `start`, or use `async with`")
        return self._life

    async def _follow(self, life: Future[None]) -> None:
        """Runs on the program's loop: at its end, `asyncio.run` cancels the tasks that are left, and then waits for them."""
        ended = _on_this_loop(life)
        try:
            await asyncio.wait({ended})
        except asyncio.CancelledError:
            self._orphan()
            await asyncio.wait({ended})
            self._host.end()
            raise

    async def _watch(self, program: asyncio.AbstractEventLoop) -> None:
        """Runs on the host's loop: a program may also close its own loop without `asyncio.run`."""
        while not program.is_closed():  # noqa: ASYNC110 - a loop gives no signal when it is closed
            await asyncio.sleep(CLOSED_S)
        self._orphan()

    def _orphan(self) -> None:
        self._is_orphan = not self._is_asked
        self._request_stop()

    def _request_stop(self) -> None:
        self._is_asked = True
        self._host.call(self._stop_here)

    def _stop_here(self) -> None:
        if self._stopping is None:
            self._stopping = asyncio.Event()
        self._stopping.set()

    @contextmanager
    def _heeding_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        from leasehold.service.cli.run import stopping

        with stopping(self._request_stop):
            yield

    async def _live(self, program: asyncio.AbstractEventLoop) -> None:
        """The host's life, on its own loop: from the choice of its name to its end."""
        from leasehold.pipeline.connectors.handler_loop import PROGRAM, HandlerLoop
        from leasehold.service.cli.host_name import host_name
        from leasehold.service.cli.run import add_metrics, run_processor, serve_api, wait_until_over
        from leasehold.service.telemetry import logs
        from leasehold.service.wiring.build import processor_of

        settings = self.settings
        if self._stopping is None:
            self._stopping = asyncio.Event()
        PROGRAM.set(program)
        with ExitStack() as held:
            held.callback(asyncio.create_task(self._watch(program), name="program").cancel)
            name = held.enter_context(host_name(settings.host, settings.leases))
            if "log" in settings.model_fields_set:
                logs.configure(settings.log, name)
            log = logs.default_logger(name)
            engine = held.enter_context(settings.starting_spark())
            on = None if self._on is None else _heard_in(self._on, HandlerLoop(program))
            core = processor_of(settings, host=name, log=log, engine=engine, on=on)
            add_metrics(core, settings, host=name, log=log)
            async with serve_api(core, settings.api, log, self._listen), run_processor(core, self._stopping):
                self._core = core
                self._ready.set_result(None)
                await wait_until_over(self._stopping, core, until_idle=False)
                if self._is_orphan:
                    log.error(LOOP_ENDED)
        if self._is_orphan:
            raise RuntimeError(LOOP_ENDED)

    def _listen(self, port: int) -> None:
        self.port = port


def _settings(pipelines: tuple[object, ...], sections: Mapping[str, Any], problems: list[str]) -> Settings:
    """problems: those found in the arguments so far. Raises ConfigurationError, with these too."""
    settings, good = None, {each.name: each for each in pipelines if isinstance(each, Pipeline)}
    try:
        settings = Settings(pipelines=tuple(good.values()), **sections)
    except ConfigurationError as error:
        problems += (each for each in error.problems if good or not each.startswith("`pipelines`"))
    if problems or settings is None:
        raise ConfigurationError(NAME, problems)
    return settings


def _loaded(path: Any, handlers: Any, problems: list[str]) -> tuple[Settings, Path]:
    """problems: those found in the arguments so far. Raises ConfigurationError, with these and those of the file."""
    from leasehold.service.config.load import load

    if not isinstance(path, str | Path):
        raise ConfigurationError(FROM_YAML, problems)
    try:
        settings = load(Path(path), os.environ, handlers=handlers if isinstance(handlers, Mapping) else {})
    except ConfigurationError as error:
        raise (ConfigurationError(str(path), [*problems, *error.problems]) if problems else error) from None
    if problems:
        raise ConfigurationError(FROM_YAML, problems)
    return settings, Path(path)


def _problems_of_path(path: object) -> Iterator[str]:
    if not isinstance(path, str | Path):
        yield f"`path` is {_what(path)}, and must be the path of a file of settings, like 'orders.yaml'"


def _problems_of_handlers(handlers: object) -> Iterator[str]:
    if handlers is None or isinstance(handlers, Mapping):
        return
    known = handlers[0] if isinstance(handlers, list | tuple) and handlers else handlers
    name = getattr(known, "__name__", "on_changes")
    yield (
        f"`handlers` is {_what(handlers)}, and must be a mapping from the file's values of `handler` to functions, like"
        f' {{"module:{name}": {name}}}'
    )


def _problems_of_observer(on: object) -> Iterator[str]:
    if on is not None:
        yield from (f"`on`: {each}" for each in problems_of(on))


def _take_host(host: object, sections: dict[str, Any]) -> Iterator[str]:
    if isinstance(host, HostSettings):
        sections["host"] = host
    elif not isinstance(host, str):
        yield f"`host` is {_what(host)}, and must be a name, like 'pod-1', or HostSettings(name='pod-1')"
    elif host != "auto":
        try:
            sections["host"] = HostSettings(name=host)
        except ConfigurationError as error:
            yield from (each.replace("`name`", "`host`", 1) for each in error.problems)


def _what(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"of type {type(value).__name__}"


def _misuse(pipelines: tuple[object, ...], unknown: Mapping[str, object]) -> Iterator[str]:
    hints = {
        "timing": "intervals belong to `leases`, like SqliteLeases(duration_s=30)",
        "store": "it is called `leases`",
        "pipelines": "they come first, without a name: Processor(Pipeline(...), leases=...)",
    }
    for name in unknown:
        yield f"`{name}` is not a setting: {hints.get(name, 'known here are leases, host, spark, api, on, log, telemetry')}"
    if not pipelines and "pipelines" not in unknown:
        yield "needs a pipeline: Processor(Pipeline(...), leases=...)"
    names = set()
    for each in pipelines:
        if isinstance(each, list | tuple):
            yield f"takes pipelines, not a {type(each).__name__} of them: write Processor(*pipelines, leases=...)"
        elif not isinstance(each, Pipeline):
            yield f"takes pipelines, and got an argument that is {_what(each)}: write Processor(Pipeline(...), leases=...)"
        elif each.name in names:
            yield f"two pipelines are named '{each.name}': every name is used once"
        else:
            names.add(each.name)


class _HostThread:
    """An event loop in a thread, which starts with the first call."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def begin(self, work: Callable[[], Awaitable[T]]) -> Future[T]:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._run, args=(self._loop,), name="leasehold host", daemon=True).start()

        async def made() -> T:
            return await work()

        return asyncio.run_coroutine_threadsafe(made(), self._loop)

    def call(self, function: Callable[[], object]) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(function)

    def end(self) -> None:
        if self._loop is not None:
            self.call(self._loop.stop)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        loop.run_forever()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


async def _estimated(core: ProcessorCore) -> tuple[Estimate, ...]:
    from leasehold.service.group.estimate import estimates

    lag = await core.view.read_lag(0.0)
    return tuple(estimates(lag, *await core.view.read_standstills()))


async def _outcome_of(future: Future[None]) -> None:
    """Await the future without cancelling it."""
    await await_shielded(_on_this_loop(future))


def _on_this_loop(life: Future[None]) -> asyncio.Future[None]:
    """The future for this loop. Its error may stay unretrieved: `wait` raises what ended the host."""
    wrapped = asyncio.wrap_future(life)
    wrapped.add_done_callback(lambda done: done.cancelled() or done.exception())
    return wrapped


def _heard_in(on: Notifications, loop: Any) -> Notifications:
    """The same observer; its `async def` methods run on that loop."""
    from leasehold.pipeline.connectors.handler_loop import call_plainly

    def hearing(method: Any) -> Callable[..., Any]:
        if not iscoroutinefunction(method):
            return lambda self, event: call_plainly(method, event)

        async def hear(self: Notifications, event: object) -> None:
            await loop.run(f"{type(on).__qualname__}.{method.__name__}", lambda: method(event))

        return hear

    own = {
        name: hearing(getattr(on, name))
        for name in METHODS.values()
        if getattr(getattr(on, name), "__func__", None) is not vars(Notifications)[name]
    }
    heard: Notifications = type(type(on).__name__, (Notifications,), own)()
    return heard
