"""A directory as a place for files: a local disk, or one that several hosts share.

A file is written elsewhere, synced to the disk, and then linked to its name: link(2) is atomic and refuses a taken name.
"""

from __future__ import annotations

import errno
import os
import platform
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from leasehold.pipeline.connectors.files.sink.storage import FilesRefused, FilesUnavailable, FilesUncertain
from leasehold.pipeline.connectors.network import is_of_path, sync_directory
from leasehold.pipeline.crash_point import crash_point

ROOM = "_leasehold/.writing"
"""Where files are written before they have their names."""
ABANDONED_S = 86_400.0
"""The age from which a file counts as abandoned. Deleting it too early does no harm: its writer tries again."""
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


class Directory:
    """On file systems with hard links: ext4, XFS, Btrfs, ZFS, APFS; not FAT, SMB or mounted blob storage."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(os.path.abspath(path))  # links are not resolved: it is a name for people, too

    @property
    def identity(self) -> str:
        return f"files:{self._path}"

    def prepare(self) -> None:
        room = self._path / ROOM
        with _translating_errors(f"directory '{self._path}'"):
            _make_folder(room)
            self._sweep(room)
        try:
            self.put(f"_leasehold/.probe-{uuid.uuid4().hex}", b"")
        finally:
            for probe in (self._path / "_leasehold").glob(".probe-*"):
                probe.unlink(missing_ok=True)

    def put(self, name: str, content: bytes) -> bool:
        path = self._path / name
        written = self._path / ROOM / uuid.uuid4().hex
        with _translating_errors(f"file '{path}'"):
            _make_folder(written.parent)
            _make_folder(path.parent)
            try:
                _write_file(written, content)
                crash_point("before link")
                is_made = self._link(written, path)
            finally:
                with suppress(OSError):
                    written.unlink()
        try:
            sync_directory(path.parent)  # also if another made it: what we build on it must not outlive it
        except OSError as error:
            raise FilesUncertain(f"file '{path}' might not survive a loss of power: {_why(error)}") from error
        return is_made

    def get(self, name: str) -> bytes | None:
        path = self._path / name
        with _translating_errors(f"file '{path}'"):
            try:
                return path.read_bytes()
            except FileNotFoundError:
                return None

    def size(self, name: str) -> int | None:
        path = self._path / name
        with _translating_errors(f"file '{path}'"):
            try:
                return path.stat().st_size
            except FileNotFoundError:
                return None

    def names(self, folder: str) -> list[str]:
        top = self._path / folder
        with _translating_errors(f"directory '{top}'"):
            return [path.relative_to(self._path).as_posix() for path in _files_below(top)]

    def delete(self, name: str) -> None:
        path = self._path / name
        with _translating_errors(f"file '{path}'"):
            path.unlink(missing_ok=True)

    def locate(self, name: str) -> str:
        return str(self._path / name)

    def for_executors(self, mark: str) -> Directory:
        """Executors need the same directory under the same path."""
        return _MarkedDirectory(self._path, mark)

    def close(self) -> None:
        """Nothing is held."""

    def _link(self, written: Path, path: Path) -> bool:
        try:
            os.link(written, path)
        except FileExistsError:
            return (
                os.stat(written).st_nlink == 2
            )  # over NFS, the answer to a link that was made may be lost, and the client tries to make it again
        except FileNotFoundError:
            raise
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise FilesUncertain(f"file '{path}' may or may not exist: {_why(error)}") from error
            raise FilesUnavailable(
                f"directory '{self._path}' is on a file system without hard links ({_why(error)}), on which no two"
                " hosts can be kept apart: use another one, or a blob container"
            ) from error
        return True

    def _sweep(self, room: Path) -> None:
        oldest = time.time() - ABANDONED_S
        for left in room.iterdir():
            with suppress(FileNotFoundError):
                if left.stat().st_mtime < oldest:
                    left.unlink()


class _MarkedDirectory(Directory):
    """For an executor: `put` writes nothing if `mark` is missing. A worker without the mount would fill its own disk."""

    def __init__(self, path: Path, mark: str) -> None:
        super().__init__(path)
        self._mark = mark

    def put(self, name: str, content: bytes) -> bool:
        self._check_mark()
        return super().put(name, content)

    def _check_mark(self) -> None:
        with _translating_errors(f"directory '{self._path}'"):
            if _exists(self._path / self._mark):
                return
        raise FilesRefused(
            f"an executor on '{platform.node()}' finds no '{self._mark}' in '{self._path}', so this is not the sink's directory:"
            " mount that under the same path on the host and on every worker"
        )


def _exists(path: Path) -> bool:
    """Raises OSError if that is unknown, unlike Path.exists in some versions of Python."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _files_below(top: Path) -> Iterator[Path]:
    """All files below, except those that are being written. A missing folder has none."""
    try:
        entries = sorted(os.scandir(top), key=lambda entry: entry.name)
    except FileNotFoundError:
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            yield from _files_below(Path(entry.path))
        else:
            yield Path(entry.path)


def _make_folder(directory: Path) -> None:
    """Create a directory and its parents. All of them survive a loss of power."""
    if directory.is_dir():
        return
    _make_folder(directory.parent)
    with suppress(FileExistsError):
        directory.mkdir()
    sync_directory(directory.parent)


def _write_file(path: Path, content: bytes) -> None:
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def _translating_errors(what: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise FilesUnavailable(f"{what}: its folder was removed meanwhile: try again") from error
    except OSError as error:
        kind = FilesRefused if is_of_path(error) else FilesUnavailable
        raise kind(f"{what} cannot be reached: {_why(error)}") from error


def _why(error: OSError) -> str:
    remedies = {
        errno.ENOSPC: "the disk is full: free some space",
        errno.EDQUOT: "the quota is used up: free some space",
        errno.EROFS: "it is read-only: let this process write there",
        errno.EACCES: "let this process read and write there",
        errno.EIO: "the disk failed: look into the system's log",
    }
    return remedies.get(error.errno or 0) or error.strerror or type(error).__name__
