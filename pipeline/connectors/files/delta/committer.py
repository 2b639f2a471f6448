"""One commit for all partitions of a host that have output at the same time.

Hosts contend for the next version of a table's log, and every version costs each reader a file to read. So a thread that
commits also commits what other threads have ready: their data files and the numbers of their leases become one entry.
Each lease is judged separately, on the snapshot on which the commit is based: a lease that has moved since, or has no permit, is
left out. If another host's commit comes first, the table is read again, and all are judged again.

Rows that are merged by key share a commit only if they have the same columns. A merge updates all columns of its source, so rows
that lack some of them would set these to null. The same thread commits the other rows next.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import pyarrow as pa

from leasehold.common.clock import Backoff
from leasehold.pipeline.connectors.files.delta.schema import added, columns_of, last_per_key
from leasehold.pipeline.connectors.files.delta.table import Added, Conflicted, MergeRefused, Table
from leasehold.pipeline.connectors.files.sink.storage import FilesError, FilesUnavailable, FilesUncertain
from leasehold.pipeline.crash_point import crash_point
from leasehold.pipeline.errors import Ambiguous, NotTrusted, SinkRejected

COMMITS_MAX = 30
"""How often a commit is tried if others come first."""
_PAUSES = Backoff(first_s=0.01, max_s=0.5)


class Moved(FilesError):
    """The lease has another number than its owner knows: that of another owner, or of another attempt."""


class ColumnsChanged(FilesError):
    """The table's columns are no longer those for which the output was made: make it again."""


@dataclass(slots=True, kw_only=True, eq=False)
class Change:
    """What one lease commits.

    - `before`: the number that the log has for the lease, None for none. `number`: the one that the lease gets.
    - `columns`: of the data files; None if there are none.
    - `rows`: to be merged by key.
    - `check`: called right before each attempt. Raises NotTrusted.
    - `was_sent`: whether there was an attempt. From then on, a stored commit may name its data files, whatever the outcome: an
      answer may be lost, and an owner that finds a later claim cannot see what came before that claim.
    """

    app_id: str
    before: int | None
    number: int
    check: Callable[[], None]
    files: tuple[Added, ...] = ()
    columns: pa.Schema | None = None
    rows: pa.Table | None = None
    was_sent: bool = False
    outcome: Future[None] = field(default_factory=Future)


class Committer:
    """Calls block. They raise FilesUnavailable, and SinkRejected for a table that the sink does not write to.

    key: columns by which rows are merged. If several leases have rows with the same key, one row counts. Which one is not
    defined.
    """

    def __init__(self, table: Table, *, key: Sequence[str] = ()) -> None:
        self._table = table
        self._key = tuple(key)
        self._using_table = threading.Lock()
        self._queueing = threading.Lock()
        self._waiting: list[Change] = []
        self._is_there = False
        self._columns: pa.Schema | None = None

    def number_of(self, app_id: str) -> int | None:
        """The newest number of a lease; None if it has none."""
        with self._using_table:
            return self._table.number_of(app_id) if self._refresh() else None

    def check_table(self) -> bool:
        """Whether there is a table, after it was checked that the sink may write to it."""
        with self._using_table:
            return self._refresh()

    @property
    def has_table(self) -> bool:
        """Whether there is a table, as far as is known."""
        return self._is_there

    def prepare_for(self, output: pa.Schema) -> pa.Schema:
        """The table's columns, after adding those of the output that it lacks. Raises SinkRejected."""
        columns = self._columns
        if columns is not None and not added(columns, output):
            return columns
        with self._using_table:
            return self._with_columns(output)

    def commit(self, change: Change) -> None:
        """Raises Moved, whether or not the change was stored before; ColumnsChanged, NotTrusted, FilesUnavailable if surely
        nothing was stored; SinkRejected, OutputRefused if the table never takes the change; else Ambiguous.
        """
        with self._queueing:
            self._waiting.append(change)
        with self._using_table:
            if not change.outcome.done():
                with self._queueing:
                    group, self._waiting = self._waiting, []
                self._commit_all(group)
        change.outcome.result()

    def use(self, call: Callable[[Table], None]) -> None:
        """Do something else with the newest table, between commits."""
        with self._using_table:
            self._refresh()
            call(self._table)

    # While `_using_table` is held

    def _refresh(self) -> bool:
        self._is_there = self._is_there or self._table.exists()
        if self._is_there:
            self._table.refresh()
            self._columns = self._table.columns
        return self._is_there

    def _with_columns(self, output: pa.Schema) -> pa.Schema:
        if not self._refresh():
            self._table.create(columns_of(output))
        conflict: Conflicted | None = None
        for attempt in range(COMMITS_MAX):
            _pause(attempt)
            self._refresh()
            assert self._columns is not None
            if not (new := added(self._columns, output)):
                return self._columns
            if conflict is not None and not self._has_moved_since(conflict):
                raise FilesUnavailable(_refused(conflict)) from conflict
            try:
                self._table.add_columns(new)
            except Conflicted as error:  # done or not: the table shows it
                conflict = error
            except FilesUncertain:
                conflict = None
        raise FilesUnavailable("other writers keep changing the table's columns: try again")

    def _commit_all(self, group: Sequence[Change]) -> None:
        """Afterwards, every change has its outcome."""
        try:
            for together in _by_columns(group):
                try:
                    self._settle(together)
                except Exception as error:
                    _fail(together, error)
        except BaseException as error:
            _fail(group, error)
            raise

    def _settle(self, group: list[Change]) -> None:
        """Commit a group. Raises the error of all changes that have no outcome then."""
        conflict: Conflicted | None = None
        for attempt in range(COMMITS_MAX):
            _pause(attempt)
            group = [change for change in self._look_up(group, conflict) if self._may_go(change)]
            if not group:
                return
            for change in group:
                change.was_sent = True
            crash_point("before commit")
            try:
                self._send(group)
            except Conflicted as error:
                conflict = error
                continue
            except FilesUncertain as error:
                self._settle_doubt(group, error)
                return
            crash_point("commit written")
            for change in group:
                change.outcome.set_result(None)
            return
        if self._look_up(group, conflict):
            raise FilesUnavailable(
                "other writers of the table keep coming first: let fewer hosts write, or use larger batches"
            )

    def _look_up(self, group: Sequence[Change], doubt: Conflicted | FilesUncertain | None) -> list[Change]:
        """The changes that the newest log does not show as done or outranked.

        doubt: the error of the attempt before. A conflict needs a look, too: if a service stores an entry and answers with an
        error, the next try of deltalake meets its own entry. Another commit in its place settles that. Raises Ambiguous.
        """
        try:
            self._refresh()
            unsettled = [change for change in group if not self._is_known(change)]
        except (FilesUnavailable, SinkRejected) as error:
            if doubt is None:
                raise
            raise Ambiguous(f"{doubt}; and it cannot be looked up: {error}") from doubt
        if unsettled and isinstance(doubt, Conflicted) and not self._has_moved_since(doubt):
            raise Ambiguous(_refused(doubt)) from doubt
        return unsettled

    def _has_moved_since(self, conflict: Conflicted) -> bool:
        """Whether another commit came first, as far as the table was read."""
        return self._table.version > conflict.version

    def _settle_doubt(self, group: Sequence[Change], doubt: FilesUncertain) -> None:
        """Look up in the log whether a commit was stored. If not, it may still arrive later, except in a directory.

        The claim that follows takes the version for which such a late commit was meant. A merge that deltalake refused
        does not arrive later. If several leases shared it, each is tried alone, so that only the one to blame stops.
        """
        if left := self._look_up(group, doubt):
            if isinstance(doubt, MergeRefused):
                if len(left) == 1:
                    raise doubt.kind(str(doubt)) from doubt
                for change in left:
                    self._commit_all([change])
                return
            kind = FilesUnavailable if self._table.settles_at_once else Ambiguous
            raise kind(str(doubt)) from doubt

    def _is_known(self, change: Change) -> bool:
        """Whether its lease has moved, by this change or by another."""
        number = self._table.number_of(change.app_id)
        if number == change.number:
            change.outcome.set_result(None)
        elif number != change.before:
            change.outcome.set_exception(Moved(f"the lease is at number {number}, not {change.before}"))
        return change.outcome.done()

    def _may_go(self, change: Change) -> bool:
        if not self._takes(change):
            change.outcome.set_exception(ColumnsChanged("the table's columns were changed"))
            return False
        try:
            change.check()
        except NotTrusted as error:
            change.outcome.set_exception(error)
            return False
        return True

    def _takes(self, change: Change) -> bool:
        assert self._columns is not None
        columns = change.columns if change.rows is None else change.rows.schema
        try:
            return columns is None or not added(self._columns, columns)
        except SinkRejected:
            return False

    def _send(self, group: Sequence[Change]) -> None:
        numbers = {change.app_id: change.number for change in group}
        rows = [change.rows for change in group if change.rows is not None]
        if rows:
            assert not any(change.files for change in group), "a table is appended to, or merged into"
            self._table.merge(last_per_key(pa.concat_tables(rows), self._key), self._key, numbers)
        else:
            self._table.commit([file for change in group for file in change.files], numbers)


def _by_columns(group: Sequence[Change]) -> list[list[Change]]:
    """Groups of changes that may share a commit. Changes without rows, such as claims, join the first group."""
    merged: dict[pa.Schema, list[Change]] = {}
    for change in group:
        if change.rows is not None:
            merged.setdefault(change.rows.schema, []).append(change)
    first, *others = merged.values() or [[]]
    return [[*(change for change in group if change.rows is None), *first], *others]


def _fail(group: Sequence[Change], error: BaseException) -> None:
    """Give the error to those changes that have no outcome yet."""
    for change in group:
        if not change.outcome.done():
            change.outcome.set_exception(error)


def _refused(conflict: Conflicted) -> str:
    return (
        f"{conflict}; but no other commit came first: the storage refuses new entries of the log. Check that the container is"
        " enabled and not being deleted"
    )


def _pause(attempt: int) -> None:
    if attempt:
        time.sleep(_PAUSES.pause_s(attempt, random.random()))  # noqa: S311  # jitter
