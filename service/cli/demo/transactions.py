"""The bank's transactions, made up or read from a user's CSV and dealt out to files; and what the balances have to be.

Plain Python throughout, and nothing shared with the pipeline: `expected_balances` is what the demo is checked against.
"""

from __future__ import annotations

import csv
import io
import os
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal, Inexact, localcontext
from pathlib import Path
from typing import Literal, NoReturn

from leasehold.service.errors import StartFailed

Kind = Literal["deposit", "withdrawal"]
COLUMNS = ("transaction_id", "account", "kind", "amount", "occurred_at")
FILES = 4

_NAMES = ("Ada", "Björn", "Chioma", "Dmitri", "Élodie", "Farid", "Grace", "Hiro", "Ines", "Jan")
_OPENING = datetime(2026, 1, 5, 8, 0, tzinfo=UTC)
AMOUNT = re.compile(r"[0-9]{1,18}(?:\.[0-9]{1,2})?", re.ASCII)


class InvalidTransactions(StartFailed):
    """The transactions cannot be used, or the directory holds others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """amount: above or equal to 0, with exactly two decimals, as text: an unrounded decimal."""

    transaction_id: str
    account: str
    kind: Kind
    amount: str
    occurred_at: str


def generated(count: int = 1000, customers: int = 5, seed: int = 2020) -> list[Transaction]:
    """The same ones for the same arguments, with every Python: only `random()` is used, which is promised never to change."""
    rng = random.Random(seed)  # noqa: S311  # play money
    now = _OPENING
    made = []
    for number in range(1, count + 1):
        now += timedelta(seconds=1 + int(rng.random() * 300))
        is_deposit = rng.random() < 0.6
        cents = 1 + int(rng.random() * (500_000 if is_deposit else 300_000))
        made.append(
            Transaction(
                transaction_id=f"t{number:06}",
                account=_account(int(rng.random() * customers)),
                kind="deposit" if is_deposit else "withdrawal",
                amount=f"{cents // 100}.{cents % 100:02}",
                occurred_at=now.isoformat().replace("+00:00", "Z"),
            )
        )
    return made


def _account(number: int) -> str:
    rounds, index = divmod(number, len(_NAMES))
    return _NAMES[index] + (f" {rounds + 1}" if rounds else "")


def expected_balances(rows: Iterable[Transaction]) -> dict[str, Decimal]:
    """Deposits minus withdrawals of each account, exactly."""
    balances: defaultdict[str, Decimal] = defaultdict(lambda: Decimal("0.00"))
    with localcontext(prec=100) as context:
        context.traps[Inexact] = True
        for row in rows:
            amount = Decimal(row.amount)
            balances[row.account] += amount if row.kind == "deposit" else -amount
    return dict(balances)


def expected_events(rows: Iterable[Transaction]) -> dict[str, int]:
    """How many transactions each account has."""
    return dict(Counter(row.account for row in rows))


def write(rows: Sequence[Transaction], directory: Path, files: int = FILES) -> list[Path]:
    """Write transactions-1.csv, ...: rows are dealt out one by one, so that the files are of equal length.

    Existing files stay untouched, because a feed may have read them. Raises InvalidTransactions, and writes nothing, if the
    directory holds other transactions than these.
    """
    wanted = {directory / f"transactions-{n}.csv": _csv(rows[n - 1 :: files]) for n in range(1, files + 1)}
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for path in sorted(set(directory.glob("transactions-*.csv")) - set(wanted)):
            _refuse_other(path)
        missing = [path for path, content in wanted.items() if not _holds(path, content)]
        for path in missing:
            _write(path, wanted[path])
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InvalidTransactions(
            f"'{error.filename or directory}' cannot be written ({reason}): use another directory"
        ) from None
    return list(wanted)


def _csv(rows: Iterable[Transaction]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL)  # else a lone \r would be unquoted
    writer.writerow(COLUMNS)
    writer.writerows([getattr(row, name) for name in COLUMNS] for row in rows)
    return text.getvalue().encode()


def _holds(path: Path, content: bytes) -> bool:
    """False if there is no such file. Raises InvalidTransactions if it has other content."""
    try:
        found = path.read_bytes()
    except FileNotFoundError:
        return False
    if found != content:
        _refuse_other(path)
    return True


def _refuse_other(path: Path) -> NoReturn:
    raise InvalidTransactions(
        f"'{path}' holds other transactions than these: use an empty directory, or the ones it was made with"
    )


def _write(path: Path, content: bytes) -> None:
    """Write the file whole or not at all; until it is whole, it has a name that no feed looks for."""
    unfinished = path.with_suffix(".unfinished")
    with unfinished.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
