"""The settings of an Event Hubs feed: what goes together, and no secret anywhere but where it is used."""

from __future__ import annotations

from pathlib import Path

import certifi
import pytest

from leasehold.pipeline.connectors.eventhubs.feed.feed import EventHubsChangeFeed
from leasehold.service.config.eventhubs import EventHubsFeed, EventHubsSink
from leasehold.service.config.load import load, parse
from leasehold.service.config.section import FeedContext
from leasehold.service.errors import ConfigurationError

SECRET = "c2VjcmV0"
STRING = f"Endpoint=sb://bank.servicebus.windows.net/;SharedAccessKeyName=reader;SharedAccessKey={SECRET}"


def feed(fields: str, folder: Path = Path("/etc/leasehold"), **env: str) -> EventHubsFeed:
    text = f"pipelines: [{{name: a, feed: {{type: eventhubs, {fields}}}, sink: {{type: log, path: x}}}}]"
    found = parse(text, env, folder=folder).pipelines[0].feed
    assert isinstance(found, EventHubsFeed)
    return found


@pytest.mark.parametrize(
    "access",
    [
        "connection_string: '${S}', event_hub: raw-event",
        "connection_string: '${S};EntityPath=raw-event'",
        "namespace: bank.servicebus.windows.net, identity: default, event_hub: raw-event",
        "connection_string: '${S}', event_hub: raw-event, consumer_group: bank, transport: websockets",
    ],
)
async def test_the_same_hub_is_the_same_feed_however_it_is_reached(access: str) -> None:
    found = feed(access, S=STRING)
    made = found.make(FeedContext())
    assert isinstance(made, EventHubsChangeFeed)
    assert made.identity == "eventhubs:bank.servicebus.windows.net/raw-event"
    assert SECRET not in repr(found) + str(found) + found.model_dump_json() + repr(made)
    await made.close()


async def test_what_is_set_is_what_the_feed_has(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").symlink_to(certifi.where())
    found = feed(
        "connection_string: '${S}', event_hub: h, ca_file: ca.pem, start_positions: {'0': 41, '1': '@70', '2': 41@70}",
        tmp_path,
        S=STRING,
    )
    assert found.start_positions == {"0": "41", "1": "@70", "2": "41@70"}
    assert found.account["ca_file"] == str(tmp_path / "ca.pem")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ("event_hub: h", "needs `connection_string`, or `namespace` and `identity`"),
        (f"connection_string: '{STRING}'", "needs the hub's name"),
        (f"connection_string: '{STRING}', event_hub: h, identity: default", "remove `namespace` and `identity`"),
        (f"connection_string: 'SharedAccessKey={SECRET}', event_hub: h", "must look like Endpoint=sb://"),
        (f"connection_string: '{STRING};EntityPath=a', event_hub: b", "name two hubs"),
        (f"connection_string: '{STRING}', event_hub: h, consumer_group: 'a/b'", "must be the name of a consumer group"),
        (f"connection_string: '{STRING}', event_hub: h, transport: http", "transport"),
        (f"connection_string: '{STRING}', event_hub: h, prefetch: 0", "prefetch"),
        (f"connection_string: '{STRING}', event_hub: h, start: noon", "start"),
        (
            f"connection_string: '{STRING}', event_hub: h, start_positions: {{'0': soon}}",
            "`start_positions`, partition '0'",
        ),
    ],
)
def test_what_does_not_go_together_is_told_without_a_secret(fields: str, expected: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        feed(fields)
    assert len(error.value.problems) == 1
    assert expected in str(error.value)
    assert SECRET not in str(error.value)


def test_two_pipelines_in_one_consumer_group_are_told_apart() -> None:
    feed = f"{{type: eventhubs, connection_string: '{STRING}', event_hub: %s, consumer_group: %s}}"
    reader = f"feed: {feed}, sink: {{type: log, path: %s}}"

    def parsed(*readers: str) -> None:
        parse(
            f"pipelines: [{', '.join(f'{{name: p{n}, {one}}}' for n, one in enumerate(readers))}]", {}, folder=Path("/")
        )

    parsed(reader % ("h", "a", "x"), reader % ("h", "b", "y"), reader % ("other", "a", "z"))
    with pytest.raises(ConfigurationError, match="'p0' and 'p1' read one hub in one consumer group") as error:
        parsed(reader % ("h", "a", "x"), reader % ("H", "A", "y"))
    assert len(error.value.problems) == 1
    assert SECRET not in str(error.value)


def test_a_sink_does_not_look_where_a_feed_lets_nobody_else_in() -> None:
    hub = f"{{type: eventhubs, connection_string: '{STRING}', event_hub: h, consumer_group: %s}}"
    sinks = f"{{name: a, feed: {{type: log, path: x}}, sink: {hub}}}"
    text = f"pipelines: [{sinks}, {{name: b, feed: {hub}, sink: {{type: log, path: y}}}}]"
    parse(text % ("published", "$Default"), {}, folder=Path("/"))
    with pytest.raises(ConfigurationError, match=r"sink of 'a' .* '\$default' .* the feed of 'b' is the only") as error:
        parse(text % ("$default", "$Default"), {}, folder=Path("/"))
    assert "give the sink a `consumer_group` of its own" in str(error.value)
    assert SECRET not in str(error.value)


def test_the_example_of_the_docs_is_fine_as_it_stands() -> None:
    blobs = f"DefaultEndpointsProtocol=https;AccountName=leases;AccountKey={SECRET};"
    env = {"BANK_EVENTHUBS": STRING, "LEASES_BLOB": blobs, "LEASEHOLD_POSTGRES_DSN": "postgresql://localhost/bank"}
    path = Path(__file__).parents[4] / "docs" / "examples" / "bank-eventhubs.yaml"
    found = load(path, env)
    assert found.leases.type == "blob"
    assert [each.feed.type for each in found.pipelines] == ["files", "eventhubs", "eventhubs"]
    assert [each.sink.type for each in found.pipelines] == ["eventhubs", "eventhubs", "postgres"]
    groups = [each.sink.consumer_group for each in found.pipelines if isinstance(each.sink, EventHubsSink)]
    assert groups == ["published"] * 2
    assert all(f"export {name}=" in path.read_text() for name in env)


ACCESS = f"connection_string: '{STRING}', event_hub: h"


def executors_read(fields: str, more: str = "") -> EventHubsFeed:
    text = (
        f"pipelines: [{{name: a, feed: {{type: eventhubs, {fields}}}, sql: SELECT * FROM events, executors_read: true,"
        f" sink: {{type: log, path: x}}}}{more}]"
    )
    found = parse(text, {}, folder=Path("/etc/leasehold")).pipelines[0].feed
    assert isinstance(found, EventHubsFeed)
    return found


@pytest.mark.parametrize(
    ("fields", "missing"),
    [
        (ACCESS, "executors_consumer_group"),
        (f"{ACCESS}, executors_env: KEY", "executors_consumer_group"),
        (f"{ACCESS}, executors_consumer_group: e", "executors_env"),
        ("namespace: bank.servicebus.windows.net, event_hub: h", "executors_consumer_group"),
    ],
)
def test_what_executors_lack_to_read_is_named(fields: str, missing: str) -> None:
    with pytest.raises(ConfigurationError, match=f"`executors_read` has no effect: set the feed's `{missing}`"):
        executors_read(fields)


@pytest.mark.parametrize(
    "fields",
    [
        f"{ACCESS}, executors_consumer_group: e, executors_env: HUB_STRING",
        "namespace: bank.servicebus.windows.net, event_hub: h, executors_consumer_group: e",
    ],
)
async def test_a_feed_with_what_executors_need_has_a_reader_for_them(fields: str) -> None:
    made = executors_read(fields).make(FeedContext())
    assert made.range_reader() is not None
    await made.close()


def test_executors_do_not_read_where_a_feed_does() -> None:
    other = f", {{name: b, feed: {{type: eventhubs, {ACCESS}, consumer_group: Theirs}}, sink: {{type: log, path: y}}}}"
    executors_read(f"{ACCESS}, executors_consumer_group: ours, executors_env: K", other)
    for group, reader in (("theirs", "b"), ("$default", "a")):
        with pytest.raises(ConfigurationError, match=f"in the consumer group of the feed of '{reader}'"):
            executors_read(f"{ACCESS}, executors_consumer_group: {group}, executors_env: K", other)


def test_executors_of_two_pipelines_do_not_share_a_consumer_group_of_a_hub() -> None:
    fields = f"{ACCESS}, executors_consumer_group: %s, executors_env: K"
    second = f", {{name: b, feed: {{type: eventhubs, {fields}, consumer_group: b}}, sink: {{type: log, path: y}}%s}}"
    reads = ", sql: SELECT * FROM events, executors_read: true"
    executors_read(fields % "ours", second % ("theirs", reads))
    executors_read(fields % "ours", second % ("ours", ""))
    executors_read(fields % "ours", (second % ("ours", reads)).replace("event_hub: h", "event_hub: other"))
    with pytest.raises(
        ConfigurationError, match=r"executors of 'a' and 'b' are to read one hub in one consumer group.*: give each"
    ):
        executors_read(fields % "ours", second % ("OURS", reads))


def test_a_variable_is_named_and_not_what_it_holds() -> None:
    with pytest.raises(ConfigurationError, match="must be the name of an environment variable") as refused:
        executors_read(f"{ACCESS}, executors_consumer_group: e, executors_env: '{STRING}'")
    assert SECRET not in str(refused.value)


BLOBS = "connection_string: '${S}', event_hub: Raw-Event, consumer_group: Bank, checkpoint_blobs: {%s}"


async def test_checkpoints_are_written_where_settings_name_an_account() -> None:
    account = f"account_url: 'https://ops.blob.core.windows.net', key: '{SECRET}', container: checkpoints"
    found = feed(BLOBS % f"{account}, interval_s: 30", S=STRING)
    made = found.make_outside_checkpoints()
    assert made is not None
    assert made.interval_s == 30
    assert made.name_of("3") == "bank.servicebus.windows.net/raw-event/bank/checkpoint/3"
    assert SECRET not in repr(found) + str(found) + found.model_dump_json() + repr(made)
    await made.close()
    assert feed("connection_string: '${S}', event_hub: h", S=STRING).make_outside_checkpoints() is None


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ("container: checkpoints", "needs `account_url`"),
        ("account_url: 'https://ops.blob.core.windows.net'", "checkpoint_blobs.container"),
        ("account_url: 'http://ops.blob.core.windows.net', container: checkpoints", "must begin with https"),
        ("account_url: 'https://ops.blob.core.windows.net', container: No", "checkpoint_blobs.container"),
        ("account_url: 'https://ops.blob.core.windows.net', container: checkpoints, interval_s: 0", "interval_s"),
    ],
)
def test_checkpoints_that_lead_nowhere_are_refused(fields: str, expected: str) -> None:
    with pytest.raises(ConfigurationError, match=expected):
        feed(BLOBS % fields, S=STRING)


@pytest.mark.parametrize(("container", "is_refused"), [("operations", True), ("checkpoints", False)])
def test_checkpoints_are_not_written_among_the_leases(container: str, is_refused: bool) -> None:
    account = "account_url: 'https://ops.blob.core.windows.net', container: "
    text = (
        f"leases: {{type: blob, {account} operations}}\npipelines: [{{name: a, sink: {{type: log, path: x}}, feed:"
        f" {{type: eventhubs, {BLOBS % (account + container)}}}}}]"
    )
    try:
        parse(text, {"S": STRING}, folder=Path("/etc/leasehold"))
    except ConfigurationError as error:
        assert is_refused
        assert "the feed of 'a' would write `checkpoint_blobs` among the leases" in str(error)  # noqa: PT017
    else:
        assert not is_refused
