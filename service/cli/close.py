"""The command `leasehold leases close`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from leases.document import advised
from leases.errors import InvalidDocument, StoreAmbiguous, StoreConflict, StoreMissing
from service.cli.common import FAILED, FILE, NAMES_MAY_BEGIN_WITH_A_DASH, USAGE, fail, read_offline, unread_is_fine
from service.errors import NotNow
from service.texts import counted, redacted

if TYPE_CHECKING:
    from leases.keeper import Keeper
    from leases.lineage import Partition
    from service.group.view import View


@click.command("close", context_settings=NAMES_MAY_BEGIN_WITH_A_DASH)
@FILE
@click.argument("pipeline")
@click.argument("partitions", metavar="[PARTITION]...", nargs=-1)
@click.option("--gone", "all_gone", is_flag=True, help="Close every lease whose partition the feed no longer lists.")
@click.option(
    "--skip-rest",
    is_flag=True,
    help="Also close leases with events left. Those events are never read.",
)
@click.option(
    "--forget",
    is_flag=True,
    help="Leave no tombstone, and remove those of closed leases. Hosts delete the document once the file has gone; a file that"
    " comes back under its name is read from the beginning.",
)
def close_leases(
    file: Path, pipeline: str, partitions: tuple[str, ...], all_gone: bool, skip_rest: bool, forget: bool
) -> None:
    """Close the leases of files that are done, so that you can archive the files. No host reads them any more.

    A lease with events left stays open. A closed lease stays in the list: if the file comes back under its name, hosts warn
    and do not read it again. `leases reset` opens the lease. An owner loses the lease at its next write. Each lease gets one
    line of output. The exit code is 1 if a lease could not be closed.
    """
    if bool(partitions) == all_gone:
        fail("name the partitions to close, or use --gone for all that the feed no longer lists", code=USAGE)

    async def close(view: View, keeper: Keeper) -> int:
        from service.group.actions import list_partitions

        listed = await list_partitions(view.pipelines[pipeline])
        names = (
            await _find_gone(view, pipeline, listed, skip_rest, forget) if all_gone else list(dict.fromkeys(partitions))
        )
        failed = [name for name in names if not await _close(view, keeper, pipeline, name, listed, skip_rest, forget)]
        if all_gone and not names:
            click.echo(
                f"nothing to close: the feed of pipeline '{pipeline}' lists every partition that has an open lease"
            )
        return len(failed)

    if read_offline(file, close, pipeline):
        sys.exit(FAILED)


async def _find_gone(
    view: View, pipeline: str, listed: Sequence[Partition], skip_rest: bool, forget: bool
) -> Sequence[str]:
    """Raises NotNow if the feed lists nothing at all: a directory that is not mounted looks empty."""
    from service.group.actions import forgettable, gone

    leases = [status.lease for status in (await view.read_group()).leases.values() if status.lease.pipeline == pipeline]
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
    """Whether it is closed now. An error of one lease does not stop the others."""
    from service.group.actions import cleared_after_s, close_lease, describe

    try:
        closed = await close_lease(
            keeper, view.pipelines[pipeline], partition, listed, skip_rest=skip_rest, forget=forget
        )
    except StoreMissing:
        why = f"pipeline '{pipeline}' has no lease '{partition}': `leasehold leases list` lists its leases"
    except InvalidDocument as error:
        why = str(advised(error, pipeline, partition))
    except (NotNow, StoreConflict, StoreAmbiguous) as error:
        why = str(error)
    else:
        with unread_is_fine():  # otherwise the leases after this one would stay open
            click.echo(describe(closed, cleared_after_s=cleared_after_s(keeper.timing)))
        return True
    click.echo(f"leasehold: {redacted(why)}", err=True)
    return False
