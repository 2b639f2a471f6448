"""Names, tokens and the version of the table of leases."""

from __future__ import annotations

import pytest

from leasehold.leases.stores.postgres.table import LeaseTable, index_of, place_in, snapshot_in, version_in

TOKEN = "700:705:701,704 16402 1732702002.123456"


def test_a_token_is_a_snapshot_and_the_place_where_it_holds() -> None:
    assert snapshot_in(TOKEN) == "700:705:701,704"
    assert snapshot_in("700:700: 16402 1732702002.123456") == "700:700:"
    assert place_in(TOKEN) == "16402 1732702002.123456"


@pytest.mark.parametrize(
    "token",
    [
        *("", "0", "-1", "garbage", "700", "700:705", "0:705:", "-1:705:", "705:700:", "700:705:699", "700:705:705"),
        *("700:705:701,", "700:705:,701", "٣:705:", "9" * 40, f"1:{'9' * 19}:", "700:705:x 1 2", "x700:705: 1 2"),
    ],
)
def test_a_token_that_no_server_gave_has_no_snapshot(token: str) -> None:
    assert snapshot_in(token) is None


@pytest.mark.parametrize("name", ["", "x" * 64, "ü" * 32, "a%b", "a\0b"])
def test_names_that_would_be_cut_or_misread_are_refused(name: str) -> None:
    for build in (lambda: LeaseTable(schema=name), lambda: LeaseTable(name=name)):
        with pytest.raises(ValueError, match="must be a name of 1 to 63 bytes, without %"):
            build()


def test_each_table_has_names_of_its_own_that_are_not_too_long() -> None:
    tables = [
        LeaseTable(),
        LeaseTable(name="other"),
        LeaseTable(schema="other"),
        LeaseTable(name="x" * 63),
        LeaseTable(name="x" * 62 + "y"),
    ]
    indexes = {index_of(table) for table in tables if table.schema == "public"}
    assert len(indexes) == 4
    assert all(len(name.encode()) <= 63 for name in indexes)


def test_quotes_in_names_are_doubled() -> None:
    assert LeaseTable('a"b', "c.d").quoted == '"a""b"."c.d"'


@pytest.mark.parametrize(
    ("comment", "version"),
    [
        ("leasehold leases, version 1", 1),
        ("leasehold leases, version 12", 12),
        ("leasehold leases, version ", None),
        ("leasehold leases, version x", None),
        ("leasehold leases, version 1000000", None),
        ("1", None),
        ("", None),
        (None, None),
    ],
)
def test_the_comment_of_a_table_has_its_version(comment: str | None, version: int | None) -> None:
    assert version_in(comment) == version
