"""Dead letters by the settings: the policy of a pipeline, and the box that its letters are kept in."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING

from leasehold.common.azure import storage_account_of
from leases.timing import Timing
from pipeline.connectors.log import LogFeed, LogSink
from pipeline.dead_letters import DeadLetters, LetterBox
from pipeline.dead_letters.merged_feed import StrandedLetters
from pipeline.limits import Isolation
from pipeline.sink import Sink
from service.config.eventhubs import EventHubsLettersSettings, EventHubsSinkSettings
from service.config.files import FilesLettersSettings, FilesSinkSettings
from service.config.log import LogLettersSettings
from service.config.postgres import PostgresLettersSettings, PostgresSinkSettings
from service.config.settings import PipelineSettings

if TYPE_CHECKING:
    from pipeline.connectors.files.sink.storage import Place
    from pipeline.connectors.postgres import Timeouts


# Settings -> what takes output and dead letters alike.


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
    """The place of the sink's files, for writing and for reading. Raises ValueError."""
    if settings.path is not None:
        from pipeline.connectors.files.sink import Directory

        return Directory(settings.path)
    from pipeline.connectors.files.sink.blobs import BlobContainer  # its SDK takes half a second to import

    account, container = storage_account_of(**settings.account), str(settings.container)
    return BlobContainer(account, container, prefix=settings.prefix or "", timeout_s=settings.timeout_s)


def timeouts_within(timing: Timing) -> Timeouts:
    """Timeouts for PostgreSQL: a lost owner's statements must end at the server before its lease expires."""
    from pipeline.connectors.postgres import Timeouts  # its driver takes a while to import

    usual = Timeouts()
    shrink = min(1.0, timing.duration_s / 60)
    return Timeouts(**{name: getattr(usual, name) * shrink for name in Timeouts.__dataclass_fields__})


FOUND_AT_ONCE = 16
"""How much poison of a batch is searched for before it reports progress, which a batch must make within batch_timeout_s."""


def policy_of(settings: PipelineSettings, now: Callable[[], datetime]) -> DeadLetters | None:
    letters = settings.letters
    if letters is None:
        return None
    return DeadLetters(
        now=now,
        attempts=settings.attempts,
        share_max=letters.share_max,
        share_events=letters.share_events,
        stops_at_misfits=settings.schema_mode == "strict",
    )


def isolation_of(settings: PipelineSettings, policy: DeadLetters | None) -> Isolation:
    """Not more is looked for than the guard lets through, and the one to stop at."""
    most = 1 if policy is None else min(int(policy.share_events * policy.share_max) + 1, FOUND_AT_ONCE)
    return Isolation(attempts=settings.attempts, backoff_s=settings.attempt_backoff_s, most=most)


def box_of(settings: PipelineSettings, timing: Timing) -> LetterBox | None:
    """The store of a pipeline's letters; with a sink of its own, unless the pipeline's sink takes them. Raises ValueError."""
    letters = settings.letters
    if letters is None:
        return None
    if isinstance(letters, LogLettersSettings):
        return LetterBox(feed=LogFeed(letters.path), sink=LogSink(letters.path))
    if isinstance(letters, FilesLettersSettings):
        return _files_box(letters, settings.name)
    if isinstance(letters, EventHubsLettersSettings):
        return _eventhubs_box(letters, settings.name)
    return _postgres_box(letters, settings, timing)


def _files_box(letters: FilesLettersSettings, pipeline: str) -> LetterBox:
    from pipeline.connectors.files.sink import FileLetters  # Parquet takes its time to import

    feed = StrandedLetters(FileLetters(place_of(letters), pipeline))
    return LetterBox(feed=feed, sink=files_sink_of(letters), rows=lambda rows: rows)


def _eventhubs_box(letters: EventHubsLettersSettings, pipeline: str) -> LetterBox:
    from pipeline.connectors.eventhubs import EventHubsFeed, HubLetters, account_of  # its SDK takes a second to import

    group, timeout_s = letters.consumer_group, letters.timeout_s
    feed = EventHubsFeed(account_of(**letters.account), consumer_group=group, timeout_s=timeout_s)
    by_partition = StrandedLetters(HubLetters(feed, pipeline))
    return LetterBox(feed=feed, sink=eventhubs_sink_of(letters), by_partition=by_partition)


def _postgres_box(letters: PostgresLettersSettings, pipeline: PipelineSettings, timing: Timing) -> LetterBox:
    from pipeline.connectors.postgres import PostgresLetters, PostgresSink, letters_merge, storable  # as its sink's

    place = pipeline.sink if letters.dsn is None else letters
    assert isinstance(place, PostgresSinkSettings | PostgresLettersSettings), "the settings see to it"
    assert place.dsn is not None
    dsn, schema, identity = place.dsn.get_secret_value(), place.schema_name or "public", place.identity
    timeouts = timeouts_within(timing)
    feed = PostgresLetters(dsn, pipeline.name, schema=schema, timeouts=timeouts, identity=identity)
    if letters.dsn is None:
        return LetterBox(feed=feed)
    merge = letters_merge(schema)
    sink = PostgresSink(dsn, merge=merge, schema=schema, letters=True, timeouts=timeouts, identity=identity)
    return LetterBox(feed=feed, sink=sink, rows=storable)
