"""The command `leasehold leases close`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from leases.document import advised
from leases.errors import InvalidDocument, StoreAmbiguous, StoreConflict, StoreMissing
from service.commands import FAILED, FILE, NAMES_MAY_BEGIN_WITH_A_DASH, USAGE, fail, viewed
from service.errors import NotNow
from service.plurals import counted
from service.redaction import redacted
from service.standard_output import unread_is_fine

if TYPE_CHECKING:
    from leases.family import Partition
    from leases.keeper import Keeper
    from service.view import View


@click.command("close", context_settings=NAMES_MAY_BEGIN_WITH_A_DASH)
@FILE
@click.argument("pipeline")
@click.argument("partitions", metavar="[PARTITION]...", nargs=-1)
@click.option("--gone", "all_gone", is_flag=True, help="Every lease whose partition the feed does not list any more.")
@click.option("--skip-rest", is_flag=True, help="Also close where events are left, or may be: they are never read.")
@click.option(
    "--forget",
    is_flag=True,
    help="Leave no tombstone, and remove it from what is closed already: hosts delete the document once the file has gone, and a"
    " file that comes back under the name is read from its beginning.",
)
def close_leases(
    file: Path, pipeline: str, partitions: tuple[str, ...], all_gone: bool, skip_rest: bool, forget: bool
) -> None:
    """Close the leases of files that are done, so that you can archive the files. No host reads them any more.

    A lease with events left stays open. A closed lease stays in the list: a file that comes back under its name is not read
    again, and hosts warn of it. `leases reset` opens it. An owner loses the lease at its next write. Each result is a line; exit
    code 1 if a lease stays open that was to be closed.
    """
    if bool(partitions) == all_gone:
        fail("name the partitions to close, or say --gone for all that the feed does not list any more", code=USAGE)

    async def close(view: View, keeper: Keeper) -> int:
        from service.finish import list_partitions

        listed = await list_partitions(view.pipelines[pipeline])
        names = await _gone(view, pipeline, listed, skip_rest, forget) if all_gone else list(dict.fromkeys(partitions))
        failed = [name for name in names if not await _close(view, keeper, pipeline, name, listed, skip_rest, forget)]
        if all_gone and not names:
            click.echo(
                f"nothing to close: the feed of pipeline '{pipeline}' lists every partition that has an open lease"
            )
        return len(failed)

    if viewed(file, close, pipeline):
        sys.exit(FAILED)


async def _gone(view: View, pipeline: str, listed: Sequence[Partition], skip_rest: bool, forget: bool) -> Sequence[str]:
    """Raises NotNow where the feed lists nothing at all: a directory that is not mounted looks empty."""
    from service.finish import forgettable, gone

    leases = [status.lease for status in (await view.group()).leases.values() if status.lease.pipeline == pipeline]
    names = gone(leases, view.pipelines[pipeline].feed, listed)
    if names and not listed and not skip_rest:
        raise NotNow(
            f"the feed of pipeline '{pipeline}' lists no partition at all, and"
            f" {counted(len(names), 'lease is', 'leases are')} open: is its directory mounted? If all files are done, add"
            " --skip-rest, or name them"
        )
    return [*names, *(forgettable(leases, listed) if forget else [])]


async def _close(
    view: View,
    keeper: Keeper,
    pipeline: str,
    partition: str,
    listed: Sequence[Partition],
    skip_rest: bool,
    forget: bool,
) -> bool:
    """Whether it is closed now. What fails for one is no reason to leave out the others."""
    from service.finish import cleared_after_s, close_lease, told

    try:
        closed = await close_lease(
            keeper, view.pipelines[pipeline], partition, listed, skip_rest=skip_rest, forget=forget
        )
    except StoreMissing:
        why = f"pipeline '{pipeline}' has no lease '{partition}': `leasehold leases list` shows those that it has"
    except InvalidDocument as error:
        why = str(advised(error, pipeline, partition))
    except (NotNow, StoreConflict, StoreAmbiguous) as error:
        why = str(error)
    else:
        with unread_is_fine():  # or the leases behind this one would stay open
            click.echo(told(closed, cleared_after_s=cleared_after_s(keeper.timing)))
        return True
    click.echo(f"leasehold: {redacted(why)}", err=True)
    return False
