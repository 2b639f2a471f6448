"""The place in a file up to which it was read, and the position after each record of a page. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from leasehold.pipeline.connectors.files.feed.position import FilePosition, Fingerprint
from leasehold.pipeline.connectors.files.feed.records import Offsets, Opening

WINDOW_BYTES = 1024 * 1024
OVERLAP_BYTES = 1024


@dataclass(frozen=True, slots=True)
class FileStatus:
    """The file system's data about a file."""

    device: int
    inode: int
    size: int
    mtime_ns: int

    @property
    def file(self) -> str:
        return f"{self.device}:{self.inode}"

    @property
    def written_us(self) -> int:
        return self.mtime_ns // 1000

    def is_continued_by(self, other: FileStatus) -> bool:
        """Whether it seems that the file has only grown since. The same size with another mtime is an edit in place."""
        return self.file == other.file and (self == other or self.size < other.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class PassedBytes:
    """What is known of the bytes before a cursor."""

    prefix: Fingerprint = field(default_factory=Fingerprint)
    """The fingerprint of all of them."""
    overlap: bytes = b""
    """The last of them. Every read verifies them once more."""
    planned: Fingerprint | None = None
    """The fingerprint of the bytes after the beginning of a range, while ranges are planned."""

    def extended(self, data: bytes) -> PassedBytes:
        return PassedBytes(
            prefix=self.prefix.extended(data),
            overlap=(self.overlap + data)[-OVERLAP_BYTES:],
            planned=None if self.planned is None else self.planned.extended(data),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """The position of reading in a file.

    - `offset`, `record`, `line`: of what is read next.
    """

    seen: FileStatus
    opening: Opening | None = None
    """What precedes its first record; None if that is not read yet."""
    offset: int = 0
    record: int = 0
    line: int = 1
    passed: PassedBytes = field(default_factory=PassedBytes)
    header: str = ""
    position: FilePosition | None = None
    """The position after the last record, None if there was none. Blank lines may follow before `offset`."""
    window: int = WINDOW_BYTES
    """How many bytes to read next."""

    @property
    def is_unterminated(self) -> bool:
        """Whether the last record was taken without its line end, and that has not followed yet."""
        return self.position is not None and self.position.unterminated and self.position.offset == self.offset

    @property
    def encoded(self) -> str:
        assert self.position is not None, "there is a record before it"
        return self.position.encode()

    def moved(self, data: bytes, lines: int) -> Cursor:
        """The cursor after `data`, which follows this one."""
        return replace(
            self,
            offset=self.offset + len(data),
            line=self.line + lines,
            passed=self.passed.extended(data),
        )


@dataclass(frozen=True, slots=True)
class Trail:
    """Computes the position after any record of a page on request.

    before: where the page began. data: the bytes that it was made from. ends, lines: of its records, as in `Cut`.
    reached: after how many records the last position was, and its cursor. A page is cut from front to back, so each of its bytes
    is fingerprinted only once, however many batches the page becomes.
    """

    before: Cursor
    data: bytes
    ends: Offsets
    lines_behind: Offsets
    reached: dict[int, Cursor] = field(default_factory=dict)

    def cursor_behind(self, count: int) -> Cursor:
        return self._moved(0, self.before, count)

    def _moved(self, done: int, since: Cursor, count: int) -> Cursor:
        """The cursor after `count` records. since: the one after `done` records."""
        start, lines_before = (int(self.ends[done - 1]), int(self.lines_behind[done - 1])) if done else (0, 0)
        end, lines = int(self.ends[count - 1]), int(self.lines_behind[count - 1])
        is_unterminated = end > len(self.data)
        cursor = since.moved(self.data[start:end], lines - lines_before - is_unterminated)
        position = FilePosition(
            offset=cursor.offset,
            record=cursor.record + count - done,
            line=cursor.line,
            header=cursor.header,
            prefix=cursor.passed.prefix.text,
            file=cursor.seen.file,
            unterminated=is_unterminated,
        )
        return replace(cursor, record=position.record, position=position)

    def position_behind(self, count: int) -> str:
        done, since = next(((done, at) for done, at in self.reached.items() if done <= count), (0, self.before))
        cursor = since if done == count else self._moved(done, since, count)
        self.reached.clear()
        self.reached[count] = cursor
        return cursor.encoded
