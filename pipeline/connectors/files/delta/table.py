"""A Delta table, as the sink needs it; the only module that uses deltalake.

deltalake (delta-rs) reads the log, commits, writes checkpoints, merges and compacts. By default it rebases a commit over
others that came first, and refuses that only if one of them names the same application. On a snapshot that already has such a
commit, it accepts any number, even the same again. So the caller compares the numbers of a snapshot, and a commit that is based
on it is never rebased: it is a compare-and-swap of the table's version. The tests of this module show all that.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction
from deltalake.exceptions import (
    CommitFailedError,
    DeltaError,
    DeltaProtocolError,
    SchemaMismatchError,
    TableNotFoundError,
)
from deltalake.transaction import AddAction

from leasehold.common.nesting import parsed_json
from leasehold.pipeline.connectors.files.delta.protocol import Demands, check
from leasehold.pipeline.connectors.files.delta.staged import STEM
from leasehold.pipeline.connectors.files.sink.storage import FilesError, FilesUnavailable, FilesUncertain
from leasehold.pipeline.connectors.network import sync_directory
from leasehold.pipeline.errors import OutputRefused, SinkRejected
from leasehold.pipeline.limits import JSON_LEVELS_MAX

T = TypeVar("T")
LOG = "_delta_log"
FOLLOWED_MAX = 20
"""After more new entries than this, the sink gets numbers from deltalake again."""
TRIES_OF_LIBRARY = 0
"""deltalake must not retry: before each try, the sink reads the table again, compares the numbers, and checks each permit."""
UNNAMED_HOURS = 24
"""How long a vacuum keeps files that the log does not name, also if the table's retention is shorter: a commit that is under way
may name them. No commit takes that long."""
_EMULATOR = "AZURITE_BLOB_STORAGE_URL"
_opening_emulated = threading.Lock()
_COLORS = re.compile(r"\x1b\[\d*m|\u21b3")
_OF_LIBRARY = r"\d{5}-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}-c\d{3}"
_OWN = re.compile(rf"part-([0-9a-f]{{32}}|{STEM}|{_OF_LIBRARY})\.\w+\.parquet")
"""A data file in the table's own folder, by its name: of the sink, of executors, or of a merge or compaction of deltalake."""
_OF_VALUES = re.compile(
    r"MERGE matched a target row with multiple source rows|Invalid data found|Arrow error: Cast error"
)
_OF_COLUMNS = re.compile(r"Schema error|Error during planning|type_coercion|This feature is not implemented")
_OF_STORE = re.compile(r"Generic (?!DeltaTable)\w+ error|Object at location|Object store error")
"""Why a merge failed, in deltalake's messages. One that names the store may be about any request."""
_OF_PROTOCOL = re.compile(r"Kernel error: (Unsupported|Invalid protocol action|Max catalog version)")
"""Why a table cannot be read, in deltalake's messages, if its protocol is newer."""
_STACK = re.compile(r"\n\s*0: .*", re.DOTALL)
_QUERY = re.compile(r"(https?://[^\s?]+)\?\S*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """uri: as deltalake takes it. address: for people. folder: of a table in a directory; None elsewhere.

    - `options`: those of its object store. Whenever they change, the table is opened again, because tokens expire.
    - `emulator`: the address of a storage emulator, which deltalake takes only from the environment.
    - `read`: returns the content of a file of the table; None if there is none, or if it cannot be read by name.
    - `delete`: deletes a file of the table, if it exists. Without it, a vacuum leaves files of failed attempts.
    - `explain`: makes an error of what failed and of deltalake's message, from which addresses' queries are removed.
    """

    uri: str
    address: str
    folder: Path | None = None
    options: Callable[[], Mapping[str, str]] = dict
    emulator: str | None = None
    read: Callable[[str], bytes | None] = lambda name: None
    delete: Callable[[str], None] | None = None
    explain: Callable[[str, str], FilesUnavailable] = lambda what, error: FilesUnavailable(f"{what}: {error}")


def location_of(directory: str | os.PathLike[str]) -> Location:
    """A table in a directory."""
    folder = Path(os.path.abspath(directory))

    def read(name: str) -> bytes | None:
        try:
            return (folder / name).read_bytes()
        except OSError:
            return None

    def delete(name: str) -> None:
        (folder / name).unlink(missing_ok=True)

    return Location(uri=str(folder), address=str(folder), folder=folder, read=read, delete=delete)


@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """A data file that a commit adds. stats: JSON, as in Delta's log."""

    name: str
    bytes: int
    stats: str


class Conflicted(FilesError):
    """The log has another entry in the place of this commit's: another writer's, or this one's own, if deltalake tried again
    after an answer was lost. version: the one on which the commit was based. If the table is still at that version, the
    storage has refused the entry for another reason.
    """

    def __init__(self, message: str, *, version: int) -> None:
        super().__init__(message)
        self.version = version


class MergeRefused(FilesUncertain):
    """deltalake cannot merge these rows, and a retry cannot help. It fails before the commit, or in a step after it: the log
    shows which. kind: OutputRefused if values are to blame, SinkRejected if the columns are.
    """

    def __init__(self, message: str, *, kind: type[SinkRejected]) -> None:
        super().__init__(message)
        self.kind = kind


class Table:
    """A table at one version; `refresh` moves it to the newest. Calls block, and must not overlap.

    They raise FilesUnavailable, and SinkRejected for a table that the sink does not write to.
    """

    def __init__(self, location: Location, *, is_rewriting: bool = False) -> None:
        self._at = location
        self._is_rewriting = is_rewriting
        self._table: DeltaTable | None = None
        self._options: dict[str, str] = {}
        self._checked: tuple[Any, ...] = ()
        self._unsynced: int | None = None
        """The first entry of the log that might not survive a loss of power."""
        self._numbers: dict[str, int | None] = {}
        self._numbered = 0
        """The version of the table at which `_numbers` hold."""

    @property
    def columns(self) -> pa.Schema:
        """As of the last `refresh`."""
        return pa.schema(self._now.schema().to_arrow())

    @property
    def version(self) -> int:
        """As of the last `refresh`."""
        return int(self._now.version())

    @property
    def settles_at_once(self) -> bool:
        """Whether a commit cannot be stored after its call has ended, unlike one whose request is on its way to a service."""
        return self._at.folder is not None

    def exists(self) -> bool:
        # not by deltalake's `is_deltatable`: it holds the GIL while it waits for a store, and no lease would be renewed
        def is_opened() -> bool:
            try:
                self._open()
            except TableNotFoundError:
                return False
            return True

        return self._reading("looking for it", is_opened)

    def create(self, columns: pa.Schema) -> None:
        """Create a table with these columns, unless one exists. deltalake creates none without columns."""

        def made() -> None:
            options = dict(self._at.options())
            self._unsynced = 0
            with _reaching(self._at.emulator):
                DeltaTable.create(self._at.uri, Schema.from_arrow(columns), mode="error", storage_options=options)
            self._sync()

        try:
            self._reading("creating it", made)
        except FilesUnavailable:
            if not self.exists():
                raise

    def refresh(self) -> None:
        """Read what was committed since. Checks that the sink may write to the table."""
        if self._table is None or dict(self._at.options()) != self._options:
            self._reading("reading its log", self._open)
        else:
            self._reading("reading its log", self._table.update_incremental)
        self._reading("syncing its log", self._sync)
        self._check()

    def number_of(self, app_id: str) -> int | None:
        """The number that the log has for an application; None if it has none.

        For each application, deltalake reads all entries since the last checkpoint. So the sink gets a number from it once, and
        then reads new entries only.
        """
        self._follow()
        if app_id not in self._numbers:
            table = self._now
            self._numbers[app_id] = self._reading("reading its log", lambda: table.transaction_version(app_id))
        return self._numbers[app_id]

    def add_columns(self, columns: Sequence[pa.Field]) -> None:
        """Raises Conflicted if another writer changed the table meanwhile."""
        fields = Schema.from_arrow(pa.schema(columns)).fields
        self._committing(
            f"adding the column '{columns[0].name}'",
            lambda: self._now.alter.add_columns(
                [Field(each.name, each.type) for each in fields], commit_properties=self._properties({})
            ),
        )

    def commit(self, added: Sequence[Added], numbers: Mapping[str, int]) -> None:
        """Add the files and move the applications to their numbers, in one step, unless the table has moved since `refresh`.

        Raises Conflicted, FilesUncertain.
        """
        now_ms = int(time.time() * 1000)
        actions = [AddAction(each.name, each.bytes, {}, now_ms, True, each.stats) for each in added]
        table = self._now
        self._committing(
            "committing",
            lambda: table.create_write_transaction(
                list(actions), "append", table.schema(), commit_properties=self._properties(numbers)
            ),
        )

    def merge(self, rows: pa.Table, key: Sequence[str], numbers: Mapping[str, int]) -> None:
        """Replace the rows with these keys, insert the others, and move the applications, in one step.

        rows: one for each key. Raises Conflicted, FilesUncertain, MergeRefused.
        """
        same = " AND ".join(f"target.{_quoted(name)} = source.{_quoted(name)}" for name in key)
        columns = {_quoted(name): f"source.{_quoted(name)}" for name in rows.column_names}

        def merged() -> None:
            merger = self._now.merge(
                rows, same, source_alias="source", target_alias="target", commit_properties=self._properties(numbers)
            )
            merger.when_matched_update(columns).when_not_matched_insert(columns).execute()

        try:
            self._committing("merging", merged)
        except FilesUncertain as error:
            if isinstance(error.__cause__, DeltaError) and (kind := _refusal_of(error.__cause__)) is not None:
                raise MergeRefused(
                    f"the Delta table {self._at.address} refuses to merge the output ({_in_line(error.__cause__)}): change the"
                    " transform, or the table",
                    kind=kind,
                ) from error
            raise

    def compact(self, target_bytes: int | None = None) -> Mapping[str, Any]:
        """Rewrite small files as larger ones. Returns deltalake's figures. Raises Conflicted, FilesUncertain."""
        return self._committing("compacting", lambda: self._now.optimize.compact(target_size=target_bytes))

    def unnamed(self) -> list[str]:
        """Files in the table's folders, of any age and origin, that are neither in the table nor removed from it.

        The log remembers removed files for at least the table's retention.
        """

        def found() -> list[str]:
            listed = partial(self._now.vacuum, retention_hours=0, enforce_retention_duration=False, dry_run=True)
            unneeded = listed(full=True)
            removed = set(listed(full=False))
            return [name for name in unneeded if name not in removed]

        return self._reading("listing its files", found)

    def vacuum(self, *, retention_hours: int | None, dry_run: bool, more: Collection[str] = ()) -> list[str]:
        """Delete files that no commit within the retention names, also those of failed attempts. Returns their names.

        The retention is for readers of older versions. Files that the log has never named are kept for UNNAMED_HOURS at least.

        more: names of files to delete whatever their age. They are in the table's own folder.

        A full vacuum of deltalake deletes every file below the table's folder that the log does not name, also those of another
        table in a subfolder. So it is only used to list them, and files of failed attempts are recognized by their names.
        """

        def vacuumed() -> list[str]:
            listed = partial(self._now.vacuum, dry_run=True, full=True)
            old = set(listed(retention_hours=UNNAMED_HOURS, enforce_retention_duration=False))
            unnamed = [name for name in listed(retention_hours=retention_hours) if name in old]
            gone = self._now.vacuum(retention_hours=retention_hours, dry_run=dry_run, full=False)
            if (delete := self._at.delete) is None:
                return gone
            known = set(gone)
            left = [name for name in dict.fromkeys((*unnamed, *more)) if name not in known and _OWN.fullmatch(name)]
            for name in left if not dry_run else ():
                delete(name)
            return [*gone, *left]

        return self._reading("deleting old files", vacuumed)

    def _open(self) -> None:
        options = dict(self._at.options())
        with _reaching(self._at.emulator):
            self._table = DeltaTable(self._at.uri, storage_options=options)
        self._options = options
        self._numbers = {}

    def _follow(self) -> None:
        """Move the known numbers to the table's version."""
        version = self._now.version()
        if not 0 <= version - self._numbered <= FOLLOWED_MAX:
            self._numbers = {}
        for each in range(self._numbered + 1, version + 1) if self._numbers else ():
            if (entry := self._at.read(f"{LOG}/{each:020d}.json")) is None:
                self._numbers = {}
                break
            self._numbers.update(_numbers_in(entry))
            self._numbered = each
        self._numbered = version

    @property
    def _now(self) -> DeltaTable:
        assert self._table is not None, "a table is read before it is used"
        return self._table

    def _properties(self, numbers: Mapping[str, int]) -> CommitProperties:
        transactions = [Transaction(app_id, number) for app_id, number in numbers.items()]
        return CommitProperties(max_commit_retries=TRIES_OF_LIBRARY, app_transactions=transactions)

    def _check(self) -> None:
        protocol, metadata = self._now.protocol(), self._now.metadata()
        found = (protocol, metadata.configuration, metadata.partition_columns, self._now.schema())
        if found == self._checked:
            return
        demands = Demands(
            writer_version=protocol.min_writer_version,
            writer_features=protocol.writer_features or (),
            properties=metadata.configuration,
            partition_columns=metadata.partition_columns,
            columns=self.columns,
        )
        check(demands, self._at.address, is_rewriting=self._is_rewriting)
        self._checked = found

    def _reading(self, doing: str, call: Callable[[], T]) -> T:
        try:
            return call()
        except DeltaProtocolError as error:
            raise SinkRejected(f"the Delta table {self._at.address} cannot be used: {_in_line(error)}") from error
        except TableNotFoundError as error:
            self._table = None
            raise FilesUnavailable(
                f"the Delta table {self._at.address} does not exist any more: restore it, or start the host again to create it"
            ) from error
        except (DeltaError, OSError) as error:
            self._table = None
            if _OF_PROTOCOL.search(str(error)):
                raise SinkRejected(
                    f"the Delta table {self._at.address} asks for more than the sink `files` can read ({_in_line(error)}): use a"
                    " newer version of Leasehold, or write to another table"
                ) from error
            what = f"the Delta table {self._at.address} cannot be reached, {doing}"
            raise self._at.explain(what, _in_line(error)) from error

    def _committing(self, doing: str, call: Callable[[], T]) -> T:
        before = self._now.version()
        try:
            result = call()
        except CommitFailedError as error:
            message = (
                f"the Delta table {self._at.address}, {doing}: its entry was not taken into the log ({_in_line(error)})"
            )
            raise Conflicted(message, version=before) from error
        except DeltaProtocolError as error:
            raise SinkRejected(f"the Delta table {self._at.address} cannot be written to: {_in_line(error)}") from error
        except (DeltaError, OSError) as error:
            self._note_unsynced(before + 1)
            what = f"the Delta table {self._at.address}, {doing}: it may or may not have been done"
            raise FilesUncertain(str(self._at.explain(what, _in_line(error)))) from error
        self._note_unsynced(before + 1)
        try:
            self._sync()
        except OSError as error:
            raise FilesUncertain(
                f"the Delta table {self._at.address}, {doing}: it is done, but might not survive a loss of power"
                f" ({_in_line(error)}): look into the system's log"
            ) from error
        return result

    def _note_unsynced(self, first: int) -> None:
        self._unsynced = first if self._unsynced is None else min(first, self._unsynced)

    def _sync(self) -> None:
        """Make the entries of a directory's log survive a loss of power, like the files that they name. deltalake does not.

        What cannot be synced now is synced before the table is used again. Raises OSError.
        """
        if self._at.folder is None or self._unsynced is None:
            return
        log = self._at.folder / LOG
        for version in count(self._unsynced):
            try:
                entry = os.open(log / f"{version:020d}.json", os.O_RDONLY)
            except FileNotFoundError:
                break
            try:
                os.fsync(entry)
            finally:
                os.close(entry)
        sync_directory(log)
        self._unsynced = None


def _numbers_in(entry: bytes) -> dict[str, int]:
    """The applications that an entry of the log names, and their numbers."""
    actions = (parsed_json(line, JSON_LEVELS_MAX) for line in entry.splitlines() if b'"txn"' in line)
    return {txn["appId"]: txn["version"] for action in actions if (txn := action.get("txn")) is not None}


def _refusal_of(error: DeltaError) -> type[SinkRejected] | None:
    """None for an error that a retry might not meet."""
    text = str(error)
    if _OF_STORE.search(text):
        return None
    if isinstance(error, SchemaMismatchError) or _OF_COLUMNS.search(text):
        return SinkRejected
    return OutputRefused if _OF_VALUES.search(text) else None


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@contextmanager
def _reaching(emulator: str | None) -> Iterator[None]:
    """A table that is opened within belongs to this emulator."""
    if emulator is None:
        yield
        return
    with _opening_emulated:
        if os.environ.get(_EMULATOR) != emulator:
            os.environ[_EMULATOR] = emulator
        yield


def _in_line(error: Exception) -> str:
    """An error in one line, without the queries of addresses, which may hold signatures, and without the library's stack."""
    text = _QUERY.sub(r"\1", " ".join(_COLORS.sub(" ", _STACK.sub("", str(error))).split()))
    return text[:600] or type(error).__name__
