"""A host from its settings to its exit code: what `leasehold run` does once it has read a file.

What only a running host needs is imported while Spark starts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from leasehold.service.cli.common import done, fail, importing, log_of, named, unread_is_fine

if TYPE_CHECKING:
    from leasehold.service.config.settings import Settings
    from leasehold.service.lag.backlog import Backlog
    from leasehold.service.processor import ProcessorCore


def run_host(settings: Settings, *, until_idle: bool) -> None:
    """Run a host until Ctrl-C or SIGTERM, or (`until_idle`) until the whole group has nothing left to do.

    Ends the process with a message and an exit code if it fails, or if a partition cannot continue.
    """
    with named(settings) as name:

        async def work() -> tuple[ProcessorCore, Backlog | None]:
            with settings.starting_spark() as engine:  # takes longer to start than the imports within
                with importing():
                    from leasehold.service.cli.run import add_metrics
                    from leasehold.service.cli.run import run as run_processor
                    from leasehold.service.wiring.build import processor_of

                    log = log_of(settings, name)
                    processor = processor_of(settings, host=name, log=log, engine=engine)  # imports SDKs
                    add_metrics(processor, settings, host=name, log=log)
                return processor, await run_processor(processor, settings.api, until_idle=until_idle, log=log)

        processor, last = done(work())
    if until_idle and settings.log.format == "text":
        _print_summary(processor, last)
    if last is not None and (last.failed or last.held):
        from leasehold.service.cli.tables import stopped

        fail(
            *(stopped(pipeline, partition, why) for (pipeline, partition), why in sorted(last.failed.items())),
            *(
                f"pipeline '{p}', partition '{part}' is unfinished: {why}"
                for (p, part), why in sorted(last.held.items())
            ),
        )


def _print_summary(processor: ProcessorCore, last: Backlog | None) -> None:
    """For people. With a JSON log, only the log has the summary, because a program may read both from one stream."""
    from leasehold.service.stats import summary_lines

    unfinished = {name for name, _ in (*last.failed, *last.held)} if last is not None else {*processor.host.pipelines}
    lines = summary_lines(
        processor.summaries,
        finished=processor.host.pipelines.keys() - unfinished,
        is_alone=not processor.host.balancer.has_met_others,
    )
    with unread_is_fine():  # the exit code does not depend on whether this is read
        for line in lines:
            click.echo(line)
