"""The event table and its pages."""

import pytest

from leasehold.pipeline.contract import event_table
from leasehold.pipeline.event import EVENT_SCHEMA, Page


def test_the_columns_of_the_event_table_are_settled() -> None:
    assert [(field.name, str(field.type), field.nullable) for field in EVENT_SCHEMA] == [
        ("partition", "string", False),
        ("sequence", "int64", False),
        ("offset", "string", False),
        ("enqueued_time", "timestamp[us, tz=UTC]", False),
        ("key", "string", True),
        ("body", "binary", True),
        ("properties", "map<string, string>", True),
        ("operation", "string", True),
    ]


def test_a_page_counts_its_own_bytes_and_not_those_of_the_table_it_was_cut_from() -> None:
    table = event_table("a", range(1000))
    assert Page(table, "1000").bytes == table.nbytes
    assert Page(table.slice(0, 10), "10").bytes < table.nbytes / 50


def test_a_page_cannot_be_cut_unless_its_feed_says_where() -> None:
    page = Page(event_table("a", range(3)), "3")
    assert page.position_after(1) is None


def test_a_page_does_not_change() -> None:
    with pytest.raises(AttributeError):
        Page(event_table("a", []), "0").to = "1"  # type: ignore[misc]
