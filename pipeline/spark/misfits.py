"""The events of a job whose bodies do not fit: which slice each of them belongs to, and the events without them. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.batch import without
from pipeline.errors import Poison
from pipeline.parsing.parse import Misfit
from pipeline.spark.partition_contract import PARTITION


def refused_in(misfits: Sequence[Misfit], slices: Sequence[int]) -> dict[int, tuple[Poison, ...]]:
    """By the number of the slice; its poison by place in it. slices: how many events each of them has, one behind the other."""
    starts = [0, *accumulate(slices)]
    found: dict[int, tuple[Poison, ...]] = {}
    for misfit in misfits:
        number = bisect_right(starts, misfit.index) - 1
        poison = Poison(index=misfit.index - starts[number], reason=str(misfit), is_misfit=True)
        found[number] = (*found.get(number, ()), poison)
    return found


def fitting(events: pa.Table, misfits: Sequence[Misfit]) -> pa.Table:
    return without(events, [misfit.index for misfit in misfits])


def of_partitions(events: pa.Table, partitions: Sequence[str]) -> pa.Table:
    return events.filter(pc.is_in(events.column(PARTITION), pa.array(partitions, pa.string())))
