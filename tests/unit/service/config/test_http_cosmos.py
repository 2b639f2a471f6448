"""Settings of the asynchronous sinks: what they become, what contradicts itself, and what is kept secret."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest

from leasehold.leases.timing import Timing
from leasehold.pipeline.async_sink import AsyncSink, Limits
from leasehold.service.config.cosmos import CosmosSink
from leasehold.service.config.http import HttpSink
from leasehold.service.config.load import load
from leasehold.service.config.settings import Settings
from leasehold.service.errors import ConfigurationError


def settings(tmp_path: Any, sink: str) -> Settings:
    text = f"""
    pipelines:
      - name: p
        feed: {{type: log, path: log}}
        sink: {{{sink}}}
    """
    (tmp_path / "c.yaml").write_text(textwrap.dedent(text))
    return load(tmp_path / "c.yaml", {"TOKEN": "Bearer Secret-1"})


def problem(tmp_path: Any, sink: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        settings(tmp_path, sink)
    return str(caught.value)


HTTP = 'type: http, url: "https://example.com/e?sig=Secret-2"'
COSMOS = "type: cosmos, endpoint: https://a.documents.azure.com, key: U2VjcmV0, database: bank, container: c"


def test_an_http_sink_is_made_of_its_settings(tmp_path: Any) -> None:
    found = settings(tmp_path, HTTP + ', headers: {Authorization: "${TOKEN}"}, in_flight_max: 2').pipelines[0].sink
    assert isinstance(found, HttpSink)
    assert found.limits == Limits(in_flight_max=2)
    sink = found.make(Timing())
    assert isinstance(sink, AsyncSink)
    assert (sink.identity, sink.holds_position) == ("http:https://example.com/e", False)
    assert "Secret-" not in repr(found)


def test_a_header_with_a_line_break_is_refused_by_name(tmp_path: Any) -> None:
    text = problem(tmp_path, HTTP + ', headers: {Accept: "*/*", Authorization: "Bearer Secret-1\\n"}')
    assert "headers: the value of Authorization has a line break or another control character: remove it" in text
    assert "Secret-" not in text


async def test_a_cosmos_sink_is_made_of_its_settings_with_fewer_at_a_time(tmp_path: Any) -> None:
    from leasehold.pipeline.connectors.cosmos import LIMITS

    found = settings(tmp_path, COSMOS).pipelines[0].sink
    assert isinstance(found, CosmosSink)
    assert found.limits == LIMITS
    sink = found.make(Timing())
    assert sink.identity == "cosmos:a.documents.azure.com/bank/c"
    assert "U2VjcmV0" not in repr(found)


@pytest.mark.parametrize(
    ("sink", "told"),
    [
        (HTTP + ", buffered_entries_max: 10", "buffered_entries_max (10) is below batch_entries_max (100)"),
        (HTTP + ", entry_bytes_max: 2000000", "is above batch_bytes_max"),
        (HTTP + ", in_flight_max: 0", "in_flight_max"),
        (HTTP + ", key_field: id, content: body", "`key_field` requires `content: row`"),
        ('type: http, url: "https://u:Secret-3@example.com/"', "must be an address like"),
        (COSMOS + ", identity: default", "needs either `key` or `identity`"),
        (COSMOS + ", batch_entries_max: 6000", "buffered_entries_max (5000) is below batch_entries_max (6000)"),
    ],
)
def test_what_contradicts_itself_is_told_without_secrets(tmp_path: Any, sink: str, told: str) -> None:
    found = problem(tmp_path, sink)
    assert told in found
    assert "Secret-" not in found
