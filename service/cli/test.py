"""`leasehold test`: run the cases of a configuration, each through its pipeline, and with --kill in hosts that die."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING

import click

from leasehold.service.cli.common import (
    FAILED,
    FILE,
    USAGE,
    PathName,
    done,
    fail,
    importing,
    pipeline_in,
    unread_is_fine,
)
from leasehold.service.texts import counted, redacted

if TYPE_CHECKING:
    from leasehold.service.cases.killing import Kills
    from leasehold.service.cases.model import CaseFile, PlacedCase
    from leasehold.service.cases.scratch import Databases
    from leasehold.service.config.settings import Settings

DSN = "LEASEHOLD_TEST_DSN"
_NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseVerdict:
    placed: PlacedCase
    problems: Sequence[str]
    took_s: float


@click.command("test")
@FILE
@click.argument("cases", nargs=-1, type=PathName(path_type=Path, dir_okay=False))
@click.option("--pipeline", help="Only the cases of this one.")
@click.option("--kill", is_flag=True, help="Also kill hosts at every crash point, and compare what they leave behind.")
@click.option("--seed", type=int, default=1, show_default=True, help="With --kill: the seed for where events are cut.")
@click.option(
    "--dsn",
    envvar=DSN,
    help=f"With --kill: a PostgreSQL for scratch databases. By default an embedded one. Also as {DSN}.",
)
@click.option("--master", help="Run Spark at this master, like local[2], instead of the configured one.")
@click.option("--junit", type=PathName(path_type=Path, dir_okay=False), help="Also write the results to this file.")
def run_tests(
    file: Path,
    cases: tuple[Path, ...],
    pipeline: str | None,
    kill: bool,
    seed: int,
    dsn: str | None,
    master: str | None,
    junit: Path | None,
) -> None:
    """Run the cases of FILE: events through its pipelines, into memory. By default they are in the file next to it that ends with
    .cases.yaml.

    Feeds, sinks and lease stores are not used, and their secrets need not be set. With --kill, output goes into scratch
    databases and to your handlers.
    """
    from leasehold.service.cases.model import QUICK_JAVA

    settings, chosen = _chosen(file, cases, pipeline, kill)
    if master is not None:
        settings = settings.model_copy(
            update={"spark": settings.spark.model_copy(update={"master": master, "remote": None})}
        )

    os.environ.setdefault(*QUICK_JAVA)

    async def work() -> list[CaseVerdict]:
        with settings.starting_spark() as engine:
            if any(each.needs_spark for each in settings.pipelines):
                _say(f"Spark ({engine.place}) takes some seconds to start")
            with importing():
                from leasehold.service.cases.killing import Kills, check_case
                from leasehold.service.cases.running import open_workbench
            from leasehold.common.clock import BootClock

            clock, found = BootClock(), []
            async with open_databases(dsn) as databases, open_workbench(settings, engine) as bench:
                kills = Kills(databases=databases, seed=seed, report=_say) if kill else None
                for placed in chosen:
                    began = clock.monotonic()
                    problems = await check_case(bench, placed, _about(placed, kills))
                    verdict = CaseVerdict(placed=placed, problems=problems, took_s=clock.monotonic() - began)
                    found.append(verdict)
                    with unread_is_fine():
                        click.echo(_verdict_line(verdict))
            return found

    verdicts = done(work())
    if junit is not None:
        _write_junit(junit, verdicts)
    failed = sum(bool(each.problems) for each in verdicts)
    with unread_is_fine():
        click.echo(f"{counted(len(verdicts), 'case')}: {len(verdicts) - failed} passed, {failed} failed")
    sys.exit(FAILED if failed else 0)


def _chosen(file: Path, names: Sequence[Path], pipeline: str | None, kill: bool) -> tuple[Settings, list[PlacedCase]]:
    """The settings, with only the pipelines that have cases, and the cases; or fail."""
    from leasehold.pipeline.imports import search_in
    from leasehold.service.cases.model import SUFFIX, cases_beside, load_cases, load_settings
    from leasehold.service.errors import ConfigurationError

    if file.name.endswith(SUFFIX):
        fail(f"{file} has cases: name the configuration first, as in `leasehold test bank.yaml {file}`", code=USAGE)
    beside = cases_beside(file)
    problems: list[str] = []
    placed: list[PlacedCase] = []
    try:
        settings = load_settings(file, os.environ)
        if not names and not beside.exists():
            fail(f"{file} has no cases: write {beside}, or name a file with cases", code=USAGE)
        for path in names or [beside]:
            try:
                placed += _of(file, load_cases(path)).placed(settings)
            except ConfigurationError as error:
                problems.append(str(error))
    except ConfigurationError as error:
        fail(str(error), code=USAGE)
    if pipeline is not None:
        pipeline_in(settings, file, pipeline)
        placed = [each for each in placed if each.pipeline == pipeline]
        if not placed and not problems:
            problems.append(f"the pipeline '{pipeline}' has no cases")
    if kill:
        from leasehold.service.cases.killing import unobservable

        problems += unobservable(placed, settings)
    if problems:
        fail(*problems, code=USAGE)
    search_in(file.absolute().parent)
    used = {each.pipeline for each in placed}
    return settings.model_copy(update={"pipelines": tuple(p for p in settings.pipelines if p.name in used)}), placed


def _of(file: Path, cases: CaseFile) -> CaseFile:
    """Raises ConfigurationError if they are about another configuration."""
    from leasehold.service.errors import ConfigurationError

    if cases.names_config and not (cases.config.exists() and cases.config.samefile(file)):
        raise ConfigurationError(
            str(cases.path), [f"`config` names {cases.config}, and {file} is tested: correct one of them"]
        )
    return cases


def _say(text: str) -> None:
    click.echo(f"  {text}", err=True)


def _about(placed: PlacedCase, kills: Kills | None) -> Kills | None:
    """Kills that report their progress with the name of the case."""
    from dataclasses import replace

    if kills is None:
        return None
    return replace(kills, report=lambda text: _say(f"{placed.case.name}: {text}"))


def _verdict_line(verdict: CaseVerdict) -> str:
    from leasehold.service.cases.judging import report

    placed = verdict.placed
    if verdict.problems:
        return redacted(f"FAILED {report(placed, verdict.problems)}")
    return f"ok     {placed.pipeline}: {placed.case.name} ({verdict.took_s:.1f} s)"


def _write_junit(path: Path, verdicts: Sequence[CaseVerdict]) -> None:
    from xml.etree.ElementTree import Element, ElementTree, SubElement

    failed = str(sum(bool(each.problems) for each in verdicts))
    suite = Element("testsuite", name="leasehold", tests=str(len(verdicts)), failures=failed, errors="0")
    for each in verdicts:
        placed = each.placed
        case = SubElement(
            suite,
            "testcase",
            classname=_xml_text(placed.pipeline),
            name=_xml_text(placed.case.name),
            file=_xml_text(str(placed.path)),
            line=str(placed.line),
            time=f"{each.took_s:.3f}",
        )
        if each.problems:
            failure = SubElement(case, "failure", message=_xml_text(redacted(each.problems[0])))
            failure.text = _xml_text(redacted("\n".join(each.problems)))
    try:
        ElementTree(suite).write(path, encoding="utf-8", xml_declaration=True)
    except OSError as error:
        fail(f"--junit: {path} cannot be written ({error.strerror}): name a file that this user may write")


def _xml_text(text: str) -> str:
    """The text, with escapes for characters that no XML document may contain. Pure."""
    return _NOT_XML.sub(lambda found: json.dumps(found[0])[1:-1], text)


@asynccontextmanager
async def open_databases(dsn: str | None) -> AsyncIterator[Databases]:
    """Scratch databases on this server, or on an embedded one, which starts when the first is needed."""
    async with AsyncExitStack() as stack:
        servers = [] if dsn is None else [dsn]

        @asynccontextmanager
        async def open_one() -> AsyncIterator[str]:
            """Raises StartFailed, SinkRejected."""
            from leasehold.pipeline.connectors.postgres.scratch import open_database

            if not servers:
                servers.append(await _start_server(stack))
            async with open_database(servers[0], f"leasehold_test_{token_hex(6)}") as found:
                yield found

        yield open_one


async def _start_server(stack: AsyncExitStack) -> str:
    """Raises StartFailed."""
    from leasehold.pipeline.connectors.postgres.scratch import switch_fsync_off
    from leasehold.pipeline.spark.master import roomy_shm
    from leasehold.service.cli.demo.postgres import check_place, run_postgres

    place = roomy_shm() or tempfile.gettempdir()  # on a disk, a new database takes ten times as long
    check_place(Path(place))
    directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="leasehold-test-", dir=place))
    os.chmod(directory, 0o755)  # noqa: S103 - for root, another user runs PostgreSQL
    dsn = await stack.enter_async_context(run_postgres(Path(directory, "postgres")))
    await switch_fsync_off(dsn)
    return dsn
