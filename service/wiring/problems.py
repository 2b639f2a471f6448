"""Problems of what settings name as `module:attribute`, for `leasehold check`."""

from __future__ import annotations

from leasehold.pipeline.errors import NotImportable, SinkRejected
from leasehold.pipeline.imports import require_module
from leasehold.service.config.plugins import FEED, SINK, STORE, check_part
from leasehold.service.config.section import SinkSettings
from leasehold.service.config.settings import Settings
from leasehold.service.errors import StartFailed
from leasehold.service.wiring.build import notifications_of


async def find_problems(settings: Settings) -> list[str]:
    """Why parts cannot be imported or created."""
    problems = [await check_part(STORE, settings.leases, "leases")]
    for each in settings.pipelines:
        where = f"pipeline '{each.name}'"
        problems += [
            await check_part(FEED, each.feed, where),
            _problem_of_function(each.function, where),
            await check_part(SINK, each.sink, where),
            _problem_of_handler(each.sink, where),
        ]
    problems.append(_problem_of_notifications(settings))
    return [problem for problem in problems if problem is not None]


def _problem_of_notifications(settings: Settings) -> str | None:
    try:
        notifications_of(settings)
    except StartFailed as error:
        return str(error)
    return None


def _problem_of_function(function: str | None, where: str) -> str | None:
    """The function's module has to exist. Only Spark can check the rest: the module may need a running Spark at its import."""
    try:
        if function is not None:
            require_module(function)
    except NotImportable as error:
        return f"{where}: `function` {error}"
    return None


def _problem_of_handler(sink: SinkSettings, where: str) -> str | None:
    try:
        sink.import_code()
    except SinkRejected as error:
        return f"{where}: {error}"
    return None
