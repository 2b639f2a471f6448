"""Transactions, files, and plain balances."""

from __future__ import annotations

import csv
import hashlib
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.service.cli.demo.transactions import (
    COLUMNS,
    InvalidTransactions,
    Transaction,
    expected_balances,
    expected_events,
    generated,
    write,
)
from leasehold.service.cli.demo.user_file import read

HEADER = ",".join(COLUMNS)
GOOD = "t1,Ada,deposit,10.00,2026-01-01T00:00:00Z"


def transaction(number: int = 1, account: str = "Ada", kind: str = "deposit", amount: str = "1.00") -> Transaction:
    return Transaction(transaction_id=f"t{number}", account=account, kind=kind, amount=amount, occurred_at="2026-01-01")  # type: ignore[arg-type]


def file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mine.csv"
    path.write_bytes(text.encode())
    return path


def written(directory: Path) -> list[dict[str, str]]:
    rows = []
    for path in sorted(directory.glob("transactions-*.csv")):
        with path.open(newline="", encoding="utf-8") as lines:
            rows += list(csv.DictReader(lines, strict=True))
    return rows


# Made up


def test_the_made_up_transactions_are_the_same_for_ever() -> None:
    digest = hashlib.sha256(repr(generated()).encode()).hexdigest()
    assert digest.startswith("eb8ebbd60c3c385d")


def test_there_are_as_many_transactions_and_customers_as_asked_for() -> None:
    rows = generated(count=2000, customers=25, seed=7)
    assert len({row.transaction_id for row in rows}) == len(rows) == 2000
    assert len(expected_events(rows)) == 25
    assert {row.kind for row in rows} == {"deposit", "withdrawal"}
    assert any(not row.amount.endswith("00") for row in rows)
    assert rows != generated(count=2000, customers=25, seed=8)


def test_what_is_made_up_can_be_read(tmp_path: Path) -> None:
    rows = generated(count=50)
    (only,) = write(rows, tmp_path, files=1)
    assert read(only) == rows


# Balances


def test_balances_are_exact_however_large() -> None:
    rows = [transaction(n, amount="999999999999999999.99") for n in range(100)]
    rows += [
        transaction(kind="withdrawal", amount="0.01"),
        transaction(account="Bob", kind="withdrawal", amount="5.10"),
    ]
    balances = expected_balances(rows)
    assert balances == {"Ada": Decimal("99999999999999999998.99"), "Bob": Decimal("-5.10")}
    assert str(balances["Bob"]) == "-5.10"


def test_an_account_that_comes_to_nothing_is_an_account() -> None:
    rows = [transaction(), transaction(kind="withdrawal")]
    assert expected_balances(rows) == {"Ada": Decimal(0)}
    assert expected_events(rows) == {"Ada": 2}


# Reading


def test_columns_may_come_in_any_order_and_others_are_left_out(tmp_path: Path) -> None:
    text = (
        "note,amount,kind,account,occurred_at,transaction_id,note\nx,7,withdrawal,Ada,2026-01-01T00:00:00+01:00,t1,y\n"
    )
    assert read(file(tmp_path, text)) == [
        Transaction(
            transaction_id="t1",
            account="Ada",
            kind="withdrawal",
            amount="7.00",
            occurred_at="2026-01-01T00:00:00+01:00",
        )
    ]


@pytest.mark.parametrize(
    "text", ["\ufeff" + HEADER + "\n" + GOOD, HEADER + "\r\n" + GOOD + "\r\n", HEADER + "\n\n" + GOOD + "\n\n"]
)
def test_spreadsheets_marks_line_ends_and_blank_lines_are_no_matter(tmp_path: Path, text: str) -> None:
    assert [row.transaction_id for row in read(file(tmp_path, text))] == ["t1"]


def test_a_file_without_rows_has_no_transactions(tmp_path: Path) -> None:
    assert read(file(tmp_path, HEADER + "\n")) == []


@pytest.mark.parametrize(
    ("amount", "canonical"),
    [("1", "1.00"), ("1.5", "1.50"), ("0.01", "0.01"), ("0007.10", "7.10"), ("9" * 18 + ".99", "9" * 18 + ".99")],
)
def test_amounts_keep_every_digit(tmp_path: Path, amount: str, canonical: str) -> None:
    assert read(file(tmp_path, f"{HEADER}\n{GOOD.replace('10.00', amount)}\n"))[0].amount == canonical


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (GOOD.replace("10.00", amount), "line 3: column amount: ")
        for amount in ("1.239", "-1", "+1", "1e3", "ten", "1,5", "NaN", "1 000", "٣", "1.", ".5", "9" * 19, " 1")
        if "," not in amount
    ]
    + [
        (GOOD.replace("deposit", "Deposit"), "line 3: column kind: 'Deposit' has to be deposit or withdrawal"),
        (GOOD.replace("Ada", ""), "line 3: column account: it is empty"),
        (GOOD.replace("Ada", "A\0"), "line 3: column account: it holds a NUL"),
        (GOOD.replace("2026-01-01T00:00:00Z", "yesterday"), "line 3: column occurred_at: 'yesterday' has to be a time"),
        (GOOD.replace("t1", "t0"), "line 3: column transaction_id: 't0' is in line 2 already"),
        (GOOD.replace("10.00", ""), "line 3: column amount: it is empty"),
        (GOOD + ",more", "line 3: 6 fields, and the header has 5"),
        ("t1,Ada", "line 3: 2 fields, and the header has 5"),
        (GOOD.replace("Ada", '"A"da'), "line 3: this is not CSV"),
        (GOOD.replace("Ada", '"Ada'), "line 3: this is not CSV"),
    ],
)
def test_a_bad_row_is_told_its_line_and_column(tmp_path: Path, row: str, expected: str) -> None:
    with pytest.raises(InvalidTransactions) as error:
        read(file(tmp_path, f"{HEADER}\n{GOOD.replace('t1', 't0')}\n{row}\n"))
    assert expected in str(error.value)
    assert str(tmp_path / "mine.csv") in str(error.value)


def test_lines_are_those_of_the_file_even_behind_a_name_with_line_breaks(tmp_path: Path) -> None:
    text = f'{HEADER}\nt1,"A\nd\na",deposit,1,2026-01-01\nt2,Bob,deposit,x,2026-01-01\n'
    with pytest.raises(InvalidTransactions, match="line 5: column amount"):
        read(file(tmp_path, text))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "line 1: the header lacks transaction_id, account, kind, amount, occurred_at"),
        (b"transaction_id,account,kind,amount\n", "line 1: the header lacks occurred_at"),
        (
            HEADER.encode() + b",note,note,amount\n",
            r"mine\.csv', line 1: the header names column amount 2 times: keep one",
        ),
        (HEADER.encode() + b"\n\nt1,\xff", "line 3: this is not UTF-8"),
    ],
)
def test_a_file_that_is_something_else_is_refused(tmp_path: Path, content: bytes, expected: str) -> None:
    path = tmp_path / "mine.csv"
    path.write_bytes(content)
    with pytest.raises(InvalidTransactions, match=expected):
        read(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidTransactions, match=r"missing\.csv' cannot be read \(no such file or directory\)"):
        read(tmp_path / "missing.csv")


# Writing

NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=20)
AMOUNTS = st.integers(0, 10**20 - 1).map(lambda cents: f"{cents // 100}.{cents % 100:02}")


@given(st.lists(st.tuples(NAMES, st.sampled_from(["deposit", "withdrawal"]), AMOUNTS), max_size=30))
def test_any_name_and_amount_comes_through(
    tmp_path_factory: pytest.TempPathFactory, parts: list[tuple[str, str, str]]
) -> None:
    rows = [transaction(n, *part) for n, part in enumerate(parts)]
    directory = tmp_path_factory.mktemp("bank")
    write(rows, directory)
    found = written(directory)
    assert sorted(map(str, found)) == sorted(str({name: getattr(row, name) for name in COLUMNS}) for row in rows)
    back = [row for path in sorted(directory.iterdir()) for row in read(path)]
    assert expected_balances(back) == expected_balances(rows)


def test_rows_are_dealt_out_evenly(tmp_path: Path) -> None:
    paths = write(generated(count=10), tmp_path)
    assert [path.name for path in paths] == [f"transactions-{n}.csv" for n in (1, 2, 3, 4)]
    assert [len(read(path)) for path in paths] == [3, 3, 2, 2]
    assert read(paths[1]) == generated(count=10)[1::4]


def as_written(path: Path) -> tuple[int, int]:
    """Which file it is, and when it was written; reading it changes neither."""
    found = path.stat()
    return found.st_ino, found.st_mtime_ns


def test_writing_again_touches_nothing(tmp_path: Path) -> None:
    paths = write(generated(), tmp_path)
    before = [as_written(path) for path in paths]
    write(generated(), tmp_path)
    assert [as_written(path) for path in paths] == before


def test_what_a_crash_left_out_is_written_and_the_rest_untouched(tmp_path: Path) -> None:
    paths = write(generated(), tmp_path)
    kept = as_written(paths[0])
    paths[2].unlink()
    (tmp_path / "transactions-4.unfinished").write_text("half")
    write(generated(), tmp_path)
    assert as_written(paths[0]) == kept
    assert len(written(tmp_path)) == 1000


@pytest.mark.parametrize("name", ["transactions-3.csv", "transactions-5.csv", "transactions-old.csv"])
def test_a_directory_with_other_transactions_is_refused_and_left_as_it_is(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(HEADER + "\n" + GOOD + "\n")
    with pytest.raises(InvalidTransactions, match=f"{name}' holds other transactions than these"):
        write(generated(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(InvalidTransactions, match="taken"):
        write(generated(), tmp_path / "taken")


def test_a_name_for_the_pipeline_is_only_given_to_a_whole_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("leasehold.service.cli.demo.transactions.os.fsync", full)
    with pytest.raises(InvalidTransactions, match="no space left"):
        write(generated(), tmp_path)
    assert written(tmp_path) == []
