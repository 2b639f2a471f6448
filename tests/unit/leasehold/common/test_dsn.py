"""DSNs are read as libpq reads them, without its driver."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg import Error, pq
from psycopg.conninfo import conninfo_to_dict

from leasehold.common.dsn import KEYWORDS, read_dsn

DSNS = [
    *("postgresql://", "postgres://u@h/d", "postgresql://u:p%40@h:1,h2:2/d?sslmode=require&application_name=a%20b"),
    *("host=a port=1 password='a b\\'c'", "host = a", "host", "a=b", "postgresql://h?x=1", "postgresql:///d?host=/run"),
    *("postgresql://[::1]:5/d", "postgresql://[::1/d", "postgresql://h:/d", "postgresql://u:@h", "host=''", "host=a'b"),
    *(
        "postgresql://h/d?ssl=true",
        "postgresql://h/d?sslmode",
        "postgresql://h/d?a=b=c",
        "",
        "x://y",
        "postgresql://u@",
    ),
    *(
        "postgresql://h/a/b",
        "postgresql://h/%zz",
        "postgresql://h/%00",
        "host=a\\ b port=3",
        "host='a",
        "postgresql://h ,b/d",
    ),
]
PARTS = st.lists(
    st.sampled_from([*"ab:@/?#&=%,[]' \\", "postgresql://", "host=", "port", "5432", "%40", "sslmode=", "require"]),
    max_size=12,
)


def by_libpq(dsn: str) -> dict[str, object] | None:
    try:
        return dict(conninfo_to_dict(dsn))
    except (Error, UnicodeError):
        return None


def by_us(dsn: str) -> dict[str, object] | None:
    try:
        return dict(read_dsn(dsn))
    except ValueError:
        return None


@pytest.mark.parametrize("dsn", DSNS)
def test_a_dsn_is_read_as_libpq_reads_it(dsn: str) -> None:
    assert by_us(dsn) == by_libpq(dsn)


@given(PARTS)
def test_what_libpq_refuses_is_refused_and_what_it_reads_is_read_alike(parts: list[str]) -> None:
    ours, theirs = by_us("".join(parts)), by_libpq("".join(parts))
    if ours is not None:
        assert ours == theirs


def test_every_keyword_of_the_driver_is_known() -> None:
    assert {option.keyword.decode() for option in pq.Conninfo.get_defaults()} <= KEYWORDS


@pytest.mark.parametrize("port", ["0", "65536", "x"])
def test_a_port_that_is_none_is_named_without_the_password(port: str) -> None:
    with pytest.raises(ValueError, match="port that is not a number from 1 to 65535") as refused:
        read_dsn(f"postgresql://u:hush@h,g:{port}/d")
    assert "hush" not in str(refused.value)
