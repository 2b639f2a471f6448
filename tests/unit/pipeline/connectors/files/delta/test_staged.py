"""Names of staged files: they say whose they are, and only those of an earlier epoch of their own lease are outranked."""

from __future__ import annotations

import pytest

from leasehold.pipeline.connectors.files.delta.record import app_id_of
from leasehold.pipeline.connectors.files.delta.staged import Staging, lease_of, outranked, prefix_of, staging_of
from leasehold.pipeline.connectors.files.delta.table import _OWN

LEASE, OTHER = app_id_of("pipeline", "p/ü 1"), app_id_of("pipeline", "q")
UNIQUE = "0123456789abcdef" * 2


def name(app_id: str = LEASE, epoch: int = 7, start: str | None = "12", compression: str = "zstd") -> str:
    return f"part-{prefix_of(app_id, epoch, start)}-{UNIQUE}.{compression}.parquet"


@pytest.mark.parametrize("epoch", [0, 1, 2**63 - 1])
@pytest.mark.parametrize("start", [None, "12", "a/b ü%\ud800"])
def test_a_name_bears_lease_and_epoch_and_is_one_that_a_vacuum_knows(epoch: int, start: str | None) -> None:
    assert staging_of(name(epoch=epoch, start=start)) == Staging(lease_of(LEASE), epoch)
    assert _OWN.fullmatch(name(epoch=epoch, start=start))


def test_names_of_other_leases_epochs_and_batches_differ() -> None:
    names = [name(), name(OTHER), name(epoch=8), name(start="13"), name(start=None), name(start="None")]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    "other",
    [
        f"part-{UNIQUE}.zstd.parquet",
        "part-00000-20920624-2224-4bb1-bf20-82e3d996e72f-c000.snappy.parquet",
        f"below/{name()}",
        f"{name()}.crc",
        name().replace("-0000000000000000007-", "-7-"),
        name().replace(UNIQUE, "x"),
    ],
)
def test_other_names_say_nothing_of_a_lease(other: str) -> None:
    assert staging_of(other) is None
    assert outranked([other], {lease_of(LEASE): 100}) == []


def test_files_of_earlier_epochs_of_their_lease_are_outranked_and_no_others() -> None:
    names = [name(epoch=6), name(epoch=7), name(epoch=8), name(OTHER, epoch=1)]
    assert outranked(names, {lease_of(LEASE): 7}) == [name(epoch=6)]
    assert outranked(names, {}) == []
