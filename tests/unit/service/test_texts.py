"""What people will read holds no secrets, and is not mangled either."""

from __future__ import annotations

import pytest

from leasehold.service.texts import CHARS_MAX, names_a_secret, readable, redacted


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://ada:hunter2@db:5432/bank", "postgresql://ada:***@db:5432/bank"),
        ("at postgresql://ada:hun@ter/2@db/bank now", "at postgresql://ada:***@db/bank now"),
        ("redis://:hunter2@db", "redis://:***@db"),
        ("-dpostgresql+psycopg://ada:hunter2@db", "-dpostgresql+psycopg://ada:***@db"),
        ("host=db password=hunter2 user=ada", "host=db password=*** user=ada"),
        ("password = 'hun ter\\'2' user=ada", "password = *** user=ada"),
        ('{"password": "hunter2", "user": "ada"}', '{"password": ***, "user": "ada"}'),
        ("db_password=hunter2", "db_password=***"),
        ("AccountName=x;AccountKey=aGk=;Suffix=y", "AccountName=x;AccountKey=***;Suffix=y"),
        ("Endpoint=sb://h/;SharedAccessKey=aGk=", "Endpoint=sb://h/;SharedAccessKey=***"),
        ("https://h/c?sv=1&sig=aGk%3D&se=2", "https://h/c?sv=1&sig=***&se=2"),
        ("Authorization: Bearer eyJhbGciOiJIUzI1NiJ9.e30", "Authorization: Bearer ***"),
    ],
)
def test_what_looks_like_a_secret_is_masked(text: str, shown: str) -> None:
    assert redacted(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "http://127.0.0.1:8080/docs",
        "http://127.0.0.1:8080/mail?to=ada@example.com",
        "postgresql://ada@db:5432/bank",
        'password authentication failed for user "ada"',
        "a basic setting, and a design = good",
        "lease '7' is held by 'host-b' (epoch 4)",
        "SELECT key, value FROM t WHERE key = 3",
    ],
)
def test_what_does_not_stays(text: str) -> None:
    assert redacted(text) == text


def test_fields_are_told_by_their_names() -> None:
    assert all(map(names_a_secret, ["password", "db_password", "token", "api_key", "Authorization", "AccountKey"]))
    assert not any(map(names_a_secret, ["key", "owner", "partition", "design", "tokens", "sequence"]))


def test_what_nobody_reads_to_its_end_is_cut_in_the_middle_and_only_after_it_is_masked() -> None:
    assert readable("x" * CHARS_MAX) == "x" * CHARS_MAX
    secret = "password=" + "s" * 2 * CHARS_MAX
    assert readable(f"before {secret} behind") == "before password=*** behind"
    long = readable("begin" + "x" * 100_000 + "end")
    assert len(long) < CHARS_MAX + 100
    assert long.startswith("beginx")
    assert long.endswith("xend")
    assert " ... (100008 characters) ... " in long
