"""The settings of an Event Hubs sink: what goes together, what becomes of batches, and no secret told."""

from __future__ import annotations

from pathlib import Path

import pytest

from leasehold.leases.timing import Timing
from leasehold.pipeline.connectors.eventhubs.sink.sink import EventHubsOutputSink
from leasehold.service.config.eventhubs import BATCH_BYTES_MAX
from leasehold.service.config.load import parse
from leasehold.service.config.pipeline import Pipeline
from leasehold.service.config.settings import Spark
from leasehold.service.errors import ConfigurationError
from leasehold.service.wiring.build import pipeline_of

SECRET = "c2VjcmV0"
STRING = f"Endpoint=sb://bank.servicebus.windows.net/;SharedAccessKeyName=both;SharedAccessKey={SECRET}"


def pipeline(fields: str, more: str = "") -> Pipeline:
    text = f"pipelines: [{{name: a, feed: {{type: log, path: x}}, sink: {{{fields}}}{more}}}]"
    return parse(text, {"S": STRING}, folder=Path("/etc/leasehold")).pipelines[0]


@pytest.mark.parametrize(
    "access",
    [
        "connection_string: '${S}', event_hub: h, consumer_group: tails",
        "connection_string: '${S};EntityPath=h', consumer_group: tails, transport: websockets, timeout_s: 5",
        "namespace: bank.servicebus.windows.net, identity: default, event_hub: h, consumer_group: tails",
    ],
)
async def test_the_same_hub_is_the_same_sink_however_it_is_reached(access: str) -> None:
    found = pipeline(f"type: eventhubs, {access}").sink
    made = found.make(Timing())
    assert isinstance(made, EventHubsOutputSink)
    assert made.identity == "eventhubs:bank.servicebus.windows.net/h"
    assert SECRET not in repr(found) + str(found) + found.model_dump_json() + repr(made)
    await made.close()


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ("event_hub: h, consumer_group: g", "needs `connection_string`, or `namespace` and `identity`"),
        ("connection_string: '${S}', consumer_group: g", "needs the hub's name"),
        ("connection_string: '${S}', event_hub: h, consumer_group: 'a/b'", "must be the name of a consumer group"),
        ("connection_string: '${S}', event_hub: h, consumer_group: g, partition_key: k", "partition_key"),
        (
            "connection_string: '${S}', event_hub: h",
            "no feed uses, and set, for example, `consumer_group: leasehold-sink`",
        ),
    ],
)
def test_what_does_not_go_together_is_told_without_secrets(fields: str, expected: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        pipeline(f"type: eventhubs, {fields}")
    assert expected in str(error.value)
    assert SECRET not in str(error.value)


def test_batches_for_a_hub_are_closed_before_they_are_too_large_for_it() -> None:
    hub = "type: eventhubs, connection_string: '${S}', event_hub: h, consumer_group: g"
    for settings, expected in (
        (pipeline(hub), BATCH_BYTES_MAX),
        (pipeline(hub, ", batch_bytes_max: 1000"), 1000),
        (pipeline("type: log, path: y"), 32 * 1024 * 1024),
    ):
        assert pipeline_of(settings, Spark().make(), Timing()).limits.bytes_max == expected
