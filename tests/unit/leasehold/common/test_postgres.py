"""PostgreSQL's errors in words."""

from __future__ import annotations

from psycopg import OperationalError

from leasehold.common.postgres import words_of


def test_an_error_without_a_text_is_named_by_its_type() -> None:
    assert words_of(OperationalError(" ")) == "OperationalError"
    assert words_of(OperationalError("the server\n  has gone")) == "the server has gone"
