"""What stands in the header `leasehold-event` is an event's, if any sink can have written it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from leasehold.pipeline.connectors import hidden


@pytest.mark.parametrize(
    "written",
    [
        {"key": "\ud800"},
        {"operation": "\udfff"},
        {"properties": {"\ud800": "1"}},
        {"properties": {"a": "\ud800"}},
        {"key": 7},
        {"properties": {"a": []}},
        [],
    ],
)
def test_what_is_no_text_stays_a_property(written: Any) -> None:
    headers = {hidden.EVENT: json.dumps(written)}
    found = hidden.columns_of(headers, lambda name: False, trusts_headers=True)
    assert found == {"properties": [*headers.items()]}


def test_a_key_and_a_property_are_read() -> None:
    headers = {hidden.EVENT: json.dumps({"key": "\u00e9", "properties": {"a": "1"}})}
    found = hidden.columns_of(headers, lambda name: False, trusts_headers=True)
    assert (found["key"], found["properties"]) == ("\u00e9", [("a", "1")])
