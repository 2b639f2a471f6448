"""Pipelines whose transforms need no Spark, and cases of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from leasehold.pipeline.batch import Batch
from leasehold.pipeline.errors import Poison, PoisonEvent
from leasehold.pipeline.transform import NoTransform, Transform
from leasehold.service.cases.model import LONG_AGO, Case
from leasehold.service.cases.running import PreparedPipeline
from leasehold.service.config.load import parse
from leasehold.service.wiring.build import policy_of

Apply = Callable[[pa.Table], pa.Table]


class FakeTransform(Transform):
    """Applies a function to each batch. An event whose body is `poison` cannot be processed."""

    description = "fake"

    def __init__(self, apply: Apply) -> None:
        self._apply = apply

    async def prepare(self) -> None:
        """Nothing to start."""

    async def apply(self, batch: Batch) -> pa.Table:
        bodies = batch.table["body"].to_pylist()
        if b"poison" in bodies:
            at = bodies.index(b"poison")
            sequence = batch.table["sequence"][at].as_py()
            raise PoisonEvent(
                "it is poison", before=at, sequence=sequence, found=[Poison(index=at, reason="it is poison")]
            )
        return self._apply(batch.table)

    async def close(self) -> None:
        """Nothing to close."""


def prepared(sink: str = "{type: log, path: out}", apply: Apply | None = None, **settings: str) -> PreparedPipeline:
    more = "".join(f"    {name}: {value}\n" for name, value in settings.items())
    text = f"pipelines:\n  - name: p\n    feed: {{type: log, path: in}}\n    sink: {sink}\n{more}"
    (found,) = parse(text, {}, folder=Path("/nowhere")).pipelines
    transform = NoTransform() if apply is None else FakeTransform(apply)
    return PreparedPipeline(settings=found, transform=transform, policy=policy_of(found, lambda: LONG_AGO))


def case_of(*events: str | dict[str, object], **keys: object) -> Case:
    """events: the bodies, or whole events."""
    found = [event if isinstance(event, dict) else {"body": event} for event in events]
    return Case.model_validate({"name": "one", "events": found, **keys})
