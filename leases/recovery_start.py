"""Where a lease begins anew whose document was deleted, as far as its sink or its parents know, and what to tell of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from leases.lease import Lease
from leases.recovery import Standing, names_of, of_one, to_reset, unknown

StandingOf = Callable[[str], Awaitable[Standing | None]]
"""partition -> where the sink says that it stands; None where it holds nothing of it."""


async def recover(lease: Lease, family: Sequence[str], standing_of: StandingOf | None) -> tuple[Lease | None, str]:
    """A lost lease where its sink says that it, or what it came from, stands; None where nobody knows. And what to tell of it."""
    if (
        standing_of is None and not family
    ):  # docs/decisions/0006: nothing of it is skipped, whoever left it without a lease
        return (
            lease,
            "it had no lease (was it deleted?), and nobody knows where it stood: it begins at the feed's beginning",
        )
    if standing_of is None:
        return None, unknown(lease, family)
    if (own := await _standing_of(lease, standing_of)) is not None:
        return _stands(lease, own)
    known = [one for name in family if (one := await standing_of(name)) is not None]
    if not known:
        return lease, "its lease was deleted, and its sink holds nothing of it: it begins at the feed's beginning"
    if (one := of_one(known)) is None:
        return None, unknown(lease, family)
    placed = replace(lease, continuation=one.position, parents=tuple(family))
    return (
        placed,
        f"the lease of what it came from was deleted: it goes on where the sink stands with that ({one.position})",
    )


async def recover_child(lease: Lease, standing_of: StandingOf | None) -> tuple[Lease, str]:
    """A lost lease whose parents are still there, where its sink says that it stands, or else where they ended."""
    own = None if standing_of is None else await _standing_of(lease, standing_of)
    if own is not None:
        return _stands(lease, own)
    who = "nobody knows where it stood" if standing_of is None else "its sink holds nothing of it"
    where = f"where {names_of(lease.parents)} ended ({_place(lease)})"
    return (
        lease,
        f"its lease was deleted, and {who}: it begins once more {where}; to begin elsewhere, {to_reset(lease)}",
    )


def put_back(lease: Lease) -> str:
    """What to tell of one that this host has seen."""
    where = f"where this host saw it last ({_place(lease)})"
    what = f"the lease of partition '{lease.partition}' was deleted"
    return f"{what}: it is put back {where}; to begin elsewhere, {to_reset(lease)}"


async def _standing_of(lease: Lease, standing_of: StandingOf) -> Standing | None:
    """None too where somebody has had the lease, and delivered nothing of it. In a later generation it was somebody's order to
    begin at the beginning."""
    own = await standing_of(lease.partition)
    return None if own is not None and own.position is None and own.generation == lease.generation else own


def _stands(lease: Lease, own: Standing) -> tuple[Lease, str]:
    placed = replace(lease, continuation=own.position, generation=own.generation)
    return placed, f"its lease was deleted: it goes on where its sink stands ({own.position})"


def _place(lease: Lease) -> str:
    return "the feed's beginning" if lease.continuation is None else lease.continuation
