"""Dead letters in the settings: where they go, what does not go together, and what becomes of a pipeline."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from leasehold.leases.timing import Timing
from leasehold.pipeline.connectors.eventhubs.feed.feed import EventHubsChangeFeed
from leasehold.pipeline.connectors.eventhubs.sink.sink import EventHubsOutputSink
from leasehold.pipeline.connectors.files.sink import FilesOutputSink
from leasehold.pipeline.connectors.log import LogChangeFeed, LogOutputSink
from leasehold.pipeline.connectors.postgres import PostgresLettersFeed, PostgresOutputSink
from leasehold.pipeline.dead_letters.merged_feed import MergedLetters
from leasehold.pipeline.errors import FeedUnavailable, SinkUnavailable
from leasehold.pipeline.limits import Isolation
from leasehold.service.config.load import parse
from leasehold.service.config.pipeline import Pipeline
from leasehold.service.errors import ConfigurationError
from leasehold.service.wiring.build import isolation_of, policy_of

LOG = "sink: {type: log, path: out}"
POSTGRES = "sink: {type: postgres, dsn: postgresql://localhost/bank, table: t, schema: books}"
HUB = "namespace: bank.servicebus.windows.net, event_hub: dead"
DEAD_LOG = "dead_letters: {type: log, path: dead}"


def pipeline(*lines: str, name: str = "copy", feed: str = "{type: files, path: 'in/*.csv'}") -> Pipeline:
    text = f"pipelines:\n  - name: {name}\n    feed: {feed}\n"
    return parse(text + "".join(f"    {line}\n" for line in lines), {}, folder=Path("/etc/leasehold")).pipelines[0]


def problem(*lines: str, **given: str) -> str:
    with pytest.raises(ConfigurationError) as error:
        pipeline(*lines, **given)
    (only,) = error.value.problems
    return only


def now() -> datetime:
    return datetime.now(UTC)


@pytest.mark.parametrize("sink", [LOG, POSTGRES])
def test_without_a_word_the_first_event_that_cannot_be_processed_stops_its_partition(sink: str) -> None:
    found = pipeline(sink)
    assert (found.letters, policy_of(found, now), found.make_box(Timing())) == (None, None, None)
    assert isolation_of(found, None) == Isolation()


def test_a_place_for_dead_letters_is_enough() -> None:
    found = pipeline(LOG, "dead_letters: {type: log, path: dead, share_max: 0.02, share_events: 500}", "attempts: 5")
    policy, box = policy_of(found, now), found.make_box(Timing())
    assert policy is not None
    assert box is not None
    assert (policy.share_max, policy.share_events, policy.stops_at_misfits) == (0.02, 500, False)
    assert (type(box.feed), type(box.sink)) == (LogChangeFeed, LogOutputSink)
    assert box.feed.identity == "log:/etc/leasehold/dead"
    assert isolation_of(found, policy) == Isolation(attempts=5, most=11)


@pytest.mark.parametrize("said", [["on_error: dead_letter"], ["dead_letters: {type: postgres}"]])
def test_beside_the_sink_postgres_they_go_into_its_own_tables(said: list[str]) -> None:
    box = pipeline(POSTGRES, *said).make_box(Timing())
    assert box is not None
    assert box.sink is None
    assert isinstance(box.feed, PostgresLettersFeed)
    assert box.feed.identity == "postgresql://localhost:5432/bank schema=books dead letters of copy"


def test_another_database_has_a_sink_of_its_own() -> None:
    box = pipeline(LOG, "dead_letters: {type: postgres, dsn: postgresql://other/dead}").make_box(Timing())
    assert box is not None
    assert isinstance(box.sink, PostgresOutputSink)
    assert box.sink.identity == "postgresql://other:5432/dead schema=public target=merge"


async def test_letters_in_postgres_log_in_as_their_database_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    class Nobody:
        def __init__(self, **chosen: str) -> None:
            self._chosen = chosen

        async def get_token(self, *scopes: str) -> None:
            raise RuntimeError(f"asked as {self._chosen}")

        async def close(self) -> None: ...

    monkeypatch.setattr("azure.identity.aio.DefaultAzureCredential", Nobody)
    sink = POSTGRES.replace("table: t", "table: t, identity: sinks")
    elsewhere = "dead_letters: {type: postgres, dsn: postgresql://other/dead, identity: letters}"
    for settings, who in (
        (pipeline(sink, "on_error: dead_letter"), "sinks"),
        (pipeline(sink, elsewhere), "letters"),
    ):
        box = settings.make_box(Timing())
        assert box is not None
        with pytest.raises(FeedUnavailable, match=who):
            await box.feed.partitions()
        if box.sink is not None:
            with pytest.raises(SinkUnavailable, match=who):
                await box.sink.prepare()


@pytest.mark.parametrize("more", ["", ", format: jsonl, share_max: 0.5"])
def test_a_directory_has_files_of_letters_by_their_own_partitions(more: str) -> None:
    box = pipeline(POSTGRES, f"dead_letters: {{type: files, path: dead{more}}}").make_box(Timing())
    assert box is not None
    assert (type(box.feed), type(box.sink), box.by_partition) == (MergedLetters, FilesOutputSink, None)
    assert box.sink is not None
    assert box.sink.identity == "files:/etc/leasehold/dead"


def test_a_hub_is_read_as_it_is_and_replayed_by_the_letters_own_partitions() -> None:
    box = pipeline(LOG, f"dead_letters: {{type: eventhubs, {HUB}}}").make_box(Timing())
    assert box is not None
    assert (type(box.feed), type(box.sink), type(box.by_partition)) == (
        EventHubsChangeFeed,
        EventHubsOutputSink,
        MergedLetters,
    )
    assert box.feed.identity == "eventhubs:bank.servicebus.windows.net/dead"


def test_letters_are_not_read_where_a_feed_lets_nobody_else_read() -> None:
    with pytest.raises(ConfigurationError) as error:
        pipeline(LOG, f"dead_letters: {{type: eventhubs, {HUB}}}", feed=f"{{type: eventhubs, {HUB}}}")
    ring, reader = sorted(error.value.problems)
    assert "which would never end" in ring
    assert "the dead letters of 'copy' have to be read in the consumer group '$Default'" in reader


def test_bodies_may_stop_a_partition_where_nothing_else_does() -> None:
    policy = policy_of(pipeline(LOG, DEAD_LOG, "schema: a INT", "schema_mode: strict"), now)
    assert policy is not None
    assert policy.stops_at_misfits


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([LOG, "on_error: dead_letter"], "needs a place for dead letters"),
        ([LOG, "dead_letters: {type: postgres}"], "needs a place for dead letters"),
        ([LOG, "on_error: stop", DEAD_LOG], "`dead_letters` has no effect with `on_error: stop`"),
        ([LOG, "schema: a INT", "schema_mode: permissive"], "`schema_mode` requires `schema` and dead letters"),
        ([LOG, DEAD_LOG, "schema_mode: strict"], "`schema_mode` requires `schema` and dead letters"),
        ([POSTGRES, "dead_letters: {type: postgres, schema: x}"], "`schema` requires `dsn`"),
        ([POSTGRES, "dead_letters: {type: postgres, identity: default}"], "`identity` requires `dsn`"),
        (
            [LOG, "dead_letters: {type: postgres, dsn: postgresql://u:p@other/dead, identity: default}"],
            "`identity` provides the password, and `dsn` has one too",
        ),
        ([LOG, "dead_letters: {type: log, path: d, share_max: 2}"], "share_max"),
        ([LOG, "dead_letters: {type: files}"], "needs either `path` or `container`"),
        ([LOG, "dead_letters: {type: eventhubs}"], "connection_string"),
        ([LOG, "dead_letters: {type: nosuch}"], "postgres, log, files, eventhubs"),
        ([LOG, "dead_letters: {type: a:B}"], "postgres, log, files, eventhubs"),
    ],
)
def test_what_does_not_go_together_is_refused(lines: list[str], words: str) -> None:
    assert words in problem(*lines)


def test_no_pipeline_has_the_name_of_a_replay() -> None:
    assert "suffix .replay" in problem(LOG, name="orders.replay")
