"""The scratch sink of one run of a case, and what the run leaves there."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import cast

from pydantic import SecretStr

from leasehold.leases.timing import derived_timing
from leasehold.pipeline.connectors.handler_loop import PROGRAM
from leasehold.pipeline.connectors.memory import MemoryDestination, MemoryOutputSink
from leasehold.pipeline.imports import imported
from leasehold.pipeline.sink import Sink
from leasehold.service.cases.model import Case
from leasehold.service.cases.running import PreparedPipeline
from leasehold.service.cases.values import shown
from leasehold.service.config.custom import PythonSink
from leasehold.service.config.pipeline import Pipeline
from leasehold.service.config.postgres import PostgresSink

TIMING = derived_timing(1.0)
"""A second host takes the leases of a silent one within two seconds."""

State = Mapping[str, list[str]]
"""What a run leaves behind: name -> rows, as texts."""
Databases = Callable[[], AbstractAsyncContextManager[str]]
"""Creates a database for one run, and yields its DSN."""


class RunFailed(Exception):
    """A run did not end as it should."""


class ScratchTables:
    """A sink in memory, with positions."""

    keeps_letters = False

    def __init__(self, ignore: Collection[str] = ()) -> None:
        """ignore: columns that are not compared."""
        self._ignore = ignore
        self._destination = MemoryDestination()

    def make_sink(self) -> Sink:
        return MemoryOutputSink(self._destination)

    async def read(self) -> State:
        found: dict[str, list[str]] = {}
        for commit in self._destination.commits:
            rows = found.setdefault(f"partition {commit.claim.partition}", [])
            table = commit.output.table
            rows += map(shown, table.drop_columns([n for n in table.column_names if n in self._ignore]).to_pylist())
        return {name: rows if _is_ordered(self._destination) else sorted(rows) for name, rows in found.items()}


def _is_ordered(destination: MemoryDestination) -> bool:
    return all("sequence" in commit.output.table.schema.names for commit in destination.commits)


class PostgresScratch(ScratchTables):
    keeps_letters = True

    def __init__(self, settings: PostgresSink, dsn: str, case: Case, *, letters: bool) -> None:
        own = {"dsn": SecretStr(dsn), "identity": None, "executors_env": None}
        self._settings = settings.model_copy(update=own)
        self._dsn = dsn
        self._query, self._ignore = case.query, case.ignore
        self._letters = letters

    def make_sink(self) -> Sink:
        return self._settings.make(TIMING, letters=self._letters)

    async def read(self) -> State:
        from leasehold.pipeline.connectors.postgres.scratch import read_query, read_tables

        if self._query is not None:
            return {"the rows of `query`": await read_query(self._dsn, self._query)}
        return await read_tables(self._dsn, self._ignore)


class HandlerScratch(ScratchTables):
    def __init__(self, settings: Pipeline, state: str) -> None:
        self._settings = settings
        self._state = state

    def make_sink(self) -> Sink:
        """Its handler runs on this loop, where a crash point ends the process that reaches it."""
        before = PROGRAM.set(asyncio.get_running_loop())
        try:
            return self._settings.make_sink(TIMING)
        finally:
            PROGRAM.reset(before)

    async def read(self) -> State:
        found = await call(self._state)
        rows = found if isinstance(found, list | tuple) else [found]
        return {f"`{self._state}`": [shown(row) for row in rows]}


async def call(path: str) -> object:
    """Call a user's function. Raises NotImportable, RunFailed."""
    function = cast(Callable[[], object], imported(path))
    try:
        found = function()
        return await found if inspect.isawaitable(found) else found
    except Exception as error:
        raise RunFailed(f"'{path}' fails with {type(error).__name__}: {error}") from error


@asynccontextmanager
async def open_scratch(
    prepared: PreparedPipeline, case: Case, databases: Databases
) -> AsyncGenerator[ScratchTables, None]:
    """The scratch sink of one run. Raises SinkRejected, NotImportable, RunFailed."""
    sink = prepared.settings.sink
    if isinstance(sink, PostgresSink):
        async with databases() as dsn:
            yield PostgresScratch(sink, dsn, case, letters=prepared.policy is not None)
    elif isinstance(sink, PythonSink):
        assert case.state is not None, "checked before"
        assert case.reset is not None, "checked before"
        await call(case.reset)
        yield HandlerScratch(prepared.settings, case.state)
    else:
        yield ScratchTables(case.ignore)
