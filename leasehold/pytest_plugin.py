"""The pytest plug-in: each case in a file `*.cases.yaml` is a test (docs/testing.md).

It imports only pytest until pytest collects such a file.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from leasehold.pipeline.spark.engine import SparkEngine
    from leasehold.service.cases.killing import Kills
    from leasehold.service.cases.model import PlacedCase
    from leasehold.service.cases.running import Workbench
    from leasehold.service.cases.scratch import Databases
    from leasehold.service.config.settings import Settings, Spark

SUFFIX = ".cases.yaml"


class CaseFailed(Exception):
    """Its text is the report for people."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("leasehold", "cases of Leasehold's pipelines (*.cases.yaml)")
    group.addoption(
        "--leasehold-kill", action="store_true", help="Also kill hosts at every crash point, for each case."
    )
    group.addoption("--leasehold-master", metavar="URL", help="Run Spark at this master, like local[2].")


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    if not file_path.name.endswith(SUFFIX):
        return None
    return CaseFileCollector.from_parent(parent, path=file_path)


def pytest_unconfigure(config: pytest.Config) -> None:
    if (workshop := config.stash.get(_WORKSHOP, None)) is not None:
        workshop.close()


class CaseFileCollector(pytest.File):
    def collect(self) -> Iterator[pytest.Item]:
        from leasehold.service.cases.model import load_cases, load_settings
        from leasehold.service.errors import ConfigurationError

        try:
            cases = load_cases(self.path)
            settings = load_settings(cases.config, os.environ)
            placed = cases.placed(settings)
        except ConfigurationError as error:
            raise self.CollectError(str(error)) from None
        for each in placed:
            item = CaseItem.from_parent(self, name=each.case.name)
            item.placed, item.settings, item.folder = each, settings, cases.config.absolute().parent
            yield item


class CaseItem(pytest.Item):
    placed: PlacedCase
    settings: Settings
    folder: Path

    def runtest(self) -> None:
        workshop = self.config.stash.setdefault(_WORKSHOP, _Workshop(self.config))
        from leasehold.pipeline.errors import PipelineError
        from leasehold.service.errors import ServiceError

        try:
            problems = workshop.check(self)
        except (PipelineError, ServiceError) as error:  # Spark or PostgreSQL does not start
            problems = [str(error)]
        if problems:
            raise CaseFailed("\n".join(problems))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: object = None) -> str:
        from leasehold.service.texts import redacted

        if isinstance(excinfo.value, CaseFailed):
            return redacted(f"{self.path.name}:{self.placed.line}: pipeline {self.placed.pipeline}\n{excinfo.value}")
        return str(super().repr_failure(excinfo))

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, self.placed.line - 1, f"case: {self.name}"


class _Workshop:
    """One event loop for all cases of a session, and one Spark for successive cases with the same settings."""

    def __init__(self, config: pytest.Config) -> None:
        self._kills = bool(config.getoption("--leasehold-kill"))
        self._master: str | None = config.getoption("--leasehold-master")
        self._runner = asyncio.Runner()
        self._stack = AsyncExitStack()
        self._benches: dict[Path, Workbench] = {}
        self._engine: tuple[Spark, SparkEngine] | None = None
        self._folder: Path | None = None
        self._databases: Databases | None = None

    def check(self, item: CaseItem) -> list[str]:
        return self._runner.run(self._check(item))

    def close(self) -> None:
        self._runner.run(self._close())
        self._runner.close()

    async def _check(self, item: CaseItem) -> list[str]:
        from leasehold.service.cases.killing import Kills, check_case, unobservable
        from leasehold.service.cli.test import DSN, open_databases

        if self._kills and (why := list(unobservable([item.placed], item.settings))):
            return why
        if why := list(_hidden_modules(item)):
            return why
        bench = await self._bench(item)
        kills: Kills | None = None
        if self._kills:
            if self._databases is None:
                self._databases = await self._stack.enter_async_context(open_databases(os.environ.get(DSN)))
            kills = Kills(databases=self._databases)
        return await check_case(bench, item.placed, kills)

    async def _bench(self, item: CaseItem) -> Workbench:
        from leasehold.pipeline.imports import search_in
        from leasehold.service.cases.model import QUICK_JAVA
        from leasehold.service.cases.running import Workbench

        spark = item.settings.spark
        if self._master is not None:
            spark = spark.model_copy(update={"master": self._master, "remote": None})
        if self._engine is None or self._engine[0] != spark:
            await self._stop_spark()
            os.environ.setdefault(*QUICK_JAVA)
            self._engine = spark, spark.make()
            self._engine[1].use()  # so that it lasts until it is released, whatever the transforms of a file do
        if item.folder != self._folder:
            search_in(item.folder)
            self._folder = item.folder
        if item.path not in self._benches:
            self._benches[item.path] = Workbench(item.settings, self._engine[1])
        return self._benches[item.path]

    async def _stop_spark(self) -> None:
        for bench in self._benches.values():
            await bench.close()
        self._benches.clear()
        if self._engine is not None:
            await self._engine[1].release()
            self._engine = None

    async def _close(self) -> None:
        await self._stop_spark()
        await self._stack.aclose()


def _hidden_modules(item: CaseItem) -> Iterator[str]:
    """Problems of modules that the case would not get, because a process imports only one module of each name."""
    from leasehold.service.cases.modules import shadowed

    (settings,) = (each for each in item.settings.pipelines if each.name == item.placed.pipeline)
    case = item.placed.case
    named = (settings.function, getattr(settings.sink, "handler", None), case.state, case.reset)
    for name, (loaded, own) in sorted(shadowed(item.folder, filter(None, named)).items()):
        yield (
            f"the module '{name}' of this case is {own}, but an earlier case or test has imported {loaded}:"
            f" rename one of them, or run pytest for {item.folder} alone"
        )


_WORKSHOP = pytest.StashKey[_Workshop]()
