"""Transactions read from a user's CSV file."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import NoReturn, cast

from leasehold.service.cli.demo.transactions import AMOUNT, COLUMNS, InvalidTransactions, Kind, Transaction


def read(path: Path) -> list[Transaction]:
    """CSV with the columns COLUMNS in any order; others are left out. Raises InvalidTransactions, which names line and column."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InvalidTransactions(f"'{path}' cannot be read ({(error.strerror or str(error)).lower()})") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise InvalidTransactions(f"'{path}', line {line}: this is not UTF-8: save the file as UTF-8") from None
    return list(_CsvReader(path).rows(text))


class _CsvReader:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._line = 1
        self._seen: dict[str, int] = {}

    def rows(self, text: str) -> Iterator[Transaction]:
        records = csv.reader(io.StringIO(text, newline=""), strict=True)
        try:
            header = next(records, [])
            if missing := [name for name in COLUMNS if name not in header]:
                self._refuse(f"the header lacks {', '.join(missing)}: it has to name {','.join(COLUMNS)}")
            if twice := [name for name in COLUMNS if header.count(name) > 1]:
                self._refuse(f"the header names column {twice[0]} {header.count(twice[0])} times: keep one of them")
            while True:
                self._line = records.line_num + 1
                if (record := next(records, None)) is None:
                    return
                if record:
                    yield self._row(header, record)
        except csv.Error as error:
            self._refuse(f"this is not CSV: {error}")

    def _row(self, header: list[str], record: list[str]) -> Transaction:
        if len(record) != len(header):
            self._refuse(f"{len(record)} fields, and the header has {len(header)}")
        values = dict(zip(header, record, strict=True))
        for name in COLUMNS:
            self._check(name, values[name])
        first = self._seen.setdefault(values["transaction_id"], self._line)
        if first != self._line:
            self._refuse(f"column transaction_id: '{values['transaction_id']}' is in line {first} already")
        return Transaction(
            transaction_id=values["transaction_id"],
            account=values["account"],
            kind=cast(Kind, values["kind"]),
            amount=f"{Decimal(values['amount']):.2f}",
            occurred_at=values["occurred_at"],
        )

    def _check(self, name: str, value: str) -> None:
        if not value:
            self._refuse(f"column {name}: it is empty")
        if "\0" in value:
            self._refuse(f"column {name}: it holds a NUL character, which PostgreSQL cannot keep")
        if name == "kind" and value not in ("deposit", "withdrawal"):
            self._refuse(f"column kind: {value!r} has to be deposit or withdrawal")
        if name == "amount" and not AMOUNT.fullmatch(value):
            self._refuse(f"column amount: {value!r} has to be digits, at most 18, with at most 2 decimals, like 120.50")
        if name == "occurred_at" and not _is_time(value):
            self._refuse(f"column occurred_at: {value!r} has to be a time like 2026-01-31T12:00:00Z")

    def _refuse(self, what: str) -> NoReturn:
        raise InvalidTransactions(f"'{self._path}', line {self._line}: {what}")


def _is_time(value: str) -> bool:
    try:
        datetime.fromisoformat(value)
    except ValueError:
        return False
    return True
