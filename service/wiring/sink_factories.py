"""Settings -> what takes output and dead letters alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leases.timing import Timing
from pipeline.sink import Sink
from service.config.sinks import EventHubsSinkSettings, FilesSinkSettings

if TYPE_CHECKING:
    from pipeline.connectors.files.sink.storage import Place
    from pipeline.connectors.postgres import Timeouts


def eventhubs_sink_of(settings: EventHubsSinkSettings) -> Sink:
    from pipeline.connectors.eventhubs import EventHubsSink, account_of  # its SDK takes a second to import

    return EventHubsSink(
        account_of(**settings.account), consumer_group=settings.consumer_group, timeout_s=settings.timeout_s
    )


def files_sink_of(settings: FilesSinkSettings) -> Sink:
    """Raises ValueError."""
    from pipeline.connectors.files.sink import FilesSink  # Parquet takes its time to import

    return FilesSink(place_of(settings), format=settings.format, compression=settings.compression)


def place_of(settings: FilesSinkSettings) -> Place:
    """Where the sink's files lie, for those who write and for those who read. Raises ValueError."""
    if settings.path is not None:
        from pipeline.connectors.files.sink import Directory

        return Directory(settings.path)
    from pipeline.connectors.files.sink.account import account_of
    from pipeline.connectors.files.sink.blobs import BlobContainer  # its SDK takes half a second to import

    account, container = account_of(**settings.account), str(settings.container)
    return BlobContainer(account, container, prefix=settings.prefix or "", timeout_s=settings.timeout_s)


def timeouts_within(timing: Timing) -> Timeouts:
    """Of PostgreSQL: what a lost owner left behind at the server has to be gone before its lease expires."""
    from pipeline.connectors.postgres import Timeouts  # its driver takes a while to import

    usual = Timeouts()
    shrink = min(1.0, timing.duration_s / 60)
    return Timeouts(**{name: getattr(usual, name) * shrink for name in Timeouts.__dataclass_fields__})
