"""bytewax as a side of `peers.py`: a dataflow in one process, with one thread of Python.

Whole micro-batches are passed on (`flat_map_batch`), which is its quickest way: a key for each event would cost more.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from threading import Event

from bytewax import operators as op
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.testing import run_main
from peer_sides import Balances, Reader, as_table, serve, totals
from sides import Job

from leasehold.pipeline.connectors.log.store import Log

Total = tuple[str, tuple[Decimal, int]]


class Bodies(FixedPartitionedSource[bytes, None]):
    def __init__(self, log: Log, stopping: Event) -> None:
        self._log = log
        self._stopping = stopping

    def list_parts(self) -> list[str]:
        return self._log.partitions()

    def build_part(self, step_id: str, for_part: str, resume_state: None) -> Partition:
        return Partition(Reader(self._log.partition(for_part)), self._stopping)


class Partition(StatefulSourcePartition[bytes, None]):
    """It stores no position, so no recovery either."""

    def __init__(self, reader: Reader, stopping: Event) -> None:
        self._reader = reader
        self._stopping = stopping

    def next_batch(self) -> Iterable[bytes]:
        if self._stopping.is_set():
            raise StopIteration
        bodies = self._reader.read()
        return [] if bodies is None else bodies["body"].to_pylist()

    def snapshot(self) -> None:
        """Nothing is kept."""


class Merged(DynamicSink[Total]):
    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    def build(self, step_id: str, worker_index: int, worker_count: int) -> Writer:
        return Writer(Balances(self._dsn))


class Writer(StatelessSinkPartition[Total]):
    def __init__(self, balances: Balances) -> None:
        self._balances = balances

    def write_batch(self, items: list[Total]) -> None:
        self._balances.merge(as_table(dict(items)))

    def close(self) -> None:
        self._balances.close()


def run(job: Job, stopping: Event) -> None:
    log = Log(job.source)
    flow = Dataflow("balances")
    bodies = op.input("log", flow, Bodies(log, stopping))
    sums = op.flat_map_batch("sum", bodies, lambda batch: totals(batch).items())
    op.output("balances", sums, Merged(job.dsn))
    run_main(flow)
    log.close()


if __name__ == "__main__":
    serve(run)
